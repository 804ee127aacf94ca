"""The sidecars of a cache: files of their own, or rows of the catalog of a packed cache.

Files that have not changed since the catalog was written are read from the catalog.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_left
from collections.abc import Container, Iterator
from contextlib import nullcontext, suppress
from functools import lru_cache
from pathlib import Path

from chordcache.errors import ChordcacheError, DamageError, NotFoundError, StorageError, printable
from chordcache.storage import opener
from chordcache.storage.artefacts.tiers import TIERS
from chordcache.storage.cache_header import read_header
from chordcache.storage.catalog import Catalog
from chordcache.storage.catalog_columns import publish_catalog
from chordcache.storage.catalog_file import CATALOG, names_videos
from chordcache.storage.layout import fan_of, is_key, sidecar_file
from chordcache.storage.origin import check_holds_all
from chordcache.storage.sidecar import Sidecar, not_cached, read_sidecar_line


class Sidecars:
    """The sidecars of a cache. Raises as ``Catalog`` does if those of a packed cache cannot be read."""

    def __init__(self, cache: Path) -> None:
        self.cache = cache
        """Folder of the cache"""
        self._catalog: Catalog | None = None
        self._keys: list[str] = []
        self.is_packed = False
        """True if the sidecars are in the catalog alone"""
        with suppress(NotFoundError, DamageError, StorageError, ValueError):
            self.is_packed = read_header(cache).is_packed
        with nullcontext() if self.is_packed else suppress(ChordcacheError):  # none yet, or a damaged one
            catalog = Catalog(cache)
            self._keys = catalog.keys()
            self._catalog = catalog

    def sorted_keys(self) -> list[str]:
        """Return the keys of all cached videos, sorted. Raises as ``iter_keys`` does."""
        return self._keys.copy() if self.is_packed else sorted(iter_keys(self.cache))

    def read(self, key: str) -> Sidecar:
        """Return the sidecar of a video. Raises as ``read_sidecar`` does."""
        return self.row(key)[0]

    def read_or_none(self, key: str) -> Sidecar | None:
        """Return the sidecar of a video, or None if there is none or it is damaged. Raises ``StorageError``."""
        try:
            return self.read(key)
        except (NotFoundError, DamageError):
            return None

    def row(self, key: str) -> tuple[Sidecar, bytes, int]:
        """Return the sidecar of a video, its line, and the mtime of its file, as ``publish_catalog`` takes them."""
        catalog, position = self._catalog, bisect_left(self._keys, key)
        if catalog is not None and position < len(self._keys) and self._keys[position] == key:
            with suppress(DamageError, StorageError, ValueError):
                if catalog.is_unchanged(position, key) and (row := catalog.row(position))[0].key == key:
                    return row
        return self.stored_row(key)

    def stored_row(self, key: str) -> tuple[Sidecar, bytes, int]:
        """Return as ``row``, from the video's file, never from the catalog. Raises as ``read_sidecar`` does."""
        if self._catalog is not None and self.is_packed:
            row = self._catalog.find_row(key)
            if row is None:
                raise not_cached(self.cache, key)
            return *row, 0
        try:
            mtime_ns = os.lstat(f"{self.cache}/{sidecar_file(key)}").st_mtime_ns  # before the read: it may be replaced
        except FileNotFoundError:  # no read: a build asks for every video of the index
            raise not_cached(self.cache, key) from None
        except OSError:
            mtime_ns = 0
        return *read_sidecar_line(self.cache, key), mtime_ns

    def are_those_of_catalog(self) -> bool:
        """Return whether the catalog names the videos that have a sidecar, and none of them has changed."""
        catalog = self._catalog
        return (
            catalog is not None
            and self.sorted_keys() == self._keys
            and all(catalog.is_unchanged(position, key) for position, key in enumerate(self._keys))
        )


@lru_cache(1)
def _catalog(cache: Path, _version: tuple[int, int]) -> Catalog:
    return Catalog(cache)


def read_packed(cache: Path, key: str) -> Sidecar:
    """Read the sidecar of a video of a packed cache. Raises as ``Catalog`` does, and ``NotFoundError``."""
    with opener.readable(cache / CATALOG):
        status = os.stat(cache / CATALOG)
    sidecar = _catalog(cache, (status.st_ino, status.st_mtime_ns)).find(key)
    if sidecar is None:
        raise not_cached(cache, key)
    return sidecar


def iter_keys(cache: Path) -> Iterator[str]:
    """Yield the keys of all videos that have a sidecar, sorted within each of the 256 folders.

    Raises ``StorageError`` if a folder of sidecars cannot be listed. ``videos`` may be missing only before the first
    video is cached.
    """
    try:
        names = opener.list_folder(cache, "videos")
    except FileNotFoundError:
        _check_is_new(cache)
        return
    for fan in names:
        if re.fullmatch("[0-9a-f]{2}", fan):
            for name in opener.list_folder(cache, f"videos/{fan}"):
                key = name.removesuffix(".json")
                if key != name and is_key(key) and fan_of(key) == fan:
                    yield key


def _check_is_new(cache: Path) -> None:
    """Raise ``StorageError`` if videos were cached, so that their sidecars are lost, not copied or not mounted.

    Raises ``UsageError`` if the folder holds some files of an object store.
    """
    if not opener.exists(cache, "chordcache.json"):
        return
    check_holds_all(cache)
    if names_videos(cache) or any(opener.exists(cache, tier) for tier in TIERS):
        raise StorageError(
            f"'{printable(cache / 'videos')}': got no such folder, expected the sidecars of the cache. Mount or copy "
            f"it. If it is lost, make an empty folder and run 'chordcache verify --repair {printable(cache)}'."
        )


def write_catalog(cache: Path) -> None:
    """Rebuild the catalog from the sidecars and replace it atomically. It skips damaged sidecars, see ``verify``."""
    publish_catalog(cache, _sound_rows(Sidecars(cache)))


def update_catalog(cache: Path, without: Container[str] = ()) -> None:
    """Rebuild the catalog if a sidecar has changed since it was written, without the videos of some keys."""
    sidecars = Sidecars(cache)
    if not sidecars.are_those_of_catalog():
        publish_catalog(cache, _sound_rows(sidecars, without))


def _sound_rows(sidecars: Sidecars, without: Container[str] = ()) -> Iterator[tuple[Sidecar, bytes, int]]:
    for key in sidecars.sorted_keys():
        if key not in without:
            with suppress(DamageError):
                yield sidecars.row(key)
