"""Run many independent tasks on worker processes of this machine. This module does not depend on video.

The local fan-out is ``joblib.Parallel``, each of whose workers drives one isolated process, a ``child.Worker``. Not
joblib alone: of 20 tasks on loky, one segfault lost 12 to 19 results and named none, and its workers outlive a SIGTERM
of the parent. An empty task takes 0.10 ms here, and 0.23 to 0.31 with one call of joblib for each task.

A worker of joblib takes tasks from a queue until the run ends. The thread of the caller alone draws tasks,
tries them again and puts results in order. With a call for each task, the iterator of tasks would run in another
thread, results would pile up behind a slow caller, and a signal would interrupt joblib while it holds its locks.
"""

from __future__ import annotations

import queue
import threading
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from chordcache.engine.child import Worker
from chordcache.engine.choice import Engine, engine_of
from chordcache.engine.limits import NO_LIMITS, Limits
from chordcache.engine.signals import uninterruptible
from chordcache.engine.worker import OF_NETWORKS, Raised, dump_task, load_result, run_task
from chordcache.engine.worker import Crash as Crash  # exported, since callers get it as a result
from chordcache.errors import ChordcacheError, StoppedError

Task = TypeVar("Task")
Result = TypeVar("Result")

MAX_ATTEMPTS = 2
"""Number of attempts at a task that fails for a reason which may pass: time, memory, a disk, or a killed worker"""

MAX_DEATHS_IN_A_ROW = 5
"""Number of tasks in a row that kill their workers, with no task finished between, until the environment is considered
at fault"""

_TASKS_AHEAD = 256
"""Number of tasks that may be drawn beyond the oldest one that has not ended, for each of the width"""


def default_jobs(jobs: int | None = None) -> int:
    """Return the number of workers that ``jobs`` stands for.

    None is one for each processor that this process may use, within the CPU quota of its container.
    """
    if jobs is not None and jobs > 0:
        return int(jobs)
    return max(1, int(_joblib().cpu_count()) + 1 + (-1 if jobs is None else jobs))


def prepared(engine: Engine) -> Engine:
    """Return an engine with the number of its processes, if they are those of this machine."""
    return replace(engine, jobs=default_jobs(engine.jobs)) if engine.name == "local" else engine


def run(
    function: Callable[[Task], Result],
    tasks: Iterable[Task],
    *,
    jobs: int | Engine | None,
    ordered: bool = False,
    limits: Limits = NO_LIMITS,
    retry: Callable[[Task, Result], Task | None] = lambda _task, _result: None,
    of_devices: Sequence[Callable[[Task], Result]] = (),
) -> Generator[tuple[Task, Result | Crash], None, None]:
    """Run ``function`` on every task in worker processes, and yield each task with its result or ``Crash``.

    Close the generator if it may not be used to its end. Until then the workers keep running.

    Parameters
    ----------
    function : callable
        Importable function, with picklable arguments and results. A ``ChordcacheError`` that it raises ends the run.
        Any other exception becomes a ``Crash``.
    tasks : iterable
        Tasks, taken as workers become free, in the thread of the caller; may be endless.
    jobs : int, Engine or None
        Number of processes of this machine, by default one for each processor, or an engine. See ``Engine.jobs``.
    ordered : bool
        If True, yield in the order of ``tasks``. Otherwise yield each result when its task ends.
    limits : Limits
        Limits of a task. It is tried twice if its worker ran out of memory or time, or died: the machine may have been
        busy, and the worker may have been killed from outside.
    retry : callable
        Gets a task and its result. Returns the task to run instead, or None to keep the result.
    of_devices : sequence of callable
        Functions to call instead, each in one worker, whose networks use a device. ``jobs`` does not count then, unless
        it is the engine "inline", which calls ``function``.

    Raises ``StoppedError`` if five tasks in a row killed their workers, and ``UsageError`` if the engine is a
    cluster.
    """
    engine = prepared(engine_of(jobs))
    workers = [Worker(of_device, limits, environment=OF_NETWORKS) for of_device in of_devices]
    workers = workers or [Worker(function, limits) for _ in range(engine.jobs or 1)]
    fan = _Fan(function, [] if engine.name == "inline" else workers)
    try:
        results = _PoolRun(fan, limits, retry).outcomes(iter(tasks), is_bounded=ordered)
        yield from _in_order(results) if ordered else ((ended.task, result) for ended, result in results)
    finally:
        fan.close()


