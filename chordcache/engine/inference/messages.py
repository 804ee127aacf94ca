"""Messages between workers and the process of a network. Large arrays are not copied into the pickled part.

The first message of the process is the end of the process before it, a ``NetworkError``, or None.

::

    bytes        content
    8            number of parts, n
    n * 8        length of each part [bytes]; like the number, little-endian
    ...          part 0: the pickled message; the others: the memory of its arrays
"""

from __future__ import annotations

import pickle
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

Place: TypeAlias = tuple[int, int]
"""Number of the stream, and number of the input in it"""


@dataclass(frozen=True)
class Sent:
    """An input, from a worker to the process."""

    place: Place
    item: Any
    num_deaths: int
    """Number of processes that died while they computed inputs of this stream"""


@dataclass(frozen=True)
class Begun:
    """The inputs of a worker that the process computes now. If it dies, one of these may be the reason."""

    places: list[Place]


@dataclass(frozen=True)
class Done:
    """The outputs of these inputs."""

    outputs: list[tuple[Place, Any]]


def packed(message: Any) -> list[memoryview]:
    """Return the parts of a message. Raise any exception if it cannot be pickled."""
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(message, protocol=5, buffer_callback=buffers.append)
    return [memoryview(head), *(buffer.raw() for buffer in buffers)]


def send(channel: socket.socket, parts: Sequence[memoryview]) -> None:
    """Send the parts of a message. Raise ``OSError`` if the other end is gone."""
    channel.sendall(struct.pack(f"<{1 + len(parts)}Q", len(parts), *map(len, parts)))
    for part in parts:
        channel.sendall(part)


def receive(channel: socket.socket) -> Any:
    """Return the next message. Raise ``EOFError`` or ``OSError`` if the other end is gone."""
    (num_parts,) = struct.unpack("<Q", _read(channel, 8))
    lengths = struct.unpack(f"<{num_parts}Q", _read(channel, 8 * num_parts))
    head, *buffers = (_read(channel, length) for length in lengths)
    return pickle.loads(head, buffers=buffers)


def _read(channel: socket.socket, length: int) -> memoryview:
    data = np.empty(length, np.uint8).data  # not set to zero first, unlike a bytearray
    num_read = 0
    while num_read < length:
        num_received = channel.recv_into(data[num_read:])
        if not num_received:
            raise EOFError
        num_read += num_received
    return data
