"""The index as one plain JSON document. Any program may read it, and write it again in another layout.

::

{"format": "chordcache-index", "format_version": 5, "roots": {"videos": "/data/videos"}, "level": "packets",
"records": [
{"root": "videos", "path": "a.mp4", ...},
{"root": "videos", "path": "b.mp4", ...}
]}
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from chordcache.amounts import shortened
from chordcache.errors import ChordcacheError, DamageError, printable
from chordcache.index.encoding import texts_problem
from chordcache.index.header import FORMAT, IndexHeader, another_kind_of_file, record_problem
from chordcache.index.json_stream import JsonStream
from chordcache.json_records import from_json, have_keys_once, parse_json, to_json
from chordcache.records import VideoRecord
from chordcache.storage.sealed_json import check_version


class JsonSource:
    """The records of a JSON document."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._start: int | None = None
        """Place of the array of records [bytes]"""
        self.num_records = 0
        members: dict[str, Any] = {}
        try:
            with open(path, "rb") as file:
                first_of_root = self._survey(JsonStream(file), members)
            self.header = self._header(members)
        except ChordcacheError:
            raise
        except (ValueError, RecursionError) as error:
            if FORMAT not in str(members.get("format")):
                raise another_kind_of_file(path) from None
            raise DamageError(
                f"'{printable(path)}' is damaged or cut short: it is not the JSON of an index ({printable(str(error))})"
            ) from None
        for number, record in first_of_root.values():
            self._check(record, f"record {number}")

    def _survey(self, stream: JsonStream, members: dict[str, Any]) -> dict[str, tuple[int, VideoRecord]]:
        """Read all of the document once, so that a mistake is reported before any work is done.

        Return number and record of the first record of each root. ``members`` gets all but the records.
        """
        first_of_root: dict[str, tuple[int, VideoRecord]] = {}
        for name in stream.member_names():
            if name in members or (name == "records" and self._start is not None):
                raise ValueError(f"got the key '{shortened(name, 80)}' twice, expected it once")
            if name != "records" or stream.peek() != "[":
                members[name] = stream.value()
                continue
            self._start = stream.offset
            for number, (_, record) in enumerate(self._records(stream, is_surveyed=False), 1):
                if problem := record_problem(record, (record.root,), None):  # the header may come later
                    raise self._damage(f"record {number}", problem)
                if record.root not in first_of_root:
                    first_of_root[record.root] = (number, record)
                self.num_records = number
        if stream.peek():
            raise ValueError("text follows its end")
        return first_of_root

    def _header(self, members: dict[str, Any]) -> IndexHeader:
        check_version(members, self._path)
        if self._start is None:
            raise ValueError("it has no records")
        return from_json(members, IndexHeader)

    def located(self, file: BinaryIO) -> Iterator[tuple[int, VideoRecord]]:
        """Yield the byte offset and the record of every item."""
        file.seek(self._start or 0)
        try:
            for number, (offset, record) in enumerate(self._records(JsonStream(file), is_surveyed=True), 1):
                yield offset, self._check(record, f"record {number}")
        except ChordcacheError:
            raise
        except ValueError as error:
            raise self._damage("records", f"it is not JSON ({printable(str(error))})") from None

    def at(self, file: BinaryIO, offset: int) -> VideoRecord:
        """Read the record at a byte offset."""
        file.seek(offset)
        where = f"byte {offset}"
        stream = JsonStream(file)
        try:
            data = stream.value()
        except ValueError as error:
            raise self._damage(where, f"it is not JSON ({printable(str(error))})") from None
        return self._check(self._record(data, stream, where), where)

    def _records(self, stream: JsonStream, *, is_surveyed: bool) -> Iterator[tuple[int, VideoRecord]]:
        """Yield the byte offset and the record of every item of the array, which the stream is before.

        Many records on lines of their own, as ``JsonSink`` writes them, are parsed at once. ``is_surveyed`` says that
        they were read before, and have no key twice.
        """
        number = 0
        for _ in stream.items():
            offset, text = stream.offset, stream.whole_lines()
            lines = text.encode("utf-8", "surrogateescape").split(b",\n")
            records: list[VideoRecord] = []
            with suppress(ValueError, RecursionError):  # another layout, or an undecodable name
                records = [parse_json(line, VideoRecord) for line in lines]
            if records and (is_surveyed or have_keys_once(text, records)):
                stream.skip(len(text))
                number += len(records)
                for line, record in zip(lines, records, strict=True):
                    yield offset, record
                    offset += len(line) + 2
            else:
                number += 1
                yield offset, self._record(stream.value(), stream, f"record {number}")

    def _record(self, data: Any, stream: JsonStream, where: str) -> VideoRecord:
        try:
            record = from_json(data, VideoRecord)
            labels, captions = (record.label, *record.labels), (record.caption, *record.captions)
            if stream.has_other_bytes and (problem := texts_problem(labels, captions, record.extra)):
                raise ValueError(problem)
            return record
        except (ValueError, RecursionError) as error:
            raise self._damage(where, f"it is not a record ({printable(str(error))})") from None

    def _check(self, record: VideoRecord, where: str) -> VideoRecord:
        if problem := record_problem(record, self.header.roots, self.header.columns):
            raise self._damage(where, problem)
        return record

    def _damage(self, where: str, what: str) -> DamageError:
        return DamageError(f"'{printable(self._path)}, {where}' is damaged: {what}")


class JsonSink:
    """A writer of records as one JSON document, with a record on each line."""

    def __init__(self, file: TextIO, header: Mapping[str, Any]) -> None:
        self._file = file
        self._before = "\n"
        self._file.write(json.dumps(header, allow_nan=False)[:-1] + ',\n"records": [')

    def write(self, record: VideoRecord) -> None:
        """Append one line."""
        self._file.write(self._before + json.dumps(to_json(record), allow_nan=False))
        self._before = ",\n"

    def finish(self) -> None:
        """End the document."""
        self._file.write("\n]}\n")
