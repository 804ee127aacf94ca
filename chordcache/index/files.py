"""The index: one record per input, as JSON, JSON Lines or CSV, read and written as a stream.

A ``.jsonl`` file is sealed lines (see ``storage.sealed_json``)::

    {"format": "chordcache-index", "format_version": 2, "roots": {...}, "level": "packets", "xxh3_128": "..."}
    {"root": "videos", "path": "a.mp4", ..., "xxh3_128": "..."}
    {"root": "videos", "path": "b.mp4", ..., "xxh3_128": "..."}
    {"num_records": 2, "xxh3_128": "..."}

A ``.json`` file is the same lines inside one JSON document::

    {"header": {...}, "records": [
     {...}
    ,{...}
    ], "footer": {...}}
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, NamedTuple, TextIO, TypeVar

from chordcache.errors import DamageError, UsageError, printable
from chordcache.index.csv_index import CsvSink, CsvSource
from chordcache.index.csv_table import open_for_reading
from chordcache.records import Count, Record, VideoRecord, path_problem
from chordcache.scan_levels import SCAN_LEVELS
from chordcache.storage.atomic import NO_SPACE, no_space_as_error, publish
from chordcache.storage.sealed_json import FORMAT_VERSION, seal, unseal_as

FORMAT = "chordcache-index"
"""Value of "format" in the header line of an index."""

_LOOK_BYTES = 4096
"""Number of bytes at the start and the end of a file that show whether it is a complete index."""
_MAX_HEADER_BYTES = 1 << 24


class _Dress(NamedTuple):
    """The text before and after the sealed lines."""

    header: tuple[str, str]
    first: str
    next: str
    footer: tuple[str, str]


_DRESSES = {
    ".json": _Dress(('{"header": ', ', "records": ['), " ", ",", ('], "footer": ', "}")),
    ".jsonl": _Dress(("", ""), "", "", ("", "")),
}
_FOOTER = '{"num_records": '

T = TypeVar("T")


class _Header(Record, frozen=True, forbid_unknown_fields=False):
    """The data of the first line."""

    format: str
    roots: Mapping[str, str]
    """Label of a root to its absolute folder"""
    level: str | None = None
    follow_symlinks: bool = False

    def __post_init__(self) -> None:
        if self.format != FORMAT:
            raise UsageError(f"format: got '{printable(self.format)}', expected '{FORMAT}'")
        if self.level not in (None, *SCAN_LEVELS):
            raise UsageError(f"level: got '{printable(self.level)}', expected one of {', '.join(SCAN_LEVELS)}")
        if not all(path.startswith("/") for path in self.roots.values()):
            raise UsageError("roots: got a relative path, expected absolute ones")


class _Footer(Record, frozen=True):
    """The data of the last line."""

    num_records: Count


def _suffix(path: Path) -> str:
    suffix = path.suffix.lower()
    if suffix not in (*_DRESSES, ".csv"):
        raise UsageError(f"index: got '{printable(path.name)}', expected a .json, .jsonl or .csv file")
    return suffix


# Reading


class _JsonSource:
    """The records of a .json or .jsonl file."""

    def __init__(self, path: Path, dress: _Dress) -> None:
        self._path, self._dress = path, dress
        self._footer_start = (dress.footer[0] + _FOOTER).encode()
        with open(path, "rb") as file:
            header = self._header(file)
            self.num_records = self._footer(file)
        self.roots = dict(header.roots)
        self.level = header.level
        self.follow_symlinks = header.follow_symlinks

    def _unseal(self, line: bytes, where: str, before: str, after: str, kind: type[T], what: str) -> T:
        text, source = line.decode("ascii", "replace"), f"{self._path}, {where}"
        if not (text.startswith(before) and text.endswith(after + "\n")):
            raise DamageError(f"'{printable(source)}' is damaged or cut short")
        return unseal_as(text[len(before) : len(text) - len(after) - 1], source, kind, what)

    def _header(self, file: BinaryIO) -> _Header:
        start = file.read(_LOOK_BYTES)
        if start and FORMAT.encode() not in start and b'"xxh3_128": "' not in start:
            raise UsageError(
                f"'{printable(self._path)}': got another kind of file, expected a chordcache index. 'chordcache scan' "
                "makes one, and a hand-written list is a CSV file with a column 'path'."
            )
        file.seek(0)
        line = file.readline(_MAX_HEADER_BYTES)
        return self._unseal(line, "line 1", *self._dress.header, _Header, "the header of an index")

    def _footer(self, file: BinaryIO) -> int:
        """Read the last line first, so that a truncated index is detected before any work is done."""
        file.seek(max(0, file.seek(0, os.SEEK_END) - _LOOK_BYTES))
        last = file.read().splitlines(keepends=True)[-1]
        if not last.startswith(self._footer_start):
            raise DamageError(
                f"'{printable(self._path)}' is damaged or cut short: got another last line than that of an index"
            )
        return self._unseal(last, "last line", *self._dress.footer, _Footer, "the number of its records").num_records

    def located(self, file: BinaryIO) -> Iterator[tuple[int, VideoRecord]]:
        """Yield the byte offset and the record of every line."""
        offset = len(file.readline())
        num_records = 0
        for number, line in enumerate(file, 2):
            if line.startswith(self._footer_start):
                break
            yield offset, self._record(line, f"line {number}", self._dress.next if num_records else self._dress.first)
            num_records += 1
            offset += len(line)
        if num_records != self.num_records or file.read(1):
            raise DamageError(
                f"'{printable(self._path)}' is damaged: got {num_records} records, expected {self.num_records}"
            )

    def at(self, file: BinaryIO, offset: int) -> VideoRecord:
        """Read the record of the line at a byte offset."""
        file.seek(offset)
        line = file.readline()
        is_first = line.startswith(self._dress.first.encode())
        return self._record(line, f"byte {offset}", self._dress.first if is_first else self._dress.next)

    def _record(self, line: bytes, where: str, before: str) -> VideoRecord:
        record = self._unseal(line, where, before, "", VideoRecord, "a record")
        problem = path_problem(record.path)
        if problem is None and record.root not in self.roots:
            problem = f"the header has no root '{printable(record.root)}'"
        if problem:
            raise DamageError(f"'{printable(self._path)}, {where}' is damaged: a record that cannot be used: {problem}")
        return record


class Index:
    """An index file. Each iteration reads it as a stream from the start.

    Attributes
    ----------
    path : Path
        The file.
    roots : dict[str, str]
        Label to absolute folder.
    level : str | None
        Level of ``SCAN_LEVELS``, or None if hand-written.
    follow_symlinks : bool
        True if the scan followed links out of the roots. A CSV file does not store this, and counts as False.
    """

    def __init__(self, path: Path, source: _JsonSource | CsvSource) -> None:
        self._source = source
        self.path, self.roots, self.level = path, source.roots, source.level
        self.follow_symlinks = source.follow_symlinks

    @property
    def is_hand_written(self) -> bool:
        """True if no scan wrote the index."""
        return isinstance(self._source, CsvSource) and self._source.is_hand_written

    def __len__(self) -> int:
        return self._source.num_records

    def __iter__(self) -> Iterator[VideoRecord]:
        with open(self.path, "rb") as file:
            for _, record in self.located(file):
                yield record

    def located(self, file: BinaryIO) -> Iterator[tuple[int, VideoRecord]]:
        """Yield the byte offset for ``at``, and the record, of each line of the index's open file."""
        return self._source.located(file)

    def at(self, file: BinaryIO, offset: int) -> VideoRecord:
        """Return the record at a byte offset of the index's open file."""
        return self._source.at(file, offset)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the index to another file, in the format of its suffix. Raises as ``IndexWriter`` does."""
        with IndexWriter(path, roots=self.roots, level=self.level, follow_symlinks=self.follow_symlinks) as writer:
            for record in self:
                writer.write(record)


def read_index(path: str | os.PathLike[str]) -> Index:
    """Open an index, or a hand-written CSV list with a column ``path``.

    Raises
    ------
    NotFoundError
        If the file does not exist.
    UsageError
        If the file is not an index, or a hand-written list has a mistake.
    DamageError
        If it is damaged or cut short. The iteration raises when it reaches a damaged record.
    FormatVersionError
        If another version of chordcache wrote it.
    """
    path = Path(path)
    suffix = _suffix(path)
    open_for_reading(path, "; make an index with 'chordcache scan ROOT'").close()
    return Index(path, CsvSource(path) if suffix == ".csv" else _JsonSource(path, _DRESSES[suffix]))


# Writing


class _JsonSink:
    """A writer of records as sealed lines."""

    def __init__(self, file: TextIO, dress: _Dress, header: Mapping[str, Any]) -> None:
        self._file, self._dress = file, dress
        self._num_records = 0
        self._file.write(dress.header[0] + seal(header) + dress.header[1] + "\n")

    def write(self, record: VideoRecord) -> None:
        """Append one line."""
        self._file.write((self._dress.next if self._num_records else self._dress.first) + seal(record) + "\n")
        self._num_records += 1

    def finish(self) -> None:
        """Write the last line."""
        self._file.write(self._dress.footer[0] + seal(_Footer(self._num_records)) + self._dress.footer[1] + "\n")

    def close(self) -> None:
        """Do nothing, because there is nothing to free."""


class IndexWriter:
    """A writer of an index, record by record. The file appears, complete or not at all, when the ``with`` block ends.

    Parameters
    ----------
    path : str | PathLike
        Path that ends in .json, .jsonl or .csv.
    roots : Mapping[str, str]
        Label to absolute folder.
    level : str | None
        Level of the scan, of ``SCAN_LEVELS``.
    follow_symlinks : bool
        True if records may lie behind links that lead out of their roots. A CSV file does not store it.

    Raises
    ------
    UsageError
        If the suffix is not one of these, or the file cannot be written.
    NoSpaceError
        If the disk is full.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        roots: Mapping[str, str],
        level: str | None,
        follow_symlinks: bool = False,
    ) -> None:
        self._path = Path(path)
        self._suffix = _suffix(self._path)
        self._roots, self._level, self._follow_symlinks = dict(roots), level, follow_symlinks
        self._partial = self._path.with_name(f".chordcache-index-{os.getpid()}-{id(self):x}.partial")
        self._stack = ExitStack()

    def __enter__(self) -> IndexWriter:
        if self._path.is_dir():
            raise UsageError(f"cannot write the index '{printable(self._path)}': got a folder, expected a file")
        with no_space_as_error(self._path), ExitStack() as stack:
            self._file = stack.enter_context(self._open_partial())
            stack.callback(self._partial.unlink, missing_ok=True)
            self._sink = self._make_sink()
            stack.callback(self._sink.close)
            self._stack = stack.pop_all()
        return self

    def _open_partial(self) -> TextIO:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            return open(self._partial, "x", encoding="utf-8", newline="")
        except OSError as error:
            if error.errno in NO_SPACE:
                raise
            raise UsageError(f"cannot write the index '{printable(self._path)}': {error.strerror}") from None

    def _make_sink(self) -> _JsonSink | CsvSink:
        if self._suffix == ".csv":
            return CsvSink(self._file, self._roots, self._path.parent)
        header = {"format": FORMAT, "format_version": FORMAT_VERSION, "roots": self._roots, "level": self._level}
        if self._follow_symlinks:  # else left out, as in older indices
            header["follow_symlinks"] = True
        return _JsonSink(self._file, _DRESSES[self._suffix], header)

    def write(self, record: VideoRecord) -> None:
        """Append one record. Raises ``NoSpaceError``, and ``UsageError`` if its root is not one of the index."""
        if record.root not in self._roots:
            raise UsageError(f"root: got '{printable(record.root)}', expected one of the index's roots")
        with no_space_as_error(self._path):
            self._sink.write(record)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with no_space_as_error(self._path), self._stack:
            if kind is None:
                self._sink.finish()
                self._file.close()
                publish(self._partial, self._path)


@contextmanager
def temporary_index(
    records: Iterable[VideoRecord], *, roots: Mapping[str, str], level: str | None = None, follow_symlinks: bool = False
) -> Iterator[Index]:
    """Yield an index of these records. It is in a temporary folder, and is removed at the end of the block.

    The parameters are those of ``IndexWriter``.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "index.jsonl")
        with IndexWriter(path, roots=roots, level=level, follow_symlinks=follow_symlinks) as writer:
            for record in records:
                writer.write(record)
        yield read_index(path)
