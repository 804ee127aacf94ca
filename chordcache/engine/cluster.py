"""The nodes of a cluster as a backend: which node gets which unit, which node is not used any more, and why.

Dask and Ray only carry calls to a named node and results back. The choice of the node is made here, the same for both.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from chordcache.engine import terminal
from chordcache.engine.choice import Engine
from chordcache.engine.limits import Limits
from chordcache.engine.needs import Needs
from chordcache.engine.node import Job, Unfit
from chordcache.engine.processes import Answer, Death, Unit
from chordcache.engine.signals import uninterruptible
from chordcache.errors import CacheWriteError, ChordcacheError, UsageError, WorkersDiedError

CONNECT_SECONDS = 4.0
"""Longest time to reach a scheduler, [seconds]"""

_GREETING_BYTES = 8
"""Number of bytes by which a scheduler is known. Dask's are the length of what follows"""

_MAX_GREETING_BYTES = 1 << 20

_POLL_SECONDS = 0.1

_LOOK_SECONDS = 1.0
"""Time from one look at the list of nodes to the next, [seconds]"""

_NODES_SECONDS = 60.0
"""Time that a run waits for a node when there is none, [seconds]"""

_REST_SECONDS = 5.0
"""Time that a node gets nothing after it lost a unit, [seconds]. Ray takes long to see that a node is gone, and a unit
that is sent there comes back at once"""

_MAX_DEATHS_OF_NODE = 5
"""Number of units in a row that kill their workers on a node, until the node is not used any more"""

_MAX_LOSSES = 5
"""Number of nodes that a unit may lose before it counts as the cause"""


class NodeLost:
    """Result of a unit whose node left the cluster, or whose process there ended."""


@dataclass(frozen=True)
class Ended:
    """A unit that a cluster has returned."""

    handle: Any
    result: list[Any] | Unfit | NodeLost | ChordcacheError


class Cluster(Protocol):
    """A connection to a cluster."""

    def nodes(self) -> dict[str, int]:
        """Return the number of tasks that each living node runs at once, by the name of the node."""
        ...

    def start(self, node: str, job: Job, unit: Unit) -> Any:
        """Run a unit on a node, and return a hashable handle of it."""
        ...

    def ended(self, timeout_seconds: float) -> list[Ended]:
        """Return the units that have ended, after at most this time."""
        ...

    def drop(self, handle: Any) -> None:
        """Forget a unit whose node is gone."""
        ...

    def close(self, run: str) -> None:
        """End all that the run has on the nodes, and the connection."""
        ...


def check_address(engine: Engine) -> None:
    """Raise ``UsageError`` if the address of an engine's cluster does not answer in time."""
    address = str(engine.address)
    host, colon, port = address.removeprefix("tcp://").rpartition(":")
    if colon and port.isdigit():  # the libraries try again for minutes, or without an end
        try:
            _greet(engine.name, host, int(port))
        except OSError as error:
            reason = error.strerror or str(error)
            raise UsageError(
                f"address: got '{address}', which does not answer ({reason}). Start the cluster."
            ) from None
    elif engine.name == "ray":
        raise UsageError(f"address: got '{address}', expected host:port of the head, such as 10.0.0.1:6379")


def connect(engine: Engine) -> Cluster:
    """Connect to the cluster of an engine. Raise ``UsageError`` if it does not answer in time."""
    check_address(engine)
    address = str(engine.address)
    if engine.name == "ray":
        from chordcache.engine import ray_cluster  # an optional package

        return ray_cluster.connect(address)
    from chordcache.engine import dask_cluster  # an optional package

    return dask_cluster.connect(address)


def _greet(engine: str, host: str, port: int) -> None:
    """Wait for the first bytes of a scheduler of Dask or a head of Ray. Both speak first, unless they use TLS."""
    end = time.monotonic() + CONNECT_SECONDS
    with socket.create_connection((host, port), CONNECT_SECONDS) as connection:
        if engine == "ray" and os.environ.get("RAY_USE_TLS", "").lower() in ("1", "true"):
            return
        connection.settimeout(max(0.1, end - time.monotonic()))
        first = connection.recv(_GREETING_BYTES, socket.MSG_WAITALL)
    if len(first) < _GREETING_BYTES:
        is_known = False
    elif engine == "ray":
        is_known = first[3] == 4  # HTTP/2 begins with a frame of the type SETTINGS
    else:
        is_known = 0 < int.from_bytes(first, "little") < _MAX_GREETING_BYTES
    if not is_known:
        raise ConnectionError(f"it is not {engine.capitalize()}")


@dataclass
class _Node:
    """A node as the driver knows it."""

    num_slots: int
    running: set[Any] = field(default_factory=set)
    num_deaths: int = 0
    """Number of units in a row that killed their workers"""
    is_fit: bool = True
    rests_until: float = 0.0
    """[seconds] Time of the monotonic clock until which it gets nothing, since it may be about to leave the cluster"""

    @property
    def num_free(self) -> int:
        """Number of units that the node takes: one runs in each slot, and one waits for it."""
        is_used = self.is_fit and time.monotonic() >= self.rests_until
        return 2 * self.num_slots - len(self.running) if is_used else 0


