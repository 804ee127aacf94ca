"""``pull``: copy a cache from an object store into a folder. Nothing gets its name before its content is proven."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from chordcache.engine.signals import stop_signals
from chordcache.errors import DamageError, UsageError, printable
from chordcache.object_stores.client import ObjectStore
from chordcache.object_stores.copies import (
    OTHER_LISTS,
    CopySummary,
    copy_all,
    files_of,
    is_earlier,
    stale_sidecars,
)
from chordcache.object_stores.lists import copy_lists, entries_of
from chordcache.object_stores.local_folder import download
from chordcache.storage import atomic, opener
from chordcache.storage.cache_header import read_header
from chordcache.storage.catalog import Catalog
from chordcache.storage.feature_info import StoredFile
from chordcache.storage.find_sidecars import iter_keys
from chordcache.storage.layout import cache_folder, sidecar_file
from chordcache.storage.lock import locked
from chordcache.storage.origin import check_holds_all
from chordcache.storage.packs import Pack, check_pack
from chordcache.storage.run_log import RUNS_FILE
from chordcache.storage.sidecar import Sidecar

_SIDECARS_AT_ONCE = 256


def pull(url: str, cache: str | Path, *, progress: bool = False) -> CopySummary:
    """Copy a cache from an object store into a folder, or the changes since an earlier pull.

    The digest of each artefact is compared while it arrives. The header and the catalog come last.

    Parameters
    ----------
    url : str
        The URL to which ``push`` copied the cache, such as "s3://data/cache".
    cache : str or Path
        A new folder, or one that an earlier ``pull`` of this cache made.
    progress : bool
        True to show a progress bar on standard error, if that is a terminal.

    Returns
    -------
    CopySummary
        Counts.

    Raises
    ------
    UsageError
        If the folder holds something else, or credentials are missing.
    NotFoundError
        If the cache or the object store does not exist.
    DamageError
        If other bytes arrive than were written.
    LockedError
        If another process writes to the cache.
    StorageError, StoppedError
        If the object store does not answer, the disk takes no data, or a signal stopped it. The same call resumes.
    """
    folder, store = cache_folder(cache), ObjectStore(url)
    with stop_signals(resumes=True):
        entries = entries_of(store, (RUNS_FILE, *OTHER_LISTS, "chordcache.json", "catalog.bin"))
        log = store.read(RUNS_FILE)
        _check_folder(folder, store, log)
        with locked(folder), atomic.writing_to(folder):
            atomic.remove_partials(folder)
            atomic.check_space(folder, sum(entry.num_bytes for entry in entries.values()))
            with atomic.partial_folder(folder) as lists:
                copy_lists(store, lists, entries)
                return _Pull(store, folder, lists, list(entries)).run(progress)


def _check_folder(folder: Path, store: ObjectStore, log: bytes | None) -> None:
    """Raise ``UsageError`` unless a folder is new, or an earlier pull of the cache made it."""
    if not os.path.lexists(folder):
        return
    name, url = printable(folder), printable(store.url)
    if not folder.is_dir():
        raise UsageError(f"cache: got '{name}', expected a folder. Name another one.")
    check_holds_all(folder)
    if not set(opener.list_folder(folder)) - {".lock", ".partial"}:
        return
    try:
        own = opener.read_file(folder, RUNS_FILE)
    except FileNotFoundError:
        own = b""
    if log is None or not is_earlier(own, log):
        raise UsageError(f"cache: got '{name}', which holds something else, expected a new folder or a pull of '{url}'")


class _Pull:
    """A pull under the lock of the new cache, with its lists in a partial folder."""

    def __init__(self, store: ObjectStore, cache: Path, lists: Path, names: list[str]) -> None:
        self._store, self._cache, self._lists, self._names = store, cache, lists, names
        self._catalog = Catalog(lists)
        self._is_packed = read_header(lists).is_packed
        try:
            for _ in self._catalog.check():
                pass
        except DamageError as error:
            what = str(error).partition("; run")[0]
            raise DamageError(f"the catalog of '{printable(store.url)}' is damaged: {what}") from None

    def run(self, progress: bool) -> CopySummary:
        """Copy what is missing."""
        if RUNS_FILE in self._names:  # first: by this, the next pull knows its own files
            self._publish([RUNS_FILE])
        files = files_of(map(self._catalog.at, range(len(self._catalog))))
        missing = [file for file in files if not self._has(file)]
        num_bytes = sum(file.num_bytes for file in missing)
        atomic.check_space(self._cache, num_bytes)
        copy_all(self._copy, missing, "file", progress=progress)
        self._write_sidecars()
        self._publish([name for name in (*OTHER_LISTS, "chordcache.json", "catalog.bin") if name in self._names])
        return CopySummary(len(self._catalog), len(missing), num_bytes, len(files) - len(missing))

    def _publish(self, names: list[str]) -> None:
        for name in names:
            atomic.publish_all(self._cache, {self._lists / name: name})

    def _has(self, file: StoredFile | Pack) -> bool:
        try:
            return opener.size_of(self._cache, file.name) == file.num_bytes
        except FileNotFoundError:
            return False

    def _copy(self, file: StoredFile | Pack) -> None:
        path = self._cache / file.name
        with atomic.writing_to(path), atomic.partial_file(self._cache) as partial:
            if isinstance(file, Pack):
                with open(partial, "xb") as target:
                    target.writelines(self._store.whole(file.name, self._store.entry(file.name)))
                check_pack(self._cache, file, os.path.relpath(partial, self._cache))
            else:
                download(self._store, file, partial)
            atomic.publish_all(self._cache, {partial: file.name})

    def _write_sidecars(self) -> None:
        """Write the sidecars that differ from those of the catalog, and remove those of other videos."""
        if self._is_packed:
            return
        todo = self._changed_sidecars()
        while some := list(islice(todo, _SIDECARS_AT_ONCE)):
            with atomic.partial_folder(self._cache) as folder:
                files = {}
                for sidecar, line, mtime_ns in some:
                    path = folder / sidecar.key
                    path.write_bytes(line)
                    if mtime_ns:  # so that the catalog knows it
                        os.utime(path, ns=(mtime_ns, mtime_ns))
                    files[path] = sidecar_file(sidecar.key)
                atomic.publish_all(self._cache, files)
        keys = self._catalog.keys()
        if opener.exists(self._cache, "videos"):
            for name in stale_sidecars(map(sidecar_file, iter_keys(self._cache)), keys):
                opener.remove(self._cache, name)
        else:
            opener.make_folder(self._cache, "videos")

    def _changed_sidecars(self) -> Iterator[tuple[Sidecar, bytes, int]]:
        for position in range(len(self._catalog)):
            sidecar, line, mtime_ns = self._catalog.row(position)
            try:
                is_same = opener.read_file(self._cache, sidecar_file(sidecar.key)) == line
            except FileNotFoundError:
                is_same = False
            if not is_same:
                yield sidecar, line, mtime_ns
