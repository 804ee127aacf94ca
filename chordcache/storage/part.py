"""One part of a build. The command line loads this module for its help."""

from __future__ import annotations

import re
from dataclasses import dataclass

from chordcache.errors import UsageError, printable

MAX_PARTS = 100_000
"""Largest number of parts. Each has a folder, so that a typing error must not make millions of them."""


@dataclass(frozen=True)
class Part:
    """The number of a part, from 1, and the number of all parts."""

    number: int
    num_parts: int

    @classmethod
    def parse(cls, text: str) -> Part:
        """Return the part that ``I/N`` names. Raise ``UsageError`` if it names none."""
        match = re.fullmatch(r"([0-9]{1,20})/([0-9]{1,20})", str(text))
        if match is None:
            raise UsageError(f"part: got '{printable(str(text))}', expected I/N, such as 3/8 for the third of 8 parts")
        number, num_parts = map(int, match.groups())
        if num_parts > MAX_PARTS:
            raise UsageError(f"part: got {number}/{num_parts}, expected at most {MAX_PARTS} parts")
        if not 1 <= number <= num_parts:
            raise UsageError(f"part: got {number}/{num_parts}, expected a number from 1 to {num_parts}")
        return cls(number, num_parts)

    def holds(self, key: str) -> bool:
        """Return whether a check of this part has a video. Its key alone decides, so it is in exactly one part."""
        return int(key[-16:], 16) % self.num_parts == self.number - 1
