"""The encoding of lists: UTF-8, with a byte order mark or without. Only paths may have other bytes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from chordcache.config.bounds import read_bounded, too_long
from chordcache.errors import UsageError, printable

_WIDE: Mapping[str, tuple[tuple[bytes, ...], tuple[str, ...]]] = {
    "UTF-32": ((b"\xff\xfe\0\0", b"\0\0\xfe\xff"), (".000", "000.")),
    "UTF-16": ((b"\xff\xfe", b"\xfe\xff"), (".0.0", "0.0.")),
}
"""Encoding to its byte order marks, and to the places of zeros in text without one"""

HEAD_BYTES = 4
"""Number of bytes at the start of a file that show whether it is UTF-16"""


def check_narrow(path: str | os.PathLike[str], head: bytes) -> None:
    """Raise ``UsageError`` if a file that begins with these bytes is UTF-16 or UTF-32.

    Without a byte order mark, it shows in the zero bytes of the first ASCII characters.
    """
    zeros = "".join(".0"[byte == 0] for byte in head[:HEAD_BYTES])
    for encoding, (marks, places) in _WIDE.items():
        if head.startswith(marks) or zeros in places:
            raise UsageError(f"'{printable(path)}': got {encoding} text, expected UTF-8. Save the file as UTF-8.")


def small_text(path: str | os.PathLike[str]) -> str:
    """Return the text of a file with plain line ends and no byte order mark.

    Raises ``OSError``, or ``UsageError`` if it is not UTF-8 or is larger than a record.
    """
    return decoded(path, read_bounded(path))


def decoded(path: str | os.PathLike[str], data: bytes) -> str:
    """Return the text in the bytes of a file. ``path`` is its name for messages. Raises as ``small_text`` does."""
    check_narrow(path, data)
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        line, start = before.count(b"\n") + 1, before.rfind(b"\n") + 1
        raise UsageError(
            f"'{printable(path)}', line {line}: got the byte 0x{data[error.start]:02x} at byte {error.start - start}, "
            "expected UTF-8. Save the file as UTF-8."
        ) from None


def text_problem(name: str, value: Any) -> str | None:
    """Return the first reason why a value of a list is not Unicode text of a moderate length, or None.

    ``name`` says what the value is.

    Lists and objects are searched, their keys too. Bytes that are not UTF-8 are in text as ``surrogateescape``
    decodes them.
    """
    if isinstance(value, str):
        return too_long(name, value) or (None if value.isascii() else _problem_of(name, value))
    if isinstance(value, Mapping):
        value = [part for item in value.items() for part in item]
    if isinstance(value, list | tuple):
        return next((problem for part in value if (problem := text_problem(name, part))), None)
    return None


def is_unicode(text: str) -> bool:
    """Return whether a text has no half of a surrogate pair, as a byte that is not UTF-8 becomes."""
    return text.isascii() or _problem_of("", text) is None


def _problem_of(name: str, text: str) -> str | None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        code, position = ord(text[error.start]), len(text[: error.start].encode())
        is_byte = 0xDC80 <= code <= 0xDCFF
        got = f"the byte 0x{code - 0xDC00:02x}" if is_byte else f"U+{code:04X}, half of a surrogate pair,"
        return f"{name}: got {got} at byte {position} of its text, expected UTF-8. Save the list as UTF-8."
    return None


def texts_problem(label: Any, caption: Any, extra: Mapping[str, Any]) -> str | None:
    """Return the first reason why labels, captions or extra columns are not Unicode text, or None."""
    problem = text_problem("label", label) or text_problem("caption", caption)
    for name, value in extra.items() if problem is None else ():
        if problem := text_problem("the name of a column", name) or text_problem("column", value):
            return problem.replace("column:", f"column '{name}':", 1)
    return problem
