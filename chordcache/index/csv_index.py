"""The index as CSV: one column for each fact of a record, or a hand-written list of paths."""

from __future__ import annotations

import csv
import os
import re
import tempfile
import typing
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, BinaryIO, NamedTuple, TextIO

from chordcache.choices import SCAN_LEVELS
from chordcache.errors import UsageError, printable
from chordcache.index.class_labels import NumberCheck, label_of
from chordcache.index.column_types import COLUMN_TYPES, extra_problem
from chordcache.index.csv_table import Table, open_table, text_of, to_cell
from chordcache.index.file_names import FileNames, OuterRoots, roots_note
from chordcache.index.header import FORMAT, IndexHeader, spelling_problem
from chordcache.records import (
    SEGMENT_COLUMNS,
    AudioFacts,
    ContentFacts,
    HeaderFacts,
    Identity,
    PacketFacts,
    Record,
    Segment,
    VideoRecord,
    fields_of,
    from_json,
    parse_json,
)
from chordcache.storage.layout import path_problem

HAND_WRITTEN = ("path", "label", "caption", *SEGMENT_COLUMNS)
"""Columns with a meaning in a hand-written list. Only ``path`` is required."""


class Column(NamedTuple):
    """A column that chordcache itself writes."""

    name: str
    part: str | None
    """Field of ``VideoRecord`` that holds the facts, or None for the record itself"""
    field: str
    type: Any
    """Type of the field"""

    @property
    def kinds(self) -> tuple[Any, ...]:
        """The types that a union permits, or the one type."""
        return typing.get_args(self.type) if isinstance(self.type, UnionType) else (self.type,)


_PARTS: dict[str, type[Record]] = {
    "segment": Segment,
    "identity": Identity,
    "header": HeaderFacts,
    "packets": PacketFacts,
    "audio": AudioFacts,
    "content": ContentFacts,
}


def _columns_of(part: str | None, *names: str) -> Iterator[Column]:
    prefix = f"{part}_" if part in ("audio", "segment") else ""
    for name, kind in fields_of(_PARTS[part] if part else VideoRecord):
        if not names or name in names:
            yield Column(prefix + name, part, name, kind)


COLUMNS = (
    *_columns_of(None, "root"),
    Column("root_path", None, "root_path", str),
    *_columns_of(None, "path"),
    *_columns_of("segment"),
    *_columns_of(None, "label", "labels", "caption", "captions"),
    *_columns_of("identity"),
    *_columns_of(None, "level", "error", "error_cause", "error_stage"),
    *_columns_of("header"),
    *_columns_of("packets"),
    *_columns_of("audio"),
    *_columns_of("content"),
)
"""Columns in the order in which they are written. The extra columns of a labels file follow."""

_KNOWN = frozenset(column.name for column in COLUMNS)
_EXTRA = "extra."
"""Prefix of the name of an extra column that has the name of one of chordcache's columns."""


class ExtraColumn(NamedTuple):
    """A column that is not one of chordcache's own."""

    header: str
    """Name in the file, such as "score:float" """
    name: str
    """Name in ``VideoRecord.extra``"""
    type: str
    """Type of ``COLUMN_TYPES``"""


def split_name(header: str) -> tuple[str, str | None]:
    """Return the name and the type of a header such as "score:float". The type is None if the header states none."""
    name, _, kind = header.rpartition(":")
    return (name, kind) if kind in COLUMN_TYPES else (header, None)


def extra_columns(table: Table) -> list[ExtraColumn]:
    """Return the extra columns of a table. The header of one that is not text ends with a colon and its type."""
    known = _KNOWN if table.is_own else HAND_WRITTEN
    columns = []
    for header in table.columns:
        if header not in known and (header or table.is_own):
            name, kind = split_name(header)
            columns.append(ExtraColumn(header, name.removeprefix(_EXTRA) if table.is_own else name, kind or "str"))
    return columns


def column_types(table: Table) -> dict[str, str]:
    """Return the types of the extra columns that are not text."""
    return {column.name: column.type for column in extra_columns(table) if column.type != "str"}


def texts_of(table: Table, cells: Sequence[str], line: int) -> tuple[str | None, str | None, dict[str, Any]]:
    """Return label, caption and extra columns of a row. Empty cells count as missing."""
    columns = [column for column in extra_columns(table) if table.cell(cells, column.header)]
    label, caption = (
        table.text(cells, name, line) if table.cell(cells, name) else None for name in ("label", "caption")
    )
    extra = {column.name: extra_value(table, cells, column, line) for column in columns}
    return label and label_of(label), caption, extra


def extra_value(table: Table, cells: Sequence[str], column: ExtraColumn, line: int) -> Any:
    """Return the value of an extra column in a row. Raises ``UsageError`` if it is not of the column's type."""
    if column.type == "str":
        return table.text(cells, column.header, line)
    cell = table.cell(cells, column.header)
    try:
        value = parse_json(cell.lower() if column.type == "bool" else cell, object)
    except ValueError:
        value = cell
    if problem := extra_problem({column.name: value}, {column.name: column.type}):
        raise table.fault(line, problem)
    return value


