"""When decoded pictures are shown, and when the last one should be."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import av

from chordcache.errors import MediaError

if TYPE_CHECKING:
    from chordcache.decode import Media


class Clock:
    """Gives decoded pictures their presentation time, and knows the last one that the packets promised."""

    def __init__(self, media: Media) -> None:
        self._media = media
        time_base = media.require_video().time_base or Fraction(1)
        self._ticks, self._per_second = time_base.numerator, time_base.denominator
        self._frame_seconds = float(media.frame_seconds)
        self._first_dts: int | None = None
        self._shift = 0
        self._last_promised: int | None = None
        self._last_shown: int | None = None
        self._next_seconds = 0.0

    def expect(self, packet: av.Packet[av.VideoStream]) -> None:
        """Note a packet that was given to the decoder."""
        if not packet.size or packet.is_discard:
            return
        if self._first_dts is None:
            self._first_dts = packet.dts
        if packet.pts is not None:
            self._last_promised = _later(packet.pts, self._last_promised)

    def time_of(self, picture: av.VideoFrame, number: int) -> float:
        """The time of the next picture [seconds]."""
        stamp = picture.pts if self._media.clock == "pts" else picture.dts if self._media.clock == "dts" else None
        if self._media.clock == "dts" and stamp is not None:
            if number == 0:  # B-frames delay the decoder, not the picture: frame 0 is shown when packet 0 is due
                self._shift = (self._first_dts or 0) - stamp
            stamp += self._shift
        if stamp is None:
            seconds = self._next_seconds
        else:
            seconds = stamp * self._ticks / self._per_second
            self._last_shown = _later(stamp, self._last_shown)
        self._next_seconds = seconds + self._frame_seconds
        return seconds

    def check_end(self, num_frames: int) -> None:
        """Raise ``MediaError`` (``short``) if pictures are missing at the end."""
        if self._media.clock != "pts" or self._last_promised is None or self._last_shown is None:
            return
        if self._last_shown < self._last_promised:
            missing = (self._last_promised - self._last_shown) * self._ticks / self._per_second
            raise MediaError("decode", "short", f"the last {missing:.3f} s cannot be decoded", num_frames)


def _later(stamp: int, last: int | None) -> int:
    return stamp if last is None else max(stamp, last)
