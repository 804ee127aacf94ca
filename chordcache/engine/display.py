"""The choice of what a run says on standard error, and of the log file that it writes."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Display:
    """The messages of a run, as the options of the command line choose them.

    The public functions take it as ``progress``, where True means ``Display()``, and False means no message at all.
    """

    progress: bool = True
    """True to show progress: a bar on a terminal, else a line at the start, from time to time, and at the end"""
    messages: bool = True
    """True to name the first failures at the end, and to say what the run waits for"""
    verbose: bool = False
    """True to name each failure as it happens, instead of the first ones at the end"""
    log_file: str | os.PathLike[str] | None = None
    """File to append one line of JSON for each event to"""
    interval_seconds: float = 30.0
    """[seconds] Time from one line of progress to the next, also in the log file"""


def display_of(progress: bool | Display) -> Display:
    """Return the display that an argument ``progress`` stands for."""
    if isinstance(progress, Display):
        return progress
    return Display(progress=progress, messages=progress)
