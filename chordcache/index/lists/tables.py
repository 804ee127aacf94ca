"""Tables as streams of numbered rows: CSV, TSV, JSON, JSON Lines and Parquet. All lists are read by this module.

Text is UTF-8, with a byte order mark or without.
"""

from __future__ import annotations

import csv
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO

from chordcache.amounts import shortened
from chordcache.config.bounds import MAX_ROW_BYTES, too_many_columns, whole_lines
from chordcache.errors import ChordcacheError, NotFoundError, UsageError, printable
from chordcache.index.cells import text_of
from chordcache.index.column_types import COLUMN_TYPES, add_kinds, extra_problem, settled
from chordcache.index.encoding import HEAD_BYTES, check_narrow, small_text, text_problem
from chordcache.index.json_values import decode_json, read_json
from chordcache.index.lists.parquet import open_parquet
from chordcache.storage.opener import check_regular, readable

Row = dict[str, Any]
"""Column to value. Empty cells are left out."""

_NOTHING: Mapping[str, str] = MappingProxyType({})
_MAX_MESSAGE_CHARS = 1000
"""Length of a message, which may quote a value of the list"""

TOO_LARGE = f"got a row of more than {MAX_ROW_BYTES:,} bytes, expected a smaller one"


def as_text(value: Any) -> str:
    """Return a value as text. A whole number is decimal, None and NaN are empty, and lists and objects are JSON."""
    if value is None or value != value:
        return ""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    is_json = isinstance(value, bool | int | float | list | dict)
    return json.dumps(value, ensure_ascii=False, default=str) if is_json else str(value)


def row_error(path: Path, unit: str, row: int, message: str) -> UsageError:
    """Return the error of a row of a list."""
    return UsageError(f"'{printable(path)}', {unit} {row}: {shortened(message, _MAX_MESSAGE_CHARS)}")


def check_width(path: Path, columns: Sized) -> None:
    """Raise ``UsageError`` if a list has too many columns."""
    if problem := too_many_columns(len(columns)):
        raise UsageError(f"'{printable(path)}': {problem}")


# Files


def open_for_reading(path: Path, advice: str = ". Correct the path.") -> BinaryIO:
    """Open a file that a user named.

    Raises ``NotFoundError`` with ``advice`` at its end, ``StorageError``, or ``UsageError`` for UTF-16 and UTF-32.
    """
    try:
        with readable(path):
            check_regular(os.stat(path))  # before the open, which would wait for the writer of a pipe
            file = open(path, "rb")  # noqa: SIM115 - the caller closes it
    except FileNotFoundError:
        raise NotFoundError(f"no such file '{printable(path)}'{advice}") from None
    try:
        with readable(path):
            head = file.peek(HEAD_BYTES)
        check_narrow(path, head)
    except ChordcacheError:
        file.close()
        raise
    return file


def text_lines(path: Path, what: str | None = None, *, comment: str | None = None) -> Iterator[tuple[int, str]]:
    """Yield number and text of each line that is not blank, without space around it.

    Bytes that are not UTF-8 become surrogates. If ``what`` names the text for messages, such a line raises
    ``UsageError``. Lines that begin with ``comment`` are left out.
    """
    with open_for_reading(path) as file:
        for number, line in enumerate(whole_lines(file), 1):
            if len(line) > MAX_ROW_BYTES:
                raise row_error(path, "line", number, TOO_LARGE)
            text = _decoded(line, number == 1).strip()
            if what is not None and (problem := text_problem(what, text)):
                raise row_error(path, "line", number, problem)
            if text and text[0] != comment:
                yield number, text


def _decoded(line: bytes, is_first: bool) -> str:
    return line.decode("utf-8-sig" if is_first else "utf-8", "surrogateescape")


# Tables


