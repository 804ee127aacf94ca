"""Keyframes of the cache: those that ffprobe names, in every codec, with every tier, and from sources too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.ffmpeg import ffprobe, ffprobe_column
from helpers.inline import HERE

import chordcache as cc
from chordcache.config.config import config_from_json
from chordcache.digests import digest_file
from chordcache.sources.uncached_video import StoredSource
from chordcache.storage import sealed_json
from chordcache.storage.artefacts.open_files import FRAME_ARRAYS, open_artefact
from chordcache.storage.artefacts.writer import create_artefact
from chordcache.storage.cache_header import read_header
from chordcache.storage.sidecar import Sidecar
from chordcache.train.misses.indexed_videos import SourceVideos
from chordcache.train.samplers.clip_request import ClipRequest
from chordcache.train.samplers.clip_samplers import KeyframeSampler

B_FRAMES = {"bf": "3", "sc_threshold": "0"}

NO_CUTS = {"bf": "2", "sc_threshold": "1000000000"}

CODECS: dict[str, dict[str, Any]] = {
    "h264_closed.mp4": {"options": B_FRAMES},
    "h264_open.mp4": {"options": {**B_FRAMES, "x264-params": "b-adapt=0:open-gop=1:keyint=10"}},
    "h264_open.ts": {"options": {**B_FRAMES, "x264-params": "b-adapt=0:open-gop=1:keyint=10"}},
    "h264_intra_frames_between.mkv": {"options": {"x264-params": "keyint=20:min-keyint=20:scenecut=0:force-cfr=1"}},
    "h264_intra_refresh.mkv": {"options": {"bf": "0", "x264-params": "intra-refresh=1:keyint=10"}},
    "h264_only_intra.mp4": {"options": {"x264-params": "keyint=1"}},
    "hevc_closed.mp4": {
        "codec": "libx265",
        "options": {"x265-params": "log-level=none:scenecut=0:open-gop=0:keyint=12"},
    },
    "hevc_open.mp4": {"codec": "libx265", "options": {"x265-params": "log-level=none:scenecut=0:open-gop=1:keyint=12"}},
    "vp9.webm": {"codec": "libvpx-vp9", "options": {"auto-alt-ref": "1", "lag-in-frames": "16"}},
    "vp8.webm": {"codec": "libvpx"},
    "av1.mkv": {"codec": "libsvtav1", "options": {"preset": "12", "svtav1-params": "keyint=12"}},
    "mpeg4.avi": {"codec": "mpeg4", "options": NO_CUTS},
    "mpeg4.mp4": {"codec": "mpeg4", "options": NO_CUTS},
    "mpeg2.mpg": {"codec": "mpeg2video", "options": NO_CUTS},
    "mpeg2.ts": {"codec": "mpeg2video", "options": NO_CUTS},
    "mjpeg.mov": {"codec": "mjpeg", "pixel_format": "yuvj420p"},
    "prores.mov": {"codec": "prores_ks", "pixel_format": "yuv422p10le"},
    "ffv1.mkv": {"codec": "ffv1", "gop": 1},
    "one_frame.mp4": {"num_frames": 1},
}
"""Clips of 40 frames with a keyframe in 12 frames, unless they say otherwise"""

ONLY_KEYFRAMES = {"h264_only_intra.mp4", "mjpeg.mov", "prores.mov", "ffv1.mkv"}

REFRESHED = {"h264_intra_refresh.mkv"}
"""The encoder marks packets from which a decoder recovers over several frames"""

NOT_ALL_TIMED = {"mpeg4.avi", "mpeg2.mpg"}
"""Not all packets have presentation times, so ffprobe does not show their order"""

TEN_A_SECOND = "fps_10"
"""Config that keeps frames 0, 3, 5, 8, 10 .. of 25 a second"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path]) -> Path:
    """All clips, cached whole in all tiers, and in ``TEN_A_SECOND`` without ``motion``."""
    folder = tmp_path_factory.mktemp("keyframes")
    for name, spec in CODECS.items():
        make_video(folder / "videos" / name, **{"num_frames": 40, "gop": 12, "size": (128, 96), **spec})
    cc.scan([folder / "videos"], output=folder / "index.jsonl", jobs=HERE)
    (folder / "whole.yaml").write_text("features: {flow: null, mel: null}\nhdf5: {features: [frames]}\n")
    tiers = ["lmdb", "npz", "hdf5"]
    assert (
        cc.build(
            folder / "index.jsonl", folder / "whole", tiers=tiers, config=folder / "whole.yaml", jobs=HERE
        ).num_failed
        == 0
    )
    (folder / "fps.yaml").write_text("frames: {fps: 10}\n")
    assert (
        cc.build(folder / "index.jsonl", folder / TEN_A_SECOND, config=folder / "fps.yaml", jobs=HERE).num_failed == 0
    )
    return folder


