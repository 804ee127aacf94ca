"""Frames that are cached as packets of MPEG-4 and H.264: against ffmpeg, in any order, damaged, at odd sizes."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from helpers import processes
from helpers.ffmpeg import ffmpeg
from helpers.inline import HERE
from hypothesis import given
from hypothesis import strategies as st

import chordcache as cc
from chordcache.config.config import config_from_json
from chordcache.errors import DamageError, MediaError, UsageError
from chordcache.features.packet_frames import iter_planes
from chordcache.media.packet_codec import PacketEncoder, planes_of
from chordcache.media.picture_data import plane_array
from chordcache.media.planes import to_rgb
from chordcache.records import RunSummary
from chordcache.storage.artefacts.open_files import forget, open_artefact
from chordcache.verifying.verify_source import compare_with_source

CODECS: Mapping[str, Mapping[str, Any]] = {
    "mpeg4": {"codec": "mpeg4"},
    "h264": {"codec": "h264"},
    "mpeg4, interleaved": {"codec": "mpeg4", "gop": 4, "stride": 3},
    "h264, interleaved": {"codec": "h264", "gop": 3, "stride": 4, "crf": 23},
    "keyframes only": {"codec": "mpeg4", "gop": 1, "quantizer": 4},
}
NUM_FRAMES = 45  # the last chain is not full
STREAMS = {"mpeg4": "m4v", "h264": "h264"}
"""ffmpeg's name of the format of a bare stream"""


def build(folder: Path, settings: Mapping[str, Any], *, tiers: Sequence[str] = ("lmdb",), **frames: Any) -> RunSummary:
    """Cache the videos of a folder."""
    config = config_from_json(
        {
            "frames": {**settings, **frames},
            "features": dict.fromkeys(("flow", "motion", "mel")),
            "hdf5": {"features": ["frames"]},
        }
    )
    return cc.build(cc.scan([folder / "videos"], jobs=HERE), folder / "cache", tiers=tiers, config=config, jobs=HERE)


