"""One spelling of labels that are class ids. Every list is read with it, and datasets make ids from it."""

from __future__ import annotations

import re
from collections.abc import Iterable

from chordcache.amounts import shortened

_WHOLE_FLOAT = re.compile(r"(0|[1-9][0-9]*)\.0*")
_NUMBER = re.compile(r"\s*[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?\s*")


def label_of(text: str) -> str:
    """Return a label as an index stores it: a whole number that was written as a float is decimal.

    Pandas writes the integers of a column as floats if one of its cells is empty.

    Examples
    --------
    >>> label_of("2.0"), label_of("10"), label_of("007"), label_of("run")
    ('2', '10', '007', 'run')
    """
    whole = _WHOLE_FLOAT.fullmatch(text)
    return text if whole is None else whole[1]


def is_class_id(label: str) -> bool:
    """Return whether a label is a whole number as ``str`` writes it. "007" and "-1" are not."""
    return label.isascii() and label.isdecimal() and (label == "0" or label[0] != "0")


class NumberCheck:
    """A check of labels that are numbers but not class ids, such as "-1", "007" and "0.5".

    Ids of such labels would depend on how they sort as text. They are a problem if all labels are numbers. Beside
    "run", the label "007" is a name.
    """

    def __init__(self, labels: Iterable[str] = ()) -> None:
        self._has_name = False
        self._example: str | None = None
        self.add(labels)

    def add(self, labels: Iterable[str]) -> None:
        """Check some labels."""
        for label in labels:
            if self._has_name:
                return
            if is_class_id(label):
                continue
            self._has_name = _NUMBER.fullmatch(label) is None
            self._example = self._example or label

    @property
    def problem(self) -> str | None:
        """The sentence about an example, or None if the labels are ids or names."""
        if self._has_name or self._example is None:
            return None
        return (
            f"got '{shortened(self._example, 100)}' among labels that are all numbers, expected class ids such as '0' "
            "and '12', or names. Correct the labels and build again, which does not decode, or pass classes, all "
            "labels in the order of their ids."
        )
