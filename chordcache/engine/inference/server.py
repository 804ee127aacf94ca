"""The process of a network on one device. It computes batches of the inputs that workers send.

A thread for each worker receives inputs into one queue, which is bounded since a worker only sends twice the batch size
before it gets outputs. The main thread takes batches from the queue. The weights are loaded when the first worker
connects.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from chordcache.engine.heartbeat import Heartbeat
from chordcache.engine.inference.messages import Begun, Done, Place, Sent, packed, receive, send
from chordcache.engine.inference.network import Batches, Input, Network, NetworkError, kind_of
from chordcache.engine.worker import prepare
from chordcache.errors import ChordcacheError, describe

LOADING_FAILED = 3
"""Exit status if the weights cannot be loaded"""

CONTEXT_LOST = 4
"""Exit status if the network raised an exception after which the device cannot be used by this process"""


@dataclass(frozen=True)
class Orders:
    """The first message of the parent to the process."""

    network: Network
    device: str
    folder: str
    """Folder of the sockets. It is removed if the parent dies"""
    last_death: NetworkError | None


@dataclass(frozen=True)
class _Waiting(Input):
    """An input in the queue. Its stream is the worker, and the number of the stream there."""

    worker: socket.socket
    place: Place
    num_deaths: int


def main(_parent: int, channel_fd: int, heartbeat_fd: int, socket_fd: int) -> None:
    """Run the network until the parent ends this process, or ends itself."""
    parent, heartbeat = prepare(channel_fd, heartbeat_fd)
    os.set_inheritable(socket_fd, False)
    orders: Orders = parent.recv()
    threading.Thread(target=_end_with, args=(parent, orders.folder), daemon=True).start()
    listener = socket.socket(fileno=socket_fd)
    queue = _Queue(orders.last_death, partial(_leave, parent, status=CONTEXT_LOST))
    threading.Thread(target=queue.serve, args=(listener,), daemon=True).start()
    queue.has_workers.wait()
    try:
        batches = Batches(orders.network.load(orders.device), orders.network.batch_size)
    except Exception as error:  # noqa: BLE001 # item boundary: a plug-in may raise anything
        _leave(parent, str(error) if isinstance(error, ChordcacheError) else describe(error), LOADING_FAILED)
    try:
        _compute(queue, batches, heartbeat)
    except Exception as error:  # noqa: BLE001 # item boundary: a plug-in may raise anything
        _leave(parent, describe(error), CONTEXT_LOST)


def _leave(parent: Connection, message: str, status: int) -> NoReturn:
    """Send the reason to the parent, and end the process. Threads and libraries do not delay the end."""
    with suppress(OSError):
        parent.send(message)
    os._exit(status)


def _end_with(parent: Connection, folder: str) -> None:
    """End this process when the parent ends, in whatever way."""
    with suppress(EOFError, OSError):
        parent.recv()
    shutil.rmtree(folder, ignore_errors=True)
    os.killpg(0, signal.SIGKILL)  # processes that the network has started end too


def _compute(queue: _Queue, batches: Batches, heartbeat: Heartbeat) -> None:
    """Compute batches without end."""
    num_batches = 0
    while True:
        batch = queue.take(batches.size)
        _report(batch, [None] * len(batch), is_begun=True)
        heartbeat.begin(num_batches)
        outputs = batches.run(batch)
        num_batches += 1
        heartbeat.begin(num_batches)  # so that the parent sees the number
        heartbeat.end()
        _report(batch, outputs, is_begun=False)


def _report(batch: list[_Waiting], outputs: list[Any], *, is_begun: bool) -> None:
    """Send a message to each worker: that its inputs of a batch are begun, or their outputs."""
    for worker in {waiting.worker for waiting in batch}:
        answers = [
            (waiting.place, output) for waiting, output in zip(batch, outputs, strict=True) if waiting.worker is worker
        ]
        with suppress(OSError):  # a worker that died
            send(worker, packed(Begun([place for place, _ in answers]) if is_begun else Done(answers)))


class _Queue:
    """The inputs that wait, in the order in which they came."""

    def __init__(self, last_death: NetworkError | None, leave: Callable[[str], NoReturn]) -> None:
        self._last_death = last_death
        self._leave = leave
        self._waiting: deque[_Waiting] = deque()
        self._changed = threading.Condition()
        self.has_workers = threading.Event()

    def serve(self, listener: socket.socket) -> None:
        """Accept workers without end."""
        while True:
            worker, _ = listener.accept()
            self.has_workers.set()
            threading.Thread(target=self._receive, args=(worker,), daemon=True).start()

    def _receive(self, worker: socket.socket) -> None:
        """Put the inputs of a worker into the queue, until the worker ends."""
        try:
            send(worker, packed(self._last_death))
            while True:
                sent: Sent = receive(worker)
                stream = (id(worker), sent.place[0])
                with self._changed:
                    self._waiting.append(_Waiting(stream, sent.item, worker, sent.place, sent.num_deaths))
                    self._changed.notify()
        except (OSError, EOFError):
            with self._changed:
                self._waiting = deque(waiting for waiting in self._waiting if waiting.worker is not worker)
        except Exception as error:  # noqa: BLE001 # item boundary: an input of a plug-in may not load
            self._leave(f"its inputs cannot be received: {describe(error)}")

    def take(self, max_size: int) -> list[_Waiting]:
        """Wait for inputs. Return the oldest, and others of its kind, at most ``max_size``.

        After a process died, the inputs of the videos that it computed come in smaller batches of their own, so that no
        other video is lost if one of them was the reason.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._waiting)
            first = self._waiting[0]
            if first.num_deaths:
                max_size = max(1, max_size // 2)
            batch: list[_Waiting] = []
            left: deque[_Waiting] = deque()
            for waiting in self._waiting:
                is_alike = kind_of(waiting.item) == kind_of(first.item) and waiting.num_deaths == first.num_deaths
                may_join = is_alike and (not first.num_deaths or waiting.stream == first.stream)
                (batch if may_join and len(batch) < max_size else left).append(waiting)
            self._waiting = left
            return batch
