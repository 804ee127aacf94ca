"""The names that annotations use: distinct labels, and extra columns with the number and the types of their values."""

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
    types: Mapping[str, tuple[str, ...]] = {}
    """Extra column to the types of its values, such as "str", "float" and "list", sorted"""


class AnnotationCounter:
    """A collector of annotation names, item by item."""

    def __init__(self) -> None:
        self._labels: set[str] = set()
        self._extra: Counter[tuple[str, str]] = Counter()
        """Extra column and type of a value to the number of items that have one"""

    def add(self, description: Description) -> None:
        """Take the annotations of an item."""
        self._labels.update(description.labels)
        self._extra.update(
            (name, type(value).__name__) for name, value in description.extra.items() if value is not None
        )

    def names(self) -> AnnotationNames:
        """Return the names so far."""
        counts: dict[str, int] = {}
        types: dict[str, tuple[str, ...]] = {}
        for name, kind in sorted(self._extra):
            counts[name] = counts.get(name, 0) + self._extra[name, kind]
            types[name] = (*types.get(name, ()), kind)
        return AnnotationNames(tuple(sorted(self._labels)), counts, types)