class ClusterWorkers:
    """The nodes of a cluster, as a backend.

    Parameters
    ----------
    cluster : Cluster
        The connection. It belongs to this object.
    function, limits, needs
        As in ``pool.run``.
    """

    def __init__(self, cluster: Cluster, function: Callable[[Any], Any], limits: Limits, needs: Needs) -> None:
        self._cluster = cluster
        self._job = Job(uuid.uuid4().hex, function, limits, needs)
        self._nodes: dict[str, _Node] = {}
        self._waiting: deque[Unit] = deque()
        self._units: dict[Any, tuple[Unit, str]] = {}
        """Unit and node of each handle"""
        self._losses: Counter[int] = Counter()
        """Number of nodes that were lost under a unit, by the number of its first task"""
        self._not_written: set[int] = set()
        """Numbers of the first tasks of units that found a disk of a node full or broken"""
        self._num_left = 0
        """Number of nodes that have left the cluster"""
        self._looked_at = 0.0
        self._had_nodes_at = time.monotonic()
        self._look()

    @property
    def width(self) -> int:
        """Number of units that keeps all fit nodes busy, at least 1."""
        return max(1, sum(2 * node.num_slots for node in self._nodes.values() if node.is_fit))

    def submit(self, unit: Unit) -> None:
        """Send a unit to the node with the most room, not to one that it avoids if there is another one."""
        self._waiting.append(unit)
        self._dispatch()

    def wait(self) -> list[Answer]:
        """Wait for units to end, and return them with their results."""
        answers: list[Answer] = []
        while not answers:
            with uninterruptible():  # the libraries do not survive an exception in the middle of a call
                ended = self._cluster.ended(_POLL_SECONDS)
            for each in ended:
                answers += self._take(each)
            if time.monotonic() - self._looked_at >= _LOOK_SECONDS:
                answers += self._look()
            self._dispatch()
        return answers

    @uninterruptible()
    def close(self) -> None:
        """End the workers on all nodes, and the connection."""
        self._cluster.close(self._job.run)

    def _dispatch(self) -> None:
        for _ in range(len(self._waiting)):
            unit = self._waiting.popleft()
            node = self._node_for(unit)
            if node is None:
                self._waiting.append(unit)
                continue
            with uninterruptible():
                handle = self._cluster.start(node, self._job, unit)
            self._units[handle] = unit, node
            self._nodes[node].running.add(handle)

    def _node_for(self, unit: Unit) -> str | None:
        """Return the node with the most room, or None if all that may run the unit are busy."""
        fit = {name: node for name, node in self._nodes.items() if node.is_fit}
        others = {name: node for name, node in fit.items() if name not in unit.avoid}
        readers = {name: node for name, node in fit.items() if name not in unit.cannot_read}
        allowed = others or readers or fit
        best = max(allowed, key=lambda name: allowed[name].num_free, default=None)
        return best if best is not None and allowed[best].num_free > 0 else None

    def _take(self, ended: Ended) -> list[Answer]:
        unit, name = self._units.pop(ended.handle, (None, ""))
        if unit is None:  # its node was given up meanwhile
            return []
        node = self._nodes.get(name)
        if node is not None:
            node.running.discard(ended.handle)
        if isinstance(ended.result, ChordcacheError):
            self._give_up_or_raise(name, unit, ended.result)
            return []
        if isinstance(ended.result, Unfit):
            self._give_up(name, ended.result.reason)
            self._waiting.append(unit)
            return []
        if isinstance(ended.result, NodeLost):
            if node is not None:
                node.rests_until = time.monotonic() + _REST_SECONDS
            unit.avoid |= {name}
            return self._lost(unit)
        if node is not None:
            has_died = any(isinstance(each, Death) and each.cause != "timeout" for each in ended.result)
            node.num_deaths = node.num_deaths + 1 if has_died else 0
            if node.num_deaths == _MAX_DEATHS_OF_NODE and len(self._fit_nodes()) > 1:
                self._give_up(name, f"{_MAX_DEATHS_OF_NODE} tasks in a row killed their workers there")
        unit.node = name
        return [(unit, ended.result)]

    def _give_up_or_raise(self, name: str, unit: Unit, error: ChordcacheError) -> None:
        """Give up a node whose disk cannot be written to. Raise if it is the second node of the unit, or the last."""
        is_doubtful = isinstance(error, CacheWriteError) and unit.first not in self._not_written
        if not is_doubtful or not {*self._fit_nodes()} - {name}:
            raise error
        self._not_written.add(unit.first)
        self._give_up(name, str(error))
        self._waiting.append(unit)

    def _fit_nodes(self) -> list[str]:
        return [name for name, node in self._nodes.items() if node.is_fit]

    def _give_up(self, name: str, reason: str) -> None:
        """Send nothing more to a node, and say so once."""
        node = self._nodes.get(name)
        if node is not None and node.is_fit:
            node.is_fit = False
            terminal.say(f"node {name} gets no work: {reason}", shown=True)

    def _lost(self, unit: Unit) -> list[Answer]:
        """Run a unit again whose node is gone, unless it has lost several nodes."""
        self._losses[unit.first] += 1
        if self._losses[unit.first] < _MAX_LOSSES:
            self._waiting.append(unit)
            return []
        death = Death("signal", f"{_MAX_LOSSES} nodes or processes of the cluster ended while it ran")
        return [(unit, [death for _ in unit.tasks])]

    def _look(self) -> list[Answer]:
        """Compare the nodes with those that the cluster has now."""
        with uninterruptible():
            found = self._cluster.nodes()
        for name, num_slots in found.items():
            self._nodes.setdefault(name, _Node(num_slots)).num_slots = num_slots
        answers = []
        for name in self._nodes.keys() - found.keys():
            self._num_left += 1
            for handle in self._nodes.pop(name).running:
                unit, _ = self._units.pop(handle)
                self._cluster.drop(handle)
                answers += self._lost(unit)
        now = self._looked_at = time.monotonic()
        if self._fit_nodes():
            self._had_nodes_at = now
        elif now - self._had_nodes_at > _NODES_SECONDS or (self._nodes and not self._units):
            raise WorkersDiedError(
                f"the cluster has no node that can work: {self._num_left} nodes have left it, "
                f"{len(self._nodes)} were refused. "
                "Look at the nodes, then run the same command."
            )
        return answers
