"""Files that appear complete or not at all, also after a power cut, appended lines, and the error of a full disk."""

from __future__ import annotations

import errno
import os
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import BinaryIO

from chordcache.digests import hex64
from chordcache.errors import ChordcacheError, StorageError, UsageError, cannot_write, printable
from chordcache.storage import opener

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
"""Errors of a disk that takes no more data: full, quota used up, file size limit, turned read-only by an error."""

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

_NO_LINK = (errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS)
"""Errors of ``link`` after which a copy may still work: another disk, no permission, or no hard links on this disk."""

PARTIALS = ".partial"
"""Name of the folder of partial files in a cache"""

KEY_LOCK = ".lock"
"""End of the name of a file there that a process locks while it adds a video, see ``lock.locked_key``"""

MIN_FREE_BYTES = 1 << 20
"""Free space below which no video is begun: a small video and the cache's own lists need that much [bytes]."""


@cache
def machine() -> str:
    """Return 8 hex digits that stand for the running kernel: ``flock`` is certain in its range.

    Its containers share them, and a reboot changes them.
    """
    return hex64(_BOOT_ID.read_bytes())[:8]


@contextmanager
def no_space_as_error(path: str | Path) -> Iterator[None]:
    """Turn the OSError of a full disk into ``StorageError``."""
    try:
        yield
    except OSError as error:
        if isinstance(error, StorageError) or error.errno not in NO_SPACE:
            raise
        action = "mount it for writing" if error.errno == errno.EROFS else "make room"
        raise no_space(f"{os.strerror(error.errno).lower()} at", path, action) from None


@contextmanager
def writing_to(path: str | Path) -> Iterator[None]:
    """Turn an ``OSError`` of the disk of a cache into ``StorageError``."""
    try:
        with no_space_as_error(path):
            yield
    except (ChordcacheError, BrokenPipeError):  # the latter is of what the process prints
        raise
    except OSError as error:
        what = f"{error.strerror} ('{printable(str(error.filename))}')" if error.filename else error.strerror
        raise cannot_write(f"cannot write to cache '{printable(path)}': {what}; run the same command") from None


def no_space(what: str, path: str | Path, action: str = "make room") -> StorageError:
    """Return the error of a full disk. It states the free space of the disk that holds or will hold ``path``."""
    status = _disk_of(Path(path))
    free, total = (count * status.f_frsize / 2**20 for count in (status.f_bavail, status.f_blocks))
    room = f"{free:.1f} of {total:.1f} MiB are free"
    error = cannot_write(f"{what} '{printable(path)}' ({room}); {action} and run the same command")
    error.errno = errno.ENOSPC
    return error


def check_space(cache: Path, num_bytes: int | None = None) -> None:
    """Raise ``StorageError`` if the disk has no room for files of this size, or by default for one small artefact.

    Only a certain result raises. The blocks reserved for root count as free. A disk that states no size (some disks
    behind FUSE) counts as having free space.
    """
    status = _disk_of(cache)
    if status.f_blocks and status.f_bfree * status.f_frsize < (MIN_FREE_BYTES if num_bytes is None else num_bytes):
        size = "" if num_bytes is None else f"{num_bytes / 2**20:.1f} MiB in "
        raise no_space(f"no space left for {size}cache", cache)


def _disk_of(path: Path) -> os.statvfs_result:
    while True:
        try:
            return os.statvfs(path)
        except (FileNotFoundError, NotADirectoryError):
            if path == path.parent:
                raise
            path = path.parent


def _partial_path(cache: Path) -> Path:
    """Return a private path in the folder of partial files, which is made if it is missing."""
    folder = cache / PARTIALS
    with no_space_as_error(folder):
        with suppress(FileExistsError):
            folder.mkdir(parents=True)
        try:
            with opener.open_folder(cache, PARTIALS):  # raises if it is a link or a file
                pass
        except FileNotFoundError:
            raise _removed(folder) from None
    return folder / f"{machine()}-{os.getpid()}-{uuid.uuid4().hex}"


@contextmanager
def partial_folder(cache: Path) -> Iterator[Path]:
    """Yield a private folder to write in. It is always removed at the end.

    Raises ``StorageError``, also if another process removed the folder.
    """
    folder = _partial_path(cache)
    with no_space_as_error(folder):
        try:
            folder.mkdir()
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


def remove_partials(cache: Path, *, of_all_machines: bool = False, min_age_seconds: float = 0) -> None:
    """Remove the partial files of killed processes. Call it only under the lock of the cache, or with a large age.

    The lock may not reach other machines, so their files stay unless ``of_all_machines`` is True. Files that were
    written to in the last ``min_age_seconds`` stay too.
    """
    folder = cache / PARTIALS
    with suppress(OSError):
        for name in opener.list_folder(cache, PARTIALS):
            is_own = of_all_machines or name.startswith(f"{machine()}-") or name.endswith(KEY_LOCK)
            if is_own and time.time() - os.lstat(folder / name).st_mtime >= min_age_seconds:
                shutil.rmtree(folder / name, ignore_errors=True)
                with suppress(OSError):
                    (folder / name).unlink()
        if not min_age_seconds:  # else another process may be about to write into it
            folder.rmdir()


