"""The sidecars of a cache, read from its catalog where their files have not changed since it was written."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from chordcache.errors import ChordcacheError, DamageError, NotFoundError, UnreadableError
from chordcache.storage.catalog import Catalog
from chordcache.storage.catalog_columns import publish_catalog
from chordcache.storage.layout import iter_keys, sidecar_file
from chordcache.storage.sidecar import Sidecar, read_sidecar_line


class KnownSidecars:
    """The sidecars of a cache. Those that have not changed since the catalog was written are read from the catalog."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self._catalog: Catalog | None = None
        self._keys: list[str] = []
        with suppress(ChordcacheError):  # none yet, a damaged one, or one of an earlier version
            catalog = Catalog(cache)
            self._keys = catalog.keys()
            self._catalog = catalog

    def read(self, key: str) -> Sidecar:
        """Return the sidecar of a video. Raises as ``read_sidecar`` does."""
        return self.row(key)[0]

    def read_or_none(self, key: str) -> Sidecar | None:
        """Return the sidecar of a video, or None if there is none or it is damaged. Raises ``UnreadableError``."""
        with suppress(NotFoundError, DamageError):
            return self.read(key)
        return None

    def row(self, key: str) -> tuple[Sidecar, bytes, int]:
        """Return the sidecar of a video, its line, and the mtime of its file [nanoseconds]."""
        catalog, position = self._unchanged(key)
        if catalog is not None:
            with suppress(DamageError, UnreadableError):
                return catalog.row(position)
        try:
            mtime_ns = os.lstat(f"{self._cache}/{sidecar_file(key)}").st_mtime_ns  # before the read: it may be replaced
        except OSError:
            mtime_ns = 0
        return *read_sidecar_line(self._cache, key), mtime_ns

    def files(self, key: str) -> set[str]:
        """Return the names of the files of a video. Raises as ``read_sidecar`` does."""
        catalog, position = self._unchanged(key)
        if catalog is not None:
            with suppress(DamageError, UnreadableError, ValueError):
                return catalog.files(position)
        return set(self.read(key).files)

    def _unchanged(self, key: str) -> tuple[Catalog | None, int]:
        """Return the catalog and the position of a video in it, or None if its file must be read."""
        position = bisect_left(self._keys, key)
        if self._catalog is None or self._keys[position : position + 1] != [key]:
            return None, 0
        with suppress(DamageError, UnreadableError):
            if self._catalog.is_unchanged(position, key):
                return self._catalog, position
        return None, 0

    def are_those_of_catalog(self) -> bool:
        """Return whether the catalog names the videos that have a sidecar, and none of them has changed."""
        keys = sorted(iter_keys(self._cache))
        return self._catalog is not None and keys == self._keys and all(self._unchanged(key)[0] for key in keys)


def write_catalog(cache: Path) -> None:
    """Rebuild the catalog from the sidecars and replace it atomically. It skips damaged sidecars, see ``verify``."""
    publish_catalog(cache, _sound_rows(cache))


def update_catalog(cache: Path) -> None:
    """Rebuild the catalog if a sidecar has changed since it was written."""
    if not KnownSidecars(cache).are_those_of_catalog():
        write_catalog(cache)


def _sound_rows(cache: Path) -> Iterator[tuple[Sidecar, bytes, int]]:
    known = KnownSidecars(cache)
    for key in sorted(iter_keys(cache)):
        with suppress(DamageError):
            yield known.row(key)
