"""The files of features in a cache: each is a file of its own, or a piece of a pack."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import BinaryIO

from chordcache.digests import file_digest
from chordcache.errors import DamageError, printable
from chordcache.storage import atomic, opener
from chordcache.storage.artefacts.artefact import Artefact
from chordcache.storage.artefacts.claims import Claims
from chordcache.storage.artefacts.open_files import open_artefact
from chordcache.storage.feature_info import FeatureInfo
from chordcache.storage.layout import pack_file
from chordcache.storage.opener import readable, unreadable

_BLOCK_BYTES = 1 << 20
"""Size of the pieces in which a file is read [bytes]"""


def open_file(cache: Path, info: FeatureInfo, claims: Claims) -> AbstractContextManager[Artefact]:
    """Open the file of a feature. Raises as ``open_artefact`` does."""
    return open_artefact(cache / str(info.file), info.num_bytes, claims, info.packed)


def size_of(cache: Path, info: FeatureInfo, pack: str | None = None, *, checks_holes: bool = False) -> int:
    """Return the size of the file of a feature [bytes]. In a pack, the file ends with the pack at the latest.

    ``pack`` is the name of the pack's file while it is not published. Raises ``FileNotFoundError`` if the file or pack
    is missing, and ``UnreadableError``, if it ``checks_holes`` also for a sparse file.
    """
    if info.packed is None:
        return opener.size_of(cache, str(info.file), checks_holes=checks_holes)
    num_bytes = opener.size_of(cache, pack or pack_file(info.packed.pack), checks_holes=checks_holes)
    return max(0, min(info.num_bytes, num_bytes - info.packed.offset))


class FeatureFiles:
    """A look at the files of many features of a cache. Each folder is entered once, which takes six calls."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self._entered: set[str] = set()

    def has(self, info: FeatureInfo) -> bool:
        """Return whether the file of a feature, if it has one, is there with its size. Raises ``UnreadableError``."""
        folder = "" if info.file is None or info.packed else info.file.rpartition("/")[0]
        try:
            if folder in self._entered:
                status = os.lstat(f"{self._cache}/{info.file}")
                if stat.S_ISREG(status.st_mode):
                    return status.st_size == info.num_bytes
            is_found = info.file is None or size_of(self._cache, info) == info.num_bytes
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                return False
            raise unreadable(self._cache / str(info.file), error) from None
        if folder:
            self._entered.add(folder)
        return is_found


def _blocks(cache: Path, info: FeatureInfo, pack: str | None = None) -> Iterator[bytes]:
    """Read the file of a feature."""
    name = str(info.file) if info.packed is None else pack or pack_file(info.packed.pack)
    rest = size_of(cache, info, pack)
    with opener.open_binary(cache, name) as file, readable(cache / name):
        file.seek(info.packed.offset if info.packed else 0)
        while rest and (block := file.read(min(rest, _BLOCK_BYTES))):
            yield block
            rest -= len(block)


def digest_of(cache: Path, info: FeatureInfo, pack: str | None = None) -> str:
    """Return the xxh3-128 of the file of a feature, 32 hex digits. Raises as ``size_of`` does."""
    digest = file_digest()
    for block in _blocks(cache, info, pack):
        digest.update(block)
    return digest.hexdigest()


def is_intact(cache: Path, info: FeatureInfo) -> bool:
    """Return whether the file of a feature can be read and is what was written. One of another size is not read."""
    try:
        return info.file is None or (size_of(cache, info) == info.num_bytes and digest_of(cache, info) == info.digest)
    except OSError:
        return False


def copy(cache: Path, info: FeatureInfo, partial: Path) -> None:
    """Make a durable file with the content of that of a feature: a hard link, or a copy of a piece or to another disk.

    Raises as ``atomic.link_or_copy`` does, and ``DamageError`` if a pack has other bytes than were written.
    """
    if info.packed is None:
        atomic.link_or_copy(cache, str(info.file), partial)
        return
    with atomic.no_space_as_error(partial), open(partial, "wb") as file:
        append_to(file, cache, info)
        file.flush()
        os.fsync(file.fileno())


def append_to(target: BinaryIO, cache: Path, info: FeatureInfo) -> None:
    """Copy the file of a feature behind what an open file has, and compare it with its size and digest.

    Raises ``DamageError``, also if the file is missing, ``UnreadableError``, and ``OSError`` if the target cannot be
    written.
    """
    digest, num_bytes = file_digest(), 0
    with suppress(FileNotFoundError):  # then it has another size than is expected
        for block in _blocks(cache, info):
            digest.update(block)
            num_bytes += len(block)
            target.write(block)
    if num_bytes != info.num_bytes or digest.hexdigest() != info.digest:
        raise damaged(cache, str(info.file), "its content is not what was written")


def damaged(cache: Path, file: str, what: str) -> DamageError:
    """Return the error about a damaged file of a cache, with the command that repairs it."""
    return DamageError(
        f"'{printable(cache / file)}' is damaged: {what}; run 'chordcache verify --repair {printable(cache)}'"
    )
