"""Memory that the clips of a batch are decoded into side by side."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch.utils.data import get_worker_info


class FrameMemory:
    """The frames of one batch, made when the first of its clips says what shape it has. Thread-safe.

    Parameters
    ----------
    num_clips : int
        Samples in the batch.
    is_pinned : bool
        Page-locked memory, from torch's caching host allocator: a GPU copies from it on its own. In a worker process
        of a DataLoader the memory is shared instead, so that the batch is not copied on its way out.
    """

    def __init__(self, num_clips: int, *, is_pinned: bool = False) -> None:
        self._num_clips = num_clips
        self._is_pinned = is_pinned
        self._frames: torch.Tensor | None = None
        self._lock = threading.Lock()

    def clip(self, number: int, shape: tuple[int, ...]) -> torch.Tensor | None:
        """Memory of one clip [shape=(T, h, w, 3), dtype=uint8]; None if the batch's first clip has another shape."""
        with self._lock:
            if self._frames is None:
                self._frames = self._empty((self._num_clips, *shape))
        return self._frames[number] if self._frames.shape[1:] == shape else None

    def _empty(self, shape: tuple[int, ...]) -> torch.Tensor:
        if self._is_pinned:
            return torch.empty(shape, dtype=torch.uint8, pin_memory=True)
        if get_worker_info() is None:
            # Not torch.empty: numpy asks for huge pages, and touching fresh memory costs a quarter with those
            return torch.from_numpy(np.empty(shape, np.uint8))
        # Not share_memory_(), which copies what is not yet there; default_collate takes this road too
        storage = torch.UntypedStorage._new_shared(torch.Size(shape).numel())  # type: ignore[no-untyped-call]
        return torch.empty(0, dtype=torch.uint8).set_(storage).view(shape)


Slot = Callable[[tuple[int, ...]], "torch.Tensor | None"]
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
