"""``chordcache.json``: the header of a cache."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chordcache.arguments import did_you_mean
from chordcache.errors import DamageError, NotFoundError, StorageError, UsageError, printable
from chordcache.json_records import Record
from chordcache.object_stores.client import is_in_store, source_folder
from chordcache.storage.atomic import publish_text
from chordcache.storage.opener import exists, make_folder
from chordcache.storage.sealed_json import read_sealed, seal_versioned

_FILE = "chordcache.json"


class PartOf(Record, frozen=True):
    """The part of a build that a cache is."""

    name: str
    """Its name as ``I/N``, which ``Part.parse`` reads"""
    index: str
    """xxh3-128 of the whole index"""
    versions: Mapping[str, str]
    """Versions of all that decides about the content of a cache"""
    rows: tuple[int, ...]
    """Numbers of its records in the whole index, from 0, ascending"""


class Header(Record, frozen=True, forbid_unknown_fields=False):
    """The header of a cache."""

    config: Mapping[str, Any]
    """Resolved config as JSON data"""
    roots: Mapping[str, str]
    """Label of a root folder to its absolute path"""
    features: Mapping[str, tuple[str, ...]]
    """Tier to the features that builds requested so far"""
    versions: Mapping[str, str]
    """Versions of the tools of the last build"""
    follow_symlinks: bool = False
    """True if a scan or a build was asked to read sources behind links that lead out of their roots"""
    columns: Mapping[str, str] = {}
    """Extra column of the index to its type, of ``COLUMN_TYPES``, if it is not text"""
    index_digests: tuple[str, str] = ("", "")
    """xxh3-128 of the index that the last build was given, and of the ``index.jsonl`` that it wrote"""
    fingerprints: Mapping[str, str] = {}
    """Fingerprint of each feature with the settings of ``config``, as far as it could be made"""
    part: PartOf | None = None
    """The part of a build that the cache is, or None if it is a whole cache"""
    is_packed: bool = False
    """True if the cache is packed, see ``packs``: its sidecars are in the catalog alone, and it is read-only"""

    def writable(self, cache: Path) -> Header:
        """Return the header of a cache that is about to be changed. Raise ``UsageError`` if the cache is packed."""
        if self.is_packed:
            name = printable(cache)
            raise UsageError(
                f"cache: got '{name}', which is packed and read-only, expected another one. Run 'chordcache unpack "
                f"{name} -o CACHE', and name CACHE."
            )
        return self


def roots_now(known: Mapping[str, str], moved: Mapping[str, str] | None, *, opens: bool = False) -> dict[str, str]:
    """Return the folder of each root, some of which have moved.

    Raises ``UsageError`` for a name that no root has and, if the caller ``opens`` sources, as ``check_named`` does.
    """
    for name in moved or ():
        if name not in known:
            names = ", ".join(map(printable, known))
            raise UsageError(f"roots: got '{printable(name)}', expected one of {names}{did_you_mean(name, known)}")
    folders = {**known, **{name: source_folder(path) for name, path in (moved or {}).items()}}
    if opens:
        check_named(folders, moved)
    return folders


def check_named(roots: Mapping[str, str], named: Mapping[str, str] | None) -> None:
    """Raise ``UsageError`` if a root is in an object store that a cache states, and not its user.

    A cache from someone else could have this process connect to any object store.
    """
    for label, folder in roots.items():
        if is_in_store(folder) and label not in (named or {}):
            url = printable(folder)
            raise UsageError(
                f"roots: got '{url}' for '{printable(label)}' from the cache, expected it from its user, since a cache "
                f"could name any object store. If it is right, give it: roots (--root {printable(label)}={url})."
            )


def read_header(cache: Path) -> Header:
    """Read ``chordcache.json``.

    Raises ``NotFoundError`` if the folder is not a cache, ``StorageError``, and as ``unseal`` does.
    """
    try:
        return read_sealed(cache, _FILE, Header, "the header of a cache")
    except (NotFoundError, StorageError) as error:
        if isinstance(error, StorageError) and error.errno != errno.ENOTDIR:
            raise
        what = f"no cache at '{printable(cache)}'; make one with 'chordcache build -o CACHE'"
        raise NotFoundError(what) from None
    except DamageError as error:
        raise DamageError(f"{error}; run 'chordcache build' as before to write it again") from None


def write_header(cache: Path, header: Header) -> None:
    """Write ``chordcache.json``, and make the folder of the sidecars of a new cache."""
    is_new = not exists(cache, _FILE)
    publish_text(cache, _FILE, seal_versioned(header) + "\n")
    if is_new and not header.is_packed:
        make_folder(cache, "videos")
