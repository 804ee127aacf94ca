"""Ranks of ``torch.distributed``, as processes on this machine."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import chordcache as cc

REPOSITORY = Path(cc.__file__).parent.parent


def run_ranks(
    program: str, folder: Path, world_size: int, *arguments: object
) -> list[subprocess.CompletedProcess[str]]:
    """Run a program as each rank to its end. Each rank must end well, or by a kill.

    The arguments of the program are the folder and ``arguments``.
    """
    path = folder / "rank.py"
    path.write_text(program)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = str(listener.getsockname()[1])
    env = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    env |= {"PYTHONPATH": str(REPOSITORY), "WORLD_SIZE": str(world_size)}
    command = [sys.executable, str(path), str(folder), *map(str, arguments)]
    ranks = [
        subprocess.Popen(
            command, env={**env, "RANK": str(rank)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for rank in range(world_size)
    ]
    try:
        printed = [rank.communicate(timeout=200) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    done = [
        subprocess.CompletedProcess(command, rank.returncode, *texts)
        for rank, texts in zip(ranks, printed, strict=True)
    ]
    assert all(process.returncode in (0, -signal.SIGKILL) for process in done), [process.stderr for process in done]
    return done


def exit_codes(done: list[subprocess.CompletedProcess[str]]) -> list[int]:
    """Return how each rank ended."""
    return [process.returncode for process in done]
