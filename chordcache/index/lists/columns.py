"""Lists with one row for each item, whose columns have a meaning."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from chordcache.errors import UsageError, printable
from chordcache.index.lists.items import (
    BOUNDS,
    MEANINGS,
    USUAL,
    Item,
    ItemList,
    ListOptions,
    cell_value,
    columns_of,
    is_list,
    labels_in,
    listed,
    segment_between,
    segments_in,
    taken,
    texts,
)
from chordcache.index.lists.tables import Row, Table, open_table
from chordcache.index.lists.templates import Template

_NOTHING: Mapping[str, str] = MappingProxyType({})


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


def table_list(table: Table, options: ListOptions) -> ItemList:
    """Return the items of a table. Raises ``UsageError`` if columns are missing or ``options`` name others."""
    template, named = options.video_template, options.columns
    if unknown := [meaning for meaning in named if meaning not in MEANINGS]:
        raise UsageError(f"columns: got '{printable(unknown[0])}', expected one of {', '.join(MEANINGS)}")
    for start, name in [
        *((f"columns: got {name}=", named[name]) for name in named),
        *(("ignore: got ", name) for name in options.ignore),
    ]:
        if name not in table.types:
            raise UsageError(f"{start}'{printable(name)}', expected one of {table.column_names}")
    if "path" in named and template:
        raise UsageError(f"columns: got path='{printable(named['path'])}' and a template, expected one of the two")
    name_template = None if template is None else Template(template, table.types)
    columns = columns_of(table, options, name_template.names if name_template else ())
    if name_template is None and "path" not in columns:
        raise UsageError(
            f"'{printable(table.path)}': got the columns {table.column_names}, expected one of "
            f"{', '.join(USUAL['path'])}. Name it with columns (--column path=NAME), or give video_template "
            "(--video-template)."
        )
    if name_template is not None:
        columns.pop("path", None)
    kept = [name for name in table.types if name and name not in {*columns.values(), *options.ignore}]
    types = {name: table.types[name] for name in kept if table.types[name] != "str"}
    listing: set[str] = set()
    """Extra columns of text whose cells are lists"""
    path_of: Callable[[Row], str] = name_template.path if name_template else partial(_named_path, columns["path"])
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
    is_json = "json" in table.path.suffix.lower()  # a row need not mention each column
    stated = () if is_json else (*columns.keys() & {"label", "caption"}, *kept)
    return ItemList(table.path, table.unit, types, table.rows, parse, False, bool(options.ignore), said, notes, stated)


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
