"""Clusters of Dask and Ray on this machine: a scheduler and nodes as processes that can be killed."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BIN = Path(sys.executable).parent

ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DISABLE_IMPORT_WARNING": "1"}


@dataclass
class Cluster:
    """A cluster that runs."""

    engine: str
    address: str
    nodes: list[subprocess.Popen[bytes]]

    def kill_node(self, number: int) -> None:
        """Kill a node and all of its processes."""
        kill_tree(self.nodes[number])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for_port(port: int) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        time.sleep(0.1)
    raise TimeoutError(f"nothing answers on port {port}")


def kill_tree(process: subprocess.Popen[bytes]) -> None:
    """Kill a process that leads a group, and its group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def start(command: list[Any], log: Path, variables: Mapping[str, str]) -> subprocess.Popen[bytes]:
    environment = {**os.environ, **ENVIRONMENT, **variables}
    arguments = [str(each) for each in command]
    with log.open("wb") as file:
        return subprocess.Popen(
            arguments, stdout=file, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )


@contextlib.contextmanager
def dask(folder: Path, nodes: list[Mapping[str, Any]]) -> Iterator[Cluster]:
    """Start a scheduler and workers with their defaults. A node may have a prefix of its command, and variables."""
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    scheduler = start([BIN / "dask", "scheduler", "--port", port, "--no-dashboard"], folder / "scheduler.log", {})
    started = [scheduler]
    try:
        wait_for_port(port)
        for number, node in enumerate(nodes):
            worker = [BIN / "dask", "worker", f"127.0.0.1:{port}", "--nthreads", node.get("slots", 1), "--no-dashboard"]
            local = ["--local-directory", folder / f"node{number}", "--name", f"node{number}"]
            command = [*node.get("prefix", []), *worker, *local]
            started.append(start(command, folder / f"node{number}.log", node.get("variables", {})))
        yield Cluster("dask", f"127.0.0.1:{port}", started[1:])
    finally:
        for process in reversed(started):
            kill_tree(process)


@contextlib.contextmanager
def ray(folder: Path, nodes: list[Mapping[str, Any]]) -> Iterator[Cluster]:
    """Start a head without processors, and nodes."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    port = free_port()
    memory = ["--object-store-memory", 80_000_000, "--node-ip-address", "127.0.0.1", "--disable-usage-stats", "--block"]
    temporary = Path("/tmp") / f"cc-ray-{port}"  # the names of sockets must be short
    head = [BIN / "ray", "start", "--head", "--port", port, "--num-cpus", 0, "--include-dashboard", "false", *memory]
    started = [start([*head, "--temp-dir", temporary], folder / "head.log", {})]
    try:
        wait_for_port(port)
        for number, node in enumerate(nodes):
            worker = [
                BIN / "ray",
                "start",
                "--address",
                f"127.0.0.1:{port}",
                "--num-cpus",
                node.get("slots", 1),
                *memory,
            ]
            command = [*node.get("prefix", []), *worker]
            started.append(start(command, folder / f"node{number}.log", node.get("variables", {})))
        yield Cluster("ray", f"127.0.0.1:{port}", started[1:])
    finally:
        for process in reversed(started):
            kill_tree(process)
        shutil.rmtree(temporary, ignore_errors=True)


CLUSTERS = {"dask": dask, "ray": ray}
