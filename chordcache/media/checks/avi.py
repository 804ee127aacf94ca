"""Sizes of the chunks of AVI files, and their index."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

import numpy as np

from chordcache.media.checks.faults import Loss

_UNKNOWN_SIZES = (0, 0xFFFFFFFF)
"""Sizes of a list that was written to a pipe"""

_CHUNK_NAME = re.compile(rb"\d\d[a-zA-Z]{2}|ix\d\d|JUNK|LIST|rec |idx1", re.DOTALL)
"""Names of the chunks in a list of pictures"""

_MAX_INDEX_BYTES = 1 << 26


class _Chunk(NamedTuple):
    at: int
    """[bytes] Begin of the header"""
    end: int
    is_sized: bool = True
    """False if the size was not known when the header was written"""


def loss_of_avi(file: BinaryIO, track: int) -> Loss | None:
    """Compare the chunks of an AVI with the size of the list that they are in, and with the index. ``track`` is unused.

    If whole chunks are missing, their place is unknown. A missing index is not a fault.

    Notes
    -----
    Source: Microsoft AVI RIFF File Reference (movi, idx1); OpenDML AVI 1.02, 3 (more than one list of pictures).
    """
    num_bytes = file.seek(0, 2)
    chunks: list[_Chunk] = []
    is_first = True
    for movi in _lists_of_pictures(file, num_bytes):
        position = movi.at + 12
        for chunk in _chunks(file, position, movi.end):
            chunks.append(chunk)
            position = chunk.end
        if position != movi.end and position < num_bytes:
            if movi.is_sized and (position > movi.end or _is_followed_by_chunks(file, position, num_bytes)):
                return Loss(
                    f"its list of pictures (movi) states that it ends at byte {movi.end}, and no chunk ends there"
                )
            if position < movi.end and not _is_followed_by_chunks(file, position, num_bytes):
                at = chunks[-1].at if chunks else movi.at
                return Loss(f"got other data at byte {position}, expected a chunk of its list of pictures", at)
        if movi.is_sized and position != movi.end:
            return Loss("the file ends before its list of pictures does", cause="truncated")
        if is_first and (loss := _loss_of_index(file, movi, chunks, num_bytes)):
            return loss
        is_first = False
    return None


def _is_followed_by_chunks(file: BinaryIO, position: int, num_bytes: int) -> bool:
    """Return whether the rest of a file consists of whole chunks, as behind a list of pictures."""
    while position + 8 <= num_bytes:
        file.seek(position)
        kind, size = struct.unpack("<4sI", file.read(8))
        if not kind.isascii():
            return False
        position += 8 + size + size % 2
    return position in (num_bytes, num_bytes + 1)


def _lists_of_pictures(file: BinaryIO, num_bytes: int) -> Iterator[_Chunk]:
    """Yield the lists named movi. The end of one that does not know its size is that of the file."""
    position = 0
    while position + 12 <= num_bytes:
        file.seek(position)
        kind, size, form = struct.unpack("<4sI4s", file.read(12))
        end = position + 8 + size + size % 2
        if kind == b"LIST" and form == b"movi":
            is_known = size not in _UNKNOWN_SIZES
            yield _Chunk(position, position + 8 + size if is_known else num_bytes, is_known)
            if not is_known:
                return
        position = position + 12 if kind == b"RIFF" else end


def _chunks(file: BinaryIO, position: int, stop: int) -> Iterator[_Chunk]:
    """Yield the chunks in a range, up to the first that has no name."""
    while position + 8 <= stop:
        file.seek(position)
        header = file.read(8)
        if len(header) < 8 or not _CHUNK_NAME.fullmatch(header, 0, 4):
            return
        kind, size = struct.unpack("<4sI", header)
        if kind == b"idx1":  # behind a list that does not know its size
            return
        if kind == b"LIST":
            position += 12
            continue
        end = position + 8 + size
        if size % 2:  # some writers do not fill an odd chunk up
            file.seek(end)
            end += not _CHUNK_NAME.fullmatch(file.read(4))
        yield _Chunk(position, end)
        position = end


def _loss_of_index(file: BinaryIO, movi: _Chunk, chunks: list[_Chunk], num_bytes: int) -> Loss | None:
    """Return a place of the index where no chunk is."""
    file.seek(movi.end + movi.end % 2)
    header = file.read(8)
    if len(header) < 8 or header[:4] != b"idx1" or not chunks:
        return None
    (size,) = struct.unpack_from("<I", header, 4)
    data = file.read(min(size, _MAX_INDEX_BYTES, num_bytes))
    rows: np.ndarray = np.frombuffer(data[: len(data) // 16 * 16], "<u4").astype(np.int64).reshape(-1, 4)
    is_chunk = (rows[:, 3] > 0) & (rows[:, 0] & 0xFF >= ord("0")) & (rows[:, 0] & 0xFF <= ord("9"))
    named = np.sort(rows[is_chunk, 2])
    known = np.array([chunk.at for chunk in chunks])
    for origin in (0, movi.at + 8):  # positions in the file, or in the list
        is_known = np.isin(named + origin, known)
        if is_known.all():
            return None
        if is_known[0]:
            return Loss(f"its index (idx1) names byte {int(named[~is_known][0]) + origin}, where no chunk begins")
    return None
