"""Signs of progress. Long work calls ``beat``, and a worker process then counts for its parent."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol


class Alarm(Protocol):
    """An alarm that ends a task without progress."""

    def beat(self) -> None:
        """Record progress."""

    def expect(self, num_bytes: int | None, seconds: float, num_pixels: int) -> None:
        """Raise the limit of the task's time by what a read of so much may take."""

    def paused(self) -> AbstractContextManager[None]:
        """Stop the clock inside the ``with`` block."""

    def setting_up(self) -> AbstractContextManager[None]:
        """Stop the clock and lift the memory limit inside the ``with`` block. What was taken there stays allowed."""

    def computing(self) -> AbstractContextManager[None]:
        """Lift the limits of memory and of the task's time. The block is one step: its time is that of no progress."""


_alarm: Alarm | None = None
"""Alarm of this process, if it is a worker"""


def beat() -> None:
    """Report progress: a packet, a frame, a piece of a file. A call takes a tenth of a microsecond."""
    if _alarm is not None:
        _alarm.beat()


def expect(num_bytes: int | None, seconds: float = 0.0, num_pixels: int = 0) -> None:
    """Raise the limit of the task's time by what a read of so much may take.

    ``seconds`` of video and sound are what a header claims. If they were measured, ``num_bytes`` is None: they need no
    bytes to be believed.
    """
    if _alarm is not None:
        _alarm.expect(num_bytes, seconds, num_pixels)


def paused() -> AbstractContextManager[None]:
    """Stop the alarm's clock during a wait for the cache's disk. A slow disk is not the fault of the input."""
    return nullcontext() if _alarm is None else _alarm.paused()


def setting_up() -> AbstractContextManager[None]:
    """Prepare what later tasks of this process share, such as the weights of a network, at the cost of none of them."""
    return nullcontext() if _alarm is None else _alarm.setting_up()


def computing() -> AbstractContextManager[None]:
    """Compute one batch of a network. It is not the task that takes this memory and this time."""
    return nullcontext() if _alarm is None else _alarm.computing()


def report_to(alarm: Alarm) -> None:
    """Send all progress of this process to an alarm from now on."""
    global _alarm
    _alarm = alarm
