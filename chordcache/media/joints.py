"""Recordings that were joined one after the other in a file, and one clock for all of them."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain, pairwise
from typing import Any, TypeAlias

import av
import numpy as np

from chordcache import progress
from chordcache.media.ffmpeg_log import capture

JOINABLE = ("mpegts", "mpeg")
"""Formats whose files can be joined one after the other. Each recording keeps its clock, which may be set back."""

_MIN_STEP_SECONDS = 0.1
"""[seconds] Least step of a track's clock that shows where its part of the next recording begins"""

_MAX_PAUSE_SECONDS = 600.0
"""[seconds] Longest step forward of the pictures' clock inside a recording, the most silence of a track"""

_MIN_SET_BACK_SECONDS = 0.5
"""[seconds] Least step back of the sound alone that means a joint. A shorter one may be packets that come twice."""


@dataclass(frozen=True)
class TrackPart:
    """One track in one of the recordings of a file."""

    first: int
    """Number of its first packet among those of the track"""
    shift_seconds: Fraction
    """[seconds] to add to its times"""
    start_seconds: float
    """[seconds, shifted] Time of the recording's first picture; minus infinity in the first recording"""
    stop_seconds: float
    """[seconds, shifted] Time of the next recording's first picture; infinity in the last recording"""


Joints: TypeAlias = Mapping[int, Sequence[TrackPart]]
"""Index of a track to its parts. Empty if nothing was joined"""


def find_joints(tracks: Sequence[int], frame_seconds: Fraction, reopen: Callable[[], Any]) -> Joints:
    """Read the packets of a file, and find the recordings that were joined in it.

    A recording begins where the clock of a track is set back, or that of the pictures jumps forward by more than 10
    minutes. Its pictures continue one frame after those of the recording before. If only the sound is set back, they
    keep their distance. Its sound is moved as far as its pictures.

    ``tracks`` are the indexes of the track of pictures, and of that of sound if there is one. ``reopen`` opens the file
    again.
    """
    with capture():  # what the container reports is judged when the file is decoded
        packets = _read(reopen, tracks)
    video, sound = packets[0], packets[1] if len(packets) > 1 else None
    cuts = video.jumps(0.0, _MAX_PAUSE_SECONDS)
    pairs = [(cut, None if sound is None else _partner(video, cut, sound)) for cut in cuts]
    if sound is not None:
        known = {first for _, first in pairs}
        for cut in sound.jumps(_MIN_SET_BACK_SECONDS, float("inf")):
            if cut not in known and (first := _partner(sound, cut, video)) is not None:
                pairs.append((first, cut))
    pairs = [(0, 0), *sorted(set(pairs), key=lambda pair: pair[0])]
    starts = [first for first, _ in pairs if first < len(video.pts)]
    pairs = pairs[: len(starts)]
    if len(pairs) < 2 or any(later == earlier for earlier, later in pairwise(starts)):
        return {}
    shifts, bounds = [Fraction(0)], [float("-inf")]
    for (first, stop), end in zip(pairwise(starts), [*starts[2:], len(video.pts)], strict=True):
        due = int(video.pts[first:stop].max()) * video.unit + frame_seconds + shifts[-1]
        begin = int(video.pts[stop:end].min()) * video.unit
        shifts.append(due - begin if stop in cuts else max(shifts[-1], due - begin))
        bounds.append(float(begin + shifts[-1]))
    bounds.append(float("inf"))
    joints: dict[int, list[TrackPart]] = {index: [] for index in tracks}
    for firsts, shift, (begins, ends) in zip(pairs, shifts, pairwise(bounds), strict=True):
        for index, number in zip(tracks, firsts, strict=False):
            if number is not None:
                joints[index].append(TrackPart(number, shift, begins, ends))
    return joints


