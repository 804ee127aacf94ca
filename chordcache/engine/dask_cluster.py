"""A cluster of Dask: the workers of a scheduler that runs already."""

from __future__ import annotations

import logging
import os
from typing import Any

from distributed import Client, Future
from distributed.client import ClosedClientError

from chordcache.engine.cluster import CONNECT_SECONDS, Result, starter
from chordcache.errors import StoppedError, UsageError


def _say_nothing_of_lost_nodes() -> None:
    """Turn off what Dask writes to standard error."""
    for name in list(logging.root.manager.loggerDict):
        if name.partition(".")[0] == "distributed":  # several have levels of their own
            logging.getLogger(name).setLevel(logging.CRITICAL)
    logging.getLogger("asyncio").addFilter(_is_not_of_gather)


def _is_not_of_gather(record: logging.LogRecord) -> bool:
    """Return False for an exception that Dask uses inside, and does not catch if a node ends while it has a result."""
    kind = record.exc_info[0] if record.exc_info else None
    return kind is None or (kind.__module__, kind.__name__) != ("distributed.client", "AllExit")


class DaskCluster:
    """The workers of a Dask scheduler, by ``host:port`` or by the path of its scheduler file. Each is a node."""

    def __init__(self, address: str) -> None:
        _say_nothing_of_lost_nodes()
        where: dict[str, Any] = {"scheduler_file": address} if os.path.exists(address) else {"address": address}
        try:
            self._client = Client(**where, timeout=CONNECT_SECONDS, set_as_default=False, name="chordcache")
        except (OSError, ValueError, TimeoutError) as error:
            raise UsageError(f"engine: got 'dask' at '{address}', which is not a scheduler of Dask ({error})") from None

    def nodes(self) -> dict[str, int]:
        """Return the number of threads of each worker."""
        try:
            workers = self._client.scheduler_info(n_workers=-1).get("workers", {})  # none while it connects again
        except (ClosedClientError, OSError, RuntimeError) as error:
            raise _lost(error) from None
        return {name: int(facts["nthreads"]) for name, facts in workers.items()}

    def start(self, node: str, order: str) -> Future:
        """Build a part on a worker, or on another one if it is lost. Return a hashable handle."""
        try:
            return self._client.submit(
                starter(), order, pure=False, retries=3, workers=[node], allow_other_workers=True
            )  # fmt: skip
        except (ClosedClientError, OSError, RuntimeError) as error:
            raise _lost(error) from None

    def result(self, handle: Future) -> Result | None:
        """Return how a part ended, or None if it runs."""
        if not handle.done():
            return None
        if handle.status != "finished":
            raise _lost(handle.exception(timeout=CONNECT_SECONDS) if handle.status == "error" else handle.status)
        result: Result = handle.result(timeout=CONNECT_SECONDS)
        handle.release()  # a result that is not released is kept, and computed again if its worker ends
        return result

    def close(self) -> None:
        """Give the connection back."""
        self._client.close(timeout=CONNECT_SECONDS)


def _lost(error: object) -> StoppedError:
    return StoppedError(f"Dask has lost a part, its node or its scheduler ({error}). Run the same command.")
