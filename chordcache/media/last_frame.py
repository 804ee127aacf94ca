"""The packet of a track that is shown last."""

from __future__ import annotations

from fractions import Fraction

import av

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

    def long_seconds(self, unit: Fraction, end_seconds: Fraction, step_seconds: Fraction) -> Fraction:
        """Return the duration that the container states for it, up to the end of the file.

        Return 0 if it is not longer than a frame of ``step_seconds``. Containers round, and guess. ``unit`` is the
        duration of a tick [seconds].
        """
        stated = min(self._ticks * unit, end_seconds - self._pts * unit)
        return stated if stated > LONG_STEPS * step_seconds else Fraction(0)
