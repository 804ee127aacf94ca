"""Faults of a file, collected while it is read, and reported at the end in one message."""

from __future__ import annotations

from typing import NamedTuple

from chordcache.amounts import counted
from chordcache.errors import MediaError


class Loss(NamedTuple):
    """First place where the numbers of a container disagree with its content."""

    what: str
    at: int | None = None
    """[bytes] Position from which on packets may be missing or wrong; None if it is unknown"""
    cause: str = "decode"
    """Cause of the ``MediaError``. "truncated": the content before the end is right."""


class Faults:
    """Counters of faults, with the message of the first one."""

    def __init__(self) -> None:
        self._cause = ""
        self._what = ""
        self.num_lost = 0
        """Number of frames that packets promise, and that do not come"""
        self.num_missing = 0
        """Number of frames whose packets are not in the file"""
        self.num_damaged = 0
        """Number of packets whose decoder reports an error"""

    def __bool__(self) -> bool:
        return bool(self._what or self.num_lost)

    @property
    def has_reason(self) -> bool:
        """True if a fault was added that has a message."""
        return bool(self._what)

    def add(self, cause: str, what: str) -> None:
        """Note a fault. The first one is reported, but "truncated" comes before any earlier fault."""
        if not self._what:
            self._cause, self._what = cause, what
        elif cause == "truncated" != self._cause:
            self._cause, self._what = cause, f"{what}; {self._what}"

    def error(self, num_packets: int, num_frames_ok: int) -> MediaError:
        """Return the error to raise. ``num_packets`` of the file, or of a part of it, each promise a frame."""
        counts = []
        num_lost = self.num_lost + self.num_missing
        if num_lost:
            counts.append(f"lost {num_lost} of {counted(num_packets + self.num_missing, 'frame')}")
        if self.num_damaged:
            counts.append(f"got {counted(self.num_damaged, 'damaged packet')}")
        if self._cause == "truncated" and not counts:
            counts.append(f"got {counted(num_frames_ok, 'frame')}")
        words = f"{' and '.join(counts)}; {self._what}" if counts else self._what
        return MediaError("decode", self._cause, words, num_frames_ok)
