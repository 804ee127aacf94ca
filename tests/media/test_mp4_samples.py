"""Our reading of an MP4's sample tables, against ffprobe's packets, and against tables that lie."""

from __future__ import annotations

import struct
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest
from helpers import ffmpeg_reference
from helpers.ffmpeg import ffprobe

import chordcache as cc
from chordcache.media.mp4_samples import VideoTrack, read_video_track

B_FRAMES = {"bf": "3", "x264-params": "b-adapt=0"}

MADE = {
    "plain.mp4": {},
    "b_frames.mp4": {"options": B_FRAMES},
    "b_frames.mov": {"options": B_FRAMES, "audio": True},
    "negative_ctts.mp4": {"options": B_FRAMES, "container_options": {"movflags": "negative_cts_offsets"}},
    "late.mp4": {"pts_ticks": [17500 + 1000 * i for i in range(30)]},
    "variable.mp4": {"num_frames": 5, "pts_ticks": [0, 1000, 2000, 25000, 26000]},
    "hevc.mp4": {"codec": "libx265", "options": {"x265-params": "log-level=none"}},
    "mpeg4.mp4": {"codec": "mpeg4", "options": {"bf": "2"}},
    "av1.mp4": {"codec": "libsvtav1", "num_frames": 8, "options": {"preset": "12"}},
    "one_frame.mp4": {"num_frames": 1},
    "moov_first.mp4": {"container_options": {"movflags": "faststart"}, "audio": True},
}

CORPUS = [
    "odd/negative_start",
    "odd/start_offset",
    "odd/edit_list",
    "odd/vfr",
    "odd/open_gop",
    "odd/rotation",
    "odd/keyframes",
    "odd/10bit",
    "real/mediabunny",
]
"""Folders whose MP4 files are compared; those that are refused are counted."""


def read(path: Path) -> VideoTrack:
    return read_video_track(memoryview(path.read_bytes()))


def check(path: Path, *, with_keys: bool) -> None:
    """Every packet that ffprobe lists as shown is where the tables have it."""
    track = read(path)
    probed = ffmpeg_reference.probe(path, packets=True)
    listed = ffprobe(path, "packet=stream_index,pts,size,pos,flags")["packets"]
    packets = [packet for packet in listed if packet["stream_index"] == probed.video["index"]]
    shown = [packet for packet in packets if packet["flags"][1] != "D"]
    times = [int(pts * track.time_base / probed.time_base) for pts in track.pts[track.is_shown].tolist()]
    places = [array[track.is_shown].tolist() for array in (track.sizes, track.offsets)]
    samples = list(zip(times, *places, strict=True))
    assert samples == [(p["pts"], int(p["size"]), int(p["pos"])) for p in shown]
    if with_keys:
        assert track.is_sync[track.is_shown].tolist() == [p["flags"][0] == "K" for p in shown]
    assert (track.width, track.height) == (probed.video["width"], probed.video["height"])
    if track.aspect is not None:
        assert track.aspect == Fraction(probed.video["sample_aspect_ratio"].replace(":", "/"))


@pytest.mark.parametrize("name", MADE)
def test_tables_are_what_ffprobe_lists(name: str, make_video: Callable[..., Path], tmp_path: Path) -> None:
    check(make_video(tmp_path / name, **MADE[name]), with_keys=True)


@pytest.mark.parametrize("folder", CORPUS)
def test_tables_of_the_corpus_are_what_ffprobe_lists(folder: str, corpus: Path) -> None:
    for path in sorted((corpus / folder).iterdir()):
        if path.suffix not in (".mp4", ".mov", ".m4v"):
            continue
        if is_refused(path.read_bytes()):
            continue
        check(path, with_keys=folder != "odd/keyframes")  # there, ffprobe's own parsers overrule the tables


def test_files_that_are_refused(corpus: Path) -> None:
    cut = corpus / "odd/edit_list/sample_edit_list_no_sync_frame_before_edit.mp4"
    assert refusal(cut.read_bytes()) == "its edit list cuts off the beginning"
    reasons = {path: refusal(path.read_bytes()) for path in (corpus / "odd/fragmented").iterdir()}
    assert set(reasons.values()) == {"the file is fragmented"}
    for path in (corpus / "odd/multi_video").glob("*.mp4"):
        assert refusal(path.read_bytes()) == "the file has 2 video tracks", path


