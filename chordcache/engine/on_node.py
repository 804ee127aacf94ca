"""The functions that a node of a cluster runs: one starts a process there and waits for its end, one ends it.

Dask and Ray send a function that lies inside another one with its code. These need the standard library only, so that
a node without chordcache says that chordcache is missing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Exit:
    """The end of a process on a node."""

    code: int
    output: str
    errors: str
    """The last of what it wrote to standard error"""


class NodeLost:
    """Result of a process whose node left the cluster, or whose caller there ended."""


def starter() -> Callable[[str, str, str], tuple[int, str, str]]:
    """Return the function that runs a module with one line of input, and returns the values of an ``Exit``.

    The module's standard input is a pipe, which ends when the process that calls this function does.
    """

    def run_here(module: str, line: str, run: str) -> tuple[int, str, str]:
        import subprocess
        import sys
        import threading
        from contextlib import suppress

        processes = vars(sys).setdefault("_chordcache_runs", {}).setdefault(run, set())
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            [sys.executable, "-m", module], stdin=pipe, stdout=pipe, stderr=pipe, text=True, errors="replace"
        )
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        processes.add(process)
        errors: list[str] = []
        reader = threading.Thread(target=lambda stream: errors.append(stream.read()), args=[process.stderr])
        reader.start()
        with suppress(OSError):  # it has ended, and says why
            process.stdin.write(line + "\n")
            process.stdin.flush()
        output = process.stdout.read()
        code = process.wait()
        reader.join()
        processes.discard(process)
        with suppress(OSError):
            process.stdin.close()
        return code, output[-4000:], errors[0][-4000:]

    return run_here


def ender() -> Callable[[str], None]:
    """Return the function that ends the processes of a run on the node that calls it."""

    def end_here(run: str) -> None:
        import sys

        for process in list(vars(sys).get("_chordcache_runs", {}).get(run, ())):
            process.terminate()

    return end_here
