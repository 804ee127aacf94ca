"""A reader of a JSON document of any size and layout, one value at a time."""

from __future__ import annotations

import codecs
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any, BinaryIO

from chordcache.amounts import shortened
from chordcache.config.bounds import MAX_DEPTH, MAX_ROW_BYTES
from chordcache.index.encoding import is_unicode
from chordcache.json_records import FINITE_JSON

_FIRST_BYTES = 1 << 12
"""Size of the first read. It is enough for one record, which is all that a reader at an offset wants"""
_CHUNK_BYTES = 1 << 15
_SPACE = " \t\n\r"
_TOO_DEEP = f"got values nested more than {MAX_DEPTH} deep, expected fewer levels"


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the members of an object. Raises ValueError if one is there twice, which JSON would drop."""
    members = dict(pairs)
    if len(members) < len(pairs):
        [(repeated, _)] = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"got the key '{shortened(repeated, 80)}' twice, expected it once")
    return members


_JSON = json.JSONDecoder(
    object_pairs_hook=_once, parse_float=FINITE_JSON.parse_float, parse_constant=FINITE_JSON.parse_constant
)


def decode_json(text: str) -> Any:
    """Return the value of a text. Raises ``ValueError`` if it is not JSON, or JSON that a list must not have."""
    start = len(text) - len(text.lstrip(_SPACE))
    value, end = _raw_decode(text, start)
    if text[end:].strip(_SPACE):
        raise json.JSONDecodeError("Extra data", text, end)
    return value


def _raw_decode(text: str, start: int) -> tuple[Any, int]:
    try:
        value, end = _JSON.raw_decode(text, start)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    if text.count("[", start, end) + text.count("{", start, end) > MAX_DEPTH:
        _check_depth(value, MAX_DEPTH)
    return value, end


def _check_depth(value: Any, num_levels: int) -> None:
    if isinstance(value, list | dict):
        if num_levels == 0:
            raise ValueError(_TOO_DEEP)
        for part in value.values() if isinstance(value, dict) else value:
            _check_depth(part, num_levels - 1)


class JsonStream:
    """A position in a JSON document, from that of an open file on, and the values after it.

    All methods raise ``ValueError`` if the document is not JSON at the position.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._decoder = codecs.getincrementaldecoder("utf-8-sig" if file.tell() == 0 else "utf-8")("surrogateescape")
        self._text = ""
        self._position = 0
        self._marked = (0, file.tell())
        """A position in the text, and its offset in the file [bytes]"""
        self._is_new = True
        """True if ``whole_lines`` was not asked for the text"""
        self._is_complete = False
        self.has_other_bytes = False
        """True if bytes that are not UTF-8 were read so far"""

    @property
    def offset(self) -> int:
        """Byte offset of the position in the file."""
        position, offset = self._marked
        passed = self._text[position : self._position]
        offset += len(passed) if passed.isascii() else len(passed.encode("utf-8", "surrogateescape"))
        self._marked = (self._position, offset)
        return offset

    def peek(self) -> str:
        """Return the next character that is not space, or "" at the end of the file."""
        while True:
            text, position = self._text, self._position
            while position < len(text) and text[position] in _SPACE:
                position += 1
            self._position = position
            if position < len(text):
                return text[position]
            if not self._read_more():
                return ""

    def take(self, marks: str) -> str:
        """Return the next character that is not space, which has to be one of ``marks``, and go behind it."""
        character = self.peek()
        if not character or character not in marks:
            raise ValueError(
                f"got {repr(character) if character else 'the end of the file'}, expected {' or '.join(marks)}"
            )
        self._position += 1
        return character

    def value(self) -> Any:
        """Return the next value and go behind it."""
        if not self.peek():
            raise ValueError("got the end of the file, expected a value")
        while True:
            try:
                value, end = _raw_decode(self._text, self._position)
            except json.JSONDecodeError:
                if not self._read_more():
                    raise
                continue
            if end < len(self._text) or not self._read_more():  # a number may go on behind the text
                self._position = end
                return value

    def whole_lines(self) -> str:
        """Return all lines whose ends were read, up to the last comma. Empty if they were returned before."""
        end = self._text.rfind(",\n", self._position) if self._is_new else -1
        self._is_new = False
        return self._text[self._position : max(self._position, end)]

    def skip(self, num_chars: int) -> None:
        """Go behind some characters."""
        self._position += num_chars

    def items(self) -> Iterator[None]:
        """Go through an array or an object: stop before each item, whose value or key the caller has to take."""
        closing = {"[": "]", "{": "}"}[self.take("[{")]
        if self.peek() == closing:
            self._position += 1
            return
        while True:
            self.peek()
            yield
            if self.take("," + closing) == closing:
                return

    def member_names(self) -> Iterator[str]:
        """Go through an object: yield each name, whose value the caller has to take."""
        if self.peek() != "{":
            raise ValueError("expected an object")
        for _ in self.items():
            key = self.value()
            self.take(":")
            yield str(key)

    def _read_more(self) -> bool:
        """Read the next part of the file behind the text. Return whether the text has grown."""
        if self._is_complete:
            return False
        if len(self._text) - self._position > MAX_ROW_BYTES:
            raise ValueError(f"got a value of more than {MAX_ROW_BYTES:,} characters, expected a shorter one")
        # Twice the text each time, or a long value would be parsed again for each small chunk
        least = _CHUNK_BYTES if self._text else _FIRST_BYTES
        data = self._file.read(max(least, 2 * (len(self._text) - self._position)))
        self._is_complete = not data
        more = self._decoder.decode(data, final=not data)
        self.has_other_bytes = self.has_other_bytes or not is_unicode(more)
        offset = self.offset
        if not self._text and offset == 0 and data.startswith(codecs.BOM_UTF8):
            offset = len(codecs.BOM_UTF8)
        self._text, self._position, self._marked = self._text[self._position :] + more, 0, (0, offset)
        self._is_new = True
        return bool(more) or not self._is_complete
