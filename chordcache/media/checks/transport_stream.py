"""Packets of MPEG transport streams: the end of the last one, and the places where streams were joined."""

from __future__ import annotations

import os
from collections.abc import Iterator
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

_NUM_AROUND = 8
"""Number of pictures on each side of a jump whose steps are compared with those at the jump"""

_SKIP = 1.5
"""Least length of a step of the clock at which pictures are missing, in the longest step around it"""

_MAX_TAIL_PACKETS = 10_000
"""Number of packets at the end that are searched for the last one of a track"""

_CHUNK_PACKETS = 1 << 12
"""Number of packets that are read at once"""


def ends_in_packet(file: BinaryIO, num_bytes: int) -> bool:
    """Return whether a transport stream ends within a packet; False if it starts with something else."""
    length, _ = _geometry(file)
    return bool(length) and num_bytes % length != 0


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


class _Jump(NamedTuple):
    """A packet whose counter does not continue from the packet before it of its track or table."""

    at: int
    """[bytes] Position in the file"""
    before: int
    """[bytes] Position of the packet before it"""
    pid: int
    begins: bool
    """True if a picture, or a table, begins in the packet"""


class _Counters:
    """The continuity counters of all tracks and tables, up to the first data that is not a transport stream.

    Notes
    -----
    Source: ISO/IEC 13818-1, 2.4.3.3 (continuity_counter), 2.4.3.5 (random_access_indicator), 2.4.3.7 (time stamps),
    2.4.4.3 (program association).
    """

    def __init__(self, file: BinaryIO, track: int) -> None:
        self._file = file
        self._track = track
        """PID of the pictures"""
        self.jumps: list[_Jump] = []
        pictures, tables = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        self._first_at: int | None = None
        """[bytes] Position of the first packet of the pictures"""
        for pid, positions, begins, jumps in _packets(file):
            self.jumps += jumps
            if pid == track:
                pictures.append(positions[begins])
                self._first_at = int(positions[0]) if self._first_at is None else self._first_at
            elif pid == _PROGRAM_PID:
                tables.append(positions)
        self.jumps.sort()
        self._pictures: np.ndarray = np.concatenate(pictures)
        """[shape=(n,), dtype=int64, bytes] Positions where pictures begin"""
        self._tables: np.ndarray = np.concatenate(tables)
        """[shape=(n,), dtype=int64, bytes] Positions of program tables"""

    def losses(self) -> Iterator[_Jump]:
        """Yield the jumps at which packets of the pictures are missing.

        After one loss in 16, the pictures' own counter continues by chance. Then two others jump at one place, or one
        where the pictures' clock skips. Tables before the first picture may be of another part: recorders and cutters
        put them there.
        """
        other: _Jump | None = None
        for jump in self.jumps:
            is_loss = jump.pid == self._track
            if not is_loss:
                is_loss = (other is not None and self._is_one_place(other, jump)) or self._skips(jump)
                other = jump
            if is_loss and not self.is_joint(jump):
                yield jump

    def is_joint(self, jump: _Jump) -> bool:
        """Return whether another stream begins at a jump, as where a player of segments has joined them.

        It begins with its program table. Its clock is another one, or its counters are those that streams begin with.
        """
        # tables of services, whose counters jump too, come before the program table
        next_picture = np.append(self._pictures, jump.at)[np.searchsorted(self._pictures, jump.at)]
        tables = self._tables[(self._tables > jump.before) & (self._tables <= next_picture)]
        if jump.pid == self._track and not (jump.begins and len(tables)):
            return False
        steps, _ = self._steps(jump)
        if ((steps < 0) | (steps > _MAX_STEP_TICKS)).any():
            return True
        if self._skips(jump):  # one loss in some thousand ends before counters that are 0 by chance
            tables = tables[[not self._goes_on(int(at)) for at in tables]]
        return any(self._begins_at(int(at)) for at in tables)

    def _is_one_place(self, earlier: _Jump, jump: _Jump) -> bool:
        is_inside = (self._first_at or 0) <= max(earlier.before, jump.before)
        return earlier.pid != jump.pid and is_inside and jump.before < earlier.at

    def _skips(self, jump: _Jump) -> bool:
        """Return whether a step of the pictures' clock at a jump is longer than those around it."""
        steps, around = self._steps(jump)
        return bool(len(steps) and len(around) and steps.max() > _SKIP * around.max())

    def _steps(self, jump: _Jump) -> tuple[np.ndarray, np.ndarray]:
        """Return the steps between the pictures at a jump, and between those around it [1 / 90000 s]."""
        first = max(0, int(np.searchsorted(self._pictures, jump.before, "right")) - 1)
        stop = int(np.searchsorted(self._pictures, jump.at)) + 1
        start = max(0, first - _NUM_AROUND)
        times = [_decoding_time(self._file, int(at)) for at in self._pictures[start : stop + _NUM_AROUND]]
        steps: np.ndarray = np.diff(np.array(_filled(times), np.int64))
        inner = slice(first - start, stop - 1 - start)
        return steps[inner], np.delete(steps, inner)

    def _goes_on(self, position: int) -> bool:
        """Return whether the counter of a program table has the number behind that of the table before it."""
        before = self._tables[max(0, int(np.searchsorted(self._tables, position)) - 1)]
        steps = _packet_at(self._file, position)[3] - _packet_at(self._file, int(before))[3]
        return steps & 15 == 1

    def _begins_at(self, position: int) -> bool:
        """Return whether all counters behind a table are 0, or as at the start of the file, and so are the marks."""
        first, counters = _first_counters(self._file, 0), _first_counters(self._file, position)
        n = int(np.searchsorted(self._pictures, position))
        if n == len(self._pictures) or self._is_entry(n) != self._is_entry(0):
            return False
        return not any(counters.values()) or all(first.get(pid) == counter for pid, counter in counters.items())

    def _is_entry(self, number: int) -> bool:
        """Return whether a picture is marked as one at which decoding may begin."""
        header = _packet_at(self._file, int(self._pictures[number]))
        return len(header) > 5 and header[3] & 0x20 > 0 and header[4] > 0 and header[5] & 0x40 > 0


