"""Lists with one row for each item, whose columns have a meaning."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Set
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from chordcache.amounts import shortened
from chordcache.errors import UsageError, printable
from chordcache.index.lists.items import (
    Item,
    ItemList,
    ListOptions,
    is_list,
    labels_in,
    listed,
    segment_between,
    segments_in,
    texts,
)
from chordcache.index.lists.tables import Row, Table, open_table
from chordcache.index.lists.templates import Template

_NOTHING: Mapping[str, str] = MappingProxyType({})

_USUAL: Mapping[str, tuple[str, ...]] = {
    "path": ("path", "file_name", "video", "video_path", "filename"),
    "label": ("label", "labels"),
    "caption": ("caption", "captions", "text"),
}
"""Meaning to the usual names of its column, in any case and with "_" for space. The first that the list has counts."""

BOUNDS: Mapping[str, str] = {
    "start": "start_seconds",
    "end": "end_seconds",
    "duration": "duration_seconds",
    "start_frame": "start_frame",
    "end_frame": "end_frame",
}
"""Meaning to the parameter of ``segment_between``"""

_MEANINGS = (*_USUAL, *BOUNDS, "segment")
"""Meanings that a caller may name. A column "segment" has both bounds, or those of several segments"""

_FORMS = ("{}_seconds", "{}_frame", "{}", "{}_time", "{}_timestamp", "{}_second", "{}_sec", "{}_s", "time_{}")
"""Usual names of bounds. Rows may have the times or the frames of the first two. The first pair of the others counts"""
_FRAMES = {"start_frame", "end_frame"}
_TIMES = (set[str](), {"start", "end"}, {"start", "duration"}, {"segment"})
"""Meanings of columns that are whole segments together"""


def read_table(
    path: Path, options: ListOptions, *, usual: ListOptions | None = None, declared: Mapping[str, str] = _NOTHING
) -> ItemList:
    """Read a CSV, TSV, JSON, JSON Lines or Parquet list. All columns without a meaning are kept as extra columns.

    ``usual`` has the template and the columns of a published form, and ``declared`` types of its columns. Raises
    ``NotFoundError`` if a file does not exist, and ``UsageError`` if it is not of its format.
    """
    table = open_table(path, declared, options.header)
    if missing := [name for name in declared if name not in table.types]:
        expected = f"expected {', '.join(declared)}; '{missing[0]}' is missing"
        raise UsageError(f"'{printable(path)}': got the columns {table.column_names}, {expected}")
    if usual is not None:
        options = ListOptions(options.video_template or usual.video_template, usual.columns)
    return table_list(table, options)


# Columns


def columns_of(table: Table, options: ListOptions, used: Collection[str] = ()) -> dict[str, str]:
    """Return the column of each meaning: those that ``options`` name, and others by their usual names.

    Columns that are ``used`` in the names of files are not bounds. Raises ``UsageError`` for a start without an end.
    """
    columns = dict(options.columns)
    free = [name for name in table.types if name not in {*options.ignore, *columns.values()}]
    plain = {re.sub(r"[\s-]+", "_", name.lower()): name for name in reversed(free)} | {name: name for name in free}
    for meaning, usual in _USUAL.items():
        if meaning not in columns and (name := next((plain[name] for name in usual if name in plain), None)):
            columns[meaning] = name
    bounds = {meaning: columns[meaning] for meaning in (*BOUNDS, "segment") if meaning in columns}
    bounds = bounds or _usual_bounds(plain, set(used))
    if bounds.keys() - _FRAMES not in _TIMES or len(bounds.keys() & _FRAMES) == 1:
        names = ", ".join(f"'{printable(name)}'" for name in bounds.values())
        raise UsageError(
            f"'{printable(table.path)}': got the columns {table.column_names}, expected a start and an end of segments "
            f"instead of {names} alone. Name both with columns (chordcache index --column start=NAME --column "
            "end=NAME), or leave the column out with ignore (--ignore NAME)."
        )
    return columns | bounds


def _usual_bounds(plain: Mapping[str, str], used: Set[str]) -> dict[str, str]:
    """Return the columns of bounds by their usual names. A start or an end may lack its pair."""
    exact: dict[str, str] = {}
    near: list[dict[str, str]] = [{}]
    for form in _FORMS:
        names = [[form.format(word) for word in words] for words in (("start", "begin"), ("end", "stop"))]
        start, end = (next((plain[name] for name in side if name in plain), None) for side in names)
        named = {"start_frame": start, "end_frame": end} if "frame" in form else {"start": start, "end": end}
        if start and not end and "frame" not in form:
            named["duration"] = plain.get("duration_seconds") or plain.get("duration")
        bounds = {meaning: name for meaning, name in named.items() if name}
        if not used.isdisjoint(bounds.values()):
            continue
        if form in _FORMS[:2]:
            exact |= bounds
        near.append(bounds)
    return exact or max(near, key=len)


def taken(columns: Mapping[str, str], extra: Collection[str]) -> str:
    """Return the sentence about the columns of a list: "path=path, label=label, segment=start..end; extra: fps"."""
    parts = [f"{meaning}={columns[meaning]}" for meaning in _USUAL if meaning in columns]
    bounds = [columns[meaning] for meaning in ("segment", *BOUNDS) if meaning in columns]
    parts += [f"segment={('+' if 'duration' in columns else '..').join(bounds)}"] if bounds else []
    return shortened("; ".join([", ".join(parts), *([f"extra: {', '.join(extra)}"] if extra else [])]), 1000)


def cell_value(meaning: str, column: str, value: Any) -> Any:
    """Return the value of a cell, or the list in its text. Commas are between the labels of a column like "labels"."""
    value = listed(column, value)
    is_plural = meaning == "label" and column.lower().endswith("labels")
    return [text.strip() for text in value.split(",")] if is_plural and isinstance(value, str) else value


# Items


def table_list(table: Table, options: ListOptions) -> ItemList:
    """Return the items of a table. Raises ``UsageError`` if columns are missing or ``options`` name others."""
    template, named = options.video_template, options.columns
    if unknown := [meaning for meaning in named if meaning not in _MEANINGS]:
        raise UsageError(f"columns: got '{printable(unknown[0])}', expected one of {', '.join(_MEANINGS)}")
    for start, name in [
        *((f"columns: got {name}=", named[name]) for name in named),
        *(("ignore: got ", name) for name in options.ignore),
    ]:
        if name not in table.types:
            raise UsageError(f"{start}'{printable(name)}', expected one of {table.column_names}")
    if "path" in named and template:
        raise UsageError(f"columns: got path='{printable(named['path'])}' and a template, expected one of the two")
    made = None if template is None else Template(template, table.types)
    columns = columns_of(table, options, made.names if made else ())
    if made is None and "path" not in columns:
        raise UsageError(
            f"'{printable(table.path)}': got the columns {table.column_names}, expected one of "
            f"{', '.join(_USUAL['path'])}. Name it with columns (--column path=NAME), or give video_template "
            "(--video-template)."
        )
    if made is not None:
        columns.pop("path", None)
    kept = [name for name in table.types if name and name not in {*columns.values(), *options.ignore}]
    types = {name: table.types[name] for name in kept if table.types[name] != "str"}
    listing: set[str] = set()
    """Extra columns of text whose cells are lists"""
    path_of: Callable[[Row], str] = made.path if made else partial(_named_path, columns["path"])
    label, caption, several = (columns.get(meaning, "") for meaning in ("label", "caption", "segment"))
    bounds = {parameter: columns[meaning] for meaning, parameter in BOUNDS.items() if meaning in columns}

    def parse(row: Row) -> Iterator[Item]:
        path = path_of(row)
        extra = {name: table.value(name, row[name]) for name in kept if name in row}
        listing.update(name for name, value in extra.items() if name not in types and is_list(value))
        labels, captions = cell_value("label", label, row.get(label)), listed(caption, row.get(caption))
        if row.get(several) in (None, "", []):
            segment = segment_between(**{parameter: row.get(column) for parameter, column in bounds.items()})
            yield Item(path, segment, labels_in(labels), texts(captions), extra)
            return
        segments = segments_in(listed(several, row[several]))
        for number, (segment, names) in enumerate(segments):
            own, said = (_part(values, number, len(segments)) for values in (labels, captions))
            yield Item(path, segment, names or labels_in(own), texts(said), extra)

    def notes() -> Iterator[str]:
        if listing:
            yield f"the cells of {', '.join(sorted(listing))} are lists, which were kept as text"

    said = taken(columns if template is None else {"path": template, **columns}, kept)
    return ItemList(table.path, table.unit, types, table.rows, parse, False, bool(options.ignore), said, notes)


def _part(values: Any, number: int, num_segments: int) -> Any:
    """Return what labels or captions say of a segment: a list has one for each, and another value is for all."""
    if not isinstance(values, list) or num_segments == 1:
        return values
    if len(values) != num_segments:
        raise UsageError(f"got {num_segments} segments with {len(values)} labels or captions, expected one for each")
    return values[number]


def _named_path(column: str, row: Row) -> str:
    value = row.get(column, "")
    if not isinstance(value, str) or not value:
        raise UsageError(f"column '{printable(column)}': got '{printable(str(value))}', expected a path")
    return value
