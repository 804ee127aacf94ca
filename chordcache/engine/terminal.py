"""Progress bar and messages of a run, on standard error."""

from __future__ import annotations

import sys
from typing import Any

from tqdm import tqdm


def progress_bar(total: int | None, unit: str, *, shown: bool) -> tqdm[Any]:
    """Return a progress bar on standard error, hidden unless ``shown`` is True and standard error is a terminal."""
    disable = not (shown and sys.stderr.isatty())
    return tqdm(total=total, unit=unit, file=sys.stderr, disable=disable, smoothing=0.05)


def say(message: str, *, shown: bool) -> None:
    """Print a line on standard error, above a progress bar, if ``shown`` is True."""
    if shown:
        tqdm.write(f"chordcache: {message}", file=sys.stderr)
