"""Split files: the names of the videos of a training or a validation set, in the forms in which they are published."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from chordcache.errors import NotFoundError, UsageError, printable
from chordcache.index.lists.tables import open_rows

_NAME_COLUMNS = (
    "key", "path", "file_name", "filename", "file", "video_path", "clip_path", "video", "video_name", "clip",
    "video_id", "videoid", "youtube_id", "id", "name",
)  # fmt: skip
"""Columns of names. The first that a table has counts."""

_TIMES = ("time_start", "time_end")

_TABLES = (".json", ".jsonl", ".ndjson", ".parquet")
"""Suffixes of tables that are not text with a name on each line"""

_DELIMITERS = ("\t", ",", ";")

_NUM_SAMPLED = 100
"""Number of lines that show the form of a file"""


class SplitFile(NamedTuple):
    """The names in a split file."""

    names: list[str]
    """First reading of each row that is not blank or a comment"""
    lines: list[int]
    """Number of the line, or of the record, of each name, counted from 1"""
    others: Callable[[str], Iterator[str]]
    """Function that yields other readings of a name, the likeliest first"""


def read_split(path: Path, knows: Sequence[Callable[[str], bool]]) -> SplitFile:
    """Read a split file.

    Parameters
    ----------
    path : Path
        UTF-8 text with a name on each line, which columns may follow. They are separated by tabs, commas, semicolons or
        spaces. A header line names its columns, one of which is of names, such as "path". Or a table of ``open_rows``.
    knows : sequence of callable
        Functions that say whether a name is that of a video, the strictest first. They show which column has the
        names, and are called for the first lines only.

    Returns
    -------
    SplitFile

    Raises
    ------
    NotFoundError
        If the file cannot be read.
    UsageError
        If it is not text, or has no name.
    """
    split = _of_table(path) if path.suffix.lower() in _TABLES else _of_text(path, knows)
    if not split.names:
        raise UsageError(
            f"split file '{printable(path)}': got no video, expected at least one. Write a name on a line."
        )
    return split


def _of_table(path: Path) -> SplitFile:
    table = open_rows(path)
    column = next((name for name in _NAME_COLUMNS if name in table.types), None)
    if column is None:
        raise UsageError(
            f"split file '{printable(path)}': got the columns {table.found}, expected one of {', '.join(_NAME_COLUMNS)}"
        )
    rows = [(number, str(row[column])) for number, row in table.rows() if column in row]
    return SplitFile([name for _, name in rows], [number for number, _ in rows], _none)


def _of_text(path: Path, knows: Sequence[Callable[[str], bool]]) -> SplitFile:
    try:
        # As os.fsdecode does: a path that is not UTF-8 can still be written in the file
        text = path.read_text(encoding="utf-8-sig", errors="surrogateescape")
    except OSError as error:
        raise NotFoundError(f"cannot read split file '{printable(path)}': {error.strerror}") from None
    if "\0" in text:
        raise UsageError(
            f"split file '{printable(path)}': got binary data, expected UTF-8 text with a name on each line"
        )
    csv.field_size_limit(len(text) + 1)  # the default of 128 KiB is less than some captions
    entries = enumerate(map(str.strip, text.split("\n")), start=1)
    numbered = [(number, entry) for number, entry in entries if entry and not entry.startswith("#")]
    lines = [entry for _, entry in numbered]
    sampled = lines[:_NUM_SAMPLED]
    delimiter = next((d for d in _DELIMITERS if sum(d in line for line in sampled) * 2 > len(sampled)), None)
    columns = [cell.strip().lower() for cell in _cells(lines[0], delimiter)] if lines else []
    if any(name in columns for name in _NAME_COLUMNS) and not knows[0](lines[0]):
        if delimiter is not None:
            return _with_header(columns, lines, [number for number, _ in numbered], delimiter)
        del numbered[0], lines[0]
    others = _beginnings if delimiter is None else partial(_cell, delimiter, _column(sampled, delimiter, knows))
    return SplitFile(lines, [number for number, _ in numbered], others)


def _with_header(columns: list[str], lines: list[str], numbers: list[int], delimiter: str) -> SplitFile:
    """Read a table whose first line names its columns. The clips of Kinetics have names of an id and two times."""
    column = columns.index(next(name for name in _NAME_COLUMNS if name in columns))
    times = [columns.index(name) for name in _TIMES if name in columns] if columns[column] == "youtube_id" else []
    rows = csv.reader(lines, delimiter=delimiter, skipinitialspace=True)
    names, number_of = [], []
    for cells in rows:
        if rows.line_num > 1:
            name = cells[column].strip() if len(cells) > column else ""
            names.append(_clip_name(name, cells, times) if len(times) == len(_TIMES) else name)
            number_of.append(numbers[rows.line_num - 1])
    return SplitFile(names, number_of, _without_times if len(times) == len(_TIMES) else _none)


def _clip_name(name: str, cells: list[str], times: list[int]) -> str:
    try:
        return "_".join((name, *(f"{int(float(cells[place])):06d}" for place in times)))
    except (ValueError, IndexError, OverflowError):
        return name


def _without_times(name: str) -> Iterator[str]:
    yield name.rsplit("_", 2)[0]


def _none(name: str) -> Iterator[str]:
    return iter(())


def _cells(line: str, delimiter: str | None) -> list[str]:
    if delimiter is None:
        return line.split()
    return next(csv.reader([line], delimiter=delimiter, skipinitialspace=True), [])


def _cell(delimiter: str, column: int, line: str) -> Iterator[str]:
    cells = _cells(line, delimiter)
    if column < len(cells):
        yield cells[column].strip()


def _column(lines: list[str], delimiter: str, knows: Sequence[Callable[[str], bool]]) -> int:
    """Return the column that most often has the name of a video, the first of several."""
    rows = [_cells(line, delimiter) for line in lines]
    for is_known in knows:
        hits = [sum(is_known(cell.strip()) for cell in column) for column in zip_longest(*rows, fillvalue="")]
        if any(hits):
            return hits.index(max(hits))
    return 0


def _beginnings(line: str) -> Iterator[str]:
    """Yield the text in quotation marks, or else the line without its last column, without the last two, and so on."""
    if line[0] in "\"'" and line[0] in line[1:]:
        yield line[1 : line.index(line[0], 1)]
    while len(parts := line.rsplit(maxsplit=1)) == 2:
        line = parts[0]
        yield line