def joints(path: str, pid: int) -> set[int]:
    """Return the positions in a file [bytes] where packets of a track begin its part of a joined stream."""
    with open(path, "rb") as file:
        counters = _Counters(file, pid)
        return {jump.at for jump in counters.jumps if jump.pid == pid and counters.is_joint(jump)}


def loss_of_transport_stream(file: BinaryIO, track: int) -> Loss | None:
    """Return the first place where the counters show that packets are missing. ``track`` is the pictures' PID.

    libavformat marks what such a packet belongs to. It leaves the mark out for the first picture, and where whole
    pictures are missing whose lengths are stated.
    """
    counters = _Counters(file, track)
    for jump in counters.losses():
        whose = "the counter of the pictures jumps" if jump.pid == track else "the counters of other tracks jump"
        return Loss(f"packets are missing in the file: {whose}", jump.at)
    return None


def _decoding_time(file: BinaryIO, position: int) -> int | None:
    """Return the decoding time of the picture that begins in a packet [1 / 90000 s], or None if it has none."""
    packet = _packet_at(file, position)
    header = packet[4 + (1 + packet[4] if packet[3] & 0x20 else 0) :]
    if len(header) < 19 or not header[7] & 0x80:
        return None
    at = 14 if header[7] & 0x40 else 9  # without its own time, it is decoded when it is shown
    high, middle, low = header[at] >> 1 & 7, header[at + 1 : at + 3], header[at + 3 : at + 5]
    return high << 30 | int.from_bytes(middle, "big") >> 1 << 15 | int.from_bytes(low, "big") >> 1


def _filled(times: list[int | None]) -> list[int]:
    """Return the times, and for those that are unknown the time before them."""
    known = [time for time in times if time is not None]
    filled = known[:1]
    for time in times:
        filled.append(filled[-1] if time is None and filled else time or 0)
    return filled[1:]


def _packet_at(file: BinaryIO, position: int) -> bytes:
    _, sync_at = _geometry(file)
    file.seek(position + sync_at)
    return file.read(min(_PACKET_BYTES))


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


def _packets(file: BinaryIO) -> Iterator[tuple[int, np.ndarray, np.ndarray, list[_Jump]]]:
    """Read the packets of all tracks and tables that carry a part of them, in pieces.

    Yield PID, positions [shape=(n,), bytes], whether a picture or a table begins [shape=(n,), bool], and the jumps.
    """
    last: dict[int, tuple[int, np.ndarray]] = {}
    for position, length, packets in _pieces(file):
        pids = (packets[:, 1].astype(np.uint16) << 8 | packets[:, 2]) & 0x1FFF
        may_jump = (packets[:, 3] & 0x20 > 0) & (packets[:, 4] > 0) & (packets[:, 5] & 0x80 > 0)
        has_counter = ((packets[:, 3] & 0x10 > 0) | may_jump) & (pids != _NULL_PID)
        for pid in np.unique(pids[has_counter]).tolist():
            rows = np.flatnonzero(has_counter & (pids == pid))
            positions, counters = position + rows * length, packets[rows, 3] & 15
            last_at, last_packet = last.get(pid, (0, packets[rows[0]]))
            before, befores = np.append(last_at, positions[:-1]), np.append(last_packet[3] & 15, counters[:-1])
            begins = packets[rows, 1] & 0x40 > 0
            jumps = []
            for n in np.flatnonzero((counters != befores + 1 & 15) & ~may_jump[rows]).tolist():
                # a packet may be sent twice, with another clock
                packet, twin = packets[rows[n]], packets[rows[n - 1]] if n else last_packet
                if counters[n] != befores[n] or not np.array_equal(packet[12:], twin[12:]):
                    jumps.append(_Jump(int(positions[n]), int(before[n]), pid, bool(begins[n])))
            last[pid] = int(positions[-1]), packets[rows[-1]].copy()
            yield pid, positions, begins, jumps


def _pieces(file: BinaryIO) -> Iterator[tuple[int, int, np.ndarray]]:
    """Yield position and length [bytes] of packets, and their content [shape=(n, 188), dtype=uint8]."""
    position = 0
    length, sync_at = _geometry(file)
    file.seek(0)
    while length and len(data := file.read(_CHUNK_PACKETS * length)) >= length:
        packets = np.frombuffer(data[: len(data) // length * length], np.uint8).reshape(-1, length)
        packets = packets[:, sync_at : sync_at + min(_PACKET_BYTES)]
        num_whole = int(np.append(packets[:, 0] == _SYNC, False).argmin())
        if num_whole:
            yield position, length, packets[:num_whole]
        if num_whole < len(packets):
            return
        position += len(data)


def _geometry(file: BinaryIO) -> tuple[int, int]:
    """Return a packet's length and the position of the sync byte in it; (0, 0) if they are unknown."""
    file.seek(0)
    head = file.read(2 * max(_PACKET_BYTES))
    for length, sync_at in _PACKET_BYTES.items():
        if len(head) > sync_at + length and head[sync_at] == head[sync_at + length] == _SYNC:
            return length, sync_at
    return 0, 0
