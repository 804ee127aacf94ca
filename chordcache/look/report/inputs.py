"""The videos that a page shows: of a cache, of a cache whose catalog cannot be read, or of an index alone."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import numpy as np

from chordcache.errors import ChordcacheError, DamageError, NotFoundError
from chordcache.index.index_files import Index, cached_index, read_index
from chordcache.read.cache import Cache
from chordcache.read.video import Video
from chordcache.records import VideoRecord
from chordcache.storage.layout import key_of
from chordcache.storage.sidecars import Sidecars


class Entry(NamedTuple):
    """One item: its video if it is cached, and its record if an index has one."""

    key: str
    video: Video | None
    record: VideoRecord | None


class RecordsByKey:
    """The records of a cache's index by key. It holds 16 bytes for each, and keeps the file open.

    A missing or damaged index has no records, and ``problem`` says why.
    """

    def __init__(self, cache: Path) -> None:
        self.problem: str | None = None
        self._stack = ExitStack()
        self._index: Index | None = None
        hashes, offsets = array("Q"), array("q")
        try:
            self._index = cached_index(cache)
            self._file = self._stack.enter_context(self._index.open())
            for offset, record in self._index.located(self._file):
                hashes.append(_hash_of(key_of(record)))
                offsets.append(offset)
        except (ChordcacheError, OSError) as error:
            self.problem = str(error)
        order = np.argsort(np.frombuffer(hashes, np.uint64), kind="stable") if hashes else np.empty(0, np.int64)
        self._hashes = np.array(hashes, np.uint64)[order]
        self._offsets = np.array(offsets, np.int64)[order]

    def get(self, key: str) -> VideoRecord | None:
        """Return the record of a video, or None."""
        if self._index is None or not len(self._hashes):
            return None
        place = int(np.searchsorted(self._hashes, np.uint64(_hash_of(key))))
        if place == len(self._hashes) or int(self._hashes[place]) != _hash_of(key):
            return None
        try:
            record = self._index.at(self._file, int(self._offsets[place]))
        except (ChordcacheError, OSError):
            return None
        return record if key_of(record) == key else None

    def close(self) -> None:
        """Close the file."""
        self._stack.close()


def _hash_of(key: str) -> int:
    return int(key[-16:], 16)


class CacheInput:
    """The videos of a cache in the order of their keys, also while its first build is running.

    A missing or damaged catalog or index is not an error. ``notes`` has a sentence for each.
    """

    def __init__(self, path: Path) -> None:
        self.notes: list[str] = []
        self._keys: list[str] | None = None
        try:
            self.cache = Cache(path)
        except (NotFoundError, DamageError) as error:
            self.cache = Cache.without_catalog(path)
            self.notes.append(str(error))
            self._sidecars = Sidecars(path)
            self._keys = self._sidecars.sorted_keys()
        self._records = RecordsByKey(path)
        if self._records.problem:
            self.notes.append(self._records.problem)

    def __len__(self) -> int:
        return len(self.cache) if self._keys is None else len(self._keys)

    def __iter__(self) -> Iterator[Entry]:
        entries = (self._entry(position) for position in range(len(self)))
        return (entry for entry in entries if entry is not None)

    def _entry(self, position: int) -> Entry | None:
        """Return a video by its position, or None if its sidecar cannot be read."""
        try:
            if self._keys is None:
                video = self.cache[position]
            else:
                video = Video(self.cache.path, self._sidecars.read(self._keys[position]))
        except ChordcacheError:  # `verify` reports it
            return None
        return Entry(video.key, video, self._records.get(video.key))

    def close(self) -> None:
        """Close the files."""
        self._records.close()
        self.cache.close()


class IndexInput:
    """The items of an index, without a cache. A damaged record raises ``DamageError`` when it is reached."""

    cache = None
    notes: Sequence[str] = ()

    def __init__(self, path: Path) -> None:
        self._index = read_index(path)

    def __len__(self) -> int:
        return len(self._index)

    def __iter__(self) -> Iterator[Entry]:
        return (Entry(key_of(record), None, record) for record in self._index)

    def close(self) -> None:
        """Do nothing: each iteration closes its file."""
