"""Lists with one row for each item, whose columns have a meaning: any table, Kinetics and WebVid."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType

from chordcache.errors import UsageError, printable
from chordcache.index.lists.items import Item, ItemList, ListOptions, labels_in, segment_between, texts
from chordcache.index.lists.tables import Row, Table, open_table
from chordcache.index.lists.templates import Template

_USUAL: Mapping[str, tuple[str, ...]] = {
    "path": ("path", "file_name", "video", "video_path", "filename"),
    "label": ("label", "labels"),
    "caption": ("caption", "captions", "text"),
    "start": ("start_seconds",),
    "end": ("end_seconds",),
}
"""Meaning to the names of its column, if the caller names none. The first that the list has counts."""
_FRAMES = ("start_frame", "end_frame")


def read_table(path: Path, options: ListOptions) -> ItemList:
    """Read a CSV, TSV, JSON, JSON Lines or Parquet list. All columns without a meaning are kept as extra columns.

    Raises ``NotFoundError`` if a file does not exist, and ``UsageError`` if it is not of its format.
    """
    table = open_table(path)
    return _item_list(table, _columns(table, options), options.video_template)


_KINETICS = ("youtube_id", "time_start", "time_end")
_KINETICS_TEMPLATE = "{youtube_id}_{time_start:06d}_{time_end:06d}.mp4"


def read_kinetics(path: Path, options: ListOptions) -> ItemList:
    """Read a CSV file of Kinetics: label, youtube_id, time_start, time_end, split. Test lists have no label.

    The published clips are cut already, and their names have both times. If a template does not use ``time_start``, the
    files are whole videos, and the times are the segment.

    Source: https://github.com/cvdfoundation/kinetics-dataset. Raises as ``read_table`` does.
    """
    table = _open_with(path, _KINETICS, MappingProxyType({"time_start": "float", "time_end": "float"}))
    template = options.video_template or _KINETICS_TEMPLATE
    columns = {"label": "label"} if "label" in table.types else {}
    if "time_start" not in Template(template, table.types).names:
        columns |= {"start": "time_start", "end": "time_end"}
    return _item_list(table, columns, template)


_WEBVID = ("videoid", "name", "page_dir")
_WEBVID_TEMPLATE = "{page_dir}/{videoid}.mp4"


def read_webvid(path: Path, options: ListOptions) -> ItemList:
    """Read a CSV file of WebVid: videoid, contentUrl, duration, page_dir, name. The name is the caption.

    Source: https://github.com/m-bain/webvid. Raises as ``read_table`` does.
    """
    table = _open_with(path, _WEBVID)
    return _item_list(table, {"caption": "name"}, options.video_template or _WEBVID_TEMPLATE)


def _open_with(path: Path, required: tuple[str, ...], declared: Mapping[str, str] = MappingProxyType({})) -> Table:
    table = open_table(path, declared)
    if missing := [name for name in required if name not in table.types]:
        raise UsageError(
            f"'{printable(path)}': got the columns {table.column_names}, expected {', '.join(required)}; "
            f"'{missing[0]}' is missing"
        )
    return table


def _columns(table: Table, options: ListOptions) -> dict[str, str]:
    """Return the column of each meaning that the list has."""
    named = options.columns
    for meaning, name in named.items():
        if meaning not in _USUAL:
            raise UsageError(f"columns: got '{printable(meaning)}', expected one of {', '.join(_USUAL)}")
        if name not in table.types:
            raise UsageError(f"columns: got {meaning}='{printable(name)}', expected one of {table.column_names}")
    if "path" in named and options.video_template:
        raise UsageError(f"columns: got path='{printable(named['path'])}' and a template, expected one of the two")
    columns = {}
    for meaning, usual in _USUAL.items():
        column = named.get(meaning) or next((name for name in usual if name in table.types), None)
        if column is not None and not (meaning == "path" and options.video_template):
            columns[meaning] = column
    if "path" not in columns and options.video_template is None:
        raise UsageError(
            f"'{printable(table.path)}': got the columns {table.column_names}, expected one of "
            f"{', '.join(_USUAL['path'])}. Name it with columns (--column path=NAME), or give video_template "
            "(--video-template)."
        )
    return columns | {name: name for name in _FRAMES if name in table.types}


def _item_list(table: Table, columns: Mapping[str, str], template: str | None) -> ItemList:
    kept = [name for name in table.types if name not in columns.values()]
    types = {name: table.types[name] for name in kept if table.types[name] != "str"}
    path_of: Callable[[Row], str]
    path_of = partial(_named_path, columns["path"]) if template is None else Template(template, table.types).path
    label, caption = columns.get("label", ""), columns.get("caption", "")
    bounds = [columns.get(side, "") for side in ("start", "end", *_FRAMES)]

    def parse(row: Row) -> Iterator[Item]:
        path, segment = path_of(row), segment_between(*map(row.get, bounds))
        extra = {name: table.value(name, row[name]) for name in kept if name in row}
        yield Item(path, segment, labels_in(row.get(label)), texts(row.get(caption)), extra)

    is_json = "json" in table.path.suffix.lower()  # a row need not mention each column
    stated = () if is_json else (*columns.keys() & {"label", "caption"}, *kept)
    return ItemList(table.path, table.unit, types, table.rows, parse, stated=stated)


def _named_path(column: str, row: Row) -> str:
    value = row.get(column, "")
    if not isinstance(value, str) or not value:
        raise UsageError(f"column '{printable(column)}': got '{printable(str(value))}', expected a path")
    return value
