"""H.264 that begins with an I picture which nothing marks for this: read if no later picture needs older ones."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import av
import pytest
from helpers.ffmpeg import ffmpeg

from chordcache.errors import MediaError
from chordcache.media.checks.h264_start import begins_open
from chordcache.media.checks.nal_units import H264Reader
from chordcache.media.decoding import decode_frames
from chordcache.media.demux import open_media
from chordcache.media.exact_frames import ExactFrames
from chordcache.media.probe import probe

_RATE = 25
_SETTINGS = {
    "one": "bframes=2:ref=1:b-pyramid=none",
    "several": "bframes=2:ref=3:b-pyramid=none",
    "pyramid": "bframes=3:ref=4:b-pyramid=normal",
    "weights": "bframes=3:ref=2:b-pyramid=strict:weightp=2:weightb=1",
    "slices": "bframes=2:ref=3:slices=4",
    "temporal": "bframes=5:ref=6:direct=temporal",
    "interlaced": "bframes=2:ref=2:tff=1",
}
_FORMATS = {"ts": "mpegts", "mkv": "matroska", "mp4": "mp4", "flv": "flv", "h264": "h264"}


def units(data: bytes) -> list[bytes]:
    """Divide a packet at its start codes."""
    starts = [match.start() for match in re.finditer(re.escape(b"\0\0\1"), data)]
    return [data[start:stop].rstrip(b"\0") for start, stop in zip(starts, [*starts[1:], len(data)], strict=True)]


def without_marks(data: bytes) -> bytes:
    """Remove the messages that mark recovery points."""
    return b"".join(b"\0" + unit for unit in units(data) if unit[3:5] != b"\x06\x06")


def encode(path: Path, settings: str, *options: str) -> Path:
    """Encode three seconds as a transport stream, with parameter sets before each keyframe."""
    source = ("-f", "lavfi", "-i", "testsrc2=s=128x96:r=25:d=3")
    ffmpeg(*source, "-c:v", "libx264", "-threads", "1", "-x264-params", settings, *options, path)
    return path


def packets_of(film: Path) -> list[Any]:
    with av.open(str(film)) as container:
        return [packet for packet in container.demux(video=0) if packet.size]


def cut(film: Path, path: Path, first: int, *, lost: int | None = None, keeps_marks: bool = False) -> Path:
    """Write the packets from one on, which the container calls a keyframe. Nothing in it says so."""
    packets = packets_of(film)
    sets = b"".join(b"\0" + unit for unit in units(bytes(packets[0])) if unit[3] & 0x1F in (7, 8))
    with (
        av.open(str(film)) as source,
        av.open(str(path), "w", format=_FORMATS[path.suffix[1:]]) as target,
    ):
        stream = target.add_stream_from_template(source.streams.video[0])
        for number, packet in enumerate(packets[first:]):
            data = bytes(packet) if keeps_marks and number else without_marks(bytes(packet))
            copy: Any = av.Packet(data if number else sets + data)
            copy.pts, copy.dts, copy.time_base, copy.duration = packet.pts, packet.dts, packet.time_base, 3600
            copy.is_keyframe = packet.is_keyframe or not number
            copy.stream = stream
            if number != lost:
                target.mux(copy)
    return path


def intra_pictures(film: Path) -> list[int]:
    """Numbers of the packets after the first one whose picture is an I picture and not an IDR picture."""
    numbers = []
    for number, packet in enumerate(packets_of(film)):
        slices = [unit for unit in units(bytes(packet)) if unit[3] & 0x1F in (1, 5)]
        if slices[0][3] & 0x1F == 1 and slices[0][4] >> 1 in (0b1000100, 0b1011000):  # slice type 7, or 2 and a 1
            numbers.append(number)
    return numbers


def luma(picture: Any) -> bytes:
    return bytes(picture.to_ndarray(format="gray"))


def whole(film: Path, since: int | None) -> list[tuple[int, bytes]]:
    """Decode the whole film with PyAV. Return time and luma of the frames from a time on."""
    with av.open(str(film)) as container:
        shown = [(frame.pts, luma(frame)) for frame in container.decode(video=0)]
    return [frame for frame in shown if since is None or frame[0] >= since]


def answer(path: Path) -> tuple[list[bytes], list[float], int]:
    """Read all frames. Return their luma and times, and the number of frames skipped at the start."""
    with open_media(str(path)) as media:
        frames = [(luma(frame.picture), frame.pts_seconds) for frame in decode_frames(media)]
        return [picture for picture, _ in frames], [seconds for _, seconds in frames], media.num_skipped


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A film with open groups of 20 frames, for each way to refer to others."""
    folder = tmp_path_factory.mktemp("films")
    for name, settings in _SETTINGS.items():
        encode(folder / f"{name}.ts", f"keyint=20:scenecut=0:open-gop=1:{settings}")
    return folder


