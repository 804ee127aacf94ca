"""Detection of files that were cut off where libavformat does not notice."""

from __future__ import annotations

import os
from typing import BinaryIO

from chordcache.media.checks.transport_stream import ends_in_packet, has_full_end

_MAX_FLV_TAGS = 1000
"""Number of tags at the end of an FLV that are searched for the last one of video"""

_FLV_TAG_BYTES = 11
"""Length of a tag's header: type, size of the data, time, stream"""

_FLV_VIDEO, _FLV_H264 = 9, 7
_FLV_TAGS = (8, _FLV_VIDEO, 18)
"""Types of tags: sound, video, metadata"""

_MAX_PACK_BYTES = 1 << 18
"""Length of the end of a program stream that is searched for its last pack. Packs have 2 kB in most files, 64 kB at
most."""

_SEGMENT = b"\x18\x53\x80\x67"


def end_problem(path: str, container: str, *, last_packet_at: int | None = None) -> str | None:
    """Return where a file ends if it should not end there, such as "in the middle of a packet". None if it may.

    ``container`` is libavformat's name of the format. ``last_packet_at`` [bytes] is the position of the last packet of
    the video track, according to libavformat.

    Notes
    -----
    Source: ISO/IEC 13818-1, 2.5.3 (packs); RFC 8794, 4 and 6 (EBML); Adobe Flash Video File
    Format 10.1, E.3 (FLV). The ends of other files are compared by ``container_watch``.

    Examples
    --------
    >>> end_problem("/dev/null", "matroska,webm") is None
    True
    """
    with open(path, "rb") as file:
        num_bytes = file.seek(0, os.SEEK_END)
        file.seek(0)
        if container == "mpegts" and ends_in_packet(file, num_bytes):
            return "in the middle of a packet"
        if container == "matroska,webm" and _ends_in_segment(file, num_bytes):
            return "before its segment does"
        if container == "flv":
            return _flv_problem(file, num_bytes, last_packet_at)
        if container == "mpeg" and _ends_in_pack(file, num_bytes):
            return "in the middle of a packet"
    return None


def may_end_anywhere(path: str, container: str, *, track: int) -> bool:
    """Return whether the last picture of HEVC may be cut off without a sign of this in the container.

    ``track`` is the number of the track in the container, the PID in a transport stream.
    """
    if container == "mpegts":
        return has_full_end(path, track)
    return container == "hevc"


def _ends_in_segment(file: BinaryIO, num_bytes: int) -> bool:
    """Return whether a Matroska file is shorter than its segment states; a live one does not state its size."""
    file.seek(4)  # after the identifier of the EBML header
    header_bytes = _ebml_size(file)
    if header_bytes is None or header_bytes > num_bytes:
        return False
    file.seek(header_bytes, os.SEEK_CUR)
    if file.read(4) != _SEGMENT:
        return False
    segment_bytes = _ebml_size(file)
    return segment_bytes is not None and file.tell() + segment_bytes > num_bytes


def _ebml_size(file: BinaryIO) -> int | None:
    """Read an element's size; return None if it is unknown or missing."""
    first = file.read(1)
    if not first or not first[0]:
        return None
    num_more = 8 - first[0].bit_length()
    num_bits = 7 * (num_more + 1)
    size = int.from_bytes(first + file.read(num_more), "big") & ((1 << num_bits) - 1)
    return None if size == (1 << num_bits) - 1 else size


def _flv_problem(file: BinaryIO, num_bytes: int, last_packet_at: int | None) -> str | None:
    """Return where an FLV ends, if within a tag or behind the last one that libavformat reads; None otherwise."""
    end = num_bytes
    for _ in range(_MAX_FLV_TAGS):
        tag = _flv_tag_before(file, end)
        if tag is None:
            return "in the middle of a tag" if end == num_bytes else None
        start, is_picture = tag
        if is_picture:
            is_read = last_packet_at is None or start <= last_packet_at
            return None if is_read else "behind what can be read as one stream"
        end = start
    return None


def _flv_tag_before(file: BinaryIO, end: int) -> tuple[int, bool] | None:
    """Return the start of the tag that ends at a position, and whether it holds a picture; None without a tag.

    The size of a tag is repeated behind it. Some writers leave out the header, or one byte of it, from that size.
    libavformat handles this too.
    """
    file.seek(max(0, end - 4))
    size = int.from_bytes(file.read(4), "big")
    for tag_bytes in (size, size + 1, size + _FLV_TAG_BYTES):
        start = end - 4 - tag_bytes
        if tag_bytes >= _FLV_TAG_BYTES and start >= 9:
            file.seek(start)
            header = file.read(_FLV_TAG_BYTES + 2)
            kind, data_bytes = header[0] & 0x1F, int.from_bytes(header[1:4], "big")
            if kind in _FLV_TAGS and data_bytes == tag_bytes - _FLV_TAG_BYTES:
                # H.264: 1 is a picture, 0 and 2 are headers before all pictures and the mark after them
                return start, kind == _FLV_VIDEO and (header[11] & 0x0F != _FLV_H264 or header[12] == 1)
    return None


def _ends_in_pack(file: BinaryIO, num_bytes: int) -> bool:
    """Return whether a program stream ends within a packet; False if it ends with other data."""
    file.seek(max(0, num_bytes - _MAX_PACK_BYTES))
    tail = file.read()
    at = tail.rfind(b"\0\0\1\xba")
    if at < 0 or at + 14 > len(tail):
        return at >= 0
    # packs of MPEG-2 have 14 bytes and stuffing, those of MPEG-1 have 12
    at += 14 + (tail[at + 13] & 7) if tail[at + 4] >> 6 == 1 else 12
    while at + 6 <= len(tail) and tail[at : at + 3] == b"\0\0\1" and tail[at + 3] >= 0xBB:
        at += 6 + int.from_bytes(tail[at + 4 : at + 6], "big")
    is_start = b"\0\0\1".startswith(tail[at : at + 3])
    return at > len(tail) or (at < len(tail) < at + 6 and is_start and tail[at : at + 4] != b"\0\0\1\xb9")
