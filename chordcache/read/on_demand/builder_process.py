"""Background process that builds the videos that readers miss. There is one process for any number of readers.

A reader that misses a video puts a request into the cache's ``.on_demand`` folder, a file for each video. The reader
also starts the process, unless it is already running. The process holds the lock of that folder. The reader that gets
the lock passes it, open, to the process that it starts. Therefore a second process can never be started at the same
time. The kernel frees the lock when the process ends for any reason. Requests outlive readers and the process. They
are removed when the build that they were part of is over.

    <key>.json    a request: record, root folder
    .lock         locked while the process runs
    .log          output of the process since it was started
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
import time
import uuid
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path

from chordcache.digests import digest_file
from chordcache.engine import terminal
from chordcache.engine.signals import stop_signals
from chordcache.engine.worker import child_environment
from chordcache.errors import (
    CacheWriteError,
    ChordcacheError,
    DamageError,
    FormatVersionError,
    NotFoundError,
    StoppedError,
    UsageError,
    WorkersDiedError,
    printable,
)
from chordcache.index.files import temporary_index
from chordcache.pipeline.build import build_as_before
from chordcache.pipeline.options import BuildOptions
from chordcache.records import Record, RunSummary, VideoRecord
from chordcache.storage.layout import key_of
from chordcache.storage.lock import locked
from chordcache.storage.readable import list_folder
from chordcache.storage.sealed_json import read_sealed, seal
from chordcache.storage.sidecar import read_sidecar

FOLDER = ".on_demand"

IDLE_SECONDS = 5.0
"""Time without a request after which the process ends. The next process needs a second to start."""

_POLL_SECONDS = 0.2

_NICENESS = 19
"""Niceness of the process and its worker: training comes first."""

_AUTOGROUP = Path("/proc/self/autogroup")
"""File with the niceness of the session. Where Linux schedules by session, a process's own counts only within it."""

_PAUSE_SECONDS = 10
"""Pause between a process that stopped, for example on a full disk, and the next one. It keeps the lock so long."""

_FORGOTTEN_SECONDS = 3600
"""Age after which a half-written request counts as left by a reader that was killed."""

_IN_BACKGROUND = '"$@" &'
"""Shell command that starts the process and ends. No reader is then the parent, which would have to wait for it."""


class BuildRequest(Record, frozen=True):
    """A request to build a video, or to check and repair it."""

    record: VideoRecord
    root_folder: str
    """Absolute folder of the record's root"""
    follow_symlinks: bool = False
    """True if the scan followed links out of the root"""

    @property
    def key(self) -> str:
        """Key of the video."""
        return key_of(self.record)


