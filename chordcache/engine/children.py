"""Child processes of Python: how they are started, and how they ended."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from chordcache.engine.worker import STOP_SIGNALS, child_environment

_PROGRAM = (
    "import sys; from importlib import import_module; n = 2 + int(sys.argv[1]); arguments = sys.argv[3 : n + 1]; "
    "module = sys.argv[2]; sys.path[:] = sys.argv[n + 1 :]; import_module(module).main(*map(int, arguments))"
)
"""Program of a child. The user's script is not imported again, therefore it needs no ``__main__`` guard"""


def start_python(
    module: str, *arguments: int, fds: Sequence[int], environment: Mapping[str, str], own_group: bool = False
) -> subprocess.Popen[bytes]:
    """Start a process that calls ``main`` of a module with numbers, such as those of the files that it inherits.

    With ``own_group``, it leads a session and a group of processes of its own.

    Raises
    ------
    OSError
        If it cannot be started.
    """
    # The process inherits the mask: no signal hits it before it has its handlers
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        return subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(len(arguments)), module, *map(str, arguments), *sys.path],
            stdin=subprocess.DEVNULL,
            pass_fds=fds,
            env={**child_environment(), **environment},
            start_new_session=own_group,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def exit_name(code: int) -> str:
    """Return text such as "SIGSEGV(-11)" or "EXIT(3)"."""
    names = {-each: each.name for each in signal.Signals}
    return f"{names.get(code, 'EXIT' if code >= 0 else 'signal')}({code})"


def num_oom_kills() -> int:
    """Return how often the kernel has killed a process because memory ran out; 0 if this is unknown."""
    with suppress(OSError):
        counters = Path("/proc/vmstat").read_text(encoding="ascii")
        if found := re.search(r"^oom_kill (\d+)$", counters, re.MULTILINE):
            return int(found.group(1))
    return 0
