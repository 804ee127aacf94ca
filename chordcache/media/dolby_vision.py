"""Dolby Vision whose pictures mean nothing without its metadata, as its configuration in a container states."""

from __future__ import annotations

import re

from chordcache.media.checks.transport_stream import descriptors
from chordcache.media.mp4_tracks import video_entry_parts
from chordcache.media.source_bytes import opened

_PROFILES = (5, 10, 20)
"""Profiles whose base layer may be in a color space of their own (ICtCp in full range, reshaped): HEVC, AV1, MV-HEVC"""

_BOXES = (b"dvcC", b"dvvC", b"dvwC")

_DESCRIPTOR = 0xB0
"""Tag of the descriptor of a track in MPEG-TS"""

_MATROSKA_MAPPING = re.compile(rb"\x41\xe7\x84dv[cvw]C\x41\xed[\x85-\xfe](.{5})", re.DOTALL)
"""BlockAddIDType and BlockAddIDExtraData of Matroska, which holds the content of the box"""

_CLUSTER = b"\x1f\x43\xb6\x75"
_MAX_HEAD_BYTES = 1 << 20
"""Length of the front of a Matroska file that is searched. Tracks come before the first cluster."""


def incompatible_profile(path: str, format_name: str, track_id: int) -> int | None:
    """Return the Dolby Vision profile of a video track if its pictures cannot be shown as SDR, PQ or HLG.

    None if there is another profile, or none, or in other containers than MP4, Matroska and MPEG-TS. ``format_name`` is
    libavformat's name of the format. ``track_id`` is the number of the track in an MP4, or its PID. In Matroska, the
    first configuration counts.

    Notes
    -----
    Source: Dolby Vision Streams Within the ISO Base Media File Format 2.1.2, 3.2. The record has version (16 bits),
    profile (7), level (6), and flags for metadata, enhancement layer and base layer. Then comes
    dv_bl_signal_compatibility_id (4), 0 if the base layer is not compatible with anything. The descriptor in
    MPEG-TS of a base layer has the same fields (Dolby Vision Streams Within the MPEG-2 Transport Stream Format 1.2).
    """
    record = b""
    if "mp4" in format_name:
        parts = video_entry_parts(path, track_id)
        record = next((parts[kind] for kind in _BOXES if kind in parts), b"")
    elif format_name == "matroska,webm":
        with opened(path) as file:
            head = file.read(_MAX_HEAD_BYTES)
        match = _MATROSKA_MAPPING.search(head.partition(_CLUSTER)[0])
        record = match[1] if match else b""
    elif format_name == "mpegts":
        with opened(path) as file:
            record = descriptors(file, track_id).get(_DESCRIPTOR, b"")
        record = record.ljust(5, b"\0") if len(record) >= 4 and record[3] & 1 else b""  # its last field may be missing
    if len(record) < 5 or record[4] >> 4:
        return None
    profile = record[2] >> 1
    return profile if profile in _PROFILES else None
