"""Sizes of the tags of FLV files, each of which is stated before and behind the tag."""

from __future__ import annotations

import struct
from typing import BinaryIO

from chordcache.media.checks.faults import Loss

_HEADER_BYTES = 11
"""Length of a tag's header: type, size of the data, time, stream"""

_METADATA, _NUMBER = b"\x12", b"\0"
"""Type of a tag of metadata, and of a number in it"""

_MAX_METADATA_BYTES = 1 << 12
_TOLERANCE_SECONDS = 0.5
"""[seconds] Largest difference between the duration and the time of the last tag"""


def loss_of_flv(file: BinaryIO, track: int) -> Loss | None:
    """Return the first place where the size before and behind a tag disagree. ``track`` is not needed.

    The end of a file that was cut off is left to ``truncation``. So are zeros at the end.

    Notes
    -----
    Source: Adobe Flash Video File Format 10.1, E.3 (PreviousTagSize), E.4.1 (DataSize), E.5 (filesize, duration).
    """
    num_bytes = file.seek(0, 2)
    file.seek(5)
    first = position = int.from_bytes(file.read(4), "big") + 4
    last_ms = 0
    while position + _HEADER_BYTES + 4 <= num_bytes:
        file.seek(position)
        header = file.read(_HEADER_BYTES)
        size = int.from_bytes(header[1:4], "big") + _HEADER_BYTES
        last_ms = max(last_ms, int.from_bytes(header[7:8] + header[4:7], "big"))
        end = position + size
        if end + 4 > num_bytes and not _has_other_tag(file, position, num_bytes):
            return None
        file.seek(end)
        stated = int.from_bytes(file.read(4), "big")
        # some writers leave out the header, or one byte of it, as ``truncation`` knows
        if stated not in (size, size - 1, size - _HEADER_BYTES):
            file.seek(position)
            if not any(file.read(num_bytes - position)):  # padding
                return None
            return Loss(f"the tag at byte {position} does not have the size that it states", position)
        position = end + 4
    return _loss_by_size(file, first, last_ms / 1000, num_bytes)


def _loss_by_size(file: BinaryIO, first: int, last_seconds: float, num_bytes: int) -> Loss | None:
    """Return whether whole tags are missing: the file is shorter than its metadata states, and its end is there."""
    file.seek(first)
    metadata = file.read(_MAX_METADATA_BYTES)
    size, duration = _number(metadata, b"filesize"), _number(metadata, b"duration")
    if metadata[:1] != _METADATA or not num_bytes < size or last_seconds < duration - _TOLERANCE_SECONDS:
        return None
    return Loss(f"its metadata states {size:.0f} bytes, and the file has {num_bytes}")


def _number(metadata: bytes, name: bytes) -> float:
    """Return a number of the metadata, or 0 if it is not there."""
    at = metadata.find(name + _NUMBER)
    end = at + len(name) + 9
    return float(struct.unpack_from(">d", metadata, end - 8)[0]) if at >= 0 and end <= len(metadata) else 0.0


def _has_other_tag(file: BinaryIO, position: int, num_bytes: int) -> bool:
    """Return whether the file ends with a tag that begins behind a position: the size at the position is wrong."""
    file.seek(num_bytes - 4)
    start = num_bytes - 4 - int.from_bytes(file.read(4), "big")
    if not position < start <= num_bytes - 4 - _HEADER_BYTES:
        return False
    file.seek(start + 1)
    return start + _HEADER_BYTES + int.from_bytes(file.read(3), "big") == num_bytes - 4
