"""The part of a cluster's engine that runs on its nodes: each task goes to a local worker process that stays.

A task that crashes its worker, hangs or needs too much memory ends that local worker, not the process of Dask or Ray.
So the cause and the place of a crash are known, and no other task is lost.
"""

from __future__ import annotations

import atexit
import pickle
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from chordcache.engine.limits import NO_LIMITS, Limits
from chordcache.engine.needs import NO_NEEDS, Needs
from chordcache.engine.networks.processes import NetworkProcesses
from chordcache.engine.processes import Unit, Workers
from chordcache.engine.worker import Crash
from chordcache.errors import ChordcacheError, UsageError

_IDLE_SECONDS = 60.0
"""Time after the last unit of a run, after which another run that begins ends its workers, [seconds]"""


@dataclass(frozen=True)
class Job:
    """The facts of a run that each of its units carries."""

    run: str
    """Name of the run, which no other run has"""
    function: Callable[[Any], Any]
    limits: Limits
    needs: Needs = NO_NEEDS


@dataclass(frozen=True)
class Unfit:
    """Answer of a node that cannot work for a run."""

    reason: str


class _Run:
    """The worker processes of this node for one run."""

    def __init__(self, job: Job, unfit: str | None) -> None:
        self.unfit = unfit
        """Reason why this node cannot work for the run, or None"""
        self.networks = NetworkProcesses(job.needs.networks, job.limits)
        self.idle: list[Workers] = []
        self.busy: list[Workers] = []
        self.used_at = time.monotonic()
        """[seconds] Time of the monotonic clock when the last unit ended"""

    @property
    def is_left(self) -> bool:
        """True if the driver has sent nothing for a while. It may have been killed."""
        return not self.busy and time.monotonic() - self.used_at > _IDLE_SECONDS

    def end(self) -> None:
        """End the workers, even in the middle of a task."""
        for workers in self.busy:
            workers.kill()  # the thread that waits for an answer sees the end of the process
        for workers in self.idle:
            workers.close()
        self.networks.close()


class _Residents:
    """The worker processes of this node. Several drivers may use a cluster at once, so each run has its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: dict[str, _Run] = {}
        # A worker ends with the thread that started it. The threads of Dask come and go
        self._starter = ThreadPoolExecutor(1, "chordcache-starter")

    def run(self, job: Job, first: int, tasks: list[Any]) -> list[Any] | Unfit:
        with self._lock:
            run = self._runs.get(job.run) or self._begin(job)
            if run.unfit is not None:
                return Unfit(run.unfit)
            workers = run.idle.pop() if run.idle else Workers(job.function, 1, job.limits, run.networks)
            run.busy.append(workers)
        stays = False
        try:
            self._starter.submit(workers.submit, Unit(first, tasks)).result()
            ((_, results),) = workers.wait()
            stays = True
        except ChordcacheError as error:
            if error is run.networks.failure:  # a fault of this node
                return Unfit(str(error))
            raise
        finally:
            with self._lock:
                run.busy.remove(workers)
                run.used_at = time.monotonic()
                stays = stays and self._runs.get(job.run) is run
                if stays:
                    run.idle.append(workers)
            if not stays:
                workers.close()
        return results

    def _begin(self, job: Job) -> _Run:
        for name in [name for name, run in self._runs.items() if run.is_left]:
            self._runs.pop(name).end()
        run = self._runs[job.run] = _Run(job, self._checked(job))
        return run

    def _checked(self, job: Job) -> str | None:
        """Run the check of a run in a worker of its own. Return the reason why this node cannot work, or None."""
        if job.needs == NO_NEEDS:
            return None
        workers = Workers(_problem_here, 1, NO_LIMITS)
        try:
            self._starter.submit(workers.submit, Unit(0, [job.needs])).result()
            ((_, (found,)),) = workers.wait()
        finally:
            workers.close()
        if isinstance(found, Crash):
            return found.message
        return None if found is None else str(found)

    def end(self, name: str | None = None) -> None:
        """End the workers of a run, by default of all runs."""
        with self._lock:
            for each in [name] if name else list(self._runs):
                if (run := self._runs.pop(each, None)) is not None:
                    run.end()


_residents = _Residents()
atexit.register(_residents.end)


def run_here(job: Job, first: int, tasks: list[Any]) -> list[Any] | Unfit:
    """Run tasks in a worker process of this node, and return their results."""
    return _residents.run(job, first, tasks)


@dataclass(frozen=True)
class _Call:
    """A call of ``run_here``, which is made when it is loaded."""

    arguments: tuple[Job, int, list[Any]]

    def __reduce__(self) -> tuple[Any, ...]:
        return run_here, self.arguments


def packed_call(job: Job, unit: Unit) -> bytes:
    """Return a call of ``run_here`` as bytes. A node makes the call, and returns its result, with ``pickle.loads``.

    If chordcache is missing there, this fails with one of ``LOAD_ERRORS``. If the arguments were those of the call that
    Dask and Ray send, they would fail to load them before the call, and Dask would end its worker.
    """
    return pickle.dumps(_Call((job, unit.first, unit.tasks)))


LOAD_ERRORS = (ImportError, AttributeError)
"""Errors of ``pickle.loads`` on a node whose chordcache is missing, or another one"""


def unfit_to_load(error: Exception) -> Unfit:
    """Return the answer of a node that raised one of ``LOAD_ERRORS``."""
    return Unfit(f"chordcache cannot be loaded there ({error})")


def end_here(run: str) -> None:
    """End the workers that a run has on this node."""
    _residents.end(run)


def _problem_here(needs: Needs) -> str | None:
    """Return the reason why this node does not have what a run needs, or None."""
    try:
        for network in needs.networks:
            network.devices()
    except UsageError as error:
        return str(error)
    return needs.check and needs.check()
