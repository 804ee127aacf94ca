"""The computation of a batch whose inputs come from several videos, so that one bad video fails alone."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from chordcache.engine.networks.network import Infer, NetworkError
from chordcache.errors import describe


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
            parts = [list(group) for _, group in itertools.groupby(batch, key=lambda each: each.stream)]
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
