"""``push``: copy a cache into a store, so that a reader never finds a list of files that are not there."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from chordcache.engine.signals import stop_signals
from chordcache.errors import UsageError, printable
from chordcache.object_stores.client import ObjectStore, StoredObject
from chordcache.object_stores.copies import (
    OTHER_LISTS,
    CopySummary,
    copy_all,
    files_of,
    is_earlier,
    is_of_cache,
    stale_sidecars,
)
from chordcache.storage import opener
from chordcache.storage.artefacts.tiers import TIERS
from chordcache.storage.cache_header import read_header
from chordcache.storage.catalog import Catalog
from chordcache.storage.feature_files import checked_blocks, damaged
from chordcache.storage.feature_info import StoredFile
from chordcache.storage.find_sidecars import Sidecars
from chordcache.storage.layout import cache_folder, sidecar_file
from chordcache.storage.lock import locked_for_reading
from chordcache.storage.packs import Pack, check_pack
from chordcache.storage.run_log import RUNS_FILE
from chordcache.storage.sidecar import Sidecar


def push(cache: str | Path, url: str, *, progress: bool = False) -> CopySummary:
    """Copy a cache into a store, or the changes since an earlier push.

    Files of videos come first and the list of videos last. So a reader of the store sees the earlier cache until the
    new one is complete. Artefacts that are there are not sent again: their names are made of their content. Nothing is
    removed but sidecars of videos that left the cache.

    Parameters
    ----------
    cache : str or Path
        The cache.
    url : str
        An object store and a prefix in it, such as "s3://data/cache".
    progress : bool
        True to show a progress bar on standard error, if that is a terminal.

    Returns
    -------
    CopySummary
        Counts.

    Raises
    ------
    UsageError
        If the prefix holds something else, or another or a later state of the cache, or credentials are missing.
    NotFoundError
        If the cache or the object store does not exist.
    DamageError
        If the cache is damaged.
    LockedError
        If another process writes to the cache.
    StorageError, StoppedError
        If a file cannot be read, the object store takes no data, or a signal stopped it. The same call resumes.
    """
    folder, store = cache_folder(cache), ObjectStore(url)
    read_header(folder)
    with stop_signals(resumes=True), locked_for_reading(folder):
        return _Push(folder, store).run(progress)


class _Push:
    """A push under the lock of the cache. Raises ``UsageError`` if the object store holds something else."""

    def __init__(self, cache: Path, store: ObjectStore) -> None:
        self._cache, self._store = cache, store
        self._sidecars = Sidecars(cache)
        self._keys = self._sidecars.sorted_keys()
        self._entries = store.entries()
        self._check_store()
        self._check_catalog()

    def _check_store(self) -> None:
        """Raise ``UsageError`` unless the object store holds nothing, or an earlier state of the cache."""
        name, url = printable(self._cache), printable(self._store.url)
        if not opener.exists(self._cache, RUNS_FILE):
            what = f"cache: got '{name}' without {RUNS_FILE}, expected the log of its builds"
            raise UsageError(f"{what}. Run the same 'chordcache build' again.")
        for other in self._entries:
            if not is_of_cache(other, TIERS):
                raise UsageError(f"url: got '{url}', which holds '{printable(other)}', expected a new prefix")
        log = self._store.read(RUNS_FILE) or b""
        if self._entries and not is_earlier(log, opener.read_file(self._cache, RUNS_FILE)):
            raise UsageError(
                f"url: got '{url}', which holds another cache or a later state of this one, expected a new prefix, or "
                f"an earlier state of '{name}'"
            )

    def _check_catalog(self) -> None:
        """Raise ``DamageError`` if the catalog has other rows than the sidecars."""
        catalog = Catalog(self._cache)
        rows = (catalog.row(position)[1] for position in range(len(catalog)))
        lines = (line for _, line, _ in self._rows())
        if catalog.keys() != self._keys or any(row != line for row, line in zip(rows, lines, strict=True)):
            raise damaged(self._cache, "catalog.bin", "it is not of these sidecars")

    def _rows(self) -> Iterator[tuple[Sidecar, bytes, int]]:
        return map(self._sidecars.row, self._keys)

    def run(self, progress: bool) -> CopySummary:
        """Send what is missing."""
        self._send(RUNS_FILE, [opener.read_file(self._cache, RUNS_FILE)])  # by this, the next push knows its own files
        files = files_of(sidecar for sidecar, _, _ in self._rows())
        missing = [file for file in files if not self._has(file)]
        copy_all(self._copy, missing, "file", progress=progress)
        loose = [] if self._sidecars.is_packed else self._keys
        copy_all(self._copy_sidecar, loose, "sidecar", progress=progress)
        for name in OTHER_LISTS:
            if opener.exists(self._cache, name):
                self._send(name, _blocks(self._cache, name))
            elif name in self._entries:
                self._send(name, [])
        for name in ("chordcache.json", "catalog.bin"):
            self._send(name, _blocks(self._cache, name))
        self._store.remove(stale_sidecars(self._entries, loose))
        num_bytes = sum(file.num_bytes for file in missing)
        return CopySummary(len(self._keys), len(missing), num_bytes, len(files) - len(missing))

    def _has(self, file: StoredFile | Pack) -> bool:
        """Return whether the object store has an artefact or a pack. Its name stands for its content."""
        entry = self._entries.get(file.name)
        return entry is not None and entry.num_bytes == file.num_bytes

    def _copy(self, file: StoredFile | Pack) -> None:
        if isinstance(file, Pack):
            check_pack(self._cache, file)
            self._store.write(file.name, _blocks(self._cache, file.name))
        else:
            self._store.write(file.name, checked_blocks(self._cache, file))

    def _copy_sidecar(self, key: str) -> None:
        self._send(sidecar_file(key), [self._sidecars.row(key)[1]])

    def _send(self, name: str, blocks: Iterable[bytes]) -> None:
        """Send a file, unless its content is small and the object store has it. Its tag is its MD5 in S3."""
        entry = self._entries.get(name)
        if entry is not None and isinstance(blocks, list) and _is_md5(entry, b"".join(blocks)):
            return
        self._store.write(name, blocks)


def _is_md5(entry: StoredObject, content: bytes) -> bool:
    digest = hashlib.md5(content, usedforsecurity=False).hexdigest()
    return entry.num_bytes == len(content) and entry.etag is not None and entry.etag.strip('"') == digest


def _blocks(cache: Path, name: str) -> Iterator[bytes]:
    """Read a file of a cache."""
    try:
        file = opener.open_binary(cache, name)
    except FileNotFoundError:
        raise damaged(cache, name, "it is missing") from None
    with file:
        yield from opener.blocks_of(file, cache / name)
