"""The index as CSV, for people and other programs, and lists of paths that a person wrote.

An index is written with a column for each fact. It is read as a list is: its roots, paths, segments, labels, captions
and extra columns. Facts are read from JSON only.
"""

from __future__ import annotations

import csv
import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TextIO, TypeVar

from chordcache.config.bounds import MAX_TEXT_CHARS, too_many_columns
from chordcache.errors import UsageError, printable
from chordcache.index.cells import is_quoted, text_of, to_cell
from chordcache.index.class_labels import NumberCheck, label_of
from chordcache.index.column_types import COLUMN_TYPES
from chordcache.index.encoding import text_problem
from chordcache.index.file_names import ListRoots, roots_note
from chordcache.index.header import FORMAT, IndexHeader, spelling_problem
from chordcache.index.lists.items import (
    BOUNDS,
    ListOptions,
    cell_value,
    columns_of,
    described,
    labels_in,
    segment_between,
    taken,
    texts,
)
from chordcache.index.lists.tables import CsvTable, Row, as_text
from chordcache.json_records import parse_json
from chordcache.records import (
    SEGMENT_COLUMNS,
    AudioFacts,
    ContentFacts,
    HeaderFacts,
    Identity,
    PacketFacts,
    Segment,
    VideoRecord,
)
from chordcache.storage.layout import path_problem

TEXTS = {"label", "caption"}


class Column(NamedTuple):
    """A column that chordcache itself writes."""

    name: str
    part: str | None
    """Field of ``VideoRecord`` that holds the facts, or None for the record itself"""
    field: str


_PARTS: tuple[tuple[str | None, tuple[str, ...], str], ...] = (
    (None, ("root", "root_path", "path"), ""),
    ("segment", Segment.__struct_fields__, "segment_"),
    (None, ("label", "labels", "caption", "captions"), ""),
    ("identity", Identity.__struct_fields__, ""),
    (None, ("level", "error", "error_cause", "error_stage"), ""),
    ("header", HeaderFacts.__struct_fields__, ""),
    ("packets", tuple(name for name in PacketFacts.__struct_fields__ if name != "frame_steps"), ""),  # which are bytes
    ("audio", AudioFacts.__struct_fields__, "audio_"),
    ("content", ContentFacts.__struct_fields__, ""),
)
COLUMNS = tuple(Column(prefix + name, part, name) for part, names, prefix in _PARTS for name in names)
"""Columns in the order in which they are written. The extra columns of a labels file follow."""

_KNOWN = frozenset(column.name for column in COLUMNS)
_EXTRA = "extra."
"""Prefix of the name of an extra column that has the name of one of chordcache's columns."""


T = TypeVar("T")


# Reading


def _texts_of(cell: str) -> tuple[str, ...]:
    return parse_json(cell, tuple[str, ...])