def _in_order(results: Iterator[tuple[_Numbered, Any]]) -> Iterator[tuple[Any, Any]]:
    waiting: dict[int, tuple[Any, Any]] = {}
    next_number = 0
    for ended, result in results:
        waiting[ended.number] = (ended.task, result)
        while next_number in waiting:
            yield waiting.pop(next_number)
            next_number += 1


@dataclass(eq=False)
class _Numbered:
    """A task with its number among all."""

    number: int
    task: Any
    attempts: int = 0
    """Number of times that it was begun and did not end"""


class _Fan:
    """The workers of joblib, each with its process.

    Without workers, the caller runs the tasks, so that a debugger stops in them. A crash ends it.
    """

    def __init__(self, function: Callable[[Any], Any], workers: list[Worker]) -> None:
        self.width = max(1, 2 * len(workers))
        """Number of tasks that keeps all workers busy: as many again wait for a worker that becomes free"""
        self._function, self._workers = function, workers
        self._tasks: queue.SimpleQueue[_Numbered | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[_Numbered, Any] | BaseException] = queue.SimpleQueue()
        self._is_closed = False
        self._joblib: Iterator[None] | None = None

    def submit(self, task: _Numbered) -> None:
        """Run a task as soon as a worker is free. A worker starts its process for its first task."""
        self._tasks.put(task)
        if self._workers and self._joblib is None:
            with uninterruptible():
                self._joblib = _start(self._serve, self._workers)

    def wait(self) -> tuple[_Numbered, Any]:
        """Wait for a task to end, and return it with its result."""
        if not self._workers:
            task = self._tasks.get()
            assert task is not None
            return task, load_result(run_task(self._function, dump_task(task.task)))
        answer = self._answers.get()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    @uninterruptible()
    def close(self) -> None:
        """End the workers, even in the middle of a task."""
        self._is_closed = True
        for worker in self._workers:
            worker.kill()
            self._tasks.put(None)
        for _ in self._joblib or ():  # to its end: if it is closed before, joblib warns of workers that were cancelled
            pass

    def _serve(self, worker: Worker) -> None:
        """Run tasks until the run ends. Called in a worker of joblib."""
        try:
            while (task := self._tasks.get()) is not None and not self._is_closed:
                self._answers.put((task, worker.run(task.task)))
        except BaseException as error:  # noqa: BLE001 # raised again by ``wait``
            self._answers.put(error)
        finally:
            worker.close()


