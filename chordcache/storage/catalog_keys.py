"""The keys in a catalog, without the packages that reading sidecars needs: a shell that completes a key waits."""

from __future__ import annotations

import os
import sys
from array import array
from bisect import bisect_left
from pathlib import Path

from chordcache.errors import ChordcacheError
from chordcache.storage.catalog_file import CatalogFile

_AFTER_LETTERS = "\x7f"
"""A character above all those of a key"""


def keys_beginning_with(cache: str | os.PathLike[str], start: str) -> list[str]:
    """Return all keys of a cache that begin with ``start``, sorted; an empty list if they cannot be read."""
    try:
        return matching(CatalogFile(Path(cache)).keys(), start)
    except (ChordcacheError, OSError, ValueError):
        return []


def matching(keys: list[str], start: str) -> list[str]:
    """Return those of sorted keys that begin with a text. Case matters."""
    return keys[bisect_left(keys, start) : bisect_left(keys, start + _AFTER_LETTERS)]


def names_videos(cache: str | os.PathLike[str]) -> bool:
    """Return whether a cache has a catalog that names a video outside of packs, or that cannot be read."""
    try:
        mtimes = array("q", CatalogFile(Path(cache)).section("mtimes"))
        if sys.byteorder == "big":
            mtimes.byteswap()
        return any(mtime >= 0 for mtime in mtimes)
    except FileNotFoundError:
        return False
    except (ChordcacheError, OSError, ValueError):
        return True
