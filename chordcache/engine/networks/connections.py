"""The networks that this process can use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from chordcache import progress
from chordcache.engine.networks.batches import Batches
from chordcache.engine.networks.client import NetworkElsewhere
from chordcache.engine.networks.here import StreamHere
from chordcache.engine.networks.network import Network, Stream


class Connection(Protocol):
    """A network as one process sees it."""

    def stream(self) -> Stream:
        """Return the stream of a new video."""
        ...


class NetworkHere:
    """A network in this process.

    Parameters
    ----------
    network : Network
        The network. Its first device is used.
    """

    def __init__(self, network: Network) -> None:
        with progress.setting_up():
            self._batches = Batches(network.load(network.devices()[0]), network.batch_size)

    def stream(self) -> Stream:
        """Return the stream of a new video."""
        return StreamHere(self._batches)


_addresses: Mapping[str, Sequence[str]] = {}
"""Key of each network that has processes, to their sockets"""

_connections: dict[str, Connection] = {}


def use(addresses: Mapping[str, Sequence[str]]) -> None:
    """Take networks from these sockets from now on, instead of loading them in this process."""
    global _addresses
    _addresses = addresses


def connection_to(network: Network) -> Connection:
    """Return the connection of this process to a network, the same each time."""
    if network.key not in _connections:
        addresses = _addresses.get(network.key)
        _connections[network.key] = NetworkElsewhere(network, addresses) if addresses else NetworkHere(network)
    return _connections[network.key]
