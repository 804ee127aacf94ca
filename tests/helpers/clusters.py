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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BIN = Path(sys.executable).parent

ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DISABLE_IMPORT_WARNING": "1"}

RAY_IS_UP = "Ray runtime started"
"""What ``ray start`` says as soon as the head knows the node"""


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


def wait_for_log(log: Path, text: str, process: subprocess.Popen[bytes]) -> None:
    """Wait until a node says that it belongs to its cluster."""
    end = time.monotonic() + 120
    while text not in log.read_text(errors="replace"):
        if process.poll() is not None or time.monotonic() > end:
            raise RuntimeError(f"the node does not start:\n{log.read_text(errors='replace')[-4000:]}")
        time.sleep(0.05)


Command = Callable[[int, Mapping[str, Any]], list[Any]]
"""Return the command that starts a node, by its number and its facts"""


def add_nodes(
    started: list[subprocess.Popen[bytes]], folder: Path, nodes: list[Mapping[str, Any]], command: Command, text: str
) -> None:
    """Start all nodes at once. Afterwards, wait until each one has said ``text``."""
    logs = [folder / f"node{number}.log" for number in range(len(nodes))]
    for number, node in enumerate(nodes):
        line = [*node.get("prefix", []), *command(number, node)]
        started.append(start(line, logs[number], node.get("variables", {})))
    for log, process in zip(logs, started[1:], strict=True):
        wait_for_log(log, text, process)


@contextlib.contextmanager
def dask(folder: Path, nodes: list[Mapping[str, Any]]) -> Iterator[Cluster]:
    """Start a scheduler and workers with their defaults: a nanny, and a thread for each processor.

    A node may have a prefix of its command, ``slots`` (number of threads), and variables.
    """
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()

    def command(number: int, node: Mapping[str, Any]) -> list[Any]:
        slots = ["--nthreads", node["slots"]] if "slots" in node else []
        names = ["--local-directory", folder / f"node{number}", "--name", f"node{number}"]
        return [BIN / "dask", "worker", f"127.0.0.1:{port}", "--no-dashboard", *slots, *names]

    scheduler = [BIN / "dask", "scheduler", "--port", port, "--no-dashboard"]
    started = [start(scheduler, folder / "scheduler.log", {})]
    try:
        wait_for_port(port)
        add_nodes(started, folder, nodes, command, "Registered to")
        yield Cluster("dask", f"127.0.0.1:{port}", started[1:])
    finally:
        for process in reversed(started):
            kill_tree(process)


@contextlib.contextmanager
def ray(folder: Path, nodes: list[Mapping[str, Any]]) -> Iterator[Cluster]:
    """Start a head without processors, and nodes. Ray's own logs are in ``ray/`` of the folder afterwards.

    By default, nodes on one machine share a folder. Two that start at the same moment choose the same names of sockets
    there, and the second one ends ("bind: Address already in use"). So each node has a folder of its own, and takes
    ports for its workers from the system instead of from a range that all nodes share.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    port = free_port()
    temporary = Path("/tmp") / f"cc-ray-{port}"  # the names of sockets must be short
    temporary.mkdir()
    address = f"127.0.0.1:{port}"

    def command(name: str, slots: int, *place: Any) -> list[Any]:
        ports = ["--min-worker-port", 0, "--max-worker-port", 0, "--node-ip-address", "127.0.0.1"]
        fixed = ["--temp-dir", temporary / name, "--object-store-memory", 80_000_000, "--disable-usage-stats", "--block"]
        return [BIN / "ray", "start", *place, "--num-cpus", slots, *ports, *fixed]

    def node_command(number: int, node: Mapping[str, Any]) -> list[Any]:
        return command(f"node{number}", node.get("slots", 1), "--address", address)

    head = command("head", 0, "--head", "--port", port, "--include-dashboard", "false")
    started = [start(head, folder / "head.log", {})]
    try:
        wait_for_log(folder / "head.log", RAY_IS_UP, started[0])
        add_nodes(started, folder, nodes, node_command, RAY_IS_UP)
        yield Cluster("ray", address, started[1:])
    finally:
        for process in reversed(started):
            kill_tree(process)
        with contextlib.suppress(OSError, shutil.Error):
            shutil.copytree(temporary, folder / "ray", ignore=shutil.ignore_patterns("sockets", "session_latest"))
        shutil.rmtree(temporary, ignore_errors=True)


CLUSTERS = {"dask": dask, "ray": ray}
