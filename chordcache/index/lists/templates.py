"""Paths made from the fields of a row."""

from __future__ import annotations

import re
import string
from collections.abc import Collection, Mapping
from typing import Any

from chordcache.amounts import shortened
from chordcache.config.bounds import MAX_FIELD_WIDTH, MAX_PATH_CHARS, too_long
from chordcache.errors import UsageError, printable

_WHOLE, _REAL = frozenset("bcdoxX"), frozenset("eEfFgG%")
"""Last characters of a format specification that take a number"""


class Template:
    """A path with the names of fields in braces, as ``str.format`` takes it, without attributes and indices.

    Raises ``UsageError`` if ``text`` is not such a template, or uses a name that is not in ``fields``.

    Examples
    --------
    >>> Template("{id}_{start:06d}.mp4", ("id", "start")).path({"id": "a", "start": "12"})
    'a_000012.mp4'
    """

    def __init__(self, text: str, fields: Collection[str]) -> None:
        if problem := too_long("video_template", text, MAX_PATH_CHARS):
            raise UsageError(problem)
        try:
            parts = list(string.Formatter().parse(text))
        except ValueError as error:
            raise UsageError(f"video_template: got '{printable(text)}', expected fields in braces ({error})") from None
        self._parts = [(literal, name, spec or "", conversion) for literal, name, spec, conversion in parts]
        self.names = frozenset(name for _, name, _, _ in self._parts if name is not None)
        if unknown := sorted(self.names - set(fields)):
            raise UsageError(
                f"video_template: got the field '{printable(unknown[0])}', expected one of "
                f"{', '.join(printable(name) for name in fields)}"
            )
        if any("{" in spec or conversion for _, _, spec, conversion in self._parts):
            raise UsageError(f"video_template: got '{printable(text)}', expected plain fields such as {{name:06d}}")
        widths = (width.lstrip("0") for _, _, spec, _ in self._parts for width in re.findall(r"\d+", spec))
        if any(len(width) > len(str(MAX_FIELD_WIDTH)) or int(width or 0) > MAX_FIELD_WIDTH for width in widths):
            raise UsageError(
                f"video_template: got '{printable(text)}', expected widths of at most {MAX_FIELD_WIDTH}, the length of "
                "a file's name"
            )

    def path(self, row: Mapping[str, Any]) -> str:
        """Return the path of a row. Raises ``UsageError`` if a field is empty or is not of the template's kind."""
        return "".join(
            literal if name is None else literal + _formatted(name, row.get(name), spec)
            for literal, name, spec, _ in self._parts
        )


def _formatted(name: str, value: Any, spec: str) -> str:
    if value is None or value == "":
        raise UsageError(f"column '{printable(name)}': got an empty cell, expected a part of the file's name")
    if isinstance(value, str) and (problem := too_long(f"column '{printable(name)}'", value, MAX_PATH_CHARS)):
        raise UsageError(problem)
    try:
        if spec[-1:] in _WHOLE:
            return format(whole_number(value), spec)
        return format(float(value) if spec[-1:] in _REAL else value, spec)
    except (ValueError, TypeError, OverflowError):
        got = printable(shortened(str(value), 100))
        raise UsageError(f"column '{printable(name)}': got '{got}', expected a value for '{{{name}:{spec}}}'") from None


def whole_number(value: Any) -> int:
    """Return a whole number: of an integer, or of a text or a float without a fraction. Raises ValueError."""
    if isinstance(value, bool):
        raise ValueError("not a number")
    if isinstance(value, str) and value.strip().isdecimal():
        return int(value)
    number = float(value)
    if not number.is_integer():
        raise ValueError("not whole")
    return value if isinstance(value, int) else int(number)
