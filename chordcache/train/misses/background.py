"""Builds of missed videos in the background, by one child of each reading process. The child ends with that process.

The child shares the lock of the cache with other readers' children, and locks a file for each video, so that no video
is built twice. The file keeps the record of the video until a child has the cache for itself, and writes the index and
the catalog::

    .on_demand/<key>                   the record; locked while the video is built
    .on_demand/slot-<machine>-<k>      locked by a reader that has a child
"""

from __future__ import annotations

import fcntl
import os
import queue
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from chordcache import progress
from chordcache.building.build_options import BuildOptions
from chordcache.building.build_run import build_as_before
from chordcache.building.build_task import planned_files
from chordcache.building.file_build import build_file
from chordcache.building.planning import plan_as_before
from chordcache.digests import hex64
from chordcache.engine.child import Worker
from chordcache.engine.choice import Engine
from chordcache.engine.crashes import Crash, max_attempts
from chordcache.engine.limits import Limits
from chordcache.engine.pool import default_jobs
from chordcache.engine.worker import Raised
from chordcache.errors import ChordcacheError, LockedError, UsageError, printable
from chordcache.index.grouping import IndexRows
from chordcache.index.index_files import Index, temporary_index
from chordcache.media.versions import tool_versions
from chordcache.records import VideoRecord
from chordcache.storage import feature_files, opener
from chordcache.storage.atomic import check_space, no_space_as_error
from chordcache.storage.find_sidecars import Sidecars
from chordcache.storage.layout import key_of
from chordcache.storage.lock import locked, locked_beside
from chordcache.storage.quarantine import Failure, Quarantine, read_quarantined
from chordcache.storage.sealed_json import read_sealed, seal

FOLDER = ".on_demand"

_SHARE = 4
"""One of so many processors of a machine builds, with the least priority: training comes first"""

_MACHINE = hex64(Path("/proc/sys/kernel/random/boot_id").read_bytes())

_IDLE_SECONDS = 5.0
"""[seconds] Time without a miss after which the child ends. The next one needs a second to start."""

_POLL_SECONDS = 0.5

_PAUSE_SECONDS = 10.0
"""[seconds] Pause after an error such as a full disk"""

_DONE, _FAILED, _BUSY = "done", "failed", "busy"
"""Results of a child: as it should be, in quarantine, or another process has a lock"""


