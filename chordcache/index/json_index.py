"""The index as one plain JSON document, with a record on each line. Any program may read it, and write it again.

::

{"format": "chordcache-index", "format_version": 5, "roots": {"videos": "/data/videos"}, "level": "packets",
"records": [
{"root": "videos", "path": "a.mp4", ...},
{"root": "videos", "path": "b.mp4", ...}
]}

What chordcache wrote is read line by line. A document in another layout is read as a whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from chordcache.errors import ChordcacheError, DamageError, printable
from chordcache.index.encoding import is_unicode, texts_problem
from chordcache.index.header import FORMAT, IndexHeader, another_kind_of_file, record_problem
from chordcache.index.json_values import decode_json, read_json
from chordcache.json_records import from_json, have_keys_once, parse_json, to_json
from chordcache.records import VideoRecord
from chordcache.storage.sealed_json import check_version

_RECORDS = b'"records": [\n'
_END = b"]}\n"
_MAX_LINE_BYTES = 1 << 26


class JsonSource:
    """The records of a JSON document."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._start = 0
        """Place of the first record [bytes], or 0 in another layout"""
        self._records: list[Any] = []
        """Records of another layout"""
        self._has_other_bytes = False
        """True if another layout has bytes that are not UTF-8"""
        self.num_records = 0
        with open(path, "rb") as file:
            try:
                line = file.readline(_MAX_LINE_BYTES)
                header = None
                if line.endswith(b",\n") and file.readline(len(_RECORDS)) == _RECORDS:  # as ``JsonSink`` writes it
                    with suppress(ValueError):
                        self._start = file.tell()
                        header = decode_json(line[:-2].decode("utf-8", "surrogateescape") + "}")
                with suppress(DamageError):  # also of a document that a person changed
                    if header is not None:
                        self._survey(header, file)
                        return
                self._survey(self._whole(file), file)
            except ChordcacheError:
                raise
            except (ValueError, RecursionError) as error:
                if FORMAT.encode() not in path.read_bytes():
                    raise another_kind_of_file(path) from None
                what = f"it is not the JSON of an index ({printable(str(error))})"
                raise DamageError(f"'{printable(path)}' is damaged or cut short: {what}") from None

    def _survey(self, members: dict[str, Any], file: BinaryIO) -> None:
        """Read all records once, so that a mistake is reported before any work is done."""
        check_version(members, self._path)
        self.header = from_json(members, IndexHeader)
        self.num_records = sum(1 for _ in self.located(file))

    def _whole(self, file: BinaryIO) -> Any:
        """Return the members of a document in another layout, and keep its records."""
        file.seek(0)
        self._start = 0
        text = read_json(file, self._path)
        self._has_other_bytes = not is_unicode(text)
        data = decode_json(text)
        if isinstance(data, dict) and isinstance(data.get("records"), list):
            self._records = data.pop("records")
            return data
        raise ValueError("it has no records")

    def located(self, file: BinaryIO) -> Iterator[tuple[int, VideoRecord]]:
        """Yield the place and the record of every item. The place is an offset, or a number in another layout."""
        if not self._start:
            for number, data in enumerate(self._records):
                yield number, self._record(data, f"record {number + 1}", self._has_other_bytes)
            return
        file.seek(self._start)
        offset, line, number = self._start, b",\n", 0
        while line.endswith(b",\n"):
            line = file.readline(_MAX_LINE_BYTES)
            if line == _END and number == 0:
                break
            number += 1
            yield offset, self._of_line(line, f"record {number}")
            offset += len(line)
        if file.readline(len(_END) + 1) not in ((_END,) if number else (b"",)) or file.read(1):
            raise self._damage(f"record {number}", "it is not the last one, or the document is cut short")

    def at(self, file: BinaryIO, offset: int) -> VideoRecord:
        """Read the record at a place that ``located`` yielded."""
        if not self._start:
            return self._record(self._records[offset], f"record {offset + 1}", self._has_other_bytes)
        file.seek(offset)
        return self._of_line(file.readline(_MAX_LINE_BYTES), f"byte {offset}")

    def _of_line(self, line: bytes, where: str) -> VideoRecord:
        if not line.endswith(b"\n"):
            raise self._damage(where, "it is cut short")
        text = line.removesuffix(b"\n").removesuffix(b",")
        with suppress(ValueError, RecursionError):  # a mistake, or an undecodable name
            record = parse_json(text, VideoRecord)
            if have_keys_once(text.decode(), [record]):
                return self._check(record, where)
        line_text = text.decode("utf-8", "surrogateescape")
        try:
            data = decode_json(line_text)
        except ValueError as error:
            raise self._damage(where, f"it is not JSON ({printable(str(error))})") from None
        return self._record(data, where, not is_unicode(line_text))

    def _record(self, data: Any, where: str, has_other_bytes: bool) -> VideoRecord:
        try:
            record = from_json(data, VideoRecord)
        except (ValueError, RecursionError) as error:
            raise self._damage(where, f"it is not a record ({printable(str(error))})") from None
        labels, captions = (record.label, *record.labels), (record.caption, *record.captions)
        if has_other_bytes and (problem := texts_problem(labels, captions, record.extra)):
            raise self._damage(where, f"it is not a record ({problem})")
        return self._check(record, where)

    def _check(self, record: VideoRecord, where: str) -> VideoRecord:
        if problem := record_problem(record, self.header):
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
