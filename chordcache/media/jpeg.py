"""Conversion of planes to JPEG bytes, and of JPEG bytes, or a part of them, to RGB in the caller's memory."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import simplejpeg

from chordcache.errors import DamageError
from chordcache.media import turbojpeg
from chordcache.media.cropping import Rectangle, check_pixels

_BLOCK_PX = 16
"""Width of the blocks of chroma of 4:2:0, [pixels]. A part of a JPEG starts with one"""


_BASELINE, _HUFFMAN_TABLES, _START_OF_SCAN = 0xC0, 0xC4, 0xDA
"""Markers of segments, ITU-T T.81, table B.1"""


def encode_planes(y: np.ndarray, u: np.ndarray, v: np.ndarray, *, quality: int) -> bytes:
    """Compress full-range BT.601 YUV planes to a JFIF file, without a conversion. ``quality`` is 1 to 100.

    The planes [shape=(H, W), (H/2, W/2), (H/2, W/2), dtype=uint8, 0 to 255] may be strided.
    """
    # Rows may be padded, but the pixels of a row must lie side by side
    packed = [
        plane if plane.strides[1] == 1 and plane.strides[0] > 0 else np.ascontiguousarray(plane) for plane in (y, u, v)
    ]
    data: bytes = simplejpeg.encode_jpeg_yuv_planes(*packed, quality=quality)
    return data


def encode_rgb(frame: np.ndarray, *, quality: int) -> bytes:
    """Compress a picture [shape=(H, W, 3), dtype=uint8, 0 to 255, RGB] to a JFIF file with 4:2:0 chroma."""
    data: bytes = simplejpeg.encode_jpeg(
        np.ascontiguousarray(frame), quality=quality, colorspace="RGB", colorsubsampling="420"
    )
    return data


def is_baseline(data: bytes) -> bool:
    """Return whether a JPEG file is as those of ``encode_planes``: baseline, 4:2:0, with its own Huffman tables.

    Examples
    --------
    >>> planes = (np.zeros(size, np.uint8) for size in ((16, 16), (8, 8), (8, 8)))
    >>> is_baseline(encode_planes(*planes, quality=90)), is_baseline(b"")
    (True, False)
    """
    start, has_tables, has_frame = 2, False, False
    while data[:2] == b"\xff\xd8" and start + 4 <= len(data) and data[start] == 0xFF:
        kind, size = data[start + 1], int.from_bytes(data[start + 2 : start + 4])
        if kind == _START_OF_SCAN:
            return has_tables and has_frame
        if kind == _BASELINE:
            components = data[start + 10 : start + 2 + size]
            has_frame = components[1::3] == b"\x22\x11\x11"
        has_tables = has_tables or kind == _HUFFMAN_TABLES
        start += 2 + size
    return False


def decode_into(data: Any, out: np.ndarray) -> None:
    """Decompress a JPEG, a JFIF file, into a contiguous array [shape=(H, W, 3), dtype=uint8, 0 to 255, RGB].

    Raise ``DamageError`` if the data is not a JPEG, or has another size, and ``UsageError`` for another kind of array.
    """
    check_pixels(out, out.shape[:2])
    try:
        height, width, *_ = simplejpeg.decode_jpeg_header(data)
        if (height, width) != out.shape[:2]:  # before the decoder, which does not compare 2 GiB with ``out``
            raise DamageError(f"the JPEG is {width}x{height}, expected {out.shape[1]}x{out.shape[0]}")
        simplejpeg.decode_jpeg(data, "RGB", buffer=out)
    except ValueError as error:
        raise DamageError(f"not the expected JPEG: {error}") from None


def region_around(part: Rectangle, picture: tuple[int, int]) -> Rectangle | None:
    """Return the region to decode for a part of a JPEG, or None where the whole picture has to be decoded.

    ``picture`` is its (height, width). The region has one more column on each side, because the decoder interpolates
    chroma, and would do so without the neighbors of the first and the last column.
    """
    if part_decoder() is None:
        return None
    left = max(0, part.left - 1) // _BLOCK_PX * _BLOCK_PX
    num_blocks = -(-(part.left + part.width + 1 - left) // _BLOCK_PX)  # a part of a block takes longer than all of it
    right = min(picture[1], left + num_blocks * _BLOCK_PX)
    return Rectangle(part.top, left, part.height, right - left)


def decode_region_into(data: Any, region: Rectangle, picture: tuple[int, int], out: np.ndarray) -> None:
    """Decompress a region of a JPEG directly into ``out``. All but its outer columns equal those of ``decode_into``.

    ``region`` is what ``region_around`` returned, and ``picture`` the (height, width) of the JPEG, [pixels]. ``out``
    [shape=(region.height, region.width, 3), dtype=uint8, 0 to 255, RGB] is a contiguous array. Raises as
    ``decode_into``.
    """
    decoder = part_decoder()
    if decoder is None or not decoder.decode(data, picture, region, out):
        check_pixels(out, region[2:])
        whole = np.empty((1, *picture, 3), np.uint8)  # another kind of JPEG, or damage: this decoder names it
        decode_into(data, whole[0])
        out[...] = region.of(whole)[0]


@lru_cache(maxsize=1)
def part_decoder() -> turbojpeg.PartDecoder | None:
    """Return the decoder of parts if the library is installed, and decodes a noisy picture as simplejpeg does."""
    library = turbojpeg.load_library(turbojpeg.candidates())
    if library is None:
        return None
    decoder, picture = turbojpeg.PartDecoder(library), (40, 70)
    noise = np.random.default_rng(0).integers(0, 256, (*picture, 3), np.uint8)
    data = simplejpeg.encode_jpeg(noise, 90, "RGB", "420", False)
    whole, part = np.empty((1, *picture, 3), np.uint8), np.empty((1, 21, 30, 3), np.uint8)
    decode_into(data, whole[0])
    region = Rectangle(11, 16, *part.shape[1:3])
    is_same = decoder.decode(data, picture, region, part[0])
    is_same = is_same and np.array_equal(part[:, :, 1:-1], region.of(whole)[:, :, 1:-1])
    return decoder if is_same else None
