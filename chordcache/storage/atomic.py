"""Files that appear complete or not at all, also after a power cut, and the error of a full disk."""

from __future__ import annotations

import errno
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from chordcache.errors import CacheWriteError, NoSpaceError, printable
from chordcache.storage.machine import machine
from chordcache.storage.readable import check_file, list_folder, readable

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
"""Errors of a disk that takes no more data: full, quota used up, file size limit, turned read-only by an error."""

_NO_LINK = (errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS)
"""Errors of ``link`` after which a copy may still work: another disk, no permission, or no hard links on this disk."""

_COPY_BYTES = 1 << 20
"""Size of the pieces in which a file is copied [bytes]"""

MIN_FREE_BYTES = 1 << 20
"""Free space below which no video is begun: a small video and the cache's own lists need that much [bytes]."""


@contextmanager
def no_space_as_error(path: str | Path) -> Iterator[None]:
    """Turn the OSError of a full disk into ``NoSpaceError``."""
    try:
        yield
    except OSError as error:
        if isinstance(error, NoSpaceError) or error.errno not in NO_SPACE:
            raise
        raise no_space(f"{os.strerror(error.errno).lower()} at", path) from None


def no_space(what: str, path: str | Path) -> NoSpaceError:
    """Return the error of a full disk. It states the free space of the disk that holds or will hold ``path``."""
    status = _disk_of(Path(path))
    free, total = (count * status.f_frsize / 2**20 for count in (status.f_bavail, status.f_blocks))
    room = f"{free:.1f} of {total:.1f} MiB are free"
    return NoSpaceError(f"{what} '{printable(path)}' ({room}); make room and run the same command")


def check_space(cache: Path) -> None:
    """Raise ``NoSpaceError`` if a disk is so full that not even one small artefact fits.

    Only a certain result raises. The blocks reserved for root count as free. A disk that states no size (some disks
    behind FUSE) counts as having free space.
    """
    status = _disk_of(cache)
    if status.f_blocks and status.f_bfree * status.f_frsize < MIN_FREE_BYTES:
        raise no_space("no space left for cache", cache)


def _disk_of(path: Path) -> os.statvfs_result:
    while True:
        try:
            return os.statvfs(path)
        except (FileNotFoundError, NotADirectoryError):
            if path == path.parent:
                raise
            path = path.parent


def _partial_path(cache: Path) -> Path:
    return cache / ".partial" / f"{machine()}-{os.getpid()}-{uuid.uuid4().hex}"


@contextmanager
def partial_folder(cache: Path) -> Iterator[Path]:
    """Yield a private folder to write in. It is always removed at the end.

    Raises ``NoSpaceError``, and ``CacheWriteError`` if another process removed the folder.
    """
    folder = _partial_path(cache)
    with no_space_as_error(folder):
        try:
            folder.mkdir(parents=True)
        except FileNotFoundError:
            raise _removed(folder.parent) from None
    try:
        yield folder
    except Exception as error:
        if not _is_missing(folder, error):
            raise
        raise _removed(folder) from None
    finally:
        try:
            folder.rmdir()  # one call on the disk, and files that were published are not there any more
        except OSError:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def partial_file(cache: Path) -> Iterator[Path]:
    """Yield a private path for a file to publish. If the block raises, the file is removed."""
    path = _partial_path(cache)
    try:
        yield path
    except BaseException:  # cleanup boundary
        with suppress(OSError):
            path.unlink()
        raise


def remove_partials(cache: Path, *, of_all_machines: bool = False) -> None:
    """Remove the partial files of killed processes. Call it only under the lock of the cache.

    The lock may not reach other machines, so their files stay unless ``of_all_machines`` is True.
    """
    folder = cache / ".partial"
    with suppress(OSError):
        for name in list_folder(folder):
            if of_all_machines or name.startswith(f"{machine()}-"):
                shutil.rmtree(folder / name, ignore_errors=True)
                with suppress(OSError):
                    (folder / name).unlink()
        folder.rmdir()


def _fsync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_folder(folder: Path) -> None:
    """Make a folder and its parents. Their names are durable, and so are the files that are published inside."""
    try:
        folder.mkdir()
    except FileNotFoundError:
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
    except OSError:
        if not folder.is_dir():
            raise
        return
    _fsync(folder.parent)


def publish(partial: Path, final: Path) -> None:
    """Give a closed file its final name. The file appears complete or not at all, also after a power cut."""
    publish_all({partial: final})


def publish_all(files: Mapping[Path, Path], *, are_synced: bool = False) -> None:
    """Give closed files their final names, as ``publish`` does. All are durable afterwards.

    Parameters
    ----------
    files : mapping of Path to Path
        Each partial file to its final name.
    are_synced : bool
        True if the disk has confirmed the content of the partial files.
    """
    for partial, final in files.items():
        with no_space_as_error(final):
            if not are_synced:
                _fsync(partial)
            _rename(partial, final)
    for folder in dict.fromkeys(final.parent for final in files.values()):
        with no_space_as_error(folder):
            _fsync(folder)


def _rename(partial: Path, final: Path) -> None:
    try:
        os.replace(partial, final)
    except FileNotFoundError:  # nearly always the folder is there: to look first takes a call for each file
        make_folder(final.parent)
        try:
            os.replace(partial, final)
        except FileNotFoundError:
            raise _removed(partial) from None


def _is_missing(folder: Path, error: BaseException | None) -> bool:
    """Return whether an error, or one that it was made of, is about a missing file in a folder.

    To look for the folder does not help: a disk behind FUSE remembers it for a second.
    """
    if isinstance(error, FileNotFoundError) and str(error.filename).startswith(str(folder)):
        return True
    return error is not None and _is_missing(folder, error.__context__)


def _removed(partial: Path) -> CacheWriteError:
    """Return the error of a partial file that vanished. The lock of a cache does not reach every other machine."""
    what = f"'{printable(partial)}': another process removed it"
    return CacheWriteError(f"{what}. Run one build at a time on this cache, and then the same command.")


def create(path: Path, mode: int = 0o666) -> int:
    """Create a partial file, and the folder of partial files if it is missing. Return its descriptor."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        return os.open(path, flags, mode)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, flags, mode)


def write_all(fd: int, data: bytes) -> None:
    """Write all bytes to a file. Raises ``OSError``."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def link_or_copy(existing: Path, partial: Path) -> None:
    """Make a second file with the content of a published one: a hard link, or a copy if the disk does not allow that.

    A published file is never written to, so both names keep their content. A copy is durable, as a link is.

    Raises ``FileNotFoundError``, ``NoSpaceError``, ``UnreadableError`` if the published file cannot be read, and
    ``OSError`` if the copy cannot be written.
    """
    real = os.path.realpath(existing)  # a link to a symbolic link would be another symbolic link
    with no_space_as_error(partial):
        check_file(existing)
        try:
            os.link(real, partial)
        except OSError as error:
            if error.errno not in _NO_LINK:
                raise
            with open(real, "rb") as source, open(partial, "wb") as copy:
                while block := _read_block(source, existing):
                    copy.write(block)
            _fsync(partial)


def _read_block(source: BinaryIO, path: Path) -> bytes:
    with readable(path):
        return source.read(_COPY_BYTES)


def publish_text(cache: Path, path: Path, text: str) -> None:
    """Replace a small file of a cache atomically, by way of a partial file."""
    with partial_file(cache) as partial:
        with no_space_as_error(path):
            fd = create(partial)
            try:
                write_all(fd, text.encode("ascii"))
                os.fsync(fd)
            finally:
                os.close(fd)
        publish_all({partial: path}, are_synced=True)
