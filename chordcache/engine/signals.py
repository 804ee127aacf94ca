"""How a signal stops the main thread: as an exception, and not in the middle of what must be done whole."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from chordcache.engine.worker import STOP_SIGNALS
from chordcache.errors import StoppedError

_blocks: list[None] = []
"""As long as the main thread is deep in what is ``uninterruptible``"""
_stopped_meanwhile: list[int] = []
"""The signal that came there; a second one ends the process"""


@contextmanager
def uninterruptible() -> Iterator[None]:
    """Defer ``StoppedError`` until the block ends. Raised inside loky, it can leave a lock held.

    For the main thread, and for what takes no longer than a user who stops it would wait.
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
            raise StoppedError(_stopped_meanwhile.pop())


@contextmanager
def stop_signals() -> Iterator[None]:
    """Turn SIGHUP, SIGINT and SIGTERM into ``StoppedError``; a second one ends the process at once.

    ``StoppedError`` is raised wherever the main thread is, but for what is ``uninterruptible``.

    Does nothing outside the main thread, where Python delivers no signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, _frame: object) -> None:
        for each in heard:
            signal.signal(each, lambda again, _frame: os._exit(128 + again))
        if _blocks:
            _stopped_meanwhile.append(number)
        else:
            raise StoppedError(number)

    # what is ignored stays so: nohup, and a shell's background jobs, ignore on purpose
    heard = [number for number in STOP_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    previous = {number: signal.signal(number, stop) for number in heard}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