class CsvRows(ABC):
    """The rows of a CSV file with a column for the path. The subclasses are the two kinds of file.

    ``columns`` has the column of each meaning, and ``bounds`` the parameter of ``segment_between`` of each column that
    is a bound of the segment. ``prefix`` begins the names of other columns. Raises ``UsageError`` without a path.
    """

    taken = ""
    """Sentence about the columns of a hand-written list"""

    def __init__(
        self, table: CsvTable, columns: Mapping[str, str], bounds: Mapping[str, str], prefix: str = ""
    ) -> None:
        self.table, self.columns, self.bounds = table, columns, bounds
        if table.types.get(columns.get("path", "")) != "str":
            what = f"got the columns {table.column_names}, expected a column 'path'"
            raise UsageError(f"'{printable(table.path)}': {what}")
        others = (name for name in table.types if name not in {*columns.values(), *bounds})
        self.extras = {name: name.removeprefix(prefix) for name in others}
        """Each column without a meaning to its name in ``VideoRecord.extra``"""
        self.extra_types = {e: kind for name, e in self.extras.items() if (kind := table.types[name]) != "str"}
        """Type of each extra column that is not text"""
        self.stated = set(self.extras.values())
        """Columns whose empty cells count, see ``IndexHeader``"""
        self.places = ListRoots(str(table.path.parent), {})
        self.num_records = 0
        self._numbers = NumberCheck()

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about the file that a person should read."""
        return (f"label: {problem}",) if (problem := self._numbers.problem) else ()

    def survey(self) -> None:
        """Read all names once, so that a mistake in a list is reported before any work is done."""
        used: set[str] = set()
        first_lines: dict[int, int] = {}
        for line, row in self.table.rows():
            root, path = self.place(row, line)
            used.add(root)
            name = self.places.real(os.path.join(self.places.roots[root], path))
            segment = [str(row.get(column)) for column in self.bounds]
            first = first_lines.setdefault(hash((name, *segment)), line)
            if first != line:
                raise self.twice(line, path, first)
            self._numbers.add(self.labels(row, line))
            self.stated |= row.keys() & TEXTS
            self.num_records += 1
        roots = {root: folder for root, folder in self.places.roots.items() if root in used} or self.places.roots
        self.header = IndexHeader(FORMAT, roots, columns=self.extra_types, stated=tuple(sorted(self.stated)))

    def located(self, file: BinaryIO) -> Iterator[tuple[int, VideoRecord]]:
        """Yield the byte offset and the record of every row."""
        for offset, line, row in self.table.located(file):
            root, path = self.place(row, line)
            yield offset, VideoRecord(root, path, **self.fields(row, line))

    def at(self, file: BinaryIO, offset: int) -> VideoRecord:
        """Read the record of the row at a byte offset."""
        file.seek(offset)
        return next(self.located(file))[1]

    def text(self, row: Row, name: str, line: int) -> str:
        """Return the text of a cell."""
        cell = row.get(name, "")
        cell = cell if isinstance(cell, str) else as_text(cell)
        is_path = name in (self.columns["path"], "root", "root_path")  # which may have bytes that are not UTF-8
        may_have_fault = len(cell) > MAX_TEXT_CHARS or (not cell.isascii() and not is_path)
        if may_have_fault and (problem := text_problem(f"column '{printable(name)}'", cell)):
            raise self.table.error(line, problem)
        return cell

    def twice(self, line: int, path: str, first: int) -> UsageError:
        """Return the error of a line with the path of an earlier one."""
        return self.table.error(line, f"got '{printable(path)}' twice, expected it once; line {first} has it too")

    def fields(self, row: Row, line: int) -> dict[str, Any]:
        """Return the fields of ``Description`` that a row states. Empty cells count as missing."""
        fields = self.texts(row, line)
        if "label" in fields:
            fields["label"] = label_of(fields["label"])
        fields["extra"] = {
            extra: self.text(row, name, line) if self.table.types[name] == "str" else row[name]
            for name, extra in self.extras.items()
            if name in row
        }
        if self.bounds:
            try:
                fields["segment"] = segment_between(**{field: row.get(name) for name, field in self.bounds.items()})
            except UsageError as error:
                raise self.table.error(line, str(error)) from None
        return fields

    def path(self, row: Row, line: int) -> str:
        """Return the path of a row."""
        return self.text(row, self.columns["path"], line)

    def labels(self, row: Row, line: int) -> tuple[str, ...]:
        """Return the texts of the column "label"."""
        return labels_in(self.text(row, "label", line))

    @abstractmethod
    def texts(self, row: Row, line: int) -> dict[str, Any]:
        """Return the labels and captions that a row states, by the fields of ``Description``."""

    @abstractmethod
    def place(self, row: Row, line: int) -> tuple[str, str]:
        """Return root label and relative path of a row. Raises ``UsageError``."""

    def _check_path(self, path: str, problem: str | None, line: int) -> None:
        if problem:
            raise self.table.error(line, f"the path '{printable(path)}' cannot be used: {problem}")


class CsvIndexRows(CsvRows):
    """The rows of an index that ``CsvSink`` wrote. Its columns for texts may be all empty."""

    def __init__(self, table: CsvTable) -> None:
        bounds = {f"segment_{name}": name for name in SEGMENT_COLUMNS if f"segment_{name}" in table.types}
        super().__init__(table, {name: name for name in table.types if name in _KNOWN}, bounds, _EXTRA)

    def text(self, row: Row, name: str, line: int) -> str:
        """Return the text of a cell, which ``to_cell`` wrote."""
        return self._read(name, super().text(row, name, line), line, text_of)

    def texts(self, row: Row, line: int) -> dict[str, Any]:
        """Return the labels and captions that a row states."""
        names = ("labels", "captions")
        several = {name: self._read(name, row[name], line, _texts_of) for name in names if name in row}
        return several | {name: self.text(row, name, line) for name in ("label", "caption") if name in row}

    def _read(self, name: str, cell: str, line: int, read: Callable[[str], T]) -> T:
        try:
            return read(cell)
        except ValueError as error:
            what = f"column '{name}' holds '{printable(cell)}': {printable(str(error))}"
            raise self.table.error(line, what) from None

    def place(self, row: Row, line: int) -> tuple[str, str]:
        """Return root label and relative path of a row."""
        root, folder, path = (self.text(row, name, line) for name in ("root", "root_path", "path"))
        if not root or not folder.startswith("/"):
            raise self.table.error(line, "columns 'root' and 'root_path' do not name a folder")
        if self.places.roots.setdefault(root, folder) != folder:
            raise self.table.error(line, f"root '{printable(root)}' has two folders")
        self._check_path(path, path_problem(path) or spelling_problem(path), line)
        return root, path


class ListRows(CsvRows):
    """The rows of a hand-written list. No bounds of segments are looked for in ``labels`` of files.

    Raises also as ``columns_of`` does.
    """

    def __init__(self, table: CsvTable, *, is_labels: bool = False) -> None:
        columns = columns_of(table, ListOptions(), table.types if is_labels else ())
        bounds = {column: BOUNDS[name] for name, column in columns.items() if name in BOUNDS}
        super().__init__(table, columns, bounds)
        self.stated |= columns.keys() & TEXTS
        self.taken = taken(columns, list(self.extras))
        folder = str(table.path.parent)
        self.places = ListRoots(folder, {os.path.basename(folder) or "root": folder})
        self.outer_roots: dict[str, str] = {}
        """Roots that were made for paths outside of the folder of the list"""

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about the list that a person should read."""
        return (*([roots_note(self.outer_roots)] if self.outer_roots else ()), *super().notes)

    def path(self, row: Row, line: int) -> str:
        """Return the path of a row, which may be quoted as in an index."""
        cell = super().path(row, line)
        try:
            return text_of(cell) if is_quoted(cell) else cell
        except ValueError:
            return cell

    def texts(self, row: Row, line: int) -> dict[str, Any]:
        """Return the labels and captions that a row states, which are lists in some files."""
        return described(self.labels(row, line), texts(self._value(row, "caption", line)))

    def labels(self, row: Row, line: int) -> tuple[str, ...]:
        """Return the labels of a row."""
        return labels_in(self._value(row, "label", line))

    def _value(self, row: Row, meaning: str, line: int) -> Any:
        column = self.columns.get(meaning, "")
        try:
            return cell_value(meaning, column, self.text(row, column, line))
        except UsageError as error:
            raise self.table.error(line, str(error)) from None

    def place(self, row: Row, line: int) -> tuple[str, str]:
        """Return root label and relative path of a row."""
        path = self.path(row, line)
        place = self.places.place(path)
        if place is None and not self.outer_roots:
            self.outer_roots = self.places.add_outer_roots(self.path(row, line) for line, row in self.table.rows())
            place = self.places.place(path)
        assert place is not None
        self._check_path(path, path_problem(place[1]), line)
        return place


