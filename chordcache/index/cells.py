"""Cells of a CSV file that are safe in spreadsheets and terminals.

A text cell that chordcache writes is read back exactly::

    None                                               (empty)
    "" and text with control characters, undecodable
    bytes, space at an end, or a leading "             a JSON string: "a\\nb"
    text that starts with = + - @ or '                 ' and the text
    other text                                         itself

All other values are JSON: 25, 0.04, true, [0, 12].
"""

from __future__ import annotations

import json

_FORMULA = ("=", "+", "-", "@", "'")


def to_cell(value: object) -> str:
    """Return a value as a cell that ``text_of`` reads back, or that JSON reads back if it is not text."""
    if value is None:
        return ""
    if not isinstance(value, str):
        return json.dumps(value, allow_nan=False)
    if not value.strip() or value != value.strip() or not value.isprintable() or value.startswith('"'):
        return json.dumps(value).replace("\x7f", "\\u007f")  # the one control character that JSON leaves as it is
    return "'" + value if value.startswith(_FORMULA) else value


def text_of(cell: str) -> str:
    """Return the text of a cell that ``to_cell`` wrote. Raises ValueError."""
    if cell.startswith('"'):
        return str(json.loads(cell))
    return cell.removeprefix("'")


def is_quoted(cell: str) -> bool:
    """Return whether a cell of a hand-written list looks as ``to_cell`` writes text that needs it."""
    return cell.startswith('"') or (cell[:1] == "'" and cell[1:].startswith(_FORMULA))
