"""The scratch folder: a local disk of a node, on which workers write artefacts before they go to the cache's disk.

Each item has a folder there. Its process holds the lock of that folder, which the kernel frees when the process ends,
however it ends. So a later process of the same machine recognizes what was left, and removes it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import socket
import uuid
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from chordcache import progress
from chordcache.digests import file_digest, hex64
from chordcache.errors import CacheWriteError, NoSpaceError, UsageError, printable
from chordcache.storage import atomic
from chordcache.storage.layout import check_local

_NAME = re.compile(r"chordcache-(?P<host>.+)-(?P<boot>[0-9a-f]{16})-[0-9a-f]{32}")

_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

_WHERE = f"scratch: on {printable(socket.gethostname())}"
"""Start of an error's message. Each node of a cluster has its own scratch"""

_COPY_BYTES = 1 << 20
"""Size of the pieces in which a file is copied [bytes]"""


def checked_scratch(scratch: str | os.PathLike[str] | None, cache: Path, *, is_elsewhere: bool = False) -> Path | None:
    """Return the absolute path of the scratch of a cache, or None if there is none.

    Parameters
    ----------
    scratch : str, Path or None
        The scratch.
    cache : Path
        Folder of the cache.
    is_elsewhere : bool
        True if other machines use the scratch, so that it does not have to be on this one.

    Raises
    ------
    UsageError
        If it does not exist, cannot be written to, or one of the folders is inside the other.
    NoSpaceError
        If its disk is full.
    """
    if scratch is None:
        return None
    check_local("scratch", scratch)
    folder = Path(scratch).absolute()
    problem = _nested(folder, cache) if is_elsewhere else scratch_problem(folder, cache)
    if problem is not None:
        raise UsageError(
            f"scratch: got '{printable(folder)}', which {problem}, expected a folder of a local disk. Name another one."
        )
    return folder


def scratch_problem(scratch: Path, cache: Path) -> str | None:
    """Return the reason why a folder cannot be the scratch of a cache on this machine, or None.

    Raises
    ------
    NoSpaceError
        If its disk is full.
    """
    if not scratch.is_dir():
        return "is not a folder"
    if (problem := _nested(scratch, cache)) is not None:
        return problem
    try:
        with scratch_folder(scratch):
            return None
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _full(scratch, error) from None
        return f"is not writable ({error.strerror})"


def _nested(scratch: Path, cache: Path) -> str | None:
    inner, outer = os.path.realpath(scratch), os.path.realpath(cache)
    common = os.path.commonpath([inner, outer])
    if common == outer:
        return "is in the folder of the cache"
    return "holds the folder of the cache" if common == inner else None


@dataclass(frozen=True)
class ScratchErrors:
    """A context manager that turns the errors of a scratch into ``CacheWriteError``s that name it.

    Without a scratch, it does nothing. It may be entered again: for each frame, it must be fast.
    """

    scratch: Path | None

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if self.scratch is None or not isinstance(error, OSError):
            return
        if isinstance(error, CacheWriteError):
            raise type(error)(f"{_WHERE}, {error}") from None
        if error.errno in atomic.NO_SPACE:
            raise _full(self.scratch, error) from None
        what = f"cannot use '{printable(self.scratch)}' ({error.strerror})"
        raise CacheWriteError(f"{_WHERE}, {what}; run the same command") from None


def _full(scratch: Path, error: OSError) -> NoSpaceError:
    return atomic.no_space(f"{_WHERE}, {os.strerror(error.errno or 0).lower()} at", scratch)


@contextmanager
def scratch_folder(scratch: Path) -> Iterator[Path]:
    """Yield a private folder on the scratch. It is always removed at the end. Raises ``OSError``."""
    _tidy_once(scratch)
    folder, lock = _make_folder(scratch)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _make_folder(scratch: Path) -> tuple[Path, int]:
    """Return a new folder, and the descriptor that holds its lock."""
    while True:
        folder = scratch / f"chordcache-{socket.gethostname()}-{_boot()}-{uuid.uuid4().hex}"
        folder.mkdir(mode=0o700)
        with suppress(FileNotFoundError, BlockingIOError):  # another process took it for one that was left
            lock = os.open(folder, _OPEN_FOLDER)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if folder.is_dir():
                    return folder, lock
            except OSError:
                os.close(lock)
                raise
            os.close(lock)