_TIME = re.compile(r"(?:(\d+):)?(\d+):([0-5]?\d(?:\.\d+)?)")


def parse_seconds(text: str) -> float:
    """Return the seconds that a text states, such as 12.5, 1:23:45.6 or 23:45.6. Raises ValueError."""
    time = _TIME.fullmatch(text)
    return float(text) if time is None else 3600 * int(time[1] or 0) + 60 * int(time[2]) + float(time[3])


def segment_of(table: Table, cells: Sequence[str], line: int) -> Segment | None:
    """Return the segment that a row of a hand-written list names, or None for the whole file.

    Times are numbers of seconds, or of the form 1:23:45.6 or 23:45.6.
    """
    bounds: dict[str, Any] = {}
    for name in SEGMENT_COLUMNS:
        if cell := table.cell(cells, name).strip():
            try:
                bounds[name] = int(cell) if name.endswith("frame") else parse_seconds(cell)
            except ValueError:
                expected = "a whole number" if name.endswith("frame") else "seconds or hh:mm:ss"
                raise table.fault(line, f"{name}: got '{printable(cell)}', expected {expected}") from None
    try:
        return Segment(**bounds) if bounds else None
    except UsageError as error:
        raise table.fault(line, str(error)) from None


# Reading


class CsvSource:
    """The records of a CSV file. The header of one that chordcache wrote is made from its rows."""

    def __init__(self, path: Path) -> None:
        self._table = open_table(path)
        self._folder = os.path.dirname(os.path.abspath(path))
        self._own_label = os.path.basename(self._folder) or "root"
        self._names = FileNames()
        self._roots = {self._own_label: self._folder}
        """Label to folder of the places of a hand-written list"""
        self._outer_roots: dict[str, str] = {}
        """Roots that were made for paths outside of the folder of a hand-written list"""
        self._numbers = NumberCheck()
        self.num_records = 0
        with open(path, "rb") as file:
            self.header = self._survey(file)

    @property
    def is_hand_written(self) -> bool:
        """True if a person wrote the file, not ``CsvSink``."""
        return not self._table.is_own

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about a hand-written list that a person should read."""
        roots = [roots_note(self._outer_roots)] if self._outer_roots else []
        return (*roots, *([f"label: {problem}"] if (problem := self._numbers.problem) else []))

    def _survey(self, file: BinaryIO) -> IndexHeader:
        """Read all names once, so that a mistake in a list is reported before any work is done."""
        roots: dict[str, str] = {}
        levels = set()
        first_lines: dict[int, int] = {}
        columns = column_types(self._table)
        segment_columns = [f"segment_{name}" if self._table.is_own else name for name in SEGMENT_COLUMNS]
        for _, line, cells in self._table.rows(file):
            root, root_path, path = self._place(cells, line)
            if roots.setdefault(root, root_path) != root_path:
                raise self._table.fault(line, f"root '{printable(root)}' has two folders")
            segment = tuple([self._table.cell(cells, name) for name in segment_columns])
            name = self._names.real(os.path.join(root_path, path))
            first = first_lines.setdefault(hash((name, segment)), line)
            if first != line:
                raise self._table.fault(
                    line, f"got '{printable(path)}' twice, expected it once; line {first} has it too"
                )
            if not self._table.is_own and (label := self._table.cell(cells, "label")):
                self._numbers.add((label_of(label),))
            if self._table.is_own:
                levels.add(self._table.cell(cells, "level"))
            self.num_records += 1
        roots = roots or ({} if self._table.is_own else self._roots)
        return IndexHeader(
            FORMAT, roots, next((level for level in SCAN_LEVELS if level in levels), None), columns=columns
        )

    def _place(self, cells: Sequence[str], line: int) -> tuple[str, str, str]:
        """Return root label, root folder and relative path of a row."""
        path = self._table.text(cells, "path", line)
        if not self._table.is_own:
            root, inner = self._placed(path)
            if problem := path_problem(inner):
                raise self._table.fault(line, f"the path '{printable(path)}' cannot be used: {problem}")
            return root, self._roots[root], inner
        root, folder = (self._table.text(cells, name, line) for name in ("root", "root_path"))
        if not root or not folder.startswith("/"):
            raise self._table.fault(line, "columns 'root' and 'root_path' do not name a folder")
        if problem := path_problem(path) or spelling_problem(path):
            raise self._table.fault(line, f"the path '{printable(path)}' cannot be used: {problem}")
        return root, folder, path

    def _placed(self, path: str) -> tuple[str, str]:
        """Return root label and relative path of a path of a hand-written list."""
        whole = os.path.join(self._folder, path)
        place = self._names.place(whole, self._roots)
        if place is None and not self._outer_roots:
            self._add_outer_roots()
            place = self._names.place(whole, self._roots)
        assert place is not None
        return place

    def _add_outer_roots(self) -> None:
        """Read all paths for the roots of those outside of the list's folder."""
        outer = OuterRoots()
        with open(self._table.path, "rb") as file:
            for _, line, cells in self._table.rows(file):
                whole = os.path.join(self._folder, self._table.text(cells, "path", line))
                if self._names.place(whole, self._roots) is None:
                    outer.add(self._names.real(whole))
        self._outer_roots = outer.roots(taken=self._roots)
        self._roots = {**self._roots, **self._outer_roots}

    def located(self, file: BinaryIO) -> Iterator[tuple[int, VideoRecord]]:
        """Yield the byte offset and the record of every row."""
        for offset, line, cells in self._table.rows(file):
            yield offset, self._record(cells, line)

    def at(self, file: BinaryIO, offset: int) -> VideoRecord:
        """Read the record of the row at a byte offset."""
        file.seek(offset)
        _, line, cells = next(self._table.rows(file))
        return self._record(cells, line)

    def _record(self, cells: Sequence[str], line: int) -> VideoRecord:
        root, _, path = self._place(cells, line)
        label, caption, extra = texts_of(self._table, cells, line)
        if not self._table.is_own:
            segment = segment_of(self._table, cells, line)
            return VideoRecord(root, path, segment=segment, label=label, caption=caption, extra=extra)
        values: dict[str | None, dict[str, Any]] = {}
        for column in COLUMNS:
            if self._table.cell(cells, column.name) and column.name != "root_path":
                values.setdefault(column.part, {})[column.field] = self._fact(cells, column, line)
        for column in COLUMNS:
            if column.part in values and not self._table.cell(cells, column.name) and column.part is not None:
                if NoneType not in column.kinds:
                    raise self._table.fault(line, f"column '{column.name}' is empty")
                values[column.part][column.field] = None
        try:
            return from_json({**values.pop(None), **values, "label": label, "extra": extra}, VideoRecord)
        except ValueError as error:
            raise self._table.fault(line, str(error)) from None

    def _fact(self, cells: Sequence[str], column: Column, line: int) -> Any:
        cell = self._table.cell(cells, column.name)
        try:
            return text_of(cell) if str in column.kinds else parse_json(_as_json(cell, column), column.type)
        except ValueError as error:
            problem = f"column '{column.name}' holds '{printable(cell)}': {printable(str(error))}"
            raise self._table.fault(line, problem) from None


