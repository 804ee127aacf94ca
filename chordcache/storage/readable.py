"""Reads that raise for all that cannot be read. An unreadable list must not be taken for an empty or a missing one."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from chordcache.errors import ChordcacheError, UnreadableError, printable

_READ_BYTES = 1 << 16
"""Size of the pieces in which a small file is read: a sidecar has a few thousand bytes [bytes]"""

NO_LINK = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""Flags to open a file of a cache that is written to. A link would lead out of the cache, a pipe would wait"""

_OTHER_THING = (errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.ENXIO)
"""Errors of something else in the place of a file: a folder, a file as a folder, a link to itself, a socket"""


def unreadable(path: str | os.PathLike[str], error: OSError, what: str = "file") -> UnreadableError:
    """Return the error about a file or folder that the system does not let this process read."""
    if error.errno in (errno.EACCES, errno.EPERM):
        action = "Let this user read it"
    elif error.errno in _OTHER_THING:
        action = f"Put the right {what} in its place"
    else:
        action = "Check its disk or mount"
    reason = error.strerror or str(error)
    text = f"'{printable(path)}': got {reason}, expected a readable {what}. {action}, then run the same command."
    result = UnreadableError(text)
    result.errno = error.errno
    return result


@contextmanager
def readable(path: str | os.PathLike[str], what: str = "file") -> Iterator[None]:
    """Turn every ``OSError`` of the block into ``UnreadableError``, except that of a missing file."""
    try:
        yield
    except (ChordcacheError, FileNotFoundError):
        raise
    except OSError as error:
        raise unreadable(path, error, what) from None


def exists(path: str | os.PathLike[str]) -> bool:
    """Return whether a file or folder exists. Raises ``UnreadableError`` if the system does not say."""
    try:
        os.stat(path)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise unreadable(path, error) from None
    return True


def list_folder(folder: str | os.PathLike[str]) -> list[str]:
    """Return the sorted names in a folder. Raises ``FileNotFoundError`` and ``UnreadableError``."""
    with readable(folder, "folder"):
        return sorted(os.listdir(folder))


def iter_files(cache: Path, folder: str) -> Iterator[str]:
    """Yield the files at any depth below a folder of a cache, relative to the cache. A missing folder has none.

    Links to folders are not followed. Raises ``UnreadableError``, also if the folder itself is a link: its files may be
    those of another cache, and must not be removed as files of this one.
    """
    if os.path.islink(cache / folder):
        what = f"'{printable(cache / folder)}': got a link, expected a folder of the cache"
        raise UnreadableError(f"{what}. Move the folder in its place, and link the whole cache instead.")
    try:
        with readable(cache / folder, "folder"), os.scandir(cache / folder) as listing:
            items = sorted((item.name, item.is_dir(follow_symlinks=False)) for item in listing)
    except FileNotFoundError:
        return
    for name, is_folder in items:
        if is_folder:
            yield from iter_files(cache, f"{folder}/{name}")
        else:
            yield f"{folder}/{name}"


def read_small(path: str | os.PathLike[str]) -> bytes:
    """Return the content of a file. ``Path.read_bytes`` asks the disk for its size twice.

    Raises
    ------
    FileNotFoundError
        If the file does not exist.
    UnreadableError
        If it cannot be read.
    """
    try:
        fd = os.open(
            path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
        )  # a FIFO in its place is empty, and does not wait
        try:
            blocks = []
            while block := os.read(fd, _READ_BYTES):
                blocks.append(block)
            return b"".join(blocks)
        finally:
            os.close(fd)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise unreadable(path, error) from None


def check_file(path: str | os.PathLike[str]) -> None:
    """Raise ``FileNotFoundError`` or ``UnreadableError`` unless a path is a regular file that this process may open."""
    with readable(path):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            kind = os.fstat(fd).st_mode
        finally:
            os.close(fd)
        if stat.S_ISDIR(kind):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISREG(kind):
            raise OSError(errno.ENXIO, "a device or a pipe")


def iter_lines(path: str | os.PathLike[str]) -> Iterator[bytes]:
    """Yield the lines of a file, with their ends. A missing file has none. Raises ``UnreadableError``."""
    try:
        check_file(path)
        with readable(path), open(path, "rb") as file:
            yield from file
    except FileNotFoundError:
        return
