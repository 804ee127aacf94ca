"""Files that were cut off where libavformat does not notice."""

from __future__ import annotations

import os
import struct
from typing import BinaryIO

from chordcache.mp4 import ends_in_fragment

_PACKET_BYTES = {188: 0, 192: 4, 204: 0}
"""Length of a transport stream's packets, and where in it the sync byte stands (after a time stamp in M2TS)."""

_SYNC = 0x47

_MAX_CHUNKS = 10_000
"""Chunks of an AVI looked at; those before and between its lists of pictures are few."""

_UNKNOWN_SIZE = 0xFFFFFFFF

_SEGMENT = b"\x18\x53\x80\x67"


def end_problem(path: str, container: str) -> str | None:
    """Where a file ends that should not end there; None if that cannot be told.

    Parameters
    ----------
    path : str
        The file.
    container : str
        libavformat's name of its format.

    Notes
    -----
    Source: ISO/IEC 13818-1, 2.4.3 (transport packets); RFC 8794, 4 and 6 (EBML); OpenDML AVI 1.02, 3 (RIFF).

    Examples
    --------
    >>> end_problem("/dev/null", "matroska,webm") is None
    True
    """
    with open(path, "rb") as file:
        num_bytes = file.seek(0, os.SEEK_END)
        file.seek(0)
        if container == "mpegts" and _ends_in_packet(file, num_bytes):
            return "in the middle of a packet"
        if container == "matroska,webm" and _ends_in_segment(file, num_bytes):
            return "before its segment does"
        if container == "avi" and _ends_in_pictures(file, num_bytes):
            return "before its list of pictures does"
    if "mp4" in container and ends_in_fragment(path):
        return "in the middle of a fragment"
    return None


def _ends_in_packet(file: BinaryIO, num_bytes: int) -> bool:
    """Whether a transport stream is no whole number of packets long; one that starts with junk is not judged."""
    head = file.read(2 * max(_PACKET_BYTES))
    for length, sync_at in _PACKET_BYTES.items():
        if len(head) > sync_at + length and head[sync_at] == head[sync_at + length] == _SYNC:
            return num_bytes % length != 0
    return False


def _ends_in_segment(file: BinaryIO, num_bytes: int) -> bool:
    """Whether a Matroska file is shorter than its segment says; a live one does not say."""
    file.seek(4)  # the identity of the EBML header
    header_bytes = _ebml_size(file)
    if header_bytes is None or header_bytes > num_bytes:
        return False
    file.seek(header_bytes, os.SEEK_CUR)
    if file.read(4) != _SEGMENT:
        return False
    segment_bytes = _ebml_size(file)
    return segment_bytes is not None and file.tell() + segment_bytes > num_bytes


def _ebml_size(file: BinaryIO) -> int | None:
    """Read an element's size; None if it is unknown or none."""
    first = file.read(1)
    if not first or not first[0]:
        return None
    num_more = 8 - first[0].bit_length()
    num_bits = 7 * (num_more + 1)
    size = int.from_bytes(first + file.read(num_more), "big") & ((1 << num_bits) - 1)
    return None if size == (1 << num_bits) - 1 else size


def _ends_in_pictures(file: BinaryIO, num_bytes: int) -> bool:
    """Whether an AVI is shorter than a list of its pictures says. An index that is missing is no harm.

    A muxer that writes to a pipe leaves every size at its highest value, and no index.
    """
    position = 0
    for _ in range(_MAX_CHUNKS):
        file.seek(position)
        header = file.read(12)
        if len(header) < 12:
            return False
        kind, size, form = struct.unpack("<4sI4s", header)
        if kind == b"LIST" and form == b"movi" and position + 8 + size > num_bytes:
            return bool(size != _UNKNOWN_SIZE)
        position += 12 if kind == b"RIFF" else 8 + size + size % 2
    return False
