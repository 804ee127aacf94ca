"""Local worker processes: one pipe and one ``Heartbeat`` for each, so that a death costs the one task that ran.

Our own code on ``subprocess``: loky needs private fields, and does not know which task killed a worker. Pebble
5.2 starts workers that import the user's script again, one killed idle worker breaks its pool, and its workers outlive
a killed parent. CPU for each of 4,000 empty tasks, with the start: 0.19 ms here, 0.25 with pebble, 0.61 with loky.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, Pipe
from typing import Any, TypeAlias

from chordcache.engine.children import exit_name, num_oom_kills, start_python
from chordcache.engine.heartbeat import Heartbeat
from chordcache.engine.limits import Limits
from chordcache.engine.networks.processes import NetworkProcesses
from chordcache.engine.signals import uninterruptible
from chordcache.engine.worker import (
    ONE_THREAD,
    TRACEBACK_SIGNAL,
    Crash,
    Raised,
    dump_task,
    load_result,
    run_task,
)

_LOOK_SECONDS = 0.1
"""[seconds] Time between two looks at the heartbeats"""

_LAST_SECONDS = 1.0
"""[seconds] Longest wait for a worker's traceback, and for its end after its pipe is closed"""

_MAIN = "chordcache.engine.worker"
"""Module of a worker"""


@dataclass(eq=False)
class Unit:
    """Tasks that are sent together."""

    first: int
    """Number of the first task"""
    tasks: list[Any]
    attempts: int = 0
    """Number of times that the tasks were begun and did not end"""
    node: str = ""
    """Node of a cluster that ran them last"""
    avoid: frozenset[str] = frozenset()
    """Nodes that must not run them again if there are others"""
    cannot_read: frozenset[str] = frozenset()
    """Nodes among them where the disk of the sources failed. The others come first"""

    def split(self) -> list[Unit]:
        """Return units of the same tasks, one task in each."""
        return [replace(self, first=self.first + i, tasks=[task]) for i, task in enumerate(self.tasks)]


class Death(Crash):
    """Crash that ended the worker."""


NOT_RUN = object()
"""Result of the other tasks of a unit whose worker died"""

Answer: TypeAlias = tuple[Unit, list[Any]]


@dataclass(eq=False)
class _Worker:
    process: subprocess.Popen[bytes]
    channel: Connection
    heartbeat: Heartbeat
    num_oom_kills: int
    """Number for the whole machine, when the worker was started"""
    unit: Unit | None = None
    """Unit that it runs"""

    def send(self, message: Any) -> None:
        """Send a message. If the worker is dead, the end of its pipe will be seen when it is read."""
        with suppress(ConnectionError):
            self.channel.send(message)

    def kill(self) -> None:
        self.process.kill()
        with suppress(subprocess.TimeoutExpired):  # a worker that hangs in the kernel ends later
            self.process.wait(_LAST_SECONDS)

    def close(self) -> None:
        self.channel.close()
        self.heartbeat.close()

    def write_traceback(self) -> None:
        """Let the worker write where it is, if it still can."""
        self.process.send_signal(TRACEBACK_SIGNAL)
        end = time.monotonic() + _LAST_SECONDS
        while not self.heartbeat.place(run_task.__name__) and time.monotonic() < end:
            time.sleep(0.01)


