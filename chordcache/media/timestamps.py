"""Presentation times of decoded pictures."""

from __future__ import annotations

from collections import deque
from fractions import Fraction
from typing import TYPE_CHECKING

import av

if TYPE_CHECKING:
    from chordcache.media.demux import Media

LONG_STEPS = Fraction(3, 2)
"""Least duration of a frame that stands for longer than others, in usual steps"""


class LastFrame:
    """The packet that is shown last, and the time for which its picture stands."""

    def __init__(self) -> None:
        self._pts = self._ticks = -1

    def see(self, packet: av.Packet[av.VideoStream]) -> None:
        """Take the next packet of the video track.

        A container states durations between decoding times. They are those of pictures only where no packet follows.
        """
        if packet.pts is None or packet.is_discard:
            return
        self._ticks = (packet.duration or 0) if packet.pts > self._pts else 0
        self._pts = max(self._pts, packet.pts)

    def long_seconds(self, media: Media, step_seconds: Fraction) -> Fraction:
        """Return the duration that the container states for it, up to the end of the file.

        Return 0 if it is not longer than a frame of ``step_seconds``. Containers round, and guess.
        """
        unit, length = media.require_video().time_base, media.container.duration
        if media.timestamp_source != "pts" or unit is None or length is None:
            return Fraction(0)
        end = Fraction((media.container.start_time or 0) + length, av.time_base)
        stated = min(self._ticks * unit, end - self._pts * unit)
        return stated if stated > LONG_STEPS * step_seconds else Fraction(0)


class Clock:
    """Clock that gives decoded pictures their presentation time."""

    def __init__(self, media: Media) -> None:
        self._media = media
        time_base = media.require_video().time_base or Fraction(1)
        self._ticks, self._per_second = time_base.numerator, time_base.denominator
        self._frame_seconds = float(media.frame_seconds)
        self._due: deque[int | None] = deque()
        """Decoding times of packets whose frames have not come out yet"""
        self._next_seconds = 0.0

    def expect(self, packet: av.Packet[av.VideoStream]) -> None:
        """Note a packet that a frame will come out of."""
        if self._media.timestamp_source == "dts":
            self._due.append(packet.dts)

    def pass_over(self, packet: av.Packet[av.VideoStream]) -> None:
        """Note a packet that yields no frame, although its frame was to be shown before all expected ones."""
        if self._media.timestamp_source == "dts":
            self._due.append(packet.dts)
            self._due.popleft()

    def time_of(self, picture: av.VideoFrame) -> float:
        """Return the time of the next picture [seconds].

        B-frames delay the decoder, not the pictures. If packets have decoding times only, frame n is shown when packet
        n is due.
        """
        stamp = picture.pts if self._media.timestamp_source == "pts" else self._due.popleft() if self._due else None
        seconds = self._next_seconds if stamp is None else self.seconds(stamp)
        self._next_seconds = seconds + self._frame_seconds
        return seconds

    def seconds(self, stamp: int) -> float:
        """Convert a time of the track [ticks] to [seconds]."""
        return stamp * self._ticks / self._per_second
