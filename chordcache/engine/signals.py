"""Handling of signals that stop the main thread: they raise an exception, except in blocks that must complete."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from chordcache.engine.worker import STOP_SIGNALS
from chordcache.errors import StoppedError

_blocks: list[None] = []
"""List with one item for each ``uninterruptible`` block that the main thread is in"""
_stopped_meanwhile: list[StoppedError] = []
"""Error of the signal that came inside such a block. A second one ends the process."""


@contextmanager
def uninterruptible() -> Iterator[None]:
    """Defer ``StoppedError`` until the block ends. Raised while a worker is started, it would leave that one behind.

    Use this in the main thread, for blocks that are shorter than a user would wait after stopping the program.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _blocks.append(None)
    try:
        yield
    finally:
        _blocks.pop()
        if _stopped_meanwhile and not _blocks:
            raise _stopped_meanwhile.pop()


@contextmanager
def stop_signals(*, resumes: bool = False) -> Iterator[None]:
    """Turn SIGHUP, SIGINT and SIGTERM into ``StoppedError``; a second one ends the process at once.

    ``resumes`` is for calls that go on when they are made again, and is passed on to the error.

    ``StoppedError`` is raised at any place in the main thread, except in ``uninterruptible`` blocks.

    Outside the main thread nothing is done, since Python delivers no signals there.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, _frame: object) -> None:
        for signal_number in heard:
            signal.signal(signal_number, lambda again, _frame: os._exit(128 + again))
        what = f"stopped by signal {number}{'; the same command resumes' * resumes}"
        error = StoppedError(what, exit_code=128 + number)
        if not _blocks:
            raise error
        _stopped_meanwhile.append(error)

    # ignored signals stay ignored: nohup, and a shell's background jobs, ignore them on purpose
    heard = [number for number in STOP_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    previous = {number: signal.signal(number, stop) for number in heard}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
