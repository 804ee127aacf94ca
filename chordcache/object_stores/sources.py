"""Sources that are objects of a store. One is copied to a temporary file while it is read.

The identity of an object is its size and its tag, in the place of the time of a file.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from chordcache import progress
from chordcache.digests import hex64
from chordcache.errors import (
    CANNOT_WRITE,
    DamageError,
    MediaError,
    NotFoundError,
    StorageError,
    UsageError,
    cannot_write,
    printable,
)
from chordcache.object_stores.client import ObjectStore, StoredObject, split_path
from chordcache.records import Identity

_MAX_LISTED = 1_000_000
"""Number of objects of which ``ObjectLooks`` remembers the identity"""

_stores: dict[str, ObjectStore] = {}
"""URL to the object store"""


@contextmanager
def fetched(path: str) -> Iterator[tuple[int, Identity]]:
    """Yield the descriptor of a copy of an object, and the object's identity.

    The copy is in ``TMPDIR``, without a name. Raises ``MediaError``, ``io`` or ``changed``, ``StorageError``, and
    ``UsageError`` as ``ObjectStore()`` does.
    """
    with _room_in_tmpdir(path):
        file = tempfile.TemporaryFile(prefix="chordcache-", buffering=0)  # noqa: SIM115 -- closed below
    with file:
        store, name = _store_of(path)
        with _as_media_error(of_one=True):
            entry = store.entry(name)
            progress.expect(entry.num_bytes)
            for block in store.whole(name, entry):
                with _room_in_tmpdir(path):
                    while block:
                        block = block[file.write(block) :]
                progress.beat()
        yield file.fileno(), _identity_of(entry)


def identity_of_object(path: str) -> Identity:
    """Return the identity of an object. Raises as ``fetched`` does."""
    store, name = _store_of(path)
    with _as_media_error(of_one=True):
        return _identity_of(store.entry(name))


def iter_names(folder: str) -> Iterator[str]:
    """Yield the names of all objects below a folder, relative to it, in the order of their bytes.

    Raises ``NotFoundError`` if there are none, and as ``ObjectStore.entries`` does.
    """
    store, below = _store_of(folder)
    start = f"{below}/" if below else ""
    names = sorted((name.removeprefix(start) for name in store.entries(below or None)), key=os.fsencode)
    if not names:
        raise NotFoundError(f"no objects at '{printable(folder)}'; check the URL")
    return iter(names)


class ObjectLooks:
    """Looks at many objects. Each folder is listed once, since a request for each object would take hours."""

    def __init__(self) -> None:
        self._folders: dict[str, dict[str, StoredObject]] = {}
        self._num_listed = 0

    def identity_or_none(self, path: str) -> Identity | None:
        """Return the identity of an object, or None if it does not exist, or its folder cannot be listed."""
        folder, _, name = path.rpartition("/")
        if folder not in self._folders:
            if self._num_listed >= _MAX_LISTED:
                self._folders.clear()
                self._num_listed = 0
            store, below = _store_of(folder)
            try:
                with _as_media_error(of_one=False):
                    self._folders[folder] = store.folder(below)
            except MediaError:  # a later read of the object raises the reason
                self._folders[folder] = {}
            self._num_listed += len(self._folders[folder])
        entry = self._folders[folder].get(name)
        return _identity_of(entry) if entry and entry.etag else None


def _store_of(path: str) -> tuple[ObjectStore, str]:
    url, name = split_path(path)
    return _stores.get(url) or _stores.setdefault(url, ObjectStore(url)), name


def _identity_of(entry: StoredObject) -> Identity:
    """Return size and tag. The tag is a time before 1970, which no time of a file is likely to be."""
    if entry.etag is None:
        raise MediaError("open", "io", "the object store does not state its ETag, without which changes cannot be seen")
    return Identity(entry.num_bytes, -1 - (int(hex64(entry.etag.encode()), 16) >> 2))


@contextmanager
def _as_media_error(*, of_one: bool) -> Iterator[None]:
    """Raise errors of an object store as ``MediaError``. A refusal to read ``of_one`` object is not of all others."""
    try:
        yield
    except DamageError as error:
        raise MediaError("open", "changed", str(error)) from None
    except (NotFoundError, StorageError) as error:
        if error.exit_code == CANNOT_WRITE:
            raise
        raise MediaError("open", "io", str(error)) from None
    except UsageError as error:
        raise MediaError("open", "io", str(error)) if of_one else error from None


@contextmanager
def _room_in_tmpdir(path: str) -> Iterator[None]:
    """Raise errors of the disk of temporary files as ``StorageError``. ``path`` names the object to copy."""
    try:
        yield
    except OSError as error:
        raise cannot_write(
            f"TMPDIR: got '{printable(tempfile.gettempdir())}', which does not take a copy of "
            f"'{printable(path)}' ({error.strerror}), expected room for one source of each worker. Make room "
            "there, or set TMPDIR to another folder, and run the same command."
        ) from None