def is_refused(data: bytes) -> bool:
    try:
        read_video_track(memoryview(data))
    except cc.MediaError as error:
        if error.cause == "tables":
            return True
        raise
    return False


def refusal(data: bytes) -> str:
    with pytest.raises(cc.MediaError) as caught:
        read_video_track(memoryview(data))
    assert caught.value.cause == "tables"
    return caught.value.message


@pytest.fixture(scope="module")
def sound(make_video: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> bytes:
    options = {"movflags": "faststart"}
    path = make_video(tmp_path_factory.mktemp("tables") / "a.mp4", options=B_FRAMES, container_options=options)
    return path.read_bytes()


def patched(data: bytes, kind: bytes, at: int, value: int, layout: str = ">I") -> bytes:
    """With a number in the body of the first box of a kind replaced."""
    changed = bytearray(data)
    struct.pack_into(layout, changed, data.index(kind) + 4 + at, value)
    return bytes(changed)


@pytest.mark.parametrize(
    ("kind", "at", "value", "match"),
    [
        (b"stsz", 8, 0xFFFFFFFF, "claims 4294967295 samples"),
        (b"stsz", 8, 29, "does not describe|hold"),
        (b"stsz", 12, 0, "a sample is empty"),
        (b"stsz", 12, 0x7FFFFFFF, "beyond the end"),
        (b"stts", 4, 0xFFFFFF, "claims 16777215 entries"),
        (b"stts", 8, 0xFFFFFFFF, "does not describe 30 samples"),
        (b"ctts", 8, 0x7FFFFFFF, "does not describe 30 samples"),
        (b"stss", 8, 31, "samples that are not there"),
        (b"stsc", 8, 2, "not understood"),
        (b"stsc", 12, 0xFFFFFFFF, "chunks hold"),
        (b"stco", 4, 0, "not understood"),
        (b"stco", 8, 0xFFFFFFFF, "beyond the end"),
        (b"mdhd", 12, 0, "clock has no unit"),
        (b"mdhd", 12, 1 << 31, "clock has no unit"),
        (b"stsd", 4, 0, ""),
        (b"avcC", -8, 0x7FFFFFFF, "does not fit into its parent"),
        (b"elst", 4, 3, "3 entries"),
        (b"elst", 16, 1 << 15, "more than to shift"),
    ],
)
def test_tables_that_lie_are_refused(sound: bytes, kind: bytes, at: int, value: int, match: str) -> None:
    read_video_track(memoryview(sound))
    if kind == b"stsd":
        assert read_video_track(memoryview(patched(sound, kind, at, value))).codec == "h264"  # the count is not needed
        return
    with pytest.raises(cc.MediaError, match=match) as caught:
        read_video_track(memoryview(patched(sound, kind, at, value)))
    assert caught.value.cause == "tables"


def test_an_offset_that_no_sum_can_hold(sound: bytes) -> None:
    data = bytearray(sound)
    start = data.index(b"stco") - 4
    (size,) = struct.unpack_from(">I", data, start)
    offsets = list(struct.unpack_from(f">{(size - 16) // 4}I", data, start + 16))
    offsets[0] = (1 << 63) - 1
    wide = struct.pack(f">I4sII{len(offsets)}Q", 16 + 8 * len(offsets), b"co64", 0, len(offsets), *offsets)
    data[start : start + size] = wide
    for kind in (b"moov", b"trak", b"mdia", b"minf", b"stbl"):
        at = data.index(kind) - 4
        struct.pack_into(">I", data, at, struct.unpack_from(">I", data, at)[0] + len(wide) - size)
    assert refusal(bytes(data)) == "samples lie beyond the end of the file"


def test_a_file_cut_anywhere_in_its_tables_is_refused(sound: bytes) -> None:
    end = sound.index(b"mdat")
    for length in range(0, end, 7):
        refusal(sound[:length])
    assert refusal(sound[:-1]) == "box 'mdat' does not fit into its parent"


def test_an_mpeg4_descriptor_that_is_cut_off(make_video: Callable[..., Path], tmp_path: Path) -> None:
    data = make_video(tmp_path / "a.mp4", codec="mpeg4").read_bytes()
    assert read_video_track(memoryview(data)).extradata.startswith(b"\0\0\1")
    assert "descriptor" in refusal(patched(data, b"esds", 5, 0x7FFFFFFF))
