"""Bounds of text that people and other programs write: lists, files of labels and of classes, templates and configs.

All of them stand here. Text beyond a bound is an error that names the place and the bound, before memory or time is
spent on it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from typing import BinaryIO

from chordcache.errors import UsageError, printable

MAX_DEPTH = 64
"""Largest number of lists and objects inside each other, in JSON and YAML"""

MAX_CONFIG_BYTES = 1 << 18
"""Size of a config. The parser of YAML reads 100 kB in a second"""

MAX_CONFIG_VALUES = 10_000
"""Largest number of values of a config. A value behind an alias counts each time that the alias stands"""

MAX_ROW_BYTES = 1 << 25
"""Size of a line, of a record, and of a file that is read in one piece. The keyframes of a day of video take 10 MB"""

MAX_TEXT_CHARS = 1 << 20
"""Length of a label, a caption or another text of a list"""

MAX_PATH_CHARS = 4096
"""Length of a path, of a template, and of a value in a template. Linux opens no longer path"""

MAX_FIELD_WIDTH = 255
"""Largest width and precision of a field in a template. A file's name has at most 255 bytes"""

MAX_DIGITS = 18
"""Digits of a whole number in a text list"""

MAX_COLUMNS = 2_000
"""Columns of a list. An index in CSV has a cell for each column in each row"""


def read_bounded(path: str | os.PathLike[str], max_bytes: int = MAX_ROW_BYTES) -> bytes:
    """Return the content of a file. Raises ``OSError``, or ``UsageError`` if it has more bytes than allowed."""
    with open(path, "rb") as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise UsageError(f"'{printable(path)}': got more than {max_bytes:,} bytes, expected a smaller file")
    return data


def whole_lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a file. One that is too long is cut, and still longer than ``MAX_ROW_BYTES``."""
    return iter(partial(file.readline, MAX_ROW_BYTES + 1), b"")


def too_long(name: str, text: str, max_chars: int = MAX_TEXT_CHARS) -> str | None:
    """Return the reason why a text is too long, or None. ``name`` says what it is."""
    if len(text) <= max_chars:
        return None
    return f"{name}: got {len(text):,} characters, expected at most {max_chars:,}. Shorten it."


def too_many_columns(num_columns: int) -> str | None:
    """Return the reason why a list has too many columns, or None."""
    if num_columns <= MAX_COLUMNS:
        return None
    return (
        f"got {num_columns:,} columns, expected at most {MAX_COLUMNS:,}. Leave out those that training does not need."
    )
