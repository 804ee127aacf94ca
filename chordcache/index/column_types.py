"""The types of the extra columns of an index. The header of an index or a cache declares those that are not text."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from chordcache.amounts import shortened
from chordcache.errors import UsageError, printable

BOX_NUMBERS = ("time_seconds", "x1", "y1", "x2", "y2")
"""Keys that every box of a track has. ``time_seconds`` counts from the first frame of the item"""

_BOX_KEYS = frozenset((*BOX_NUMBERS, "track_id", "label"))


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _is_box(value: Any) -> bool:
    return (
        isinstance(value, Mapping)
        and value.keys() <= _BOX_KEYS
        and all(_is_number(value.get(name)) for name in BOX_NUMBERS)
        and type(value.get("track_id", 0)) is int
        and isinstance(value.get("label", ""), str)
    )


def _is_list(check: Callable[[Any], bool], value: Any) -> bool:
    return isinstance(value, list | tuple) and all(map(check, value))


_SCALARS: Mapping[str, Callable[[Any], bool]] = {
    "str": lambda value: isinstance(value, str),
    "int": lambda value: type(value) is int,
    "float": _is_number,
}

COLUMN_TYPES: Mapping[str, Callable[[Any], bool]] = {
    **_SCALARS,
    "bool": lambda value: isinstance(value, bool),
    **{f"list[{name}]": partial(_is_list, check) for name, check in _SCALARS.items()},
    "boxes": partial(_is_list, _is_box),
    "relative_boxes": partial(_is_list, _is_box),
}
"""Name of each type to the check of a value of JSON. "boxes" is a track in pixels of the picture as it is displayed,
"relative_boxes" one in fractions of its width and height. None is a value of every type."""


def merged_columns(columns: Mapping[str, str], others: Mapping[str, str]) -> dict[str, str]:
    """Return the columns of two lists together. Raises ``UsageError`` if one column has two types."""
    for name in columns.keys() & others.keys():
        if columns[name] != others[name]:
            raise UsageError(
                f"columns, '{printable(name)}': got the type {others[name]}, expected {columns[name]} as in the cache. "
                "Name the column differently."
            )
    return {**columns, **others}


def extra_problem(extra: Mapping[str, Any], columns: Mapping[str, str]) -> str | None:
    """Return the reason why the extra columns of a record are not of their declared types, or None if they are."""
    for name, value in extra.items():
        kind = columns.get(name, "str")
        if value is not None and not COLUMN_TYPES[kind](value):
            shown = shortened(json.dumps(value, default=str), 80)
            hint = "" if name in columns else ". Declare its type under 'columns' of the header"
            return f"column '{printable(name)}': got {printable(shown)}, expected {kind}{hint}"
    return None


def check_values(path: str, extra: Mapping[str, Any], columns: Mapping[str, str]) -> None:
    """Raise ``UsageError`` if the extra columns of a video are not of the types that a cache has for them."""
    if extra and (problem := extra_problem(extra, columns)):
        raise UsageError(
            f"'{printable(path)}': {problem}. A column of a cache has one type. Name the column differently."
        )


# Types of the values of a list, which does not state them

_NUMBERS = ({"int", "float"}, {"list[int]", "list[float]"})


def add_kinds(kinds: dict[str, str], row: Mapping[str, Any]) -> None:
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
