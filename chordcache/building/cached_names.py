"""The files of an index under the names that a cache has for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from chordcache.building.existing_cache import repairable
from chordcache.index.file_names import SameFiles
from chordcache.index.index_files import Index, cached_index
from chordcache.records import Segment, VideoRecord
from chordcache.storage.opener import exists


def with_cached_names(cache: Path, index: Index, moved: Mapping[str, str]) -> Index:
    """Return an index whose files have the root and the path under which a cache has them.

    A list of the folder above the cached root spells the path of each file in another way. A file under two names would
    be built and drawn twice.

    Parameters
    ----------
    cache : Path
        Folder of the cache.
    index : Index
        The index.
    moved : mapping of str to str
        Root label to its folder now, if it moved.

    Raises
    ------
    DamageError, UnreadableError
        If the index of the cache cannot be read.
    """
    if not exists(cache, "index.jsonl"):
        return index
    with repairable(cache):
        earlier = cached_index(cache)
        roots = {**index.roots, **earlier.roots, **moved}
        same = SameFiles(roots)
        others = earlier.roots.keys() - index.roots.keys()
        if not others or not same.can_be:
            return index
        names = {same.key(record): (record.root, record.path) for record in earlier if record.root in others}
    return _Renamed(index, roots, same, names)


class _Renamed(Index):
    """An index with other roots and paths for some files."""

    def __init__(
        self,
        index: Index,
        roots: Mapping[str, str],
        same: SameFiles,
        names: Mapping[tuple[str, Segment | None], tuple[str, str]],
    ) -> None:
        super().__init__(index.path, index.source, is_cached=index.is_cached)
        self._same, self._names = same, names
        self.roots = {label: roots[label] for label in dict.fromkeys(record.root for record in self)}

    def located(self, file: BinaryIO) -> Iterator[tuple[int, VideoRecord]]:
        for offset, record in super().located(file):
            yield offset, self._named(record)

    def at(self, file: BinaryIO, offset: int) -> VideoRecord:
        return self._named(super().at(file, offset))

    def _named(self, record: VideoRecord) -> VideoRecord:
        root, path = self._names.get(self._same.key(record), (record.root, record.path))
        return record.replace(root=root, path=path)