class Table:
    """A list with named columns.

    ``unit`` is the word for a row in messages, "line" or "record". ``types`` has the type of each column, of
    ``COLUMN_TYPES``. ``rows`` yields the number of each row, counted from 1, and its values.
    """

    def __init__(
        self, path: Path, unit: str, types: Mapping[str, str], rows: Callable[[], Iterator[tuple[int, Row]]]
    ) -> None:
        self.path, self.unit, self.types, self.rows = path, unit, types, rows

    @property
    def column_names(self) -> str:
        """The names of the columns, for a message."""
        return shortened(", ".join(f"'{printable(name)}'" for name in self.types), _MAX_MESSAGE_CHARS) or "none"

    def error(self, row: int, message: str) -> UsageError:
        """Return the error of a row."""
        return row_error(self.path, self.unit, row, message)

    def value(self, name: str, value: Any) -> Any:
        """Return a value as its column's type stores it. A value of a mixed column becomes text."""
        if self.types[name] == "str":
            return as_text(value)
        return None if isinstance(value, float) and math.isnan(value) else value


def open_table(path: Path, declared: Mapping[str, str] = _NOTHING, header: Sequence[str] = ()) -> Table:
    """Open a list by its suffix: .csv, .tsv, .json, .jsonl, .ndjson or .parquet.

    ``declared`` has the types of columns of a CSV file whose header row does not state them, and ``header`` the columns
    of one without a header row. Raises ``NotFoundError``, or ``UsageError`` if the suffix is another one or the file is
    not of its format.
    """
    suffix = path.suffix.lower()
    if suffix in (".csv", ".tsv"):
        table = CsvTable(path, "\t" if suffix == ".tsv" else ",", declared, header=header)
        if table.is_index:
            raise UsageError(
                f"'{printable(path)}': got an index of chordcache, expected a list. Build from it: 'chordcache build'."
            )
        return table
    if header:
        raise UsageError(f"header: got it for '{printable(path)}', expected a .csv or .tsv file. Leave it out.")
    open_for_reading(path).close()
    if suffix == ".parquet":
        types, rows = open_parquet(path)
        return Table(path, "record", types, rows)
    if suffix not in (".json", ".jsonl", ".ndjson"):
        raise UsageError(f"'{printable(path)}': expected a .csv, .tsv, .json, .jsonl or .parquet file")
    if suffix == ".json":
        return _typed(path, "record", lambda: json_records(path))
    return _typed(path, "line", lambda: json_lines(path))


# CSV


def split_name(header: str) -> tuple[str, str | None]:
    """Return the name and the type of a header such as "score:float". The type is None if the header states none."""
    name, _, kind = header.rpartition(":")
    return (name, kind) if kind in COLUMN_TYPES else (header, None)


def csv_reader(texts: Iterable[str], delimiter: str, *, is_split: bool) -> Any:
    """Return a ``csv.reader``. Space may precede a cell. In split files, quotation marks need not be in pairs."""
    csv.field_size_limit(MAX_ROW_BYTES)  # the default of 128 KiB is less than the keyframes of a long video
    return csv.reader(texts, delimiter=delimiter, strict=not is_split, skipinitialspace=True)


