"""Batches of clips: their memory, the threads that read them for ``ClipLoader``, and their way to the device."""

from __future__ import annotations

import math
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.profiler import record_function
from torch.utils.data import get_worker_info

from chordcache.features.read_side import EncodedFrames
from chordcache.train.gpu_decode import FrameDecoder
from chordcache.train.shared_batches import allocate_shared

Batch: TypeAlias = dict[str, Any]
Collate: TypeAlias = Callable[[Sequence[Batch]], Batch]

FrameBuffer: TypeAlias = Callable[[tuple[int, ...]], tuple[np.ndarray, torch.Tensor] | EncodedFrames | None]
"""Function from the shape of a clip's frames to memory for them and its permuted view, the place of them as they are
stored, or None."""

Allocate: TypeAlias = Callable[[tuple[int, ...]], torch.Tensor]
"""Function that makes a uint8 tensor of a shape. Its contents are undefined."""


_TURNS = 4
"""Number of times that each thread of a loader gets clips of a batch, if the batch is large enough. The fewer, the
longer the others wait for the last one"""


class FrameMemory:
    """The frames of one batch, allocated when the shape of its first clip is known. Thread-safe."""

    def __init__(self, num_clips: int, allocate: Allocate) -> None:
        self._num_clips, self._allocate = num_clips, allocate
        self._memory: np.ndarray | None = None
        self._views: tuple[torch.Tensor, ...] = ()
        self._lock = threading.Lock()

    def clip(self, number: int, shape: tuple[int, ...]) -> tuple[np.ndarray, torch.Tensor] | None:
        """Return the memory of a clip [shape=(T, h, w, 3), dtype=uint8], and a view of it as (T, 3, h, w).

        None if the first clip has another shape.
        """
        with self._lock:
            if self._memory is None:
                frames = self._allocate((self._num_clips, *shape))
                self._memory, self._views = frames.numpy(), frames.movedim(-1, -3).unbind()
        return (self._memory[number], self._views[number]) if self._memory.shape[1:] == shape else None

    def buffers(self, places: range) -> list[FrameBuffer]:
        """Return the function ``clip`` of some clips."""
        return [partial(self.clip, place) for place in places]


def allocate(shape: tuple[int, ...]) -> torch.Tensor:
    """Allocate memory. In a DataLoader's worker process it is shared, so that a batch is not copied when sent."""
    if get_worker_info() is not None:
        return allocate_shared(shape)
    # Not torch.empty: numpy requests huge pages, which cut the time of first access to new memory to a quarter
    return torch.from_numpy(np.empty(shape, np.uint8))


def allocate_pinned(shape: tuple[int, ...]) -> torch.Tensor:
    """Allocate page-locked memory, which a GPU can copy from by itself. torch keeps released memory for reuse."""
    return torch.empty(shape, dtype=torch.uint8, pin_memory=True)


class RecycledMemory:
    """Memory that is reused for the next batch when the last tensor in it is gone. Thread-safe.

    glibc returns blocks larger than 32 MiB to the kernel. Mapping their pages again costs a tenth of the decoding time.
    At most ``max_kept`` unused blocks are kept.
    """

    def __init__(self, max_kept: int) -> None:
        self._kept: deque[np.ndarray] = deque(maxlen=max_kept)

    def allocate(self, shape: tuple[int, ...]) -> torch.Tensor:
        """Make a uint8 tensor, in kept memory if a block is large enough."""
        size = math.prod(shape)
        memory: np.ndarray | None = None
        while memory is None or len(memory) < size:
            try:
                memory = self._kept.pop()
            except IndexError:
                memory = np.empty(size, np.uint8)
        lent = memory[:size].reshape(shape)  # the tensor and its views keep a reference to this array
        weakref.finalize(lent, self._kept.append, memory).atexit = False
        return torch.from_numpy(lent)


