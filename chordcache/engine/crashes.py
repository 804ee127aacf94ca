"""Crashes of tasks: what one is, how often a task is tried, and how many in a row end a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

MAX_DEATHS_IN_A_ROW = 5
"""Number of tasks in a row that kill their workers, with no task finished between, until the environment is considered
at fault"""

MAX_ATTEMPTS = 2
"""Number of attempts at a task that fails for a reason which may pass: time, memory, a disk, or a killed worker"""

Outcome: TypeAlias = tuple[int, Any, Any]
"""Number of a task, the task, and its result or Crash"""


@dataclass(frozen=True)
class Crash:
    """Result of a task that did not return."""

    cause: str
    """"timeout", "oom" (out of memory), "signal" (its worker died), "extractor" (a ``DeviceLostError``) or "bug" (it
    raised, or cannot be sent)"""
    message: str
    attempts: int = 1


class Death(Crash):
    """Crash that ended the process."""


class DeviceLostError(Exception):
    """An error after which this process cannot use its GPU. The task is tried again in another process."""


def max_attempts(crash: Crash) -> int:
    """Return how often a task is tried. A worker that died may have been killed from outside."""
    return MAX_ATTEMPTS if isinstance(crash, Death) or crash.cause in ("oom", "timeout") else 1
