"""Presentation times of decoded pictures."""

from __future__ import annotations

from collections import deque
from fractions import Fraction

import av

from chordcache.media.demux import Media


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