def on_one_clock(packets: Iterator[Any], joints: Joints, parts: dict[int, TrackPart]) -> Iterator[Any]:
    """Yield the packets of joined recordings from the start on, moved to the clock of the first recording.

    ``parts`` gets the part that the last packet of each track is of.
    """
    num_read = dict.fromkeys(joints, 0)
    for packet in packets:
        index = packet.stream_index
        if packet.size:
            later = bisect_right(joints[index], num_read[index], key=lambda part: part.first)
            num_read[index] += 1
            parts[index] = joints[index][later - 1]
            ticks = round(parts[index].shift_seconds / packet.time_base)
            packet.pts = None if packet.pts is None else packet.pts + ticks
            packet.dts = None if packet.dts is None else packet.dts + ticks
        yield packet


@dataclass(frozen=True)
class _TrackPackets:
    """The packets of one track."""

    unit: Fraction
    """[seconds] Length of one tick"""
    pts: np.ndarray
    """[shape=(n,), dtype=int64, ticks] Presentation times"""
    dts: np.ndarray
    """[shape=(n,), dtype=int64, ticks] Decoding times"""
    steps: np.ndarray
    """[shape=(n,), dtype=int64, ticks] Decoding time of each packet after the end of the packet before it"""
    positions: np.ndarray
    """[shape=(n,), dtype=int64, bytes] Positions in the file, ascending"""

    def jumps(self, back_seconds: float, forward_seconds: float) -> list[int]:
        """Return the numbers of the packets at which the clock goes further back or forward than these seconds."""
        steps = np.diff(self.dts) * float(self.unit)
        cuts: list[int] = (np.flatnonzero((steps < -back_seconds) | (steps > forward_seconds)) + 1).tolist()
        return cuts


def whole_units(container: Any, tracks: Sequence[Any]) -> Iterator[Any]:
    """Demux tracks. A recording may begin within a picture, whose rest cannot be read and is left out."""
    packets = container.demux(tracks)
    if container.format.name in JOINABLE:
        try:
            packets = chain([next(packets)], packets)
        except av.error.InvalidDataError:
            packets = container.demux(tracks)
    yield from packets


def _read(reopen: Callable[[], Any], tracks: Sequence[int]) -> list[_TrackPackets]:
    rows = {index: array("q") for index in tracks}  # four numbers of each packet
    with reopen() as container:
        streams = [container.streams[index] for index in tracks]
        try:
            for packet in container.demux(streams):
                progress.beat()
                if packet.size:
                    row = rows[packet.stream_index]
                    dts = packet.dts if packet.dts is not None else row[-3] if row else 0
                    pts = packet.pts if packet.pts is not None else dts
                    row.extend((pts, dts, packet.duration or 0, -1 if packet.pos is None else packet.pos))
        except MemoryError:
            raise
        except (av.error.FFmpegError, IndexError):  # reported when the file is decoded
            pass
        units = [stream.time_base or Fraction(1) for stream in streams]
    packets = []
    for unit, row in zip(units, rows.values(), strict=True):
        times, due, lengths, at = np.array(row, np.int64).reshape(-1, 4).T
        steps = np.zeros_like(due)
        steps[1:] = np.diff(due) - lengths[:-1]
        packets.append(_TrackPackets(unit, times, due, steps, np.maximum.accumulate(at)))
    return packets


def _partner(track: _TrackPackets, cut: int, other: _TrackPackets) -> int | None:
    """Return the first packet of another track in the recording that begins with a packet of this one.

    A file that is joined at byte B has all packets of the first recording before B. Of the packets of the other track
    that fit such a B, the one whose clock jumps most is the first. Return None if that clock does not jump.
    """
    low = int(np.searchsorted(other.positions, track.positions[cut - 1], "right"))
    high = int(np.searchsorted(other.positions, track.positions[cut], "right"))
    steps = np.abs(other.steps[max(1, low) : high + 1])
    if not len(steps):
        return len(other.pts)
    first = int(np.argmax(steps))
    return max(1, low) + first if steps[first] * float(other.unit) > _MIN_STEP_SECONDS else None
