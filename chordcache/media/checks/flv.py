"""Sizes of the tags of FLV files, each of which is stated before and behind the tag."""

from __future__ import annotations

from typing import BinaryIO

from chordcache.media.checks.loss import Loss

_HEADER_BYTES = 11
"""Length of a tag's header: type, size of the data, time, stream"""


def loss_of_flv(file: BinaryIO, track: int) -> Loss | None:
    """Return the first place where the size before and behind a tag disagree. ``track`` is not needed.

    The end of a file that was cut off is left to ``truncation``. So are zeros at the end.

    Notes
    -----
    Source: Adobe Flash Video File Format 10.1, E.3 (PreviousTagSize) and E.4.1 (DataSize).
    """
    num_bytes = file.seek(0, 2)
    file.seek(5)
    position = int.from_bytes(file.read(4), "big") + 4
    while position + _HEADER_BYTES + 4 <= num_bytes:
        file.seek(position)
        size = int.from_bytes(file.read(4)[1:], "big") + _HEADER_BYTES
        end = position + size
        if end + 4 > num_bytes and not _has_other_tag(file, position, num_bytes):
            return None
        file.seek(end)
        stated = int.from_bytes(file.read(4), "big")
        # some writers leave out the header, or one byte of it, as ``truncation`` knows
        if stated not in (size, size - 1, size - _HEADER_BYTES):
            file.seek(position)
            is_padding = not any(file.read(num_bytes - position))
            return (
                None
                if is_padding
                else Loss(f"the tag at byte {position} does not have the size that it states", position)
            )
        position = end + 4
    return None


def _has_other_tag(file: BinaryIO, position: int, num_bytes: int) -> bool:
    """Return whether the file ends with a tag that begins behind a position: the size at the position is wrong."""
    file.seek(num_bytes - 4)
    start = num_bytes - 4 - int.from_bytes(file.read(4), "big")
    if not position < start <= num_bytes - 4 - _HEADER_BYTES:
        return False
    file.seek(start + 1)
    return start + _HEADER_BYTES + int.from_bytes(file.read(3), "big") == num_bytes - 4
