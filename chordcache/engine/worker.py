"""Worker side of the engine: a process that runs the tasks that it is sent. It does not depend on video either."""

from __future__ import annotations

import faulthandler
import fcntl
import os
import pickle
import re
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from chordcache import progress
from chordcache.engine.heartbeat import Heartbeat
from chordcache.engine.limits import Limits, seconds_for
from chordcache.errors import ChordcacheError, describe

STOP_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)

TRACEBACK_SIGNAL = signal.SIGRTMIN
"""Signal at which a worker writes where each of its threads is, even while native code holds the interpreter"""

ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL", "BLIS", "NUMBA", "NUMEXPR")}
"""Environment of a worker. Each uses one thread, since the processes run in parallel."""

OF_NETWORKS = {
    **{name: number for name, number in ONE_THREAD.items() if name not in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")},
    "OMP_WAIT_POLICY": "PASSIVE",
}
"""Environment of the only worker of a device, whose networks use all processors. Threads that wait for each other
leave them to the decoder"""


def child_environment() -> dict[str, str]:
    """Return this process's environment, without the working folder as a place of Python modules or of libraries.

    ``python -m`` and ``-c`` look for modules there, and the dynamic linker for libraries if LD_LIBRARY_PATH has an
    empty element. OpenCV's import leaves one. The default pool of pyarrow keeps 1 GiB, which the memory limit counts.
    """
    variables = {"ARROW_DEFAULT_MEMORY_POOL": "system", **os.environ, "PYTHONSAFEPATH": "1"}
    if "LD_LIBRARY_PATH" in variables:
        variables["LD_LIBRARY_PATH"] = ":".join(filter(None, re.split("[:;]", variables["LD_LIBRARY_PATH"])))
    return variables


@dataclass(frozen=True)
class Crash:
    """Result of a task that did not return."""

    cause: str
    """"timeout", "oom" (out of memory), "signal" (its worker died), "extractor" (a ``DeviceLostError``) or "bug" (it
    raised, or cannot be sent)"""
    message: str
    attempts: int = 1
    is_death: bool = False
    """True if the process ended with the task"""


class DeviceLostError(Exception):
    """An error after which this process cannot use its GPU. The task is tried again in another process."""


@dataclass(frozen=True)
class Raised:
    """Result of a task that raised an error which ends the run."""

    error: ChordcacheError


def main(parent: int, channel_fd: int, heartbeat_fd: int, lifeline_fd: int) -> None:
    """Run tasks until the parent ends this process, or ends itself. It holds the writing end of ``lifeline_fd`` open.

    The messages are the limits, the function, and then pickled tasks. The answer to each is its pickled result.
    """
    channel, heartbeat = prepare(channel_fd, heartbeat_fd)
    # The kernel kills this process when no other one holds the writing end of the pipe open any more
    fd = os.open(f"/proc/self/fd/{lifeline_fd}", os.O_RDONLY | os.O_NONBLOCK)  # an own one: others share the inherited
    fcntl.fcntl(fd, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(fd, fcntl.F_SETFL, os.O_NONBLOCK | os.O_ASYNC)
    os.close(lifeline_fd)
    if os.getppid() != parent:
        os._exit(1)
    limits, function = channel.recv(), channel.recv()
    progress.report_to(_Alarm(heartbeat, limits))
    with suppress(EOFError, ConnectionError):
        while True:
            task = channel.recv()
            heartbeat.begin()
            result = run_task(function, task)
            heartbeat.end()
            channel.send_bytes(result)


def prepare(channel_fd: int, heartbeat_fd: int) -> tuple[Connection, Heartbeat]:
    """Make this process a child, and return its pipe and heartbeat.

    The parent handles Ctrl-C. Printed text is not part of a result.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the others stay as inherited: under nohup, SIGHUP stays ignored
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    with suppress(OSError):  # standard error may be closed
        os.dup2(2, 1)
    sys.stdout = sys.stderr  # unbuffered: text in the buffer of stdout would be lost if the worker is killed
    for fd in (channel_fd, heartbeat_fd):
        os.set_inheritable(fd, False)
    faulthandler.enable(heartbeat_fd)
    faulthandler.register(TRACEBACK_SIGNAL, heartbeat_fd)
    return Connection(channel_fd), Heartbeat(heartbeat_fd)


class _Alarm:
    """The clock and the memory limit of this process, as ``progress`` needs them."""

    def __init__(self, heartbeat: Heartbeat, limits: Limits) -> None:
        self.beat = heartbeat.beat
        self.paused = heartbeat.paused
        self._heartbeat = heartbeat
        self._memory_bytes = limits.memory_bytes
        self._limit_memory(limits.memory_bytes)

    def expect(self, num_bytes: int | None, seconds: float, num_pixels: int) -> None:
        self._heartbeat.allow(seconds_for(num_bytes, seconds, num_pixels))

    @contextmanager
    def setting_up(self) -> Iterator[None]:
        with self._any_memory(), self.paused():
            yield

    @contextmanager
    def computing(self) -> Iterator[None]:
        with self._any_memory(), self._heartbeat.computing():
            yield

    def _limit_memory(self, num_bytes: int | None) -> None:
        if num_bytes is not None:
            _, hard = resource.getrlimit(resource.RLIMIT_DATA)
            soft = num_bytes if hard == resource.RLIM_INFINITY else min(num_bytes, hard)
            resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))

    @contextmanager
    def _any_memory(self) -> Iterator[None]:
        """Lift the memory limit. Afterwards, the task may take as much more as before, and never more than its limit.

        Without the second rule, the limit would grow with each batch of a network by the size of its outputs.
        """
        if self._memory_bytes is None:
            yield
            return
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        before = _data_bytes()
        resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
        try:
            yield
        finally:
            after = _data_bytes()
            self._limit_memory(min(soft + max(0, after - before), after + self._memory_bytes))


def _data_bytes() -> int:
    """Return the memory of this process that its limit counts."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmData:")[2].split(None, 1)[0]) << 10


def run_task(function: Callable[[Any], Any], data: bytes) -> bytes:
    """Run one pickled task and return its pickled result; an exception that it raises becomes a ``Crash``."""
    step = "the task cannot be sent: "
    is_sending = False
    crash: Crash
    try:
        task = pickle.loads(data)
        step = ""
        try:
            result = task if isinstance(task, Crash) else function(task)
        except ChordcacheError as error:
            result = Raised(error)
        step, is_sending = "its result cannot be sent: ", True
        return pickle.dumps(result, pickle.HIGHEST_PROTOCOL)
    except DeviceLostError as error:
        crash = Crash("extractor", str(error), is_death=True)
    except MemoryError as error:
        what = getattr(error, "strerror", None) or describe(error).partition(": ")[2]
        crash = Crash("oom", "out of memory" + (" when its result was sent" if is_sending else what and f": {what}"))
    except BaseException as error:  # item boundary
        crash = Crash("bug", step + describe(error))
    return pickle.dumps(crash)


def dump_task(task: Any) -> bytes:
    """Pickle a task. If that fails, return its pickled result instead."""
    try:
        return pickle.dumps(task, pickle.HIGHEST_PROTOCOL)
    except ChordcacheError:  # a signal to stop
        raise
    except Exception as error:  # item boundary
        return pickle.dumps(Crash("bug", f"the task cannot be sent: {describe(error)}"))


def load_result(data: bytes) -> Any:
    """Return the result that ``run_task`` pickled."""
    try:
        return pickle.loads(data)
    except ChordcacheError:  # a signal to stop
        raise
    except Exception as error:  # item boundary
        return Crash("bug", f"its result cannot be sent: {describe(error)}")
