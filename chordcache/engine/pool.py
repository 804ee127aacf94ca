"""Run many independent tasks on worker processes. This module does not depend on video.

A task can kill its worker (a segmentation fault, the OOM killer). The tasks that were running at that time are then run
again, each alone. The one whose worker dies while it runs alone is reported.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar

from joblib.externals.loky import ProcessPoolExecutor
from joblib.externals.loky.process_executor import TerminatedWorkerError
from tqdm import tqdm

from chordcache.engine.crash_log import CrashLog, Note
from chordcache.engine.limits import NO_LIMITS, Limits
from chordcache.engine.signals import uninterruptible
from chordcache.engine.worker import ONE_THREAD, SAFE_PATH, STOP_SIGNALS, describe, run_task, run_unit, start_worker
from chordcache.engine.worker import Crash as Crash  # exported, since callers get it as a result
from chordcache.errors import ChordcacheError, WorkersDiedError

Task = TypeVar("Task")
Result = TypeVar("Result")

MAX_DEATHS_IN_A_ROW = 5
"""Number of workers that die in a row, with no task finished between, until the environment is considered at fault"""

_FEEDER_PATIENCE_SECONDS = 1

_WAIT_SECONDS = 0.1
"""[seconds] Longest delay of a signal to stop while nothing else happens"""

_MAY_PASS = ("oom", "timeout")
"""Causes that may be absent at another attempt, since the machine was busy"""


@dataclass
class _Unit(Generic[Task]):
    """Tasks that are sent together."""

    first: int
    tasks: list[Task]
    attempts: int = 0
    """Number of times that the tasks were begun and did not end"""

    def split(self) -> list[_Unit[Task]]:
        """Return units of the same tasks, one task in each."""
        return [_Unit(self.first + i, [task], self.attempts) for i, task in enumerate(self.tasks)]


_Outcome: TypeAlias = tuple[int, Any, Any]
"""Number of a task, the task, and its result or Crash"""

Retry: TypeAlias = Callable[[Any, Any], Any]


def default_jobs() -> int:
    """Return one worker for each processor that this process may use."""
    return len(os.sched_getaffinity(0))


def progress_bar(total: int | None, unit: str, *, shown: bool) -> tqdm[Any]:
    """Return a progress bar on standard error, hidden unless ``shown`` is True and standard error is a terminal."""
    disable = not (shown and sys.stderr.isatty())
    return tqdm(total=total, unit=unit, file=sys.stderr, disable=disable, smoothing=0.05)


def say(message: str, *, shown: bool) -> None:
    """Print a line on standard error, above a progress bar, if ``shown`` is True."""
    if shown:
        tqdm.write(f"chordcache: {message}", file=sys.stderr)


def _never(_task: Any, _result: Any) -> None:
    """Keep the result, and do not retry."""


def run(
    function: Callable[[Task], Result],
    tasks: Iterable[Task],
    *,
    jobs: int,
    chunk_size: int = 1,
    ordered: bool = False,
    limits: Limits = NO_LIMITS,
    retry: Callable[[Task, Result], Task | None] = _never,
) -> Generator[tuple[Task, Result | Crash], None, None]:
    """Run ``function`` on every task in worker processes.

    Close the generator if it may not be used to its end. Until then the workers keep running.

    Parameters
    ----------
    function : callable
        Importable function, with picklable arguments and results. A ``ChordcacheError`` that it raises ends the run.
        Any other exception becomes a ``Crash``.
    tasks : iterable
        Tasks, taken as workers become free; may be endless.
    jobs : int
        Number of processes.
    chunk_size : int
        Number of tasks sent at once. Use more than one if a task takes less than a millisecond or two.
    ordered : bool
        If True, yield in the order of ``tasks``. Otherwise yield each result when its task ends.
    limits : Limits
        Limits of a task, and how often it is tried again if its worker ran out of memory or time.
    retry : callable
        Gets a task and its result. Returns the task to run instead, or None to keep the result.

    Yields
    ------
    tuple of (task, result or Crash)

    Raises
    ------
    WorkersDiedError
        If five workers in a row died.
    """
    pool = _Pool(function, jobs, limits, retry)
    try:
        results = pool.run(iter(tasks), chunk_size, max_ahead=64 * jobs * chunk_size if ordered else None)
        yield from _in_order(results) if ordered else ((task, result) for _, task, result in results)
    finally:
        pool.shutdown()


def _in_order(results: Iterator[_Outcome]) -> Iterator[tuple[Task, Any]]:
    waiting: dict[int, tuple[Task, Any]] = {}
    next_number = 0
    for number, task, result in results:
        waiting[number] = (task, result)
        while next_number in waiting:
            yield waiting.pop(next_number)
            next_number += 1


@contextmanager
def _safe_path() -> Iterator[None]:
    """Add ``SAFE_PATH`` to the environment of processes that are started inside the block."""
    added = SAFE_PATH.keys() - os.environ.keys()
    os.environ.update({name: SAFE_PATH[name] for name in added})
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


class _Pool:
    """A loky executor that is replaced when a worker dies."""

    def __init__(self, function: Callable[[Any], Any], jobs: int, limits: Limits, retry: Retry) -> None:
        self._function = function
        self._jobs = jobs
        self._limits = limits
        self._retry = retry
        self._executor: ProcessPoolExecutor | None = None
        self._crash_log: CrashLog | None = None
        self._num_oom_kills = 0
        """Number for the whole machine, when the workers were started"""
        self._num_drawn = 0
        self._again: deque[_Unit[Any]] = deque()
        """Units to run again, before new tasks"""
        self._deaths: list[tuple[int, Any, Crash]] = []
        """Tasks that killed their workers one after the other. They are held back, since a fifth death in a row means
        that the tasks are not at fault."""

    @uninterruptible()
    def shutdown(self) -> list[Note]:
        """End the workers, even in the middle of a task. Join all threads that Python would cut off at its exit.

        Return the last task of each worker.
        """
        if self._executor is None or self._crash_log is None:
            return []
        executor, self._executor = self._executor, None
        # Kill the workers here. When loky 3.6 is asked to kill them, it fails on tasks that it queued and then forgot
        for pid in list(executor._processes):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        executor.shutdown(wait=True)
        # loky does not join these. If one is cut off while it releases a semaphore, the resource tracker complains
        for thread in threading.enumerate():
            if thread.name == "QueueFeederThread":
                thread.join(_FEEDER_PATIENCE_SECONDS)
        notes = self._crash_log.read()
        self._crash_log.close()
        return notes

    @uninterruptible()
    @_safe_path()
    def _submit(self, unit: _Unit[Any]) -> Future[list[Any]]:
        # Processes inherit the mask: no signal hits one before it has its handlers (see start_worker)
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            if self._executor is None:
                resource_tracker.ensure_running()  # loky would start it, and Python unblocks signals when it does
                signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
                self._num_oom_kills = _num_oom_kills()
                self._crash_log = CrashLog(self._jobs)
                self._executor = ProcessPoolExecutor(
                    self._jobs,
                    initializer=start_worker,
                    initargs=(os.getpid(), self._crash_log.fd, self._jobs, self._limits),
                    env={**ONE_THREAD, **SAFE_PATH},
                    timeout=None,
                )
            future: Future[list[Any]] = self._executor.submit(run_unit, self._function, unit.first, unit.tasks)
        except BrokenProcessPool as error:  # a worker died while it had nothing to do
            future = Future()
            future.set_exception(error)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return future

    def run(self, tasks: Iterator[Any], chunk_size: int, max_ahead: int | None) -> Iterator[_Outcome]:
        pending: dict[Future[list[Any]], _Unit[Any]] = {}
        while True:
            while len(pending) < 2 * self._jobs:
                oldest = min((unit.first for unit in pending.values()), default=self._num_drawn)
                may_draw = max_ahead is None or self._num_drawn - oldest < max_ahead
                unit = self._next_unit(tasks, chunk_size if may_draw else 0)
                if unit is None:
                    break
                pending[self._submit(unit)] = unit
            if not pending:
                yield from self._release_deaths()
                return
            yield from self._collect(pending)

    def _next_unit(self, tasks: Iterator[Any], chunk_size: int) -> _Unit[Any] | None:
        if self._again:
            return self._again.popleft()
        chunk = list(islice(tasks, chunk_size))
        self._num_drawn += len(chunk)
        return _Unit(self._num_drawn - len(chunk), chunk) if chunk else None

    def _collect(self, pending: dict[Future[list[Any]], _Unit[Any]]) -> Iterator[_Outcome]:
        done = _wait(pending)
        if any(isinstance(future.exception(), BrokenProcessPool) for future in done):
            done = set(pending)  # all futures are done, with a result or an error
        interrupted = []
        for future in done:
            unit = pending.pop(future)
            if isinstance(future.exception(), BrokenProcessPool):
                interrupted.append(unit)
            else:
                yield from self._settle(unit, future)
        if interrupted:
            yield from self._after_a_death(sorted(interrupted, key=lambda unit: unit.first))

    def _after_a_death(self, interrupted: list[_Unit[Any]]) -> Iterator[_Outcome]:
        """Run the tasks that may have killed a worker again, each alone, and put back the others."""
        notes = self.shutdown()
        # A worker that crashes or runs out of time leaves words; one that is killed, or exits by itself, leaves none
        suspected = {note.task for note in notes if note.words} or {note.task for note in notes}
        singles = [single for unit in interrupted for single in unit.split()]
        suspects = [single for single in singles if single.first in suspected]
        for single in suspects:
            single.attempts += 1
        self._again.extend(single for single in singles if suspects and single.first not in suspected)
        for single in suspects or singles:  # if no task had begun, any of them may kill its worker before it begins
            yield from self._run_alone(single)

    def _run_alone(self, unit: _Unit[Any]) -> Iterator[_Outcome]:
        while True:
            future = self._submit(unit)
            _wait([future])
            error = future.exception()
            if not isinstance(error, BrokenProcessPool):
                yield from self._settle(unit, future)
                return
            unit.attempts += 1
            note = next((note for note in self.shutdown() if note.task == unit.first), None)
            crash = replace(self._crash(error, note), attempts=unit.attempts)
            if crash.cause in _MAY_PASS and unit.attempts <= self._limits.retries:
                continue
            if note is not None and note.timed_out:
                yield unit.first, unit.tasks[0], crash
            else:
                self._hold(unit, crash)
            return

    def _hold(self, unit: _Unit[Any], crash: Crash) -> None:
        """Keep a death back until a task succeeds, and give up after too many."""
        self._deaths.append((unit.first, unit.tasks[0], crash))
        if len(self._deaths) == MAX_DEATHS_IN_A_ROW:
            raise WorkersDiedError(
                f"{MAX_DEATHS_IN_A_ROW} workers in a row died (the last: {crash.message}); "
                "look at memory and libraries, then run the same command"
            )

    def _crash(self, error: BrokenProcessPool, note: Note | None) -> Crash:
        """Return the crash of a task whose worker died while it ran alone."""
        place = f", at {where}" if note is not None and (where := note.place(run_task.__name__)) else ""
        if note is not None and note.timed_out:
            return Crash("timeout", self._limits.overrun(note.limit, place))
        if not isinstance(error, TerminatedWorkerError):
            return Crash("bug", f"the task cannot be sent: {describe(error.__cause__ or error)}")
        codes = re.search(r"exit codes of the workers are \{(.*)\}", str(error))
        died = f"the worker died: {codes.group(1)}" if codes else "the worker died"
        if "SIGKILL" in died and _num_oom_kills() > self._num_oom_kills:
            return Crash("oom", f"{died}, as the machine ran out of memory; run fewer at once with --jobs")
        return Crash("signal", f"{died}{place}")

    def _settle(self, unit: _Unit[Any], future: Future[list[Any]]) -> Iterator[_Outcome]:
        """Yield the results that came back, except those of tasks that are tried again."""
        error = future.exception()
        if error is None or isinstance(error, ChordcacheError):
            results = future.result()
            yield from self._release_deaths()
        elif len(unit.tasks) > 1:  # the result of one of them cannot be sent
            self._again.extend(unit.split())
            return
        else:
            results = [_crash_of_result(error)]
        for single, result in zip(unit.split(), results, strict=True):
            attempts = single.attempts + 1
            if isinstance(result, Crash):
                if result.cause == "oom":
                    result = replace(result, message=self._limits.out_of_memory(result.message))
                if result.cause in _MAY_PASS and attempts <= self._limits.retries:
                    self._again.append(replace(single, attempts=attempts))
                else:
                    yield single.first, single.tasks[0], replace(result, attempts=attempts)
            elif (task := self._retry(single.tasks[0], result)) is not None:
                self._again.append(_Unit(single.first, [task]))
            else:
                yield single.first, single.tasks[0], result

    def _release_deaths(self) -> Iterator[_Outcome]:
        deaths, self._deaths = self._deaths, []
        yield from deaths


def _wait(futures: Iterable[Future[Any]]) -> set[Future[Any]]:
    """Return the futures that are done, at least one."""
    while True:
        with uninterruptible():
            done, _ = wait(futures, _WAIT_SECONDS, FIRST_COMPLETED)
        if done:
            return done


def _num_oom_kills() -> int:
    """Return how often the kernel has killed a process because memory ran out; 0 if this is unknown."""
    with suppress(OSError):
        counters = Path("/proc/vmstat").read_text(encoding="ascii")
        if found := re.search(r"^oom_kill (\d+)$", counters, re.MULTILINE):
            return int(found.group(1))
    return 0


def _crash_of_result(error: BaseException) -> Crash:
    if isinstance(error, MemoryError):
        return Crash("oom", "out of memory when its result was sent")
    return Crash("bug", f"its result cannot be sent: {describe(error)}")
