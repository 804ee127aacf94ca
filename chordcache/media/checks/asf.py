"""Counts and sizes of the packets of ASF and WMV files."""

from __future__ import annotations

import struct
from typing import BinaryIO

from chordcache.media.checks.loss import Loss

_HEADER = bytes.fromhex("3026b2758e66cf11a6d900aa0062ce6c")
_FILE_PROPERTIES = bytes.fromhex("a1dcab8c47a9cf118ee400c00c205365")
_DATA = bytes.fromhex("3626b2758e66cf11a6d900aa0062ce6c")

_DATA_HEADER_BYTES = 50
"""Length of the data object without its packets"""

_MIN_PACKET_BYTES = 100
"""Length of packets that are not read. Real ones have kilobytes."""

_MIN_OBJECT_BYTES = 24
"""Length of an object without content: identifier and size"""

_MAX_HEADER_BYTES = 1 << 24
_IS_BROADCAST = 1
"""Flag of a file that was written as a stream. It states neither counts nor sizes."""

_ERROR_CORRECTION = b"\x82\0\0"
"""First bytes of a packet of most writers"""


def loss_of_asf(file: BinaryIO, track: int) -> Loss | None:
    """Compare the packets of an ASF with their count, and with the size of the object that they are in.

    Notes
    -----
    Source: Microsoft ASF specification 1.2, 3.2 (file properties), 5.1 (data object), 5.2.1 (error correction). Only
    the files whose packets have one size are read. ``track`` is not needed.
    """
    num_bytes = file.seek(0, 2)
    file.seek(0)
    head = file.read(24)
    if len(head) < 24 or head[:16] != _HEADER:
        return None
    data_at = int(struct.unpack_from("<Q", head, 16)[0])
    if data_at > min(num_bytes, _MAX_HEADER_BYTES):
        return None
    head += file.read(max(0, data_at - 24))
    at = head.find(_FILE_PROPERTIES)
    file.seek(data_at)
    data_header = file.read(_DATA_HEADER_BYTES)
    if at < 0 or len(head) < at + 104 or len(data_header) < _DATA_HEADER_BYTES or data_header[:16] != _DATA:
        return None
    flags, size, largest_size = struct.unpack_from("<III", head, at + 88)
    (data_bytes,) = struct.unpack_from("<Q", data_header, 16)
    (num_packets,) = struct.unpack_from("<Q", data_header, 40)
    if size != largest_size or size < _MIN_PACKET_BYTES:
        return None
    first = data_at + _DATA_HEADER_BYTES
    is_stated = not flags & _IS_BROADCAST and num_packets > 0
    stop = first + num_packets * size if is_stated else num_bytes
    file.seek(first)
    if file.read(len(_ERROR_CORRECTION)) == _ERROR_CORRECTION:
        for position in range(first, min(stop, num_bytes - 2), size):
            file.seek(position)
            if file.read(len(_ERROR_CORRECTION)) != _ERROR_CORRECTION:
                num_missing = num_packets - (position - first) // size if is_stated else 0
                return _loss_at(file, position, num_missing, size, num_bytes)
            if position + size > num_bytes:
                return Loss("the file ends inside of a packet", cause="truncated")
    if stop > num_bytes:
        return Loss(f"the file ends before its {num_packets} packets do", cause="truncated")
    if is_stated and data_bytes > _DATA_HEADER_BYTES and data_bytes != _DATA_HEADER_BYTES + num_packets * size:
        return Loss(f"its data object has {data_bytes} bytes, and {num_packets} packets of {size} bytes")
    return None


def _loss_at(file: BinaryIO, position: int, num_missing: int, size: int, num_bytes: int) -> Loss | None:
    """Return the loss before a position where a packet should begin and does not.

    If the next object begins there, whole packets are missing at an unknown place.
    """
    file.seek(position + 16)
    object_bytes = int.from_bytes(file.read(8), "little")
    if not _MIN_OBJECT_BYTES <= object_bytes <= num_bytes - position:
        return Loss(f"got other data at byte {position}, expected a packet", position - size)
    return Loss(f"its header states {num_missing} more packets than the file has") if num_missing else None
