"""Texts of a page: cut, without control characters, and as JSON that cannot end a script element."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from chordcache.errors import printable

_JOINERS = "\u200c\u200d"
"""Invisible characters that several scripts and emojis need"""


def readable(text: str, length: int = 1000) -> str:
    """Return a text for people, cut to a length. Control characters and undecodable bytes are escaped.

    Marks that change the direction of what follows are control characters. Letters of any direction stay.

    Examples
    --------
    >>> readable("two\\nlines \\x07", 40)
    'two lines \\\\x07'
    >>> readable("abcdef", 3)
    'abc…'
    """
    kept = text if len(text) <= length else text[:length] + "…"
    if kept.isprintable():
        return kept
    return "".join(c if c in _JOINERS else " " if c.isspace() else printable(c) for c in kept)


def for_script(value: Any) -> str:
    """Return JSON in ASCII without ``<``, ``>`` and ``&``, so that it cannot end the element that it is in."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


class Texts:
    """Distinct texts, which many videos share, in the order of their numbers."""

    def __init__(self) -> None:
        self.counts: Counter[Any] = Counter()
        """Text to the number of its uses"""
        self._numbers: dict[Any, int] = {}

    def number(self, text: Any) -> int:
        """Count a use of a text or a tuple of texts, and return its number."""
        self.counts[text] += 1
        return self._numbers.setdefault(text, len(self._numbers))
