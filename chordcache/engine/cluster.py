"""The connection to a cluster of Dask or Ray that runs already."""

from __future__ import annotations

import os
import socket
import time
from typing import TYPE_CHECKING, TypeAlias

from chordcache.engine.choice import Engine
from chordcache.engine.on_node import CONNECT_SECONDS
from chordcache.errors import UsageError

_GREETING_BYTES = 8
"""Number of bytes by which a scheduler is known. Dask's are the length of what follows"""

_MAX_GREETING_BYTES = 1 << 20


if TYPE_CHECKING:  # optional packages
    from chordcache.engine.dask_cluster import DaskCluster
    from chordcache.engine.ray_cluster import RayCluster

Cluster: TypeAlias = "DaskCluster | RayCluster"
"""A connection to a cluster"""


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

        return ray_cluster.RayCluster(address)
    from chordcache.engine import dask_cluster  # an optional package

    return dask_cluster.DaskCluster(address)


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
