"""The index as CSV, for people and other programs, and lists of paths that a person wrote.

An index is written with a column for each fact. It is read as a list is: its roots, paths, segments, labels, captions
and extra columns. Facts are read from JSON only.
"""

from __future__ import annotations

import csv
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TextIO

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
from chordcache.json_records import Record, parse_json
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

_PATHS = ("path", "root", "root_path")
"""Columns that may have bytes that are not UTF-8"""


class Column(NamedTuple):
    """A column that chordcache itself writes."""

    name: str
    part: str | None
    """Field of ``VideoRecord`` that holds the facts, or None for the record itself"""
    field: str


def _columns_of(part: str | None, kind: type[Record], prefix: str = "") -> Iterator[Column]:
    return (Column(prefix + name, part, name) for name in kind.__struct_fields__)


COLUMNS = (
    *(Column(name, None, name) for name in ("root", "root_path", "path")),
    *_columns_of("segment", Segment, "segment_"),
    *(Column(name, None, name) for name in ("label", "labels", "caption", "captions")),
    *_columns_of("identity", Identity),
    *(Column(name, None, name) for name in ("level", "error", "error_cause", "error_stage")),
    *_columns_of("header", HeaderFacts),
    *(column for column in _columns_of("packets", PacketFacts) if column.name != "frame_steps"),  # bytes, for programs
    *_columns_of("audio", AudioFacts, "audio_"),
    *_columns_of("content", ContentFacts),
)
"""Columns in the order in which they are written. The extra columns of a labels file follow."""

_KNOWN = frozenset(column.name for column in COLUMNS)
_EXTRA = "extra."
"""Prefix of the name of an extra column that has the name of one of chordcache's columns."""


# Reading


class PathTable(CsvTable):
    """A CSV file with a column for the path: an index, or a hand-written list.

    In a hand-written list, the columns that have a meaning get the names that an index has for them. No bounds of
    segments are looked for in ``labels`` of files. Raises as ``CsvTable`` and ``columns_of`` do.
    """

    def __init__(self, path: Path, *, is_labels: bool = False) -> None:
        super().__init__(path)
        used = self.types if is_labels else ()
        self.columns = {} if self.is_index else columns_of(self, ListOptions(), used)
        """Meaning to the column of a hand-written list that has it"""
        fields = {column: BOUNDS[name] for name, column in self.columns.items() if name in BOUNDS}
        own = {column: name for name, column in self.columns.items() if name not in BOUNDS}
        self._names = [own.get(name, name) for name in self._names]
        self.types = {own.get(name, name): kind for name, kind in self.types.items()}
        if self.types.get("path") != "str":
            raise UsageError(f"'{printable(path)}': got the columns {self.column_names}, expected a column 'path'")
        if self.is_index:
            fields = {f"segment_{name}": name for name in SEGMENT_COLUMNS if f"segment_{name}" in self.types}
        self.segment_columns = fields
        """Each column that is a bound of the segment to its parameter of ``segment_between``"""
        known, prefix = (_KNOWN, _EXTRA) if self.is_index else ({*own.values(), *fields}, "")
        self.extras = {name: name.removeprefix(prefix) for name in self.types if name not in known}
        """Each column without a meaning to its name in ``VideoRecord.extra``"""
        self.extra_types = {extra: kind for name, extra in self.extras.items() if (kind := self.types[name]) != "str"}
        """Type of each extra column that is not text"""
        self.stated = {*self.extras.values(), *(() if self.is_index else self.types.keys() & TEXTS)}
        """Columns whose empty cells count, see ``IndexHeader``. The columns for texts of an index may be all empty"""

    @property
    def taken(self) -> str:
        """The sentence about the columns of a hand-written list, or "" of an index."""
        return "" if self.is_index else taken(self.columns, list(self.extras))

    def text(self, row: Row, name: str, line: int) -> str:
        """Return the text of a cell. In a hand-written file only a path may be quoted as chordcache quotes it."""
        cell = row.get(name, "")
        cell = cell if isinstance(cell, str) else as_text(cell)
        may_have_fault = len(cell) > MAX_TEXT_CHARS or (not cell.isascii() and name not in _PATHS)
        if may_have_fault and (problem := text_problem(f"column '{printable(name)}'", cell)):
            raise self.error(line, problem)
        try:
            return text_of(cell) if self.is_index or (name == "path" and is_quoted(cell)) else cell
        except ValueError as error:
            if self.is_index:
                raise self.error(line, f"column '{name}' holds '{printable(cell)}': {error}") from None
            return cell

    def twice(self, line: int, path: str, first: int) -> UsageError:
        """Return the error of a line with the path of an earlier one."""
        return self.error(line, f"got '{printable(path)}' twice, expected it once; line {first} has it too")

    def fields(self, row: Row, line: int) -> dict[str, Any]:
        """Return the fields of ``Description`` that a row states. Empty cells count as missing."""
        if self.is_index:
            names = ("labels", "captions")
            fields: dict[str, Any] = {name: self._several(row, name, line) for name in names if name in row}
            fields |= {name: self.text(row, name, line) for name in ("label", "caption") if name in row}
        else:
            fields = described(self.said(row, "label", line), self.said(row, "caption", line))
        if "label" in fields:
            fields["label"] = label_of(fields["label"])
        fields["extra"] = {
            extra: self.text(row, name, line) if self.types[name] == "str" else row[name]
            for name, extra in self.extras.items()
            if name in row
        }
        if self.segment_columns:
            fields["segment"] = self._segment(row, line)
        return fields

    def said(self, row: Row, name: str, line: int) -> tuple[str, ...]:
        """Return the texts of a cell "label" or "caption", which is a list in some hand-written files."""
        try:
            value = cell_value(name, self.columns.get(name, name), self.text(row, name, line))
        except UsageError as error:
            raise self.error(line, str(error)) from None
        return labels_in(value) if name == "label" else texts(value)

    def _segment(self, row: Row, line: int) -> Segment | None:
        """Return the segment that a row names, or None for the whole file."""
        try:
            return segment_between(**{field: row.get(name) for name, field in self.segment_columns.items()})
        except UsageError as error:
            raise self.error(line, str(error)) from None

    def _several(self, row: Row, name: str, line: int) -> tuple[str, ...]:
        try:
            return parse_json(row[name], tuple[str, ...])
        except ValueError as error:
            raise self.error(line, f"column '{name}' holds '{printable(row[name])}': {printable(str(error))}") from None


