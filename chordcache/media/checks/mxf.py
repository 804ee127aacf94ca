"""Lengths of the packets of MXF files, and the positions that their partitions state."""

from __future__ import annotations

import struct
from typing import BinaryIO

from chordcache.media.checks.faults import Loss

_LABEL = b"\x06\x0e\x2b\x34"
"""First bytes of every key"""

_PARTITION = bytes.fromhex("060e2b34020501010d01020101")
"""First bytes of the key of a partition, without its kind: header, body, footer"""

_HEADER_PARTITION, _FOOTER_PARTITION = 2, 4
_MIN_HEADER_BYTES, _MAX_HEADER_BYTES = 17, 25
"""Lengths of a key and of the length behind it, which has 1 to 9 bytes"""

_MAX_RUN_IN_BYTES = 1 << 16
"""Most bytes of other data before the header (SMPTE ST 377-1, 6.5)"""


def loss_of_mxf(file: BinaryIO, track: int) -> Loss | None:
    """Return the first place of an MXF where a packet should begin and does not. ``track`` is not needed.

    Each packet has a key, a length and a value. A partition states where it and the footer begin.

    Notes
    -----
    Source: SMPTE ST 377-1, 6.3 (packets), 7.1 (partitions); SMPTE ST 336 (lengths).
    """
    num_bytes = file.seek(0, 2)
    file.seek(0)
    start = file.read(_MAX_RUN_IN_BYTES + len(_PARTITION)).find(_PARTITION)
    if start < 0:
        return None
    position = before = start
    footer = 0
    while position < num_bytes:
        file.seek(position)
        header = file.read(_MAX_HEADER_BYTES)
        key = header[:16]
        size, num_length_bytes = _length(header)
        body = position + len(key) + num_length_bytes
        if not key.startswith(_LABEL[: len(key)]):
            is_padding = not any(header) and not any(file.read(num_bytes - position))
            return None if is_padding else Loss(f"got other data at byte {position}, expected a packet", before)
        if size is None or body + size > num_bytes:
            return Loss("the file ends inside of a packet", cause="truncated")
        if key.startswith(_PARTITION) and _HEADER_PARTITION <= key[13] <= _FOOTER_PARTITION and size >= 40:
            file.seek(body)
            this, _, stated_footer = struct.unpack_from(">QQQ", file.read(40), 8)
            footer = footer or stated_footer
            if this != position - start:
                return Loss(f"the partition at byte {position - start} states that it begins at byte {this}")
        before, position = position, body + size
    if start + footer >= num_bytes:
        return Loss(f"the file ends before its footer at byte {footer}", cause="truncated")
    return None


def _length(header: bytes) -> tuple[int | None, int]:
    """Return the length of a packet, None at the end of the file, and the number of bytes that state it."""
    if len(header) < _MIN_HEADER_BYTES:
        return None, 0
    first = header[_MIN_HEADER_BYTES - 1]
    if not first & 0x80:
        return first, 1
    stop = _MIN_HEADER_BYTES + (first & 0x7F)
    is_whole = stop <= len(header)
    return int.from_bytes(header[_MIN_HEADER_BYTES:stop], "big") if is_whole else None, stop - 16
