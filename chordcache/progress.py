"""Signs of progress: work that takes long calls ``beat``, and a worker process sets its alarm again."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol


class Alarm(Protocol):
    """What ends a task that makes no progress."""

    def beat(self) -> None:
        """Note progress."""

    def paused(self) -> AbstractContextManager[None]:
        """Stop the clock within."""


_alarm: Alarm | None = None
"""Of this process, if it is a worker"""


def beat() -> None:
    """Report progress: a packet, a frame, a piece of a file. It takes a tenth of a microsecond."""
    if _alarm is not None:
        _alarm.beat()


def paused() -> AbstractContextManager[None]:
    """Stop the alarm's clock while the cache's disk is waited for: the input is not to blame for a slow disk."""
    return nullcontext() if _alarm is None else _alarm.paused()


def report_to(alarm: Alarm) -> None:
    """Report to an alarm for the rest of this process."""
    global _alarm
    _alarm = alarm
