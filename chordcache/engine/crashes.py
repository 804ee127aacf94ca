"""Crashes of tasks: what one is, how often a task is tried, and how many in a row end a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from chordcache.engine.limits import Limits

MAX_DEATHS_IN_A_ROW = 5
"""Number of tasks in a row that kill their workers, with no task finished between, until the environment is considered
at fault. Also of processes of a network that die on a device, with no batch computed between, until it is given up"""

_MAY_PASS = ("oom", "timeout")
"""Causes that may be absent at another attempt, since the machine was busy"""

Outcome: TypeAlias = tuple[int, Any, Any]
"""Number of a task, the task, and its result or Crash"""


@dataclass(frozen=True)
class Crash:
    """Result of a task that did not return."""

    cause: str
    """"timeout", "oom" (out of memory), "signal" (its worker died) or "bug" (it raised, or cannot be sent)"""
    message: str
    attempts: int = 1


class Death(Crash):
    """Crash that ended the process."""


def max_attempts(crash: Crash, limits: Limits) -> int:
    """Return how often a task is tried."""
    attempts = 1 + limits.retries if crash.cause in _MAY_PASS else 1
    if isinstance(crash, Death) and crash.cause != "timeout":  # the worker may have been killed from outside
        return max(attempts, 2)
    return attempts
