"""The files of features in a cache: each is a file of its own, or a piece of a pack."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from chordcache.digests import digest_file, file_digest
from chordcache.errors import DamageError, printable
from chordcache.storage import atomic, opener
from chordcache.storage.artefacts.artefact import Artefact
from chordcache.storage.artefacts.open_files import open_artefact
from chordcache.storage.feature_info import StoredFile
from chordcache.storage.feature_rules import Claims
from chordcache.storage.layout import place_of
from chordcache.storage.opener import unreadable


def open_file(cache: Path, file: StoredFile, claims: Claims) -> Artefact:
    """Open a file. Raises as ``open_artefact`` does."""
    return open_artefact(cache / file.name, file.num_bytes, claims, file.packed)


def size_of(cache: Path, file: StoredFile, *, checks_holes: bool = False) -> int:
    """Return the size of a file [bytes]. In a pack, the file ends with the pack at the latest.

    Raises ``FileNotFoundError`` if the file or pack is missing, and ``StorageError``, if it ``checks_holes`` also
    for a sparse file.
    """
    name, start = place_of(file)
    num_bytes = opener.size_of(cache, name, checks_holes=checks_holes)
    return num_bytes if file.packed is None else max(0, min(file.num_bytes, num_bytes - start))


class FeatureFiles:
    """A look at many files of a cache. Each folder is entered once, which takes six calls."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self._entered: set[str] = set()

    def has(self, file: StoredFile) -> bool:
        """Return whether a file is there with its size. Raises ``StorageError``."""
        folder = "" if file.packed else file.name.rpartition("/")[0]
        try:
            if folder in self._entered:
                status = os.lstat(f"{self._cache}/{file.name}")
                if stat.S_ISREG(status.st_mode):
                    return status.st_size == file.num_bytes
            is_found = size_of(self._cache, file) == file.num_bytes
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                return False
            raise unreadable(self._cache / file.name, error) from None
        if folder:
            self._entered.add(folder)
        return is_found


def _blocks(cache: Path, file: StoredFile) -> Iterator[bytes]:
    """Read a file."""
    name, start = place_of(file)
    num_bytes = size_of(cache, file)
    with opener.open_binary(cache, name) as opened:
        opened.seek(start)
        yield from opener.blocks_of(opened, cache / name, num_bytes)


def digest_of(cache: Path, file: StoredFile) -> str:
    """Return the xxh3-128 of a file, 32 hex digits. Raises as ``size_of`` does."""
    digest = file_digest()
    for block in _blocks(cache, file):
        digest.update(block)
    return digest.hexdigest()


def is_intact(cache: Path, file: StoredFile) -> bool:
    """Return whether a file can be read and is what was written. One of another size is not read."""
    try:
        return size_of(cache, file) == file.num_bytes and digest_of(cache, file) == file.digest
    except OSError:
        return False


def copy_checked(cache: Path, file: StoredFile, target: Path, *, trusts_links: bool = False) -> None:
    """Make a durable file with the content of another: a hard link, or a copy of a piece or to another disk.

    Raises as ``atomic.link_or_copy`` does, and ``DamageError`` if its size or digest is not that of the sidecar. With
    ``trusts_links``, a linked file is not read: it stays the only one.
    """
    if file.packed is not None:
        with atomic.no_space_as_error(target), open(target, "wb") as copy:
            copy.writelines(checked_blocks(cache, file))
            copy.flush()
            os.fsync(copy.fileno())
        return
    try:
        atomic.link_or_copy(cache, file.name, target)
        status = os.stat(target)
    except FileNotFoundError:
        raise damaged(cache, file.name, "the file is missing") from None
    if status.st_size != file.num_bytes:
        raise damaged(cache, file.name, f"got {status.st_size} bytes, expected {file.num_bytes}")
    if not (trusts_links and status.st_nlink > 1) and digest_file(target) != file.digest:
        raise damaged(cache, file.name, "its digest is another one than that in the sidecar")


def checked_blocks(cache: Path, file: StoredFile) -> Iterator[bytes]:
    """Read a file, and raise ``DamageError`` at its end if it is not what was written, or is missing."""
    digest, num_bytes = file_digest(), 0
    with suppress(FileNotFoundError):  # then it has another size than is expected
        for block in _blocks(cache, file):
            digest.update(block)
            num_bytes += len(block)
            yield block
    if num_bytes != file.num_bytes or digest.hexdigest() != file.digest:
        raise damaged(cache, file.name, "its content is not what was written")


def damaged(cache: Path, file: str, what: str) -> DamageError:
    """Return the error about a damaged file of a cache, with the command that repairs it."""
    return DamageError(
        f"'{printable(cache / file)}' is damaged: {what}; run 'chordcache verify --repair {printable(cache)}'"
    )
