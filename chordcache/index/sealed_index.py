"""The index as sealed lines (see ``storage.sealed_json``): the index inside a cache, and any file ``.jsonl``.

A reader detects every changed byte::

    {"format": "chordcache-index", "format_version": 5, "roots": {...}, "level": "packets", "xxh3_128": "..."}
    {"root": "videos", "path": "a.mp4", ..., "xxh3_128": "..."}
    {"root": "videos", "path": "b.mp4", ..., "xxh3_128": "..."}
    {"num_records": 2, "xxh3_128": "..."}
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, TextIO, TypeVar

from chordcache.errors import DamageError, UsageError, printable
from chordcache.index.header import FORMAT, IndexHeader, another_kind_of_file, record_problem
from chordcache.json_records import Count, Record
from chordcache.records import VideoRecord
from chordcache.storage.opener import MAX_BYTES, lines_of
from chordcache.storage.sealed_json import seal, unseal_as

_LOOK_BYTES = 4096
"""Number of bytes at the start and the end of a file that show whether it is a complete index"""

_MAX_RECORD_BYTES = MAX_BYTES - (1 << 20)
"""Largest line of a record. The sidecar of its video has the same texts, and what is known of each feature"""

_FOOTER = b'{"num_records": '

T = TypeVar("T")


class _Footer(Record, frozen=True):
    """The data of the last line."""

    num_records: Count


class SealedSource:
    """The records of a file of sealed lines."""

    def __init__(self, path: Path, file: BinaryIO | None = None) -> None:
        self._path = path
        with file or open(path, "rb") as file:
            self.header = self._header(file)
            self.num_records = self._footer(file)

    def _unseal(self, line: bytes, where: str, kind: type[T], what: str) -> T:
        source = f"{self._path}, {where}"
        if not line.endswith(b"\n"):
            raise DamageError(f"'{printable(source)}' is damaged or cut short")
        return unseal_as(line, source, kind, what)

    def _header(self, file: BinaryIO) -> IndexHeader:
        start = file.read(_LOOK_BYTES)
        if start and FORMAT.encode() not in start and b'"xxh3_128": "' not in start:
            raise another_kind_of_file(self._path)
        file.seek(0)
        return self._unseal(next(lines_of(file, self._path), b""), "line 1", IndexHeader, "the header of an index")

    def _footer(self, file: BinaryIO) -> int:
        """Read the last line first, so that a truncated index is detected before any work is done."""
        file.seek(max(0, file.seek(0, os.SEEK_END) - _LOOK_BYTES))
        last = file.read().splitlines(keepends=True)[-1]
        if not last.startswith(_FOOTER):
            raise DamageError(
                f"'{printable(self._path)}' is damaged or cut short: got another last line than that of an index"
            )
        return self._unseal(last, "last line", _Footer, "the number of its records").num_records

    def located(self, file: BinaryIO) -> Iterator[tuple[int, VideoRecord]]:
        """Yield the byte offset and the record of every line."""
        file.seek(0)
        offset = len(next(lines_of(file, self._path), b""))
        num_records = 0
        for number, line in enumerate(lines_of(file, self._path), 2):
            if line.startswith(_FOOTER):
                break
            yield offset, self._record(line, f"line {number}")
            num_records += 1
            offset += len(line)
        if num_records != self.num_records or file.read(1):
            raise DamageError(
                f"'{printable(self._path)}' is damaged: got {num_records} records, expected {self.num_records}"
            )

    def at(self, file: BinaryIO, offset: int) -> VideoRecord:
        """Read the record of the line at a byte offset."""
        file.seek(offset)
        return self._record(next(lines_of(file, self._path), b""), f"byte {offset}")

    def _record(self, line: bytes, where: str) -> VideoRecord:
        record = self._unseal(line, where, VideoRecord, "a record")
        if problem := record_problem(record, self.header):
            raise DamageError(f"'{printable(self._path)}, {where}' is damaged: {problem}")
        return record


class SealedSink:
    """A writer of records as sealed lines."""

    def __init__(self, file: TextIO, header: Mapping[str, Any]) -> None:
        self._file = file
        self._num_records = 0
        self._file.write(seal(header) + "\n")

    def write(self, record: VideoRecord) -> None:
        """Append one record. Raises ``UsageError`` if no reader would take its line, or the sidecar that repeats it."""
        line = seal(record) + "\n"
        if len(line) > _MAX_RECORD_BYTES:
            raise UsageError(
                f"'{printable(record.path)}': got {len(line):,} bytes of texts and facts, expected at most "
                f"{_MAX_RECORD_BYTES:,}. Shorten its captions and columns."
            )
        self._file.write(line)
        self._num_records += 1

    def finish(self) -> None:
        """Write the last line."""
        self._file.write(seal(_Footer(self._num_records)) + "\n")
