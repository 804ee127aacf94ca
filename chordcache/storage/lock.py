"""The lock of a cache, and that of one video, which processes hold while they write."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from chordcache import progress
from chordcache.errors import ChordcacheError, LockedError, UsageError, printable
from chordcache.storage import opener
from chordcache.storage.atomic import KEY_LOCK, PARTIALS, make_folder, no_space_as_error, writing_to
from chordcache.storage.opener import readable
from chordcache.storage.origin import check_holds_all

_FILE = ".lock"
_MAX_OWNER_BYTES = 400


@contextmanager
def locked(cache: Path, on_wait: Callable[[str], None] | None = None) -> Iterator[bool]:
    """Hold the lock of a cache for writing. The kernel frees the lock when the process ends, also after a crash.

    The folder of the cache is made if it does not exist. A disk whose locks do not reach other machines keeps only the
    processes of this machine out. Yields True if this process waited: what it read before may have changed.

    With ``on_wait``, a process that holds the cache is waited for. The callable is called once, with a line that names
    that process. A signal whose handler raises ends the wait.

    Raises ``LockedError`` if another process holds the cache, ``UsageError`` if the folder cannot be made, written or
    locked, or holds some files of an object store, and ``StorageError`` if the file to lock is a link, a folder or a
    pipe.
    """
    check_holds_all(cache)
    try:
        with no_space_as_error(cache):
            make_folder(cache)
            fd = opener.open_file(cache, _FILE, os.O_RDWR | os.O_CREAT)
    except ChordcacheError:  # no space, or a link
        raise
    except OSError as error:
        if error.errno == errno.EIO:
            with writing_to(cache):
                raise
        raise UsageError(f"cannot write to '{printable(cache)}': {error.strerror}; name another folder") from None
    try:
        try:
            has_waited = not _try_lock(fd, fcntl.LOCK_EX)
            if has_waited:
                what = f"cache '{printable(cache)}' is being {_use(fd)}"
                if on_wait is None:
                    raise LockedError(f"{what}; wait until it ends, as 'chordcache build --wait' does")
                on_wait(f"{what}; waiting until it ends")
                fcntl.flock(fd, fcntl.LOCK_EX)
        except OSError as error:
            raise _cannot_lock(cache, error) from None
        since = datetime.now(UTC).isoformat(" ", "seconds")
        if os.fstat(fd).st_nlink == 1:  # else it is also the file of a copy, or any file that a stranger linked here
            with writing_to(cache):
                os.ftruncate(fd, 0)
                os.pwrite(fd, f"process {os.getpid()} on {socket.gethostname()} since {since}\n".encode(), 0)
        yield has_waited
    finally:
        os.close(fd)


@contextmanager
def locked_for_reading(cache: Path) -> Iterator[None]:
    """Keep processes from writing to a cache. Several processes may hold this lock, and nothing is written.

    A cache that no process locked so far, such as a copy, has no file to lock, and is not locked. On a disk whose locks
    do not reach other machines, a build there may begin meanwhile. Raises ``LockedError`` if a process writes to the
    cache, ``StorageError`` if the file to lock cannot be read, and ``UsageError`` if the folder cannot be locked, or
    holds some files of an object store.
    """
    check_holds_all(cache)
    try:
        with readable(cache / _FILE):
            fd = opener.open_file(cache, _FILE)
    except FileNotFoundError:
        yield
        return
    try:
        try:
            is_locked = _try_lock(fd, fcntl.LOCK_SH)
        except OSError as error:
            raise _cannot_lock(cache, error) from None
        if not is_locked:
            what = f"cache '{printable(cache)}' is being written by {_owner(fd)}"
            raise LockedError(f"{what}; run the same command when it ends")
        yield
    finally:
        os.close(fd)


@contextmanager
def locked_key(cache: Path, key: str, *, waits: bool = False) -> Iterator[None]:
    """Hold the lock of a cache, shared, and that of one video, while this process adds the video beside readers.

    Other processes may add other videos meanwhile. With ``waits``, one that adds this video is waited for. A process
    that is killed leaves the file of the second lock, which the next build removes.

    Raises ``LockedError`` if another command writes to the cache, or another process adds this video,
    ``UsageError`` if the cache holds some files of an object store, and ``StorageError`` if a link is in the
    place of a file, or the cache does not exist any more, or cannot be written to.
    """
    check_holds_all(cache)
    file = f"{PARTIALS}/{key}{KEY_LOCK}"
    with ExitStack() as stack:
        with writing_to(cache):
            fd = opener.open_file(cache, _FILE, os.O_RDWR | os.O_CREAT)
            stack.callback(os.close, fd)
            if not _try_lock(fd, fcntl.LOCK_SH):
                raise LockedError(f"cache '{printable(cache)}' is being written by {_owner(fd)}")
            opener.make_folder(cache, PARTIALS)
            while True:
                own = opener.open_file(cache, file, os.O_RDWR | os.O_CREAT)
                stack.callback(os.close, own)
                if not _try_lock(own, fcntl.LOCK_EX):
                    if not waits:
                        raise LockedError(f"video '{key}' of cache '{printable(cache)}' is being built")
                    with progress.paused():
                        fcntl.flock(own, fcntl.LOCK_EX)
                if os.fstat(own).st_nlink:  # else the process that held the lock has removed its file
                    break
            stack.callback(opener.remove, cache, file)
        yield


def _try_lock(fd: int, kind: int) -> bool:
    """Lock a file, shared or alone. Return False if another process has locked it."""
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _cannot_lock(cache: Path, error: OSError) -> UsageError:
    return UsageError(f"cannot lock '{printable(cache)}': {error.strerror}; name a folder on a disk that has flock")


def _use(fd: int) -> str:
    """Return what another process does with the cache that it has locked."""
    if not _try_lock(fd, fcntl.LOCK_SH):
        return f"written by {_owner(fd)}"
    fcntl.flock(fd, fcntl.LOCK_UN)
    return "read by 'chordcache merge', or readers build videos in it"


def _owner(fd: int) -> str:
    """Return what the process that holds the lock wrote into the file."""
    text = os.pread(fd, _MAX_OWNER_BYTES, 0).decode("ascii", "replace")
    return printable(text.strip()) or "another process"
