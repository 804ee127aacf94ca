"""Epochs of samples that are read by plain indices, which do not say to which pass over the dataset they belong."""

from __future__ import annotations

import fcntl
import mmap
import os
import weakref
from multiprocessing.context import get_spawning_popen

import numpy as np

from chordcache.forks import no_fork
from chordcache.train.samplers.distributed import rank_of_world


class ReadCounts:
    """Number of times that each sample was read by a plain index, in memory that all workers of a DataLoader share.

    The first read of a sample is epoch 0, the next one is epoch 1, in whichever process it happens. With several ranks,
    which share no memory, the n-th read is epoch ``n * world_size + rank``, so that two ranks do not draw the same clip
    of a sample.

    The counts are in no state of a run, so that a run that resumes does not continue them.

    A copy by ``copy`` or ``pickle`` counts on its own. Copies that ``multiprocessing`` sends to workers do not.
    """

    def __init__(self, num_samples: int) -> None:
        self._place: tuple[int, int] | None = None
        """Rank and number of ranks of the process that sent this copy to a worker, which has not joined them"""
        self._counting_process: int | None = None
        """Process in which the last read of a sample took its epoch from a count"""
        self._create(np.zeros(num_samples + 1, np.int32).tobytes())

    def _create(self, counts: bytes) -> None:
        fd = os.memfd_create("chordcache-read-counts")
        os.ftruncate(fd, len(counts))
        self._open(fd)
        self._numbers[:] = np.frombuffer(counts, np.int32)

    def _open(self, fd: int) -> None:
        weakref.finalize(self, os.close, fd)
        self._fd = fd
        self._numbers: np.ndarray = np.frombuffer(mmap.mmap(fd, 0), np.int32)
        """Count of each sample; the last is the epoch that ``fix`` chose, plus one, or 0"""

    def __getstate__(self) -> tuple[str | bytes, tuple[int, int]]:
        is_for_worker = get_spawning_popen() is not None
        counts = f"/proc/{os.getpid()}/fd/{self._fd}" if is_for_worker else self._numbers.tobytes()
        return counts, self._rank_of_world()

    def __setstate__(self, state: tuple[str | bytes, tuple[int, int]]) -> None:
        counts, self._place = state
        self._counting_process = None
        if isinstance(counts, str):
            self._open(os.open(counts, os.O_RDWR | os.O_CLOEXEC))
        else:
            self._create(counts)

    @property
    def is_counting(self) -> bool:
        """True if the last read of a sample in this process took its epoch from a count."""
        return self._counting_process == os.getpid()

    def fix(self, epoch: int) -> None:
        """Let every read have this epoch from now on, in all workers."""
        self._numbers[-1] = epoch + 1

    def epoch_of(self, number: int, epoch: int | None = None) -> int:
        """Return the epoch of a read of a sample. Count the read, unless its index has an epoch or ``fix`` chose it."""
        if epoch is None and self._numbers[-1]:
            epoch = int(self._numbers[-1]) - 1
        self._counting_process = os.getpid() if epoch is None else None
        if epoch is not None:
            return epoch
        with no_fork:  # also keeps threads apart
            byte = number * self._numbers.itemsize
            fcntl.lockf(self._fd, fcntl.LOCK_EX, 1, byte)  # against other processes, for this sample alone
            count = int(self._numbers[number])
            self._numbers[number] = count + 1
            fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, byte)
        rank, world_size = self._rank_of_world()
        return count * world_size + rank

    def _rank_of_world(self) -> tuple[int, int]:
        place = rank_of_world()
        return place if place[1] > 1 or self._place is None else self._place