class CsvSource:
    """The records of a CSV file, without facts."""

    def __init__(self, path: Path) -> None:
        self._table = PathTable(path)
        folder = str(path.parent)
        self._places = ListRoots(folder, {} if self.is_index else {os.path.basename(folder) or "root": folder})
        self._outer_roots: dict[str, str] = {}
        """Roots that were made for paths outside of the folder of a hand-written list"""
        self._numbers = NumberCheck()
        self.num_records = 0
        self.taken = self._table.taken
        used = self._survey()
        roots = {root: folder for root, folder in self._places.roots.items() if root in used}
        self.header = IndexHeader(
            FORMAT,
            roots or self._places.roots,
            columns=self._table.extra_types,
            stated=tuple(sorted(self._table.stated)),
        )

    @property
    def is_index(self) -> bool:
        """True if ``CsvSink`` wrote the file, not a person."""
        return self._table.is_index

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about a hand-written list that a person should read."""
        roots = [roots_note(self._outer_roots)] if self._outer_roots else []
        return (*roots, *([f"label: {problem}"] if (problem := self._numbers.problem) else []))

    def _survey(self) -> set[str]:
        """Read all names once, so that a mistake in a list is reported before any work is done. Return the roots."""
        used: set[str] = set()
        first_lines: dict[int, int] = {}
        for line, row in self._table.rows():
            root, path = self._place(row, line)
            used.add(root)
            name = self._places.real(os.path.join(self._places.roots[root], path))
            segment = [str(row.get(column)) for column in self._table.segment_columns]
            first = first_lines.setdefault(hash((name, *segment)), line)
            if first != line:
                raise self._table.twice(line, path, first)
            self._numbers.add(self._table.said(row, "label", line))
            self._table.stated |= row.keys() & TEXTS
            self.num_records += 1
        return used

    def _place(self, row: Row, line: int) -> tuple[str, str]:
        """Return root label and relative path of a row."""
        path = self._table.text(row, "path", line)
        root, inner = self._root_of(row, line), path
        if root is None:
            root, inner = self._placed(path)
        if problem := path_problem(inner) or (spelling_problem(inner) if self.is_index else None):
            raise self._table.error(line, f"the path '{printable(path)}' cannot be used: {problem}")
        return root, inner

    def _root_of(self, row: Row, line: int) -> str | None:
        """Return the label of the root that a row of an index names, or None in a hand-written list."""
        if not self.is_index:
            return None
        root, folder = (self._table.text(row, name, line) for name in ("root", "root_path"))
        if not root or not folder.startswith("/"):
            raise self._table.error(line, "columns 'root' and 'root_path' do not name a folder")
        if self._places.roots.setdefault(root, folder) != folder:
            raise self._table.error(line, f"root '{printable(root)}' has two folders")
        return root

    def _placed(self, path: str) -> tuple[str, str]:
        """Return root label and relative path of a path of a hand-written list."""
        place = self._places.place(path)
        if place is None and not self._outer_roots:
            paths = (self._table.text(row, "path", line) for line, row in self._table.rows())
            self._outer_roots = self._places.add_outer_roots(paths)
            place = self._places.place(path)
        assert place is not None
        return place

    def located(self, file: BinaryIO) -> Iterator[tuple[int, VideoRecord]]:
        """Yield the byte offset and the record of every row."""
        for offset, line, row in self._table.located(file):
            yield offset, self._record(row, line)

    def at(self, file: BinaryIO, offset: int) -> VideoRecord:
        """Read the record of the row at a byte offset."""
        file.seek(offset)
        _, line, row = next(self._table.located(file))
        return self._record(row, line)

    def _record(self, row: Row, line: int) -> VideoRecord:
        root, path = self._place(row, line)
        return VideoRecord(root, path, **self._table.fields(row, line))


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
