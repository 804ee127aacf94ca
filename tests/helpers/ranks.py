"""Ranks of ``torch.distributed``, as processes on this machine."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import chordcache as cc

REPOSITORY = Path(cc.__file__).parent.parent

FORK = """
import importlib, json, os, runpy, sys

folder, path, modules, steps = sys.argv[1:]
for name in modules.split(","):
    importlib.import_module(name)


def be_a_rank(rank, port, world_size, arguments):
    for descriptor, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{folder}/{rank}.{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world_size), "MASTER_PORT": port}
    sys.argv = [path, folder, *arguments]
    runpy.run_path(path, run_name="__main__")


for port, world_size, *arguments in json.loads(steps):
    ranks = []
    for rank in range(world_size):
        pid = os.fork()
        if not pid:
            be_a_rank(rank, port, world_size, arguments)
            sys.exit()
        ranks.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in ranks]
    if any(codes):
        break
print(json.dumps(codes))
"""
"""Imports modules once and forks the ranks of each step, each of which would take seconds to import them"""


def free_ports(number: int) -> list[str]:
    """Return ports that nothing listens on."""
    with ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(number)]
        return [str(listener.getsockname()[1]) for listener in listeners]


def run_ranks(program: str, folder: Path, world_size: int, *, modules: Sequence[str]) -> None:
    """Run a program as each rank to its end. Its argument is the folder.

    ``modules`` are imported before the ranks begin, as torch is.
    """
    run_steps(program, folder, [(world_size,)], modules=modules)


def run_steps(program: str, folder: Path, steps: Sequence[tuple[object, ...]], *, modules: Sequence[str]) -> None:
    """Run a program as the ranks of one step after another, each of a number of ranks and arguments. See ``run_ranks``.

    Each rank must end well.
    """
    path = folder / "rank.py"
    path.write_text(program)
    env = {**os.environ, "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)}
    imported = ",".join(["torch", *modules])
    with_ports = [
        (port, world_size, *map(str, arguments))
        for port, (world_size, *arguments) in zip(free_ports(len(steps)), steps, strict=True)
    ]
    command = [sys.executable, "-c", FORK, str(folder), str(path), imported, json.dumps(with_ports)]
    with subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as parent:
        try:
            printed, errors = parent.communicate(timeout=600)
        finally:
            if parent.returncode is None:
                os.killpg(parent.pid, signal.SIGKILL)
    assert parent.returncode == 0, errors
    stderr = [path.read_text() for path in sorted(folder.glob("*.err"))]
    assert set(json.loads(printed)) == {0}, stderr
