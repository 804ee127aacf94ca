"""The function that builds a part on a node of a cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

CONNECT_SECONDS = 4.0
"""Longest time to reach a scheduler, [seconds]"""

Result: TypeAlias = tuple[str, int, str]
"""Host of a part that has ended, its exit code, and the last line that it printed"""


def starter() -> Callable[[str], Result]:
    """Return the function that builds a part on a node, with an order for ``part_process``.

    Dask and Ray send a function that lies inside another one with its code. It needs the standard library only, so that
    a node without chordcache says that chordcache is missing. An exception makes them run the part again.
    """

    def run_here(order: str) -> Result:
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
        if code < 0 or code in (14, 143):  # it was killed, or its workers were
            raise RuntimeError(f"{socket.gethostname()}: exit code {code} {line}")
        return socket.gethostname(), code, line

    return run_here
