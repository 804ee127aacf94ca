"""A folder of bounded size on a local disk with the files of a cache in an object store that were read lately.

Each process that reads fetches what it misses, and all of them share the folder. A file gets its name when it is
complete, its digest is right and the disk has it. One thread fetches a file, and others that need it wait for its lock.
At the limit, the files go that were read least lately. A process that has one of them open can still read it. A file of
a pack is a file of its own here::

    origin.json                the object store and the limit, see ``storage.origin``
    chordcache.json, catalog.bin, quarantine.jsonl    as in the object store
    lists.json                 their tags, see ``lists``
    lmdb/ab/<key>....lmdb      and other tiers: files that were fetched
    .fetching/<name>           locked by the thread that fetches the file
    .used                      bytes of all files, locked by the thread that changes it
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from chordcache import errors
from chordcache.digests import file_digest
from chordcache.errors import DamageError, NotFoundError, StorageError, UsageError, printable
from chordcache.forks import no_fork
from chordcache.object_stores.client import ObjectStore
from chordcache.storage import opener
from chordcache.storage.artefacts.tiers import TIERS
from chordcache.storage.atomic import no_space_as_error, partial_file, publish_all
from chordcache.storage.feature_info import StoredFile
from chordcache.storage.layout import place_of
from chordcache.storage.origin import Origin, read_origin, write_origin

_LOCKS, _USED_FILE = ".fetching", ".used"

_SLACK = 0.9
"""Share of the limit to which the folder shrinks when it is full: each time, all of its files are looked at"""

_TOUCH_SECONDS = 60
"""[seconds] A read is noted in the time of the file, at most so often"""

_FETCH_AGAIN = "Run the same command again. If the object is damaged in the object store, remove it and push again."

_PROGRAM = (
    "import sys; order = sys.argv[1:4]; sys.path[:] = sys.argv[4:]; "
    "from chordcache.object_stores.lists import main; main(*order)"
)


class LocalFolder:
    """The folder, as a process that reads sees it. Several threads may share an object."""

    def __init__(self, folder: Path, origin: Origin) -> None:
        self.origin = origin
        self._folder = folder
        self._opened: ObjectStore | None = None

    @property
    def _store(self) -> ObjectStore:
        store = self._opened = self._opened or ObjectStore(self.origin.url)
        return store

    def ensure(self, stored: StoredFile) -> None:
        """Fetch a file if it does not exist, and note that it is read.

        Raises ``DamageError`` if other bytes arrive than were written, ``UsageError`` if the limit is below their
        number, and as ``ObjectStore.blocks`` and ``publish_all`` do.
        """
        path = self._folder / stored.name
        try:
            age = time.time() - os.lstat(path).st_mtime
        except FileNotFoundError:
            self._fetch(stored)
            return
        if age > _TOUCH_SECONDS:
            with suppress(OSError):  # another process removed it
                os.utime(path, follow_symlinks=False)

    def removed(self, stored: StoredFile, error: DamageError) -> DamageError:
        """Remove a damaged file, which is fetched again when it is read. Return the error with this advice."""
        opener.remove(self._folder, stored.name)
        return DamageError(f"{error}. {_FETCH_AGAIN}")

    def _fetch(self, stored: StoredFile) -> None:
        if stored.num_bytes > self.origin.limit:
            raise UsageError(
                f"limit: got {self.origin.limit} bytes, expected at least the {stored.num_bytes} of '{stored.name}'. "
                "Raise the limit."
            )
        path = self._folder / stored.name
        with no_space_as_error(path), locked(self._folder, path.name):
            if opener.exists(self._folder, stored.name):  # another one has fetched it
                return
            self._make_room(stored.num_bytes)
            with partial_file(self._folder) as partial:
                download(self._store, stored, partial)
                publish_all(self._folder, {partial: stored.name})

    def count(self) -> None:
        """Count the bytes of all files."""
        with self._used() as used:
            used[:] = [sum(num_bytes for _, num_bytes, _ in self._files())]

    def _make_room(self, num_bytes: int) -> None:
        """Count a file that arrives, and remove the files that were read least lately if the folder is full."""
        with self._used() as used:
            used.append(num_bytes)
            if sum(used) <= self.origin.limit:
                return
            files = sorted(self._files())
            total = sum(num_bytes for _, num_bytes, _ in files) + num_bytes
            for _, size, name in files:
                if total <= max(num_bytes, _SLACK * self.origin.limit):
                    break
                opener.remove(self._folder, name)
                total -= size
            used[:] = [total]

    def _files(self) -> Iterator[tuple[int, int, str]]:
        """Yield time of the last read [nanoseconds], size [bytes] and name of each file."""
        for name in (name for tier in TIERS for name in opener.iter_files(self._folder, tier)):
            with suppress(FileNotFoundError):
                status = os.lstat(self._folder / name)
                yield status.st_mtime_ns, status.st_size, name

    @contextmanager
    def _used(self) -> Iterator[list[int]]:
        """Lock the number of bytes of all files, and yield it in a list. The sum of the list is the new number.

        A process that was killed leaves a number that is too large. The next look at all files corrects it. All numbers
        are of one length, so that a kill or a full disk leaves one.
        """
        with no_space_as_error(self._folder), _lock(self._folder, _USED_FILE) as fd:
            text = os.pread(fd, 32, 0).strip()
            used = [int(text) if text.isdigit() else 0]
            yield used
            os.pwrite(fd, b"%20d" % sum(used), 0)


_folders: dict[Path, LocalFolder] = {}
"""Folders that the user of this process, or of the one that it was started by, lets fetch their files. The origin in a
folder is not believed: a folder from a stranger would have this process connect to any address"""

_lock_fds: set[int] = set()
"""Descriptors of the locks of this process. Those in a forked process would hold the locks until it ends"""


def _close_locks_of_parent() -> None:
    while _lock_fds:
        os.close(_lock_fds.pop())


os.register_at_fork(after_in_child=_close_locks_of_parent)


@contextmanager
def _lock(folder: Path, file: str) -> Iterator[int]:
    """Hold a lock on a file among the threads and processes that share a folder, and wait for it."""
    with no_fork:
        fd = opener.open_file(folder, file, os.O_RDWR | os.O_CREAT)
        _lock_fds.add(fd)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield fd
    finally:
        with no_fork:
            _lock_fds.remove(fd)
            os.close(fd)


@contextmanager
def locked(folder: Path, name: str) -> Iterator[None]:
    """Hold the lock of a name. Its file is removed at the end.

    One that waits for a removed file goes on beside one that makes the file again. Both then see the result.
    """
    opener.make_folder(folder, _LOCKS)
    with _lock(folder, f"{_LOCKS}/{name}"):
        try:
            yield
        finally:
            opener.remove(folder, f"{_LOCKS}/{name}")


def local_folder(folder: Path) -> LocalFolder | None:
    """Return the folder of a cache in an object store, or None for a cache of its own."""
    return _folders.get(folder)


def let_fetch(folder: Path, origin: Origin | None) -> None:
    """Let a folder fetch its files, as the process did that sent the origin. None is of a cache of its own."""
    if origin is not None and (folder not in _folders or _folders[folder].origin != origin):
        _folders[folder] = LocalFolder(folder, origin)


def open_local_folder(folder: Path, url: str, limit: int) -> None:
    """Let a folder fetch the files of a cache in an object store, and fetch the lists of the cache.

    A process that ends fetches the lists, so that this one may still fork. Raises ``UsageError`` if the folder holds
    something else, and as ``lists.fetch_lists`` does.
    """
    origin = Origin(url, limit)
    earlier = read_origin(folder) if folder.is_dir() else None
    names = set(opener.list_folder(folder)) if folder.is_dir() else set()
    if earlier is None and not names <= {".partial"}:  # of another process that opens it
        raise UsageError(
            f"local: got '{printable(folder)}', which holds something else, expected a new folder, or one with files "
            f"of '{printable(url)}'"
        )
    if earlier is not None and earlier.url != url and "catalog.bin" in names:
        raise UsageError(
            f"local: got '{printable(folder)}', which has files of '{printable(earlier.url)}', expected a folder for "
            f"'{printable(url)}'. Name another one."
        )
    if earlier != origin:
        try:
            write_origin(folder, origin)
        except OSError as error:
            if isinstance(error, StorageError):
                raise
            what = f"local: got '{printable(folder)}', expected a folder that can be written"
            raise UsageError(f"{what}: {error.strerror}") from None
    let_fetch(folder, origin)
    with no_fork:
        process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, os.fspath(folder), url, str(limit), *sys.path], stdout=subprocess.PIPE
        )
    with process:
        answer, _ = process.communicate()
    if process.returncode:
        what = f"ended with code {process.returncode}, expected 0. Run the same command again."
        raise StorageError(f"'{printable(url)}': the process that fetches the lists {what}")
    if answer:
        kind, message, exit_code = json.loads(answer)
        raise getattr(errors, kind)(message, exit_code=exit_code)


def download(store: ObjectStore, stored: StoredFile, partial: Path) -> None:
    """Copy a file of a cache, and compare its size and digest on the way. Raises ``DamageError`` if they differ."""
    name, start = place_of(stored)
    digest, num_bytes, what = file_digest(), 0, "got other bytes"
    try:
        with open(partial, "xb") as file:
            for block in store.blocks(name, start, stored.num_bytes):
                digest.update(block)
                num_bytes += len(block)
                file.write(block)
    except NotFoundError:
        store.check_exists()
        what = "got no object"
    if num_bytes != stored.num_bytes or digest.hexdigest() != stored.digest:
        raise DamageError(f"'{printable(store.url)}/{name}': {what}, expected those of '{stored.name}'. {_FETCH_AGAIN}")
