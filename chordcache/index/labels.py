"""Join labels and captions to the records of a scan."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

from chordcache.errors import UsageError, printable
from chordcache.index.csv_index import column_types, extra_columns, texts_of
from chordcache.index.csv_table import open_table
from chordcache.records import SEGMENT_COLUMNS, VideoRecord


class _Row(NamedTuple):
    label: str | None
    caption: str | None
    extra: dict[str, Any]


_NO_ROW = _Row(None, None, {})


class Labels:
    """Labels from folder names, or from a CSV file with the columns path, label, caption and any others.

    A labels file sets the columns that it has. In a record that none of its rows names, these columns become None.

    Parameters
    ----------
    source : str
        "dir" takes the name of the file's folder as the label, and None directly in the root. Any other value is a CSV
        file. Its paths are relative to the root, or begin with the root's label and a slash.

    Raises
    ------
    NotFoundError
        If the file does not exist.
    UsageError
        If it has no column ``path``, has one path twice, or names segments.
    """

    def __init__(self, source: str) -> None:
        self._by_folder = source == "dir"
        self._rows: dict[str, _Row] = {}
        self._matched: set[str] = set()
        self._columns: tuple[str, ...] = ()
        self._extras: frozenset[str] = frozenset()
        self.column_types: dict[str, str] = {}
        """Type of each extra column that is not text"""
        if not self._by_folder:
            self._read(Path(source))

    def _read(self, path: Path) -> None:
        table = open_table(path)
        if segments := [name for name in SEGMENT_COLUMNS if name in table.columns and not table.is_own]:
            raise UsageError(
                f"labels: got '{printable(path)}' with a column '{segments[0]}', expected labels of whole files. "
                f"Build from the list itself: 'chordcache build {printable(path)}'."
            )
        self._columns = tuple(name for name in ("label", "caption") if name in table.columns)
        self._extras = frozenset(column.name for column in extra_columns(table))
        self.column_types = column_types(table)
        with open(path, "rb") as file:
            for _, line, cells in table.rows(file):
                name = table.text(cells, "path", line)
                if not name:
                    raise UsageError(f"'{printable(path)}', line {line}: got an empty path, expected a file name")
                name = os.path.normpath(name)
                if name in self._rows:
                    raise UsageError(
                        f"'{printable(path)}', line {line}: got '{printable(name)}' twice, expected it once"
                    )
                self._rows[name] = _Row(*texts_of(table, cells, line))

    def apply(self, record: VideoRecord) -> VideoRecord:
        """Return a copy of the record with its labels."""
        if self._by_folder:
            return record.replace(label=os.path.basename(os.path.dirname(record.path)) or None)
        name = next((name for name in (f"{record.root}/{record.path}", record.path) if name in self._rows), None)
        if name is not None:
            self._matched.add(name)
        row = _NO_ROW if name is None else self._rows[name]
        said = {column: getattr(row, column) for column in self._columns}
        kept = {column: text for column, text in record.extra.items() if column not in self._extras}
        return record.replace(**said, extra={**kept, **row.extra})

    @property
    def num_unmatched(self) -> int:
        """Number of rows that matched none of the files so far."""
        return len(self._rows) - len(self._matched)

    @property
    def unmatched_example(self) -> str | None:
        """Path in the first row without a match."""
        return next((name for name in self._rows if name not in self._matched), None)
