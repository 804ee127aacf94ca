"""Packets of MPEG transport streams: the end of the last one, and the places where streams were joined."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import pairwise
from typing import BinaryIO, NamedTuple

import numpy as np

from chordcache.media.checks.faults import Loss
from chordcache.media.source_bytes import opened

_PACKET_BYTES = {188: 0, 192: 4, 204: 0}
"""Position of the sync byte in a transport stream's packet (after a time stamp in M2TS), by length of the packet"""

_SYNC = 0x47

_PROGRAM_PID = 0
"""PID of the table that a stream begins with, and repeats"""

_FIRST_TRACK_PID, _NULL_PID = 0x20, 0x1FFF
"""Range of the PIDs of tracks and of their tables"""

_MAX_STEP_TICKS = 600 * 90_000
"""[1 / 90000 s] Longest step of the clock in one recording, as in ``media.joints``"""

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

    A new stream begins with its program table, and its counters do not continue those before it. The same holds where a
    stretch that begins before a table was lost. Only at a joint, another clock begins, or all counters have the values
    that streams begin with. Return the positions in the file [bytes] of packets of the track ``pid``, each of which
    begins the track's part of a joined stream.

    Notes
    -----
    Source: ISO/IEC 13818-1, 2.4.3.3 (continuity_counter), 2.4.3.7 (time stamps), 2.4.4.3 (program association).
    """
    joints: set[int] = set()
    last_start = 0
    with open(path, "rb") as file:
        tables = [packets.positions[~packets.goes_on] for packets in _packets(file, _PROGRAM_PID)]
        new_tables = np.concatenate([np.zeros(0, np.int64), *tables])
        for packets in list(_packets(file, pid)):
            starts = np.append(last_start, np.where(packets.begins, packets.positions, 0))
            starts = np.maximum.accumulate(starts)
            last_start = int(starts[-1])
            tables_before = np.searchsorted(new_tables, packets.before)
            has_table = np.searchsorted(new_tables, packets.positions) > tables_before
            for n in np.flatnonzero(packets.begins & ~packets.goes_on & has_table):
                at = int(packets.positions[n])
                if _is_new_clock(file, int(starts[n]), at) or _begins_counting(file, int(new_tables[tables_before[n]])):
                    joints.add(at)
    return joints


def _decoding_time(file: BinaryIO, position: int) -> int:
    """Return the decoding time of the picture that begins in a packet [1 / 90000 s], or 0 if it has none."""
    _, sync_at = _geometry(file)
    file.seek(position + sync_at)
    packet = file.read(min(_PACKET_BYTES))
    header = packet[4 + (1 + packet[4] if packet[3] & 0x20 else 0) :]
    if len(header) < 19 or not header[7] & 0x80:
        return 0
    at = 14 if header[7] & 0x40 else 9  # without its own time, it is decoded when it is shown
    high, middle, low = header[at] >> 1 & 7, header[at + 1 : at + 3], header[at + 3 : at + 5]
    return high << 30 | int.from_bytes(middle, "big") >> 1 << 15 | int.from_bytes(low, "big") >> 1


def _begins_counting(file: BinaryIO, position: int) -> bool:
    """Return whether the counters of all tracks behind a position are 0, or as at the start of the file."""
    first = _first_counters(file, 0)
    return all(counter in (0, first.get(pid)) for pid, counter in _first_counters(file, position).items())


def _first_counters(file: BinaryIO, position: int) -> dict[int, int]:
    """Return the first counter of each PID behind a position, without those of tables that describe services."""
    length, sync_at = _geometry(file)
    file.seek(position)
    data = file.read(_CHUNK_PACKETS * length)  # nothing, if the length is unknown
    counters: dict[int, int] = {}
    for at in range(sync_at, len(data) - 3, length or 1):
        pid = int.from_bytes(data[at + 1 : at + 3], "big") & 0x1FFF
        if data[at + 3] & 0x10 and (pid == _PROGRAM_PID or _FIRST_TRACK_PID <= pid < _NULL_PID):
            counters.setdefault(pid, data[at + 3] & 15)
    return counters


def loses_first_picture(path: str, pid: int) -> bool:
    """Return whether packets are missing before a track's second picture. libavformat loses its own mark of this."""
    num_begun = 0
    with open(path, "rb") as file:
        for packets in _packets(file, pid):
            of_first = num_begun + np.cumsum(packets.begins) < 2
            if not packets.goes_on[of_first].all():
                return True
            if not of_first.all():
                return False
            num_begun += int(packets.begins.sum())
    return False


