"""Memory that a worker process shares with its parent: times of the current task, and the worker's last traceback.

::

    offset  bytes  content
    0       8      time at which the current task began, 0 while the worker waits for one; like all of these a float64
    8       8      number of signs of progress
    16      8      time at which a pause began, 0 if there is none
    24      8      longest time that the task may take by default [seconds]
    32      ...    output of faulthandler

Each worker has one file in memory, which has no name. It disappears when both processes end, in whatever way they end.
"""

from __future__ import annotations

import math
import mmap
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager

from chordcache.engine.limits import BASE_SECONDS, Limits

_BEGUN, _BEATS, _PAUSED, _ALLOWED = range(4)
_HEAD_BYTES = 32
_MAX_TRACEBACK_BYTES = 1 << 20

_STANDARD = re.compile(rf"<frozen|{re.escape(os.path.dirname(os.__file__))}(?!.*-packages)")
"""Pattern of the files of Python's own library"""

_FRAME = re.compile(r'File "(.*)", line (\d+) in (.*)')


class Heartbeat:
    """Progress of a worker's task. The worker writes it, the parent looks at it from time to time.

    ``fd`` is the file that the parent made, in the worker. By default a new file is made.
    """

    def __init__(self, fd: int | None = None) -> None:
        if fd is None:
            fd = os.memfd_create("chordcache")
            os.ftruncate(fd, _HEAD_BYTES)
        self.fd = fd
        self._times = memoryview(mmap.mmap(fd, _HEAD_BYTES)).cast("d")
        self._num_beats = 0
        self._num_seen = self._seen_at = 0.0
        os.lseek(fd, _HEAD_BYTES, os.SEEK_SET)  # faulthandler will write here

    # In the worker

    def begin(self) -> None:
        """Note that a task begins."""
        self.beat()
        self._times[_ALLOWED] = BASE_SECONDS
        self._times[_BEGUN] = time.monotonic()

    def end(self) -> None:
        """Mark the worker as idle."""
        self._times[_BEGUN] = 0

    def beat(self) -> None:
        """Note that the task makes progress."""
        self._num_beats += 1
        self._times[_BEATS] = self._num_beats

    def allow(self, seconds: float) -> None:
        """Let the task take longer."""
        self._times[_ALLOWED] += seconds

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the clock inside the ``with`` block."""
        if self._times[_PAUSED] or not self._times[_BEGUN]:
            yield
            return
        started = self._times[_PAUSED] = time.monotonic()
        try:
            yield
        finally:
            self._times[_BEGUN] += time.monotonic() - started
            self.beat()  # the parent may not have looked during the pause
            self._times[_PAUSED] = 0

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Leave the time of the ``with`` block out of the task's. It makes progress at its begin and its end alone."""
        begun, started = self._times[_BEGUN], time.monotonic()
        self.beat()
        self._times[_BEGUN] = begun and math.inf
        try:
            yield
        finally:
            self._times[_BEGUN] = begun and begun + time.monotonic() - started
            self.beat()

    # In the parent

    @property
    def allowed_seconds(self) -> float:
        """[seconds] Longest time that the current task may take by default."""
        return float(self._times[_ALLOWED])

    def overdue(self, limits: Limits) -> str:
        """Return the limit that the current task has reached: "stall", "file" or "" for none."""
        begun, num_beats, paused, allowed = self._times
        now = time.monotonic()
        if num_beats != self._num_seen or not begun or paused:
            self._num_seen, self._seen_at = num_beats, now
        if not begun or paused:
            return ""
        if now - begun > limits.seconds_of_file(allowed):
            return "file"
        return "stall" if limits.stall_seconds is not None and now - self._seen_at > limits.stall_seconds else ""

    def place(self, function: str) -> str:
        """Return where the thread that runs ``function`` was: its innermost frame outside Python's own library.

        It is text such as "flow.py:88 add_frame", or "" if the worker wrote no traceback.
        """
        text = os.pread(self.fd, _MAX_TRACEBACK_BYTES, _HEAD_BYTES).decode(errors="replace")
        for thread in text.split("\n\n"):
            frames = _FRAME.findall(thread)
            if any(name == function for _, _, name in frames):
                path, line, name = next((frame for frame in frames if not _STANDARD.match(frame[0])), frames[0])
                return f"{os.path.basename(path)}:{line} {name}"
        return ""

    def close(self) -> None:
        """Close the file in this process."""
        self._times.release()
        os.close(self.fd)
