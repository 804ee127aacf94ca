"""A network that the tasks of a run share. Its batches mix videos, and a bad video fails alone."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from chordcache.errors import describe

Infer: TypeAlias = Callable[[list[Any]], Sequence[Any]]
"""Function of a batch: inputs of one kind to as many outputs, in the same order"""


@dataclass(frozen=True)
class Network:
    """A network that the tasks of a run share. All fields can be pickled."""

    key: str
    """Text that no other network has, such as its class, its arguments and its device"""
    name: str
    """Name of the feature, for messages"""
    load: Callable[[str], Infer]
    """Function that loads the weights to a device, such as "cuda:0" """
    devices: Callable[[], tuple[str, ...]]
    """Function that returns the devices of a machine which the network uses, one process for each"""
    batch_size: int = 1
    """Largest number of inputs in a batch"""


class NetworkError(Exception):
    """The network failed for an input of a video.

    ``cause`` is "oom", "signal" or "timeout", or "extractor" if the network raised an exception. ``message`` is one
    line for users.
    """

    def __init__(self, cause: str, message: str) -> None:
        super().__init__(cause, message)
        self.cause = cause
        self.message = message


def kind_of(item: Any) -> object:
    """Return what inputs of one batch have in common: shape and dtype of an array, or the type of another object."""
    return (item.shape, item.dtype) if isinstance(item, np.ndarray) else type(item)


@dataclass(frozen=True)
class Input:
    """One input of a network."""

    stream: object
    """Video that it belongs to"""
    item: Any


class Batches:
    """A network that computes batches, each smaller than before if memory was not enough."""

    def __init__(self, infer: Infer, size: int) -> None:
        self._infer = infer
        self.size = size
        """Largest number of inputs in the next batch"""

    def run(self, batch: Sequence[Input]) -> list[Any]:
        """Return the output of each input, or the ``NetworkError`` in its place.

        If memory is not enough, the halves of the batch are computed, and later batches are not larger than a half. If
        the network raises another exception, the inputs of each video are computed apart.
        """
        outputs = self._infer_batch(batch)
        if not isinstance(outputs, NetworkError):
            return outputs
        if outputs.cause == "oom" and len(batch) > 1:
            half = (len(batch) + 1) // 2
            self.size = min(self.size, half)
            parts = [batch[:half], batch[half:]]
        else:
            parts = [list(group) for _, group in itertools.groupby(batch, key=lambda waiting: waiting.stream)]
            if len(parts) == 1:
                return [outputs] * len(batch)
        return [output for part in parts for output in self.run(part)]

    def _infer_batch(self, batch: Sequence[Input]) -> list[Any] | NetworkError:
        try:
            outputs = list(self._infer([waiting.item for waiting in batch]))
        except Exception as error:  # item boundary: a network may raise anything
            if is_context_lost(error):
                raise
            return NetworkError("oom" if is_out_of_memory(error) else "extractor", describe(error))
        if len(outputs) != len(batch):
            what = f"infer() returned {len(outputs)} outputs, expected {len(batch)}, one for each input"
            return NetworkError("extractor", what)
        return outputs


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an exception says that memory was not enough. That of torch is known by its name."""
    text = str(error)
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or "DefaultCPUAllocator: can't allocate memory" in text
    )


def is_context_lost(error: BaseException) -> bool:
    """Return whether an exception says that the device cannot be used by this process any more."""
    return type(error).__name__ == "AcceleratorError" or (
        isinstance(error, RuntimeError) and "CUDA error" in str(error) and not is_out_of_memory(error)
    )