class CsvTable(Table):
    """A CSV file with a header row. The column root_path marks a file that chordcache wrote, not a person.

    Space around a cell does not count. Lines with # at the start are comments. The last is the header row if it has as
    many cells as the first row, as in AudioSet. ``header`` has the columns of a file without a header row, and
    ``declared`` the types of columns whose header does not state one. ``is_split`` reads as published split files need
    it: all lines with # are comments, a row may have any number of cells, and names of columns are lowercase. Raises
    ``NotFoundError``, or ``UsageError`` if the file has a column twice.
    """

    def __init__(
        self,
        path: Path,
        delimiter: str = ",",
        declared: Mapping[str, str] = _NOTHING,
        *,
        header: Sequence[str] = (),
        is_split: bool = False,
    ) -> None:
        self._delimiter, self._is_split = delimiter, is_split
        self._comment = ""
        """Last comment before the first row"""
        super().__init__(path, "line", {}, self._rows)
        with open_for_reading(path) as file:
            line, cells = next(((line, cells) for _, line, cells in self._lines(file) if cells), (1, []))
        comment: list[str] = next(csv_reader([self._comment], delimiter, is_split=True), [])
        given = header or (comment if 1 < len(comment) == len(cells) else ())
        self._has_header_row, cells = not given, list(given) or cells
        check_width(path, cells)
        self.is_index = "root_path" in cells
        self._names: list[str] = []
        types: dict[str, str] = {}
        for cell in cells:
            if problem := text_problem("the name of a column", cell):
                raise self.error(line, problem)
            name, kind = split_name(self._header(line, cell))
            if name in types:
                raise UsageError(f"'{printable(path)}': got the column '{printable(name)}' twice, expected it once")
            self._names.append(name)
            if name:
                types[name] = kind or declared.get(name, "str")
        self.types = types
        self._typed = [(name, kind) for name, kind in types.items() if kind != "str"]

    def _header(self, line: int, cell: str) -> str:
        try:
            return text_of(cell) if self.is_index else cell.strip().lower() if self._is_split else cell.strip()
        except ValueError as error:
            raise self.error(line, f"the header row holds '{printable(cell)}': {error}") from None

    def _rows(self) -> Iterator[tuple[int, Row]]:
        with open_for_reading(self.path) as file:
            for _, line, row in self.located(file):
                yield line, row

    def located(self, file: BinaryIO) -> Iterator[tuple[int, int, Row]]:
        """Yield (byte offset, number of the line, values) of each row from the position of the table's file on.

        Lines without text are left out, as spreadsheets write them. A hand-written line may end early or with
        delimiters.
        """
        names, has_header = self._names, self._has_header_row and file.tell() == 0
        num_columns, may_differ, typed = len(names), self._is_split, self._typed
        for offset, line, cells in self._lines(file):
            if has_header or not cells:
                has_header = has_header and not cells
                continue
            if len(cells) != num_columns and not may_differ:
                self._check_number(line, cells)
            if cells[0].strip() or any(map(str.strip, cells)):
                row: Row = dict(zip(names, cells, strict=False))
                if "" in row or "" in cells:
                    row = {name: cell for name, cell in row.items() if name and cell}
                for name, kind in typed:
                    if name in row:
                        row[name] = self._value(line, name, kind, row[name])
                yield offset, line, row

    def _lines(self, file: BinaryIO) -> Iterator[tuple[int, int, list[str]]]:
        """Yield offset, number and cells of each line from the position of a file on, none of a blank one."""
        position, line, num_bytes = file.tell(), 1, 0
        may_be_comment = self._is_split or position == 0

        def texts() -> Iterator[str]:
            nonlocal position, num_bytes, may_be_comment
            for data in whole_lines(file):
                num_bytes += len(data)
                if num_bytes > MAX_ROW_BYTES:
                    raise self.error(line, TOO_LARGE)
                text = _decoded(data, position == 0)
                position += len(data)
                bare = text.strip() if may_be_comment else ""
                if bare.startswith("#"):
                    self._comment, text = bare.lstrip("#"), "\n"
                elif bare:
                    may_be_comment = self._is_split
                yield text

        offset = position
        reader = csv_reader(texts(), self._delimiter, is_split=self._is_split)
        try:
            for cells in reader:
                yield offset, line, [cell.rstrip(" ") for cell in cells]
                offset, line, num_bytes = position, reader.line_num + 1, 0
        except csv.Error as error:
            raise self.error(line, f"not CSV: {error}") from None

    def _check_number(self, line: int, cells: list[str]) -> None:
        """Raise if a line has too many cells, or too few of an index."""
        num_columns = len(self._names)
        has_surplus = len(cells) > num_columns and (any(cells[num_columns:]) or not any(cells))
        if self.is_index or has_surplus:
            raise self.error(line, f"{len(cells)} cells, but the header row has {num_columns}")

    def _value(self, line: int, name: str, kind: str, cell: str) -> Any:
        """Return the value of a cell of a column with a type."""
        try:
            value = decode_json(cell.lower() if kind == "bool" else cell)
        except json.JSONDecodeError:
            is_plain = kind == "list[str]" and not cell.startswith("[")
            value = [text.strip() for text in cell.split(",")] if is_plain else cell
        except ValueError as error:
            raise self.error(line, f"column '{printable(name)}': {printable(str(error))}") from None
        if not COLUMN_TYPES[kind](value) and (problem := extra_problem({name: value}, {name: kind})):
            raise self.error(line, problem)
        return value


