"""A network in this process, for the engine "inline" and wherever else no process of its own was started."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chordcache.engine.networks.batches import Batches, Input
from chordcache.engine.networks.network import NetworkError, kind_of


class StreamHere:
    """The stream of one video to a network in this process. Batches hold inputs of this video alone.

    Parameters
    ----------
    batches : Batches
        The network.
    """

    def __init__(self, batches: Batches) -> None:
        self._batches = batches
        self._waiting: list[Input] = []
        self._outputs: list[Any] = []

    def send(self, item: Any) -> None:
        """Keep an input until a batch is full."""
        if self._waiting and kind_of(item) != kind_of(self._waiting[0].item):
            self._compute()
        self._waiting.append(Input(self, item))
        if len(self._waiting) >= self._batches.size:
            self._compute()

    def ready(self) -> list[Any]:
        """Return the outputs so far."""
        outputs, self._outputs = self._outputs, []
        return _checked(outputs)

    def rest(self) -> list[Any]:
        """Compute what waits, and return the outputs."""
        self._compute()
        return self.ready()

    def _compute(self) -> None:
        if self._waiting:
            self._outputs += self._batches.run(self._waiting)
            self._waiting = []


def _checked(outputs: Sequence[Any]) -> list[Any]:
    """Return outputs. Raise the first of them that is a ``NetworkError``."""
    for output in outputs:
        if isinstance(output, NetworkError):
            raise output
    return list(outputs)
