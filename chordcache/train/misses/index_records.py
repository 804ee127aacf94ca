"""The usable records of an index, read one at a time."""

from __future__ import annotations

import os
from array import array
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np

from chordcache.errors import UsageError, printable
from chordcache.index.index_files import Index
from chordcache.index.lists.tables import open_for_reading
from chordcache.read.selection import warn_of_left_out
from chordcache.records import VideoRecord
from chordcache.storage.annotation_names import AnnotationCounter

_UNREADABLE, _NOT_CACHED = "that the scan could not read", "not cached"
"""Reasons for which a record is left out, beside those of the quarantine"""


class IndexRecords:
    """The usable records of an index, by position. Only the offset of each record in the file is kept.

    ``cause_of`` returns the cause for which a record is in the quarantine of ``cache``, or "" to leave it out because
    it is not cached, or None to keep it. By default, it leaves out what the scan could not read.

    Raises
    ------
    UsageError
        If no record is left.
    """

    def __init__(
        self,
        index: Index,
        cause_of: Callable[[VideoRecord], str | None] = lambda record: None if record.error is None else "",
        cache: Path | None = None,
    ) -> None:
        self._index = index
        self._path = index.path
        offsets = array("q")
        causes: Counter[str] = Counter()
        others: Counter[str] = Counter()
        examples: dict[str, str] = {}
        ids: dict[str | None, int] = {None: -1}
        label_ids = array("i")
        annotations = AnnotationCounter()
        with open_for_reading(self._path) as file:
            self._state = _state(file.fileno())
            for offset, record in index.located(file):
                cause = cause_of(record)
                if cause is None:
                    offsets.append(offset)
                    label_ids.append(ids.setdefault(record.label, len(ids) - 1))
                    annotations.add(record)
                elif cause:
                    causes[cause] += 1
                else:
                    reason = _NOT_CACHED if record.error is None else _UNREADABLE
                    others[reason] += 1
                    examples.setdefault(reason, record.path)
        self.annotation_names = annotations.names()
        """Names in the annotations of these records"""
        self.num_named: int | None = len(offsets)
        """Number of records that ``annotation_names`` counts, None if others are among them"""
        self._offsets = np.asarray(offsets)
        self.labels = sorted(label for label in ids if label is not None)
        numbers = {label: number for number, label in enumerate(self.labels)}
        # The ids until now are in the order of the first use of each label; the last element is for -1
        sorted_ids = np.array([*(numbers[label] for label in ids if label is not None), -1], np.int32)
        self.label_ids = sorted_ids[np.asarray(label_ids)]
        num_all = len(offsets) + causes.total() + others.total()
        reasons = {
            f"{reason}, such as '{printable(examples[reason])}'": others[reason]
            for reason in (_UNREADABLE, _NOT_CACHED)
            if reason in others
        }
        warn_of_left_out(f"index '{printable(self._path)}'", num_all, causes, reasons, cache)
        if not offsets:
            what = "a video that can be read" if causes or others[_NOT_CACHED] else "a readable video"
            raise UsageError(f"index: got '{printable(self._path)}' without {what}, expected at least one")

    def keep(self, mask: np.ndarray) -> None:
        """Leave out the records where the mask [shape=(len(self),), dtype=bool] is False."""
        self._offsets, self.label_ids = self._offsets[mask], self.label_ids[mask]
        self.num_named = None

    def __len__(self) -> int:
        return len(self._offsets)

    def __getitem__(self, position: int) -> VideoRecord:
        with open_for_reading(self._path) as file:
            if _state(file.fileno()) != self._state:
                raise UsageError(
                    f"index: '{printable(self._path)}' changed since the dataset was made. Recreate the dataset."
                )
            return self._index.at(file, int(self._offsets[position]))


def _state(fd: int) -> tuple[int, int, int]:
    status = os.fstat(fd)
    return status.st_ino, status.st_size, status.st_mtime_ns
