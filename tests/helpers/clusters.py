"""Clusters of Dask and Ray on this machine: a scheduler and nodes as processes that can be killed."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from helpers.processes import MARK

BIN = Path(sys.executable).parent

ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DISABLE_IMPORT_WARNING": "1"}

Node = Mapping[str, Any]
"""Facts of a node: a ``prefix`` of its command, its ``slots``, and ``variables`` of its environment; all optional"""


@dataclass
class Cluster:
    """A cluster that runs."""

    engine: str
    address: str
    head: subprocess.Popen[bytes]
    """The scheduler of Dask, or the head of Ray"""
    folder: Path
    """Folder of the logs"""
    command: Callable[[int, Node], list[Any]]
    """Function that returns the command of a node, by its number"""
    sign: str
    """Part of the log of a node as soon as it belongs to the cluster"""
    nodes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Mark of all processes of the nodes, see ``processes.alive_with``"""

    def add_nodes(self, *nodes: Node) -> None:
        """Start nodes at once, and wait until each one belongs to the cluster."""
        logs = []
        for node in nodes:
            number = len(self.nodes)
            logs.append(self.folder / f"node{number}.log")
            line = [*node.get("prefix", []), *self.command(number, node)]
            variables = {**node.get("variables", {}), MARK: self.mark}
            self.nodes.append(start(line, logs[-1], variables))
        for log, process in zip(logs, self.nodes[-len(logs) :], strict=True):
            wait_for_log(log, self.sign, process)

    def kill_node(self, number: int) -> None:
        """Kill a node and all of its processes."""
        kill_tree(self.nodes[number])


def free_port() -> int:
    """Return a port that is free, and that the system does not give to a connection meanwhile."""
    while True:
        port = random.randrange(20_000, 32_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


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
    arguments = [str(argument) for argument in command]
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


@contextlib.contextmanager
def dask(folder: Path, nodes: list[Node]) -> Iterator[Cluster]:
    """Start a scheduler and workers with their defaults: a nanny, and a thread for each processor."""
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    address = f"127.0.0.1:{port}"

    def command(number: int, node: Node) -> list[Any]:
        slots = ["--nthreads", node["slots"]] if "slots" in node else []
        names = ["--local-directory", folder / f"node{number}", "--name", f"node{number}"]
        return [BIN / "dask", "worker", address, "--no-dashboard", *slots, *names]

    scheduler = start([BIN / "dask", "scheduler", "--port", port, "--no-dashboard"], folder / "scheduler.log", {})
    cluster = Cluster("dask", address, scheduler, folder, command, "Registered to")
    try:
        wait_for_port(port)
        cluster.add_nodes(*nodes)
        yield cluster
    finally:
        for process in (*cluster.nodes, scheduler):
            kill_tree(process)


@contextlib.contextmanager
def ray(folder: Path, nodes: list[Node]) -> Iterator[Cluster]:
    """Start a head without processors, and nodes. Ray's own logs are in ``ray/`` of the folder afterwards.

    By default, nodes on one machine share a folder. Two that start at the same moment choose the same names of sockets
    there, and the second one ends ("bind: Address already in use"). So each node has a folder of its own, and takes
    ports for its workers from the system instead of from a range that all nodes share.
    """
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    address = f"127.0.0.1:{port}"
    temporary = Path("/tmp") / f"cc-ray-{port}"  # the names of sockets must be short
    temporary.mkdir()

    def start_command(name: str, slots: int, *place: Any) -> list[Any]:
        ports = ["--min-worker-port", 0, "--max-worker-port", 0, "--node-ip-address", "127.0.0.1"]
        fixed = [
            "--temp-dir",
            temporary / name,
            "--object-store-memory",
            80_000_000,
            "--disable-usage-stats",
            "--block",
        ]
        return [BIN / "ray", "start", *place, "--num-cpus", slots, *ports, *fixed]

    def command(number: int, node: Node) -> list[Any]:
        return start_command(f"node{number}", node.get("slots", 1), "--address", address)

    head_command = start_command("head", 0, "--head", "--port", port, "--include-dashboard", "false")
    head = start(head_command, folder / "head.log", {})
    cluster = Cluster("ray", address, head, folder, command, "Ray runtime started")
    try:
        wait_for_log(folder / "head.log", cluster.sign, head)
        cluster.add_nodes(*nodes)
        yield cluster
    finally:
        for process in (*cluster.nodes, head):
            kill_tree(process)
        with contextlib.suppress(OSError, shutil.Error):
            shutil.copytree(temporary, folder / "ray", ignore=shutil.ignore_patterns("sockets", "session_latest"))
        shutil.rmtree(temporary, ignore_errors=True)


CLUSTERS = {"dask": dask, "ray": ray}
