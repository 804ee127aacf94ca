"""Progress bar and messages of a run, on standard error."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Any

from tqdm import tqdm

from chordcache.errors import printable, printable_lines

_FORMAT = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}{postfix}]"
"""Format of a bar that does not estimate the time left by the number of items"""


_COLUMNS = 80
"""Width of a terminal that does not state one"""


def is_terminal() -> bool:
    """Return whether standard error is a terminal."""
    return sys.stderr is not None and sys.stderr.isatty()


def progress_bar(
    total: int | None, unit: str, *, shown: bool, estimates: bool = True, name: str | None = None
) -> tqdm[Any]:
    """Return a progress bar on standard error, hidden unless ``shown`` is True and standard error is a terminal.

    With ``estimates``, it shows the time left by the number of items. ``name`` stands before the bar.
    """
    disable = not (shown and is_terminal())
    bar_format = None if estimates else _FORMAT
    width = None if disable or _states_width() else _COLUMNS
    return tqdm(
        total=total, unit=unit, desc=name, file=sys.stderr, disable=disable, smoothing=0.05, bar_format=bar_format,
        ncols=width, dynamic_ncols=width is None,
    )  # fmt: skip


def _states_width() -> bool:
    """Return False for a terminal of width 0, such as that of a container. tqdm would draw an empty bar."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns > 0
    except (OSError, ValueError):
        return True


def say(message: str, *, shown: bool) -> None:
    """Print a line on standard error, above a progress bar, if ``shown`` is True."""
    if shown:
        tqdm.write(printable_lines(f"chordcache: {message}"), file=sys.stderr)


def write_line(line: str) -> None:
    """Print a line on standard error, above a progress bar. A closed or full standard error does not end the run."""
    line = printable(line)
    with suppress(OSError, ValueError):
        if is_terminal():
            tqdm.write(line, file=sys.stderr)
        else:  # one write, so that lines of two threads do not mix, and not tqdm's lock, which a signal may leave held
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()
