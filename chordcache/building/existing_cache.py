"""The folder that a build writes to, which may hold a cache already."""

from __future__ import annotations

import errno
import json
import os
import weakref
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from chordcache.amounts import counted
from chordcache.building.fix_commands import repairable
from chordcache.errors import ChordcacheError, DamageError, NotFoundError, StorageError, UsageError, printable
from chordcache.index.column_types import merged_columns
from chordcache.index.file_names import SameFiles
from chordcache.index.index_files import Index, cached_index
from chordcache.records import Segment, VideoRecord
from chordcache.storage import layout
from chordcache.storage.artefacts.tiers import TIERS
from chordcache.storage.cache_header import Header, read_header
from chordcache.storage.catalog import Catalog
from chordcache.storage.catalog_file import CATALOG
from chordcache.storage.feature_info import leaves
from chordcache.storage.find_sidecars import Sidecars, iter_keys
from chordcache.storage.opener import exists, iter_files, list_folder
from chordcache.storage.run_log import RUNS_FILE

_LISTS = ("chordcache.json", "index.jsonl", CATALOG, "quarantine.jsonl", RUNS_FILE)

TOP_LEVEL = frozenset((*_LISTS, "videos", ".partial", ".lock", layout.PACKS, *TIERS))
"""Names in the folder of a cache"""


def earlier_header(folder: Path) -> Header | None:
    """Return the header of an existing cache, or None if the cache does not exist or its header is damaged or lost.

    Raises ``UsageError`` if the folder holds something other than a cache, or a packed one.
    """
    try:
        header = read_header(folder)
    except (NotFoundError, DamageError):
        header = None
    except (StorageError, ValueError) as error:
        raise _unusable(folder, error) from None
    if header is not None:
        return header.writable(folder)
    if os.path.isfile(folder):
        raise UsageError(f"'{printable(folder)}' is a file; name a folder for the cache with -o")
    try:
        names = set(list_folder(folder)) - {".lock", ".partial", RUNS_FILE}
    except FileNotFoundError:
        return None
    except StorageError as error:
        raise _unusable(folder, error) from None
    if not names or names & {"chordcache.json", layout.PACKS} or next(iter_keys(folder), None) is not None:
        return None
    if names == {"index.jsonl"}:  # a build was killed after it wrote the index
        cached_index(folder)
        return None
    raise UsageError(
        f"'{printable(folder)}' is not a cache and not empty (it holds '{printable(min(names))}'); "
        "name another folder with -o"
    )


def _unusable(folder: Path, error: StorageError | ValueError) -> ChordcacheError:
    """Return the error about a name that no folder can have, or ``error`` if the folder may be a cache."""
    if isinstance(error, StorageError) and error.errno not in (errno.ENOTDIR, errno.ENAMETOOLONG):
        return error
    reason = os.strerror(error.errno) if isinstance(error, StorageError) and error.errno else error
    return UsageError(f"'{printable(folder)}' cannot be a cache: {reason}; name another folder with -o")


def settings_of(header: Header) -> dict[str, str]:
    """Return the name and value of all that decides how videos are cached, as texts."""
    return {
        **{name: printable(str(value)) for name, value in leaves("", json.loads(json.dumps(header.config)))},
        "follow_symlinks": str(header.follow_symlinks),
        **{f"features in tier {tier}": ", ".join(sorted(names)) for tier, names in header.features.items()},
    }


def check_sidecars(cache: Path) -> None:
    """Raise ``DamageError`` if the catalog names a video without a sidecar: their folder is not complete.

    Raises ``StorageError`` if the folder cannot be listed.
    """
    keys = set(Sidecars(cache).sorted_keys())
    with suppress(NotFoundError):
        if lost := set(Catalog(cache).keys()) - keys:
            videos = f"{counted(len(lost), 'video')} that the catalog names, such as '{printable(min(lost))}'"
            raise DamageError(
                f"'{printable(cache / 'videos')}': got no sidecars of {videos}, expected all. Copy or mount them. "
                "If they are lost, or a build was killed, run the same build again, or "
                f"'chordcache verify --repair {printable(cache)}' first."
            )


def index_of(cache: Path) -> Index:
    """Return the index of a cache. Raises as ``read_index`` does, and ``DamageError`` also if it is missing."""
    with repairable(cache):
        try:
            return cached_index(cache)
        except NotFoundError as error:
            raise DamageError(f"{printable(cache)}: {error}") from None


