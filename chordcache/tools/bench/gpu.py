"""A training step that does nothing but take time, on the GPU where there is one, and the GPU's utilization."""

from __future__ import annotations

import ctypes
import threading
import time
from contextlib import suppress
from typing import Any

import torch

_SAMPLE_SECONDS = 0.1
"""Interval between two looks at the GPU's utilization [seconds]"""


class TrainingStep:
    """A step of a given duration. Without a GPU it sleeps: it does not use the processor, as a step on a GPU would not.

    Parameters
    ----------
    seconds : float
        Duration of a step, [seconds].
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._matrix: torch.Tensor | None = None
        self._num_products = 0
        if torch.cuda.is_available():
            self._matrix = torch.full((2048, 2048), 1e-4, device="cuda")
            self._num_products = max(1, round(seconds / self._seconds_of_product()))

    def run(self, frames: torch.Tensor) -> None:
        """Run one step, and wait for its end."""
        if self._matrix is None:
            time.sleep(self._seconds)
            return
        frames.to("cuda", non_blocking=True)
        self._multiply(self._num_products)

    def _multiply(self, times: int) -> None:
        assert self._matrix is not None
        for _ in range(times):
            self._matrix @ self._matrix
        torch.cuda.synchronize()

    def _seconds_of_product(self) -> float:
        self._multiply(10)
        started = time.perf_counter()
        self._multiply(50)
        return (time.perf_counter() - started) / 50


class _Rates(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class Utilization:
    """The mean utilization of the first GPU inside a ``with`` block, by NVML. ``mean`` is None without NVML."""

    def __init__(self) -> None:
        self.mean: float | None = None
        """Mean [0 to 1], after the block"""
        self._values: list[int] = []
        self._end = threading.Event()
        self._nvml: Any = None
        self._device = ctypes.c_void_p()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Utilization:
        with suppress(OSError):
            self._nvml = ctypes.CDLL("libnvidia-ml.so.1")
        if self._nvml is not None and (
            self._nvml.nvmlInit_v2() or self._nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(self._device))
        ):
            self._nvml = None
        if self._nvml is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        if self._nvml is None:
            return
        self._thread.join()
        self._nvml.nvmlShutdown()
        if self._values:
            self.mean = sum(self._values) / len(self._values) / 100

    def _sample(self) -> None:
        rates = _Rates()
        while not self._end.wait(_SAMPLE_SECONDS):
            if not self._nvml.nvmlDeviceGetUtilizationRates(self._device, ctypes.byref(rates)):
                self._values.append(rates.gpu)
