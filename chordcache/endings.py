"""Files that were cut off where libavformat does not notice: their containers state no length."""

from __future__ import annotations

import os

from chordcache.mp4 import ends_in_fragment

_PACKET_BYTES = {188: 0, 192: 4, 204: 0}
"""Length of a transport stream's packets, and where in it the sync byte stands (after a time stamp in M2TS)."""

_SYNC = 0x47


def end_problem(path: str, container: str) -> str | None:
    """Where a file ends that should not end there; None if that cannot be told.

    Parameters
    ----------
    path : str
        The file.
    container : str
        libavformat's name of its format.

    Examples
    --------
    >>> end_problem("/dev/null", "matroska,webm") is None
    True
    """
    if container == "mpegts" and _ends_in_packet(path):
        return "in the middle of a packet"
    if "mp4" in container and ends_in_fragment(path):
        return "in the middle of a fragment"
    return None


def _ends_in_packet(path: str) -> bool:
    """Whether a transport stream is no whole number of packets long; one that starts with junk is not judged."""
    with open(path, "rb") as file:
        head = file.read(2 * max(_PACKET_BYTES))
        num_bytes = file.seek(0, os.SEEK_END)
    for length, sync_at in _PACKET_BYTES.items():
        if len(head) > sync_at + length and head[sync_at] == head[sync_at + length] == _SYNC:
            return num_bytes % length != 0
    return False