class Background:
    """The background builds of this process for one cache."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self.trusted: frozenset[str] = frozenset()
        """Classes of plug-ins that configs of the user have named, see ``config_from_json``"""
        self.header: dict[str, Any] = {"roots": {}, "follow_symlinks": False}
        """Header of the user's indexes. The folder of a request is from here, and never from a file of the cache"""
        self._requests: queue.SimpleQueue[VideoRecord | None] = queue.SimpleQueue()
        self._ended: dict[str, threading.Event] = {}
        """Keys of the videos that wait or have failed. The event is set when the build has ended."""
        self._has_slot = threading.Event()
        self._problem = ""
        threading.Thread(target=self._serve, name="chordcache background builds", daemon=True).start()

    def ask(self, request: VideoRecord | None, *, waits: bool = False) -> str:
        """Build a video soon, unless it waits already or has failed. None only writes index and catalog.

        With ``waits``, return when the build has ended, or at once if other processes build. Return the problem that
        builds had since the last call, or "".
        """
        ended = new = threading.Event()
        if request is not None:
            ended = self._ended.setdefault(key_of(request), new)
        if ended is new:
            self._requests.put(request)
        if waits and self._has_slot.wait(_POLL_SECONDS):
            ended.wait()
        problem, self._problem = self._problem, ""
        return problem

    def _serve(self) -> None:
        """Build what is asked for, without end. This is a thread of its own: Linux ends the child with it."""
        while True:
            request = self._requests.get()
            try:
                with _slot(self._cache), closing(Worker(_work, Limits())) as worker:
                    self._has_slot.set()
                    self._build_until_idle(worker, request)
            except Exception as error:  # noqa: BLE001 # item boundary: the reader has the sources
                self._has_slot.clear()
                self._problem = str(error) or type(error).__name__
                while self._ended:
                    self._ended.popitem()[1].set()
                time.sleep(_PAUSE_SECONDS)
            self._has_slot.clear()

    def _build_until_idle(self, worker: Worker, request: VideoRecord | None) -> None:
        has_lists, lists_due = False, 0.0
        while True:
            if request is not None:
                result = self._run(worker, request)
                has_lists = False
                if ended := self._ended.get(key_of(request)):  # none after an error
                    ended.set()
                if result != _FAILED:  # it may be damaged later, or another reader that builds it may be killed
                    self._ended.pop(key_of(request), None)
            try:
                wait_seconds = _IDLE_SECONDS if has_lists else max(0.0, lists_due - time.monotonic())
                request = self._requests.get(timeout=wait_seconds)
            except queue.Empty:
                if has_lists:
                    return
                request, started = None, time.monotonic()
                has_lists = self._run(worker, None) == _DONE  # else others build, and the last of them writes the lists
                now = time.monotonic()
                lists_due = now + max(_POLL_SECONDS, 20 * (now - started))  # each time, all lists are written

    def _run(self, worker: Worker, request: VideoRecord | None, crash: Crash | None = None) -> str:
        attempts = 0
        while True:
            (result,) = worker.run(0, [(self._cache, request, crash, self.trusted, self.header)])
            if isinstance(result, Raised):
                raise result.error
            if not isinstance(result, Crash):
                return str(result)
            attempts += 1
            if attempts >= max_attempts(result):
                if request is None or crash is not None:
                    raise ChordcacheError(result.message)
                return self._run(worker, request, replace(result, attempts=attempts))


_backgrounds: dict[Path, Background] = {}
"""Cache to the builds of this process"""

_of_parents: list[object] = []
"""In a forked process, the builds of its parent, which are neither used nor ended there"""


def _leave_to_parent() -> None:
    _of_parents.append(_backgrounds.copy())
    _backgrounds.clear()


os.register_at_fork(after_in_child=_leave_to_parent)


def background_of(cache: Path, index: Index, trusted: frozenset[str]) -> Background:
    """Return the background builds of this process, which know the roots of an index and some classes from now on."""
    background = _backgrounds.get(cache) or _backgrounds.setdefault(cache, Background(cache))
    roots, follow_symlinks = background.header["roots"], background.header["follow_symlinks"] or index.follow_symlinks
    background.header = {"roots": {**roots, **index.roots}, "follow_symlinks": follow_symlinks}
    background.trusted |= trusted
    return background


def prepare(cache: Path, index: Index, trusted: frozenset[str]) -> None:
    """Make the folder, and list the videos of readers that were killed. Raise ``UsageError`` if it is not writable."""
    try:
        opener.make_folder(cache, FOLDER)
        os.close(opener.open_file(cache, _slot_file(0), os.O_RDWR | os.O_CREAT))
        if _names(cache):
            background_of(cache, index, trusted).ask(None)
    except OSError as error:
        raise UsageError(
            f"on_miss: got 'build' for cache '{printable(cache)}', which cannot be written to "
            f"({error.strerror or error}), expected 'source'. Choose on_miss='source'."
        ) from None


