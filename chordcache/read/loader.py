"""Loaders that make batches ahead of the consumer, in threads or in a DataLoader's processes."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from itertools import islice
from typing import Any, TypeAlias

import torch
from torch.profiler import record_function
from torch.utils.data import DataLoader

from chordcache.errors import UsageError
from chordcache.read.arguments import check_at_least
from chordcache.read.batch_memory import Allocate, FrameMemory, RecycledMemory, allocate_pinned
from chordcache.read.clip_dataset import ClipDataset
from chordcache.read.collate import collate
from chordcache.read.sampling.budget_batches import BudgetBatchSampler
from chordcache.read.sampling.distributed import ChordSampler, check_not_of_torch

Batch: TypeAlias = dict[str, Any]
Collate: TypeAlias = Callable[[Sequence[Batch]], Batch]


def make_loader(
    dataset: ClipDataset,
    batch_size: int | None,
    num_workers: int,
    *,
    sampler: ChordSampler | BudgetBatchSampler | None = None,
    drop_last: bool = False,
    prefetch_factor: int = 2,
    start_method: str | None = None,
    collate: Collate = collate,
) -> DataLoader[Any]:
    """Make a DataLoader whose workers decode each batch into one tensor in shared memory.

    The workers persist from epoch to epoch, use one thread each, and start by ``start_method``. Batches are pinned
    where there is CUDA. Each pass is a new epoch, or the one that ``loader.sampler.set_epoch`` chose.
    ``loader.sampler.state_dict(num_batches_consumed=n)`` returns the position of a run. With a ``BudgetBatchSampler``,
    use ``loader.batch_sampler`` instead of ``loader.sampler``.

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
    drop_last : bool
        Leave out a last batch that is not full.
    prefetch_factor : int
        Batches that each worker prepares ahead.
    start_method : {"fork", "forkserver", "spawn"}, optional
        Start method of the workers. By default Python's on this platform.
    collate : callable
        Function that makes a batch from a list of samples, such as
        ``functools.partial(chordcache.collate, tokenizer=...)``.

    Returns
    -------
    torch.utils.data.DataLoader
        Loader of the batches that ``collate`` makes. ``frames`` [shape=(B, T, 3, h, w), dtype=uint8] is a permuted view
        of (B, T, h, w, 3). ``.contiguous()``, best called on the device, puts the channels first in memory too.

    Raises
    ------
    UsageError
        If an argument is wrong.
    """
    check_at_least(0, num_workers=num_workers)
    check_at_least(1, prefetch_factor=prefetch_factor)
    order = _checked_sampler(dataset, batch_size, sampler)
    batches: dict[str, Any] = {"batch_sampler": order}
    if batch_size is not None:
        batches = {"batch_size": batch_size, "sampler": order, "drop_last": drop_last}
    return DataLoader(
        dataset,
        **batches,
        num_workers=num_workers,
        collate_fn=collate,
        pin_memory=torch.cuda.is_available(),
        multiprocessing_context=start_method if num_workers else None,
        persistent_workers=num_workers > 0,
        prefetch_factor=prefetch_factor if num_workers else None,
    )


class ClipLoader:
    """Loader of batches that threads of this process decode, a few ahead. It starts, pickles and copies nothing.

    JPEG is decoded without the GIL, straight into each batch's own tensor. With a CUDA ``device`` the batches are
    pinned and copied on a separate stream, while the GPU works on earlier batches.

    Each ``iter(loader)`` is a pass over one epoch: the one that ``set_epoch`` chose, or else the one after the last
    pass. Use one pass at a time. Leaving a pass early ends its
    threads, each after its current clip. An exception in a thread is raised unchanged where its batch was due.

    Parameters
    ----------
    dataset : ClipDataset
        The dataset to read, as in ``make_loader``. Several loaders may share one.
    batch_size : int or None
        Samples in a batch of this rank. None with a ``BudgetBatchSampler``.
    sampler : ChordSampler or BudgetBatchSampler, optional
        The order of the samples. By default shuffled, with seed 0, or drawn by the weights of the dataset.
    num_threads : int
        Threads that read.
    device : str or torch.device, optional
        Device of the returned tensors. By default CPU memory, pinned where there is CUDA.
    prefetch : int
        Batches that are made ahead while the consumer uses one. 0 makes each batch when it is requested.
    drop_last : bool
        Leave out a last batch that is not full.
    collate : callable
        As in ``make_loader``.

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

    def __init__(
        self,
        dataset: ClipDataset,
        batch_size: int | None,
        *,
        sampler: ChordSampler | BudgetBatchSampler | None = None,
        num_threads: int = 4,
        device: str | torch.device | None = None,
        prefetch: int = 2,
        drop_last: bool = False,
        collate: Collate = collate,
    ) -> None:
        check_at_least(1, num_threads=num_threads)
        check_at_least(0, prefetch=prefetch)
        check_not_of_torch(dataset)
        if not callable(getattr(dataset, "read_sample", None)):
            raise UsageError(
                f"dataset: got a {type(dataset).__name__}, expected a ChordVideoDataset, or what chordcache.concat or "
                "chordcache.subset made. Use a DataLoader for others."
            )
        self._dataset = dataset
        self._batch_size = batch_size
        self._sampler = _checked_sampler(dataset, batch_size, sampler)
        self._num_threads = num_threads
        self._prefetch = prefetch
        self._drop_last = drop_last
        self._collate = collate
        self._device = None if device is None else torch.device(device)
        self._allocate = allocate_pinned if torch.cuda.is_available() else RecycledMemory(prefetch + 2).allocate
        self._consumed = 0, 0
        """Epoch, and number of its batches that this pass has returned"""

    @property
    def epoch(self) -> int:
        """Epoch of this pass, or of the first one if none has begun."""
        return self._sampler.epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next pass. If that epoch's state was loaded, the pass covers the rest of it."""
        self._sampler.set_epoch(epoch)

    def __len__(self) -> int:
        """Return the number of batches in a pass."""
        num_samples = len(self._sampler)
        if self._batch_size is None:
            return num_samples  # the length of a BudgetBatchSampler counts batches
        return num_samples // self._batch_size if self._drop_last else -(-num_samples // self._batch_size)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the run after the last batch that was returned. See ``ChordSampler.state_dict``."""
        epoch, num_batches = self._consumed
        return self._sampler.state_dict(num_batches if epoch == self.epoch else 0)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume a run: the next pass begins with the batch after it. See ``ChordSampler.load_state_dict``."""
        self._sampler.load_state_dict(state)
        self._consumed = self.epoch, 0

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches of an epoch."""
        epoch = self._sampler.next_epoch
        self._consumed = epoch, 0
        pool = ThreadPoolExecutor(self._num_threads, thread_name_prefix="chordcache-clips")
        try:
            for number, under_way in enumerate(self._ahead(pool), start=1):
                with record_function("chordcache: wait for a batch"):
                    batch = under_way.result()
                self._consumed = epoch, number
                yield batch
        finally:
            # Without waiting: the garbage collector may run this in one of the threads that it would wait for
            pool.shutdown(wait=False, cancel_futures=True)

    def _ahead(self, pool: ThreadPoolExecutor) -> Iterator[_BatchUnderWay]:
        """Yield batches in their order, ``prefetch`` behind the batch that was started last."""
        stream = _SideStream(self._device) if self._device is not None and self._device.type == "cuda" else None
        pending: deque[_BatchUnderWay] = deque()
        for indices in self._index_lists():
            pending.append(_BatchUnderWay(self._dataset, indices, self._collate, self._allocate, self._device, stream))
            pending[-1].begin(pool)
            if len(pending) > self._prefetch:
                yield pending.popleft()
        yield from pending

    def _index_lists(self) -> Iterator[list[tuple[int, int]]]:
        """Yield the samples of each batch."""
        if isinstance(self._sampler, BudgetBatchSampler):
            yield from self._sampler
            return
        pairs = iter(self._sampler)
        while indices := list(islice(pairs, self._batch_size)):
            if len(indices) == self._batch_size or not self._drop_last:
                yield indices


