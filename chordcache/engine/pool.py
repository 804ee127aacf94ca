"""Run many independent tasks on worker processes. This module does not depend on video.

The loop here draws tasks, keeps ``width`` units in flight, tries again, and orders results. The processes that do the
work are a ``Backend``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any, TypeAlias, TypeVar

from chordcache.engine.backend import Backend, start_backend
from chordcache.engine.backend import default_jobs as default_jobs  # exported
from chordcache.engine.backend import prepared as prepared  # exported
from chordcache.engine.choice import Engine, engine_of
from chordcache.engine.limits import NO_LIMITS, Limits
from chordcache.engine.needs import NO_NEEDS, Needs
from chordcache.engine.processes import NOT_RUN, Death, Unit
from chordcache.engine.worker import Crash as Crash  # exported, since callers get it as a result
from chordcache.errors import ChordcacheError, WorkersDiedError

Task = TypeVar("Task")
Result = TypeVar("Result")

MAX_DEATHS_IN_A_ROW = 5
"""Number of tasks in a row that kill their workers, with no task finished between, until the environment is considered
at fault"""

_UNITS_AHEAD = 32
"""Number of units that may be drawn beyond the oldest one that has not ended, for each of the backend's width"""

_MAY_PASS = ("oom", "timeout")
"""Causes that may be absent at another attempt, since the machine was busy"""

_Outcome: TypeAlias = tuple[int, Any, Any]
"""Number of a task, the task, and its result or Crash"""

Retry: TypeAlias = Callable[[Any, Any], Any]


def _never(_task: Any, _result: Any) -> None:
    """Keep the result, and do not retry."""