@pytest.mark.parametrize("keeps_marks", [False, True])
@pytest.mark.parametrize(
    ("name", "suffix"), [*((name, "ts") for name in _SETTINGS), *(("pyramid", suffix) for suffix in _FORMATS)]
)
def test_frames_from_the_first_picture_on(
    films: Path, tmp_path: Path, name: str, suffix: str, keeps_marks: bool
) -> None:
    film = films / f"{name}.ts"
    first = intra_pictures(film)[0]
    packets = packets_of(film)[first:]
    expected = whole(film, packets[0].pts)
    pictures, seconds, num_skipped = answer(cut(film, tmp_path / f"a.{suffix}", first, keeps_marks=keeps_marks))
    assert len(pictures) == len(expected) > 50
    assert pictures == [picture for _, picture in expected]
    if suffix != "mp4":  # an edit list cuts them off
        assert num_skipped == len(packets) - len(expected)
    if suffix != "h264":
        assert seconds == pytest.approx([seconds[0] + n / _RATE for n in range(len(seconds))], abs=2e-3)


@pytest.mark.parametrize("suffix", ["ts", "mkv", "mp4", "h264"])
@pytest.mark.parametrize("name", ["one", "pyramid"])
def test_single_frames_are_those_of_a_whole_decode(films: Path, tmp_path: Path, name: str, suffix: str) -> None:
    film = films / f"{name}.ts"
    path = cut(film, tmp_path / f"a.{suffix}", intra_pictures(film)[0])
    pictures, seconds, num_skipped = answer(path)
    facts = probe(str(path), root="r", relative_path=path.name).packets
    assert facts is not None
    assert (facts.num_frames, facts.num_frames_skipped) == (len(pictures), num_skipped)
    with ExactFrames(str(path)) as frames:
        assert len(frames.frame_index) == len(pictures)
        for number in (40, 3, 4, 50, 0, len(pictures) - 1, 1):
            frame = frames.frame(number)
            assert frame.pts_seconds == pytest.approx(seconds[number])
            assert luma(frame.picture) == pictures[number]


def test_frames_behind_a_seek(tmp_path: Path) -> None:
    """A stream that continues with an IDR picture can be sought to it."""
    settings = f"keyint=20:scenecut=0:open-gop=1:{_SETTINGS['several']}"
    film = encode(tmp_path / "film.ts", settings, "-force_key_frames", "2", "-forced-idr", "1")
    path = cut(film, tmp_path / "a.mkv", intra_pictures(film)[0])
    pictures, _, _ = answer(path)
    assert len(pictures) > 50
    with ExactFrames(str(path)) as frames:
        assert frames.frame_index.seek_frames[-1] > 0
        for number in (len(pictures) - 3, 2, len(pictures) - 30, 0):
            assert luma(frames.frame(number).picture) == pictures[number]


@pytest.fixture(scope="module")
def needing(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A film, and its I picture in the middle of a group, whose later pictures refer to some before it."""
    path = tmp_path_factory.mktemp("needing") / "film.ts"
    source = ("-f", "lavfi", "-i", "testsrc2=s=128x96:r=25:d=1", "-f", "lavfi", "-i", "mandelbrot=s=128x96:r=25")
    chain = "[1]trim=duration=2[b];[0]format=yuv420p[a];[b]format=yuv420p[c];[a][c]concat=n=2"
    options = "keyint=250:min-keyint=120:scenecut=60:bframes=0:ref=5"
    ffmpeg(*source, "-filter_complex", chain, "-c:v", "libx264", "-threads", "1", "-x264-params", options, path)
    return path, intra_pictures(path)[0]


@pytest.mark.parametrize("suffix", ["mkv", "mp4", "flv", "ts", "h264"])
def test_later_pictures_that_may_refer_to_earlier_ones(needing: tuple[Path, int], tmp_path: Path, suffix: str) -> None:
    film, first = needing
    path = cut(film, tmp_path / f"a.{suffix}", first)
    words = "neither an IDR picture nor a recovery point" if suffix in ("mkv", "mp4", "flv") else "contain no keyframe"
    with pytest.raises(MediaError, match=words):
        answer(path)
    with pytest.raises(MediaError, match=words):
        ExactFrames(str(path))


def test_a_reference_lost_behind_the_first_picture(films: Path, tmp_path: Path) -> None:
    film = films / "one.ts"
    first = intra_pictures(film)[0]
    kinds = [units(bytes(packet))[-1][3] for packet in packets_of(film)[first : first + 12]]
    references = [number for number, kind in enumerate(kinds) if kind >> 5 and number]
    assert len(references) > 2
    for lost in references:
        with pytest.raises(MediaError):
            answer(cut(film, tmp_path / "a.mkv", first, lost=lost))


def test_a_damaged_first_slice_does_not_begin_a_stream() -> None:
    """Its codes have more zeros than bits follow."""
    assert not begins_open(H264Reader(), memoryview(b"\0\0\0\1\x61" + bytes(20)))