class _BatchUnderWay:
    """A batch whose clips several threads read. The last thread to finish collates the batch and sends it."""

    def __init__(
        self,
        dataset: ClipDataset,
        indices: Sequence[tuple[int, int]],
        collate: Collate,
        allocate: Allocate,
        device: torch.device | None,
        stream: _SideStream | None,
    ) -> None:
        self._dataset = dataset
        self._indices = indices
        self._collate = collate
        self._device = device
        self._stream = stream
        self._memory = FrameMemory(len(indices), allocate)
        self._samples: list[Batch] = [{} for _ in indices]
        self._num_left = len(indices)
        self._lock = threading.Lock()
        self._reads: list[Future[None]] = []
        self._batch: Batch = {}
        self._is_sent: torch.cuda.Event | None = None

    def begin(self, pool: ThreadPoolExecutor) -> None:
        """Queue the clips."""
        self._reads = [pool.submit(self._read, place) for place in range(len(self._indices))]

    def _read(self, place: int) -> None:
        with record_function("chordcache: read a clip"):
            self._samples[place] = self._dataset.read_sample(self._indices[place], partial(self._memory.clip, place))
        with self._lock:
            self._num_left -= 1
            is_last = not self._num_left
        if is_last:
            self._finish()

    def _finish(self) -> None:
        self._batch = self._collate(self._samples)
        if self._stream is not None:
            self._batch, self._is_sent = self._stream.send(self._batch)
        elif self._device is not None:
            self._batch = _on_tensors(self._batch, lambda tensor: tensor.to(self._device))
        elif torch.cuda.is_available():
            self._batch = _on_tensors(self._batch, torch.Tensor.pin_memory)

    def result(self) -> Batch:
        """Wait for the batch, or raise the exception of its first clip that failed."""
        wait(self._reads)  # for all at once: waking up for each clip, among the reading threads, costs 4 %
        for read in self._reads:
            read.result()
        if self._stream is not None and self._is_sent is not None:
            self._stream.receive(self._batch, self._is_sent)
        return self._batch


