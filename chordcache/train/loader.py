"""Loaders that make batches ahead of the consumer, in threads or in a DataLoader's processes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch.profiler import record_function
from torch.utils.data import BatchSampler, DataLoader, Sampler

from chordcache.amounts import counted
from chordcache.arguments import check_at_least, check_choice, names_arguments, parsed_bytes
from chordcache.errors import UsageError
from chordcache.train.batches import (
    Batch,
    BatchUnderWay,
    Collate,
    RecycledMemory,
    SideStream,
    allocate_pinned,
)
from chordcache.train.clip_dataset import FETCHES_AT_ONCE, ClipDataset
from chordcache.train.collate import collate
from chordcache.train.gpu_decode import gpu_decoder
from chordcache.train.kept_frames import KeptFrames, frames_of_thread
from chordcache.train.samplers.budget_batches import BudgetBatchSampler
from chordcache.train.samplers.distributed import ChordSampler, check_not_of_torch


class _Resumable:
    """Base class of the loaders. It counts the batches of a pass that were returned, for the state of a run."""

    sampler: Any
    """Order of the samples. Lightning calls its ``set_epoch``"""
    batch_size: int | None
    drop_last: bool
    _consumed: tuple[int, int] | None = None
    """Epoch, and number of its batches that this pass has returned. None if none has begun"""

    @property
    def epoch(self) -> int:
        """Epoch of this pass, or of the first one if none has begun: after the end of an epoch was loaded, the next."""
        return int(self.sampler.next_epoch if self._consumed is None else self.sampler.epoch)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next pass. If that epoch's state was loaded, the pass covers the rest of it."""
        self.sampler.set_epoch(epoch)

    def __len__(self) -> int:
        """Return the number of batches in a whole epoch, also while a resumed pass has fewer."""
        return self._num_batches(len(self.sampler))

    @property
    def num_batches_left(self) -> int:
        """Number of batches in this pass, or in the first one: after ``load_state_dict`` the rest of the epoch."""
        return self._num_batches(self.sampler.num_left)

    def _num_batches(self, num_samples: int) -> int:
        if self.batch_size is None:
            return num_samples  # a BudgetBatchSampler counts batches
        return num_samples // self.batch_size if self.drop_last else -(-num_samples // self.batch_size)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the run after the last batch that was returned. See ``ChordSampler.state_dict``."""
        epoch, num_batches = self._consumed or (self.sampler.epoch, 0)
        state: dict[str, Any] = self.sampler.state_dict(num_batches if epoch == self.sampler.epoch else 0)
        if self._consumed is None and state != self.sampler.state_dict():
            raise UsageError(
                "loader: got one that another loader reads from, as accelerate's does, expected one that is iterated "
                "itself. Take loader.sampler.state_dict(num_batches_consumed=n)."
            )
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume a run: the next pass begins with the batch after it. See ``ChordSampler.load_state_dict``."""
        self.sampler.load_state_dict(state)
        self._consumed = None

    def _counted(self, begin: Callable[[], Iterator[Batch]]) -> Iterator[Batch]:
        """Yield the batches of an epoch. ``begin`` is called with the first: Lightning chooses the epoch before it."""
        epoch = self.sampler.next_epoch
        self._consumed = epoch, 0
        for number, batch in enumerate(begin(), start=1):
            self._consumed = epoch, number
            yield batch


class WorkerLoader(_Resumable, DataLoader[Any]):
    """DataLoader with the state of a run. See ``make_loader``."""

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]
        """Yield the batches of an epoch."""
        return self._counted(super().__iter__)


@names_arguments
def make_loader(
    dataset: ClipDataset,
    batch_size: int | None = 1,
    num_workers: int = 0,
    *,
    sampler: ChordSampler | BudgetBatchSampler | None = None,
    shuffle: bool = True,
    drop_last: bool = False,
    prefetch_factor: int = 2,
    start_method: str | None = None,
    collate: Collate = collate,
) -> WorkerLoader:
    """Make a DataLoader whose workers decode each batch into one tensor in shared memory.

    The workers persist from epoch to epoch, use one thread each, and start by ``start_method``. Batches are pinned
    where there is CUDA. Each pass is a new epoch, or the epoch that ``loader.set_epoch`` chose. ``len(loader)`` is the
    number of batches in a whole epoch. ``loader.state_dict()`` returns the position of a run after the last batch that
    was returned, and ``loader.load_state_dict(state)`` goes on after it. In a loader that accelerate prepared,
    ``loader.sampler.state_dict(num_batches_consumed=n)`` does so.

    Parameters
    ----------
    dataset : ClipDataset
        The dataset to read: a ``ChordVideoDataset``, or what ``concat`` or ``subset`` made.
    batch_size : int or None
        Samples in a batch of this rank. None with a ``BudgetBatchSampler``.
    num_workers : int
        Processes that read. 0 reads in this process, when a batch is requested.
    sampler : ChordSampler or BudgetBatchSampler, optional
        The order of the samples. By default shuffled, with seed 0, or drawn by the weights of the dataset.
    shuffle : bool
        False for the order of the dataset, as in validation. Only without ``sampler``.
    drop_last : bool
        Leave out a last batch that is not full.
    prefetch_factor : int
        Batches that each worker prepares ahead.
    start_method : {"fork", "forkserver", "spawn"}, optional
        Start method of the workers. By default Python's on this platform, and "forkserver" for a cache in an object
        store, whose client does not survive a fork.
    collate : callable
        Function that makes a batch from a list of samples, such as
        ``functools.partial(chordcache.collate, tokenizer=...)``.

    Returns
    -------
    torch.utils.data.DataLoader
        The loader. It yields the batches that ``collate`` makes. ``frames`` [shape=(B, T, 3, h, w), dtype=uint8] is a
        permuted view of (B, T, h, w, 3). ``.contiguous()``, best called on the device, puts the channels first in
        memory too.

    Raises
    ------
    UsageError
        If an argument is wrong.
    """
    check_at_least(0, num_workers=num_workers)
    check_at_least(1, prefetch_factor=prefetch_factor)
    order = _checked_sampler(dataset, batch_size, sampler, shuffle=shuffle)
    batches: dict[str, Any] = {"batch_sampler": order}
    if batch_size is not None:
        batches = {"batch_size": batch_size, "sampler": order, "drop_last": drop_last}
    loader = WorkerLoader(
        dataset,
        **batches,
        num_workers=num_workers,
        collate_fn=collate,
        pin_memory=torch.cuda.is_available(),
        multiprocessing_context=(start_method or ("forkserver" if dataset.fetches else None)) if num_workers else None,
        persistent_workers=num_workers > 0,
        prefetch_factor=prefetch_factor if num_workers else None,
    )
    vars(loader)["sampler"] = order  # also if it is the batch sampler: frameworks look here for a DistributedSampler
    return loader


class _BatchesOfSize(BatchSampler):
    """Sampler of batches of one size, with the epoch and the state of the sampler of its samples."""

    def __init__(self, sampler: ChordSampler, batch_size: int, drop_last: bool) -> None:
        order: Any = sampler
        super().__init__(order, batch_size, drop_last)
        self.set_epoch = sampler.set_epoch
        self.state_dict = sampler.state_dict
        self.load_state_dict = sampler.load_state_dict


_CLIPS_FETCHED_AHEAD = 64
"""Samples that are fetched from an object store ahead of the one that is read"""


@names_arguments
class ClipLoader(_Resumable):
    """Loader whose batches threads of this process decode, a few ahead. It starts no process and copies nothing.

    JPEG is decoded without the GIL, straight into each batch's own tensor. With a CUDA ``device``, the batches are
    pinned and copied on a separate stream, while the GPU works on earlier batches.

    Each ``iter(loader)`` is a pass over one epoch: the epoch that ``set_epoch`` chose, or else the next one. Use one
    pass at a time. Leaving a pass early ends its threads, each after its current clips. An exception in a thread is
    raised unchanged in place of its batch.

    Parameters
    ----------
    dataset, batch_size, sampler, shuffle, drop_last, collate
        As in ``make_loader``. Several loaders may share one dataset.
    num_threads : int
        Threads that read.
    device : str or torch.device, optional
        Device of the returned tensors. By default CPU memory, pinned where there is CUDA.
    prefetch : int
        Batches that are made ahead while the consumer uses one. 0 makes each batch when it is requested.
    augment : callable, optional
        Function that takes each batch on its device and returns another one, such as a ``BatchAugment``. The thread
        of the consumer calls it.
    decode : {"cpu", "cuda"}
        "cuda" decodes, cuts and scales the frames of a batch on ``device``: JPEGs with torchvision, and the planes of
        ``codec: yuv420`` with torch. Values of ``frames`` then differ by a level or two.
    keep : str or int, optional
        Memory for decoded frames, such as "8GB" [or bytes], which all threads share. The frames that are read first
        stay in it. Batches are the same as without. ``kept_frames`` has the number of hits. Not with
        ``decode="cuda"``.

    Raises
    ------
    UsageError
        If an argument is wrong.

    Examples
    --------
    ::

        loader = ClipLoader(dataset, batch_size=8, num_threads=4, device="cuda")
        for epoch in range(loader.epoch, 10):
            loader.set_epoch(epoch)
            for batch in loader:
                batch["frames"]  # (8, 16, 3, 224, 224) uint8, a permuted view of (8, 16, 224, 224, 3)
                state = loader.state_dict()  # this batch is done; load_state_dict goes on after it
    """

    prefetch_factor: None = None
    """None, as that of a DataLoader without workers, which ``skip_first_batches`` makes of this loader"""

    def __init__(
        self,
        dataset: ClipDataset,
        batch_size: int | None,
        *,
        sampler: ChordSampler | BudgetBatchSampler | None = None,
        shuffle: bool = True,
        num_threads: int = 4,
        device: str | torch.device | None = None,
        prefetch: int = 2,
        drop_last: bool = False,
        collate: Collate = collate,
        augment: Callable[[Batch], Batch] | None = None,
        decode: str = "cpu",
        keep: str | int | None = None,
    ) -> None:
        check_at_least(1, num_threads=num_threads)
        check_at_least(0, prefetch=prefetch)
        self.dataset = dataset
        """The dataset, as a DataLoader has it"""
        self.batch_size = batch_size
        self.sampler = _checked_sampler(dataset, batch_size, sampler, shuffle=shuffle)
        self._num_threads = num_threads
        self._prefetch = prefetch
        self.drop_last = drop_last
        self._collate = collate
        self._augment = augment
        self._device = None if device is None else torch.device(device)
        check_choice(("cpu", "cuda"), decode=decode)
        self.kept_frames: KeptFrames | None = None
        """Decoded frames in memory, or None without ``keep``"""
        if keep is not None:
            if decode == "cuda":
                raise UsageError(f"keep: got {keep!r} with decode='cuda', which decodes all frames, expected None")
            num_bytes = int(parsed_bytes(keep, "keep")) if isinstance(keep, str) else keep
            check_at_least(1, keep=num_bytes)
            self.kept_frames = KeptFrames(num_bytes)
        self._decode = gpu_decoder(self._device or torch.device("cpu")) if decode == "cuda" else None
        self._allocate = allocate_pinned if torch.cuda.is_available() else RecycledMemory(prefetch + 2).allocate

    def __repr__(self) -> str:
        size = "clips of a budget" if self.batch_size is None else counted(self.batch_size, "clip")
        device = "" if self._device is None else f", device {self._device}"
        return (
            f"<ClipLoader of {self.dataset!r}: {counted(len(self), 'batch')} of {size}, "
            f"{counted(self._num_threads, 'thread')}, epoch {self.epoch}{device}>"
        )

    @property
    def batch_sampler(self) -> Sampler[Any]:
        """Sampler of the batches, as a DataLoader has it: for ``skip_first_batches`` and ``StatefulDataLoader``."""
        if isinstance(self.sampler, BudgetBatchSampler):
            return self.sampler
        assert self.batch_size is not None
        return _BatchesOfSize(self.sampler, self.batch_size, self.drop_last)

    @property
    def collate_fn(self) -> Collate:
        """Function that makes a batch of samples and augments it, as a DataLoader has it."""
        augment, collate = self._augment, self._collate
        return collate if augment is None else lambda samples: augment(collate(samples))

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches of an epoch."""
        return self._counted(self._batches)

    def _batches(self) -> Iterator[Batch]:
        pool = ThreadPoolExecutor(self._num_threads, "chordcache-clips", frames_of_thread.set, (self.kept_frames,))
        try:
            for under_way in self._ahead(pool):
                with record_function("chordcache: wait for a batch"):
                    batch = under_way.result()
                yield batch if self._augment is None else self._augment(batch)
        finally:
            # Without waiting: the garbage collector may run this in one of the threads that it would wait for
            pool.shutdown(wait=False, cancel_futures=True)

    def _ahead(self, pool: ThreadPoolExecutor) -> Iterator[BatchUnderWay]:
        """Yield batches in their order, ``prefetch`` behind the batch that was started last."""
        stream = SideStream(self._device) if self._device is not None and self._device.type == "cuda" else None
        pending: deque[BatchUnderWay] = deque()
        read, collate, allocate = self.dataset.read_samples, self._collate, self._allocate
        for indices in self._fetched_ahead() if self.dataset.fetches else self.batch_sampler:
            pending.append(BatchUnderWay(read, indices, collate, allocate, self._device, stream, self._decode))
            pending[-1].begin(pool, self._num_threads)
            if len(pending) > self._prefetch:
                yield pending.popleft()
        yield from pending

    def _fetched_ahead(self) -> Iterator[Any]:
        """Yield the indices of batches. The samples of the batches behind them are fetched meanwhile."""
        ahead: deque[Any] = deque()
        num_clips = 0
        pool = ThreadPoolExecutor(FETCHES_AT_ONCE, thread_name_prefix="chordcache-fetch")
        try:
            for indices in self.batch_sampler:
                for index in indices:
                    pool.submit(self.dataset.fetch, index)  # its error comes when the sample is read
                ahead.append(indices)
                num_clips += len(indices)
                while num_clips > _CLIPS_FETCHED_AHEAD:
                    num_clips -= len(ahead[0])
                    yield ahead.popleft()
            yield from ahead
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _checked_sampler(
    dataset: ClipDataset, batch_size: int | None, sampler: ChordSampler | BudgetBatchSampler | None, *, shuffle: bool
) -> ChordSampler | BudgetBatchSampler:
    check_not_of_torch(dataset)
    if not callable(getattr(dataset, "read_samples", None)):
        raise UsageError(
            f"dataset: got a {type(dataset).__name__}, expected a ChordVideoDataset, or what chordcache.concat or "
            "chordcache.subset made. Use chordcache.from_config for a config, and a DataLoader for other datasets."
        )
    if sampler is not None and not isinstance(sampler, (ChordSampler, BudgetBatchSampler)):
        raise UsageError(
            f"sampler: got a {type(sampler).__name__}, expected a ChordSampler, which takes the weights of samples as "
            "weights= and splits samples across ranks, or a BudgetBatchSampler"
        )
    if sampler is not None and not shuffle:
        raise UsageError(
            "shuffle: got False and a sampler, expected one of them. Make the sampler with ChordSampler(shuffle=False)."
        )
    if batch_size is None or isinstance(sampler, BudgetBatchSampler):
        if batch_size is not None or not isinstance(sampler, BudgetBatchSampler):
            raise UsageError(
                f"batch_size: got {batch_size} with a sampler of type {type(sampler).__name__}, expected None with a "
                "BudgetBatchSampler, and a number with any other."
            )
        sampler.check_length(dataset)
        return sampler
    check_at_least(1, batch_size=batch_size)
    if sampler is None:
        return ChordSampler(dataset, batch_size=batch_size, shuffle=shuffle)
    sampler.check_length(dataset)
    if sampler.batch_size != batch_size:
        raise UsageError(
            f"sampler: got one with batch_size={sampler.batch_size}, expected {batch_size}. Make the sampler with "
            f"ChordSampler(..., batch_size={batch_size})."
        )
    return sampler
