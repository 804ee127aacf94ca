"""Lists that keep within a number of bytes on the page."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

_Item = TypeVar("_Item")

_MAX_OPTIONS = 2000
"""Entries of a list of filters"""

_OPTION_BYTES = 60
"""Markup and count of an entry of a list of filters"""


def escaped_bytes(text: str) -> int:
    """Return the bytes of a text on the page."""
    return len(html.escape(text).encode())


def within(items: Iterable[_Item], cost: Callable[[_Item], int], max_bytes: int) -> list[_Item]:
    """Return the first items, as many as fit into a number of bytes."""
    found = []
    for item in items:
        max_bytes -= cost(item)
        if max_bytes < 0:
            break
        found.append(item)
    return found


def cut(text: str, max_bytes: int) -> str:
    """Return the first lines of a text, as many as fit into a number of bytes. A last line stands for the others.

    Examples
    --------
    >>> cut("one\\ntwo\\nthree", 10)
    'one\\ntwo\\n…'
    """
    lines = text.split("\n")
    kept = within(lines, lambda line: escaped_bytes(line) + 1, max_bytes)
    return "\n".join(kept if len(kept) == len(lines) else [*kept, "…"])


class FilterOptions:
    """The texts that the grid can filter by, with the number of videos that have each.

    Parameters
    ----------
    max_bytes : int
        Bytes that the list may have on the page. The most common texts are kept.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes, self._all_bytes = max_bytes, 0
        self._counts: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._counts)

    @property
    def num_bytes(self) -> int:
        """Bytes of the list on the page, or a little more."""
        return min(self._max_bytes, self._all_bytes)

    def added_bytes(self, texts: Sequence[str]) -> int:
        """Return by how much ``num_bytes`` would grow at most if the texts of a video were added."""
        return min(self._max_bytes - self.num_bytes, sum(_cost(text) for text in texts if text not in self._counts))

    def update(self, texts: Sequence[str]) -> None:
        """Count the texts of a video."""
        self._all_bytes += sum(_cost(text) for text in texts if text not in self._counts)
        self._counts.update(texts)

    def most_common(self) -> list[tuple[str, int]]:
        """Return the most common texts with their counts, as many as fit."""
        return within(self._counts.most_common(_MAX_OPTIONS), lambda each: _cost(each[0]), self._max_bytes)


def _cost(text: str) -> int:
    return 2 * escaped_bytes(text) + _OPTION_BYTES  # it is the value and the text of its element