def _as_json(cell: str, column: Column) -> str:
    """Return a cell as chordcache writes it. Pandas writes ``True`` and, in incomplete columns, 25.0 instead of 25."""
    if cell in ("True", "False"):
        return cell.lower()
    if int in column.kinds and float not in column.kinds:
        with suppress(ValueError, OverflowError):
            number = float(cell)
            return str(int(number)) if not cell.lstrip("-").isdecimal() and number.is_integer() else cell
    return cell


# Writing


class CsvSink:
    """A writer of records as rows. Rows wait in a temporary file until all columns of the header row are known."""

    def __init__(self, file: TextIO, roots: Mapping[str, str], columns: Mapping[str, str], folder: Path) -> None:
        self._file, self._roots, self._columns = file, roots, columns
        self._body = tempfile.TemporaryFile("w+", dir=folder, encoding="utf-8", newline="")  # noqa: SIM115 - close()
        self._writer = csv.writer(self._body, lineterminator="\n")
        self._first_rows: dict[str, int] = {}
        """Name of each extra column to the number of rows that were written before it appeared"""
        self._num_rows = 0

    def write(self, record: VideoRecord) -> None:
        """Append one row."""
        for name in record.extra:
            self._first_rows.setdefault(name, self._num_rows)
        row = [to_cell(self._fact(record, column)) for column in COLUMNS]
        self._writer.writerow(row + [to_cell(record.extra.get(name)) for name in self._first_rows])
        self._num_rows += 1

    def _fact(self, record: VideoRecord, column: Column) -> object:
        if column.name == "root_path":
            return self._roots[record.root]
        holder = record if column.part is None else getattr(record, column.part)
        value = None if holder is None else getattr(holder, column.field)
        return None if column.part is None and value == () else value

    def finish(self) -> None:
        """Write the header row and the rows to the file. Every row is one line: no cell holds a raw line end."""
        extras = [self._header_of(name) for name in self._first_rows]
        header = [to_cell(name) for name in (*(column.name for column in COLUMNS), *extras)]
        csv.writer(self._file, lineterminator="\n").writerow(header)
        self._body.seek(0)
        for number, line in enumerate(self._body):
            missing = sum(number < first for first in self._first_rows.values())
            self._file.write(line[:-1] + "," * missing + "\n")

    def _header_of(self, name: str) -> str:
        """Return the name of an extra column in the file."""
        kind = self._columns.get(name, "str")
        typed = f"{name}:{kind}" if kind != "str" or name.rpartition(":")[2] in COLUMN_TYPES else name
        return _EXTRA + typed if typed in _KNOWN or typed.startswith(_EXTRA) else typed

    def close(self) -> None:
        """Free the temporary file."""
        self._body.close()
