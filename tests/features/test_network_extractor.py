"""Batches of the inputs of one video: in order, of one kind, and smaller where memory is not enough."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from chordcache.engine.worker import DeviceLostError
from chordcache.errors import MediaError
from chordcache.features.base import Rows
from chordcache.features.networks.extractor import BatchSize, NetworkExtractor, is_context_lost, is_out_of_memory


class Sums(NetworkExtractor):
    """The sum of each input. The model is a function that each batch is passed to first."""

    def __init__(self, batch_size: BatchSize, model: Any = len) -> None:
        super().__init__("sums")
        self.batch_size, self.model = batch_size, model
        self.last: list[np.ndarray] = []

    def prepare(self, frame: Any) -> Any:
        return frame

    def last_inputs(self) -> Sequence[Any]:
        return self.last

    @classmethod
    def infer(cls, model: Any, inputs: list[Any]) -> Sequence[Any]:
        model(inputs)
        return [float(array.sum()) for array in inputs]

    def rows_of(self, outputs: Sequence[Any]) -> Rows:
        return {self.name: np.array(outputs)}


def run(extractor: Any, inputs: Sequence[np.ndarray | None]) -> list[float]:
    """Return the rows of all inputs."""
    rows = [*map(extractor.add_frame, inputs), extractor.finish()]
    return [float(row) for part in rows if part for row in part["sums"]]


def ones(*lengths: int) -> list[np.ndarray]:
    return [np.ones(length) for length in lengths]


def test_batches_hold_inputs_of_one_shape_and_dtype_in_order() -> None:
    batches: list[list[int]] = []
    extractor = Sums(BatchSize(3), lambda batch: batches.append([len(array) for array in batch]))
    extractor.last = ones(2, 5)
    assert run(extractor, [*ones(2, 2, 2, 2), None, *ones(4), np.ones(4, np.uint8)]) == [2, 2, 2, 2, 4, 4, 2, 5]
    assert batches == [[2, 2, 2], [2], [4], [4], [2], [5]]


def test_a_video_without_inputs_has_no_rows() -> None:
    assert run(Sums(BatchSize(3)), [None, None]) == []


def test_later_batches_and_videos_have_no_more_inputs_than_there_is_memory_for() -> None:
    sizes: list[int] = []

    def model(batch: list[Any]) -> None:
        sizes.append(len(batch))
        if len(batch) > 2:
            raise MemoryError

    batch_size, inputs = BatchSize(8), ones(*[3] * 11)
    assert run(Sums(batch_size, model), inputs) == [3] * 11
    assert sizes == [8, 4, 2, 2, 2, 2, 2, 1]
    sizes.clear()
    assert run(Sums(batch_size, model), inputs) == [3] * 11
    assert sizes == [2, 2, 2, 2, 2, 1]


def test_the_tensors_of_a_batch_are_freed_before_its_half_is_computed() -> None:
    tensors: list[Any] = []

    def model(batch: list[Any]) -> None:
        assert not any(tensor() is not None for tensor in tensors)
        tensor = np.stack(batch)
        tensors.append(weakref.ref(tensor))
        if len(batch) > 1:
            raise MemoryError

    assert run(Sums(BatchSize(4), model), ones(1, 1, 1, 1)) == [1] * 4
    assert len(tensors) == 6


def raises(error: Exception) -> Any:
    def model(batch: list[Any]) -> None:
        raise error

    return model


def test_an_input_for_which_memory_is_never_enough_is_the_fault_of_its_video() -> None:
    with pytest.raises(MediaError, match="MemoryError") as raised:
        run(Sums(BatchSize(4), raises(MemoryError())), ones(1, 1))
    assert (raised.value.stage, raised.value.cause) == ("sums", "oom")


def test_other_exceptions_are_raised() -> None:
    with pytest.raises(ValueError, match="bad inputs"):
        run(Sums(BatchSize(1), raises(ValueError("bad inputs"))), ones(1))
    with pytest.raises(DeviceLostError, match="RuntimeError: CUDA error: launch failure"):
        run(Sums(BatchSize(1), raises(RuntimeError("CUDA error: launch failure"))), ones(1))


def test_a_batch_with_too_few_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sums, "infer", classmethod(lambda cls, model, inputs: [0]))
    with pytest.raises(MediaError, match=r"infer\(\) returned 1 outputs, expected 2"):
        run(Sums(BatchSize(2)), ones(1, 1))


# Exceptions of PyTorch that a batch is halved for, and those after which a process cannot use its device


def raised_by_torch() -> BaseException:
    with pytest.raises(RuntimeError) as raised:
        torch.empty(1 << 60, dtype=torch.uint8)
    return raised.value


def test_too_little_memory() -> None:
    for error in (torch.OutOfMemoryError("CUDA out of memory. Tried"), MemoryError(), raised_by_torch()):
        assert is_out_of_memory(error)
        assert not is_context_lost(error)


def test_a_device_that_is_lost() -> None:
    lost = torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
    for error in (lost, RuntimeError("CUDA error: unspecified launch failure")):
        assert is_context_lost(error)
        assert not is_out_of_memory(error)


def test_faults_of_the_inputs() -> None:
    for error in (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), ValueError("CUDA")):
        assert not is_out_of_memory(error)
        assert not is_context_lost(error)
