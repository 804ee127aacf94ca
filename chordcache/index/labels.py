"""Join labels and captions to the records of a scan."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from chordcache.errors import UsageError, printable
from chordcache.index.class_labels import NumberCheck
from chordcache.index.csv_index import TEXTS, CsvRows, ListRows, open_rows
from chordcache.index.file_names import FileNames
from chordcache.records import SEGMENT_COLUMNS, VideoRecord


class Labels:
    """Labels from folder names, or from a CSV file with the columns path, label, caption and any others.

    The ``source`` "dir" takes the name of the file's folder as the label, and None directly in the root. Any other one
    is a CSV file. Its paths are relative to the root, begin with the root's label and a slash, or are absolute. It sets
    the columns that it has. In a record that none of its rows names, these columns become None. ``roots`` maps the
    label of each root to its folder, for absolute paths and paths through links of folders.

    Raises as ``open_rows`` does, and ``UsageError`` if the file has a path twice or names segments.
    """

    def __init__(self, source: str, roots: Mapping[str, str] = MappingProxyType({})) -> None:
        self._by_folder = source == "dir"
        self._roots = roots
        self._names = FileNames()
        self._rows: dict[str, tuple[int, dict[str, Any]]] = {}
        """Name of each file to the number of its line, and what the line says"""
        self._matched: set[str] = set()
        self._numbers = NumberCheck()
        self._columns: tuple[str, ...] = ()
        self._extras: frozenset[str] = frozenset()
        self._stated: list[str] = []
        """Columns whose empty cells erase what a cache has"""
        self.taken = ""
        """Sentence about the columns of a hand-written file"""
        self.column_types: dict[str, str] = {}
        """Type of each extra column that is not text"""
        if not self._by_folder:
            self._read(Path(source))

    def _read(self, path: Path) -> None:
        rows = open_rows(path, is_labels=True)
        self.taken = rows.taken
        if segments := [name for name in SEGMENT_COLUMNS if name in rows.table.types and isinstance(rows, ListRows)]:
            raise UsageError(
                f"labels: got '{printable(path)}' with a column '{segments[0]}', expected labels of whole files. "
                f"Build from the list itself: 'chordcache build {printable(path)}'."
            )
        self._columns = tuple(name + end for name in ("label", "caption") if name in rows.columns for end in ("", "s"))
        self._extras = frozenset(rows.extras.values())
        self.column_types = rows.extra_types
        for line, row in rows.table.rows():
            rows.stated |= row.keys() & TEXTS
            text = rows.path(row, line)
            if not text:
                raise rows.table.error(line, "got an empty path, expected a file name")
            name = self._name_of(text)
            first, _ = self._rows.setdefault(name, (line, rows.fields(row, line)))
            if first != line:
                raise rows.twice(line, name, first)
        self._stated = sorted(rows.stated)
        self._check_once(rows)

    def _check_once(self, rows: CsvRows) -> None:
        """Raise ``UsageError`` if two rows name one file of the only root, one of them with the root's label."""
        for root, folder in self._roots.items() if len(self._roots) == 1 else ():
            start = f"{root}/"
            for name, (line, _) in self._rows.items():
                other = self._rows.get(name.removeprefix(start)) if name.startswith(start) else None
                if other is not None and not os.path.lexists(os.path.join(folder, name)):
                    first, last = sorted((line, other[0]))
                    raise rows.twice(last, name, first)

    def _name_of(self, path: str) -> str:
        """Return root label and relative path of a file, or the relative path alone if several roots may have it."""
        if path.startswith("/"):
            place = self._names.place(path, self._roots)
            return os.path.normpath(path) if place is None else "/".join(place)
        label, _, inner = path.partition("/")
        for root, start, rest in ((label, f"{label}/", inner), *((name, "", path) for name in self._roots)):
            folder = self._roots.get(root)
            place = None if folder is None else self._names.place(os.path.join(folder, rest), {root: folder})
            if place is not None and place[1] != os.path.normpath(rest):
                return start + place[1]
        return os.path.normpath(path)

    def apply(self, record: VideoRecord) -> VideoRecord:
        """Return a copy of the record with its labels."""
        if self._by_folder:
            label = os.path.basename(os.path.dirname(record.path)) or None
            self._numbers.add(filter(None, [label]))
            return record.replace(label=label)
        name = next((name for name in (f"{record.root}/{record.path}", record.path) if name in self._rows), None)
        if name is not None:
            self._matched.add(name)
        fields = {} if name is None else self._rows[name][1]
        self._numbers.add(filter(None, [fields.get("label"), *fields.get("labels", ())]))
        said = {column: fields.get(column, () if column.endswith("s") else None) for column in self._columns}
        kept = {column: text for column, text in record.extra.items() if column not in self._extras}
        extra = fields.get("extra", {})
        given = {*extra, *(column.removesuffix("s") for column, value in said.items() if value)}
        erased = () if name is None else tuple(name for name in self._stated if name not in given)
        return record.replace(**said, extra={**kept, **extra}, erased=erased)

    @property
    def problem(self) -> str | None:
        """The reason why the labels so far have no ids, or None."""
        return self._numbers.problem

    @property
    def num_unmatched(self) -> int:
        """Number of rows that matched none of the files so far."""
        return len(self._rows) - len(self._matched)

    @property
    def unmatched_example(self) -> str | None:
        """Path in the first row without a match."""
        return next((name for name in self._rows if name not in self._matched), None)
