"""Limits of a task's time and memory. A worker process sets them for itself, so that it cannot hang.

A timer of the operating system would interrupt Python code only between two instructions. A decoder that hangs never
reaches the next one. faulthandler's thread does not need the interpreter. It writes a traceback of the worker, and ends
the worker.
"""

from __future__ import annotations

import faulthandler
import math
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from chordcache import progress
from chordcache.engine.crash_log import Slot
from chordcache.errors import UsageError

MIN_MEMORY_BYTES = 256 << 20
"""Smallest memory limit. A worker takes 90 MiB before it opens a file, and 1 GiB at pictures of 8192 x 4320 pixels."""

_MIN_SECONDS = 0.1
_MAX_SECONDS = 1e8
_MAX_MEMORY_BYTES = 1 << 60
_MAX_RETRIES = 1000
"""Largest limits: three years, one exbibyte and a thousand retries. They are as good as no limit, and no system call
fails with them."""

_SLACK_SECONDS = 0.25
"""Time between two settings of the alarm, which is also its largest delay. Setting it takes 70 us, while reading the
clock takes almost no time."""


def _check(name: str, value: float | None, low: float, high: float, unit: str = "") -> None:
    if value is not None and not low <= value <= high:
        raise UsageError(f"{name}: got {value:g}{unit}, expected {low:g} to {high:g}{unit}")


@dataclass(frozen=True)
class Limits:
    """Limits of one input, after which it is given up.

    Time is limited where there is a ``/proc`` and files may be larger than a few MiB (``ulimit -f``).

    Raises
    ------
    UsageError
        If a limit is out of bounds.
    """

    stall_seconds: float | None = 60.0
    """[seconds] Longest time without a new packet or frame, None for no limit"""
    file_seconds: float | None = None
    """[seconds] Longest time in all, without the time to publish its results; None for no limit"""
    memory_bytes: int | None = 2 << 30
    """[bytes] Largest size of a worker's own memory, without mapped files; None for no limit"""
    retries: int = 1
    """Number of attempts after the first one, if memory, time or the disk of the sources was the problem"""

    def __post_init__(self) -> None:
        _check("stall_seconds", self.stall_seconds, _MIN_SECONDS, _MAX_SECONDS)
        _check("file_seconds", self.file_seconds, _MIN_SECONDS, _MAX_SECONDS)
        memory_mib = None if self.memory_bytes is None else self.memory_bytes / 2**20
        _check("memory_bytes", memory_mib, MIN_MEMORY_BYTES >> 20, _MAX_MEMORY_BYTES >> 20, " MiB")
        _check("retries", self.retries, 0, _MAX_RETRIES)

    def overrun(self, limit: str, place: str) -> str:
        """Return the message for a task that reached the limit "stall" or "file"."""
        if limit == "stall":
            return f"no progress for {self.stall_seconds:g} s{place}{_more('--stall-timeout')}"
        return f"not done after {self.file_seconds:g} s{place}{_more('--file-timeout')}"

    def out_of_memory(self, message: str) -> str:
        """Return the message for a task that had too little memory."""
        return message if self.memory_bytes is None else message + _more("--file-memory")


def _more(option: str) -> str:
    return f"; allow more with {option}, and build with --retry-quarantined"


NO_LIMITS = Limits(stall_seconds=None, memory_bytes=None, retries=0)


class _Watch:
    """Alarm of a worker process. It goes off unless it is set again in time."""

    def __init__(self, limits: Limits, slot: Slot) -> None:
        self._slot = slot
        self._stall_seconds = limits.stall_seconds or math.inf
        self._file_seconds = limits.file_seconds or math.inf
        self._slack_seconds = min(_SLACK_SECONDS, self._stall_seconds / 4, self._file_seconds / 4)
        self._deadline = math.inf
        """Time by which the current task must be done"""
        self._set_at: float | None = None
        """Time at which the alarm was set; None while it is off"""
        self._limit = ""

    def begin(self, task: int) -> None:
        now = time.monotonic()
        self._slot.begin(task)
        self._deadline = now + self._file_seconds
        # A task that ended before its deadline has left the alarm set to that deadline
        if self._set_at is None or self._limit == "file" or now - self._set_at >= self._slack_seconds:
            self._set(now)

    def beat(self) -> None:
        if self._set_at is not None:
            now = time.monotonic()
            if now - self._set_at >= self._slack_seconds and now < self._deadline:
                self._set(now)

    def stop(self) -> None:
        faulthandler.cancel_dump_traceback_later()
        self._set_at = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        if self._set_at is None:
            yield
            return
        started = time.monotonic()
        self.stop()
        try:
            yield
        finally:
            now = time.monotonic()
            self._deadline += now - started
            self._set(now)

    def _set(self, now: float) -> None:
        left = self._deadline - now
        limit, seconds = ("file", max(left, 0)) if left < self._stall_seconds else ("stall", self._stall_seconds)
        if seconds == math.inf:
            return
        if limit != self._limit:
            self._slot.expect(limit)
            self._limit = limit
        faulthandler.dump_traceback_later(seconds + self._slack_seconds, exit=True, file=self._slot.fd)
        self._set_at = now


_watch: _Watch | None = None
"""Alarm of this process, if it is a worker. A process has only one."""


def start(limits: Limits, slot: Slot | None) -> None:
    """Make this process a worker under limits, until it ends.

    ``slot`` takes its last messages. Without a slot, time is not limited.
    """
    global _watch
    if limits.memory_bytes is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        soft = limits.memory_bytes if hard == resource.RLIM_INFINITY else min(limits.memory_bytes, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
    if slot is not None:
        faulthandler.enable(slot.fd)
        _watch = _Watch(limits, slot)
        progress.report_to(_watch)


def begin(task: int) -> None:
    """Note that a task begins: set the alarm, and start to measure its time."""
    if _watch is not None:
        _watch.begin(task)


def stop() -> None:
    """Note that there is nothing to do for now: turn the alarm off."""
    if _watch is not None:
        _watch.stop()
