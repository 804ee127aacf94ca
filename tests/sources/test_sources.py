"""Frames by their number, from files and from a cache: what ffmpeg shows, whatever was read before."""

from __future__ import annotations

import gc
import hashlib
import multiprocessing
import os
import pickle
import random
import struct
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from helpers import ffmpeg_reference
from helpers.ffmpeg import decode_samples, ffmpeg, frame_digests

import chordcache as cc
from chordcache.config.picture import FramesConfig, PictureConfig
from chordcache.errors import UsageError
from chordcache.media import ffmpeg_log
from chordcache.media.decoding import decode_frames
from chordcache.media.demux import open_media
from chordcache.sources.mapped_mp4 import MappedMP4Source
from chordcache.sources.video_source import CachedSource

pytestmark = pytest.mark.usefixtures("inline")

B_FRAMES = {"bf": "3", "x264-params": "b-adapt=0"}

MADE: dict[str, dict[str, Any]] = {
    "b_frames.mp4": {"options": B_FRAMES},
    "open_gop.mp4": {"options": {"bf": "3", "x264-params": "b-adapt=0:open-gop=1:keyint=10"}, "num_frames": 40},
    "intra_refresh.mp4": {"options": {"bf": "0", "x264-params": "intra-refresh=1:keyint=8"}, "num_frames": 40},
    "hevc.mp4": {"codec": "libx265", "options": {"x265-params": "log-level=none:keyint=8"}, "num_frames": 40},
    "av1.mp4": {"codec": "libsvtav1", "options": {"preset": "12"}, "num_frames": 20},
    "mpeg4.mp4": {"codec": "mpeg4", "options": {"bf": "2"}, "gop": 6},
    "turned.mp4": {"rotation": 90, "options": B_FRAMES},
    "wide.mp4": {"sample_aspect_ratio": Fraction(4, 3)},
    "late.mp4": {"pts_ticks": [17500 + 1000 * i for i in range(30)]},
    "variable.mp4": {"num_frames": 5, "pts_ticks": [0, 1000, 2000, 25000, 26000]},
    "b_frames.mkv": {"options": B_FRAMES},
    "b_frames.ts": {"options": B_FRAMES},
    "vp9.webm": {"codec": "libvpx-vp9", "options": {"deadline": "realtime"}},
    "b_frames.avi": {"codec": "mpeg4", "options": {"bf": "2"}},
    "raw.h264": {"options": {"bf": "0"}},
    "one_frame.mp4": {"num_frames": 1},
    "lossless.mkv": {"codec": "ffv1"},
}

FALL_BACK = {"open_gop.mp4": "is marked as a keyframe"}
"""Made MP4 files that cannot be cut from the map, and what is said of them"""

SOURCES = [cc.MP4Source, MappedMP4Source]