def video_of(cache: Path, name: str) -> cc.Video:
    return next(video for video in cc.open_cache(cache) if video.path == name)


def decoded_keyframes(path: Path) -> list[int]:
    return [number for number, flag in enumerate(ffprobe_column(path, "frame=key_frame")) if flag == "1"]


def marked_keyframes(path: Path) -> list[int]:
    """Frame numbers of the packets that the container or the parser marks."""
    packets = ffprobe(path, "packet=pts,dts,flags", "-select_streams", "v:0")["packets"]
    if "pts" in packets[0]:
        packets.sort(key=lambda packet: packet["pts"])
    return [number for number, packet in enumerate(packets) if packet["flags"][0] == "K"]


@pytest.mark.parametrize("name", CODECS)
def test_keyframes_are_those_of_ffprobe(folder: Path, name: str) -> None:
    video = video_of(folder / "whole", name)
    expected = decoded_keyframes(folder / "videos" / name)
    assert video.keyframes.dtype == np.int64
    assert video.keyframes.tolist() == expected
    if name not in REFRESHED | NOT_ALL_TIMED:
        assert marked_keyframes(folder / "videos" / name) == expected
    if name in ONLY_KEYFRAMES:
        assert expected == list(range(40))
    elif name != "one_frame.mp4":
        assert 2 <= len(expected) <= 4
    assert len(video.sidecar.files) == (3 if video.sidecar.feature("motion", "npz").absent is None else 2)
    for file in video.sidecar.files:
        artefact = open_artefact(folder / "whole" / file.name, file.num_bytes)
        assert artefact.array("keyframes").tolist() == expected


@pytest.mark.parametrize("name", CODECS)
def test_the_first_kept_frame_after_a_keyframe_takes_its_place(folder: Path, name: str) -> None:
    """Frame numbers of the cache, worked out from ffprobe's keyframes and the numbers of the kept frames."""
    video = video_of(folder / TEN_A_SECOND, name)
    kept = video.source_frames.tolist()
    after = [
        next((i for i, n in enumerate(kept) if n >= key), None) for key in decoded_keyframes(folder / "videos" / name)
    ]
    assert video.keyframes.tolist() == sorted({number for number in after if number is not None})


def test_a_keyframe_after_the_last_kept_frame_is_left_out(make_video: Callable[..., Path], tmp_path: Path) -> None:
    make_video(tmp_path / "a.mp4", num_frames=28, gop=26, options={"bf": "0", "sc_threshold": "0"})
    (tmp_path / "index.csv").write_text("path\na.mp4\n")
    (tmp_path / "config.yaml").write_text("frames: {fps: 2}\n")
    cc.build(tmp_path / "index.csv", tmp_path / "cache", config=tmp_path / "config.yaml", jobs=HERE)
    (video,) = cc.open_cache(tmp_path / "cache")
    assert decoded_keyframes(tmp_path / "a.mp4") == [0, 26]
    assert video.source_frames.tolist() == [0, 13, 25]
    assert video.keyframes.tolist() == [0]


def test_a_video_without_keyframes_begins_with_one() -> None:
    class Without:
        num_frames = 20
        keyframes = np.zeros(0, np.int64)

    assert KeyframeSampler(3, 2).frame_numbers(Without(), ClipRequest()).tolist() == [0, 2, 4]  # type: ignore[arg-type]


