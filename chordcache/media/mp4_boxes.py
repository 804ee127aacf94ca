"""Boxes of an MP4 or QuickTime file that libavformat does not expose."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import BinaryIO, NamedTuple

from chordcache.media.source_file import opened

_MAX_BOXES = 100_000
"""Most boxes that are read on one level. A malicious file may hold millions."""

_MIN_BOX_BYTES = 8
"""Length of a box's header, which holds size and kind"""

_MAX_HEADER_BYTES = 16
"""Length of a header with a size of 64 bits"""


_VIDEO_ENTRY_BYTES = 78
"""Length of the fields of a video's sample description before its boxes"""


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


def display_matrices(path: str) -> dict[int, tuple[int, ...]]:
    """Return the display matrix of each track by its id: nine numbers (a, b, u, c, d, v, x, y, w) of its header.

    Tracks that cannot be read are missing (ISO/IEC 14496-12, 8.3.2, tkhd).
    """
    matrices = {}
    with opened(path) as file:
        for start, stop in _inside(file, _whole(file), b"moov", b"trak", b"tkhd"):
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
    with opened(path) as file:
        for start, _ in _inside(file, _whole(file), b"moov", b"trak", b"mdia", b"minf", b"stbl", b"stsd"):
            file.seek(start + 12)  # version, flags, number of entries; size of the first one
            if file.read(4) == b"encv":
                return True
    return False


def video_entry_parts(path: str, track_id: int) -> dict[bytes, bytes]:
    """Return the beginnings of the boxes in the sample description of a video track, by kind: 64 bytes of each.

    Only the first sample description counts. A track that is not found has no boxes (ISO/IEC 14496-12, 12.1.3).
    """
    with opened(path) as file:
        for trak in _inside(file, _whole(file), b"moov", b"trak"):
            if not any(_track_id(file, *tkhd) == track_id for tkhd in _inside(file, trak, b"tkhd")):
                continue
            for start, stop in _inside(file, trak, b"mdia", b"minf", b"stbl", b"stsd"):
                for entry in file_headers(file, start + 8, stop):
                    return {
                        box.kind: _head(file, box, 64)
                        for box in file_headers(file, entry.body + _VIDEO_ENTRY_BYTES, min(entry.end, stop))
                    }
    return {}


def _track_id(file: BinaryIO, start: int, stop: int) -> int | None:
    """Return the number of a track from the body of its header."""
    file.seek(start)
    body = file.read(min(stop - start, 24))
    at = 20 if body[:1] == b"\x01" else 12
    return int.from_bytes(body[at : at + 4], "big") if len(body) >= at + 4 else None


def _head(file: BinaryIO, box: BoxHeader, num_bytes: int) -> bytes:
    file.seek(box.body)
    return file.read(min(num_bytes, box.end - box.body))


def _whole(file: BinaryIO) -> tuple[int, int]:
    return 0, file.seek(0, 2)


def _inside(file: BinaryIO, outer: tuple[int, int], kind: bytes, *kinds: bytes) -> Iterator[tuple[int, int]]:
    """Yield the body ranges [start, stop) of the boxes in a range that are nested in this order of kinds."""
    for box in file_headers(file, *outer):
        if box.kind == kind and box.end <= outer[1]:
            body = box.body, box.end
            yield from _inside(file, body, *kinds) if kinds else (body,)


def file_headers(file: BinaryIO, start: int, stop: int) -> Iterator[BoxHeader]:
    """Yield the headers of the boxes in a range of a file. See ``box_headers``."""

    def read(at: int) -> bytes:
        file.seek(at)
        return file.read(_MAX_HEADER_BYTES)

    return box_headers(read, start, stop)
