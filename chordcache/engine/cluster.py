"""The address of a cluster of Dask or Ray, and the function that builds a part on a node."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from typing import TypeAlias

from chordcache.engine.choice import Engine
from chordcache.errors import UsageError

CONNECT_SECONDS = 4.0
"""Longest time to reach a scheduler, [seconds]"""

Result: TypeAlias = tuple[str, int, str]
"""Host of a part that has ended, its exit code, and the last line that it printed"""

_GREETING_BYTES = 8
"""Number of bytes by which a scheduler is known. Dask's are the length of what follows"""

_MAX_GREETING_BYTES = 1 << 20


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
                f"engine: got '{engine.name}' at '{address}', which does not answer ({reason}). Start the cluster."
            ) from None
    elif engine.name == "ray":
        raise UsageError(f"engine: got 'ray' at '{address}', expected host:port of the head, such as 10.0.0.1:6379")


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


def starter() -> Callable[[str], Result]:
    """Return the function that builds a part on a node, with an order for ``part_process``.

    Dask and Ray send a function that lies inside another one with its code. It needs the standard library only, so that
    a node without chordcache says that chordcache is missing. An exception makes them run the part again.
    """

    def run_here(order: str) -> Result:
        import json
        import os
        import socket
        import subprocess
        import sys

        command = [sys.executable, "-m", "chordcache.building.part_process"]
        pipe, out = subprocess.PIPE, subprocess.STDOUT
        # The pipe of its standard input ends when this process does, and the part with it
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=out, text=True, errors="replace") as process:
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                process.stdin.write(order + "\n")
                process.stdin.flush()
            except OSError:
                pass  # it has ended, and says why
            line = (process.stdout.read().strip().splitlines() or [""])[-1][-4000:]
            code = process.wait()
            try:
                process.stdin.close()
            except OSError:
                pass
        was_killed = code < 0 or code in (14, 143)  # it, or its workers
        if was_killed and os.path.exists(json.loads(order)["run"]):
            raise RuntimeError(f"{socket.gethostname()}: exit code {code} {line}")
        return socket.gethostname(), code, line

    return run_here
