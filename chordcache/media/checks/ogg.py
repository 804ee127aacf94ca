"""Sequence numbers of the pages of Ogg files."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from chordcache.media.checks.faults import Loss

_HEADER = struct.Struct("<4sBBqIIIB")
"""Name, version, flags, position of the granule, stream, number, checksum, number of segments"""

_MAX_SEGMENTS = 255
_IS_FIRST, _IS_LAST = 2, 4
"""Flags of the first and the last page of a stream"""

_SCAN_BYTES = 1 << 16
"""Number of bytes that are searched at once for a page behind other data"""

_MAX_LOST_AT_START = 16
"""Most pages that may be lost behind the headers. A recording of a live stream continues with the pages of that
moment, and has thousands less."""


class _Page(NamedTuple):
    at: int
    """[bytes] Begin"""
    end: int
    """[bytes] End, which may be behind that of the file"""
    stream: int
    number: int
    is_first: bool
    is_last: bool
    is_header: bool
    """True if the page ends before the first granule, as pages of headers do"""


def loss_of_ogg(file: BinaryIO, track: int) -> Loss | None:
    """Return the first place where the numbers of the pages of a stream jump, or that the pictures' end is missing.

    ``track`` is libavformat's number of the stream, by the order of their first pages. Writers set the mark of the end
    only for some streams, and the sound may be cut.

    Notes
    -----
    Source: RFC 3533, 6, fields 2 (end of a stream) and 7 (page_sequence_number).
    libavformat compares the checksums (field 8).
    """
    num_bytes = file.seek(0, 2)
    last: dict[int, _Page] = {}
    end = 0
    for page in _pages(file):
        end = page.end
        before = last.get(page.stream)
        last[page.stream] = page
        if before is None or page.is_first:
            continue
        num_lost = page.number - before.number - 1
        if before.is_header and not 0 <= num_lost <= _MAX_LOST_AT_START:
            continue
        if num_lost > 0:
            pages = "1 page is" if num_lost == 1 else f"{num_lost} pages are"
            return Loss(f"{pages} missing in the file before page {page.number} of a stream", page.at)
        if num_lost < 0:
            return Loss(f"page {page.number} of a stream follows its page {before.number}", page.at)
    if end > num_bytes or 0 < num_bytes - end < _HEADER.size:
        return Loss("the file ends in the middle of a page", cause="truncated")
    is_whole = all(page.is_last or page.is_header for page in [*last.values()][track : track + 1])
    return None if is_whole else Loss("the file ends before its pictures do", cause="truncated")


def _pages(file: BinaryIO) -> Iterator[_Page]:
    """Yield the pages of a file, without their data."""
    at = 0
    while True:
        file.seek(at)
        head = file.read(_HEADER.size + _MAX_SEGMENTS)
        if len(head) < _HEADER.size:
            return
        name, _, flags, granule, stream, number, _, num_segments = _HEADER.unpack_from(head)
        if name != b"OggS":
            at = _next_page(file, at)
            continue
        end = at + _HEADER.size + num_segments + sum(head[_HEADER.size : _HEADER.size + num_segments])
        yield _Page(at, end, stream, number, bool(flags & _IS_FIRST), bool(flags & _IS_LAST), granule == 0)
        at = end


def _next_page(file: BinaryIO, at: int) -> int:
    """Return where the next page begins, or the end of the file."""
    file.seek(at)
    tail = b""
    while chunk := file.read(_SCAN_BYTES):
        place = (tail + chunk).find(b"OggS")
        if place >= 0:
            return at + place - len(tail)
        at, tail = at + len(chunk), chunk[-3:]
    return at
