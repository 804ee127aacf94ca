"""The index: one record per input, read and written as a stream, as JSON or JSON Lines, or without facts from CSV."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, TextIO, TypeAlias

import numpy as np

from chordcache.amounts import first_few
from chordcache.arguments import absolute, names_arguments
from chordcache.digests import digest_file
from chordcache.errors import DamageError, NotFoundError, UsageError, printable
from chordcache.index.csv_index import CsvRows, CsvSink, ListRows, csv_source
from chordcache.index.header import FORMAT
from chordcache.index.json_index import JsonSink, JsonSource
from chordcache.index.lists.tables import open_for_reading
from chordcache.index.sealed_index import SealedSink, SealedSource
from chordcache.json_records import MAX_FRAMES
from chordcache.records import VideoRecord
from chordcache.storage import layout
from chordcache.storage.atomic import NO_SPACE, no_space_as_error, publish
from chordcache.storage.opener import open_binary, readable
from chordcache.storage.sealed_json import FORMAT_VERSION
from chordcache.temporary import temporary_folder

Source: TypeAlias = JsonSource | SealedSource | CsvRows
Sink: TypeAlias = JsonSink | SealedSink | CsvSink

_SOURCES: Mapping[str, Callable[[Path], Source]] = {".json": JsonSource, ".jsonl": SealedSource, ".csv": csv_source}
_SINKS: Mapping[str, Callable[[TextIO, Mapping[str, Any]], Sink]] = {
    ".json": JsonSink,
    ".jsonl": SealedSink,
    ".csv": CsvSink,
}


def check_output(output: str | os.PathLike[str]) -> None:
    """Raise ``UsageError`` if an index cannot be written to a place: by its suffix, or since it lies in a cache."""
    layout.check_output("output", output)
    path = Path(output)
    if path.suffix.lower() not in _SINKS:
        raise UsageError(f"output: got '{printable(path)}', expected a .json, .jsonl or .csv file. Name another file.")


_HOW_TO_SCAN = "; make an index with 'chordcache scan ROOT'"


def _suffix(path: Path) -> str:
    suffix = path.suffix.lower()
    if suffix not in _SOURCES:
        raise UsageError(
            f"index: got '{printable(path.name)}', expected a .json, .jsonl or .csv file, or the folder of the videos. "
            "For a single video, make an index with 'chordcache scan VIDEO'."
        )
    return suffix


class Index:
    """An index file. Each iteration reads it as a stream from the start.

    Attributes
    ----------
    path : Path
        The file.
    roots : dict[str, str]
        Label to absolute folder.
    level : str | None
        Level of ``SCAN_LEVELS``, or None if hand-written or read from CSV, of which no facts are read.
    follow_symlinks : bool
        True if the scan followed links out of the roots. A CSV file does not store this, and counts as False.
    whole_roots : tuple of str
        Labels of the roots of which the index has every video. A CSV file does not store them.
    columns : dict[str, str]
        Extra column to its type, if it is not text.
    stated : tuple of str
        As in ``IndexHeader``.
    is_cached : bool
        True if it is in the folder of a cache, where no link is followed.
    notes : tuple of str
        Sentences about how a hand-written list was read, such as the roots of absolute paths.
    is_completed : bool
        True once a record has been read to which the cache added a label, a caption or a column.
    taken : str
        The meanings of the columns of a hand-written list, or of a scan's file of labels.
    """

    is_completed = False

    def __init__(self, path: Path, source: Source, *, is_cached: bool = False) -> None:
        self.source, self.is_cached = source, is_cached
        header = source.header
        self.path, self.roots, self.level = path, dict(header.roots), header.level
        self.follow_symlinks, self.whole_roots = header.follow_symlinks, header.whole_roots
        self.columns, self.stated = dict(header.columns), header.stated
        self.notes, self.taken = (source.notes, source.taken) if isinstance(source, CsvRows) else ((), "")

    def __repr__(self) -> str:
        roots = ", ".join(first_few(sorted(self.roots), 3))
        level = "no facts" if self.level is None else f"level {self.level}"
        name, place = type(self).__name__, printable(self.path)
        return f"<{name} '{place}': {len(self)} records, {level}, roots {printable(roots) or 'none'}>"

    @property
    def is_hand_written(self) -> bool:
        """True if no scan wrote the index."""
        return isinstance(self.source, ListRows)

    def __len__(self) -> int:
        return self.source.num_records

    def __iter__(self) -> Iterator[VideoRecord]:
        with self.open() as file:
            for _, record in self.located(file):
                yield record

    def open(self) -> BinaryIO:
        """Open its file, for ``located`` and ``at``."""
        return open_binary(self.path.parent, self.path.name) if self.is_cached else open(self.path, "rb")

    def digest(self) -> str:
        """Return the digest of its file."""
        with self.open() as file:
            return digest_file(os.dup(file.fileno()))

    def located(self, file: BinaryIO) -> Iterator[tuple[int, VideoRecord]]:
        """Yield the byte offset for ``at``, and the record, of each line of the index's open file."""
        with readable(self.path):
            yield from self.source.located(file)

    def at(self, file: BinaryIO, offset: int) -> VideoRecord:
        """Return the record at a byte offset of the index's open file."""
        with readable(self.path):
            return self.source.at(file, offset)

    def frame_mappings(self, video: VideoRecord) -> str:
        """Return the frame times and keyframes of a file for torchcodec, which then opens it without reading all of it.

        Parameters
        ----------
        video : VideoRecord
            A record of the index. The file must not have changed since the scan. Of a segment, all frames of its file
            are returned.

        Returns
        -------
        str
            JSON for ``torchcodec.decoders.VideoDecoder(custom_frame_mappings=...)``: ``frames`` in presentation order,
            each with ``pts`` and ``duration`` [ticks of the track's clock] and ``key_frame``, 0 or 1.

        Raises
        ------
        UsageError
            If the record does not have the times of its frames: of a broken file, of a file without presentation
            times, of a scan at level "headers" or of an earlier version, or of an index that no scan wrote.
        DamageError
            If the times are damaged.
        """
        if video.packets is None or not video.packets.frame_steps:
            raise UsageError(
                f"video: got '{printable(video.path)}' without the times of its frames, expected a record of a scan at "
                "level packets, of a file with presentation times. Scan into another index, or decode without mappings."
            )
        num_bytes = 8 * (min(video.packets.num_frames, MAX_FRAMES) + 1)
        try:
            steps = np.frombuffer(zlib.decompressobj().decompress(video.packets.frame_steps, num_bytes + 1), "<i8")
        except (zlib.error, ValueError):
            steps = np.empty(0, np.int64)
        if 8 * len(steps) != num_bytes:
            raise DamageError(f"'{printable(self.path)}' is damaged: the frame times of '{printable(video.path)}'")
        keyframes = set(video.packets.keyframe_numbers)
        times = zip(np.cumsum(steps).tolist(), steps[1:].tolist(), strict=False)  # the last is the end of the video
        frames = (
            f'{{"pts":{pts},"duration":{duration},"key_frame":{int(number in keyframes)}}}'
            for number, (pts, duration) in enumerate(times)
        )
        return f'{{"frames":[{",".join(frames)}]}}'

    def writer(self, path: str | os.PathLike[str], **changes: Any) -> IndexWriter:
        """Return a writer of a part of the index, with its settings but for ``changes``, which ``IndexWriter`` has."""
        same = {name: getattr(self, name) for name in ("roots", "level", "follow_symlinks", "columns", "stated")}
        return IndexWriter(path, **{**same, **changes})

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the index to another file, in the format of its suffix. Raises as ``IndexWriter`` does."""
        with self.writer(path, whole_roots=self.whole_roots) as writer:
            for record in self:
                writer.write(record)


@names_arguments
def read_index(path: str | os.PathLike[str]) -> Index:
    """Open an index, or a hand-written CSV list with a column ``path``. The facts of a CSV index are not read.

    Raises
    ------
    NotFoundError, StorageError
        If the file does not exist, or cannot be read.
    UsageError
        If the file is not an index, or a CSV file has a mistake.
    DamageError
        If it is damaged or cut short. The iteration raises when it reaches a damaged record.
    ChordcacheError
        If another version of chordcache wrote it.
    """
    path = absolute(path)
    if path.name == "index.jsonl" and os.path.lexists(path.with_name("chordcache.json")):
        return cached_index(path.parent)
    suffix = _suffix(path)
    open_for_reading(path, _HOW_TO_SCAN).close()
    with readable(path):
        return Index(path, _SOURCES[suffix](path))


def cached_index(cache: Path, name: str = "index.jsonl") -> Index:
    """Open the index of a cache or of one of its parts, where no link is followed. Raises as ``read_index`` does."""
    path = cache / name
    try:
        file = open_binary(cache, name)
    except FileNotFoundError:
        raise NotFoundError(f"no such file '{printable(path)}'{_HOW_TO_SCAN}") from None
    with readable(path):
        return Index(path, SealedSource(path, file), is_cached=True)


def no_videos(index: Index) -> NotFoundError:
    """Return the error for an index without records, of which nothing can be built."""
    return NotFoundError(f"index: got '{printable(index.path)}' without videos, expected at least one. Scan again.")


# Writing


class IndexWriter:
    """A writer of an index, record by record. The file appears, complete or not at all, when the ``with`` block ends.

    ``path`` ends in .json, .jsonl or .csv. The other parameters are the fields of ``IndexHeader``, of which a CSV file
    stores only the roots and the types of the columns. Raises ``UsageError`` if the file cannot be written, and
    ``StorageError``.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        roots: Mapping[str, str],
        level: str | None,
        follow_symlinks: bool = False,
        whole_roots: Sequence[str] = (),
        columns: Mapping[str, str] = MappingProxyType({}),
        stated: Sequence[str] = (),
    ) -> None:
        self._path = Path(path)
        self._suffix = _suffix(self._path)
        self._roots = dict(roots)
        self._header = {"format": FORMAT, "format_version": FORMAT_VERSION, "roots": self._roots, "level": level}
        optional = {"follow_symlinks": follow_symlinks, "whole_roots": list(whole_roots), "columns": dict(columns)}
        optional["stated"] = list(stated)
        self._header |= {name: value for name, value in optional.items() if value}
        self._partial = self._path.with_name(f".chordcache-index-{os.getpid()}-{id(self):x}.partial")
        self._stack = ExitStack()

    def __enter__(self) -> IndexWriter:
        if self._path.is_dir():
            raise UsageError(f"cannot write the index '{printable(self._path)}': got a folder, expected a file")
        with no_space_as_error(self._path), ExitStack() as stack:
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._file = stack.enter_context(open(self._partial, "x", encoding="utf-8", newline=""))
            except OSError as error:
                if error.errno in NO_SPACE:
                    raise
                raise UsageError(f"cannot write the index '{printable(self._path)}': {error.strerror}") from None
            stack.callback(self._partial.unlink, missing_ok=True)
            self._sink = _SINKS[self._suffix](self._file, self._header)
            if isinstance(self._sink, CsvSink):
                stack.callback(self._sink.close)
            self._stack = stack.pop_all()
        return self

    def write(self, record: VideoRecord) -> None:
        """Append one record. Raises ``StorageError``, and ``UsageError`` if its root is not one of the index."""
        if record.root not in self._roots:
            raise UsageError(f"root: got '{printable(record.root)}', expected one of the index's roots")
        with no_space_as_error(self._path):
            self._sink.write(record)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with no_space_as_error(self._path), self._stack:
            if kind is None:
                self._sink.finish()
                self._file.close()
                publish(self._partial, self._path)


@contextmanager
def temporary_index(records: Iterable[VideoRecord], **header: Any) -> Iterator[Index]:
    """Yield an index of these records. It is in a temporary folder, and is removed at the end of the block.

    ``header`` has the parameters of ``IndexWriter``.
    """
    with temporary_folder() as folder:
        path = folder / "index.jsonl"
        with IndexWriter(path, **header) as writer:
            for record in records:
                writer.write(record)
        yield read_index(path)
