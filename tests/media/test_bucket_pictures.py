"""Assignment to buckets and the pictures in them, against exact fractions and ffmpeg's crop and scale."""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import bucket_reference, ffmpeg_reference
from hypothesis import given
from hypothesis import strategies as st

import chordcache as cc
from chordcache.config.config import Config
from chordcache.config.picture import Bucket, FramesConfig, PictureConfig
from chordcache.media.geometry import expected_shape, nearest_bucket
from chordcache.sources.media_file import MP4Source

MIN_PSNR_DB = 36.0
"""In the metric "planes" of ``ffmpeg_reference``"""

BUCKETS = [(64, 112, 9), (64, 112, 17), (112, 64, 9), (80, 80, 9), (160, 280, 9), (16, 160, 5)]


def build(folder: Path, buckets: list[Any], *, features: dict[str, Any] | None = None, **frames: Any) -> cc.Cache:
    config = Config(frames=FramesConfig(buckets=tuple(buckets), **frames), features=features or {})
    index = cc.scan([folder / "videos"], output=folder / "index.json", jobs=1)
    cc.build(index, folder / "cache", tiers=("lmdb",), features=("frames",), config=config, jobs=1)
    return cc.open_cache(folder / "cache")


@given(
    buckets=st.lists(st.tuples(st.integers(8, 200), st.integers(8, 200), st.integers(1, 99)), min_size=1, max_size=9),
    size=st.tuples(st.integers(1, 4000), st.integers(1, 4000)),
    num_frames=st.integers(0, 120),
)
def test_the_nearest_of_those_that_are_filled(
    buckets: list[tuple[int, int, int]], size: tuple[int, int], num_frames: int
) -> None:
    width, height = size
    nearest = nearest_bucket([Bucket(2 * h, 2 * w, t) for h, w, t in buckets], width, height, num_frames)
    filled = [(2 * h, 2 * w, t) for h, w, t in buckets if t <= num_frames]
    if nearest is None:
        assert not filled
        return

    def distance(bucket: tuple[int, int, int]) -> tuple[Fraction, Fraction, int]:
        ratio = Fraction(bucket[1] * height, bucket[0] * width)
        area = Fraction(bucket[1] * bucket[0], height * width)
        return max(ratio, 1 / ratio), max(area, 1 / area), -bucket[2]

    assert tuple(nearest) in filled
    # Two that are equally far, one wider and one narrower than the picture, may come in any order
    assert [float(x) for x in distance(tuple(nearest))] == pytest.approx([float(x) for x in min(map(distance, filled))])


def test_estimates_of_a_plan() -> None:
    picture = PictureConfig(buckets=(Bucket(64, 112, 9), Bucket(64, 112, 17)))
    assert expected_shape(picture, 1920, 1080, 12.4) == (112, 64, 9)
    assert expected_shape(picture, 1920, 1080, 8.4) == (0, 0, 0)
    assert expected_shape(PictureConfig(), 1920, 1080, 8.4) == (456, 256, 8.4)


