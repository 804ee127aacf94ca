"""A network in another process, as a worker sees it: inputs are sent while others are computed.

If that process dies, the next process gets the inputs without an output. If two processes die on inputs of one video,
that video fails.
"""

from __future__ import annotations

import itertools
import socket
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from chordcache import progress
from chordcache.engine.inference.messages import Begun, Done, Place, Sent, packed, receive, send
from chordcache.engine.inference.network import Network, NetworkError
from chordcache.errors import describe

_MAX_DEATHS = 2
"""Number of processes that may die while they compute inputs of a video"""

_MAX_PENDING_BYTES = 256 << 20
"""[bytes] Size of the arrays on their way, above which a worker waits: clips of a video are large"""

_RETRY_SECONDS = 0.05
"""[seconds] Time between two attempts to connect while no process can be reached"""


class NetworkElsewhere:
    """A network in other processes, one for each device. Their sockets are tried in the order of ``addresses``."""

    def __init__(self, network: Network, addresses: Sequence[str]) -> None:
        self._addresses = addresses
        self._max_pending = 2 * network.batch_size  # a batch that is computed, and the next one
        self._numbers = itertools.count()
        self._streams: weakref.WeakValueDictionary[int, StreamElsewhere] = weakref.WeakValueDictionary()
        self._pending: dict[Place, Any] = {}
        """Inputs without an output"""
        self._begun: set[Place] = set()
        """Places of the inputs that are being computed"""
        self._changed = threading.Condition()
        """Lock of all state that the thread which receives shares"""
        self._is_lost = True
        self._channel = socket.socket(socket.AF_UNIX)

    def stream(self) -> StreamElsewhere:
        """Return the stream of a new video."""
        number = next(self._numbers)
        stream = self._streams[number] = StreamElsewhere(self, number)
        return stream

    def send(self, stream: StreamElsewhere, place: Place, item: Any) -> None:
        """Send an input, as soon as fewer than twice the batch size are on their way, and these are not too large."""
        self.wait(lambda: not self._is_lost and self._has_room())
        parts = packed(Sent(place, item, stream.num_deaths))  # before it takes a place: it may raise
        with self._changed:
            if stream.failure is not None:  # not one more input of a video that ends processes
                raise stream.failure
            self._pending[place] = item
        self._send(parts)

    def wait(self, is_done: Callable[[], bool]) -> None:
        """Wait until a condition is true. Until then, connect to the next process whenever one is lost."""
        while True:
            with self._changed:
                if is_done():
                    return
            with progress.paused():  # the process has its own clock
                if self._is_lost:
                    self._connect()
                with self._changed:
                    self._changed.wait_for(lambda: self._is_lost or is_done())

    def _has_room(self) -> bool:
        num_bytes = sum(getattr(item, "nbytes", 0) for item in self._pending.values())
        return len(self._pending) < self._max_pending and num_bytes < _MAX_PENDING_BYTES

    def outputs_of(self, stream: StreamElsewhere) -> list[Any]:
        """Take the outputs of a stream that have come, up to the first that has not."""
        with self._changed:
            if stream.failure is not None:
                raise stream.failure
            outputs = []
            while stream.num_taken in stream.outputs:
                outputs.append(stream.outputs.pop(stream.num_taken))
                stream.num_taken += 1
        return outputs

    def _connect(self) -> None:
        """Connect to a process, and send it what has no output yet."""
        self._channel.close()
        self._channel, last_death = self._connected()
        with self._changed:
            self._is_lost = False
            self._note_death(last_death or NetworkError("signal", "the process of the network died"))
            streams = dict(self._streams)  # those of videos that were given up are gone
            self._pending = {place: item for place, item in self._pending.items() if place[0] in streams}
            left = list(self._pending.items())
        threading.Thread(target=self._receive, args=(self._channel,), daemon=True).start()
        for place, item in left:
            self._send(packed(Sent(place, item, streams[place[0]].num_deaths)))

    def _connected(self) -> tuple[socket.socket, NetworkError | None]:
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
        """Count a death for each stream whose inputs were being computed. Fail it after the second."""
        suspects = [(number, self._streams.get(number)) for number in {number for number, _ in self._begun}]
        self._begun.clear()
        for number, stream in suspects:
            if stream is None:  # its video was given up
                continue
            stream.num_deaths += 1
            if stream.num_deaths >= _MAX_DEATHS:
                for place in [place for place in self._pending if place[0] == number]:
                    self._store_output(place, death)

    def _send(self, parts: Sequence[memoryview]) -> None:
        """Send a message. If the process is gone, the thread that receives still takes its last messages."""
        try:
            send(self._channel, parts)
        except OSError:
            with suppress(OSError):
                self._channel.shutdown(socket.SHUT_RDWR)

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
                    if channel is self._channel:  # else its inputs were sent again
                        self._handle(message)
                    self._changed.notify_all()
        except (OSError, EOFError):
            self._lose(channel)
        except Exception as error:  # noqa: BLE001 # item boundary: an output of a plug-in may not load
            with self._changed:
                failure = NetworkError(
                    "oom" if isinstance(error, MemoryError) else "extractor",
                    f"the outputs of the network cannot be received: {describe(error)}",
                )
                for place in list(self._pending):
                    self._store_output(place, failure)
            self._lose(channel)

    def _handle(self, message: Any) -> None:
        if isinstance(message, Begun):
            self._begun.update(message.places)
        elif isinstance(message, Done):
            for place, output in message.outputs:
                self._store_output(place, output)

    def _store_output(self, place: Place, output: Any) -> None:
        """Note the output of an input. That of a video that was given up is not kept."""
        del self._pending[place]
        self._begun.discard(place)
        number, input_number = place
        stream = self._streams.get(number)
        if stream is not None:
            stream.outputs[input_number] = output
            if isinstance(output, NetworkError):
                stream.failure = stream.failure or output


class StreamElsewhere:
    """The stream of one video to a network in another process."""

    def __init__(self, network: NetworkElsewhere, number: int) -> None:
        self._network = network
        self._number = number
        self._num_sent = 0
        self.num_taken = 0
        """Number of outputs that were returned"""
        self.outputs: dict[int, Any] = {}
        """Other outputs that have come, by the number of their input"""
        self.num_deaths = 0
        """Number of processes that died while they computed inputs of this stream"""
        self.failure: NetworkError | None = None
        """The first failure among the outputs"""

    def send(self, item: Any) -> None:
        """Send the next input: an array, or any object that can be pickled. It may wait until there is room.

        Raises ``NetworkError`` as ``ready`` does.
        """
        self._network.send(self, (self._number, self._num_sent), item)
        self._num_sent += 1

    def ready(self) -> list[Any]:
        """Return the outputs that have come, without a wait. Each is returned once.

        Raises ``NetworkError`` if the network failed for an input of this video.
        """
        return self._network.outputs_of(self)

    def rest(self) -> list[Any]:
        """Wait for all remaining outputs, and return them. Raises ``NetworkError`` as ``ready`` does."""
        self._network.wait(lambda: self.num_taken + len(self.outputs) == self._num_sent)
        return self.ready()