# JSON


def json_records(path: Path, inside: str | None = None) -> Iterator[tuple[int, Row]]:
    """Yield number and members of each object of a JSON array. Raises ``UsageError`` if the file is not a list.

    Of an object, the objects in the arrays that are its members count, as in MSR-VTT. If it has no arrays, its members
    count, and the column ``key`` has their names, as in ActivityNet Captions. ``inside`` names the member to read.
    """
    try:
        with open_for_reading(path) as file:
            rows = _objects(decode_json(read_json(file, path)), inside)
    except UsageError:
        raise
    except ValueError as error:
        raise row_error(path, "record", 1, f"not JSON of a list: {printable(str(error))}") from None
    for number, row in enumerate(rows, 1):
        try:
            yield number, members(row)
        except ValueError as error:
            raise row_error(path, "record", number, f"not JSON of a list: {printable(str(error))}") from None


def _objects(data: Any, inside: str | None) -> list[Any]:
    if isinstance(data, list):
        return data
    if not isinstance(data, dict):
        raise ValueError("expected an array or an object")
    if inside is not None:
        data = members(data.get(inside, {}))
    arrays = [value for value in data.values() if isinstance(value, list)] if inside is None else []
    return [row for array in arrays for row in array] or [{"key": key} | members(value) for key, value in data.items()]


def json_lines(path: Path) -> Iterator[tuple[int, Row]]:
    """Yield number and members of the object on each line that is not blank. Raises ``UsageError``."""
    for number, text in text_lines(path):
        try:
            yield number, members(decode_json(text))
        except UsageError:
            raise
        except ValueError as error:
            raise row_error(path, "line", number, f"not JSON: {printable(str(error))}") from None


def json_object(path: Path) -> Row:
    """Return the members of the object in a small JSON file. Raises ``OSError``, or ``UsageError`` if it is not one."""
    return object_in(path, small_text(path))


def object_in(path: str | Path, text: str) -> Row:
    """Return the members of the object in the text of a JSON file. Raises ``UsageError`` if it is not one."""
    try:
        return members(decode_json(text))
    except ValueError as error:
        raise UsageError(f"'{printable(path)}': expected a JSON object ({printable(str(error))})") from None


def members(value: Any) -> Row:
    """Return the members of an object that are not null. Raises ValueError if it is another value."""
    if not isinstance(value, dict):
        raise ValueError(f"got {type(value).__name__}, expected an object")
    return {name: member for name, member in value.items() if member is not None}


def _typed(path: Path, unit: str, rows: Callable[[], Iterator[tuple[int, Row]]]) -> Table:
    """Read all rows once for the types of their columns, because the header of an index states them first."""
    kinds: dict[str, str] = {}
    for _, row in rows():
        add_kinds(kinds, row)
        check_width(path, kinds)
    kinds = settled(kinds)
    names = {header: split_name(header)[0] for header in kinds}
    types = {names[header]: split_name(header)[1] or kind for header, kind in kinds.items()}
    if len(types) < len(names):
        raise UsageError(f"'{printable(path)}': got a column with two types, expected each column once")

    def renamed() -> Iterator[tuple[int, Row]]:
        for number, row in rows():
            yield number, {names[header]: value for header, value in row.items()}

    return Table(path, unit, types, rows if names.keys() == types.keys() else renamed)
