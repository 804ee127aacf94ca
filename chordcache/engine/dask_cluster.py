"""A cluster of Dask: the workers of a scheduler that runs already."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from typing import Any

from distributed import Client, Future, KilledWorker
from distributed.client import ClosedClientError

from chordcache.engine.on_node import CONNECT_SECONDS, Exit, NodeLost, ender, starter
from chordcache.errors import UsageError, WorkersDiedError

_RESULT_SECONDS = 10
"""Longest time to fetch a result from the node that has it, [seconds]"""

_LOST = (KilledWorker, CancelledError, TimeoutError, OSError)
"""Errors of a result whose worker has ended, or does not answer"""

_NO_SCHEDULER = (ClosedClientError, OSError, RuntimeError)
"""Errors of a client that could not connect again to its scheduler"""


def _say_nothing_of_lost_nodes() -> None:
    """Turn off what Dask writes to standard error. Nodes that end are reported by the driver."""
    for name in list(logging.root.manager.loggerDict):
        if name.partition(".")[0] == "distributed":  # several have levels of their own
            logging.getLogger(name).setLevel(logging.CRITICAL)
    logging.getLogger("asyncio").addFilter(_is_not_of_gather)


def _is_not_of_gather(record: logging.LogRecord) -> bool:
    """Return False for an exception that Dask uses inside, and does not catch if a node ends while it has a result."""
    kind = record.exc_info[0] if record.exc_info else None
    return kind is None or (kind.__module__, kind.__name__) != ("distributed.client", "AllExit")


@contextmanager
def _lost_as_error() -> Iterator[None]:
    """Turn the errors of a client whose scheduler has ended into ``WorkersDiedError``."""
    try:
        yield
    except _NO_SCHEDULER as error:
        raise WorkersDiedError(
            f"the scheduler of Dask does not answer any more ({error}). Start it, then run the same command."
        ) from None


def connect(address: str) -> DaskCluster:
    """Connect to a scheduler by ``host:port`` or by the path of its scheduler file."""
    _say_nothing_of_lost_nodes()
    where: dict[str, Any] = {"scheduler_file": address} if os.path.exists(address) else {"address": address}
    try:
        return DaskCluster(Client(**where, timeout=CONNECT_SECONDS, set_as_default=False, name="chordcache"))
    except (OSError, ValueError, TimeoutError) as error:
        raise UsageError(f"address: got '{address}', which is not a scheduler of Dask ({error})") from None


class DaskCluster:
    """The workers of a Dask scheduler. Each is a node."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._num_started = 0

    def nodes(self) -> dict[str, int]:
        """Return the number of threads of each worker."""
        with _lost_as_error():
            workers = self._client.scheduler_info(n_workers=-1).get("workers", {})  # none while it connects again
        return {name: int(facts["nthreads"]) for name, facts in workers.items()}

    def start(self, node: str, module: str, line: str, run: str) -> Future:
        """Run a module of chordcache on a worker with a line of input, and return a hashable handle of it."""
        self._num_started += 1
        with _lost_as_error():
            return self._client.submit(
                starter(), module, line, run,
                key=f"chordcache-{run}-{self._num_started}", pure=False, workers=[node], allow_other_workers=False,
            )  # fmt: skip

    def result(self, handle: Future) -> Exit | NodeLost | None:
        """Return how a module ended, or None if it runs."""
        if not handle.done():
            return None
        try:
            return Exit(*handle.result(timeout=_RESULT_SECONDS))
        except _LOST:
            return NodeLost()
        finally:
            handle.release()  # a result that is not released is kept, and computed again if its worker ends

    def close(self, run: str) -> None:
        """End the processes of a run on all workers."""
        if self._client.status == "running":  # else the scheduler is gone, and the workers with it
            with suppress(*_LOST, *_NO_SCHEDULER, ValueError):
                self._client.run(ender(), run, on_error="ignore")
        self._client.close(timeout=CONNECT_SECONDS)