@pytest.fixture(scope="module")
def videos(make_video: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    for name, spec in MADE.items():
        make_video(folder / name, size=(128, 96), **spec)
    return folder


@pytest.mark.parametrize("name", MADE)
def test_pictures_before_conversion_are_bit_equal_to_ffmpegs(name: str, videos: Path) -> None:
    expected, _ = frame_digests(videos / name, "-noautorotate")
    with open_media(str(videos / name)) as media:
        digests = [hashlib.md5(frame.picture.to_ndarray().tobytes()).hexdigest() for frame in decode_frames(media)]
    assert digests == expected


def all_hashes(path: Path) -> list[str]:
    """Every frame as one decode from the start shows it, converted as ``build`` does."""
    from chordcache.media.scaling import PictureScaler

    with open_media(str(path)) as media:
        scaler = PictureScaler(PictureConfig(short_side=None), media.require_video().sample_aspect_ratio)
        return [hashlib.md5(scaler.rgb(frame.picture).tobytes()).hexdigest() for frame in decode_frames(media)]


@pytest.mark.parametrize("cls", SOURCES)
@pytest.mark.parametrize("name", MADE)
def test_random_access_is_bit_equal_to_one_decode(name: str, cls: type[cc.MP4Source], videos: Path) -> None:
    expected = all_hashes(videos / name)
    numbers = list(range(len(expected))) * 2
    random.Random(2).shuffle(numbers)
    with cls().open(videos / name) as source:
        for number in numbers[:40]:
            assert hashlib.md5(source.get_frame(number).tobytes()).hexdigest() == expected[number], number
        start = 0
        for number in range(start, len(expected)):  # one after the other
            assert hashlib.md5(source.get_frame(number).tobytes()).hexdigest() == expected[number], number
        several = source.get_frames(numbers[:9])
        assert [hashlib.md5(frame.tobytes()).hexdigest() for frame in several] == [expected[n] for n in numbers[:9]]


@pytest.mark.parametrize("lost", [13, 14])
def test_a_packet_that_vp8_lacks_unnoticed_changes_no_frame_by_where_decoding_begins(tmp_path: Path, lost: int) -> None:
    whole, path = tmp_path / "whole.webm", tmp_path / "a.webm"
    picture = ("-f", "lavfi", "-i", "testsrc2=s=160x128:r=25:d=2")
    ffmpeg(*picture, "-c:v", "libvpx", "-b:v", "1M", "-g", "12", "-auto-alt-ref", "0", whole)
    with av.open(str(whole)) as source, av.open(str(path), "w") as target:
        track = target.add_stream_from_template(source.streams.video[0])
        for number, packet in enumerate(packet for packet in source.demux(video=0) if packet.size):
            packet.stream = track
            if number != lost:
                target.mux(packet)
    with cc.MP4Source().open(path) as in_order:
        frames = in_order.get_frames(range(in_order.num_frames))
    with cc.MP4Source().open(path) as at_once:
        assert np.array_equal(at_once.get_frames(range(lost, len(frames))), frames[lost:])


@pytest.mark.parametrize("name", [name for name in MADE if name.endswith("mp4")])
def test_frames_before_the_damage_are_read_from_the_map(name: str, videos: Path) -> None:
    with MappedMP4Source().open(videos / name) as source:
        source.get_frames(range(source.num_frames))
        assert source.get_frame(source.num_frames // 2).shape[2] == 3
        reason = source.fallback_reason
    assert (FALL_BACK[name] in reason) if name in FALL_BACK else reason is None


def test_containers_that_are_not_mp4_fall_back(videos: Path) -> None:
    for name, match in (("b_frames.mkv", "box"), ("b_frames.ts", ""), ("raw.h264", "")):
        with MappedMP4Source().open(videos / name) as source:
            assert match in str(source.fallback_reason)
            assert source.fallback_reason
            assert source.num_frames == 30


@pytest.mark.parametrize("cls", SOURCES)
def test_an_address_is_not_a_file(cls: Any) -> None:
    with pytest.raises(UsageError, match=r"^path: got 'http://host/a\.mp4', expected a file\. Use StreamSource"):
        cls().open("http://host/a.mp4")


@pytest.mark.parametrize("name", ["b_frames.mp4", "b_frames.mkv"])
def test_a_closed_map_is_gone(name: str, videos: Path) -> None:
    """Without a collection: a loop over many files would run out of descriptors first."""
    MappedMP4Source().open(videos / name).close()
    gc.collect()
    gc.disable()
    try:
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(5):
            with MappedMP4Source().open(videos / name) as source:
                source.get_frames([0, 7, 3])
                source.get_frame(8)
        assert len(os.listdir("/proc/self/fd")) == before
    finally:
        gc.enable()


def test_a_table_that_calls_other_samples_keyframes(videos: Path, tmp_path: Path) -> None:
    data = bytearray((videos / "b_frames.mp4").read_bytes())
    at = data.index(b"stss") + 12
    assert struct.unpack_from(">3I", data, at) == (1, 13, 16)
    struct.pack_into(">I", data, at + 4, 10)
    (tmp_path / "a.mp4").write_bytes(data)
    expected = all_hashes(videos / "b_frames.mp4")
    for cls in SOURCES:
        with cls().open(tmp_path / "a.mp4") as source:
            for number in (12, 11, 29, 0):
                assert hashlib.md5(source.get_frame(number).tobytes()).hexdigest() == expected[number], number
    with MappedMP4Source().open(tmp_path / "a.mp4") as source:
        assert source.fallback_reason is None
        source.get_frames([1, 12])
        assert "sample 10 is marked as a keyframe" in source.fallback_reason


@pytest.mark.parametrize("name", ["b_frames.mp4", "turned.mp4", "wide.mp4", "b_frames.avi", "late.mp4"])
def test_a_cache_holds_the_frames_of_its_sources(name: str, videos: Path, tmp_path: Path) -> None:
    frames = FramesConfig(codec="raw", short_side=64)
    config = tmp_path / "c.yaml"
    config.write_text("frames: {codec: raw, short_side: 64}\nfeatures: {flow: null, motion: null, mel: null}\n")
    cc.build(cc.scan([videos / name]), tmp_path / "cache", config=config, tiers=("lmdb",), jobs=1)
    with cc.open_cache(tmp_path / "cache") as cache:
        (key,) = cache.keys()
        with CachedSource(cache).open(key) as cached, cc.MP4Source(frames).open(videos / name) as source:
            numbers = [3, 1, 3, cached.num_frames - 1, 0]
            assert np.array_equal(cached.get_frames(numbers), source.get_frames(numbers))
            assert np.allclose(cached.pts_seconds, source.pts_seconds, atol=1e-8)
            assert cached.fps == pytest.approx(source.fps)
            with MappedMP4Source(frames).open(videos / name) as mapped:
                assert np.array_equal(mapped.get_frames(numbers), source.get_frames(numbers))
            with pytest.raises(cc.NotFoundError, match="holds no samples of sound"):
                cached.get_audio_chunk(0, 1)
            with pytest.raises(IndexError, match="indices: got"):
                cached.get_frame(cached.num_frames)


def test_a_file_that_claims_more_memory_than_available(videos: Path, tmp_path: Path) -> None:
    data = bytearray((videos / "mpeg4.mp4").read_bytes())
    at = data.index(b"esds") + 18
    data[at : at + 8] = b"\x7f" + b"\xff" * 7
    (tmp_path / "claims.mp4").write_bytes(data)
    for cls in SOURCES:
        with pytest.raises(cc.MediaError, match=f"cannot read '{tmp_path}/claims.mp4'"):
            cls().open(tmp_path / "claims.mp4").get_frame(0)


def test_a_fork_while_another_thread_listens_to_libav(videos: Path) -> None:
    def read(path: Path) -> None:
        with cc.MP4Source().open(path) as source:
            source.get_frame(0)

    with ffmpeg_log._lock:
        child = multiprocessing.get_context("fork").Process(target=read, args=(videos / "b_frames.mp4",))
        child.start()
    child.join(20)
    child.kill()
    child.join()
    assert child.exitcode == 0


@pytest.mark.parametrize("cls", SOURCES)
def test_closed_sources_are_picklable_and_open_again(cls: type[cc.MP4Source], videos: Path) -> None:
    source = cls(FramesConfig(short_side=48)).open(videos / "b_frames.mp4")
    with pytest.raises(cc.UsageError, match="an open source cannot be pickled: close '.*b_frames.mp4' first"):
        pickle.dumps(source)
    first = source.get_frame(5)
    source.close()
    source.close()
    with pickle.loads(pickle.dumps(source)).open(videos / "b_frames.mp4") as again:
        assert np.array_equal(again.get_frame(5), first)
        assert first.shape == (48, 64, 3)
        assert again.open(videos / "one_frame.mp4").num_frames == 1
    with pytest.raises(cc.UsageError, match="nothing is open: call .*open"):
        again.get_frame(0)
    with pytest.raises(cc.UsageError, match="nothing is open"):
        _ = again.num_frames


@pytest.mark.parametrize("cls", SOURCES)
def test_wrong_requests(cls: type[cc.MP4Source], videos: Path) -> None:
    with cls().open(videos / "b_frames.mp4") as source:
        assert source.fps == pytest.approx(25)
        assert source.get_frames([]).shape == (0, 0, 0, 3)
        for number in (-1, 30):
            with pytest.raises(IndexError, match=rf"indices: got {number}, expected .* \[0, 30\) for '.*b_frames.mp4'"):
                source.get_frame(number)
        with pytest.raises(cc.UsageError, match="indices: got .*, expected a list of frame numbers"):
            source.get_frames([1.5])  # type: ignore[list-item]
        with pytest.raises(cc.NotFoundError, match=r"b_frames.mp4': the file has no audio track"):
            source.get_audio_chunk(0, 1)
        with pytest.raises(cc.NotFoundError, match="no audio track"):
            _ = source.sample_rate


@pytest.mark.parametrize("cls", SOURCES)
def test_files_that_cannot_be_read(cls: type[cc.MP4Source], videos: Path, tmp_path: Path) -> None:
    (tmp_path / "text.mp4").write_text("no video")
    (tmp_path / "empty.mp4").touch()
    data = (videos / "b_frames.mp4").read_bytes()
    (tmp_path / "cut.mp4").write_bytes(data[: len(data) // 2])
    (tmp_path / "list.mp4").write_text(f"#EXTM3U\n#EXTINF:1,\n{videos / 'b_frames.ts'}\n#EXT-X-ENDLIST\n")
    for name in ("text.mp4", "empty.mp4", "cut.mp4", "list.mp4", "missing.mp4"):
        with pytest.raises(cc.MediaError, match=f"cannot read '.*{name}': "):
            cls().open(tmp_path / name)


def test_a_mapped_file_that_is_cut_short_while_open(videos: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    path.write_bytes((videos / "b_frames.mp4").read_bytes())
    with MappedMP4Source().open(path) as source:
        source.get_frame(0)
        with path.open("r+b") as file:
            file.truncate(100)
        with pytest.raises(cc.MediaError, match="became shorter while it was open"):
            source.get_frame(20)


def test_a_damaged_sample_is_an_error_and_no_picture(videos: Path, tmp_path: Path) -> None:
    from chordcache.media.mp4_samples import read_video_track

    data = bytearray((videos / "b_frames.mp4").read_bytes())
    track = read_video_track(memoryview(bytes(data)))
    start, size = int(track.offsets[0]), int(track.sizes[0])
    data[start + size // 2 : start + size] = bytes(size - size // 2)
    (tmp_path / "a.mp4").write_bytes(data)
    for cls in SOURCES:
        with pytest.raises(cc.MediaError, match=r"cannot read '.*a\.mp4'"), cls().open(tmp_path / "a.mp4") as source:
            source.get_frame(0)


def ffmpeg_sound(path: Path) -> tuple[np.ndarray, float]:
    """All samples [shape=(n, channels), dtype=float32], and the time of the first one."""
    probed = ffmpeg_reference.probe(path, packets=True)
    (stream,) = (s for s in probed.streams if s["codec_type"] == "audio")
    return decode_samples(path, stream["channels"], "-map", f"0:{stream['index']}"), float(stream["start_time"])


@pytest.mark.parametrize("suffix", [".mp4", ".mkv", ".avi"])
@pytest.mark.parametrize("cls", SOURCES)
def test_sound_is_what_ffmpeg_decodes(
    cls: type[cc.MP4Source], suffix: str, make_video: Callable[..., Path], tmp_path: Path
) -> None:
    path = make_video(tmp_path / f"a{suffix}", num_frames=100, audio=True)
    expected, start = ffmpeg_sound(path)
    with cls().open(path) as source:
        rate = source.sample_rate
        for begin, duration in ((0.0, 4.0), (2.5, 0.3), (3.9, 1.0), (-0.5, 1.0)):
            chunk = source.get_audio_chunk(begin, duration)
            assert chunk.shape == (round(duration * rate), 1)
            assert chunk.dtype == np.float32
            at = round((begin - start) * rate)
            wanted = np.zeros_like(chunk)
            lo, hi = max(0, -at), min(len(chunk), len(expected) - at)
            wanted[lo:hi] = expected[at + lo : at + hi]
            assert np.abs(chunk - wanted).max() < 2e-3, (begin, duration)
        assert np.abs(source.get_audio_chunk(1, 1)).max() > 0.4
        assert not source.get_audio_chunk(100, 0.1).any()
        with pytest.raises(cc.UsageError, match="audio chunk: got start"):
            source.get_audio_chunk(float("nan"), 1)
