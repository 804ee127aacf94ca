"""Split files: the names of the videos of a training or a validation set, in the forms in which they are published."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice, zip_longest
from pathlib import Path
from typing import NamedTuple, TypeAlias

from chordcache.amounts import shortened
from chordcache.arguments import check_choice
from chordcache.errors import NotFoundError, UsageError, printable
from chordcache.index.lists.tables import CsvTable, Row, Table, csv_reader, open_for_reading, open_table, text_lines

_NAME_COLUMNS = (
    "key", "path", "file_name", "filename", "file", "video_path", "clip_path", "video", "video_name", "clip",
    "video_id", "videoid", "youtube_id", "id", "name",
)  # fmt: skip
"""Columns of names. The first that a table has counts."""

_SPLIT_COLUMNS = ("split", "subset", "set")
"""Columns of splits. A column of text that has no header is called as the first"""

_SPLITS = frozenset("train training trainval val valid validate validation dev test testing eval evaluation".split())
"""Names of splits that show a column of text to have them"""

_TIMES = ("time_start", "time_end")

_TABLES = (".json", ".jsonl", ".ndjson", ".parquet")
"""Suffixes of tables that are not text with a name on each line"""

_DELIMITERS = ("\t", ",", ";")

_NUM_SAMPLED = 100
"""Number of lines that show the form of a file"""


class NameList(NamedTuple):
    """The names in a split file."""

    names: list[str]
    """First reading of each row that is not blank or a comment"""
    lines: list[int]
    """Number of the line, or of the record, of each name, counted from 1"""
    others: Callable[[str], Iterator[str]] = lambda name: iter(())
    """Function that yields other readings of a name, the likeliest first"""


Knows: TypeAlias = Sequence[Callable[[str], list[str]]]
"""Functions that return the videos with a name, the strictest first"""


def read_split(path: Path, knows: Knows, where: Mapping[str, str]) -> NameList:
    """Read a split file.

    The file is UTF-8 text with a name on each line, or a table of ``open_table``. Further columns may follow the name,
    after tabs, commas, semicolons or spaces. A header line names the columns, such as "path". ``knows`` shows for the
    first lines which column has the names. Only rows whose columns have the values of ``where`` count.

    Raises ``NotFoundError`` if the file cannot be read, and ``UsageError`` if it is not text, has no name, or has names
    of several splits.
    """
    try:
        open_for_reading(path).close()
    except OSError as error:
        reason = os.strerror(error.errno or errno.ENOENT)
        raise NotFoundError(f"cannot read split file '{printable(path)}': {reason}") from None
    split = _of_table(open_table(path), where) if path.suffix.lower() in _TABLES else _of_text(path, knows, where)
    if not split.names:
        raise UsageError(
            f"split file '{printable(path)}': got no video, expected at least one. Write a name on a line."
        )
    return split


def _of_table(table: Table, where: Mapping[str, str]) -> NameList:
    """Read the names of a table. The clips of Kinetics have names of an id and two times."""
    column = next((name for name in _NAME_COLUMNS if name in table.types), None)
    if column is None:
        raise UsageError(
            f"split file '{printable(table.path)}': got the columns {table.column_names}, "
            f"expected one of {', '.join(_NAME_COLUMNS)}"
        )
    is_clips = column == "youtube_id" and all(name in table.types for name in _TIMES)
    named = [
        (number, _clip_name(row) if is_clips else str(row.get(column, "")).strip())
        for number, row in _chosen(table.path, table.types, table.rows(), where)
    ]
    split = NameList([name for _, name in named], [number for number, _ in named])
    return split._replace(others=_without_times) if is_clips else split


def _chosen(
    path: Path, columns: Collection[str], rows: Iterable[tuple[int, Row]], where: Mapping[str, str]
) -> Iterator[tuple[int, Row]]:
    """Yield the rows that ``where`` chooses. Raise ``UsageError`` at the end if they are of none or several splits."""
    for name in where:
        check_choice(columns, where=name)
    seen: dict[str, set[str]] = {name: set() for name in columns if name in where or name.lower() in _SPLIT_COLUMNS}
    for number, row in rows:
        values = {name: str(row.get(name, "")).strip() for name in seen}
        is_chosen = all(values[name] == str(value) for name, value in where.items())
        for name in seen if is_chosen else where:
            seen[name].add(values[name])
        if is_chosen:
            yield number, row
    for name, splits in seen.items():
        if splits and str(where[name]) not in splits if name in where else len(splits) > 1:
            raise UsageError(
                f"split file '{printable(path)}': got {shortened(', '.join(map(repr, sorted(splits))), 200)} in the "
                f"column '{printable(name)}', expected {where.get(name, 'one of them')}. "
                f"Choose one with chordcache.videos.cached(..., where={{{name!r}: {max(splits)!r}}}), or --where."
            )


def _of_text(path: Path, knows: Knows, where: Mapping[str, str]) -> NameList:
    entries = text_lines(path, comment="#")
    sampled = list(islice(entries, _NUM_SAMPLED))
    lines = [line for _, line in sampled]
    delimiter = next((d for d in _DELIMITERS if sum(d in line for line in lines) * 2 > len(lines)), None)
    columns = [cell.strip().lower() for cell in _cells(lines[0], delimiter)] if lines else []
    is_header = any(name in columns for name in _NAME_COLUMNS) and not knows[0](lines[0])
    if is_header and delimiter is not None:
        return _of_table(CsvTable(path, delimiter, is_split=True), where)
    numbered = [*sampled[is_header:], *entries]
    names = [line for _, line in numbered]
    if "\0" in "".join(names):
        raise UsageError(
            f"split file '{printable(path)}': got binary data, expected UTF-8 text with a name on each line"
        )
    cells_of = partial(_cells, delimiter=delimiter)
    if place := _place_of_split(path, names, cells_of) or bool(where):
        splits = (cells[-place] if place <= len(cells) else "" for cells in map(cells_of, names))
        rows = ((row, {"split": split}) for row, split in enumerate(splits))
        numbered = [numbered[row] for row, _ in _chosen(path, _SPLIT_COLUMNS[:1], rows, where)]
    others = _beginnings if delimiter is None else partial(_cell, delimiter, _column(lines, delimiter, knows))
    return NameList([line for _, line in numbered], [number for number, _ in numbered], others)


def _place_of_split(path: Path, names: Sequence[str], cells_of: Callable[[str], list[str]]) -> int:
    """Return the place, counted from the end of a line, of the split behind each name, or 0.

    The files of HMDB51, such as "wave_test_split1.txt", have 0, 1 and 2 behind names without a folder. The same numbers
    behind names of folders are labels.
    """
    rows = [cells_of(line) for line in names[:_NUM_SAMPLED]]
    for place in range(1, min(map(len, rows), default=0)):
        if all(row[-place].strip().lower() in _SPLITS for row in rows):
            return place
    is_hmdb = re.search(r"split_?\d", path.stem) and all(
        len(cells) > 1 and cells[-1].strip() in ("0", "1", "2") and "/" not in cells[0]
        for cells in map(cells_of, names)
    )
    return 1 if is_hmdb else 0


def _clip_name(row: Row) -> str:
    name = str(row.get("youtube_id", "")).strip()
    try:
        return "_".join((name, *(f"{int(float(row[time])):06d}" for time in _TIMES)))
    except (ValueError, KeyError, OverflowError):
        return name


def _without_times(name: str) -> Iterator[str]:
    yield name.rsplit("_", 2)[0]


def _cells(line: str, delimiter: str | None) -> list[str]:
    if delimiter is None:
        return line.split()
    return next(csv_reader([line], delimiter, is_split=True), [])


def _cell(delimiter: str, column: int, line: str) -> Iterator[str]:
    cells = _cells(line, delimiter)
    if column < len(cells):
        yield cells[column].strip()


def _column(lines: list[str], delimiter: str, knows: Knows) -> int:
    """Return the column that most often has the name of a video, the first of several."""
    rows = [_cells(line, delimiter) for line in lines]
    for known in knows:
        hits = [sum(bool(known(cell.strip())) for cell in column) for column in zip_longest(*rows, fillvalue="")]
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
