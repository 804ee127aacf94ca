"""One isolated child process: a pipe, a ``Heartbeat``, and limits. A crash or a hang costs one task, and says where.

A ``Worker`` runs tasks one after the other in a ``Child`` that is replaced when it dies. It serves the pool, the builds
of missed videos, and the rows of ``bench``.
"""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing.connection import Pipe
from pathlib import Path
from typing import Any

from chordcache.engine.heartbeat import Heartbeat
from chordcache.engine.limits import Limits
from chordcache.engine.signals import uninterruptible
from chordcache.engine.worker import (
    ONE_THREAD,
    STOP_SIGNALS,
    TRACEBACK_SIGNAL,
    Crash,
    child_environment,
    dump_task,
    load_result,
    run_task,
)
from chordcache.forks import no_fork

_LOOKS = 10
"""Number of looks at the heartbeat within the shortest limit"""

_MAX_LOOK_SECONDS = 1.0
"""[seconds] Longest time between two looks. Many children are watched at once"""

_LAST_SECONDS = 1.0
"""[seconds] Longest wait for a traceback, and for the end of a process that was killed"""

_PROGRAM = (
    "import sys; numbers = map(int, sys.argv[1:5]); sys.path[:] = sys.argv[5:]; "
    "from chordcache.engine.worker import main; main(*numbers)"
)
"""Program of a child. The user's script is not imported again, therefore it needs no ``__main__`` guard"""


_lifeline: list[int] = []
"""Both ends of a pipe. The kernel closes the second one when this process ends, see ``worker.main``"""


def _close_lifeline() -> None:
    while _lifeline:
        os.close(_lifeline.pop())


os.register_at_fork(after_in_child=_close_lifeline)

_ending: list[subprocess.Popen[bytes]] = []
"""Processes that were killed and have not ended yet. Python warns of one that nothing refers to"""


class Child:
    """A process that runs ``worker.main``. Raises ``OSError`` if it cannot be started."""

    def __init__(self, function: Callable[[Any], Any], limits: Limits, environment: Mapping[str, str]) -> None:
        self._limits = limits
        self._num_oom_kills = _num_oom_kills()
        self._ready = select.poll()
        with no_fork:
            if not _lifeline:
                _lifeline.extend(os.pipe())
            self.channel, theirs = Pipe()
            self.heartbeat = Heartbeat()
            fds = theirs.fileno(), self.heartbeat.fd, _lifeline[0]
            numbers = map(str, (os.getpid(), *fds))
            # The process inherits the mask: no signal hits it before it has its handlers
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
            try:
                self.process = subprocess.Popen(
                    [sys.executable, "-c", _PROGRAM, *numbers, *sys.path],
                    stdin=subprocess.DEVNULL,
                    pass_fds=fds,
                    env={**child_environment(), **environment},
                )
            except OSError:
                self._close_files()
                raise
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
                theirs.close()
        self._ready.register(self.channel, select.POLLIN)
        self.send(limits)
        self.send(function)

    def send(self, message: Any) -> None:
        """Send a message. If the process is dead, the end of its pipe is seen when it is read."""
        with suppress(ConnectionError):
            self.channel.send(message)

    def wait(self) -> str | None:
        """Wait until something can be received, and return None.

        Return the limit that the process has reached, or "" if it has died while a child of its own holds the pipe.
        """
        limits = filter(None, (self._limits.stall_seconds, self._limits.file_seconds))
        seconds = min([_MAX_LOOK_SECONDS, *(limit / _LOOKS for limit in limits)])
        while not self._ready.poll(1000 * seconds):
            if self.process.poll() is not None and not self.channel.poll():
                return ""
            if limit := self.heartbeat.overdue(self._limits):
                return limit
        return None

    def is_over(self) -> bool:
        """Return whether ``wait`` would return at once."""
        has_ended = bool(self._ready.poll(0)) or self.process.poll() is not None
        return has_ended or bool(self.heartbeat.overdue(self._limits))

    def place(self, function: str, *, asks: bool = False) -> str:
        """Return where ``function`` was, such as ", at flow.py:88 add_frame", or "". If ``asks``, it runs still."""
        if asks:
            self.process.send_signal(TRACEBACK_SIGNAL)
        end = time.monotonic() + _LAST_SECONDS
        while not (place := self.heartbeat.place(function)) and asks:
            if self.process.poll() is not None or time.monotonic() > end:
                break
            time.sleep(0.01)
        return place and f", at {place}"

    def kill(self) -> None:
        """Begin to end the process."""
        with suppress(ProcessLookupError):
            self.process.kill()

    def wait_for_end(self) -> None:
        """Wait until the process has ended, but not for one that hangs in the kernel: it ends later."""
        try:
            self.process.wait(_LAST_SECONDS)
        except subprocess.TimeoutExpired:
            _ending.append(self.process)
        _ending[:] = [process for process in _ending if process.poll() is None]

    @uninterruptible()
    def close(self) -> None:
        """End the process, and close its files."""
        self.kill()
        self.wait_for_end()
        self._close_files()

    @property
    def exit_name(self) -> str:
        """Text such as "SIGSEGV(-11)" or "EXIT(3)"; "" if the process runs still."""
        code = self.process.returncode
        if code is None:
            return ""
        names = {-number: number.name for number in signal.Signals}
        return f"{names.get(code, 'EXIT' if code >= 0 else 'signal')}({code})"

    @property
    def is_out_of_memory(self) -> bool:
        """True if the kernel has probably killed the process because memory ran out."""
        return self.process.returncode == -signal.SIGKILL and _num_oom_kills() > self._num_oom_kills

    def _close_files(self) -> None:
        self.channel.close()
        self.heartbeat.close()


