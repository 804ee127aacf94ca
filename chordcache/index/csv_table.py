"""CSV files with a header row, as streams of rows. Their cells are safe in spreadsheets and terminals.

A text cell that chordcache writes is read back exactly::

    None                                               (empty)
    "" and text with control characters, undecodable
    bytes, or a leading quotation mark                 a JSON string: "a\\nb"
    text that starts with = + - @ or '                 ' and the text
    other text                                         itself

All other values are JSON: 25, 0.04, true, [0, 12].
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

from chordcache.errors import ChordcacheError, DamageError, NotFoundError, UsageError, printable
from chordcache.index.encoding import HEAD_BYTES, check_narrow, text_problem
from chordcache.storage.readable import readable

_FORMULA = ("=", "+", "-", "@", "'")
_PATHS = ("path", "root", "root_path")
"""Columns that may have bytes that are not UTF-8"""
_MAX_CELL_CHARS = 1 << 30


def to_cell(value: object) -> str:
    """Return a value as a cell that ``text_of`` reads back, or that JSON reads back if it is not text."""
    if value is None:
        return ""
    if not isinstance(value, str):
        return json.dumps(value, allow_nan=False)
    if not value or not value.isprintable() or value.startswith('"'):
        return json.dumps(value).replace("\x7f", "\\u007f")  # the one control character that JSON leaves as it is
    return "'" + value if value.startswith(_FORMULA) else value


def text_of(cell: str) -> str:
    """Return the text of a cell that ``to_cell`` wrote. Raises ValueError."""
    if cell.startswith('"'):
        return str(json.loads(cell))
    return cell.removeprefix("'")


def open_for_reading(path: Path, advice: str = "") -> BinaryIO:
    """Open a file that a user named.

    Raises
    ------
    NotFoundError
        If the file does not exist. ``advice`` ends the message.
    UnreadableError
        If the file cannot be read.
    UsageError
        If the file is UTF-16 or UTF-32.
    """
    try:
        with readable(path):
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


@dataclass(frozen=True)
class Table:
    """A CSV file with a header row. The column root_path marks a file that chordcache wrote, not a person."""

    path: Path
    columns: tuple[str, ...]
    delimiter: str = ","

    @property
    def is_own(self) -> bool:
        """True if chordcache wrote the file."""
        return "root_path" in self._positions

    @property
    def found(self) -> str:
        """The names of the columns, for a message."""
        return ", ".join(f"'{printable(name)}'" for name in self.columns) or "none"

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {name: position for position, name in enumerate(self.columns)}

    def fault(self, line: int, message: str) -> ChordcacheError:
        """Return the error of a row: damage if chordcache wrote the file, a user's mistake if a person wrote it."""
        return (DamageError if self.is_own else UsageError)(f"'{printable(self.path)}', line {line}: {message}")

    def cell(self, cells: Sequence[str], name: str) -> str:
        """Return the cell of a column unchanged, or "" if the column does not exist."""
        position = self._positions.get(name)
        return "" if position is None else cells[position]

    def text(self, cells: Sequence[str], name: str, line: int) -> str:
        """Return the text of a cell. In a hand-written file only a path may be quoted as chordcache quotes it."""
        cell = self.cell(cells, name)
        may_have_fault = not cell.isascii() and name not in _PATHS
        if may_have_fault and (problem := text_problem(f"column '{printable(name)}'", cell)):
            raise self.fault(line, problem)
        is_quoted = name == "path" and (cell.startswith('"') or (cell[:1] == "'" and cell[1:].startswith(_FORMULA)))
        try:
            return text_of(cell) if self.is_own or is_quoted else cell
        except ValueError as error:
            if self.is_own:
                raise self.fault(line, f"column '{name}' holds '{printable(cell)}': {error}") from None
            return cell

    def rows(self, file: BinaryIO) -> Iterator[tuple[int, int, list[str]]]:
        """Yield (byte offset, line number, cells) from the file's position on, without the header row.

        A hand-written row may end with delimiters. One without any text is left out, as spreadsheets write them.
        """
        rows = _parsed(file, self.fault, self.delimiter)
        if file.tell() == 0:
            next(rows, None)
        for offset, line, cells in rows:
            missing = len(self.columns) - len(cells)
            if missing and (self.is_own or (missing < 0 and (any(cells[missing:]) or not any(cells)))):
                raise self.fault(line, f"{len(cells)} cells, but the header row has {len(self.columns)}")
            if self.is_own or any(map(str.strip, cells)):
                yield offset, line, cells[: len(self.columns)] + [""] * missing


def _parsed(
    file: BinaryIO, fault: Callable[[int, str], ChordcacheError], delimiter: str
) -> Iterator[tuple[int, int, list[str]]]:
    """Yield (byte offset, line number, cells) of each line that is not blank."""
    csv.field_size_limit(_MAX_CELL_CHARS)  # the default of 128 KiB is less than the keyframes of a long video
    position = file.tell()

    def lines() -> Iterator[str]:
        nonlocal position
        for raw in file:
            text = raw.decode("utf-8", "surrogateescape")
            text = text.removeprefix("\ufeff") if position == 0 else text
            position += len(raw)
            yield text

    reader = csv.reader(lines(), delimiter=delimiter, strict=True)
    while True:
        offset, line = position, reader.line_num + 1
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise fault(line, f"not CSV: {error}") from None
        if cells is None:
            return
        if cells:
            yield offset, line, cells


def open_table(path: Path) -> Table:
    """Read the header row of a CSV file with a column ``path``. Raises as ``open_any_table`` does."""
    table = open_any_table(path)
    if "path" not in table.columns:
        raise UsageError(f"'{printable(path)}': got the columns {table.found}, expected a column 'path'")
    return table


def open_any_table(path: Path, delimiter: str = ",") -> Table:
    """Read the header row of a CSV file.

    Raises
    ------
    NotFoundError
        If the file does not exist.
    UsageError
        If the file may not be read, or has a column twice.
    """
    with open_for_reading(path) as file:
        _, _, cells = next(_parsed(file, Table(path, ()).fault, delimiter), (0, 1, []))
    columns = tuple(text_of(cell) if "root_path" in cells else cell.strip() for cell in cells)
    for name, cell in zip(columns, cells, strict=True):
        if problem := text_problem("the name of a column", cell):
            raise UsageError(f"'{printable(path)}', line 1: {problem}")
        if name and columns.count(name) > 1:
            raise UsageError(f"'{printable(path)}': got the column '{printable(name)}' twice, expected it once")
    return Table(path, columns, delimiter)
