"""The names that annotations use: distinct labels, and extra columns with the number of their values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from chordcache.json_records import Record
from chordcache.records import Description


class AnnotationNames(Record, frozen=True):
    """The names in the annotations of all items of a cache or an index. A dataset checks its fields with them."""

    labels: tuple[str, ...] = ()
    """Distinct labels of the items that may have several, sorted"""
    extra: Mapping[str, int] = {}
    """Extra column to the number of items that have a value in it, sorted"""


class AnnotationCounter:
    """A collector of annotation names, item by item."""

    def __init__(self) -> None:
        self._labels: set[str] = set()
        self._extra: Counter[str] = Counter()

    def add(self, description: Description) -> None:
        """Take the annotations of an item."""
        self._labels.update(description.labels)
        self._extra.update(name for name, value in description.extra.items() if value is not None)

    def names(self) -> AnnotationNames:
        """Return the names so far."""
        return AnnotationNames(tuple(sorted(self._labels)), dict(sorted(self._extra.items())))
