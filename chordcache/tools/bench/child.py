"""The process of one row. It gives each row its own memory, and a crash of a library ends only one row."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from chordcache.engine.child import Worker
from chordcache.engine.limits import NO_LIMITS
from chordcache.engine.worker import Crash, Raised
from chordcache.errors import ChordcacheError, printable
from chordcache.tools.bench.setup import RowSetup

_PATIENCE_SECONDS = 300.0
"""[seconds] Time that an answer may take before the process is ended"""

_rows: list[Any] = []
"""In the process of a row, the row"""


def _answer(task: tuple[RowSetup, str]) -> Any:
    """Answer a request, in the process of the row."""
    setup, request = task
    if not _rows:
        from chordcache.tools.bench.row_process import Row  # loads PyTorch, which the parent does not need

        with open(os.devnull, "w") as nothing:  # libraries may print
            for number in (1, 2):
                os.dup2(nothing.fileno(), number)
        _rows.append(Row(setup))
    row = _rows[0]
    if request == "is_slow":
        return row.is_slow
    return {"round": row.measure, "cold": row.measure_cold, "stages": row.stages}[request]()


class RowFailedError(ChordcacheError):
    """A row that cannot be measured. The message is the reason."""


class RowProcess:
    """The process of one row, as its parent sees it.

    Parameters
    ----------
    setup : RowSetup
        The row.
    """

    def __init__(self, setup: RowSetup) -> None:
        self._setup = setup
        self._worker = Worker(_answer, replace(NO_LIMITS, file_seconds=_PATIENCE_SECONDS), environment={})

    def ask(self, request: str) -> Any:
        """Return the answer to "is_slow", "round", "cold" or "stages".

        Raises
        ------
        RowFailedError
            If the process ended or took too long.
        """
        (answer,) = self._worker.run(0, [(self._setup, request)])
        if isinstance(answer, Raised):
            raise RowFailedError(printable(str(answer.error)))
        if isinstance(answer, Crash):
            late = f"no answer after {_PATIENCE_SECONDS:g} s"
            raise RowFailedError(late if answer.cause == "timeout" else printable(answer.message))
        return answer

    def close(self) -> None:
        """End the process."""
        self._worker.close()
