"""Builds of missed videos by one child of each reading process, at the lowest priority. The child ends with its reader.

The child writes the files of a video and its sidecar, under the lock of its key. Readers see the sidecar. The lists of
the cache follow with the next build.
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
import time
import warnings
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from chordcache.building.build_options import BuildOptions
from chordcache.building.build_task import planned_files
from chordcache.building.file_build import build_file
from chordcache.building.planning import plan_as_before
from chordcache.engine.child import Worker
from chordcache.engine.limits import Limits
from chordcache.engine.worker import Crash, Raised
from chordcache.errors import ChordcacheError, LockedError, MediaError, cannot_write
from chordcache.index.header import IndexHeader
from chordcache.index.index_files import Index
from chordcache.media.versions import tool_versions
from chordcache.records import VideoRecord
from chordcache.storage.atomic import check_space
from chordcache.storage.feature_files import is_intact
from chordcache.storage.find_sidecars import Sidecars
from chordcache.storage.layout import key_of
from chordcache.storage.lock import locked_key
from chordcache.storage.quarantine import Failure, Quarantine

_IDLE_SECONDS = 60
"""[seconds] Time without a miss after which the child ends. The next miss starts another one"""

_MAX_WAITING = 16
"""Number of misses in the pipe to the child. Others are left out until their next read, so that no write waits"""

_POLL_SECONDS = 0.02


@dataclass(frozen=True)
class Miss:
    """A video to build, from a folder that the index of its reader names, and never from one that the cache names."""

    cache: Path
    record: VideoRecord
    header: IndexHeader
    """Header of the reader's index"""
    trusted: frozenset[str]
    """Classes of plug-ins that configs of the user have named, see ``config_from_json``"""
    waits: bool
    """True if the reader waits for the build, and so for another process that builds the video"""

    @property
    def name(self) -> tuple[Path, str, bool]:
        """The video, and whether its reader waits."""
        return self.cache, key_of(self.record), self.waits


class Builds:
    """The child of one process, and the builds that it has begun or that have failed. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child = Worker(build_missed, Limits())
        self._sent = deque[Miss]()
        """Misses that the child builds, one after the other"""
        self._builds: dict[tuple[Path, str, bool], Future[None]] = {}
        """Builds of these misses, and those of videos that cannot be built"""
        self._has_warned = False
        """True if the last build ended with an error of the cache, such as a full disk"""

    def begin(self, miss: Miss) -> None:
        """Let the child build a video, unless it has failed, or many wait. Warn once of each failure."""
        with self._lock:
            self._take_results()
            if miss.name not in self._builds and len(self._sent) < _MAX_WAITING:
                self._send(miss)

    def build(self, miss: Miss) -> None:
        """Wait until the child has built a video. Raise the error that its build ended with."""
        with self._lock:
            self._take_results()
            build = self._builds.get(miss.name) or self._send(miss)
        while not build.done():
            time.sleep(_POLL_SECONDS)
            with self._lock:
                self._take_results()
        build.result()

    def close(self) -> None:
        """End the child."""
        self._child.close()

    def _send(self, miss: Miss) -> Future[None]:
        build = self._builds.setdefault(miss.name, Future())
        try:
            self._child.begin(miss)
            self._sent.append(miss)
        except OSError as error:
            self._end(miss, Raised(cannot_write(f"no process can be started: {error}")))
        return build

    def _take_results(self) -> None:
        while self._sent and self._child.is_over():
            miss = self._sent.popleft()
            result = self._child.result()
            if not (isinstance(result, Crash) and result.is_death):
                self._end(miss, result)
                continue
            waiting = [*self._sent]
            self._sent.clear()
            if "SIGALRM" in result.message:  # the child was idle for too long, and has not begun any
                waiting.insert(0, miss)
            else:
                self._end(miss, result)
            for other in waiting:  # another child gets them
                self._send(other)

    def _end(self, miss: Miss, result: Any) -> None:
        """Note the result of a build. Warn once of an error, unless a reader waits for the build."""
        error: ChordcacheError | None = result.error if isinstance(result, Raised) else None
        if isinstance(result, (Failure, Crash)):
            error = MediaError(getattr(result, "stage", "decode"), result.cause, result.message)
        is_of_video = isinstance(error, MediaError)
        build = self._builds[miss.name] if is_of_video else self._builds.pop(miss.name)
        if error is None:
            self._has_warned = False
            build.set_result(None)
            return
        build.set_exception(error)
        if not miss.waits and not isinstance(error, LockedError) and (is_of_video or not self._has_warned):
            what = f"the build of video '{key_of(miss.record)}' failed: {error}. Its source is read."
            warnings.warn(what, stacklevel=5)
            self._has_warned = self._has_warned or not is_of_video


def build_missed(miss: Miss) -> Failure | None:
    """Build a video, and return the reason if it cannot be built.

    Raises ``LockedError`` if another process writes to the cache, or builds the video and is not waited for.
    """
    signal.alarm(0)
    os.nice(19)  # the sum is at most 19
    try:
        with locked_key(miss.cache, key_of(miss.record), waits=miss.waits):
            return _build(miss)
    finally:
        signal.alarm(_IDLE_SECONDS)  # the signal ends this process


def _build(miss: Miss) -> Failure | None:
    cache, record = miss.cache, miss.record
    sidecar = Sidecars(cache).read_or_none(key_of(record))
    broken = [file.name for file in sidecar.files if not is_intact(cache, file)] if sidecar else []
    options = BuildOptions(rebuild=frozenset(broken))
    source: Any = SimpleNamespace(header=miss.header, num_records=0)
    plan = plan_as_before(cache, Index(cache, source), options=options, trusted=miss.trusted)
    record = record.over(sidecar.about, ()) if sidecar else record
    ((task,),) = planned_files(plan, [[(0, record)]], Quarantine(cache, tool_versions()), options)
    if task.state != "missing":
        return task.failure
    check_space(cache)
    (outcome,) = build_file([task])
    return outcome if isinstance(outcome, Failure) else None


_of_processes = [Builds()]
"""Builds of the parents that this process was forked from, which are left to them, and of this process at the end"""

os.register_at_fork(after_in_child=lambda: _of_processes.append(Builds()))


def builds() -> Builds:
    """Return the builds of this process."""
    return _of_processes[-1]


atexit.register(lambda: builds().close())
