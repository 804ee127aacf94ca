"""The processes of networks, as the parent of the workers sees them: one for each network and device of a run."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from chordcache.engine import terminal
from chordcache.engine.child import Child
from chordcache.engine.crashes import MAX_DEATHS_IN_A_ROW
from chordcache.engine.inference.network import Network, NetworkError
from chordcache.engine.inference.server import CONTEXT_LOST, LOADING_FAILED, Orders
from chordcache.engine.limits import Limits
from chordcache.engine.signals import uninterruptible
from chordcache.errors import ChordcacheError, UsageError, WorkersDiedError, printable
from chordcache.temporary import make_temporary_folder

Addresses: TypeAlias = Mapping[str, Sequence[str]]
"""Key of a network to the sockets of its processes"""

_MAIN = "chordcache.engine.inference.server"
"""Module of a process"""

_ENVIRONMENT = {"OMP_WAIT_POLICY": "PASSIVE"}
"""Variables of a process. Its threads on the CPU give their processors up while they wait for each other, since workers
decode beside them. With two workers on two processors, a build of latents takes a third of the CPU time"""

_MAX_FOLDER_BYTES = 100
"""[bytes] Longest path of a folder of sockets. Linux takes 107 for a socket"""

_BACKLOG = 4096
"""Number of workers that may wait until a new process accepts them"""


@dataclass(eq=False)
class _Process:
    """The process of a network on one device, and those that replace it."""

    network: Network
    device: str
    listener: socket.socket
    """Socket that all of them accept workers from: a worker that connects while none runs waits for the next one"""
    address: str
    child: Child = field(init=False)
    num_deaths: int = 0
    """Number in a row, with no batch computed between"""


class NetworkProcesses:
    """The processes of the networks of a run. They are started with the first worker, and replaced when they die.

    Of the limits of a task, ``stall_seconds`` is also the longest time of a batch.
    """

    def __init__(self, networks: Sequence[Network], limits: Limits) -> None:
        self._networks = networks
        self._limits = replace(limits, file_seconds=0)
        self._processes: list[_Process] = []
        self._folder = ""
        self._num_workers = 0
        self._lock = threading.Lock()
        """Each worker's thread asks for addresses, and the caller's looks at the processes"""
        self.failure: ChordcacheError | None = None
        """Error after which a network cannot be used any more"""

    def addresses(self) -> Addresses:
        """Return where the next worker finds the networks. The devices come in another order for each worker.

        Raises ``UsageError`` if the machine lacks a device, and as ``look`` does.
        """
        with self._lock, self._failures():
            if self._networks and not self._folder:
                self._start_all()
            self._num_workers += 1
            addresses: dict[str, list[str]] = {}
            for running in self._processes:
                addresses.setdefault(running.network.key, []).append(running.address)
            turn = self._num_workers
            return {key: paths[turn % len(paths) :] + paths[: turn % len(paths)] for key, paths in addresses.items()}

    def look(self) -> None:
        """Replace processes that died, and those that hang.

        Raises ``UsageError`` if the weights of a network cannot be loaded on any device, and ``WorkersDiedError`` if
        the processes of each device of a network die.
        """
        with self._lock, self._failures():
            for process in self._processes.copy():
                if process.child.process.poll() is not None:
                    self._replace(process, self._death(process))
                elif process.child.heartbeat.overdue(self._limits):
                    what = self._limits.overrun("stall", process.child.place("_compute", asks=True))
                    self._replace(process, NetworkError("timeout", f"the network computed one batch: {what}"))

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Keep an error for all threads. Raise it again for those that come later."""
        if self.failure is not None:
            raise self.failure
        try:
            yield
        except ChordcacheError as error:
            self.failure = error
            raise

    @uninterruptible()
    def close(self) -> None:
        """End the processes."""
        with self._lock:
            for process in self._processes:
                process.child.close()
                process.listener.close()
            self._processes.clear()
            if self._folder:
                shutil.rmtree(self._folder, ignore_errors=True)
            self._networks, self._folder = (), ""

    @uninterruptible()
    def _start_all(self) -> None:
        devices = [(network, device) for network in self._networks for device in network.devices()]
        self._folder = make_temporary_folder()  # for this user only, since messages are pickled
        if len(os.fsencode(self._folder)) > _MAX_FOLDER_BYTES:
            raise UsageError(
                f"TMPDIR: got '{printable(tempfile.gettempdir())}', expected a path of at most "
                f"{_MAX_FOLDER_BYTES - 20} bytes, since it gets sockets. Set a shorter TMPDIR."
            )
        for number, (network, device) in enumerate(devices):
            listener = socket.socket(socket.AF_UNIX)
            address = os.path.join(self._folder, str(number))
            listener.bind(address)
            listener.listen(_BACKLOG)
            self._start(_Process(network, device, listener, address), None)

    def _start(self, process: _Process, death: NetworkError | None) -> None:
        orders = Orders(process.network, process.device, self._folder, death)
        fds = [process.listener.fileno()]
        # Its group ends with it: processes that the network has started have its sockets
        process.child = Child(_MAIN, [orders], self._limits, _ENVIRONMENT, fds=fds, has_group=True)
        self._processes.append(process)

    @uninterruptible()
    def _replace(self, process: _Process, death: NetworkError) -> None:
        has_computed = process.child.heartbeat.task > 0
        failed_to_load = process.child.process.poll() == LOADING_FAILED
        process.child.close()
        self._processes.remove(process)
        process.num_deaths = 0 if has_computed else process.num_deaths + 1
        if failed_to_load or process.num_deaths >= MAX_DEATHS_IN_A_ROW:
            process.listener.close()
            os.unlink(process.address)
            self._lose_device(process, death, failed_to_load)
            return
        self._start(process, death)

    def _lose_device(self, process: _Process, death: NetworkError, failed_to_load: bool) -> None:
        """Go on without a device, if the network has another one."""
        name = process.network.name
        if any(other.network.key == process.network.key for other in self._processes):
            terminal.say(f"features.{name}: device {process.device} is not used any more: {death.message}", shown=True)
            return
        if failed_to_load:
            raise UsageError(death.message)
        raise WorkersDiedError(
            f"features.{name}: {MAX_DEATHS_IN_A_ROW} processes of its network in a row died before they had computed "
            f"anything (the last: {death.message}). Look at memory and libraries, then run the same command."
        )

    def _death(self, process: _Process) -> NetworkError:
        if process.child.process.returncode in (LOADING_FAILED, CONTEXT_LOST):
            with suppress(EOFError, OSError):
                return NetworkError("extractor", process.child.channel.recv())
        died = f"the process of the network on {process.device} died: {process.child.exit_name}"
        if process.child.is_out_of_memory:
            return NetworkError(
                "oom", f"{died}, as the machine ran out of memory. Use a smaller batch_size, and --retry-quarantined."
            )
        return NetworkError("signal", died)
