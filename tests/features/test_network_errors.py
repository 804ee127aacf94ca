"""Exceptions of PyTorch that a batch is halved for, and those after which a process cannot use its device."""

from __future__ import annotations

import pytest
import torch

from chordcache.features.networks.extractor import is_context_lost, is_out_of_memory


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
