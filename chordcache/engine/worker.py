"""The engine's other side: what a worker process does with the tasks that it is sent. Knows no video either."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from chordcache.engine import limits as watchdog
from chordcache.engine.crash_log import Slot
from chordcache.engine.limits import Limits
from chordcache.errors import ChordcacheError

STOP_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)

ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL", "BLIS", "NUMBA", "NUMEXPR")}
"""Environment of a worker: the processes are the parallelism."""

SAFE_PATH = {"PYTHONSAFEPATH": "1"}
"""Environment of what is started as ``python -m`` or ``-c``: the working folder may hold a stranger's ``random.py``."""


@dataclass(frozen=True)
class Crash:
    """A task that did not return."""

    cause: str
    """"timeout", "oom" (out of memory), "signal" (its worker died) or "bug" (it raised, or cannot be sent)"""
    message: str
    attempts: int = 1


def start_worker(parent: int, crash_log_fd: int, num_slots: int, limits: Limits) -> None:
    """Make this process a worker.

    Ctrl-C is the parent's affair; a worker ends with its parent, however that ends. What it prints is no result. Its
    last words go to a slot of the parent's ``CrashLog``.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the others are as they were inherited: nohup's stays ignored
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    with suppress(OSError):  # standard error may be closed
        os.dup2(2, 1)
    sys.stdout = sys.stderr  # which holds nothing back: what stdout still held when the worker is killed would be lost
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
    slot = None
    with suppress(OSError):  # no /proc, or a limit on the size of files: then time has none
        slot = Slot(parent, crash_log_fd, num_slots)
    watchdog.start(limits, slot)


def run_unit(function: Callable[[Any], Any], first: int, tasks: list[Any]) -> list[Any]:
    """Run tasks one after the other; ``first`` is the number of the first."""
    try:
        return [run_task(function, number, task) for number, task in enumerate(tasks, first)]
    finally:
        watchdog.stop()


def run_task(function: Callable[[Any], Any], number: int, task: Any) -> Any:
    """Run one task under the watch of its limits; what it raises becomes a ``Crash``."""
    watchdog.begin(number)
    try:
        return function(task)
    except ChordcacheError:
        raise
    except MemoryError as error:
        what = getattr(error, "strerror", None) or describe(error).partition(": ")[2]
        return Crash("oom", f"out of memory{what and ': '}{what}")
    except BaseException as error:  # item boundary
        return Crash("bug", describe(error))


def describe(error: BaseException) -> str:
    """One line, also of an exception that fails to print itself."""
    return " ".join(traceback.format_exception_only(error)[-1].split())
