"""Standard output that takes no more data, such as a file on a full disk."""

from __future__ import annotations

import os
import sys

import click


def lost_output(error: OSError) -> str | None:
    """Return the message for an error of a print, and drop the rest of the output. None for another error.

    Python would otherwise fail to write the rest again at its end.
    """
    import traceback  # not before: --help does not need it

    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, BrokenPipeError) or not frames or frames[-1].filename != click.utils.__file__:
        return None
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
    reason = os.strerror(error.errno).lower() if error.errno else str(error)
    return f"cannot write to standard output: {reason}. Make room, or choose another file, and run the same command."