def loss_of_transport_stream(file: BinaryIO, track: int) -> Loss | None:
    """Return the first place where the counters of two other tracks or tables jump, and it is not a joint.

    After one loss in 16, the counter of the track itself, whose PID is ``track``, continues by chance. libavformat
    marks the packets after all others. Tables before the track's first packet may be of another part: recorders and
    cutters put them there.

    Notes
    -----
    Source: ISO/IEC 13818-1, 2.4.3.3 (continuity_counter).
    """
    first = _first_counters(file, 0)
    jumps = sorted(
        (int(packets.positions[n]), int(packets.before[n]), packets.pid)
        for packets in _packets(file)
        for n in np.flatnonzero(~packets.goes_on)
        if packets.pid != track and packets.counters[n] not in (0, first.get(packets.pid, 0))
    )
    begins_at = next((int(packets.positions[0]) for packets in _packets(file, track)), 0)
    for (at, before, pid), (_, other_before, other_pid) in pairwise(jumps):
        is_one_place = pid != other_pid and begins_at <= max(before, other_before) and other_before < at
        if is_one_place and not _changes_clock(file, track, at):
            return Loss("packets are missing in the file: the counters of two tracks jump", at)
    return None


def _changes_clock(file: BinaryIO, pid: int, position: int) -> bool:
    """Return whether another clock of a track begins between the two pictures around a position."""
    starts = np.concatenate(
        [np.zeros(0, np.int64), *(packets.positions[packets.begins] for packets in _packets(file, pid))]
    )
    n = int(np.searchsorted(starts, position))
    return 0 < n < len(starts) and _is_new_clock(file, int(starts[n - 1]), int(starts[n]))


def _is_new_clock(file: BinaryIO, before: int, at: int) -> bool:
    """Return whether the picture that begins in a packet has another clock than one before it."""
    step = _decoding_time(file, at) - _decoding_time(file, before)
    return step < 0 or step > _MAX_STEP_TICKS


class _Packets(NamedTuple):
    """Consecutive packets of a track that carry a part of it."""

    pid: int
    positions: np.ndarray
    """[shape=(n,), dtype=int64, bytes] Positions in the file"""
    before: np.ndarray
    """[shape=(n,), dtype=int64, bytes] Positions of the track's packets before them, 0 before the first one"""
    counters: np.ndarray
    """[shape=(n,), dtype=uint8]"""
    begins: np.ndarray
    """[shape=(n,), dtype=bool] True if a picture, or a table, begins in the packet"""
    goes_on: np.ndarray
    """[shape=(n,), dtype=bool] True if the counter continues from the packet before"""


def descriptors(file: BinaryIO, pid: int) -> dict[int, bytes]:
    """Return the content of the descriptors of a track by their tag, from the first table that lists it.

    Notes
    -----
    Source: ISO/IEC 13818-1, 2.4.4.3 (program association), 2.4.4.8 (program map), 2.6.1 (descriptors).
    """
    for programs in _sections(file, _PROGRAM_PID):
        for at in range(8, len(programs) - 7, 4):
            for table in _sections(file, int.from_bytes(programs[at + 2 : at + 4], "big") & 0x1FFF):
                tracks = table[12 + (int.from_bytes(table[10:12], "big") & 0xFFF) : -4]
                while len(tracks) >= 5:
                    end = 5 + (int.from_bytes(tracks[3:5], "big") & 0xFFF)
                    if int.from_bytes(tracks[1:3], "big") & 0x1FFF == pid:
                        return _tagged(tracks[5:end])
                    tracks = tracks[end:]
                break
        break
    return {}


