"""Boxes of an MP4 or QuickTime file, and facts about its tracks, that libavformat does not expose."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import BinaryIO, NamedTuple, TypeAlias

from chordcache.media.source_bytes import opened

_MAX_BOXES = 100_000
"""Most boxes that are read on one level. A malicious file may hold millions."""

_MIN_BOX_BYTES = 8
"""Length of a box's header, which holds size and kind"""

_MAX_HEADER_BYTES = 16
"""Length of a header with a size of 64 bits"""

_MAX_BODY_BYTES = 1 << 28
"""Largest box whose body is read. The tables of 1 million samples have 20 MB."""

Box: TypeAlias = memoryview
"""Body of a box, without the header"""


class BoxHeader(NamedTuple):
    """Header of a box, with positions [bytes] from the start of the file or of the parent."""

    kind: bytes
    body: int
    end: int
    """End of the box, which may be beyond the end of its parent"""


def box_headers(
    read: Callable[[int], bytes | memoryview], start: int, stop: int, *, max_boxes: int = _MAX_BOXES
) -> Iterator[BoxHeader]:
    """Yield the headers of the boxes that follow each other in a range [start, stop), [bytes], at most ``max_boxes``.

    The headers end at the first box that is not whole: one that is shorter than its header, or reaches beyond the
    range. The latter is still yielded. Nesting is left to the caller, so that it cannot be deeper than expected.
    ``read`` returns up to 16 bytes from a position on, and fewer only at the end of the data.

    Notes
    -----
    Source: ISO/IEC 14496-12, 4.2. A size of 0 means up to the end of the range, and 1 that a size of 64 bits follows.
    """
    for _ in range(max_boxes):
        if start + _MIN_BOX_BYTES > stop:
            return
        header = read(start)
        if len(header) < _MIN_BOX_BYTES:
            return
        size, kind = struct.unpack_from(">I4s", header)
        body = start + _MIN_BOX_BYTES
        if size == 1 and len(header) == _MAX_HEADER_BYTES:
            (size,) = struct.unpack_from(">Q", header, _MIN_BOX_BYTES)
            body = start + _MAX_HEADER_BYTES
        end = stop if size == 0 else start + size
        if end < body:
            return
        yield BoxHeader(kind, body, end)
        if end > stop:
            return
        start = end


def file_headers(file: BinaryIO, start: int, stop: int) -> Iterator[BoxHeader]:
    """Yield the headers of the boxes in a range of a file. See ``box_headers``."""

    def read(at: int) -> bytes:
        file.seek(at)
        return file.read(_MAX_HEADER_BYTES)

    return box_headers(read, start, stop)


def body_of(file: BinaryIO, box: BoxHeader) -> Box:
    """Read the body of a box of a file."""
    file.seek(box.body)
    return memoryview(file.read(min(box.end - box.body, _MAX_BODY_BYTES)))


def boxes_in(data: Box) -> Iterator[tuple[bytes, Box]]:
    """Yield kind and body of the whole boxes directly in a box."""
    for kind, body, end in box_headers(lambda at: data[at : at + 16], 0, len(data)):
        if end <= len(data):
            yield kind, data[body:end]


def children(data: Box, *path: bytes) -> dict[bytes, Box]:
    """Return the first box of each kind that is directly in a box, or in the box that is nested so in it."""
    boxes: dict[bytes, Box] = {}
    for kind, body in boxes_in(data):
        boxes.setdefault(kind, body)
    return children(boxes.get(path[0], memoryview(b"")), *path[1:]) if path else boxes


def tracks_in(movie: Box) -> Iterator[tuple[int, Box]]:
    """Yield id and body of each track of a movie."""
    for kind, trak in boxes_in(movie):
        tkhd = children(trak).get(b"tkhd")
        if kind == b"trak" and tkhd is not None and len(tkhd) >= 24:
            yield number_behind_times(tkhd), trak


def u32(box: bytes | Box, at: int) -> int:
    """Return the number of 4 bytes at a place of a box."""
    value: int = struct.unpack_from(">I", box, at)[0]
    return value


def number_behind_times(box: bytes | Box) -> int:
    """Return the number behind the times of a header: the ticks per second of mvhd and mdhd, the id of tkhd."""
    return u32(box, 20 if box[0] else 12)


def matrix_of(tkhd: bytes | Box) -> tuple[int, ...]:
    """Return the display matrix in the header of a track."""
    return struct.unpack_from(">9i", tkhd, 52 if tkhd[0] == 1 else 40)


def display_matrices(path: str) -> dict[int, tuple[int, ...]]:
    """Return the display matrix of each track by its id: nine numbers (a, b, u, c, d, v, x, y, w) of its header.

    Tracks that cannot be read are missing (ISO/IEC 14496-12, 8.3.2, tkhd).
    """
    headers = {number: children(trak)[b"tkhd"] for number, trak in _tracks(path).items()}
    return {number: matrix_of(tkhd) for number, tkhd in headers.items() if len(tkhd) >= 76 + 12 * (tkhd[0] == 1)}


def sample_kinds(path: str) -> dict[int, bytes]:
    """Return the kind of the samples of each track by its id: a codec, or b"encv" if it is encrypted video.

    Source: ISO/IEC 14496-12, 8.5.2 (stsd); ISO/IEC 23001-7, 4.1 (encv).
    """
    tables = {number: children(trak, b"mdia", b"minf", b"stbl") for number, trak in _tracks(path).items()}
    # version, flags, number of entries; size of the first one; its kind
    return {number: bytes(boxes[b"stsd"][12:16]) for number, boxes in tables.items() if boxes.get(b"stsd")}


def _tracks(path: str) -> dict[int, Box]:
    """Return the tracks of a file by their id."""
    with opened(path) as file:
        stop = file.seek(0, 2)
        movies = (box for box in file_headers(file, 0, stop) if box.kind == b"moov" and box.end <= stop)
        movie = next(movies, None)
        return dict(tracks_in(body_of(file, movie))) if movie else {}
