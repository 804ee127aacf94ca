"""Facts about the tracks of an MP4 or QuickTime file that libavformat does not expose."""

from __future__ import annotations

from chordcache.media.mp4_boxes import Box, body_of, boxes_in, children, file_headers, matrix_of, tracks_in
from chordcache.media.source_bytes import opened

_VIDEO_ENTRY_BYTES = 78
"""Length of the fields of a video's sample description before its boxes"""


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
    # version, flags, number of entries; size of the first one; its kind
    return {number: bytes(_descriptions(trak)[12:16]) for number, trak in _tracks(path).items() if _descriptions(trak)}


def video_entry_parts(path: str, track_id: int) -> dict[bytes, Box]:
    """Return the boxes in the sample description of a video track, by kind.

    Only the first sample description counts. A track that is not found has no boxes (ISO/IEC 14496-12, 12.1.3).
    """
    for _, entry in boxes_in(_descriptions(_tracks(path).get(track_id, memoryview(b"")))[8:]):
        return children(entry[_VIDEO_ENTRY_BYTES:])
    return {}


def _descriptions(trak: Box) -> Box:
    """Return the sample descriptions of a track, empty if it has none."""
    return children(trak, b"mdia", b"minf", b"stbl").get(b"stsd", memoryview(b""))


def _tracks(path: str) -> dict[int, Box]:
    """Return the tracks of a file by their id."""
    with opened(path) as file:
        stop = file.seek(0, 2)
        movies = (box for box in file_headers(file, 0, stop) if box.kind == b"moov" and box.end <= stop)
        movie = next(movies, None)
        return dict(tracks_in(body_of(file, movie))) if movie else {}
