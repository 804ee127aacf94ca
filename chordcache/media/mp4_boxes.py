"""Boxes of an MP4 or QuickTime file that libavformat does not expose."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import BinaryIO

_MAX_BOXES = 100_000
"""Most boxes that are read on one level. A malicious file may hold millions."""

_MIN_BOX_BYTES = 8
"""Length of a box's header, which holds size and kind"""


def display_matrices(path: str) -> dict[int, tuple[int, ...]]:
    """Read the display matrix of each track.

    Returns
    -------
    dict of int to tuple of int
        Nine numbers (a, b, u, c, d, v, x, y, w) of a track's header, by track id. Tracks that cannot be read are
        missing.

    Notes
    -----
    Source: ISO/IEC 14496-12, 8.3.2 (tkhd).
    """
    matrices = {}
    with open(path, "rb") as file:
        end = file.seek(0, 2)
        for moov in _boxes(file, 0, end, b"moov"):
            for trak in _boxes(file, *moov, b"trak"):
                for start, stop in _boxes(file, *trak, b"tkhd"):
                    file.seek(start)
                    body = file.read(min(stop - start, 96))
                    # version and flags 4, then 5 fields (two of them 8 bytes wide in version 1), then 16 bytes
                    id_at, matrix_at = (20, 52) if body[:1] == b"\x01" else (12, 40)
                    if len(body) >= matrix_at + 36:
                        (track_id,) = struct.unpack_from(">I", body, id_at)
                        matrices[track_id] = struct.unpack_from(">9i", body, matrix_at)
    return matrices


def has_encrypted_video(path: str) -> bool:
    """Return whether the sample description of a video track says that it is encrypted (ISO/IEC 23001-7, 4.1)."""
    with open(path, "rb") as file:
        ranges = [(0, file.seek(0, 2))]
        for kind in (b"moov", b"trak", b"mdia", b"minf", b"stbl", b"stsd"):
            ranges = [each for start, stop in ranges for each in _boxes(file, start, stop, kind)]
        for start, _ in ranges:
            file.seek(start + 12)  # version, flags, number of entries; size of the first one
            if file.read(4) == b"encv":
                return True
    return False


def ends_in_fragment(path: str) -> bool:
    """Return whether a fragmented file ends before its last fragment does.

    libavformat skips a fragment whose header is incomplete. A file that was cut off between two fragments is complete.

    Notes
    -----
    Source: ISO/IEC 14496-12, 8.8 (movie fragments).
    """
    with open(path, "rb") as file:
        stop = file.seek(0, 2)
        boxes = list(_headers(file, 0, stop))
    if not any(kind == b"moof" for kind, _, _ in boxes):
        return False
    kind, _, end = boxes[-1]
    num_left = stop - end
    return num_left < 0 or 0 < num_left < _MIN_BOX_BYTES or (num_left == 0 and kind == b"moof")


def _boxes(file: BinaryIO, start: int, stop: int, kind: bytes) -> Iterator[tuple[int, int]]:
    """Yield the body ranges [start, stop) of the boxes of one kind that are directly in a range."""
    for found, body, end in _headers(file, start, stop):
        if found == kind and end <= stop:
            yield body, end


def _headers(file: BinaryIO, start: int, stop: int) -> Iterator[tuple[bytes, int, int]]:
    """Yield (kind, start of the body, end) of the boxes directly in a range; the last one may end beyond it."""
    for _ in range(_MAX_BOXES):
        if start + _MIN_BOX_BYTES > stop:
            return
        file.seek(start)
        header = file.read(16)
        if len(header) < _MIN_BOX_BYTES:
            return
        size, kind = struct.unpack_from(">I4s", header)
        body = start + 8
        if size == 1 and len(header) == 16:  # a 64-bit size follows
            (size,) = struct.unpack_from(">Q", header, 8)
            body = start + 16
        end = stop if size == 0 else start + size
        if end < body:
            return
        yield kind, body, end
        if end > stop:
            return
        start = end