class Worker:
    """A process that runs a function of tasks. It is started when it is needed, and replaced when it dies.

    One thread at a time calls ``run``, or ``begin`` and ``result``. Any thread may call ``kill``, even in the middle
    of a task. Linux ends the process when this process ends.
    """

    def __init__(
        self,
        function: Callable[[Any], Any],
        limits: Limits,
        *,
        environment: Mapping[str, str] = ONE_THREAD,
    ) -> None:
        self._function, self._limits, self._environment = function, limits, environment
        self._child: Child | None = None
        self._lock = threading.RLock()
        self._is_killed = False

    def run(self, task: Any) -> Any:
        """Run a task, and return its result, which may be a ``Crash``."""
        self.begin(task)
        return self.result()

    def begin(self, task: Any) -> None:
        """Send a task. ``result`` returns its result.

        Tasks that wait for the process in the pipe to it, of more than 64 KiB, may block this thread.
        """
        if self._child is not None and self._child.process.poll() is not None:  # killed while it was idle
            self._release()
        child = self._child or self._start()
        child.send(dump_task(task))

    def is_over(self) -> bool:
        """Return whether ``result`` would return at once."""
        child = self._child
        return child is None or child.is_over()

    def result(self) -> Any:
        """Wait for the result of the task that was sent first. If it is a death, later ones have none."""
        child = self._child
        assert child is not None, "a task was sent"
        limit = child.wait()
        if limit is None:
            with suppress(EOFError, OSError):
                result = load_result(child.channel.recv_bytes())
                if isinstance(result, Crash) and result.is_death:
                    self._release()
                return result
        death = self._death(child, limit or "")
        self._release()
        return death

    def kill(self) -> None:
        """Begin to end the process for good. ``run`` returns a ``Crash``."""
        with self._lock:
            self._is_killed = True
            if self._child is not None:
                self._child.kill()

    def close(self) -> None:
        """End the process, from the thread that calls ``run``."""
        self.kill()
        if self._child is not None:
            self._release()

    @uninterruptible()
    def _start(self) -> Child:
        with self._lock:
            self._child = Child(self._function, self._limits, self._environment)
            if self._is_killed:
                self._child.kill()
            return self._child

    def _death(self, child: Child, limit: str) -> Crash:
        if limit:
            place = child.place(run_task.__name__, asks=True)
            message = self._limits.overrun(limit, place, child.heartbeat.allowed_seconds)
            return Crash("timeout", message, is_death=True)
        child.wait_for_end()
        child.kill()
        child.wait_for_end()
        died = f"the worker died: {child.exit_name}"
        if child.is_out_of_memory:
            what = f"{died}, as the machine ran out of memory; run fewer at once with --jobs"
            return Crash("oom", what, is_death=True)
        if not child.exit_name:
            died = "the worker closed its pipe and cannot be killed"
        return Crash("signal", died + child.place(run_task.__name__), is_death=True)

    @uninterruptible()
    def _release(self) -> None:
        with self._lock:
            child, self._child = self._child, None
        if child is not None:
            child.close()


def _num_oom_kills() -> int:
    """Return how often the kernel has killed a process because memory ran out; 0 if this is unknown."""
    with suppress(OSError):
        counters = Path("/proc/vmstat").read_text(encoding="ascii")
        if match := re.search(r"^oom_kill (\d+)$", counters, re.MULTILINE):
            return int(match.group(1))
    return 0
