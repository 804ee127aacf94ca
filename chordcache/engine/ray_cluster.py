"""A cluster of Ray: the nodes of a head that runs already."""

from __future__ import annotations

import logging
import os
import signal
import socket
import time
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from chordcache.engine.cluster import Result, starter
from chordcache.engine.worker import STOP_SIGNALS
from chordcache.errors import StoppedError, UsageError

_HEAD_SECONDS = 20.0
"""Time that a head may take to come back, [seconds]. Ray ends the process of the driver after 60 s, whatever it does"""


class RayCluster:
    """The nodes of a Ray cluster, by ``host:port`` of its head.

    While it is connected, standard output goes to standard error: Ray's processes write their messages there.
    """

    def __init__(self, address: str) -> None:
        handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS}
        self._stdout = os.dup(1)
        os.dup2(2, 1)
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.CRITICAL)
        except (ConnectionError, RuntimeError, ValueError) as error:
            self._give_stdout_back()
            raise UsageError(f"engine: got 'ray' at '{address}', which is not a head of Ray ({error})") from None
        for number, handler in handlers.items():  # Ray has put its own in their place
            signal.signal(number, handler)

        self._start = ray.remote(num_cpus=1, max_retries=3, retry_exceptions=True)(starter())
        host, _, port = address.rpartition(":")
        self._head = host, int(port)
        self._answered_at = time.monotonic()
        self._nodes: dict[str, int] = {}

    def _give_stdout_back(self) -> None:
        os.dup2(self._stdout, 1)
        os.close(self._stdout)

    def nodes(self) -> dict[str, int]:
        """Return the number of processors of each node. They are as before while the head does not answer."""
        try:
            socket.create_connection(self._head, 1).close()
        except OSError as error:
            if time.monotonic() - self._answered_at > _HEAD_SECONDS:
                raise StoppedError(
                    f"the head of Ray does not answer any more ({error}). Start it, then run the same command."
                ) from None
            return self._nodes
        self._answered_at = time.monotonic()
        processors = {node["NodeID"]: int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]}
        self._nodes = {name: num_processors for name, num_processors in processors.items() if num_processors}
        return self._nodes

    def start(self, node: str, order: str) -> Any:
        """Build a part on a node, or on another one if it is lost. Return a hashable handle."""
        place = NodeAffinitySchedulingStrategy(node, soft=True)
        return self._start.options(scheduling_strategy=place).remote(order)

    def result(self, handle: Any) -> Result | None:
        """Return how a part ended, or None if it runs."""
        if not ray.wait([handle], timeout=0)[0]:
            return None
        try:
            result: Result = ray.get(handle)
        except RayError as error:
            raise StoppedError(f"Ray has lost a part or its node ({error}). Run the same command.") from None
        return result

    def close(self) -> None:
        """Give the connection back. Ray ends the processes of the parts that still run."""
        ray.shutdown()
        self._give_stdout_back()
