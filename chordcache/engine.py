"""Runs many independent tasks on worker processes. Knows no video.

A task that kills its worker (a segmentation fault, the OOM killer) costs that task: the ones that were under way with
it are run again, each alone, and the one that dies alone is named.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from multiprocessing import resource_tracker
from typing import Any, Generic, TypeVar

from joblib.externals.loky import ProcessPoolExecutor
from tqdm import tqdm

from chordcache.errors import ChordcacheError, Stopped, WorkersDiedError

Task = TypeVar("Task")
Result = TypeVar("Result")

MAX_DEATHS_IN_A_ROW = 5
"""Workers that die one after the other, with no task finished between: the environment is at fault."""

_STOP_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)

_FEEDER_PATIENCE_SECONDS = 1

_ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL", "BLIS", "NUMBA", "NUMEXPR")}
"""Environment of a worker: the processes are the parallelism."""


@dataclass(frozen=True)
class Crash:
    """A task that did not return."""

    cause: str
    """"signal" (its worker died), "oom" or "bug" (it raised)"""
    message: str


@dataclass
class _Unit(Generic[Task]):
    """Tasks that travel together."""

    first: int
    tasks: list[Task]


def default_jobs() -> int:
    """One worker for each processor that this process may use."""
    return len(os.sched_getaffinity(0))


def progress_bar(total: int | None, unit: str, *, shown: bool) -> tqdm[Any]:
    """A progress bar on standard error, if it is to be shown and that is a terminal."""
    disable = not (shown and sys.stderr.isatty())
    return tqdm(total=total, unit=unit, file=sys.stderr, disable=disable, smoothing=0.05)


def say(message: str, *, shown: bool) -> None:
    """A line on standard error, above a progress bar, if it is to be shown."""
    if shown:
        tqdm.write(f"chordcache: {message}", file=sys.stderr)


@contextmanager
def stop_signals() -> Iterator[None]:
    """Turn SIGHUP, SIGINT and SIGTERM into ``Stopped``; a second one ends the process at once.

    Does nothing outside the main thread, where Python delivers no signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, _frame: object) -> None:
        for each in heard:
            signal.signal(each, lambda again, _frame: os._exit(128 + again))
        raise Stopped(number)

    # what is ignored stays so: nohup, and a shell's background jobs, ignore on purpose
    heard = [number for number in _STOP_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    previous = {number: signal.signal(number, stop) for number in heard}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


def run(
    function: Callable[[Task], Result],
    tasks: Iterable[Task],
    *,
    jobs: int,
    chunk_size: int = 1,
    ordered: bool = False,
) -> Iterator[tuple[Task, Result | Crash]]:
    """Run ``function`` on every task in worker processes.

    Parameters
    ----------
    function : callable
        Importable, as its arguments and results must be picklable. A ``ChordcacheError`` that it raises ends the run;
        any other exception becomes a ``Crash``.
    tasks : iterable
        Drawn as workers become free: it may be endless.
    jobs : int
        Number of processes.
    chunk_size : int
        Tasks sent at once; more than one where a task takes less than a millisecond or two.
    ordered : bool
        Yield in the order of ``tasks`` rather than as they end.

    Yields
    ------
    tuple of (task, result or Crash)

    Raises
    ------
    WorkersDiedError
        If five workers in a row died.
    """
    pool = _Pool(function, jobs)
    try:
        results = pool.run(iter(tasks), chunk_size, max_ahead=64 * jobs * chunk_size if ordered else None)
        yield from _in_order(results) if ordered else ((task, result) for _, task, result in results)
    finally:
        pool.shutdown()


def _in_order(results: Iterator[tuple[int, Task, Any]]) -> Iterator[tuple[Task, Any]]:
    waiting: dict[int, tuple[Task, Any]] = {}
    next_number = 0
    for number, task, result in results:
        waiting[number] = (task, result)
        while next_number in waiting:
            yield waiting.pop(next_number)
            next_number += 1


class _Pool:
    """A loky executor that is replaced when a worker dies."""

    def __init__(self, function: Callable[[Any], Any], jobs: int) -> None:
        self._function = function
        self._jobs = jobs
        self._executor: ProcessPoolExecutor | None = None
        self._deaths: list[tuple[int, Any, Crash]] = []
        """Tasks that killed their workers one after the other: held back, for at the fifth they are innocent"""

    def shutdown(self) -> None:
        """End the workers, whatever they are at, and leave no thread that Python would cut short at its exit."""
        if self._executor is None:
            return
        executor, self._executor = self._executor, None
        # By ourselves: told to kill them, loky 3.6 trips over tasks that it has queued and then forgotten
        for pid in list(executor._processes):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        executor.shutdown(wait=True)
        # loky does not join these; cut short in the middle of giving back a semaphore, one makes the tracker complain
        for thread in threading.enumerate():
            if thread.name == "QueueFeederThread":
                thread.join(_FEEDER_PATIENCE_SECONDS)

    def _submit(self, unit: _Unit[Any]) -> Future[list[Any]]:
        # Processes inherit the mask: no signal hits one before it has its handlers (see _start_worker)
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
        try:
            if self._executor is None:
                resource_tracker.ensure_running()  # loky would start it, and Python unblocks signals when it does
                signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
                self._executor = ProcessPoolExecutor(
                    self._jobs, initializer=_start_worker, initargs=(os.getpid(),), env=_ONE_THREAD, timeout=None
                )
            future: Future[list[Any]] = self._executor.submit(_run_unit, self._function, unit.tasks)
            return future
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def run(self, tasks: Iterator[Any], chunk_size: int, max_ahead: int | None) -> Iterator[tuple[int, Any, Any]]:
        number = 0
        pending: dict[Future[list[Any]], _Unit[Any]] = {}
        while True:
            oldest = min((unit.first for unit in pending.values()), default=number)
            while len(pending) < 2 * self._jobs and (max_ahead is None or number - oldest < max_ahead):
                chunk = list(islice(tasks, chunk_size))
                if not chunk:
                    break
                unit = _Unit(number, chunk)
                number += len(chunk)
                try:
                    pending[self._submit(unit)] = unit
                except BrokenProcessPool:
                    pending[_failed_future()] = unit
            if not pending:
                yield from self._release_deaths()
                return
            yield from self._collect(pending)

    def _collect(self, pending: dict[Future[list[Any]], _Unit[Any]]) -> Iterator[tuple[int, Any, Any]]:
        done, _ = wait(pending, return_when=FIRST_COMPLETED)
        suspects = []
        for future in done:
            error = future.exception()
            if isinstance(error, BrokenProcessPool):
                self.shutdown()
                suspects = list(pending.values())
                pending.clear()
                break
            unit = pending.pop(future)
            if error is None or isinstance(error, ChordcacheError):
                yield from self._results(unit, future)
            else:  # what one of the tasks returned cannot be sent
                suspects.append(unit)
        yield from self._run_alone(sorted(suspects, key=lambda unit: unit.first))

    def _run_alone(self, suspects: list[_Unit[Any]]) -> Iterator[tuple[int, Any, Any]]:
        singles = [_Unit(unit.first + i, [task]) for unit in suspects for i, task in enumerate(unit.tasks)]
        for unit in singles:
            future = self._submit(unit)
            error = future.exception()
            if isinstance(error, BrokenProcessPool):
                self.shutdown()
                self._deaths.append((unit.first, unit.tasks[0], Crash("signal", _how_it_died(error))))
                if len(self._deaths) == MAX_DEATHS_IN_A_ROW:
                    raise WorkersDiedError(
                        f"{MAX_DEATHS_IN_A_ROW} workers in a row died ({_how_it_died(error)}); "
                        "look at memory and libraries, then run the same command"
                    )
            elif error is None or isinstance(error, ChordcacheError):
                yield from self._results(unit, future)
            else:
                yield unit.first, unit.tasks[0], Crash("bug", f"its result cannot be sent: {_describe(error)}")

    def _results(self, unit: _Unit[Any], future: Future[list[Any]]) -> Iterator[tuple[int, Any, Any]]:
        results = future.result()
        yield from self._release_deaths()
        for i, (task, result) in enumerate(zip(unit.tasks, results, strict=True)):
            yield unit.first + i, task, result

    def _release_deaths(self) -> Iterator[tuple[int, Any, Any]]:
        deaths, self._deaths = self._deaths, []
        yield from deaths


def _failed_future() -> Future[list[Any]]:
    future: Future[list[Any]] = Future()
    future.set_exception(BrokenProcessPool())
    return future


def _how_it_died(error: BaseException) -> str:
    codes = re.search(r"exit codes of the workers are \{(.*)\}", str(error))
    return f"the worker died: {codes.group(1)}" if codes else "the worker died"


def _start_worker(parent: int) -> None:
    """Ctrl-C is the parent's affair; a worker ends with its parent, however that ends. What it prints is no result."""
    for number in _STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN if number == signal.SIGINT else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP_SIGNALS)
    with suppress(OSError):  # standard error may be closed
        os.dup2(2, 1)
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def _run_unit(function: Callable[[Any], Any], tasks: list[Any]) -> list[Any]:
    return [_run_task(function, task) for task in tasks]


def _run_task(function: Callable[[Any], Any], task: Any) -> Any:
    try:
        return function(task)
    except ChordcacheError:
        raise
    except MemoryError:
        return Crash("oom", "out of memory")
    except BaseException as error:  # item boundary
        return Crash("bug", _describe(error))


def _describe(error: BaseException) -> str:
    """One line, also of an exception that fails to print itself."""
    return " ".join(traceback.format_exception_only(error)[-1].split())
