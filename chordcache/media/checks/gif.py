"""Blocks of a GIF, up to the one that ends it."""

from __future__ import annotations

from typing import BinaryIO

from chordcache.media.checks.faults import Loss

_EXTENSION, _PICTURE, _TRAILER = b"\x21", b"\x2c", b"\x3b"


def loss_of_gif(file: BinaryIO, track: int) -> Loss | None:
    """Return whether a GIF ends before its trailer. ``track`` is not needed.

    The blocks are read only if the last byte is not a trailer.

    Notes
    -----
    Source: GIF89a specification, 27 (trailer), 15 (sub-blocks), 18 and 20 (tables of colors).
    """
    num_bytes = file.seek(0, 2)
    file.seek(max(0, num_bytes - 1))
    if file.read(1) == _TRAILER:
        return None
    file.seek(10)
    flags = file.read(1) or b"\0"
    file.seek(13 + color_bytes(flags[0]))
    while (kind := file.read(1)) in (_EXTENSION, _PICTURE):
        if kind == _EXTENSION:
            file.seek(1, 1)
        else:
            flags = file.read(9)[-1:] or b"\0"
            file.seek(color_bytes(flags[0]) + 1, 1)
        while (size := file.read(1)) and size[0]:
            file.seek(size[0], 1)
    return None if kind == _TRAILER else Loss("the file ends before its last block does", cause="truncated")


def color_bytes(flags: int) -> int:
    """Return the length of the table of colors that these flags announce."""
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0
