"""Packets of MPEG transport streams: where the last one ends, and where streams were joined."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import BinaryIO, NamedTuple

import numpy as np

_PACKET_BYTES = {188: 0, 192: 4, 204: 0}
"""Length of a transport stream's packets, and where in it the sync byte stands (after a time stamp in M2TS)."""

_SYNC = 0x47

_PROGRAM_PID = 0
"""Of the table that a stream begins with, and repeats."""

_MAX_TAIL_PACKETS = 10_000
"""Packets that are looked at from the end, to find the last one of a track."""

_CHUNK_PACKETS = 1 << 12
"""Packets that are read at once."""


def ends_in_packet(file: BinaryIO, num_bytes: int) -> bool:
    """Whether a transport stream is no whole number of packets long; one that starts with junk is not judged."""
    length, _ = _geometry(file)
    return bool(length) and num_bytes % length != 0


def has_full_end(path: str, pid: int) -> bool:
    """Whether the last packet of a track in a transport stream is full: the end of a picture seldom fills one."""
    with open(path, "rb") as file:
        num_bytes = file.seek(0, os.SEEK_END)
        length, sync_at = _geometry(file)
        if not length:
            return True
        for number in range(num_bytes // length - 1, max(-1, num_bytes // length - _MAX_TAIL_PACKETS), -1):
            file.seek(number * length + sync_at)
            header = file.read(4)
            if int.from_bytes(header[1:3], "big") & 0x1FFF == pid:
                return not header[3] >> 5 & 1  # without an adaptation field, which stuffing would be in
    return True


def joints(path: str, pid: int) -> set[int]:
    """Find where streams were joined, as a player of segments joins them.

    The counters of all tracks begin again there, and the new stream begins with its program table. Where packets were
    lost, the counter of the table goes on.

    Parameters
    ----------
    path : str
        The file.
    pid : int
        The track.

    Returns
    -------
    set of int
        [bytes] Positions of packets in the file, each of which begins the track's part of a joined stream.

    Notes
    -----
    Source: ISO/IEC 13818-1, 2.4.3.3 (continuity_counter).
    """
    found = set()
    is_joined = False
    for each in _carrying(path, (pid, _PROGRAM_PID)):
        if each.pid == _PROGRAM_PID:
            is_joined = not each.is_next
            continue
        if is_joined and not each.is_next and each.begins_unit:
            found.add(each.position)
        is_joined = False
    return found


def loses_first_picture(path: str, pid: int) -> bool:
    """Whether packets are missing before a track's second picture: libavformat loses its own mark of that."""
    num_begun = 0
    for each in _carrying(path, (pid,)):
        num_begun += each.begins_unit
        if num_begun > 1:
            return False
        if not each.is_next:
            return True
    return False


class _Packet(NamedTuple):
    """One that carries a part of a track."""

    position: int
    """[bytes] in the file"""
    pid: int
    is_next: bool
    """Whether its counter goes on from the packet before it"""
    begins_unit: bool
    """Whether a picture, or a table, begins in it"""


def _carrying(path: str, pids: Sequence[int]) -> Iterator[_Packet]:
    """Packets of some tracks, up to where the file is made of anything else."""
    counters: dict[int, int] = {}
    position = 0
    with open(path, "rb") as file:
        length, sync_at = _geometry(file)
        file.seek(0)
        while length and len(data := file.read(_CHUNK_PACKETS * length)) >= length:
            packets = np.frombuffer(data[: len(data) // length * length], np.uint8).reshape(-1, length)[:, sync_at:]
            if (packets[:, 0] != _SYNC).any():
                return
            of_packets = (packets[:, 1].astype(np.uint16) << 8 | packets[:, 2]) & 0x1FFF
            carries = (packets[:, 3] & 0x10) > 0
            for row in np.flatnonzero(carries & np.isin(of_packets, pids)).tolist():
                head, pid = packets[row, :6].tolist(), int(of_packets[row])
                counter, last = head[3] & 15, counters.get(pid)
                may_jump = head[3] & 0x20 and head[4] and head[5] & 0x80
                # a packet may be sent twice
                is_next = last is None or bool(may_jump) or counter in (last, last + 1 & 15)
                counters[pid] = counter
                yield _Packet(position + row * length, pid, is_next, bool(head[1] & 0x40))
            position += len(data)


def _geometry(file: BinaryIO) -> tuple[int, int]:
    """Length of a transport stream's packets and where in it the sync byte stands; (0, 0) if that cannot be told."""
    file.seek(0)
    head = file.read(2 * max(_PACKET_BYTES))
    for length, sync_at in _PACKET_BYTES.items():
        if len(head) > sync_at + length and head[sync_at] == head[sync_at + length] == _SYNC:
            return length, sync_at
    return 0, 0