@pytest.fixture(scope="module")
def pieces(clips: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two pieces of real clips of different sizes."""
    folder = tmp_path_factory.mktemp("pieces")
    (folder / "videos").mkdir()
    for name in ("animation/bigbuckbunny.mp4", "street/bikes.mp4"):
        options = ("-frames:v", str(NUM_FRAMES), "-an", "-crf", "12")
        ffmpeg("-i", clips / name, *options, folder / "videos" / Path(name).name)
    return folder


@pytest.fixture(scope="module", params=["mpeg4", "h264, interleaved", "keyframes only"])
def cache(pieces: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> cc.Cache:
    folder = tmp_path_factory.mktemp("cache")
    shutil.copytree(pieces / "videos", folder / "videos")
    assert build(folder, CODECS[request.param], short_side=128).num_done == 2
    return cc.open_cache(folder / "cache")


@pytest.fixture(scope="module")
def jpegs(pieces: Path) -> cc.Cache:
    build(pieces, {}, short_side=128)
    return cc.open_cache(pieces / "cache")


def stored(cache: cc.Cache, video: cc.Video) -> list[bytes]:
    """All records of a video."""
    info = video.feature("frames")
    artefact = open_artefact(cache.path / info.file.name, info.file.num_bytes)
    return [bytes(record) for record in artefact.records("frames", range(video.num_frames))]


def planes(cache: cc.Cache, video: cc.Video, numbers: Sequence[int]) -> list[bytes]:
    """The planes of decoded frames."""
    info = video.feature("frames")
    artefact = open_artefact(cache.path / info.file.name, info.file.num_bytes)
    pictures = iter_planes(artefact, info, numbers)
    return [b"".join(plane.tobytes() for plane in planes) for planes in pictures]


def psnr(a: np.ndarray, b: np.ndarray) -> float:
    return float(10 * np.log10(255**2 / max(1e-9, np.mean(np.square(a.astype(np.float32) - b)))))


# What is stored


def test_ffmpeg_plays_each_chain_and_shows_the_same(cache: cc.Cache, tmp_path: Path) -> None:
    for video in cache:
        records, params = stored(cache, video), video.feature("frames").params
        span = params["gop"] * params["stride"]
        for first in (0, params["stride"] - 1, span, (NUM_FRAMES - 1) // span * span):
            chain = range(first, min(first // span * span + span, NUM_FRAMES), params["stride"])
            (tmp_path / "chain").write_bytes(b"".join(records[number] for number in chain))
            command = ["ffmpeg", "-v", "error", "-f", STREAMS[params["codec"]], "-i", tmp_path / "chain"]
            shown = subprocess.run(
                [*command, "-fps_mode", "passthrough", "-f", "rawvideo", "-"], capture_output=True, check=True
            )
            decoded, expected = (
                np.frombuffer(b, np.uint8) for b in (b"".join(planes(cache, video, chain)), shown.stdout)
            )
            assert not shown.stderr
            differences = np.abs(decoded.astype(int) - expected)
            # The transform of MPEG-4 is only nearly defined, and other versions of FFmpeg have another one
            assert differences.max() <= (0 if params["codec"] == "h264" else 2)
            assert differences.mean() < 0.001


def test_frames_are_near_those_of_jpeg(cache: cc.Cache, jpegs: cc.Cache) -> None:
    for video, other in zip(cache, jpegs, strict=True):
        assert video.path == other.path
        for frame, jpeg in zip(cache.read(video), jpegs.read(other), strict=True):
            assert psnr(frame, jpeg) >= 30
        assert np.array_equal(video.pts_seconds, other.pts_seconds)


# Any order


ORDERS: Mapping[str, Sequence[int]] = {
    "reversed": range(NUM_FRAMES - 1, -1, -1),
    "strided": range(3, NUM_FRAMES, 4),
    "one": [NUM_FRAMES - 1],
    "none": [],
    "repeated": [7, 7, 7, 8, 8, 9, 7, 0, 0],
    "random": np.random.default_rng(0).integers(0, NUM_FRAMES, 120).tolist(),
}


def test_packets_do_not_depend_on_what_was_in_memory_before() -> None:
    rng = np.random.default_rng(0)
    for _ in range(6):
        picture = np.kron(rng.integers(0, 255, (16, 20)), np.ones((6, 6))).astype(np.uint8)
        planes = [
            (
                picture[n : n + 48, n : n + 66],
                picture[n : n + 48 : 2, n : n + 66 : 2],
                picture[n + 48 : n : -2, n : n + 66 : 2],
            )
            for n in range(20)
        ]
        streams = set()
        for number in range(20):
            memory = [np.full(200_000 + 1000 * number, number) for _ in range(number)]
            encoder = PacketEncoder("h264", gop=8, stride=1, crf=17)
            packets = [packet for picture in planes for packet in encoder.add(*picture)]
            streams.add(b"".join([*packets, *encoder.finish()]))
            del memory
        assert len(streams) == 1


@pytest.mark.parametrize("order", ORDERS)
def test_any_order_gives_the_same(cache: cc.Cache, order: str) -> None:
    numbers = ORDERS[order]
    for video in cache:
        whole = cache.read(video)
        assert np.array_equal(cache.read(video, indices=numbers), whole[list(numbers)])
        one_by_one = [frames.copy() for frames in cache.iter_frames(video, numbers)]
        assert sum(map(len, one_by_one)) == len(numbers)
        assert all(
            np.array_equal(a, b)
            for a, b in zip((f for fs in one_by_one for f in fs), whole[list(numbers)], strict=True)
        )


def test_two_readers_of_a_thread_do_not_disturb_each_other(cache: cc.Cache) -> None:
    first, second = cache
    pairs = zip(cache.iter_frames(first, range(20)), cache.iter_frames(second, range(5, 25)), strict=True)
    for number, (a, b) in enumerate(pairs):
        assert np.array_equal(a[0], cache.read(first, indices=[number])[0])
        assert np.array_equal(b[0], cache.read(second, indices=[number + 5])[0])


def test_threads_give_the_same(cache: cc.Cache) -> None:
    whole = [cache.read(video) for video in cache]
    wrong: list[int] = []

    def read(seed: int) -> None:
        random = np.random.default_rng(seed)
        for _ in range(30):
            position, number = int(random.integers(2)), int(random.integers(NUM_FRAMES - 4))
            if not np.array_equal(
                cache.read(position, "frames", number, number + 4), whole[position][number : number + 4]
            ):
                wrong.append(number)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize(
    ("cache", "start"),
    [("mpeg4", "fork"), ("h264, interleaved", "forkserver")],
    indirect=["cache"],
)
def test_processes_of_a_loader_give_the_same(cache: cc.Cache, start: str) -> None:
    pytest.importorskip("torch")
    clip_sampler = cc.RegularClipSampler(num_frames=8, stride=2)
    dataset = cc.ChordVideoDataset(cache.path, clip_sampler=clip_sampler, size=(96, 96), clips_per_video=2)
    expected = [dataset[i]["frames"] for i in range(len(dataset))]
    sampler = cc.ChordSampler(dataset, shuffle=False, batch_size=2)
    loader = cc.make_loader(dataset, batch_size=2, num_workers=2, sampler=sampler, start_method=start)
    clips = [clip for batch in loader for clip in batch["frames"]]
    assert len(clips) == len(expected)
    assert all((a.numpy() == b.numpy()).all() for a, b in zip(clips, expected, strict=True))


@given(st.integers(0, 60), st.integers(0, 90), st.integers(1, 65), st.integers(1, 100), st.integers(0, 3))
def test_a_part_is_that_of_the_whole(top: int, left: int, height: int, width: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    picture = av.VideoFrame(190, 126, "yuv420p")
    for plane in picture.planes:
        plane_array(plane)[:] = random.integers(0, 256, (plane.height, plane.width))
    whole, part = np.empty((126, 190, 3), np.uint8), np.empty((height, width, 3), np.uint8)
    to_rgb(planes_of(picture), 0, 0, whole[None])
    to_rgb(planes_of(picture), top, left, part[None])
    assert np.array_equal(part, whole[top : top + height, left : left + width])


def test_large_pictures_are_converted_in_this_thread() -> None:
    """OpenCV's own threads do not exist in a forked worker, which would wait for them."""
    code = """
import os, numpy as np, av
import chordcache.media.opencv  # whose import starts threads
from chordcache.media.packet_codec import planes_of
from chordcache.media.packet_codec import PacketEncoder
from chordcache.media.planes import to_rgb
before = len(os.listdir("/proc/self/task"))
to_rgb(planes_of(av.VideoFrame(1920, 1080, "yuv420p")), 0, 0, np.empty((1, 1080, 1920, 3), np.uint8))
assert len(os.listdir("/proc/self/task")) == before, os.listdir("/proc/self/task")
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_colors_are_those_of_jpeg() -> None:
    """Flat colors, against the equations of JFIF."""
    for y, u, v in ((0, 128, 128), (255, 128, 128), (76, 85, 255), (150, 44, 21), (29, 255, 107), (126, 100, 160)):
        picture = av.VideoFrame(16, 16, "yuv420p")
        for plane, value in zip(picture.planes, (y, u, v), strict=True):
            plane_array(plane)[:] = value
        out = np.empty((16, 16, 3), np.uint8)
        to_rgb(planes_of(picture), 0, 0, out[None])
        red, blue = y + 1.402 * (v - 128), y + 1.772 * (u - 128)
        green = y - 0.344136 * (u - 128) - 0.714136 * (v - 128)
        assert np.abs(out[0, 0] - np.clip([red, green, blue], 0, 255)).max() <= 2


# Damage


def test_a_changed_packet_costs_its_chain_only(cache: cc.Cache, tmp_path: Path) -> None:
    shutil.copytree(cache.path, tmp_path / "cache")
    with cc.open_cache(tmp_path / "cache") as copy:
        video = copy[0]
        info, whole = video.feature("frames"), cache.read(0)
        path, number = copy.path / info.file.name, 20
        data, record = path.read_bytes(), stored(copy, video)[number]
        forget(path)
        processes.flip(path, data.index(record) + len(record) // 2)
        with pytest.raises(DamageError, match=f"record {number} is not what was written"):
            copy.read(video, indices=[number])
        gop, stride = info.params["gop"], info.params["stride"]
        for other in range(NUM_FRAMES):
            in_its_chain = other // (gop * stride) == number // (gop * stride) and other % stride == number % stride
            if in_its_chain and other >= number:
                with pytest.raises(DamageError, match="verify --repair"):
                    copy.read(video, indices=[other])
            else:
                assert np.array_equal(copy.read(video, indices=[other])[0], whole[other])
    assert [finding.kind for finding in cc.verify(tmp_path / "cache", jobs=HERE).damage] == ["damaged"]


def test_packets_that_are_not_of_a_chain_are_damage(cache: cc.Cache) -> None:
    """Digests are right, but the decoder would begin in the middle, or show pictures of another size."""
    video = cache[0]
    info = video.feature("frames")
    wrong = [{"gop": info.params["gop"] + 1}] if info.params["gop"] > 1 else []
    for params in [*wrong, {"codec": "h264" if info.params["codec"] == "mpeg4" else "mpeg4"}]:
        lies = info.replace(params={**info.params, **params})
        artefact = open_artefact(cache.path / info.file.name, info.file.num_bytes)
        with pytest.raises(DamageError):
            list(iter_planes(artefact, lies, range(NUM_FRAMES)))
    lies = info.replace(shape=(NUM_FRAMES, 64, 64, 3))
    artefact = open_artefact(cache.path / info.file.name, info.file.num_bytes)
    with pytest.raises(DamageError, match="expected 64x64"):
        list(iter_planes(artefact, lies, [0]))


def test_verify_finds_nothing(cache: cc.Cache) -> None:
    assert not cc.verify(cache.path, level="deep", source=True, jobs=HERE).damage


# Sizes


def gray_video(path: Path, size: tuple[int, int], num_frames: int) -> None:
    """A lossless video whose frame n has the gray level 7 n."""
    pixels = b"".join(bytes([7 * number]) * (size[0] * size[1]) for number in range(num_frames))
    path.parent.mkdir(parents=True, exist_ok=True)
    source = ["-f", "rawvideo", "-pix_fmt", "gray", "-s", f"{size[0]}x{size[1]}", "-r", "25", "-i", "-"]
    subprocess.run(["ffmpeg", "-v", "error", *source, "-c:v", "ffv1", path], input=pixels, check=True)


ODD_SIZES = {(2, 2): 3, (2, 130): 9, (130, 2): 1, (174, 142): 2, (18, 16): 17, (640, 16): 8}
"""(width, height) to the number of frames"""


@pytest.mark.parametrize("codec", ["mpeg4, interleaved", "h264"])
def test_odd_sizes(tmp_path: Path, codec: str) -> None:
    for number, (size, num_frames) in enumerate(ODD_SIZES.items()):
        gray_video(tmp_path / f"videos/{number}.mkv", size, num_frames)
    assert build(tmp_path, CODECS[codec], short_side=None).num_done == len(ODD_SIZES)
    with cc.open_cache(tmp_path / "cache") as cache:
        for video, (size, num_frames) in zip(cache, ODD_SIZES.items(), strict=True):
            frames = cache.read(video)
            assert frames.shape == (num_frames, size[1], size[0], 3)
            for number, frame in enumerate(frames):
                assert np.array_equal(frame, cache.read(video, indices=[number])[0])
                assert np.abs(frame.astype(int) - 7 * number).max() <= 4
    assert not cc.verify(tmp_path / "cache", level="deep", source=True, jobs=HERE).damage


def test_8192_pixels_are_refused_by_mpeg4_only(tmp_path: Path, make_video: Callable[..., Path]) -> None:
    make_video(tmp_path / "videos/a.mkv", codec="ffv1", size=(8192, 64), num_frames=2)
    assert build(tmp_path, {"codec": "mpeg4"}, short_side=None).num_failed == 1
    (failure,) = processes.quarantine(tmp_path / "cache").values()
    assert failure["cause"] == "refused-size"
    assert failure["message"] == (
        "got pictures of 8192x64 pixels, expected at most 8191 on a side for mpeg4. "
        "Set frames.short_side, or frames.codec to h264."
    )
    assert build(tmp_path, {"codec": "h264"}, short_side=None).num_done == 1
    with cc.open_cache(tmp_path / "cache") as cache:
        assert cache.read(0).shape == (2, 64, 8192, 3)


@pytest.mark.parametrize("codec", [{"codec": "mpeg4", "quantizer": 8}, {"codec": "h264"}, {"codec": "h264", "crf": 40}])
def test_saturated_color_is_equal_to_its_source(tmp_path: Path, codec: dict[str, Any]) -> None:
    """Noise of the codec leaves the gamut, so that RGB is clipped. Another picture at the same time is noticed."""
    (tmp_path / "videos").mkdir()
    path = tmp_path / "videos/a.mp4"
    source = "mandelbrot=s=320x180:r=25,eq=saturation=3,format=yuv420p"
    encoder = ("-t", "1", "-c:v", "libx264", "-preset", "ultrafast", "-crf", "14")
    ffmpeg("-f", "lavfi", "-i", source, *encoder, path)
    build(tmp_path, codec)
    assert cc.verify(tmp_path / "cache", level="deep", source=True, jobs=HERE).damage == []
    other = tmp_path / "b.mp4"
    ffmpeg("-f", "lavfi", "-i", f"{source},hflip", *encoder, other)
    with cc.open_cache(tmp_path / "cache") as cache, pytest.raises(MediaError, match="is shown with a PSNR of"):
        config = config_from_json({"frames": codec})
        compare_with_source(cache.path, cache[0].sidecar, config, str(other))


# Builds


def test_a_build_without_the_encoder_is_refused(tmp_path: Path, make_video, monkeypatch) -> None:
    """FFmpeg has libx264 only if it was built under the GPL."""
    make_video(tmp_path / "videos/a.mp4")
    monkeypatch.setattr(av, "codecs_available", av.codecs_available - {"libx264"})
    with pytest.raises(
        UsageError, match=r"feature 'frames': codec h264 needs the encoder libx264, .* run: pip install"
    ):
        build(tmp_path, {"codec": "h264"})
    assert build(tmp_path, {"codec": "mpeg4"}).num_done == 1


def test_a_cache_may_hold_both_codecs(tmp_path: Path, make_video: Callable[..., Path]) -> None:
    """A config with another codec makes frames stale. Until they are built again, the old ones are read."""
    for name in ("a.mp4", "b.mp4"):
        make_video(tmp_path / "videos" / name, num_frames=20)
    build(tmp_path, {})
    (tmp_path / "videos/list.csv").write_text("path\nb.mp4\n")
    config = config_from_json({"frames": {"codec": "mpeg4"}, "features": dict.fromkeys(("flow", "motion", "mel"))})
    cc.build(tmp_path / "videos/list.csv", tmp_path / "cache", tiers=("lmdb",), config=config, jobs=HERE)
    with cc.open_cache(tmp_path / "cache") as cache:
        codecs = {video.path: video.feature("frames").params["codec"] for video in cache}
        assert codecs == {"a.mp4": "jpeg", "b.mp4": "mpeg4"}
        assert all(cache.read(video).shape == (20, 48, 64, 3) for video in cache)
    assert build(tmp_path, {"codec": "mpeg4"}).num_done >= 1
    assert build(tmp_path, {"codec": "mpeg4"}).num_up_to_date == 2


def test_many_frames_take_little_memory(tmp_path: Path, make_video: Callable[..., Path]) -> None:
    """5,000 frames, in a build and in a walk through half of them."""
    piece = make_video(
        tmp_path / "piece.mp4", num_frames=250, size=(32, 32), options={"preset": "ultrafast", "bf": "0"}
    )
    (tmp_path / "videos").mkdir()
    subprocess.run(
        ["ffmpeg", "-v", "error", "-stream_loop", "19", "-i", piece, "-c", "copy", tmp_path / "videos/a.mp4"],
        check=True,
    )
    assert build(tmp_path, {"codec": "mpeg4", "stride": 2}).num_done == 1
    code = """
import re, sys, chordcache
with chordcache.open_cache(sys.argv[1]) as cache:
    assert cache[0].num_frames == 5_000
    assert sum(len(frames) for frames in cache.iter_frames(0, range(1_250, 3_750))) == 2_500
print(int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) // 1024)
"""
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "cache"], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 400


def test_settings_of_another_codec_are_refused() -> None:
    """The settings that the codec has are named."""
    for frames, message in (
        ({"codec": "mpeg4", "crf": 20}, "frames.crf: got 20 with codec mpeg4, expected one of quantizer, gop, stride."),
        ({"gop": 16}, "frames.gop: got 16 with codec jpeg, expected one of quality."),
        ({"codec": "raw", "quality": 80}, "frames.quality: got 80 with codec raw, expected none of the settings"),
    ):
        with pytest.raises(cc.UsageError, match=message):
            config_from_json({"frames": frames})
    assert dataclasses.asdict(config_from_json({"frames": {"codec": "h264"}}).frames)["crf"] == 17


@pytest.mark.parametrize(
    ("place", "shape", "dtype"),
    [
        ((0, 0), (32, 48, 2), np.uint8),
        ((0, 0), (32, 48), np.uint8),
        ((0, 0), (32, 48, 3), np.int8),
        ((0, 0), (33, 48, 3), np.uint8),
        ((2, 0), (32, 48, 3), np.uint8),
        ((0, -2), (32, 48, 3), np.uint8),
    ],
)
def test_memory_that_does_not_fit_is_refused(place: tuple[int, int], shape: tuple[int, ...], dtype: Any) -> None:
    with pytest.raises(UsageError, match="out: got"):
        to_rgb(planes_of(av.VideoFrame(48, 32, "yuv420p")), *place, np.empty((1, *shape), dtype))
