"""Facts about the tracks of an MP4 or QuickTime file that libavformat does not expose."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

from chordcache.media.mp4_boxes import BoxHeader, file_headers, matrix_of, number_behind_times
from chordcache.media.source_bytes import opened

_VIDEO_ENTRY_BYTES = 78
"""Length of the fields of a video's sample description before its boxes"""


def display_matrices(path: str) -> dict[int, tuple[int, ...]]:
    """Return the display matrix of each track by its id: nine numbers (a, b, u, c, d, v, x, y, w) of its header.

    Tracks that cannot be read are missing (ISO/IEC 14496-12, 8.3.2, tkhd).
    """
    with opened(path) as file:
        headers = {number: tkhd for number, tkhd, _ in _tracks(file)}
    return {number: matrix_of(tkhd) for number, tkhd in headers.items() if len(tkhd) >= 76 + 12 * (tkhd[0] == 1)}


def sample_kinds(path: str) -> dict[int, bytes]:
    """Return the kind of the samples of each track by its id: a codec, or b"encv" if it is encrypted video.

    Source: ISO/IEC 14496-12, 8.5.2 (stsd); ISO/IEC 23001-7, 4.1 (encv).
    """
    kinds = {}
    with opened(path) as file:
        for number, _, trak in _tracks(file):
            for start, _ in _inside(file, trak, b"mdia", b"minf", b"stbl", b"stsd"):
                file.seek(start + 12)  # version, flags, number of entries; size of the first one
                kinds[number] = file.read(4)
    return kinds


def video_entry_parts(path: str, track_id: int) -> dict[bytes, bytes]:
    """Return the beginnings of the boxes in the sample description of a video track, by kind: 64 bytes of each.

    Only the first sample description counts. A track that is not found has no boxes (ISO/IEC 14496-12, 12.1.3).
    """
    with opened(path) as file:
        for number, _, trak in _tracks(file):
            if number != track_id:
                continue
            for start, stop in _inside(file, trak, b"mdia", b"minf", b"stbl", b"stsd"):
                for entry in file_headers(file, start + 8, stop):
                    return {
                        box.kind: _head(file, box, 64)
                        for box in file_headers(file, entry.body + _VIDEO_ENTRY_BYTES, min(entry.end, stop))
                    }
    return {}


def _tracks(file: BinaryIO) -> Iterator[tuple[int, bytes, tuple[int, int]]]:
    """Yield the id of each track, its header, and the range of its body."""
    for trak in _inside(file, (0, file.seek(0, 2)), b"moov", b"trak"):
        for start, stop in _inside(file, trak, b"tkhd"):
            file.seek(start)
            header = file.read(min(stop - start, 96))
            if len(header) >= 24:
                yield number_behind_times(header), header, trak


def _head(file: BinaryIO, box: BoxHeader, num_bytes: int) -> bytes:
    file.seek(box.body)
    return file.read(min(num_bytes, box.end - box.body))


def _inside(file: BinaryIO, outer: tuple[int, int], kind: bytes, *kinds: bytes) -> Iterator[tuple[int, int]]:
    """Yield the body ranges [start, stop) of the boxes in a range that are nested in this order of kinds."""
    for box in file_headers(file, *outer):
        if box.kind == kind and box.end <= outer[1]:
            body = box.body, box.end
            yield from _inside(file, body, *kinds) if kinds else (body,)