@cache
def _tidy_once(scratch: Path) -> None:
    """Remove what was left, once in each process: a worker that is killed is replaced by a new process."""
    tidy(scratch)


def tidy(scratch: Path) -> None:
    """Remove the folders on the scratch that processes of this machine and user left when they were killed.

    Other files, symbolic links, and the folders of other users and of processes that live stay. On a disk that several
    machines share by mistake, the folders of other machines stay too.
    """
    try:
        names = os.listdir(scratch)
    except OSError:
        return
    for name in names:
        found = _NAME.fullmatch(name)
        if found is not None and (found["boot"] == _boot() or found["host"] == socket.gethostname()):
            with suppress(OSError):
                _remove_if_left(scratch / name)


def _remove_if_left(folder: Path) -> None:
    lock = os.open(folder, _OPEN_FOLDER)  # fails for a symbolic link
    try:
        if os.fstat(lock).st_uid == os.geteuid():
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while its process lives
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)


@cache
def _boot() -> str:
    return hex64(Path("/proc/sys/kernel/random/boot_id").read_bytes())


def copy_checked(source: Path, partial: Path, digest: str) -> None:
    """Copy a file of the scratch to the cache's disk, and wait until that disk has it.

    Parameters
    ----------
    source : Path
        A closed file on the scratch.
    partial : Path
        Path of ``atomic.partial_file``.
    digest : str
        xxh3-128 that the content must have, 32 hex digits.

    Raises
    ------
    NoSpaceError
        If the cache's disk is full.
    CacheWriteError
        If the scratch fails, or returns other bytes than those of the digest.
    OSError
        If the cache's disk fails.
    """
    found = file_digest()
    with atomic.no_space_as_error(partial):
        fd = atomic.create(partial, source.stat().st_mode & 0o777)
        try:
            for block in _blocks_of(source):
                found.update(block)
                atomic.write_all(fd, block)
            os.fsync(fd)
        finally:
            os.close(fd)  # a network disk may report a failed write only here
    if found.hexdigest() != digest:
        raise CacheWriteError(
            f"{_WHERE}, '{printable(source)}' is not what was written. Check the disk, then run the same command."
        )


def _blocks_of(source: Path) -> Iterator[bytes]:
    with ScratchErrors(source.parent), open(source, "rb", buffering=0) as file:
        while block := file.read(_COPY_BYTES):
            yield block


class Workspace:
    """The place where the artefacts of an item are written: a partial folder of the cache, or one on the scratch.

    Parameters
    ----------
    run_folder : Path
        Folder with the partial files of the run: that of the cache, or of a part of it.
    scratch : Path or None
        The scratch.
    """

    def __init__(self, run_folder: Path, scratch: Path | None) -> None:
        self._run_folder, self._scratch = run_folder, scratch
        self.errors = ScratchErrors(scratch)

    def folder(self) -> AbstractContextManager[Path]:
        """Return the context manager that makes a private folder, and removes it at the end."""
        return atomic.partial_folder(self._run_folder) if self._scratch is None else scratch_folder(self._scratch)

    @contextmanager
    def ready(self, files: Mapping[Path, str], digests: Mapping[str, str]) -> Iterator[Mapping[Path, str]]:
        """Yield files on the cache's disk, ready for their final names. Those on the scratch are copied to that disk.

        Parameters
        ----------
        files : mapping of Path to str
            Closed files in ``folder`` to their final names.
        digests : mapping of str to str
            Final names to the xxh3-128 of the files.
        """
        if self._scratch is None:
            yield files
            return
        with ExitStack() as stack:
            copies = {}
            for path, name in files.items():
                copy = stack.enter_context(atomic.partial_file(self._run_folder))
                with progress.paused():
                    copy_checked(path, copy, digests[name])
                copies[copy] = name
            yield copies