def open_rows(path: Path, *, is_labels: bool = False) -> CsvIndexRows | ListRows:
    """Open an index or a hand-written list. Raises as ``CsvTable`` and the two classes do."""
    table = CsvTable(path)
    return CsvIndexRows(table) if table.is_index else ListRows(table, is_labels=is_labels)


def csv_source(path: Path) -> CsvIndexRows | ListRows:
    """Open an index or a list as a source of records, which are surveyed first. Raises as ``open_rows`` does."""
    rows = open_rows(path)
    rows.survey()
    return rows


# Writing


class CsvSink:
    """A writer of records as rows. Rows wait in a temporary file until all columns of the header row are known."""

    def __init__(self, file: TextIO, header: Mapping[str, Any]) -> None:
        self._file, self._roots, self._columns = file, header["roots"], header.get("columns", {})
        folder = Path(file.name).parent
        self._body = tempfile.TemporaryFile("w+", dir=folder, encoding="utf-8", newline="")  # noqa: SIM115 - close()
        self._writer = csv.writer(self._body, lineterminator="\n")
        self._first_rows: dict[str, int] = {}
        """Name of each extra column to the number of rows that were written before it appeared"""
        self._num_rows = 0

    def write(self, record: VideoRecord) -> None:
        """Append one row."""
        for name in record.extra:
            self._first_rows.setdefault(name, self._num_rows)
        if problem := too_many_columns(len(self._first_rows)):
            raise UsageError(f"output: {problem} Or write a .json or .jsonl file.")
        row = [to_cell(self._fact(record, column)) for column in COLUMNS]
        self._writer.writerow(row + [to_cell(record.extra.get(name)) for name in self._first_rows])
        self._num_rows += 1

    def _fact(self, record: VideoRecord, column: Column) -> object:
        if column.name == "root_path":
            return self._roots[record.root]
        holder: Any = record if column.part is None else getattr(record, column.part)
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
        is_typed = kind != "str" or name.rpartition(":")[2] in COLUMN_TYPES
        has_prefix = not name or name in _KNOWN or name.startswith(_EXTRA)
        return f"{_EXTRA * has_prefix}{name}{f':{kind}' * is_typed}"

    def close(self) -> None:
        """Free the temporary file."""
        self._body.close()
