"""Worker side of the engine, which runs the tasks that a worker process is sent. It does not depend on video either."""

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
"""Environment of a worker. Each uses one thread, since the processes run in parallel."""

SAFE_PATH = {"PYTHONSAFEPATH": "1"}
"""Environment of processes started as ``python -m`` or ``-c``: the working folder may hold a foreign ``random.py``."""


@dataclass(frozen=True)
class Crash:
    """Result of a task that did not return."""

    cause: str
    """"timeout", "oom" (out of memory), "signal" (its worker died) or "bug" (it raised, or cannot be sent)"""
    message: str
    attempts: int = 1


def start_worker(parent: int, crash_log_fd: int, num_slots: int, limits: Limits) -> None:
    """Make this process a worker.

    The parent handles Ctrl-C. A worker ends when its parent ends, in whatever way that ends. Printed text is not part
    of a result. The worker's last messages go to a slot of the parent's ``CrashLog``.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the others stay as inherited: under nohup, SIGHUP stays ignored
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    with suppress(OSError):  # standard error may be closed
        os.dup2(2, 1)
    sys.stdout = sys.stderr  # unbuffered: text in the buffer of stdout would be lost if the worker is killed
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
    slot = None
    with suppress(OSError):  # without /proc, or with a limit on the size of files, time is not limited
        slot = Slot(parent, crash_log_fd, num_slots)
    watchdog.start(limits, slot)


def run_unit(function: Callable[[Any], Any], first: int, tasks: list[Any]) -> list[Any]:
    """Run tasks one after the other; ``first`` is the number of the first."""
    try:
        return [run_task(function, number, task) for number, task in enumerate(tasks, first)]
    finally:
        watchdog.stop()


def run_task(function: Callable[[Any], Any], number: int, task: Any) -> Any:
    """Run one task under its limits; an exception that it raises becomes a ``Crash``."""
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
    """Return an exception as one line, even if it fails to print itself."""
    return " ".join(traceback.format_exception_only(error)[-1].split())