@pytest.mark.parametrize("config", ["whole", TEN_A_SECOND])
@pytest.mark.parametrize("name", CODECS)
def test_a_source_has_the_keyframes_of_the_cache(folder: Path, config: str, name: str) -> None:
    index = cc.read_index(folder / "index.jsonl")
    position = [record.path for record in index].index(name)
    settings = config_from_json(read_header(folder / config).config)
    videos = SourceVideos(StoredSource(settings), index, ["frames"], settings)
    keyframes = videos.read(position, lambda _, video: video.keyframes)
    assert keyframes.dtype == np.int64
    assert keyframes.tolist() == video_of(folder / config, name).keyframes.tolist()


def rewrite(cache: Path, changes: dict[str, np.ndarray | None]) -> None:
    """Write the only artefact of the only video again with other arrays, None for without. All digests are right."""
    (sidecar_file,) = (cache / "videos").rglob("*.json")
    sidecar = Sidecar.from_line(sidecar_file.read_text(), "x")
    (info,) = sidecar.features
    path = cache / info.file.name
    other = cache.parent / "other"
    other.mkdir()
    artefact = open_artefact(path, info.file.num_bytes)
    with create_artefact(other / path.name) as writer:
        writer.append("frames", list(map(bytes, artefact.records("frames", range(sidecar.num_frames)))))
        arrays = {**{name: artefact.array(name) for name in FRAME_ARRAYS}, **changes}
        writer.finish({name: values for name, values in arrays.items() if values is not None}, {})
    (other / path.name).replace(path)
    info = info.replace(file=info.file.replace(num_bytes=path.stat().st_size, digest=digest_file(path)))
    sidecar_file.write_text(sealed_json.seal_versioned(sidecar.replace(features=(info,))) + "\n")
    cc.repair(cache, [], jobs=HERE)


@pytest.fixture
def cache(tmp_path: Path, make_video: Callable[..., Path]) -> Path:
    make_video(tmp_path / "videos/a.mp4", num_frames=30, gop=12, options={"sc_threshold": "0"})
    cc.build(cc.scan([tmp_path / "videos"], jobs=HERE), tmp_path / "cache", jobs=HERE)
    return tmp_path / "cache"


@pytest.mark.parametrize(
    "keyframes",
    [
        [0, 12, 30],
        [-1, 12],
        [0, 24, 12],
        [0, 12, 12],
        [0.0, 12.0],
        [[0], [12]],
    ],
    ids=str,
)
def test_deep_finds_keyframes_that_cannot_be(cache: Path, keyframes: list[Any]) -> None:
    rewrite(cache, {"keyframes": np.array(keyframes)})
    assert cc.verify(cache, jobs=HERE).damage == []
    (damage,) = cc.verify(cache, level="deep", jobs=HERE).damage
    assert damage.kind == "damaged"
    assert "its keyframes are not ascending frame numbers below 30" in damage.message


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"keyframes": [0, 24]}, "frame 12 is a keyframe either in the cache or in the source, but not in both"),
        ({"keyframes": [0, 12, 13, 24]}, "frame 13 is a keyframe either in the cache or in the source, but not in"),
        ({"keyframes": []}, "frame 0 is a keyframe either in the cache or in the source, but not in both"),
        ({"source_frames": [*range(29), 30]}, "frame 29, cached as 30 of the source, is 29"),
    ],
    ids=["lost", "added", "none", "numbers"],
)
def test_source_finds_arrays_that_the_source_does_not_have(cache: Path, changes: dict[str, Any], what: str) -> None:
    rewrite(cache, {name: np.array(values, np.int64) for name, values in changes.items()})
    assert cc.verify(cache, level="deep", jobs=HERE).damage == []
    (damage,) = cc.verify(cache, source=True, jobs=HERE).damage
    assert damage.kind == "stale"
    assert what in damage.message


def test_an_artefact_without_keyframes_is_damage(cache: Path) -> None:
    rewrite(cache, {"keyframes": None})
    (damage,) = cc.verify(cache, level="deep", jobs=HERE).damage
    assert (damage.kind, damage.file.startswith("lmdb/")) == ("damaged", True)
    assert "whole array 'keyframes' is missing" in damage.message
    (video,) = cc.open_cache(cache)
    with pytest.raises(cc.DamageError, match=r"'keyframes' is missing; run 'chordcache verify --repair"):
        KeyframeSampler(2).frame_numbers(video, ClipRequest())