def _fsync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_folder(folder: Path) -> None:
    """Make the folder of a cache and its parents. Their names are durable."""
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
    """Give a closed file its final name. The file appears complete or not at all, also after a power cut.

    ``final`` is a file of a user or in the folder of a cache itself. For files in folders below, see ``publish_all``.
    """
    publish_all(final.parent, {partial: final.name})


@contextmanager
def new_file(path: Path, what: str) -> Iterator[BinaryIO]:
    """Yield a file of a user, which gets its name at the end of the block, or does not appear.

    Raises ``UsageError``, whose message begins with ``what``, if it cannot be written, and ``StorageError``.
    """
    partial = path.with_name(f".{path.name[:80]}-{os.getpid()}.partial")
    with no_space_as_error(path), ExitStack() as stack:
        try:
            if path.exists() and not path.is_file():
                raise UsageError(f"{what} '{printable(path)}': it exists and is not a regular file")
            file = stack.enter_context(open(partial, "xb"))
        except OSError as error:
            if error.errno in NO_SPACE:
                raise
            raise UsageError(f"{what} '{printable(path)}': {error.strerror}") from None
        stack.callback(partial.unlink, missing_ok=True)
        yield file
        file.close()
        publish(partial, path)


def publish_all(cache: Path, files: Mapping[Path, str], *, are_synced: bool = False) -> None:
    """Give closed files their final names in a cache, as ``publish`` does. All are durable afterwards.

    ``files`` has the final name of each partial file, relative to the cache. With ``are_synced``, the disk has
    confirmed the content of the partial files.
    """
    folders: dict[str, list[Path]] = {}
    for partial, file in files.items():
        folders.setdefault(os.path.dirname(file) or ".", []).append(partial)
        if not are_synced:
            with no_space_as_error(cache / file):
                _fsync(partial)
    for name, partials in folders.items():
        with no_space_as_error(cache / name), opener.open_folder(cache, name, makes=True) as folder:
            for partial in partials:
                try:
                    os.replace(partial, os.path.basename(files[partial]), dst_dir_fd=folder)
                except FileNotFoundError:
                    raise _removed(partial) from None
            os.fsync(folder)


def _is_missing(folder: Path, error: BaseException | None) -> bool:
    """Return whether an error, or one that it was made of, is about a missing file in a folder.

    To look for the folder does not help: a disk behind FUSE remembers it for a second.
    """
    if isinstance(error, FileNotFoundError) and str(error.filename).startswith(str(folder)):
        return True
    return error is not None and _is_missing(folder, error.__context__)


def _removed(partial: Path) -> StorageError:
    """Return the error of a partial file that vanished. The lock of a cache does not reach every other machine."""
    what = f"'{printable(partial)}': another process removed it"
    return cannot_write(f"{what}. Run one build at a time on this cache, and then the same command.")


def link_or_copy(cache: Path, file: str, partial: Path) -> None:
    """Make a second file with the content of a published one: a hard link, or a copy if the disk does not allow that.

    A published file is never written to, so both names keep their content. A copy is durable, as a link is. ``partial``
    is the file to make. Raises ``FileNotFoundError``, ``StorageError``, also if the published file
    cannot be read, and ``OSError`` if the copy cannot be written.
    """
    with no_space_as_error(partial), opener.open_binary(cache, file) as source:
        try:
            with opener.parent_of(cache, file) as (folder, name):
                os.link(name, partial, src_dir_fd=folder, follow_symlinks=False)
        except OSError as error:
            if error.errno not in _NO_LINK:
                raise
            with open(partial, "wb") as copy:
                copy.writelines(opener.blocks_of(source, cache / file))
            _fsync(partial)


def publish_text(cache: Path, file: str, text: str) -> None:
    """Replace a small file of a cache atomically, by way of a partial file."""
    with partial_file(cache) as partial:
        with no_space_as_error(cache / file), open(partial, "xb") as target:
            target.write(text.encode("ascii"))
            target.flush()
            os.fsync(target.fileno())
        publish_all(cache, {partial: file}, are_synced=True)


# Lines that are appended to a file


def append_lines(cache: Path, name: str, lines: Sequence[str]) -> None:
    """Append lines with one write. A line that an earlier kill cut off is removed first.

    A file that is also in a copy of the cache by hard links, as ``cp -al`` makes, gets a content of its own.
    """
    with suppress(FileNotFoundError), opener.open_binary(cache, name) as file:
        if os.fstat(file.fileno()).st_nlink > 1:
            place = f".{os.path.basename(name)}-{os.getpid()}.partial"
            opener.remove(cache, place)  # of a killed process, or a link of a stranger
            partial, flags = cache / place, os.O_WRONLY | os.O_CREAT | os.O_EXCL
            with no_space_as_error(partial), open(opener.open_file(cache, place, flags), "wb") as copy:
                shutil.copyfileobj(file, copy)
            publish_all(cache, {partial: name})
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
    with no_space_as_error(cache / name), open(opener.open_file(cache, name, flags), "ab+") as file:
        if end := file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                start = file.seek(max(0, end - opener.MAX_BYTES))
                num_bytes = file.read().rfind(b"\n") + 1
                if start and not num_bytes:
                    raise opener.too_large(cache / name, "a line")
                file.truncate(start + num_bytes)
        file.write("".join(f"{line}\n" for line in lines).encode("ascii"))
