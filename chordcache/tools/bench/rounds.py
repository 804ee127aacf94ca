"""Rounds that measure several ways in turn, their statistics, and isolated processes."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from chordcache.engine.child import Worker
from chordcache.engine.crashes import Crash
from chordcache.engine.limits import NO_LIMITS
from chordcache.engine.worker import Raised
from chordcache.errors import ChordcacheError, printable

Name = TypeVar("Name")
Value = TypeVar("Value")

_PATIENCE_SECONDS = 300.0
"""[seconds] Time that an answer may take before the process is ended"""


class Spread(NamedTuple):
    """Summary of the values of all rounds."""

    median: float
    least: float
    most: float


def spread_of(values: Iterable[float]) -> Spread:
    """Return the median, the least and the greatest of some values."""
    ordered = sorted(values)
    return Spread(statistics.median(ordered), ordered[0], ordered[-1])


def in_turn(functions: Mapping[Name, Callable[[], Value]], num_rounds: int) -> list[dict[Name, Value]]:
    """Call all functions in turn in each round, and return what they return.

    A busy minute of the machine then falls on all of them alike.
    """
    return [{name: function() for name, function in functions.items()} for _ in range(num_rounds)]


class ChildFailedError(ChordcacheError):
    """A call that failed, crashed or took too long. The message is the reason."""


class ChildProcess:
    """A process that calls one function of one argument. A crash of a library ends only this process."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._worker = Worker(function, replace(NO_LIMITS, file_seconds=_PATIENCE_SECONDS), environment={})

    def call(self, argument: Any) -> Any:
        """Return the result of the function. Raises ``ChildFailedError``."""
        (answer,) = self._worker.run(0, [argument])
        if isinstance(answer, Raised):
            raise ChildFailedError(printable(str(answer.error)))
        if isinstance(answer, Crash):
            late = f"no answer after {_PATIENCE_SECONDS:g} s"
            raise ChildFailedError(late if answer.cause == "timeout" else printable(answer.message))
        return answer

    def close(self) -> None:
        """End the process."""
        self._worker.close()
