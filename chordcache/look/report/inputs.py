"""The videos that a page shows: of a cache, of a cache whose catalog cannot be read, or of an index alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import NamedTuple

from chordcache.errors import ChordcacheError, DamageError, NotFoundError
from chordcache.index.index_files import cached_index, read_index
from chordcache.read.cache import Cache
from chordcache.read.video import Video
from chordcache.records import ContentFacts, VideoRecord
from chordcache.storage.find_sidecars import Sidecars
from chordcache.storage.layout import key_of


class Entry(NamedTuple):
    """One item: its video if it is cached, and its record if an index has one."""

    key: str
    video: Video | None
    record: VideoRecord | None

    @property
    def described(self) -> Video | VideoRecord:
        """The sidecar or the record, which has the labels, captions and extra columns."""
        described = self.video or self.record
        assert described is not None
        return described

    @property
    def content(self) -> ContentFacts | None:
        """Facts about the content, from the cache or else from the index."""
        return (self.video.content if self.video else None) or (self.record.content if self.record else None)


class ReportInput(AbstractContextManager["ReportInput"]):
    """The items of an index, or the videos of a cache in the order of their keys, also while it is being built.

    A missing or damaged catalog or index of a cache is not an error. ``notes`` has a sentence for each. A damaged
    record of another index raises ``DamageError`` when it is reached. Use it as a context manager, which closes files.
    """

    def __init__(self, path: Path, *, is_cache: bool) -> None:
        self.cache: Cache | None = None
        self.notes: list[str] = []
        self._stack = ExitStack()
        self._offsets: dict[str, int] = {}
        """Key of each record to its place in the index of a cache"""
        if is_cache:
            self._open(path)
        else:
            self._index = read_index(path)
            self._num_items = len(self._index)

    def _open(self, path: Path) -> None:
        self._video: Callable[[int], Video]
        try:
            self.cache = cache = self._stack.enter_context(Cache(path))
            self._video, self._num_items = cache.__getitem__, len(cache)
        except (NotFoundError, DamageError) as error:
            self.notes.append(str(error))
            self.cache = cache = self._stack.enter_context(Cache.without_catalog(path))
            sidecars = Sidecars(path)
            keys = sidecars.sorted_keys()
            self._video, self._num_items = lambda number: Video(cache.path, sidecars.read(keys[number])), len(keys)
        try:
            self._index = cached_index(path)
            self._file = self._stack.enter_context(self._index.open())
            for offset, record in self._index.located(self._file):
                self._offsets[key_of(record)] = offset
        except (ChordcacheError, OSError) as error:
            self.notes.append(str(error))

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def __len__(self) -> int:
        return self._num_items

    def __iter__(self) -> Iterator[Entry]:
        if self.cache is None:
            yield from (Entry(key_of(record), None, record) for record in self._index)
            return
        for number in range(len(self)):
            try:
                video = self._video(number)
            except ChordcacheError:  # `verify` reports it
                continue
            yield Entry(video.key, video, self._record(video.key))

    def _record(self, key: str) -> VideoRecord | None:
        try:
            return self._index.at(self._file, self._offsets[key]) if key in self._offsets else None
        except (ChordcacheError, OSError):
            return None
