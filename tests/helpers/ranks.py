"""Ranks of ``torch.distributed``, as processes on this machine."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import chordcache as cc

REPOSITORY = Path(cc.__file__).parent.parent

FORK = """
import importlib, json, os, runpy, sys

folder, path, world_size, modules, *arguments = sys.argv[1:]
for name in modules.split(","):
    importlib.import_module(name)
ranks = []
for rank in range(int(world_size)):
    pid = os.fork()
    if not pid:
        break
    ranks.append(pid)
else:
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in ranks]
    print(json.dumps(codes))
    sys.exit()
for descriptor, name in ((1, "out"), (2, "err")):
    os.dup2(os.open(f"{folder}/{rank}.{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
os.environ["RANK"] = str(rank)
sys.argv = [path, folder, *arguments]
runpy.run_path(path, run_name="__main__")
"""
"""Imports modules once and forks the ranks, each of which would take seconds to import them"""


def run_ranks(
    program: str, folder: Path, world_size: int, *arguments: object, modules: Sequence[str] = ()
) -> list[subprocess.CompletedProcess[str]]:
    """Run a program as each rank to its end. Each rank must end well, or by a kill.

    The arguments of the program are the folder and ``arguments``. ``modules`` are imported before the ranks begin, as
    torch is.
    """
    path = folder / "rank.py"
    path.write_text(program)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = str(listener.getsockname()[1])
    env = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    env |= {"PYTHONPATH": str(REPOSITORY), "WORLD_SIZE": str(world_size)}
    imported = ",".join(["torch", *modules])
    command = [sys.executable, "-c", FORK, str(folder), str(path), str(world_size), imported, *map(str, arguments)]
    with subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as parent:
        try:
            printed, errors = parent.communicate(timeout=200)
        finally:
            if parent.returncode is None:
                os.killpg(parent.pid, signal.SIGKILL)
    assert parent.returncode == 0, errors
    done = [
        subprocess.CompletedProcess(
            command, code, *((folder / f"{rank}.{name}").read_text() for name in ("out", "err"))
        )
        for rank, code in enumerate(json.loads(printed))
    ]
    assert all(process.returncode in (0, -signal.SIGKILL) for process in done), [process.stderr for process in done]
    return done


def exit_codes(done: list[subprocess.CompletedProcess[str]]) -> list[int]:
    """Return how each rank ended."""
    return [process.returncode for process in done]
