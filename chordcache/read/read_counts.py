"""Epochs of samples that are read by plain indices, which do not say to which pass over the dataset they belong."""

from __future__ import annotations

import numpy as np
import torch

from chordcache.read.sampling.distributed import rank_of_world


class ReadCounts:
    """Number of times that each sample was read by a plain index, in memory that all workers of a DataLoader share.

    The first read of a sample is epoch 0, the next one is epoch 1, in whichever process it happens. With several ranks,
    which share no memory, the n-th read is epoch ``n * world_size + rank``, so that two ranks do not draw the same clip
    of a sample.

    A copy by ``copy`` or ``pickle`` counts on its own. Copies that ``multiprocessing`` sends to workers do not.

    Parameters
    ----------
    num_samples : int
        Number of samples.
    """

    def __init__(self, num_samples: int) -> None:
        self._cells: torch.Tensor = torch.zeros(num_samples + 1, dtype=torch.int32)
        """Count of each sample; the last is the epoch that ``fix`` chose, plus one, or 0"""
        self._place: tuple[int, int] | None = None
        """Rank and number of ranks of the process that sent this copy to a worker, which has not joined them"""
        self._cells.share_memory_()  # type: ignore[no-untyped-call]

    def __getstate__(self) -> tuple[torch.Tensor, tuple[int, int]]:
        return self._cells, self._rank_of_world()

    def __setstate__(self, state: tuple[torch.Tensor, tuple[int, int]]) -> None:
        self._cells, self._place = state

    def fix(self, epoch: int) -> None:
        """Let every read have this epoch from now on, in all workers."""
        self._numbers[-1] = epoch + 1

    def epoch_of(self, number: int) -> int:
        """Count a read of a sample, and return its epoch."""
        numbers = self._numbers
        if numbers[-1]:
            return int(numbers[-1]) - 1
        count = int(numbers[number])
        numbers[number] = count + 1
        rank, world_size = self._rank_of_world()
        return count * world_size + rank

    @property
    def _numbers(self) -> np.ndarray:
        numbers: np.ndarray = self._cells.numpy()
        return numbers

    def _rank_of_world(self) -> tuple[int, int]:
        place = rank_of_world()
        return place if place[1] > 1 or self._place is None else self._place