def _tagged(data: bytes) -> dict[int, bytes]:
    content: dict[int, bytes] = {}
    while len(data) >= 2:
        content.setdefault(data[0], data[2 : 2 + data[1]])
        data = data[2 + data[1] :]
    return content


def _sections(file: BinaryIO, pid: int) -> Iterator[bytes]:
    """Yield the sections of a table that begin near the front of the file, one for each packet (2.4.4)."""
    length, sync_at = _geometry(file)
    file.seek(0)
    data = file.read(_CHUNK_PACKETS * length)
    section = b""
    for at in range(sync_at, len(data) - min(_PACKET_BYTES) + 1, length or 1):
        packet = data[at : at + min(_PACKET_BYTES)]
        if int.from_bytes(packet[1:3], "big") & 0x1FFF != pid or not packet[3] & 0x10:
            continue
        payload = packet[4 + (1 + packet[4] if packet[3] & 0x20 else 0) :]
        if packet[1] & 0x40:
            section = payload[1 + payload[0] :] if payload else b""
        elif section:
            section += payload
        num_bytes = 3 + (int.from_bytes(section[1:3], "big") & 0xFFF)
        if 3 < num_bytes <= len(section):
            yield section[:num_bytes]
            section = b""


def _packets(file: BinaryIO, only: int | None = None) -> Iterator[_Packets]:
    """Read the packets of all tracks and tables, or of one, up to the first data that is not a transport stream."""
    last: dict[int, tuple[int, np.uint8]] = {}
    for position, length, headers in _headers(file):
        pids = (headers[:, 1].astype(np.uint16) << 8 | headers[:, 2]) & 0x1FFF
        has_counter = (headers[:, 3] & 0x10 > 0) & (pids != _NULL_PID)
        for pid in np.unique(pids[has_counter]).tolist() if only is None else [only]:
            rows = np.flatnonzero(has_counter & (pids == pid))
            if len(rows):
                own, positions = headers[rows], position + rows * length
                counters = own[:, 3] & 15
                last_at, last_counter = last.get(pid, (0, counters[0]))
                goes_on = _goes_on(own, np.append(last_counter, counters[:-1]))
                last[pid] = int(positions[-1]), counters[-1]
                before = np.append(last_at, positions[:-1])
                yield _Packets(pid, positions, before, counters, own[:, 1] & 0x40 > 0, goes_on)


def _headers(file: BinaryIO) -> Iterator[tuple[int, int, np.ndarray]]:
    """Yield position and length [bytes] of packets, and 6 bytes of each, up to the first data without a sync byte."""
    position = 0
    length, sync_at = _geometry(file)
    file.seek(0)
    while length and len(data := file.read(_CHUNK_PACKETS * length)) >= length:
        headers = np.frombuffer(data[: len(data) // length * length], np.uint8).reshape(-1, length)
        headers = headers[:, sync_at : sync_at + 6]
        if (headers[:, 0] != _SYNC).any():
            return
        yield position, length, headers
        position += len(data)


def _goes_on(headers: np.ndarray, before: np.ndarray) -> np.ndarray:
    """Return whether the counter of each packet of a track continues that before it [shape=(n,), dtype=bool]."""
    counters = headers[:, 3] & 15
    may_jump = (headers[:, 3] & 0x20 > 0) & (headers[:, 4] > 0) & (headers[:, 5] & 0x80 > 0)
    goes_on: np.ndarray = (counters == before) | (counters == (before + 1 & 15)) | may_jump  # it may be sent twice
    return goes_on


def _geometry(file: BinaryIO) -> tuple[int, int]:
    """Return a packet's length and the position of the sync byte in it; (0, 0) if they are unknown."""
    file.seek(0)
    head = file.read(2 * max(_PACKET_BYTES))
    for length, sync_at in _PACKET_BYTES.items():
        if len(head) > sync_at + length and head[sync_at] == head[sync_at + length] == _SYNC:
            return length, sync_at
    return 0, 0
