"""Packets of MPEG transport streams: the end of the last one, and the places where streams were joined."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

import numpy as np

from chordcache.media.source_file import opened

_PACKET_BYTES = {188: 0, 192: 4, 204: 0}
"""Position of the sync byte in a transport stream's packet (after a time stamp in M2TS), by length of the packet"""

_SYNC = 0x47

_PROGRAM_PID = 0
"""PID of the table that a stream begins with, and repeats"""

_MAX_TAIL_PACKETS = 10_000
"""Number of packets at the end that are searched for the last one of a track"""

_CHUNK_PACKETS = 1 << 12
"""Number of packets that are read at once"""


def ends_in_packet(file: BinaryIO, num_bytes: int) -> bool:
    """Return whether a transport stream ends within a packet; False if it starts with something else."""
    length, _ = _geometry(file)
    return bool(length) and num_bytes % length != 0


def is_shifted(path: str) -> bool:
    """Return whether the last packets of a transport stream are not where they would be if it was only cut off."""
    with opened(path) as file:
        num_bytes = file.seek(0, os.SEEK_END)
        length, sync_at = _geometry(file)
        if not length:
            return False
        file.seek((num_bytes // length - 1) * length + sync_at)
        return file.read(1) != bytes([_SYNC])


def has_full_end(path: str, pid: int) -> bool:
    """Return whether the last packet of a track in a transport stream is full. The end of a picture seldom fills it."""
    with opened(path) as file:
        num_bytes = file.seek(0, os.SEEK_END)
        length, sync_at = _geometry(file)
        if not length:
            return True
        for number in range(num_bytes // length - 1, max(-1, num_bytes // length - _MAX_TAIL_PACKETS), -1):
            file.seek(number * length + sync_at)
            header = file.read(4)
            if int.from_bytes(header[1:3], "big") & 0x1FFF == pid:
                return not header[3] >> 5 & 1  # without an adaptation field, which would contain the stuffing
    return True


def joints(path: str, pid: int) -> set[int]:
    """Find where streams were joined, as a player of segments joins them.

    At a joint, the counters of all tracks begin again, and the new stream begins with its program table. Where packets
    were lost, the table's counter continues instead.

    Parameters
    ----------
    path : str
        The file.
    pid : int
        PID of the track.

    Returns
    -------
    set of int
        [bytes] Positions of packets in the file, each of which begins the track's part of a joined stream.

    Notes
    -----
    Source: ISO/IEC 13818-1, 2.4.3.3 (continuity_counter).
    """
    tables = [each.positions[~each.goes_on] for each in _track(path, _PROGRAM_PID)]
    new_tables = np.concatenate(tables) if tables else np.zeros(0, np.int64)
    found: set[int] = set()
    last = 0
    for each in _track(path, pid):
        before = np.append(last, each.positions[:-1])
        last = int(each.positions[-1])
        starts = each.begins & ~each.goes_on
        num_tables = np.searchsorted(new_tables, each.positions) - np.searchsorted(new_tables, before)
        found.update(each.positions[starts & (num_tables > 0)].tolist())
    return found


def loses_first_picture(path: str, pid: int) -> bool:
    """Return whether packets are missing before a track's second picture. libavformat loses its own mark of this."""
    num_begun = 0
    for each in _track(path, pid):
        of_first = num_begun + np.cumsum(each.begins) < 2
        if not each.goes_on[of_first].all():
            return True
        if not of_first.all():
            return False
        num_begun += int(each.begins.sum())
    return False


class _Packets(NamedTuple):
    """Consecutive packets of a track that carry a part of it."""

    positions: np.ndarray
    """[shape=(n,), dtype=int64, bytes] Positions in the file"""
    begins: np.ndarray
    """[shape=(n,), dtype=bool] True if a picture, or a table, begins in the packet"""
    goes_on: np.ndarray
    """[shape=(n,), dtype=bool] True if the counter continues from the packet before"""


def _track(path: str, pid: int) -> Iterator[_Packets]:
    """Read the packets of a track, up to the first data that is not a transport stream."""
    last: int | None = None
    position = 0
    with open(path, "rb") as file:
        length, sync_at = _geometry(file)
        file.seek(0)
        while length and len(data := file.read(_CHUNK_PACKETS * length)) >= length:
            headers = np.frombuffer(data[: len(data) // length * length], np.uint8).reshape(-1, length)
            headers = headers[:, sync_at : sync_at + 6]
            if (headers[:, 0] != _SYNC).any():
                return
            pids = (headers[:, 1].astype(np.uint16) << 8 | headers[:, 2]) & 0x1FFF
            rows = np.flatnonzero((pids == pid) & (headers[:, 3] & 0x10 > 0))
            if len(rows):
                own = headers[rows]
                counters = own[:, 3] & 15
                before = np.append(counters[0] if last is None else last, counters[:-1])
                may_jump = (own[:, 3] & 0x20 > 0) & (own[:, 4] > 0) & (own[:, 5] & 0x80 > 0)
                is_repeated = counters == before  # a packet may be sent twice
                goes_on = is_repeated | (counters == (before + 1 & 15)) | may_jump
                last = int(counters[-1])
                yield _Packets(position + rows * length, own[:, 1] & 0x40 > 0, goes_on)
            position += len(data)


def _geometry(file: BinaryIO) -> tuple[int, int]:
    """Return a packet's length and the position of the sync byte in it; (0, 0) if they are unknown."""
    file.seek(0)
    head = file.read(2 * max(_PACKET_BYTES))
    for length, sync_at in _PACKET_BYTES.items():
        if len(head) > sync_at + length and head[sync_at] == head[sync_at + length] == _SYNC:
            return length, sync_at
    return 0, 0
