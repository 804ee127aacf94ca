"""Tasks that run in the process itself, so that a debugger stops in them. A crash ends the process."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from chordcache.engine.processes import Answer, Unit
from chordcache.engine.worker import Raised, dump_task, load_result, run_task


class InlineWorkers:
    """The process itself, as a backend. Limits of time and memory do not apply."""

    width = 1

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function
        self._waiting: deque[Unit] = deque()

    def submit(self, unit: Unit) -> None:
        """Note a unit. ``wait`` runs it."""
        self._waiting.append(unit)

    def wait(self) -> list[Answer]:
        """Run the next unit."""
        unit = self._waiting.popleft()
        results = [load_result(run_task(self._function, dump_task(task))) for task in unit.tasks]
        for result in results:
            if isinstance(result, Raised):
                raise result.error
        return [(unit, results)]

    def close(self) -> None:
        """Forget what was not run."""
        self._waiting.clear()
