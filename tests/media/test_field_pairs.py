"""H.264 in pairs of fields, each an access unit of its own, with parameter sets before any of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.ffmpeg import ffmpeg, ffprobe_column

from chordcache.errors import MediaError
from chordcache.media.decoding import decode_frames
from chordcache.media.demux import open_media

NUM_FRAMES = 20


def ue(value: int) -> str:
    """Write an Exp-Golomb code."""
    return f"{value + 1:b}".zfill(2 * (value + 1).bit_length() - 1)


def unit(head: int, bits: str, data: bytes = b"") -> bytes:
    """Write a unit: bits, and behind them bytes of samples."""
    bits += "0" * (-len(bits) % 8) if data else "1" + "0" * (-len(bits + "1") % 8)
    return b"\0\0\0\1" + bytes([head]) + int(bits, 2).to_bytes(len(bits) // 8, "big") + data + b"\x80" * bool(data)


# a frame of 16 x 32 pixels: two fields of one block each (ITU-T H.264, 7.3.2.1.1 and 7.3.2.2)
SPS = unit(0x67, f"{77:08b}{0:08b}{30:08b}" + ue(0) * 3 + ue(4) + ue(1) + "0" + ue(0) * 2 + "001" + "00")
PPS = unit(0x68, ue(0) * 2 + "00" + ue(0) * 3 + "000" + ue(0) * 3 + "100")


def field(frame: int, bottom: int) -> bytes:
    """Write a field of one block of samples that are not compressed (7.3.3, 7.3.5)."""
    is_idr = not frame and not bottom
    bits = ue(0) + ue(7) + ue(0) + f"{frame % 16:04b}1{bottom}" + ue(0) * is_idr + f"{2 * frame + bottom:08b}"
    bits += ("00" if is_idr else "0") + ue(0) + ue(1) + ue(25)
    return unit(0x65 if is_idr else 0x61, bits, bytes([luma(frame, bottom)]) * 256 + b"\x80" * 128)


def luma(frame: int, bottom: int) -> int:
    return 20 + 10 * frame + 5 * bottom


SETS = {"each frame": (SPS + PPS, b""), "each field": (SPS + PPS,) * 2, "second fields": (b"", PPS)}
"""Parameter sets before the first and the second field of a frame"""


def write(path: Path, raw: bytes) -> Path:
    """Write a raw stream, or mux it into a transport stream."""
    path.write_bytes(raw)
    if path.suffix == ".ts":
        muxed = path.with_name("muxed")
        ffmpeg("-f", "h264", "-i", path, "-c", "copy", "-bsf:v", "setts=ts=N", "-f", "mpegts", muxed)
        muxed.rename(path)
    return path


def pictures(path: Path) -> list[tuple[int, int]]:
    """Return the luma of both fields of each frame."""
    with open_media(str(path)) as media:
        planes = [frame.picture.to_ndarray()[:32] for frame in decode_frames(media)]
    assert all(len(np.unique(plane[parity::2])) == 1 for plane in planes for parity in (0, 1))
    return [(int(plane[0, 0]), int(plane[1, 0])) for plane in planes]


@pytest.mark.parametrize("suffix", ["264", "ts"])
@pytest.mark.parametrize("sets", SETS)
@pytest.mark.parametrize("end", [b"", b"\0\0\1\x0a", b"\0\0\1\x0a\0\0\1\x0b"])
def test_parameter_sets_before_a_second_field(sets, suffix, end, tmp_path):
    first, second = SETS[sets]
    frames = (first + field(frame, 0) + second + field(frame, 1) for frame in range(NUM_FRAMES))
    path = write(tmp_path / f"a.{suffix}", SPS + PPS + b"".join(frames) + end)
    assert pictures(path) == [(luma(frame, 0), luma(frame, 1)) for frame in range(NUM_FRAMES)]
    assert ffprobe_column(path, "stream=nb_read_frames", "-count_frames")[:1] == [str(NUM_FRAMES)]


@pytest.mark.parametrize("cut", [PPS, SPS + PPS])
def test_parameter_sets_whose_field_is_cut_off(cut, tmp_path):
    frames = b"".join(SPS + PPS + field(frame, 0) + PPS + field(frame, 1) for frame in range(NUM_FRAMES))
    with pytest.raises(MediaError, match="parameter sets without a picture"):
        pictures(write(tmp_path / "a.264", frames + cut))


def test_a_second_field_at_the_end_that_is_damaged(tmp_path):
    """It is a picture, although it yields no frame of its own."""
    frames = b"".join(SPS + PPS + field(frame, 0) + field(frame, 1) for frame in range(NUM_FRAMES))
    with pytest.raises(MediaError, match="damaged"):
        pictures(write(tmp_path / "a.264", frames[:-200]))
