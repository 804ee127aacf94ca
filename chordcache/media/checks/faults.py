"""What is wrong with a file, gathered while it is read, and said at the end in one sentence."""

from __future__ import annotations

from chordcache.errors import MediaError


class Faults:
    """Count faults, and remember the first one in words."""

    def __init__(self) -> None:
        self._cause = ""
        self._what = ""
        self.num_lost = 0
        """Frames that packets promise, and that do not come"""
        self.num_missing = 0
        """Frames whose packets are not in the file"""
        self.num_damaged = 0
        """Packets that their decoder reports on"""

    def __bool__(self) -> bool:
        return self.has_reason or self.num_lost > 0

    @property
    def has_reason(self) -> bool:
        """Whether anything was said of what is wrong."""
        return bool(self._what)

    def add(self, cause: str, what: str) -> None:
        """Note a fault; a file that is cut off says so even if that is not what showed first."""
        if not self._what:
            self._cause, self._what = cause, what
        elif cause == "truncated" != self._cause:
            self._cause, self._what = cause, f"{what}; {self._what}"

    def error(self, num_packets: int, num_frames_ok: int) -> MediaError:
        """Return what is to be raised.

        Parameters
        ----------
        num_packets : int
            Packets of the file, or of a stretch of it, that frames should come out of.
        num_frames_ok : int
            See ``MediaError``.
        """
        counts = []
        num_lost = self.num_lost + self.num_missing
        if num_lost:
            counts.append(f"{num_lost} of {num_packets + self.num_missing} frames are lost")
        if self.num_damaged:
            counts.append(f"{self.num_damaged} packet{'s are' if self.num_damaged > 1 else ' is'} damaged")
        if self._cause == "truncated" and not counts:
            counts.append(f"{num_frames_ok} frames are there")
        words = f"{' and '.join(counts)}; {self._what}" if counts else self._what
        return MediaError("decode", self._cause, words, num_frames_ok)