def as_cached(cache: Path, index: Index, moved: Mapping[str, str], written: tuple[str, str] = ("", "")) -> Index:
    """Return an index whose files have the root and the path under which a cache has them, and what is known of them.

    A list of the folder above the cached root spells the path of each file in another way. A file under two names would
    be built and drawn twice. Where a record says nothing of a label, a caption or a column, it takes that of the index
    of the cache. ``moved`` is the folder of each root label that moved. ``written`` are the digests of an index and of
    that of the cache, if the latter has the statements of the former alone.

    Raises ``UsageError`` if a column has another type in the cache, and ``DamageError`` and ``StorageError`` if the
    index of the cache cannot be read.
    """
    if not exists(cache, "index.jsonl"):
        return index
    with repairable(cache):
        earlier = cached_index(cache)
        same = SameFiles({**index.roots, **earlier.roots, **moved})
        others = earlier.roots.keys() - index.roots.keys() if same.can_be else ()
        if not others and written == (index.digest(), earlier.digest()):
            return index
        return _AsCached(index, earlier, same, others, moved)


class _AsCached(Index):
    """An index with the names and the statements that a cache has of its files."""

    def __init__(
        self, index: Index, earlier: Index, same: SameFiles, others: Collection[str], moved: Mapping[str, str]
    ) -> None:
        super().__init__(index.path, index.source, is_cached=index.is_cached)
        self._index = index  # its file may be removed with it
        self._same, self._earlier = same, earlier
        self._names: dict[tuple[str, Segment | None], tuple[str, str]] = {}
        self._offsets: dict[str, int] = {}
        """Key of each earlier record that states something to its place in the index of the cache"""
        self._file = earlier.open()  # it is replaced before the last record is read
        weakref.finalize(self, self._file.close)
        for offset, record in earlier.located(self._file):
            if record.root in others:
                self._names[same.key(record)] = record.root, record.path
            if record.extra or record.label or record.labels or record.caption or record.captions:
                self._offsets[layout.key_of(record)] = offset
        self.columns = merged_columns(earlier.columns, index.columns)
        if self._names:
            roots = {**index.roots, **earlier.roots, **moved}
            self.roots = {label: roots[label] for label in dict.fromkeys(record.root for record in self)}

    def located(self, file: BinaryIO) -> Iterator[tuple[int, VideoRecord]]:
        for offset, record in super().located(file):
            yield offset, self._as_cached(record)

    def at(self, file: BinaryIO, offset: int) -> VideoRecord:
        return self._as_cached(super().at(file, offset))

    def _as_cached(self, record: VideoRecord) -> VideoRecord:
        if self._names:
            root, path = self._names.get(self._same.key(record), (record.root, record.path))
            record = record.replace(root=root, path=path)
        offset = self._offsets.get(layout.key_of(record))
        if offset is not None:
            complete = record.over(self._earlier.at(self._file, offset), self.stated)
            self.is_completed = self.is_completed or complete.described(record) != complete
            record = complete
        return record


def unnamed_files(cache: Path, *, must_read: bool = False) -> tuple[list[str], list[str]]:
    """Return the superseded artefacts, and the files that are not part of a cache, each sorted.

    An artefact is not superseded while its sidecar may still come: the index names the video, and it has no sidecar,
    since a build was killed, or a copy of the cache is not complete. With ``must_read``, a sidecar that cannot be read
    raises its error. Without, it may name each file of its video.
    """
    named: set[str] = set()
    unknown: set[str] = set()
    sidecars = Sidecars(cache)
    keys = set(iter_keys(cache))
    for key in keys:
        try:
            named |= {layout.place_of(file)[0] for file in sidecars.read(key).files}
        except (DamageError, StorageError):
            if must_read:
                raise
            unknown.add(key)  # this sidecar may have named any artefact of its video
    superseded: list[str] = []
    early: list[str] = []
    foreign = sorted(set(list_folder(cache)) - TOP_LEVEL)
    foreign += iter_files(cache, layout.PACKS)
    own = set(map(layout.sidecar_file, keys))
    foreign += [file for file in iter_files(cache, "videos") if file not in own]
    for tier in TIERS:
        for file in iter_files(cache, tier):
            owner = layout.key_of_artefact(tier, file)
            if owner is None:
                foreign.append(file)
            elif file not in named and owner not in unknown:
                (superseded if owner in keys else early).append(file)
    if early:
        superseded += _without_indexed(cache, early)
    return sorted(superseded), sorted(foreign)


def _without_indexed(cache: Path, files: list[str]) -> list[str]:
    """Return the artefacts of videos that the index does not name. Without a sound index, it may name each of them."""
    try:
        keys = set(map(layout.key_of, cached_index(cache)))
    except (DamageError, NotFoundError, StorageError, UsageError):
        return []
    return [file for file in files if os.path.basename(file).partition(".")[0] not in keys]
