"""The part of a cluster's engine that runs on its nodes: each task goes to a local worker process that stays.

A task that crashes its worker, hangs or needs too much memory ends that local worker, not the process of Dask or Ray.
So the cause and the place of a crash are known, and no other task is lost.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from chordcache.engine.limits import NO_LIMITS, Limits
from chordcache.engine.needs import NO_NEEDS, Needs
from chordcache.engine.networks.processes import NetworkProcesses
from chordcache.engine.processes import Unit, Workers
from chordcache.engine.worker import Crash
from chordcache.errors import UsageError


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


class _Residents:
    """The worker processes of this node for one run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._run = ""
        self._idle: list[Workers] = []
        self._busy: list[Workers] = []
        self._unfit: str | None = None
        self._networks = NetworkProcesses((), NO_LIMITS)
        # A worker ends with the thread that started it. The threads of Dask come and go
        self._starter = ThreadPoolExecutor(1, "chordcache-starter")

    def run(self, job: Job, first: int, tasks: list[Any]) -> list[Any] | Unfit:
        with self._lock:
            if job.run != self._run:
                self._end()
                self._run, self._unfit = job.run, self._checked(job)
                self._networks = NetworkProcesses(job.needs.networks, job.limits)
            if self._unfit is not None:
                return Unfit(self._unfit)
            workers = self._idle.pop() if self._idle else Workers(job.function, 1, job.limits, self._networks)
            self._busy.append(workers)
        stays = False
        try:
            self._starter.submit(workers.submit, Unit(first, tasks)).result()
            ((_, results),) = workers.wait()
            stays = True
        finally:
            with self._lock:
                self._busy.remove(workers)
                stays = stays and job.run == self._run
                if stays:
                    self._idle.append(workers)
            if not stays:
                workers.close()
        return results

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

    def end(self, run: str | None = None) -> None:
        """End the workers of a run, by default of any run, even in the middle of a task."""
        with self._lock:
            if run in (None, self._run):
                self._end()
                self._run, self._unfit = "", None

    def _end(self) -> None:
        for workers in self._busy:
            workers.kill()  # the thread that waits for an answer sees the end of the process
        for workers in self._idle:
            workers.close()
        self._idle.clear()
        self._networks.close()


_residents = _Residents()
atexit.register(_residents.end)


def run_here(job: Job, first: int, tasks: list[Any]) -> list[Any] | Unfit:
    """Run tasks in a worker process of this node, and return their results. It is what Dask and Ray call."""
    return _residents.run(job, first, tasks)


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
