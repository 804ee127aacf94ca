"""Sound files with odd ends and odd beginnings: they are read like those that ffmpeg decodes without an error."""

from __future__ import annotations

import re
from pathlib import Path

import av
import pytest
from helpers.ffmpeg import ffmpeg, frame_digests

from chordcache.errors import MediaError
from chordcache.media.decoding import decode_frames
from chordcache.media.demux import open_media

NUM_FRAMES = 75
FILM = ("-f", "lavfi", "-i", f"testsrc2=s=160x128:r=25:d={NUM_FRAMES / 25}")

CODECS = {
    "h264": ("-c:v", "libx264", "-x264-params", "keyint=25:bframes=2"),
    "hevc": ("-c:v", "libx265", "-x265-params", "log-level=none:keyint=25"),
    "mpeg1": ("-c:v", "mpeg1video", "-g", "12", "-bf", "2", "-b:v", "1M"),
    "mpeg2": ("-c:v", "mpeg2video", "-g", "12", "-bf", "2", "-b:v", "1M"),
    "mpeg4": ("-c:v", "mpeg4", "-g", "12", "-bf", "2", "-b:v", "1M"),
}


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One film as GIF, as raw streams, and as recordings of each codec."""
    folder = tmp_path_factory.mktemp("films")
    ffmpeg(*FILM, folder / "a.gif")
    for codec, options in CODECS.items():
        ffmpeg(*FILM, *options, folder / f"{codec}.ts")
        if codec != "hevc":
            ffmpeg("-i", folder / f"{codec}.ts", "-c", "copy", "-f", "vob", folder / f"{codec}.vob")
    ffmpeg("-i", folder / "h264.ts", "-c", "copy", folder / "raw.h264")
    ffmpeg("-i", folder / "hevc.ts", "-c", "copy", folder / "raw.hevc")
    ffmpeg("-i", folder / "mpeg4.ts", "-c", "copy", folder / "raw.m4v")
    return folder


def pictures(path: Path) -> tuple[list[bytes], int]:
    """Read all frames. Return their luma, and the number of frames skipped at the start."""
    with open_media(str(path)) as media:
        frames = [bytes(frame.picture.to_ndarray(format="gray")) for frame in decode_frames(media)]
        return frames, media.num_skipped


def units(stream: bytes) -> list[bytes]:
    """Divide a raw stream at its start codes."""
    starts = [match.start() for match in re.finditer(re.escape(b"\0\0\1"), stream)]
    return [stream[start:stop] for start, stop in zip(starts, [*starts[1:], len(stream)], strict=True)]


# Ends


@pytest.mark.parametrize(
    "extension",
    [b"\x21\xff\x0bXMP DataXMP\x05hello\0", b"\x21\xfe\x05hello\0", b"\x21\xf9\4\0\0\0\0\0", b"\x21\xfe\0\x21\xfe\0"],
    ids=["application", "comment", "control", "two"],
)
def test_a_gif_that_ends_in_an_extension(films: Path, tmp_path: Path, extension: bytes) -> None:
    data = (films / "a.gif").read_bytes()
    (tmp_path / "a.gif").write_bytes(data[:-1] + extension + data[-1:])
    assert pictures(tmp_path / "a.gif") == pictures(films / "a.gif")
    assert len(frame_digests(tmp_path / "a.gif")[0]) == NUM_FRAMES


def test_a_gif_that_lost_an_image_before_its_extension(films: Path, tmp_path: Path) -> None:
    data = (films / "a.gif").read_bytes()
    (tmp_path / "a.gif").write_bytes(data[:-900] + b"\x21\xfe\x05hello\0;")
    with pytest.raises(MediaError):
        pictures(tmp_path / "a.gif")


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("raw.h264", b"\x09\xf0"),
        ("raw.h264", b"\x06\x05\2ab\x80"),
        ("raw.h264", b"\x0a"),
        ("raw.h264", b"\x0c\xff\xff\x80"),
        ("raw.hevc", b"\x46\1\x50"),
        ("raw.hevc", b"\x4e\1\5\2ab\x80"),
        ("raw.hevc", b"\x48\1"),
        ("raw.hevc", b"\x7c\1\x19\x08\x09\x10\x80"),
    ],
    ids=["delimiter", "message", "end", "filler", "hevc delimiter", "hevc message", "hevc end", "dolby vision"],
)
def test_a_raw_stream_that_ends_in_a_unit_without_a_picture(
    films: Path, tmp_path: Path, name: str, unit: bytes
) -> None:
    (tmp_path / name).write_bytes((films / name).read_bytes() + b"\0\0\0\1" + unit)
    assert pictures(tmp_path / name) == pictures(films / name)
    assert len(pictures(tmp_path / name)[0]) == NUM_FRAMES


@pytest.mark.parametrize(
    ("name", "shift", "mask", "sets"), [("raw.h264", 0, 31, (7, 8)), ("raw.hevc", 1, 63, (32, 33, 34))]
)
def test_a_raw_stream_that_ends_in_parameter_sets_is_cut_off(
    films: Path, tmp_path: Path, name: str, shift: int, mask: int, sets: tuple[int, ...]
) -> None:
    """The picture that they are for is missing."""
    nal_units = units((films / name).read_bytes())
    last_set = max(number for number, unit in enumerate(nal_units) if unit[3] >> shift & mask in sets)
    assert last_set > 20
    (tmp_path / name).write_bytes(b"".join(nal_units[: last_set + 1]))
    with pytest.raises(MediaError):
        pictures(tmp_path / name)


def test_a_picture_lost_in_mid_stream_is_not_taken_for_such_an_end(films: Path, tmp_path: Path) -> None:
    """One picture of a raw stream is replaced by a message."""
    nal_units = units((films / "raw.h264").read_bytes())
    pictures_at = [number for number, unit in enumerate(nal_units) if unit[3] & 0x1F in (1, 5)]
    nal_units[pictures_at[40]] = b"\0\0\1\x06\x05\2ab\x80"
    (tmp_path / "raw.h264").write_bytes(b"".join(nal_units))
    with pytest.raises(MediaError, match="damaged|lost"):
        pictures(tmp_path / "raw.h264")


def test_a_sample_without_a_picture_is_damage(films: Path, tmp_path: Path) -> None:
    """In an MP4, whose table promises a frame for it."""
    source = tmp_path / "source.mp4"
    ffmpeg("-i", films / "h264.ts", "-c", "copy", source)
    with av.open(str(source)) as container:
        last = max((packet for packet in container.demux(video=0) if packet.size), key=lambda packet: packet.pos or 0)
        start, size = int(last.pos or 0), last.size
    data = bytearray(source.read_bytes())
    data[start : start + size] = (size - 4).to_bytes(4, "big") + b"\x06" + bytes([5]) * (size - 5)
    (tmp_path / "a.mp4").write_bytes(data)
    with pytest.raises(MediaError):
        pictures(tmp_path / "a.mp4")


@pytest.mark.parametrize("end", [b"\xff" * 7, b"\0\0\1\xc3" + b"\xff" * 7, b"\0" * 40, b"\0\0\1\xb1", b"\xff"])
def test_mpeg4_that_ends_in_stuffing(films: Path, tmp_path: Path, end: bytes) -> None:
    (tmp_path / "a.m4v").write_bytes((films / "raw.m4v").read_bytes() + end)
    assert pictures(tmp_path / "a.m4v") == pictures(films / "raw.m4v")


@pytest.mark.parametrize("suffix", ["mkv", "nut"])
def test_theora_outside_of_ogg(tmp_path: Path, suffix: str) -> None:
    """Its times do not count frames there."""
    ffmpeg(*FILM, "-c:v", "libtheora", "-q:v", "7", tmp_path / "film.ogv")
    ffmpeg("-i", tmp_path / "film.ogv", "-c", "copy", tmp_path / f"a.{suffix}")
    assert pictures(tmp_path / f"a.{suffix}") == pictures(tmp_path / "film.ogv")
    assert len(frame_digests(tmp_path / f"a.{suffix}")[0]) == NUM_FRAMES


def without_order(data: bytes) -> bytes:
    """Take the statement whether B pictures follow out of MPEG-4 layers (ISO/IEC 14496-2, 6.2.3)."""
    for layer in list(re.finditer(rb"\x00\x00\x01\x20(.{4,40}?)(?=\x00\x00\x01)", data, re.DOTALL)):
        bits = "".join(f"{byte:08b}" for byte in layer[1])
        assert (bits[21:24], bits[25]) == ("101", "0"), "it has control parameters: 4:2:0, the order, no buffer"
        bits = bits[:21] + "0" + bits[26:].rstrip("1")[:-1] + "0"
        bits += "1" * (8 * len(layer[1]) - len(bits))  # stuffing
        data = data[: layer.start(1)] + int(bits, 2).to_bytes(len(layer[1]), "big") + data[layer.end(1) :]
    return data


@pytest.mark.parametrize("name", ["m4v", "avi", "mp4", "matroska"])
@pytest.mark.parametrize("num_b", [0, 2])
def test_mpeg4_that_does_not_state_whether_b_pictures_follow(tmp_path: Path, name: str, num_b: int) -> None:
    """Its decoder guesses that none do. If one does, it has shown the picture after it already, and shows it again."""
    coding = ("-c:v", "mpeg4", "-g", "12", "-bf", str(num_b), "-q:v", "3")
    ffmpeg(*FILM, *coding, "-f", name, source := tmp_path / "source")
    data = without_order(source.read_bytes())
    assert data != source.read_bytes()
    (tmp_path / "a").write_bytes(data)
    assert pictures(tmp_path / "a") == pictures(source)
    assert len(pictures(source)[0]) == NUM_FRAMES


# Beginnings


@pytest.mark.parametrize("share", [0.21, 0.5])
@pytest.mark.parametrize(
    ("codec", "suffix"),
    [*((codec, "ts") for codec in CODECS), *((codec, "vob") for codec in CODECS if codec != "hevc")],
)
def test_a_recording_that_begins_in_mid_stream(
    films: Path, tmp_path: Path, codec: str, suffix: str, share: float
) -> None:
    """The pictures after its first keyframe are the last ones of the whole film."""

    source, unit_bytes = films / f"{codec}.{suffix}", {"ts": 188, "vob": 2048}[suffix]
    data = source.read_bytes()
    cut = tmp_path / source.name
    cut.write_bytes(data[int(len(data) / unit_bytes * share) * unit_bytes :])
    shown, num_skipped = pictures(cut)
    assert 12 <= len(shown) < NUM_FRAMES
    assert num_skipped > 0
    assert shown == pictures(source)[0][-len(shown) :]


def test_parameters_of_a_second_view(films: Path, tmp_path: Path) -> None:
    """A stream with two views (ITU-T H.264, annex H): subset parameters, and slices that extend those of the first."""
    mixed = []
    for unit in units((films / "raw.h264").read_bytes()):
        mixed.append(unit)
        kind = unit[3] & 0x1F
        if kind == 7:
            subset = b"\0\0\1\x6f" + unit[4:]
        if kind == 8:
            bits = "".join(f"{byte:08b}" for byte in unit[4:].rstrip(b"\0"))
            assert bits.startswith("11"), "parameters 0 of sequence 0"
            second = ("010010" + bits[2:]).rstrip("0")  # parameters 1 of sequence 1
            second += "0" * (-len(second) % 8)
            mixed += [subset, b"\0\0\1\x68" + int(second, 2).to_bytes(len(second) // 8, "big")]
        if kind in (1, 5):
            mixed.append(b"\0\0\1\x74\xc0\0\0" + unit[4:])
    (tmp_path / "views.h264").write_bytes(b"".join(mixed))
    assert pictures(tmp_path / "views.h264") == pictures(films / "raw.h264")
