"""The usable records of an index, read one at a time."""

from __future__ import annotations

import os
import warnings
from array import array
from pathlib import Path

import numpy as np

from chordcache.errors import UsageError, printable
from chordcache.index.csv_table import open_for_reading
from chordcache.index.files import Index
from chordcache.records import VideoRecord
from chordcache.storage.annotation_names import AnnotationCounter


class IndexRecords:
    """The usable records of an index, by position. Only the offset of each record in the file is kept."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._path = Path(index.path).absolute()
        offsets, broken = array("q"), []
        ids: dict[str | None, int] = {None: -1}
        label_ids = array("i")
        annotations = AnnotationCounter()
        with open_for_reading(self._path) as file:
            self._state = _state(file.fileno())
            for offset, record in index.located(file):
                if record.error is not None:
                    broken.append(record.path)
                    continue
                offsets.append(offset)
                label_ids.append(ids.setdefault(record.label, len(ids) - 1))
                annotations.add(record)
        self.annotation_names = annotations.names()
        """Names in the annotations of these records"""
        self._offsets = np.asarray(offsets)
        self.labels = sorted(label for label in ids if label is not None)
        numbers = {label: number for number, label in enumerate(self.labels)}
        # The ids until now are in the order of the first use of each label; the last element is for -1
        sorted_ids = np.array([*(numbers[label] for label in ids if label is not None), -1], np.int32)
        self.label_ids = sorted_ids[np.asarray(label_ids)]
        if not offsets:
            raise UsageError(f"index: got '{printable(self._path)}' without a readable video, expected at least one")
        if broken:
            warnings.warn(
                f"index '{printable(self._path)}': {len(broken)} videos are left out, which the scan could not read, "
                f"such as '{printable(broken[0])}'",
                stacklevel=5,
            )

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
