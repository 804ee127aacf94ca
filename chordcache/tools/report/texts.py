"""Texts of a page: cut, without control characters, and as JSON that cannot end a script element."""

from __future__ import annotations

import json
import math
from typing import Any

_JOINERS = "\u200c\u200d"
"""Invisible characters that several scripts and emojis need"""

MAX_TEXTS = 20_000
"""Number of distinct texts that a page keeps once. Later ones are written where they are used, so memory is bounded"""


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
    return "".join(
        c
        if c.isprintable() or c in _JOINERS
        else " "
        if c.isspace()
        else c.encode("unicode_escape", "surrogatepass").decode()
        for c in kept
    )


def for_script(value: Any) -> str:
    """Return JSON in ASCII without ``<``, ``>`` and ``&``, so that it cannot end the element that it is in."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


class Texts:
    """Distinct texts, which many videos share, by number."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}
        self.num_bytes = 0
        """Bytes of all texts on the page"""
        self.max_bytes: float = math.inf
        """Largest value of ``num_bytes``"""

    def number(self, text: Any) -> Any:
        """Return the number of a text or a tuple of texts, or the text itself if there are too many or no room."""
        found = self._numbers.get(text)
        if found is None:
            num_bytes = len(for_script(text)) + 1
            if len(self._numbers) >= MAX_TEXTS or self.num_bytes + num_bytes > self.max_bytes:
                return text
            found = self._numbers[text] = len(self._numbers)
            self.num_bytes += num_bytes
        return found

    def all(self) -> list[Any]:
        """Return the texts in the order of their numbers."""
        return list(self._numbers)