class _SideStream:
    """A CUDA stream that copies to a GPU while the GPU computes."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def send(self, batch: Batch) -> tuple[Batch, torch.cuda.Event]:
        """Start to copy. The tensors may be used after ``receive``."""
        with torch.cuda.stream(self._stream):
            sent = _on_tensors(batch, lambda tensor: tensor.pin_memory().to(self._device, non_blocking=True))
            return sent, self._stream.record_event()

    def receive(self, batch: Batch, is_sent: torch.cuda.Event) -> None:
        """Make later work on the current stream wait for the copies of a batch."""
        current = torch.cuda.current_stream(self._device)
        current.wait_event(is_sent)
        for tensor in _tensors_of(batch):
            tensor.record_stream(current)  # or the side stream would overwrite it once it is released


def _on_tensors(batch: Batch, function: Callable[[torch.Tensor], torch.Tensor]) -> Batch:
    """Return the batch with the function's results in place of its tensors, also of those in ``lengths``."""
    changed = dict(batch)
    for name, value in batch.items():
        if isinstance(value, dict):
            changed[name] = _on_tensors(value, function)
        elif isinstance(value, torch.Tensor):
            changed[name] = function(value)
    return changed


def _tensors_of(batch: Mapping[str, Any]) -> Iterator[torch.Tensor]:
    for value in batch.values():
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, dict):
            yield from _tensors_of(value)


def _checked_sampler(
    dataset: ClipDataset, batch_size: int | None, sampler: ChordSampler | BudgetBatchSampler | None
) -> ChordSampler | BudgetBatchSampler:
    check_not_of_torch(dataset)
    if sampler is not None and not isinstance(sampler, (ChordSampler, BudgetBatchSampler)):
        raise UsageError(
            f"sampler: got a {type(sampler).__name__}, expected a ChordSampler, which takes the weights of samples as "
            "weights= and splits samples across ranks, or a BudgetBatchSampler"
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
        return ChordSampler(dataset, batch_size=batch_size)
    sampler.check_length(dataset)
    if sampler.batch_size != batch_size:
        raise UsageError(
            f"sampler: got one with batch_size={sampler.batch_size}, expected {batch_size}. Make the sampler with "
            f"ChordSampler(..., batch_size={batch_size})."
        )
    return sampler