def as_one(tensors: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """Return one tensor with these as its parts along a new first dimension, if they are consecutive in one storage."""
    first = tensors[0]
    step, kind = first.numel(), (first.dtype, first.shape, first.stride())
    memory, begin = first.untyped_storage().data_ptr(), first.storage_offset()
    for i, tensor in enumerate(tensors):
        if (
            tensor.storage_offset() != begin + i * step
            or tensor.untyped_storage().data_ptr() != memory
            or (tensor.dtype, tensor.shape, tensor.stride()) != kind
        ):
            return None
    return first.as_strided((len(tensors), *first.shape), (step, *first.stride()))


class BatchUnderWay:
    """A batch whose clips several threads read. The last thread to finish collates the batch and sends it."""

    def __init__(
        self,
        read_samples: Callable[[Sequence[tuple[int, int]], Sequence[FrameBuffer]], list[Batch]],
        indices: Sequence[tuple[int, int]],
        collate: Collate,
        allocate: Allocate,
        device: torch.device | None,
        stream: SideStream | None,
        decode: FrameDecoder | None = None,
    ) -> None:
        self._read_samples, self._indices, self._collate = read_samples, indices, collate
        self._allocate, self._device, self._stream, self._decode = allocate, device, stream, decode
        self._samples: list[Batch] = [{} for _ in indices]
        self._num_left = len(indices)
        self._lock = threading.Lock()
        self._reads: list[Future[None]] = []
        self._batch: Batch = {}
        self._is_sent: torch.cuda.Event | None = None

    def begin(self, pool: ThreadPoolExecutor, num_threads: int) -> None:
        """Queue the clips, a few at a time. To hand one to a thread takes longer than to read a small one.

        The clips of a turn are read together, so that a single thread gets all at once.
        """
        num_clips = len(self._indices)
        memory = FrameMemory(num_clips, self._allocate)
        num_at_once = num_clips if num_threads == 1 else max(1, num_clips // (_TURNS * num_threads))
        runs = [range(start, min(start + num_at_once, num_clips)) for start in range(0, num_clips, num_at_once)]
        self._reads = [pool.submit(self._read, run, memory) for run in runs]

    def _read(self, run: range, memory: FrameMemory) -> None:
        with record_function("chordcache: read clips"):
            buffers = memory.buffers(run) if self._decode is None else [EncodedFrames] * len(run)
            places = slice(run.start, run.stop)
            self._samples[places] = self._read_samples(self._indices[places], buffers)
        with self._lock:
            self._num_left -= len(run)
            is_last = not self._num_left
        if is_last:
            self._finish()

    def _finish(self) -> None:
        if self._stream is not None:
            with self._stream.current():
                self._collate_samples()
                self._batch, self._is_sent = self._stream.send(self._batch)
            return
        self._collate_samples()
        if self._device is not None:
            self._batch = _on_tensors(self._batch, lambda tensor: tensor.to(self._device))
        elif torch.cuda.is_available():
            self._batch = _on_tensors(self._batch, torch.Tensor.pin_memory)

    def _collate_samples(self) -> None:
        """Make the batch. Frames that are not decoded yet are decoded together, on the current stream."""
        samples, self._samples = self._samples, []  # frames on the CPU are released when they are copied
        encoded = [sample for sample in samples if isinstance(sample.get("frames"), EncodedFrames)]
        if encoded and self._decode is not None:
            decoded = self._decode.decode_clips([sample["frames"] for sample in encoded])
            for sample, frames in zip(encoded, decoded, strict=True):
                sample["frames"] = frames
        self._batch = self._collate(samples)

    def result(self) -> Batch:
        """Wait for the batch, or raise the exception of its first clip that failed."""
        wait(self._reads)  # for all at once: waking up for each clip, among the reading threads, costs 4 %
        for read in self._reads:
            read.result()
        if self._stream is not None and self._is_sent is not None:
            self._stream.receive(self._batch, self._is_sent)
        return self._batch


class SideStream:
    """A CUDA stream that copies to a GPU while the GPU computes."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def current(self) -> AbstractContextManager[Any]:
        """Return a context in which the GPU's work of this thread is queued on this stream."""
        return torch.cuda.stream(self._stream)

    def send(self, batch: Batch) -> tuple[Batch, torch.cuda.Event]:
        """Start to copy, on the current stream. The tensors may be used after ``receive``."""
        return _on_tensors(batch, self._sent), self._stream.record_event()

    def _sent(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor if tensor.is_cuda else tensor.pin_memory().to(self._device, non_blocking=True)

    def receive(self, batch: Batch, is_sent: torch.cuda.Event) -> None:
        """Make later work on the current stream wait for the copies of a batch."""
        current = torch.cuda.current_stream(self._device)
        current.wait_event(is_sent)

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            tensor.record_stream(current)  # or the side stream would overwrite it once it is released
            return tensor

        _on_tensors(batch, keep)


def _on_tensors(batch: Batch, function: Callable[[torch.Tensor], torch.Tensor]) -> Batch:
    """Return the batch with the function's results in place of its tensors, also of those in ``lengths``."""
    changed = dict(batch)
    for name, value in batch.items():
        if isinstance(value, dict):
            changed[name] = _on_tensors(value, function)
        elif isinstance(value, torch.Tensor):
            changed[name] = function(value)
    return changed
