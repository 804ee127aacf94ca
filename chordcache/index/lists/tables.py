"""Lists with named columns, as streams of rows: CSV, TSV, JSON, JSON Lines and Parquet."""

from __future__ import annotations

import codecs
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from chordcache.errors import UsageError, printable
from chordcache.index.csv_index import ExtraColumn, extra_value, split_name
from chordcache.index.csv_table import Table, open_any_table, open_for_reading
from chordcache.index.json_stream import JsonStream
from chordcache.index.lists.items import as_text, row_error
from chordcache.index.lists.parquet import open_parquet
from chordcache.storage.sealed_json import FINITE_JSON

Row = dict[str, Any]
"""Column to value. Empty cells are left out."""


@dataclass(frozen=True)
class RowTable:
    """A list with named columns."""

    path: Path
    unit: str
    """Word for a row, for messages: "line" or "record" """
    types: Mapping[str, str]
    """Name of each column to its type, of ``COLUMN_TYPES``"""
    rows: Callable[[], Iterator[tuple[int, Row]]]
    """Function that yields the number of each row, counted from 1, and its values"""

    @property
    def found(self) -> str:
        """The names of the columns, for a message."""
        return ", ".join(f"'{printable(name)}'" for name in self.types) or "none"

    def error(self, row: int, message: str) -> UsageError:
        """Return the error of a row."""
        return row_error(self.path, self.unit, row, message)

    def value(self, name: str, value: Any) -> Any:
        """Return a value as its column's type stores it. A value of a mixed column becomes text."""
        if self.types[name] == "str":
            return as_text(value)
        return None if isinstance(value, float) and math.isnan(value) else value


def open_rows(path: Path, declared: Mapping[str, str] = MappingProxyType({})) -> RowTable:
    """Open a list by its suffix: .csv, .tsv, .json, .jsonl, .ndjson or .parquet.

    Parameters
    ----------
    path : Path
        The list.
    declared : Mapping[str, str]
        Types of columns of a CSV file whose header row does not state them.

    Raises
    ------
    NotFoundError
        If the file does not exist.
    UsageError
        If the suffix is another one, or the file is not of its format.
    """
    open_for_reading(path).close()
    suffix = path.suffix.lower()
    if suffix in (".csv", ".tsv"):
        return _open_csv(path, "\t" if suffix == ".tsv" else ",", declared)
    if suffix == ".parquet":
        types, rows = open_parquet(path)
        return RowTable(path, "record", types, rows)
    if suffix not in (".json", ".jsonl", ".ndjson"):
        raise UsageError(f"'{printable(path)}': expected a .csv, .tsv, .json, .jsonl or .parquet file")
    if suffix == ".json":
        return _typed(path, "record", lambda: json_records(path))
    return _typed(path, "line", lambda: json_lines(path))


# CSV


def _open_csv(path: Path, delimiter: str, declared: Mapping[str, str]) -> RowTable:
    table = open_any_table(path, delimiter)
    if table.is_own:
        raise UsageError(
            f"'{printable(path)}': got an index of chordcache, expected a list. Build from it: 'chordcache build'."
        )
    columns = []
    for header in table.columns:
        name, kind = split_name(header)
        columns.append(ExtraColumn(header, name, kind or declared.get(name, "str")))
    types = {column.name: column.type for column in columns if column.name}
    return RowTable(path, "line", types, lambda: _csv_rows(table, columns))


def _csv_rows(table: Table, columns: list[ExtraColumn]) -> Iterator[tuple[int, Row]]:
    typed = [column for column in columns if column.type != "str"]
    names = [column.name for column in columns]
    with open(table.path, "rb") as file:
        for _, line, cells in table.rows(file):
            row: Row = {name: cell for name, cell in zip(names, cells, strict=True) if cell and name}
            for column in typed:
                if column.name in row:
                    row[column.name] = extra_value(table, cells, column, line)
            yield line, row


# JSON


def json_records(path: Path) -> Iterator[tuple[int, Row]]:
    """Yield number and members of each object of a JSON array. Raises ``UsageError`` if the file is not one."""
    number = 0
    with open(path, "rb") as file:
        stream = JsonStream(file)
        try:
            if stream.peek() != "[":
                raise ValueError(f"got '{stream.peek()}' first, expected an array")
            for _ in stream.items():
                number += 1
                yield number, members(stream.value())
        except UsageError:
            raise
        except ValueError as error:
            where = max(number, 1)
            raise row_error(path, "record", where, f"not JSON of a list: {printable(str(error))}") from None


def json_lines(path: Path) -> Iterator[tuple[int, Row]]:
    """Yield number and members of the object on each line that is not blank. Raises ``UsageError``."""
    with open_for_reading(path) as file:
        for number, line in enumerate(file, 1):
            if text := line.removeprefix(codecs.BOM_UTF8 if number == 1 else b"").strip():
                try:
                    yield number, members(FINITE_JSON.decode(text.decode("utf-8", "surrogateescape")))
                except UsageError:
                    raise
                except (ValueError, RecursionError) as error:
                    raise row_error(path, "line", number, f"not JSON: {printable(str(error))}") from None


def members(value: Any) -> Row:
    """Return the members of an object that are not null. Raises ValueError if it is another value."""
    if not isinstance(value, dict):
        raise ValueError(f"got {type(value).__name__}, expected an object")
    return {name: member for name, member in value.items() if member is not None}


def _typed(path: Path, unit: str, rows: Callable[[], Iterator[tuple[int, Row]]]) -> RowTable:
    """Read all rows once for the types of their columns, because the header of an index states them first."""
    kinds: dict[str, str] = {}
    for _, row in rows():
        add_kinds(kinds, row)
    kinds = settled(kinds)
    names = {header: split_name(header)[0] for header in kinds}
    types = {names[header]: split_name(header)[1] or kind for header, kind in kinds.items()}
    if len(types) < len(names):
        raise UsageError(f"'{printable(path)}': got a column with two types, expected each column once")

    def renamed() -> Iterator[tuple[int, Row]]:
        for number, row in rows():
            yield number, {names[header]: value for header, value in row.items()}

    return RowTable(path, unit, types, rows if names.keys() == types.keys() else renamed)


_NUMBERS = ({"int", "float"}, {"list[int]", "list[float]"})


def add_kinds(kinds: dict[str, str], row: Row) -> None:
    """Widen the type of each column so that it holds the value of a row too."""
    for name, value in row.items():
        kind, earlier = _kind_of(value), kinds.get(name)
        if earlier is None or earlier == kind or (earlier == "list" and kind.startswith("list")):
            kinds[name] = kind
        elif {kind, earlier} in _NUMBERS:
            kinds[name] = "list[float]" if kind.startswith("list") else "float"
        elif not (kind == "list" and earlier.startswith("list")):
            kinds[name] = "str"


def settled(kinds: Mapping[str, str]) -> dict[str, str]:
    """Return the types of columns after all rows."""
    return {name: "list[str]" if kind == "list" else kind for name, kind in kinds.items()}


def _kind_of(value: Any) -> str:
    """Return the type of a value. A list without elements is "list", and values that have no type are text."""
    if not isinstance(value, list):
        return {bool: "bool", int: "int", float: "float"}.get(type(value), "str")
    kinds = {type(element) for element in value}
    if kinds <= {int, float}:
        return "list" if not kinds else "list[int]" if kinds == {int} else "list[float]"
    return "list[str]" if kinds == {str} else "str"
