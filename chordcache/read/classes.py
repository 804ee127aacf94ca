"""The classes of a dataset: the names of its labels, in the order of their ids."""

from __future__ import annotations

from collections.abc import Collection

_NUM_NUMBERED = 1 << 20
"""Largest number of classes that are numbered by their labels. Larger numbers are more likely names, such as dates."""


def class_names(labels: Collection[str]) -> list[str]:
    """Return the name of each class, so that the position of a label is its id.

    Labels that are all whole numbers below 2 ** 20, such as "0", "2" and "10", are ids already and keep their value.
    The numbers between them are classes without a video. Other labels are sorted.

    Examples
    --------
    >>> class_names({"run", "jump"})
    ['jump', 'run']
    >>> class_names({"0", "3"})
    ['0', '1', '2', '3']
    """
    if labels and all(map(_is_number, labels)):
        last = max(map(int, labels))
        if last < _NUM_NUMBERED:
            return [str(number) for number in range(last + 1)]
    return sorted(labels)


def _is_number(label: str) -> bool:
    """Return whether a label is a whole number as ``str`` writes it. "007" and "-1" are not."""
    return label.isascii() and label.isdecimal() and (label == "0" or label[0] != "0")