def stripes(number: int, width: int, height: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Slopes of all planes and smooth stripes, so that a shift by a pixel in any direction is seen."""
    rows, columns = np.arange(height)[:, None], np.arange(width)
    y = 128 + 50 * np.sin(columns / 2.5 + number / 3) * np.cos(rows / 3) + 40 * columns / width - 30 * rows / height
    u = np.tile(np.linspace(60, 200, width // 2), (height // 2, 1))
    v = np.tile(np.linspace(190, 70, height // 2)[:, None], (1, width // 2))
    return y.astype(np.uint8), u.astype(np.uint8), v.astype(np.uint8)


MEDIA: dict[str, dict[str, Any]] = {
    "wide.mp4": {"size": (480, 200)},
    "tall.mp4": {"size": (200, 480)},
    "square.mp4": {"size": (240, 240)},
    "turned_90.mp4": {"size": (480, 200), "rotation": 90},
    "turned_180.mp4": {"size": (326, 220), "rotation": 180},
    "turned_270.mp4": {"size": (202, 480), "rotation": 270},
    "sar.mp4": {"size": (240, 240), "sample_aspect_ratio": Fraction(2)},
    "turned_sar.mp4": {"size": (240, 240), "sample_aspect_ratio": Fraction(2), "rotation": 90},
    "ten_bits.mp4": {"size": (322, 200), "pixel_format": "yuv420p10le"},
    "yuv444.mp4": {"size": (322, 200), "pixel_format": "yuv444p"},
    "yuv411.mkv": {"size": (328, 200), "pixel_format": "yuv411p", "codec": "ffv1", "options": {}},
    "interlaced.mp4": {"size": (322, 200), "options": {"crf": "6", "flags": "+ilme+ildct", "x264-params": "tff=1"}},
    "small.mp4": {"size": (64, 40)},
    "mpeg4.avi": {"size": (480, 200), "codec": "mpeg4", "options": {"qscale": "2", "flags": "+qscale", "bf": "2"}},
    "vp9.webm": {"size": (200, 480), "codec": "libvpx-vp9", "options": {"crf": "10", "b": "0", "deadline": "realtime"}},
}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path]) -> cc.Cache:
    folder = tmp_path_factory.mktemp("buckets")
    for name, spec in MEDIA.items():
        make_video(folder / "videos" / name, **{"num_frames": 20, "planes": stripes, "options": {"crf": "6"}, **spec})
    return build(folder, BUCKETS)


@pytest.mark.parametrize("name", MEDIA)
def test_pictures_are_those_of_ffmpeg(cache: cc.Cache, name: str) -> None:
    source = Path(cache.path).parent / "videos" / name
    (video,) = (video for video in cache if video.path == name)
    num_frames = len(ffmpeg_reference.probe(source, packets=True).shown())
    assert video.bucket == bucket_reference.nearest(source, BUCKETS, num_frames)
    assert cache.read(video, "frames").shape == (video.bucket[2], *video.bucket[:2], 3)
    assert video.source_frames.tolist() == list(range(video.bucket[2]))
    artefact = Path(cache.path, video.feature("frames").file.name)
    assert bucket_reference.worst_psnr_db(source, artefact, video.bucket) >= MIN_PSNR_DB


def test_notes_and_facts(cache: cc.Cache) -> None:
    videos = {video.path: video for video in cache}
    assert "enlarged 1.75 times to fill bucket 64x112x17" in videos["small.mp4"].sidecar.notes
    assert not any("enlarged" in note for note in videos["wide.mp4"].sidecar.notes)
    assert {video.path for video in cache} == MEDIA.keys(), "every video fills a bucket"
    wide = videos["wide.mp4"].sidecar
    assert (wide.display_size, wide.display_crop) == ((480, 200), (64.0, 0.0, 350.0, 200.0))


def test_one_eye_is_cut_out_first(tmp_path: Path, make_video: Callable[..., Path]) -> None:
    source = make_video(tmp_path / "videos/a.mp4", size=(480, 160), num_frames=3, planes=stripes)
    cache = build(tmp_path, [(64, 64, 2)], stereo="right", stereo_layout="side_by_side")
    (video,) = cache
    decoded = ffmpeg_reference.Decoded(source, 0, (64, 64), "yuvj420p", crop="160:160:280:0", chroma_location="left")
    stored = map(ffmpeg_reference.jpeg_planes, ffmpeg_reference.records(cache.path / video.feature("frames").file.name))
    psnr = [ffmpeg_reference.psnr_db(one, other) for one, other in zip(stored, decoded, strict=False)]
    assert len(psnr) == 2
    assert min(psnr) >= MIN_PSNR_DB


@pytest.mark.parametrize("codec", ["raw", "mpeg4", "h264"])
def test_every_codec_has_the_same_pictures(
    cache: cc.Cache, tmp_path: Path, make_video: Callable[..., Path], codec: str
) -> None:
    make_video(tmp_path / "videos/wide.mp4", size=(480, 200), num_frames=20, planes=stripes, options={"crf": "6"})
    other = build(tmp_path, BUCKETS, codec=codec)
    (video,) = other
    (expected,) = (candidate for candidate in cache if candidate.path == "wide.mp4")
    assert video.bucket == expected.bucket
    pictures, frames = other.read(video, "frames"), cache.read(expected, "frames")
    assert ffmpeg_reference.psnr_db(pictures, frames) >= MIN_PSNR_DB


def test_a_source_of_single_frames_refuses_buckets() -> None:
    with pytest.raises(cc.UsageError, match="^frames: got buckets, which are chosen for whole items, expected None"):
        MP4Source(PictureConfig(buckets=(Bucket(16, 16, 1),)))


# The corpus

CORPUS_BUCKETS = [
    (96, 160, 1), (160, 96, 1), (128, 128, 1), (96, 160, 3), (96, 160, 16), (160, 96, 16), (128, 128, 16)
]  # fmt: skip

LOWER_PSNR_DB = 34.0
"""Noise and few colors, at any size"""

NO_DECODER = "odd/unsupported_codec/vvc_400kbps_2s.mp4"
"""Video that the ffmpeg command cannot decode"""

FIELDS = "odd/interlaced/CVFI2_SVA_C.264"
"""Stream whose packets are fields for ffprobe, which counts each as a frame"""


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_every_odd_file_has_the_shape_of_its_bucket(corpus: Path, tmp_path: Path) -> None:
    index = cc.scan([f"odd={corpus / 'odd'}", f"broken={corpus / 'broken'}"], output=tmp_path / "i.json", jobs=2)
    config = Config(frames=FramesConfig(buckets=tuple(CORPUS_BUCKETS)))
    summary = cc.build(index, tmp_path / "cache", tiers=("lmdb", "npz"), config=config, jobs=2)
    assert summary.num_done + summary.num_failed == summary.num_inputs
    failures = [json.loads(line) for line in (tmp_path / "cache/quarantine.jsonl").read_text().splitlines()]
    assert not {failure["cause"] for failure in failures} & {"bug", "signal", "timeout", "oom", "extractor", "bucket"}
    readable = {"no-video", "encrypted", "no-frames", "truncated"}
    assert {failure["cause"] for failure in failures if failure["root"] == "odd"} <= readable
    cache = cc.open_cache(tmp_path / "cache")
    videos = [video for video in cache if video.root == "odd"]
    assert len(videos) > 100
    for video in cache:
        assert video.bucket in CORPUS_BUCKETS
        assert cache.read(video, "frames").shape == (video.num_frames, video.height, video.width, 3)
        assert cache.read(video, "flow").shape[:3] == (video.num_frames - 1, video.height, video.width)
    assert cc.verify(tmp_path / "cache", source=True, jobs=2).damage == []
    seen = [video for video in videos if f"odd/{video.path}" != NO_DECODER]

    def worst(video: cc.Video) -> float:
        source = corpus / "odd" / video.path
        assert video.bucket is not None
        if f"odd/{video.path}" != FIELDS and "long_4k" not in video.path:
            shown = len(ffmpeg_reference.probe(source, packets=True).shown())
            assert video.bucket == bucket_reference.nearest(source, CORPUS_BUCKETS, shown), video.path
        file = tmp_path / "cache" / video.feature("frames").file.name
        return bucket_reference.worst_psnr_db(source, file, video.bucket)

    psnr = dict(zip((video.path for video in seen), ffmpeg_reference.map_in_threads(worst, seen), strict=True))
    assert not {path: value for path, value in psnr.items() if value < LOWER_PSNR_DB}