@contextmanager
def _slot(cache: Path) -> Iterator[None]:
    """Wait until one more process of this machine may build, and hold its place."""
    num_slots = max(1, default_jobs() // _SHARE)
    while True:
        for k in range(num_slots):
            fd = opener.open_file(cache, _slot_file(k), os.O_RDWR | os.O_CREAT)
            try:
                if _try_lock(fd):
                    try:
                        yield
                    finally:
                        fcntl.flock(fd, fcntl.LOCK_UN)  # processes forked meanwhile have the file open
                    return
            finally:
                os.close(fd)
        time.sleep(_POLL_SECONDS)


def _slot_file(number: int) -> str:
    return f"{FOLDER}/slot-{_MACHINE}-{number}"


def _try_lock(fd: int) -> bool:
    """Lock a file. Return False if another process has locked it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


# In the child


def _work(task: tuple[Path, VideoRecord | None, Crash | None, frozenset[str], dict[str, Any]]) -> str:
    """Build a video, or note the crash that its build ends with. Without a video, write index and catalog."""
    cache, request, crash, trusted, header = task
    os.nice(19)  # the sum is at most 19
    try:
        return _write_lists(cache, header) if request is None else _build(cache, request, crash, trusted, header)
    except LockedError:
        return _BUSY


def _build(
    cache: Path, request: VideoRecord, crash: Crash | None, trusted: frozenset[str], header: dict[str, Any]
) -> str:
    file = f"{FOLDER}/{key_of(request)}"
    options = BuildOptions(rebuild=frozenset(_broken_files(cache, key_of(request))))
    with (
        locked_beside(cache),
        no_space_as_error(cache / file),
        _opened(cache, file) as own,
        temporary_index([_described(Sidecars(cache), request)], level=request.level, **header) as index,
    ):
        if not _try_lock(own.fileno()):
            return _BUSY
        own.truncate(0)
        own.write(f"{seal(request)}\n".encode("ascii"))
        own.flush()
        plan = plan_as_before(cache, index, options=options, trusted=trusted)
        quarantine = Quarantine(cache, tool_versions())
        with IndexRows(index) as rows:
            ((task,),) = planned_files(plan, rows, quarantine, options)
        if task.state != "missing":
            return _FAILED if task.state == "failed" else _DONE
        check_space(cache)
        (outcome,) = build_file([task]) if crash is None else [None]
        if crash is not None:
            outcome = Failure(
                task.key, task.item.root, task.item.path, "decode", crash.cause, crash.message, task.item.identity,
                attempts=crash.attempts, fingerprints=task.fingerprints)  # fmt: skip
        if not isinstance(outcome, Failure):
            return _DONE
        with _opened(cache, "quarantine.jsonl") as listed:
            fcntl.flock(listed, fcntl.LOCK_EX)
            quarantine.add(outcome)
        return _FAILED


def _described(sidecars: Sidecars, request: VideoRecord) -> VideoRecord:
    """Return a request with what the cache has of its video, where its index says nothing."""
    sidecar = sidecars.read_or_none(key_of(request))
    return request if sidecar is None else request.over(sidecar.about, ())


def _opened(cache: Path, file: str) -> BinaryIO:
    return os.fdopen(opener.open_file(cache, file, os.O_RDWR | os.O_CREAT), "r+b")


def _broken_files(cache: Path, key: str) -> Iterator[str]:
    """Yield the artefacts of a video that are not as written."""
    sidecar = Sidecars(cache).read_or_none(key)
    for file in sidecar.files if sidecar else ():
        if not feature_files.is_intact(cache, file):
            yield file.name


def _write_lists(cache: Path, header: dict[str, Any]) -> str:
    """Write the videos that were built, and those that failed, into the index and the catalog of the cache.

    A request of another root stays. It is of another reader, or of the one who sent the cache.
    """
    with progress.paused(), locked(cache):
        names, failed = _names(cache), read_quarantined(cache)
        requests, sidecars = [], Sidecars(cache)
        for name in list(names):
            with suppress(ChordcacheError):  # it was cut short, and its video is not built
                request = read_sealed(cache, f"{FOLDER}/{name}", VideoRecord, "a request")
                if request.root not in header["roots"]:
                    names.remove(name)
                elif (key := key_of(request)) in failed or sidecars.has(key):
                    requests.append(_described(sidecars, request))
        if requests:
            with temporary_index(requests, level=requests[0].level, **header) as index:
                build_as_before(cache, index, jobs=Engine("inline"), options=BuildOptions())
        for name in names:
            opener.remove(cache, f"{FOLDER}/{name}")
    return _DONE


def _names(cache: Path) -> list[str]:
    """Return the names of the files of records."""
    return [name for name in opener.list_folder(cache, FOLDER) if not name.startswith("slot-")]
