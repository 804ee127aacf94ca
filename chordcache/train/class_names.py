"""The classes of a dataset: the names of its labels, in the order of their ids."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np

from chordcache.errors import UsageError
from chordcache.index.class_labels import NumberCheck, is_class_id

_NUM_NUMBERED = 1 << 20
"""Largest number of classes that are numbered by their labels. Larger numbers are more likely names, such as dates."""


def class_names(labels: Collection[str]) -> list[str]:
    """Return the name of each class, so that the position of a label is its id.

    Labels that are all whole numbers below 2 ** 20, such as "0", "2" and "10", are ids already and keep their value.
    The numbers between them are classes without a video. Names and larger numbers are sorted.

    Raises
    ------
    UsageError
        If all labels are numbers, and one is not an id, such as "-1", "007" or "0.5".

    Examples
    --------
    >>> class_names({"run", "jump"})
    ['jump', 'run']
    >>> class_names({"0", "3"})
    ['0', '1', '2', '3']
    """
    if problem := NumberCheck(sorted(labels)).problem:
        raise UsageError(f"label: {problem}")
    if labels and all(map(is_class_id, labels)):
        last = max(map(int, labels))
        if last < _NUM_NUMBERED:
            return [str(number) for number in range(last + 1)]
    return sorted(labels)


class Classes:
    """The classes of a dataset, and the ids of labels.

    Parameters
    ----------
    names : sequence of str
        Distinct label names. The position of each name is its id.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.names = list(names)
        self.ids = {name: number for number, name in enumerate(self.names)}

    def id_of(self, label: str | None, of: str) -> int:
        """Return the id of a label, -1 for None.

        Raises
        ------
        UsageError
            If the label is not one of the names. ``of`` names the item in the message.
        """
        if label is None:
            return -1
        number = self.ids.get(label)
        if number is None:
            raise self.unknown(label, f"the label of {of}")
        return number

    def multi_hot(self, labels: Iterable[str], of: str) -> np.ndarray:
        """Return 1 at the ids of some labels and 0 elsewhere [shape=(number of names,), dtype=float32].

        Raises
        ------
        UsageError
            As in ``id_of``.
        """
        hot = np.zeros(len(self.names), np.float32)
        hot[[self.id_of(label, of) for label in labels]] = 1
        return hot

    def unknown(self, label: str, what: str) -> UsageError:
        """Return the error for a label that is not one of the names."""
        return UsageError(f"classes: got {self.names}, expected also '{label}', {what}")
