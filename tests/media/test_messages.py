"""Messages that name the cause of a failure, and not one that FFmpeg's error numbers only seem to name."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from helpers.ffmpeg import ffmpeg

from chordcache.errors import MediaError
from chordcache.media.decoding import decode_frames
from chordcache.media.demux import open_media
from chordcache.media.source_file import open_source

BEFORE_IMAGE = b"\x21\xf9\x04"
"""Extension before each image of a GIF"""


def answer(path: Path) -> MediaError:
    with open_source(str(path)) as source, pytest.raises(MediaError) as caught, open_media(source.place) as media:
        list(decode_frames(media))
    return caught.value


def test_gif_that_cannot_be_unpacked(tmp_path: Path) -> None:
    """libavcodec returns -1, which is also EPERM, for a code size that LZW does not have."""
    path = tmp_path / "a.gif"
    ffmpeg("-f", "lavfi", "-i", "testsrc2=s=64x48:r=5:d=1", path)
    data = bytearray(path.read_bytes())
    at = data.index(b"\x2c", data.index(BEFORE_IMAGE, data.index(BEFORE_IMAGE) + 8))  # of the second image
    num_colors = 2 << (data[at + 9] & 7) if data[at + 9] & 0x80 else 0
    data[at + 10 + 3 * num_colors] = 15
    path.write_bytes(data)
    error = answer(path)
    assert error.cause == "decode"
    assert error.message.endswith("the decoder refuses it: gif: LZW init failed")
    assert "Operation not permitted" not in error.message


FORMATS = {
    "4xm": (
        b"RIFF" + struct.pack("<I", 200) + b"4XMVLIST" + struct.pack("<I", 100) + b"HEAD" + bytes(300),
        "format 4xm (4X Technologies) is not supported",
    ),
    "rcv": (
        struct.pack("<II4BIIIII", 0xC5000010, 4, 15, 0, 0, 1, 48, 64, 12, 0, 0) + struct.pack("<I", 25) + bytes(400),
        "format vc1test (VC-1 test bitstream) is not supported",
    ),
    "m3u8": (
        b"#EXTM3U\n#EXT-X-TARGETDURATION:4\n#EXTINF:4,\na.ts\n#EXT-X-ENDLIST\n",
        "not a video container that is read (playlist, picture or text)",
    ),
}


@pytest.mark.parametrize("suffix", ["", ".mp4"])
@pytest.mark.parametrize("kind", FORMATS)
def test_formats_that_are_not_read_have_their_name(tmp_path: Path, kind: str, suffix: str) -> None:
    """FFmpeg sees the path of a descriptor, so that the content decides and not the suffix."""
    data, expected = FORMATS[kind]
    path = tmp_path / f"a{suffix or f'.{kind}'}"
    path.write_bytes(data)
    error = answer(path)
    assert (error.cause, error.message) == ("refused-format", expected)


def test_an_empty_file_is_said_to_be_empty(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").touch()
    error = answer(tmp_path / "a.mp4")
    assert (error.cause, error.message) == ("decode", "the file is empty, 0 bytes")


@pytest.mark.parametrize("suffix", ["txt", "mp4"])
def test_a_text_is_not_a_format(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.{suffix}"
    path.write_bytes(b"hello\n" * 99)
    error = answer(path)
    expected = "Invalid data found when processing input (FFmpeg does not recognize it)"
    assert (error.cause, error.message) == ("decode", expected)
