"""A cluster of Dask: the workers of a scheduler that runs already."""

from __future__ import annotations

import logging
import os
import queue
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Any

from distributed import Client, Future, KilledWorker

from chordcache.engine.cluster import CONNECT_SECONDS, Ended, NodeLost
from chordcache.engine.node import Job, end_here, run_here
from chordcache.engine.processes import Unit
from chordcache.errors import ChordcacheError, UsageError

_RESULT_SECONDS = 10
"""Longest time to fetch a result from the node that has it, [seconds]"""

_LOST = (KilledWorker, CancelledError, TimeoutError, OSError)
"""Errors of a result whose worker has ended, or does not answer"""


def connect(address: str) -> DaskCluster:
    """Connect to a scheduler by ``host:port`` or by the path of its scheduler file."""
    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # nodes that end are reported by chordcache
    where: dict[str, Any] = {"scheduler_file": address} if os.path.exists(address) else {"address": address}
    try:
        return DaskCluster(Client(**where, timeout=CONNECT_SECONDS, set_as_default=False, name="chordcache"))
    except (OSError, ValueError, TimeoutError) as error:
        raise UsageError(f"address: got '{address}', which is not a scheduler of Dask ({error})") from None


class DaskCluster:
    """The workers of a Dask scheduler. Each is a node."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._done: queue.SimpleQueue[Future] = queue.SimpleQueue()
        self._num_started = 0

    def nodes(self) -> dict[str, int]:
        """Return the number of threads of each worker."""
        workers = self._client.scheduler_info(n_workers=-1)["workers"]
        return {name: int(facts["nthreads"]) for name, facts in workers.items()}

    def start(self, node: str, job: Job, unit: Unit) -> Future:
        """Run a unit on a worker."""
        self._num_started += 1
        future = self._client.submit(
            run_here, job, unit.first, unit.tasks,
            key=f"chordcache-{job.run}-{self._num_started}", pure=False, workers=[node], allow_other_workers=False,
        )  # fmt: skip
        future.add_done_callback(self._done.put)
        return future

    def ended(self, timeout_seconds: float) -> list[Ended]:
        """Return the units that have ended."""
        found = []
        try:
            found.append(self._done.get(timeout=timeout_seconds))
            while True:
                found.append(self._done.get_nowait())
        except queue.Empty:
            return [self._ended(future) for future in found]

    def _ended(self, future: Future) -> Ended:
        try:
            return Ended(future, future.result(timeout=_RESULT_SECONDS))
        except ChordcacheError as error:
            return Ended(future, error)
        except _LOST:
            return Ended(future, NodeLost())
        finally:
            future.release()  # a result that is not released is kept, and computed again if its worker ends

    def drop(self, handle: Future) -> None:
        """Forget a unit."""
        handle.cancel()

    def close(self, run: str) -> None:
        """End the processes of a run on all workers."""
        with suppress(*_LOST, ValueError):  # the scheduler may be gone, and the workers with it
            self._client.run(end_here, run, on_error="ignore")
        self._client.close(timeout=CONNECT_SECONDS)
