"""Memory for the clips of a batch, which are decoded next to each other."""

from __future__ import annotations

import math
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import torch
from torch.utils.data import get_worker_info

from chordcache.features.read_side import EncodedFrames

Allocate: TypeAlias = Callable[[tuple[int, ...]], torch.Tensor]
"""Function that makes a uint8 tensor of a shape. Its contents are undefined."""


class FrameMemory:
    """The frames of one batch, allocated when the shape of its first clip is known. Thread-safe.

    Parameters
    ----------
    num_clips : int
        Samples in the batch.
    allocate : Allocate
        Function that allocates the memory.
    """

    def __init__(self, num_clips: int, allocate: Allocate) -> None:
        self._num_clips = num_clips
        self._allocate = allocate
        self._frames: torch.Tensor | None = None
        self._lock = threading.Lock()

    def clip(self, number: int, shape: tuple[int, ...]) -> torch.Tensor | None:
        """Return the memory of a clip [shape=(T, h, w, 3), dtype=uint8]. None if the first clip has another shape."""
        with self._lock:
            if self._frames is None:
                self._frames = self._allocate((self._num_clips, *shape))
        return self._frames[number] if self._frames.shape[1:] == shape else None


def allocate(shape: tuple[int, ...]) -> torch.Tensor:
    """Allocate new memory. In a DataLoader's worker process it is shared, so that a batch is not copied when sent."""
    if get_worker_info() is None:
        # Not torch.empty: numpy requests huge pages, which cut the time of first access to new memory to a quarter
        return torch.from_numpy(np.empty(shape, np.uint8))
    # Not share_memory_(), which copies contents that are not yet there. default_collate does the same as here
    storage = torch.UntypedStorage._new_shared(torch.Size(shape).numel())  # type: ignore[no-untyped-call]
    return torch.empty(0, dtype=torch.uint8).set_(storage).view(shape)


def allocate_pinned(shape: tuple[int, ...]) -> torch.Tensor:
    """Allocate page-locked memory, which a GPU can copy from by itself. torch keeps released memory for reuse."""
    return torch.empty(shape, dtype=torch.uint8, pin_memory=True)


class RecycledMemory:
    """Memory that is reused for the next batch when the last tensor in it is gone. Thread-safe.

    glibc returns blocks larger than 32 MiB to the kernel. Mapping their pages again costs a tenth of the decoding time.

    Parameters
    ----------
    max_kept : int
        Maximum number of unused blocks that are kept.
    """

    def __init__(self, max_kept: int) -> None:
        self._kept: deque[np.ndarray] = deque(maxlen=max_kept)

    def allocate(self, shape: tuple[int, ...]) -> torch.Tensor:
        """Make a uint8 tensor, in kept memory if a block is large enough."""
        size = math.prod(shape)
        memory = self._large_enough(size)
        lent = memory[:size].reshape(shape)  # the tensor and its views keep a reference to this array
        weakref.finalize(lent, self._kept.append, memory).atexit = False
        return torch.from_numpy(lent)

    def _large_enough(self, size: int) -> np.ndarray:
        while True:
            try:
                memory = self._kept.pop()
            except IndexError:
                return np.empty(size, np.uint8)
            if len(memory) >= size:
                return memory


FrameBuffer = Callable[[tuple[int, ...]], "torch.Tensor | EncodedFrames | None"]
"""Function from the shape of a clip's frames to the memory to decode them into, the place of their JPEGs, or None."""


def as_one(tensors: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """Return one tensor with these as its parts along a new first dimension, if they are consecutive in one storage."""
    first = tensors[0]
    step = first.numel()
    for i, tensor in enumerate(tensors):
        if (
            tensor.untyped_storage().data_ptr() != first.untyped_storage().data_ptr()
            or tensor.storage_offset() != first.storage_offset() + i * step
            or (tensor.dtype, tensor.shape, tensor.stride()) != (first.dtype, first.shape, first.stride())
        ):
            return None
    return first.as_strided((len(tensors), *first.shape), (step, *first.stride()))
