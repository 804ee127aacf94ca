"""A network in another process, as a worker sees it: inputs are sent while others are computed.

If that process dies, the inputs without an output are sent to the one that replaces it. An input that was being
computed when two processes died fails.
"""

from __future__ import annotations

import itertools
import socket
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from chordcache import progress
from chordcache.engine.networks.messages import Begun, Done, Place, Sent, Welcome, receive, send
from chordcache.engine.networks.network import Network, NetworkError, checked

_MAX_DEATHS = 2
"""Number of processes that may die while they compute an input"""

_RETRY_SECONDS = 0.05
"""[seconds] Time between two attempts to connect while no process can be reached"""


@dataclass
class _Pending:
    """An input without an output."""

    item: Any
    num_deaths: int = 0
    is_begun: bool = False


class NetworkElsewhere:
    """A network in another process.

    Parameters
    ----------
    network : Network
        The network.
    addresses : sequence of str
        Sockets of its processes, one for each device. They are tried in this order.
    """

    def __init__(self, network: Network, addresses: Sequence[str]) -> None:
        self._addresses = addresses
        self._max_pending = 2 * network.batch_size  # a batch that is computed, and the next one
        self._numbers = itertools.count()
        self._streams: weakref.WeakValueDictionary[int, StreamElsewhere] = weakref.WeakValueDictionary()
        self._pending: dict[Place, _Pending] = {}
        self._changed = threading.Condition()
        """Lock of all state that the thread which receives shares"""
        self._is_lost = True
        self._channel = socket.socket(socket.AF_UNIX)

    def stream(self) -> StreamElsewhere:
        """Return the stream of a new video."""
        number = next(self._numbers)
        stream = self._streams[number] = StreamElsewhere(self, number)
        return stream

    def send(self, place: Place, item: Any) -> None:
        """Send an input, as soon as fewer than twice the batch size are on their way."""
        self.wait(lambda: len(self._pending) < self._max_pending)
        with self._changed:
            self._pending[place] = _Pending(item)
        self._send(place, item, 0)

    def wait(self, is_done: Callable[[], bool]) -> None:
        """Wait until a condition is true. If the process is lost, connect to the next one."""
        while True:
            with self._changed:
                if not self._is_lost and is_done():
                    return
            with progress.paused():  # the process has its own clock
                if self._is_lost:
                    self._connect()
                with self._changed:
                    self._changed.wait_for(lambda: self._is_lost or is_done())

    def outputs_of(self, stream: StreamElsewhere) -> list[Any]:
        """Take the outputs of a stream that have come, up to the first that has not."""
        with self._changed:
            found = []
            while stream.num_taken in stream.outputs:
                found.append(stream.outputs.pop(stream.num_taken))
                stream.num_taken += 1
        return checked(found)

    def _connect(self) -> None:
        """Connect to a process, and send it what has no output yet."""
        self._channel.close()
        self._channel, welcome = self._connected()
        with self._changed:
            self._is_lost = False
            self._note_death(welcome.last_death or NetworkError("signal", "the process of the network died"))
            left = list(self._pending.items())
        threading.Thread(target=self._receive, args=(self._channel,), daemon=True).start()
        for place, each in left:
            self._send(place, each.item, each.num_deaths)

    def _connected(self) -> tuple[socket.socket, Welcome]:
        while True:  # if no process is left, the parent ends this worker
            for address in self._addresses:
                channel = socket.socket(socket.AF_UNIX)
                try:
                    channel.connect(address)
                    return channel, receive(channel)
                except (OSError, EOFError):
                    channel.close()
            time.sleep(_RETRY_SECONDS)

    def _note_death(self, death: NetworkError) -> None:
        """Fail the inputs that were being computed when a second process died."""
        for place, each in list(self._pending.items()):
            each.num_deaths += each.is_begun
            each.is_begun = False
            if each.num_deaths >= _MAX_DEATHS:
                self._settle(place, death)

    def _send(self, place: Place, item: Any, num_deaths: int) -> None:
        try:
            send(self._channel, Sent(place, item, num_deaths))
        except OSError:
            self._lose(self._channel)

    def _lose(self, channel: socket.socket) -> None:
        with self._changed:
            if channel is self._channel:
                self._is_lost = True
            self._changed.notify_all()

    def _receive(self, channel: socket.socket) -> None:
        """Take the messages of one process. It runs in a thread of its own."""
        try:
            while True:
                message = receive(channel)
                with self._changed:
                    if isinstance(message, Begun):
                        for place in message.places:
                            self._pending[place].is_begun = True
                    elif isinstance(message, Done):
                        for place, output in message.outputs:
                            self._settle(place, output)
                    self._changed.notify_all()
        except (OSError, EOFError):
            self._lose(channel)

    def _settle(self, place: Place, output: Any) -> None:
        """Note the output of an input. That of a video that was given up is not kept."""
        del self._pending[place]
        number, input_number = place
        stream = self._streams.get(number)
        if stream is not None:
            stream.outputs[input_number] = output


class StreamElsewhere:
    """The stream of one video to a network in another process.

    Parameters
    ----------
    network : NetworkElsewhere
        The network.
    number : int
        Number of the stream.
    """

    def __init__(self, network: NetworkElsewhere, number: int) -> None:
        self._network = network
        self._number = number
        self._num_sent = 0
        self.num_taken = 0
        """Number of outputs that were returned"""
        self.outputs: dict[int, Any] = {}
        """Other outputs that have come, by the number of their input"""

    def send(self, item: Any) -> None:
        """Send the next input, as soon as there is room for it."""
        self._network.send((self._number, self._num_sent), item)
        self._num_sent += 1

    def ready(self) -> list[Any]:
        """Return the outputs that have come."""
        return self._network.outputs_of(self)

    def rest(self) -> list[Any]:
        """Wait for all remaining outputs, and return them."""
        self._network.wait(lambda: self.num_taken + len(self.outputs) == self._num_sent)
        return self.ready()
