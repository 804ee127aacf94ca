"""The rows of an index: their keys, and their order by file."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from itertools import groupby

import numpy as np

from chordcache.errors import UsageError, printable
from chordcache.index.file_names import SameFiles
from chordcache.index.index_files import Index
from chordcache.records import VideoRecord
from chordcache.storage import layout


class IndexRows(AbstractContextManager["IndexRows"]):
    """The rows of an index, read in one pass. The file stays open, because a build may replace it.

    Use it as a context manager, which closes the file. Raises ``UsageError`` if the index names an item twice.
    """

    def __init__(self, index: Index) -> None:
        self._index = index
        self.keys: set[str] = set()
        """The key of each item"""
        self.total_seconds: float | None = 0.0
        """[seconds] Length of all items, or None if the index does not state that of one that can be read"""
        self._order: tuple[np.ndarray, np.ndarray] | None = None
        """Position and offset of each row, ordered by file. None if the rows have this order in the index"""
        with ExitStack() as stack:
            self._file = stack.enter_context(index.open())
            self._survey()
            self._stack = stack.pop_all()

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _survey(self) -> None:
        firsts: dict[int, int] = {}
        roots = self._index.roots
        same = SameFiles(roots) if len(roots) > 1 else None
        names: set[int] = set()
        offsets, files = array("q"), array("q")
        is_grouped, number, root, path = True, -1, "", ""
        for offset, record in self._index.located(self._file):
            self.keys.add(layout.key_of(record))
            if len(self.keys) == len(files):
                raise UsageError(f"the index names '{printable(record.path)}' of root '{record.root}' twice")
            if same is not None and same.can_be:
                name = hash(same.key(record))
                if name in names:
                    where = f"'{printable(record.path)}' of root '{printable(record.root)}'"
                    raise UsageError(f"the index names {where} twice, once in another root. Remove one of the two.")
                names.add(name)
            if self.total_seconds is not None:
                seconds = record.known_seconds
                if seconds is None and record.error is not None:
                    seconds = 0.0
                self.total_seconds = None if seconds is None else self.total_seconds + seconds
            if record.path != path or record.root != root:
                root, path = record.root, record.path
                number = firsts.setdefault(hash((root, path)), len(firsts))
                is_grouped = is_grouped and number == len(firsts) - 1
            offsets.append(offset)
            files.append(number)
        if not is_grouped:
            order = np.argsort(np.asarray(files), kind="stable")
            self._order = order, np.asarray(offsets)[order]

    def by_file(self) -> Iterator[list[tuple[int, VideoRecord]]]:
        """Yield the rows of each file together: the number of each row in the index, from 1, and its record.

        Files come in the order of their first rows.
        """
        self._file.seek(0)
        rows: Iterator[tuple[int, VideoRecord]]
        if self._order is None:
            rows = ((number, record) for number, (_, record) in enumerate(self._index.located(self._file), 1))
        else:
            places = zip(*self._order, strict=True)
            rows = ((int(row) + 1, self._index.at(self._file, int(offset))) for row, offset in places)
        for _, group in groupby(rows, key=lambda row: (row[1].root, row[1].path)):
            yield list(group)
