"""CSV files with a header row, as streams of rows; cells that no spreadsheet runs and no terminal obeys.

A text cell that chordcache writes is read back exactly::

    None                                               (empty)
    "" and text with control characters, undecodable
    bytes, or a leading quotation mark                 a JSON string: "a\\nb"
    text that starts with = + - @ or '                 ' and the text
    other text                                         itself

Everything else is JSON: 25, 0.04, true, [0, 12].
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

from chordcache.errors import ChordcacheError, DamageError, NotFoundError, UsageError
from chordcache.storage.layout import printable

_FORMULA = ("=", "+", "-", "@", "'")
_MAX_CELL_CHARS = 1 << 30


def to_cell(value: object) -> str:
    """Write a value so that ``text_of``, or JSON if it is no text, reads it back."""
    if value is None:
        return ""
    if not isinstance(value, str):
        return json.dumps(value, allow_nan=False)
    if not value or not value.isprintable() or value.startswith('"'):
        return json.dumps(value).replace("\x7f", "\\u007f")  # the one control character that JSON leaves as it is
    return "'" + value if value.startswith(_FORMULA) else value


def text_of(cell: str) -> str:
    """Read a text cell that ``to_cell`` wrote. Raises ValueError."""
    if cell.startswith('"'):
        return str(json.loads(cell))
    return cell.removeprefix("'")


def open_for_reading(path: Path, advice: str = "") -> BinaryIO:
    """Open a file that a user named.

    Raises
    ------
    NotFoundError
        If there is no such file; ``advice`` ends the message.
    UsageError
        If it may not be read.
    """
    try:
        return open(path, "rb")
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        raise NotFoundError(f"no such file '{printable(path)}'{advice}") from None
    except PermissionError as error:
        raise UsageError(f"cannot read '{printable(path)}': {error.strerror}") from None


@dataclass(frozen=True)
class Table:
    """A CSV file with a header row: our own, recognised by its column root_path, or a hand-written one."""

    path: Path
    columns: tuple[str, ...]

    @property
    def is_own(self) -> bool:
        """Whether chordcache wrote it."""
        return "root_path" in self._positions

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {name: position for position, name in enumerate(self.columns)}

    def fault(self, line: int, message: str) -> ChordcacheError:
        """The error of a row: damage in a file of ours, a mistake in a hand-written one."""
        return (DamageError if self.is_own else UsageError)(f"'{printable(self.path)}', line {line}: {message}")

    def cell(self, cells: Sequence[str], name: str) -> str:
        """The cell of a column as it stands, empty where there is no such column."""
        position = self._positions.get(name)
        return "" if position is None else cells[position]

    def text(self, cells: Sequence[str], name: str, line: int) -> str:
        """The text in a cell: of a hand-written file as it stands, but a path may be written as chordcache does."""
        cell = self.cell(cells, name)
        is_quoted = name == "path" and (cell.startswith('"') or (cell[:1] == "'" and cell[1:].startswith(_FORMULA)))
        try:
            return text_of(cell) if self.is_own or is_quoted else cell
        except ValueError as error:
            if self.is_own:
                raise self.fault(line, f"column '{name}' holds '{printable(cell)}': {error}") from None
            return cell

    def rows(self, file: BinaryIO) -> Iterator[tuple[int, int, list[str]]]:
        """Yield (byte offset, line number, cells) from where the file stands, the header row left out."""
        rows = _parsed(file, self.fault)
        if file.tell() == 0:
            next(rows, None)
        for offset, line, cells in rows:
            missing = len(self.columns) - len(cells)
            if missing < 0 or (missing and self.is_own):
                raise self.fault(line, f"{len(cells)} cells, but the header row has {len(self.columns)}")
            yield offset, line, cells + [""] * missing


def _parsed(file: BinaryIO, fault: Callable[[int, str], ChordcacheError]) -> Iterator[tuple[int, int, list[str]]]:
    """Yield (byte offset, line number, cells); blank lines are passed over."""
    csv.field_size_limit(_MAX_CELL_CHARS)  # the default of 128 KiB is less than the keyframes of a long video
    position = file.tell()

    def lines() -> Iterator[str]:
        nonlocal position
        for raw in file:
            text = raw.decode("utf-8", "surrogateescape")
            text = text.removeprefix("\ufeff") if position == 0 else text
            position += len(raw)
            yield text

    reader = csv.reader(lines(), strict=True)
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
    """Read the header row of a CSV file.

    Raises
    ------
    NotFoundError
        If there is no such file.
    UsageError
        If it may not be read, has no column ``path``, or one column twice.
    """
    with open_for_reading(path) as file:
        _, _, cells = next(_parsed(file, Table(path, ()).fault), (0, 1, []))
    columns = tuple(text_of(cell) if "root_path" in cells else cell.strip() for cell in cells)
    if "path" not in columns:
        found = ", ".join(f"'{printable(name)}'" for name in columns) or "none"
        raise UsageError(f"'{printable(path)}' has no column 'path'; columns found: {found}")
    for name in columns:
        if name and columns.count(name) > 1:
            raise UsageError(f"'{printable(path)}' has the column '{printable(name)}' twice")
    return Table(path, columns)
