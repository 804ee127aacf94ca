"""A batch that threads read for ``ClipLoader``, and its way to the device."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, TypeAlias

import torch
from torch.profiler import record_function

from chordcache.features.read_side import EncodedFrames
from chordcache.train.batch_memory import Allocate, FrameMemory
from chordcache.train.clip_dataset import ClipDataset
from chordcache.train.gpu_decode import DecodeJpegs, decode_clips

Batch: TypeAlias = dict[str, Any]
Collate: TypeAlias = Callable[[Sequence[Batch]], Batch]


class BatchUnderWay:
    """A batch whose clips several threads read. The last thread to finish collates the batch and sends it."""

    def __init__(
        self,
        dataset: ClipDataset,
        indices: Sequence[tuple[int, int]],
        collate: Collate,
        allocate: Allocate,
        device: torch.device | None,
        stream: SideStream | None,
        decode: DecodeJpegs | None = None,
    ) -> None:
        self._dataset = dataset
        self._indices = indices
        self._collate = collate
        self._device = device
        self._stream = stream
        self._decode = decode
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
            buffer = partial(self._memory.clip, place) if self._decode is None else EncodedFrames
            self._samples[place] = self._dataset.read_sample(self._indices[place], buffer)
        with self._lock:
            self._num_left -= 1
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
        encoded = [sample for sample in self._samples if isinstance(sample.get("frames"), EncodedFrames)]
        if encoded and self._decode is not None:
            decoded = decode_clips([sample["frames"] for sample in encoded], self._decode)
            for sample, frames in zip(encoded, decoded, strict=True):
                sample["frames"] = frames
        self._batch = self._collate(self._samples)

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
