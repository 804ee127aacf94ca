"""The opener: every file and folder below a cache is opened, listed, made and removed here.

A cache may come from a stranger. Below its folder no symbolic link is followed, since it would lead out of the cache:
each part of a name is opened in the folder before it. A file must be a regular one: a pipe would wait, and a device has
no end. A file that is read as a whole, and a line of a list, has a largest size. The folder of the cache itself may be
a link, or lie behind links.

All functions take the folder of the cache and a name below it, such as "videos/ab/<key>.json". A name of "." is the
folder itself. They raise ``FileNotFoundError`` for what does not exist, and ``StorageError`` for a link or another
kind of file in its place. Other errors of the system are ``StorageError`` where the summary says that it reads, and
the ``OSError`` of the system elsewhere.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

from chordcache.errors import ChordcacheError, NotFoundError, StorageError, printable

StrPath = str | os.PathLike[str]

MAX_BYTES = 16 << 20
"""Largest size of a file that is read as a whole, and of a line of a list [bytes]. Most have a few thousand"""

READ_LIMIT = "CHORDCACHE_READ_LIMIT"
"""Variable with the size that a read of a small file may return, and that a sparse file may have"""

_BLOCK_BYTES = 1 << 20
"""Size of the pieces in which a large file is read [bytes]"""

MAX_GROWTH = 64
"""Ratio above which these have a limit: of the size of a file to that on the disk, and of a read to its file"""

_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_PASS = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC

OTHER_THING = (errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.ENXIO)
"""Errors of something else in the place of a file: a folder, a file as a folder, a link to itself, a socket"""


def unreadable(path: StrPath, error: OSError, what: str = "file") -> StorageError:
    """Return the error about a file or folder that the system does not let this process read."""
    if error.errno in (errno.EACCES, errno.EPERM):
        action = "Let this user read it"
    elif error.errno in OTHER_THING:
        action = f"Put the right {what} in its place"
    else:
        action = "Check its disk or mount"
    reason = error.strerror or str(error)
    text = f"'{printable(path)}': got {reason}, expected a readable {what}. {action}, then run the same command."
    result = StorageError(text)
    result.errno = error.errno
    return result


@contextmanager
def readable(path: StrPath, what: str = "file") -> Iterator[None]:
    """Turn every ``OSError`` of the block into ``StorageError``, except that of a missing file.

    An unreadable list must not be taken for an empty or a missing one.
    """
    try:
        yield
    except (ChordcacheError, FileNotFoundError):
        raise
    except OSError as error:
        raise unreadable(path, error, what) from None


def check_regular(status: os.stat_result) -> None:
    """Raise ``OSError`` unless a status is that of a regular file."""
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.ENXIO, "a device or a pipe")


def check_still_there(cache: StrPath) -> None:
    """Raise ``NotFoundError`` if the folder of a cache that was open is not there any more."""
    if not os.path.exists(cache):
        raise NotFoundError(f"cache '{printable(cache)}' does not exist any more. Open it where it is now.")


def read_limit() -> int:
    """Return the value of the variable ``READ_LIMIT`` [bytes]. Raises ``UsageError``."""
    from chordcache.arguments import parsed_bytes  # not before: nearly no file needs it

    return int(parsed_bytes(os.environ.get(READ_LIMIT, "512MiB"), READ_LIMIT))


def check_answer(what: str, num_bytes: int) -> None:
    """Raise ``StorageError`` if a read returns very many bytes, which are not in a file."""
    if num_bytes > (most := read_limit()):
        raise StorageError(
            f"{what}: got a read of {num_bytes} bytes, expected at most {most}. Read fewer frames at a time, or raise "
            f"the limit with {READ_LIMIT}=SIZE."
        )


def _check_on_disk(fd: int, status: os.stat_result) -> None:
    """Raise ``OSError`` for a large file that is nearly all holes. A hole is free, but it is read as zeros.

    The number of blocks is only a hint: it is small in a file system that compresses, and 0 in some behind FUSE. Such
    a file system may also not know its holes, and then states none.
    """
    num_bytes = end = 0
    if not _has_few_blocks(status):
        return
    try:
        while end < status.st_size and num_bytes * MAX_GROWTH < status.st_size:
            start = os.lseek(fd, end, os.SEEK_DATA)
            end = os.lseek(fd, start, os.SEEK_HOLE)
            num_bytes += end - start
    except OSError as error:
        if error.errno != errno.ENXIO:  # it is that of a hole up to the end of the file
            return
    os.lseek(fd, 0, os.SEEK_SET)
    if num_bytes * MAX_GROWTH < status.st_size:
        there = f"{num_bytes} of {status.st_size} bytes are on the disk; {READ_LIMIT}=SIZE lets it pass"
        raise OSError(errno.ENXIO, f"a sparse file, which is never written ({there})")


def _has_few_blocks(status: os.stat_result) -> bool:
    return status.st_size > MAX_GROWTH * 512 * status.st_blocks and status.st_size > read_limit()


def open_file(cache: StrPath, name: str, flags: int = os.O_RDONLY, *, may_be_sparse: bool = False) -> int:
    """Open a regular file, and return its descriptor. One to read has no large holes, unless it ``may_be_sparse``."""
    folder, _, last = name.rpartition("/")
    parent = _enter(cache, folder or ".", _PASS)
    try:
        fd = os.open(last, flags | _FLAGS, 0o644, dir_fd=parent)
    except OSError as error:
        raise _error(cache, name, error) from None
    finally:
        os.close(parent)
    try:
        status = os.fstat(fd)
        check_regular(status)
        if flags == os.O_RDONLY and not may_be_sparse:
            _check_on_disk(fd, status)
    except OSError as error:
        os.close(fd)
        raise unreadable(f"{cache}/{name}", error) from None
    return fd


def open_binary(cache: StrPath, name: str) -> BinaryIO:
    """Read a file as a stream."""
    with readable(f"{cache}/{name}"):
        return os.fdopen(open_file(cache, name), "rb")


def read_file(cache: StrPath, name: str) -> bytes:
    """Read a file of at most ``MAX_BYTES`` as a whole."""
    try:
        fd = open_file(cache, name)
        try:
            num_bytes = os.fstat(fd).st_size
            if num_bytes > MAX_BYTES:
                raise too_large(f"{cache}/{name}", "a file")
            data = os.read(fd, num_bytes)
            while len(data) < num_bytes and (more := os.read(fd, num_bytes - len(data))):
                data += more
            return data
        finally:
            os.close(fd)
    except (ChordcacheError, FileNotFoundError):
        raise
    except OSError as error:  # not by ``readable``, which takes a microsecond for each sidecar
        raise unreadable(f"{cache}/{name}", error) from None


def iter_lines(cache: StrPath, name: str) -> Iterator[bytes]:
    """Read the lines of a file, with their ends. A missing file has none."""
    try:
        file = open_binary(cache, name)
    except FileNotFoundError:
        return
    with file:
        yield from lines_of(file, f"{cache}/{name}")


def lines_of(file: BinaryIO, path: StrPath) -> Iterator[bytes]:
    """Read the lines of an open file from its position on. ``path`` names the file in errors."""
    with readable(path):
        while line := file.readline(MAX_BYTES + 1):
            if len(line) > MAX_BYTES:
                raise too_large(path, "a line")
            yield line


def blocks_of(file: BinaryIO, path: StrPath, num_bytes: int = sys.maxsize) -> Iterator[bytes]:
    """Read up to so many bytes of an open file, a few at a time. ``path`` names the file in errors."""
    with readable(path):
        while block := file.read(min(num_bytes, _BLOCK_BYTES)):
            yield block
            num_bytes -= len(block)


def exists(cache: StrPath, name: str) -> bool:
    """Return whether a regular file or a folder exists. Raises ``StorageError`` if the system does not say."""
    try:
        with readable(f"{cache}/{name}"):
            _status(cache, name)
    except FileNotFoundError:
        return False
    return True


def size_of(cache: StrPath, name: str, *, checks_holes: bool = False) -> int:
    """Return the size of a regular file [bytes]. It is opened only to check the holes of one with few blocks."""
    status = _status(cache, name)
    if checks_holes and stat.S_ISREG(status.st_mode) and _has_few_blocks(status):
        os.close(open_file(cache, name))
    try:
        check_regular(status)
    except OSError as error:
        raise unreadable(f"{cache}/{name}", error) from None
    return status.st_size


def list_folder(cache: StrPath, name: str = ".") -> list[str]:
    """Read the names in a folder, sorted."""
    with readable(f"{cache}/{name}", "folder"), open_folder(cache, name) as fd:
        return sorted(os.listdir(fd))


def iter_files(cache: StrPath, name: str) -> Iterator[str]:
    """Read the names of all files at any depth below a folder, relative to the cache. A missing folder has none."""
    ahead = [name]
    while ahead:
        folder = ahead.pop()
        kinds: dict[str, bool] = {}
        with (
            suppress(FileNotFoundError),
            readable(f"{cache}/{folder}", "folder"),
            open_folder(cache, folder) as fd,
            os.scandir(fd) as items,
        ):
            kinds = {f"{folder}/{item.name}": item.is_dir(follow_symlinks=False) for item in items}
        ahead += [name for name, is_folder in kinds.items() if is_folder]
        yield from (name for name, is_folder in kinds.items() if not is_folder)


@contextmanager
def open_folder(cache: StrPath, name: str, *, makes: bool = False) -> Iterator[int]:
    """Open a folder that can be listed, and yield its descriptor. With ``makes``, a missing one is made."""
    try:
        fd = _enter(cache, name, _LIST)
    except FileNotFoundError:  # rarely: to look first takes calls
        if not makes:
            raise
        make_folder(cache, name)
        fd = _enter(cache, name, _LIST)
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def parent_of(cache: StrPath, name: str) -> Iterator[tuple[int, str]]:
    """Yield the descriptor of the folder that holds a file, for calls with a ``dir_fd``, and the name in it."""
    folder, _, last = name.rpartition("/")
    fd = _enter(cache, folder or ".", _PASS)
    try:
        yield fd, last
    finally:
        os.close(fd)


def make_folder(cache: StrPath, name: str) -> None:
    """Make a folder and its parents. Their names are durable, and so are the files that are published inside."""
    parent, _, last = name.rpartition("/")
    if parent:
        make_folder(cache, parent)
    with open_folder(cache, parent or ".") as fd, suppress(FileExistsError):
        os.mkdir(last, dir_fd=fd)
        os.fsync(fd)
    with open_folder(cache, name):  # raises if something else has its name
        pass


def remove(cache: StrPath, name: str) -> None:
    """Remove a file, or a link in its place, if it exists."""
    with suppress(FileNotFoundError), parent_of(cache, name) as (fd, last):
        os.unlink(last, dir_fd=fd)


def _enter(cache: StrPath, name: str, flags: int) -> int:
    """Return the descriptor of a folder. Each part of its name is opened in the folder before it."""
    folders = [] if name == "." else name.split("/")
    try:
        fd = os.open(cache, _PASS if folders else flags)
        try:
            for folder in folders:
                if folder == "..":
                    raise NotADirectoryError(errno.ENOTDIR, "a name that leads out of the cache")
                parent = fd
                fd = os.open(folder, (_PASS if folder is not folders[-1] else flags) | os.O_NOFOLLOW, dir_fd=parent)
                os.close(parent)
        except OSError:
            os.close(fd)
            raise
    except OSError as error:
        raise _error(cache, name, error, "folder") from None
    return fd


def _status(cache: StrPath, name: str) -> os.stat_result:
    with parent_of(cache, name) as (fd, last):
        try:
            status = os.stat(last, dir_fd=fd, follow_symlinks=False)
        except OSError as error:
            raise _error(cache, name, error) from None
    if stat.S_ISLNK(status.st_mode):
        raise _error(cache, name, OSError(errno.ELOOP, "a link"))
    return status


def _error(cache: StrPath, name: str, error: OSError, what: str = "file") -> OSError:
    """Return the error about a file or folder: of a link if there is one on the way, else with the whole path."""
    path = os.fspath(cache) if name == "." else f"{cache}/{name}"
    if error.errno not in OTHER_THING:
        return type(error)(error.errno, error.strerror, path)
    way = os.fspath(cache)
    for part in name.split("/"):
        way = f"{way}/{part}"
        if name != "." and os.path.islink(way):
            kind = what if way == path else "folder"
            text = f"'{printable(way)}': got a link, expected a {kind} of the cache. Move the {kind} in its place, and"
            link = StorageError(f"{text} link the whole cache instead.")
            link.errno = errno.ELOOP
            return link
    return unreadable(path, error, what)


def too_large(path: StrPath, what: str) -> StorageError:
    """Return the error about a file or a line that is larger than any that is written here."""
    text = f"'{printable(path)}': got {what} of more than {MAX_BYTES >> 20} MiB, expected less"
    return StorageError(f"{text}. Move it away, then run the same command.")