def _joblib() -> Any:
    """Return joblib, which takes 0.05 s of CPU to load. It warns of serial runs, which ``_start`` prevents."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        import joblib
    return joblib


def _start(serve: Callable[[Worker], None], workers: list[Worker]) -> Iterator[None]:
    """Start ``joblib.Parallel``, and return the iterator that waits for its end.

    Its own backends run serially if JOBLIB_MULTIPROCESSING is 0 or /dev/shm cannot be written to. With one job, each
    backend does. A single worker is a thread without joblib, which takes 0.05 s of CPU to load.
    """
    if len(workers) == 1:
        thread = threading.Thread(target=serve, args=workers, name="chordcache worker", daemon=True)
        thread.start()
        return iter(thread.join, None)
    joblib = _joblib()

    class Threads(joblib.parallel.ParallelBackendBase):  # type: ignore[misc, name-defined]
        """A thread for each job."""

        supports_retrieve_callback = True

        def effective_n_jobs(self, n_jobs: int) -> int:
            return n_jobs

        def submit(self, func: Callable[[], Any], callback: Callable[[Any], None]) -> None:
            threading.Thread(target=lambda: callback(func()), name="chordcache worker", daemon=True).start()

        def retrieve_result_callback(self, out: Any) -> Any:
            return out

    parallel = joblib.Parallel(len(workers), backend=Threads(), batch_size=1, pre_dispatch="all", return_as="generator")
    results: Iterator[None] = parallel(joblib.delayed(serve)(worker) for worker in workers)
    return results


class _PoolRun:
    """One run of all tasks."""

    def __init__(self, fan: _Fan, limits: Limits, retry: Callable[[Any, Any], Any]) -> None:
        self._fan, self._limits, self._retry = fan, limits, retry
        self._num_drawn = self._num_ended = 0
        self._again: deque[_Numbered] = deque()
        """Tasks to run again, before new ones"""
        self._alone: deque[_Numbered] = deque()
        """Tasks to run again with no other beside them, because the machine had no memory left"""
        self._deaths: list[tuple[_Numbered, Any]] = []
        """Tasks that killed their workers one after the other, held back until another task ends"""

    def outcomes(self, tasks: Iterator[Any], *, is_bounded: bool) -> Iterator[tuple[_Numbered, Any]]:
        """Yield the result of each task. If ``is_bounded``, few tasks are drawn beyond one that takes long."""
        pending: set[_Numbered] = set()

        def submit(task: _Numbered) -> None:
            pending.add(task)
            self._fan.submit(task)

        while True:
            while len(pending) < self._fan.width and not self._alone:
                if not self._again:
                    oldest = min((task.number for task in pending), default=self._num_drawn)
                    if is_bounded and self._num_drawn - oldest >= _TASKS_AHEAD * self._fan.width:
                        break
                    if (drawn := next(tasks, self)) is self:
                        break
                    self._again.append(_Numbered(self._num_drawn, drawn))
                    self._num_drawn += 1
                submit(self._again.popleft())
            if self._alone and not pending:
                submit(self._alone.popleft())
            if not pending:
                break
            ended, result = self._fan.wait()
            pending.remove(ended)
            outcomes = list(self._finish_or_rerun(ended, result))
            self._num_ended += len(outcomes)
            yield from outcomes
        yield from self._deaths  # their tasks' fault
        self._num_ended += len(self._deaths)
        if self._num_ended != self._num_drawn or next(tasks, self) is not self:  # must not look like fewer tasks
            raise ChordcacheError(
                f"the workers ended with {self._num_ended} results of {self._num_drawn} tasks, expected all. Run the "
                "same command again."
            )

    def _finish_or_rerun(self, ended: _Numbered, result: Any) -> Iterator[tuple[_Numbered, Any]]:
        """Yield the result of a task, unless the task is run again. Raise the error that ends the run."""
        if isinstance(result, Raised):
            raise result.error
        is_death = isinstance(result, Crash) and result.is_death
        if not is_death:
            deaths, self._deaths = self._deaths, []
            yield from deaths
        if isinstance(result, Crash):
            result = replace(result, attempts=ended.attempts + 1)
            # A worker that died may have been killed from outside
            if result.attempts < MAX_ATTEMPTS and (is_death or result.cause in ("oom", "timeout")):
                waiting = self._alone if is_death and result.cause == "oom" else self._again
                waiting.append(replace(ended, attempts=result.attempts))
                return
            if is_death and result.cause != "timeout":
                self._deaths.append((ended, result))
                if len(self._deaths) == MAX_DEATHS_IN_A_ROW:
                    raise StoppedError(
                        f"{MAX_DEATHS_IN_A_ROW} tasks in a row killed their workers (the last: {result.message}); "
                        "look at memory and libraries, then run the same command"
                    )
                return
            if result.cause == "oom":
                result = replace(result, message=self._limits.out_of_memory(result.message))
        elif (task := self._retry(ended.task, result)) is not None:
            self._again.append(replace(ended, task=task, attempts=0))
            return
        yield ended, result
