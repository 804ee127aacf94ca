"""Shared memory of batches, which a DataLoader's worker fills again once the trainer has let go of a batch.

Fresh shared memory takes a third of a worker's CPU time: the kernel clears and maps each page. A worker therefore keeps
blocks. The last byte of a block is its state, which both processes see:

    FREE ──worker sends the batch──▶ LENT ──last tensor, view or array of the trainer is gone──▶ FREE or SPENT

A block is SPENT if the trainer's process was forked meanwhile, since the child may still read the batch. Whatever else
happens to a tensor, such as a message to a third process, copies it: torch does not know that its memory is shared.
"""

from __future__ import annotations

import math
import os
import weakref
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch
from torch.multiprocessing.reductions import reduce_tensor

_MAX_BLOCKS = 8
"""Blocks of a worker. Further batches, of a trainer that holds on to so many, get memory of their own"""

_FREE, _LENT, _SPENT = range(3)


class _Block:
    """Shared memory of a worker, for one batch at a time."""

    def __init__(self, num_bytes: int) -> None:
        self.storage = shared_storage(num_bytes + 1)
        self.memory = torch.empty(0, dtype=torch.uint8).set_(self.storage).numpy()
        self.memory[-1] = _FREE
        self._in_worker: weakref.ref[np.ndarray] | None = None
        """Array of the batch in this process, also while it waits to be sent"""

    def is_free(self) -> bool:
        return self.memory[-1] == _FREE and (self._in_worker is None or self._in_worker() is None)

    def tensor(self, shape: tuple[int, ...]) -> torch.Tensor:
        """Return a tensor in this block, which is in use while the tensor or a view of it exists."""
        array = self.memory[: math.prod(shape)].reshape(shape)  # the tensor and its views keep a reference to it
        self._in_worker = weakref.ref(array)
        return torch.from_numpy(array)


_blocks: list[_Block] = []
"""Blocks of this worker process"""


def shared_storage(num_bytes: int) -> torch.UntypedStorage:
    """Allocate new shared memory. Its contents are undefined."""
    # Not share_memory_(), which copies contents that are not yet there. default_collate does the same as here
    return torch.UntypedStorage._new_shared(num_bytes)  # type: ignore[no-untyped-call, no-any-return]


def allocate_shared(shape: tuple[int, ...]) -> torch.Tensor:
    """Make a uint8 tensor in shared memory for a batch that this worker process sends. Its contents are undefined."""
    num_bytes = math.prod(shape)
    ForkingPickler.register(torch.Tensor, _reduced)
    _blocks[:] = [block for block in _blocks if block.memory[-1] != _SPENT]
    free = sorted((block for block in _blocks if block.is_free()), key=lambda block: len(block.memory))
    for block in free:
        if len(block.memory) > num_bytes:
            return block.tensor(shape)
    if free:
        _blocks.remove(free[0])
    elif len(_blocks) == _MAX_BLOCKS:
        return torch.empty(0, dtype=torch.uint8).set_(shared_storage(num_bytes)).view(shape)
    _blocks.append(_Block(num_bytes))
    return _blocks[-1].tensor(shape)


def _reduced(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Pickle a tensor of this worker process: the first of a block lends the block, others are copied."""
    storage = tensor.untyped_storage()
    if tensor.dtype == torch.uint8 and not storage.is_shared():
        for block in _blocks:
            if block.storage.data_ptr() == storage.data_ptr() and block.memory[-1] == _FREE:
                place = tensor.storage_offset(), tensor.size(), tensor.stride()
                shared = torch.empty(0, dtype=torch.uint8).set_(block.storage, *place)
                block.memory[-1] = _LENT
                return _received, (shared,)
    return reduce_tensor(tensor)  # type: ignore[no-untyped-call, no-any-return]


_num_forks = 0
"""Twice the number of forks of this process, and one more while it forks"""


def _count_fork() -> None:
    global _num_forks
    _num_forks += 1


os.register_at_fork(before=_count_fork, after_in_parent=_count_fork)


def _received(shared: torch.Tensor) -> torch.Tensor:
    """Return a received tensor. Its block is given back when no tensor, view or array has a reference to it."""
    memory = torch.empty(0, dtype=torch.uint8).set_(shared.untyped_storage()).numpy()
    array = memory[:-1]
    weakref.finalize(array, _give_back, memory, os.getpid(), _num_forks).atexit = False
    return torch.from_numpy(array).as_strided(shared.size(), shared.stride(), shared.storage_offset())


def _give_back(memory: np.ndarray, process: int, num_forks: int) -> None:
    if os.getpid() == process:  # a forked child does not decide for its parent
        memory[-1] = _FREE if _num_forks == num_forks else _SPENT