class RequestQueue:
    """The requests of one cache.

    Parameters
    ----------
    cache : Path
        A folder that ``build`` made.
    """

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self._folder = cache / FOLDER

    def prepare(self) -> None:
        """Make the folder. Raise ``UsageError`` if it cannot be written to."""
        try:
            self._folder.mkdir(exist_ok=True)
            os.close(self._open_lock())
        except OSError as error:
            raise UsageError(
                f"on_miss: got 'build' for cache '{printable(self._cache)}', which cannot be written to "
                f"({error.strerror}), expected 'source'. Choose on_miss='source'."
            ) from None

    def put(self, request: BuildRequest) -> None:
        """Request a video. A video requested twice is built once. Raise ``OSError``."""
        final = self._folder / f"{request.key}.json"
        if not final.exists():
            partial = self._folder / f"{uuid.uuid4().hex}.partial"
            try:
                partial.write_text(seal(request) + "\n", encoding="ascii")
                os.replace(partial, final)
            except OSError:
                partial.unlink(missing_ok=True)
                raise
        self._start()

    def remind(self, key: str) -> None:
        """Start the process if it ended before it handled a request. Raise ``OSError``."""
        if (self._folder / f"{key}.json").exists():
            self._start()

    def keys(self) -> list[str]:
        """Return the keys of the requested videos, sorted."""
        try:
            return [name[:-5] for name in list_folder(self._folder) if name.endswith(".json")]
        except FileNotFoundError:  # the cache was removed
            return []

    def take(self) -> list[BuildRequest]:
        """Return the current requests. They stay in the folder until ``settle`` removes them."""
        return [request for request in map(self._read, self.keys()) if request is not None]

    def settle(self, requests: Sequence[BuildRequest]) -> None:
        """Remove requests."""
        for request in requests:
            self._remove(f"{request.key}.json")

    def tidy(self) -> None:
        """Remove half-written requests of readers that were killed."""
        for name in list_folder(self._folder):
            path = self._folder / name
            with suppress(FileNotFoundError):
                if path.suffix == ".partial" and time.time() - path.stat().st_mtime > _FORGOTTEN_SECONDS:
                    path.unlink()

    def _read(self, key: str) -> BuildRequest | None:
        """Return a request. If it is damaged, or of another version of chordcache, remove it and return None."""
        try:
            request = read_sealed(self._folder / f"{key}.json", BuildRequest, "a request")
            if request.key != key:
                raise DamageError(f"'{key}' asks for '{request.key}'")
            return request
        except (DamageError, FormatVersionError, NotFoundError):
            self._remove(f"{key}.json")
            return None

    def _remove(self, name: str) -> None:
        with suppress(FileNotFoundError):
            (self._folder / name).unlink()

    def _open_lock(self) -> int:
        return os.open(self._folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def _start(self) -> None:
        """Start the process, unless it is running. Either process sees the requests made before this call."""
        with _no_fork:
            lock = self._open_lock()
            try:
                if try_lock(lock):
                    self._pass_on(self._last_words())
                    self._start_with(lock)
            finally:
                os.close(lock)

    def _start_with(self, lock: int) -> None:
        """Start the process and pass it the lock. Raise ``OSError``."""
        command = [sys.executable, "-m", "chordcache.read.on_demand.builder_process", os.fspath(self._cache), str(lock)]
        with open(self._folder / ".log", "wb") as log:
            shell = subprocess.run(
                ["/bin/sh", "-c", _IN_BACKGROUND, "sh", *command],
                env=child_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[lock],
                start_new_session=True,
                check=False,
            )
        if shell.returncode:
            raise OSError(f"/bin/sh could not start the background build and ended with {shell.returncode}")

    def _last_words(self) -> str:
        """Return the last message of the previous process, or of a Python that could not start it.

        Lines that libraries wrote are in the log too, and are skipped.
        """
        try:
            lines = (self._folder / ".log").read_text(encoding="utf-8", errors="replace").splitlines()
        except FileNotFoundError:
            return ""
        if any(line.startswith("Traceback ") for line in lines):
            return next(line for line in reversed(lines) if line)  # the cause of death
        speakers = ("chordcache: ", f"{sys.executable}: ")
        return next((line for line in reversed(lines) if line.startswith(speakers)), "")

    def _pass_on(self, words: str) -> None:
        if words:
            cache = printable(self._cache)
            warnings.warn(f"the last background build of cache '{cache}' said: {printable(words)}", stacklevel=6)


_no_fork = threading.Lock()
"""Lock held while this process has a lock file open. A forked child with a copy would keep that file locked."""

os.register_at_fork(before=_no_fork.acquire, after_in_parent=_no_fork.release, after_in_child=_no_fork.release)


def try_lock(fd: int) -> bool:
    """Lock a file. Return False if another process has locked it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


# The process


def serve(cache: Path, lock: int) -> None:
    """Build requested videos, until requests stay away for a while. ``lock`` is the queue's lock, open and locked."""
    queue = RequestQueue(cache)
    queue.tidy()
    while True:
        _serve_until_idle(cache, queue)
        # In this order: a reader that puts a request later finds the lock free, and an earlier request is seen below
        fcntl.flock(lock, fcntl.LOCK_UN)
        if not queue.keys() or not try_lock(lock):
            return


def _serve_until_idle(cache: Path, queue: RequestQueue) -> None:
    idle_since = time.monotonic()
    while time.monotonic() - idle_since < IDLE_SECONDS:
        requests = queue.take()
        if not requests:
            time.sleep(_POLL_SECONDS)
            continue
        for _, group in groupby(sorted(requests, key=_origin), key=_origin):
            _settle(cache, queue, list(group))
        idle_since = time.monotonic()


def _origin(request: BuildRequest) -> tuple[str, str, bool]:
    """Return the values that the requests of one index have in common."""
    return request.record.root, request.root_folder, request.follow_symlinks


def _settle(cache: Path, queue: RequestQueue, requests: Sequence[BuildRequest]) -> None:
    """Build some videos of one root, and report those that cannot be built."""
    try:
        summary = build_requests(cache, requests)
        if summary.num_failed:
            _say(f"{summary.num_failed} of {summary.num_inputs} videos cannot be cached; see quarantine.jsonl")
    except (StoppedError, CacheWriteError, WorkersDiedError):  # the next process handles the remaining requests
        raise
    except ChordcacheError as error:
        _say(str(error))
    queue.settle(requests)


def _say(message: str) -> None:
    terminal.say(message, shown=True)


def _wait(_whom: str) -> None:
    """Report nothing while waiting for the lock: readers have the source."""


def build_requests(cache: Path, requests: Sequence[BuildRequest]) -> RunSummary:
    """Wait for the cache's lock, and build videos of one root with the settings of the cache's earlier builds.

    Raises
    ------
    ChordcacheError
        As in ``build``.
    """
    root, folder, follow_symlinks = _origin(requests[0])
    records, level = [request.record for request in requests], requests[0].record.level
    with (
        stop_signals(),
        locked(cache, _wait),
        temporary_index(records, roots={root: folder}, level=level, follow_symlinks=follow_symlinks) as index,
    ):
        broken = frozenset(file for request in requests for file in _broken_files(cache, request.key))
        return build_as_before(cache, index, jobs=1, options=BuildOptions(rebuild=broken))


def _broken_files(cache: Path, key: str) -> Iterator[str]:
    """Yield the artefacts of a video that are not as written."""
    try:
        sidecar = read_sidecar(cache, key)
    except (NotFoundError, DamageError):
        return
    for file, digest in {info.file: info.digest for info in sidecar.features if info.file is not None}.items():
        try:
            if digest_file(cache / file) != digest:
                yield file
        except OSError:
            yield file


def main(arguments: Sequence[str]) -> None:
    """Run the process. The arguments are the cache and the file descriptor of the open lock file."""
    cache, lock = Path(arguments[0]), int(arguments[1])
    os.set_inheritable(lock, False)
    os.nice(_NICENESS)
    with suppress(OSError):
        _AUTOGROUP.write_text(str(_NICENESS))
    try:
        serve(cache, lock)
    except StoppedError:
        pass
    except (CacheWriteError, WorkersDiedError) as error:
        _say(str(error))
        time.sleep(_PAUSE_SECONDS)


if __name__ == "__main__":
    main(sys.argv[1:])
