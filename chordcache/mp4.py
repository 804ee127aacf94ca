"""Boxes of an MP4 or QuickTime file that libavformat does not hand out."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import BinaryIO

_MAX_BOXES = 100_000
"""Boxes looked at on one level; a hostile file may hold millions."""


def display_matrices(path: str) -> dict[int, tuple[int, ...]]:
    """Read how each track is to be turned for display.

    Returns
    -------
    dict of int to tuple of int
        Track id to the nine numbers (a, b, u, c, d, v, x, y, w) of its header. Tracks that cannot be read are missing.

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


def _boxes(file: BinaryIO, start: int, stop: int, kind: bytes) -> Iterator[tuple[int, int]]:
    """Yield the body ranges [start, stop) of the boxes of one kind that lie directly in a range."""
    for _ in range(_MAX_BOXES):
        if start + 8 > stop:
            return
        file.seek(start)
        header = file.read(16)
        if len(header) < 8:
            return
        size, found = struct.unpack_from(">I4s", header)
        body = start + 8
        if size == 1 and len(header) == 16:  # 64-bit size follows
            (size,) = struct.unpack_from(">Q", header, 8)
            body = start + 16
        end = stop if size == 0 else start + size
        if end < body or end > stop:
            return
        if found == kind:
            yield body, end
        start = end
