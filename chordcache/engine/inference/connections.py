"""The networks that this process can use.

Those without a process of their own, as with the engine "inline", are computed in this one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from chordcache import progress
from chordcache.engine.inference.client import NetworkElsewhere, StreamElsewhere
from chordcache.engine.inference.network import Batches, Input, Network, NetworkError, kind_of


class NetworkHere:
    """A network in this process, on its first device."""

    def __init__(self, network: Network) -> None:
        with progress.setting_up():
            self._batches = Batches(network.load(network.devices()[0]), network.batch_size)

    def stream(self) -> StreamHere:
        """Return the stream of a new video."""
        return StreamHere(self._batches)


class StreamHere:
    """The stream of one video to a network in this process. Batches hold inputs of this video alone."""

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
        """Return the outputs so far. Raises ``NetworkError``."""
        outputs, self._outputs = self._outputs, []
        for output in outputs:
            if isinstance(output, NetworkError):
                raise output
        return outputs

    def rest(self) -> list[Any]:
        """Compute what waits, and return the outputs. Raises ``NetworkError``."""
        self._compute()
        return self.ready()

    def _compute(self) -> None:
        if self._waiting:
            self._outputs += self._batches.run(self._waiting)
            self._waiting = []


Stream: TypeAlias = StreamElsewhere | StreamHere
"""The inputs that one video sends to a network, and the outputs in the same order"""

_addresses: Mapping[str, Sequence[str]] = {}
"""Key of each network that has processes, to their sockets"""

_connections: dict[str, NetworkElsewhere | NetworkHere] = {}


def use(addresses: Mapping[str, Sequence[str]]) -> None:
    """Take networks from these sockets from now on, instead of loading them in this process."""
    global _addresses
    _addresses = addresses


def connection_to(network: Network) -> NetworkElsewhere | NetworkHere:
    """Return the connection of this process to a network, the same each time."""
    if network.key not in _connections:
        addresses = _addresses.get(network.key)
        _connections[network.key] = NetworkElsewhere(network, addresses) if addresses else NetworkHere(network)
    return _connections[network.key]