class Workers:
    """Processes that run a function. They are started when they are needed, and replaced when they die.

    Parameters
    ----------
    function : callable
        Importable function of one task.
    num_workers : int
        Largest number of processes.
    limits : Limits
        Limits of a task.
    networks : NetworkProcesses, optional
        Networks that the tasks use. They are not ended with the workers.
    """

    def __init__(
        self,
        function: Callable[[Any], Any],
        num_workers: int,
        limits: Limits,
        networks: NetworkProcesses | None = None,
    ) -> None:
        self.width = 2 * num_workers
        """Number of units that keeps all workers busy: as many again wait here for a worker that becomes free"""
        self._function = function
        self._num_workers = num_workers
        self._limits = limits
        self._networks = networks or NetworkProcesses((), limits)
        self._workers: list[_Worker] = []
        self._waiting: deque[Unit] = deque()
        self._selector = selectors.DefaultSelector()
        self._looked_at = time.monotonic()

    def submit(self, unit: Unit) -> None:
        """Run a unit as soon as a worker is free."""
        self._waiting.append(unit)
        self._dispatch()

    def wait(self) -> list[Answer]:
        """Wait for units to end, and return them with their results. Raise the error of a task that ends the run."""
        answers: list[Answer] = []
        while not answers:
            for key, _ in self._selector.select(_LOOK_SECONDS):
                answers += self._receive(key.data)
            if time.monotonic() - self._looked_at >= _LOOK_SECONDS:
                self._networks.look()
                answers += self._look()
            self._dispatch()
        return answers

    def kill(self) -> None:
        """End the processes that run now. Their units end with a ``Death``. Another thread may be in ``wait``."""
        for worker in self._workers.copy():
            worker.process.kill()

    @uninterruptible()
    def close(self) -> None:
        """End the workers, even in the middle of a task."""
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.kill()
            worker.close()
        self._workers.clear()
        self._selector.close()

    def _dispatch(self) -> None:
        idle = [worker for worker in self._workers if worker.unit is None]
        while self._waiting and (idle or len(self._workers) < self._num_workers):
            worker = idle.pop() if idle else self._start()
            worker.unit = self._waiting.popleft()
            worker.send((worker.unit.first, [dump_task(task) for task in worker.unit.tasks]))

    @uninterruptible()
    def _start(self) -> _Worker:
        addresses = self._networks.addresses()
        channel, theirs = Pipe()
        heartbeat = Heartbeat()
        fds = (theirs.fileno(), heartbeat.fd)
        try:
            process = start_python(_MAIN, os.getpid(), *fds, fds=fds, environment=ONE_THREAD)
        except OSError:
            channel.close()
            heartbeat.close()
            raise
        finally:
            theirs.close()
        worker = _Worker(process, channel, heartbeat, num_oom_kills())
        self._workers.append(worker)
        self._selector.register(channel, selectors.EVENT_READ, worker)
        worker.send(self._limits)
        worker.send(addresses)
        worker.send(self._function)
        return worker

    def _receive(self, worker: _Worker) -> list[Answer]:
        unit = worker.unit or Unit(0, [None])  # an idle worker sends nothing but the end of its pipe
        try:
            results = [load_result(worker.channel.recv_bytes()) for _ in unit.tasks]
        except (EOFError, OSError):
            return self._bury(worker)
        for result in results:
            if isinstance(result, Raised):
                raise result.error
        worker.unit = None
        return [(unit, results)]

    def _look(self) -> list[Answer]:
        """Bury workers that died without closing their pipe, since a child of theirs has it; kill those that hang."""
        answers = []
        for worker in self._workers.copy():
            if worker.process.poll() is not None and not worker.channel.poll():
                answers += self._bury(worker)
            elif limit := worker.heartbeat.overdue(self._limits):
                worker.write_traceback()
                answers += self._bury(worker, limit)
        self._looked_at = time.monotonic()
        return answers

    @uninterruptible()
    def _bury(self, worker: _Worker, limit: str = "") -> list[Answer]:
        """Remove a worker that is dead, or that has reached a limit."""
        if not limit:
            with suppress(subprocess.TimeoutExpired):
                worker.process.wait(_LAST_SECONDS)
        worker.kill()
        task, death = worker.heartbeat.task, self._death(worker, limit)
        self._selector.unregister(worker.channel)
        self._workers.remove(worker)
        worker.close()
        if worker.unit is None:
            return []
        results = [NOT_RUN] * len(worker.unit.tasks)
        index = task - worker.unit.first
        results[index if 0 <= index < len(results) else 0] = death  # it may have died before it began the first
        return [(worker.unit, results)]

    def _death(self, worker: _Worker, limit: str) -> Death:
        place = worker.heartbeat.place(run_task.__name__)
        place = place and f", at {place}"
        if limit:
            return Death("timeout", self._limits.overrun(limit, place))
        code = worker.process.returncode
        if code is None:
            return Death("signal", f"the worker closed its pipe and cannot be killed{place}")
        died = f"the worker died: {exit_name(code)}"
        if code == -signal.SIGKILL and num_oom_kills() > worker.num_oom_kills:
            return Death("oom", f"{died}, as the machine ran out of memory; run fewer at once with --jobs")
        return Death("signal", f"{died}{place}")
