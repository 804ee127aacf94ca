"""A reader of a JSON document of any size and layout, one value at a time."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from typing import Any, BinaryIO

from chordcache.index.encoding import is_unicode
from chordcache.storage.sealed_json import FINITE_JSON

_FIRST_BYTES = 1 << 12
"""Size of the first read. It is enough for one record, which is all that a reader at an offset wants"""
_CHUNK_BYTES = 1 << 16
_MAX_VALUE_CHARS = 1 << 28
"""Limit of one value, since a value is parsed in memory. The keyframes of a day of video take 10 MB"""
_SPACE = " \t\n\r"


class JsonStream:
    """A position in a JSON document, and the values after it.

    All methods raise ``ValueError`` if the document is not JSON at the position.

    Parameters
    ----------
    file : BinaryIO
        An open file. Its position is the start.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._decoder = codecs.getincrementaldecoder("utf-8-sig" if file.tell() == 0 else "utf-8")("surrogateescape")
        self._text = ""
        self._position = 0
        self._marked = (0, file.tell())
        """A position in the text, and its offset in the file [bytes]"""
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
                value, end = FINITE_JSON.raw_decode(self._text, self._position)
            except RecursionError:
                raise ValueError("values are nested too deeply") from None
            except ValueError:
                if not self._read_more():
                    raise
                continue
            if end < len(self._text) or not self._read_more():  # a number may go on behind the text
                self._position = end
                return value

    def line(self) -> str | None:
        """Return the rest of the line without a comma at its end. Return None if its end was not read yet."""
        end = self._text.find("\n", self._position)
        return None if end < 0 else self._text[self._position : end].rstrip(", \t\r")

    def skip(self, num_chars: int) -> None:
        """Go behind some characters of the line."""
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

    def _read_more(self) -> bool:
        """Read the next part of the file behind the text. Return whether the text has grown."""
        if self._is_complete:
            return False
        if len(self._text) - self._position > _MAX_VALUE_CHARS:
            raise ValueError(f"a value has more than {_MAX_VALUE_CHARS} characters")
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
        return bool(more) or not self._is_complete