def run(
    function: Callable[[Task], Result],
    tasks: Iterable[Task],
    *,
    jobs: int | Engine | None,
    chunk_size: int = 1,
    ordered: bool = False,
    limits: Limits = NO_LIMITS,
    retry: Callable[[Task, Result], Task | None] = _never,
    needs: Needs = NO_NEEDS,
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
    jobs : int, Engine or None
        Number of processes of this machine, by default one for each processor, or an engine. See ``Engine.jobs``.
    chunk_size : int
        Number of tasks sent at once. Use more than one if a task takes less than a millisecond or two.
    ordered : bool
        If True, yield in the order of ``tasks``. Otherwise yield each result when its task ends.
    limits : Limits
        Limits of a task, and how often it is tried again if its worker ran out of memory or time. A task whose worker
        died is tried twice at least, because the worker may have been killed from outside.
    retry : callable
        Gets a task and its result. Returns the task to run instead, or None to keep the result.
    needs : Needs
        What the processes must have before their first task.

    Yields
    ------
    tuple of (task, result or Crash)

    Raises
    ------
    WorkersDiedError
        If five tasks in a row killed their workers, or a cluster has no node left.
    UsageError
        If a cluster cannot be reached.
    """
    workers = start_backend(engine_of(jobs), function, limits, needs)
    try:
        results = _Run(workers, limits, retry).outcomes(
            iter(tasks), chunk_size, units_ahead=_UNITS_AHEAD if ordered else None
        )
        yield from _in_order(results) if ordered else ((task, result) for _, task, result in results)
    finally:
        workers.close()


def _in_order(results: Iterator[_Outcome]) -> Iterator[tuple[Task, Any]]:
    waiting: dict[int, tuple[Task, Any]] = {}
    next_number = 0
    for number, task, result in results:
        waiting[number] = (task, result)
        while next_number in waiting:
            yield waiting.pop(next_number)
            next_number += 1


class _Run:
    """One run of all tasks."""

    def __init__(self, workers: Backend, limits: Limits, retry: Retry) -> None:
        self._workers = workers
        self._limits = limits
        self._retry = retry
        self._num_drawn = self._num_ended = 0
        self._again: deque[Unit] = deque()
        """Units to run again, before new tasks"""
        self._alone: deque[Unit] = deque()
        """Units to run again with no other beside them, because the machine had no memory left"""
        self._deaths: list[_Outcome] = []
        """Tasks that killed their workers one after the other. They are held back, since a fifth death in a row means
        that the tasks are not at fault."""

    def outcomes(self, tasks: Iterator[Any], chunk_size: int, units_ahead: int | None) -> Iterator[_Outcome]:
        pending: set[Unit] = set()
        while True:
            while len(pending) < self._workers.width and not self._alone:
                oldest = min((unit.first for unit in pending), default=self._num_drawn)
                max_ahead = units_ahead and units_ahead * self._workers.width * chunk_size
                may_draw = max_ahead is None or self._num_drawn - oldest < max_ahead
                unit = self._next_unit(tasks, chunk_size if may_draw else 0)
                if unit is None:
                    break
                pending.add(unit)
                self._workers.submit(unit)
            if self._alone and not pending:
                unit = self._alone.popleft()
                pending.add(unit)
                self._workers.submit(unit)
            if not pending:
                self._num_ended += len(self._deaths)
                yield from self._deaths
                self._check_all_ended(tasks)
                return
            for unit, results in self._workers.wait():
                pending.remove(unit)
                for single, result in zip(unit.split(), results, strict=True):
                    outcomes = list(self._settle(single, result))
                    self._num_ended += len(outcomes)
                    yield from outcomes

    def _check_all_ended(self, tasks: Iterator[Any]) -> None:
        """Raise ``ChordcacheError`` if a task has no result: a run must not end as if it had had fewer tasks."""
        if self._num_ended != self._num_drawn or next(tasks, self) is not self:
            raise ChordcacheError(
                f"the workers ended with {self._num_ended} results of {self._num_drawn} tasks, expected all. Run the "
                "same command again."
            )

    def _next_unit(self, tasks: Iterator[Any], chunk_size: int) -> Unit | None:
        if self._again:
            return self._again.popleft()
        chunk = list(islice(tasks, chunk_size))
        self._num_drawn += len(chunk)
        return Unit(self._num_drawn - len(chunk), chunk) if chunk else None

    def _settle(self, single: Unit, result: Any) -> Iterator[_Outcome]:
        """Yield the result of a task, unless the task is run again."""
        if result is NOT_RUN:
            self._again.append(single)
            return
        if not isinstance(result, Death):
            deaths, self._deaths = self._deaths, []
            yield from deaths
        if isinstance(result, Crash):
            result = replace(result, attempts=single.attempts + 1)
            if result.attempts < self._max_attempts(result):
                queue = self._alone if isinstance(result, Death) and result.cause == "oom" else self._again
                queue.append(replace(single, attempts=result.attempts, avoid=single.avoid | {single.node}))
                return
            if isinstance(result, Death) and result.cause != "timeout":
                self._hold(single, result)
                return
            if result.cause == "oom":
                result = replace(result, message=self._limits.out_of_memory(result.message))
        elif (task := self._retry(single.tasks[0], result)) is not None:
            node = {single.node}
            again = replace(single, tasks=[task], attempts=0, avoid=single.avoid | node)
            self._again.append(replace(again, cannot_read=single.cannot_read | node))
            return
        yield single.first, single.tasks[0], result

    def _max_attempts(self, crash: Crash) -> int:
        max_attempts = 1 + self._limits.retries if crash.cause in _MAY_PASS else 1
        if isinstance(crash, Death) and crash.cause != "timeout":  # the worker may have been killed from outside
            return max(max_attempts, 2)
        return max_attempts

    def _hold(self, single: Unit, death: Death) -> None:
        """Keep a death back until a task ends otherwise, and give up after too many."""
        self._deaths.append((single.first, single.tasks[0], death))
        if len(self._deaths) == MAX_DEATHS_IN_A_ROW:
            raise WorkersDiedError(
                f"{MAX_DEATHS_IN_A_ROW} tasks in a row killed their workers (the last: {death.message}); "
                "look at memory and libraries, then run the same command"
            )
