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
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from chordcache.building.build_options import BuildOptions
from chordcache.building.build_task import planned_files
from chordcache.building.file_build import build_file
from chordcache.building.planning import plan_as_before
from chordcache.engine.child import Worker
from chordcache.engine.crashes import Death
from chordcache.engine.limits import Limits
from chordcache.engine.worker import Raised
from chordcache.errors import ChordcacheError, LockedError, MediaError, cannot_write, printable
from chordcache.index.header import IndexHeader
from chordcache.index.index_files import Index, Source
from chordcache.media.versions import tool_versions
from chordcache.records import VideoRecord
from chordcache.storage import feature_files
from chordcache.storage.atomic import check_space
from chordcache.storage.find_sidecars import Sidecars
from chordcache.storage.layout import key_of
from chordcache.storage.lock import locked_key
from chordcache.storage.quarantine import Failure, Quarantine

_IDLE_SECONDS = 60
"""[seconds] Time without a miss after which the child ends. The next miss starts another one"""

_MAX_BYTES = 32 << 10
"""[bytes] Size of misses that wait in the pipe to the child, above which others are left out until their next read.
A write to the pipe then does not wait for the child"""

_POLL_SECONDS = 0.02

_PAUSE_SECONDS = 10.0
"""[seconds] Pause of background builds after an error of the cache, such as a full disk"""


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
    def name(self) -> tuple[Path, str]:
        """Cache and key."""
        return self.cache, key_of(self.record)


class Builds:
    """The child of this process. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child = Worker(build_missed, Limits(), ends_with_process=True)
        self._sent: deque[tuple[Miss, int]] = deque()
        """Misses that the child builds, one after the other, and the size of each [bytes]"""
        self._errors: dict[tuple[Path, str], ChordcacheError] = {}
        """Error of each video whose build failed"""
        self._resume_seconds = 0.0
        self._has_warned = False

    def begin(self, miss: Miss) -> None:
        """Let the child build a video, unless it has failed, or many wait. Warn once of each failure."""
        with self._lock:
            self._take_results()
            is_ready = time.monotonic() >= self._resume_seconds and sum(size for _, size in self._sent) < _MAX_BYTES
            if is_ready and miss.name not in self._errors and not self._is_sent(miss):
                try:
                    self._send(miss)
                except OSError as error:
                    self._pause(miss, cannot_write(f"no process can be started: {error}"))

    def build(self, miss: Miss) -> None:
        """Wait until the child has built a video. Raise the error that its build ended with."""
        has_sent = False
        while True:
            with self._lock:
                self._take_results()
                if not self._is_sent(miss):
                    if error := self._errors.get(miss.name):
                        if not isinstance(error, MediaError):  # it may pass
                            del self._errors[miss.name]
                        raise error
                    if has_sent:
                        return
                    self._send(miss)
                    has_sent = True
            time.sleep(_POLL_SECONDS)

    def close(self) -> None:
        """End the child."""
        self._child.close()

    def _is_sent(self, miss: Miss) -> bool:
        return any(sent.name == miss.name for sent, _ in self._sent)

    def _send(self, miss: Miss) -> None:
        self._sent.append((miss, self._child.begin(0, [miss])))

    def _take_results(self) -> None:
        while self._sent and self._child.is_over():
            miss, _ = self._sent.popleft()
            (result,) = self._child.results(0, 1)
            if isinstance(result, Death):  # another child gets the misses that the dead one has not begun
                rest = [sent for sent, _ in self._sent]
                self._sent.clear()
                if "SIGALRM" in result.message:  # it was idle for too long
                    rest, result = [miss, *rest], None
                for sent in rest:
                    self._send(sent)
            self._note(miss, result)

    def _note(self, miss: Miss, result: Any) -> None:
        if result is None:
            self._has_warned = False
        elif not isinstance(result, Raised):
            stage = result.stage if isinstance(result, Failure) else "decode"
            self._errors[miss.name] = MediaError(stage, result.cause, result.message)
            if not miss.waits:
                what = f"the build of video '{miss.name[1]}' failed: {result.message}. Its source is read."
                warnings.warn(what, stacklevel=5)
        elif miss.waits:
            self._errors[miss.name] = result.error
        elif not isinstance(result.error, LockedError):
            self._pause(miss, result.error)

    def _pause(self, miss: Miss, error: ChordcacheError) -> None:
        self._resume_seconds = time.monotonic() + _PAUSE_SECONDS
        if not self._has_warned:
            what = f"background builds of cache '{printable(miss.cache)}' have stopped for now: {error}"
            warnings.warn(what, stacklevel=6)
        self._has_warned = True


_builds: list[Builds] = []
"""The builds of this process, if there are any"""

_of_parents: list[Builds] = []
"""In a forked process, those of its parent, which are neither used nor ended there"""


def builds() -> Builds:
    """Return the builds of this process."""
    if not _builds:
        _builds.append(Builds())
    return _builds[0]


def _leave_to_parent() -> None:
    _of_parents.extend(_builds)
    _builds.clear()


def _end_child() -> None:
    for own in _builds:
        own.close()


os.register_at_fork(after_in_child=_leave_to_parent)
atexit.register(_end_child)


# In the child


def build_missed(miss: Miss) -> Failure | None:
    """Build a video, and return the reason if it cannot be built.

    Raises ``LockedError`` if another process writes to the cache, or builds the video and is not waited for.
    """
    signal.alarm(0)
    os.nice(19)  # the sum is at most 19
    try:
        cache, key = miss.name
        with locked_key(cache, key, waits=miss.waits):
            return _build(cache, key, miss)
    finally:
        signal.alarm(_IDLE_SECONDS)  # the signal ends this process


def _build(cache: Path, key: str, miss: Miss) -> Failure | None:
    sidecar = Sidecars(cache).read_or_none(key)
    record = miss.record if sidecar is None else miss.record.over(sidecar.about, ())
    options = BuildOptions(rebuild=frozenset(broken_files(cache, key)))
    index = Index(cache, cast(Source, _NoRecords(miss.header)))
    plan = plan_as_before(cache, index, options=options, trusted=miss.trusted)
    ((task,),) = planned_files(plan, [[(0, record)]], Quarantine(cache, tool_versions()), options)
    if task.state != "missing":
        return task.failure
    check_space(cache)
    (outcome,) = build_file([task])
    return outcome if isinstance(outcome, Failure) else None


@dataclass(frozen=True)
class _NoRecords:
    header: IndexHeader
    num_records: int = 0


def broken_files(cache: Path, key: str) -> Iterator[str]:
    """Yield the artefacts of a video that are not as written."""
    sidecar = Sidecars(cache).read_or_none(key)
    for file in sidecar.files if sidecar else ():
        if not feature_files.is_intact(cache, file):
            yield file.name
