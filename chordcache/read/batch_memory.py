"""Memory that the clips of a batch are decoded into side by side."""

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

Allocate: TypeAlias = Callable[[tuple[int, ...]], torch.Tensor]
"""Makes a uint8 tensor of a shape, with anything in it."""


class FrameMemory:
    """The frames of one batch, made when the first of its clips says what shape it has. Thread-safe.

    Parameters
    ----------
    num_clips : int
        Samples in the batch.
    allocate : Allocate
        Where the memory comes from.
    """

    def __init__(self, num_clips: int, allocate: Allocate) -> None:
        self._num_clips = num_clips
        self._allocate = allocate
        self._frames: torch.Tensor | None = None
        self._lock = threading.Lock()

    def clip(self, number: int, shape: tuple[int, ...]) -> torch.Tensor | None:
        """Memory of one clip [shape=(T, h, w, 3), dtype=uint8]; None if the batch's first clip has another shape."""
        with self._lock:
            if self._frames is None:
                self._frames = self._allocate((self._num_clips, *shape))
        return self._frames[number] if self._frames.shape[1:] == shape else None


def allocate(shape: tuple[int, ...]) -> torch.Tensor:
    """Fresh memory; in a worker process of a DataLoader it is shared, so that a batch is not copied on its way out."""
    if get_worker_info() is None:
        # Not torch.empty: numpy asks for huge pages, and touching fresh memory costs a quarter with those
        return torch.from_numpy(np.empty(shape, np.uint8))
    # Not share_memory_(), which copies what is not yet there; default_collate takes this road too
    storage = torch.UntypedStorage._new_shared(torch.Size(shape).numel())  # type: ignore[no-untyped-call]
    return torch.empty(0, dtype=torch.uint8).set_(storage).view(shape)


def allocate_pinned(shape: tuple[int, ...]) -> torch.Tensor:
    """Page-locked memory, which a GPU copies from on its own. torch keeps what is let go of for the next ones."""
    return torch.empty(shape, dtype=torch.uint8, pin_memory=True)


class RecycledMemory:
    """Memory that comes back when the last tensor in it is gone, for the next batch. Thread-safe.

    glibc returns what is larger than 32 MiB to the kernel, and making its pages anew costs a tenth of the decoding.

    Parameters
    ----------
    max_kept : int
        Pieces that are kept while nobody uses them.
    """

    def __init__(self, max_kept: int) -> None:
        self._kept: deque[np.ndarray] = deque(maxlen=max_kept)

    def allocate(self, shape: tuple[int, ...]) -> torch.Tensor:
        """A uint8 tensor in used memory, if there is some that is large enough."""
        size = math.prod(shape)
        memory = self._large_enough(size)
        lent = memory[:size].reshape(shape)  # what the tensor holds on to, and views of it do
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


FrameBuffer = Callable[[tuple[int, ...]], "torch.Tensor | None"]
"""Shape of a clip's frames to the memory that they are wanted in, if there is such memory."""


def as_one(tensors: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """The tensor whose parts along a new first dimension these are, if they lie in one storage one after another."""
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
