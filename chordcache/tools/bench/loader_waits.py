"""``bench_loader``: the time that a training step waits for any loader."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

import numpy as np

from chordcache.arguments import check_at_least, names_arguments
from chordcache.errors import UsageError

_NUM_REPLAYED = 4
"""Number of batches that are kept in memory, and given to the step again and again"""

_LEAST_SECONDS = 1e-9
"""Time of a step that does nothing, which a coarse clock does not see [seconds]"""


@dataclass(frozen=True)
class LoaderResult:
    """The result of ``bench_loader``."""

    num_batches: int
    batches_per_second: float
    """Rate of the loader and the step together"""
    ceiling_batches_per_second: float | None
    """Rate of the step with batches that are in memory, None without a step"""
    wait_share: float
    """Share of the time [0 to 1] in which the step waits for a batch"""
    wait_seconds_p50: float
    wait_seconds_p99: float
    """Time that the step waits for one batch: the median, and the time that one batch in a hundred exceeds"""
    step_seconds_p50: float
    step_seconds_p99: float
    gpu_use: float | None = None
    """Mean use of the GPU [0 to 1] as NVML reports it, None without a GPU or the package nvidia-ml-py"""

    @property
    def verdict(self) -> str:
        """Summary in a sentence."""
        rate, ceiling = self.batches_per_second, self.ceiling_batches_per_second
        if ceiling is None:
            return f"The loader makes {rate:.3g} batches/s. Name a step to see whether it waits."
        waits = f"{self.wait_share:.0%} of the time"
        return f"The step waits {waits}: {rate:.3g} batches/s, and {ceiling:.3g} if it never waited."


@names_arguments
def bench_loader(
    loader: Iterable[Any],
    step: Callable[[Any], object] | None = None,
    *,
    num_batches: int = 100,
    seconds: float = 0.0,
    num_warmup: int = 5,
) -> LoaderResult:
    """Measure how long a training step waits for a loader: a DataLoader, a ``ClipLoader``, or any iterable of batches.

    A loader that ends is iterated again. The first batches do not count. Then the step is run on a few batches that are
    in memory, to measure its speed alone. With CUDA, the end of each step is awaited.

    Parameters
    ----------
    loader : iterable
        Yields batches. Each iteration is a pass.
    step : callable, optional
        The training step: a function of a batch. By default, batches are taken as fast as they come.
    num_batches : int
        Number of batches to measure, at least.
    seconds : float
        Time to measure, at least [seconds].
    num_warmup : int
        Number of batches before them.

    Returns
    -------
    LoaderResult
        Rates, the share of time that is waited, and a sentence.

    Raises
    ------
    UsageError
        If a number is wrong, or a pass has no batches.

    Examples
    --------
    >>> result = bench_loader([1, 2, 3], step=lambda batch: None, num_batches=10)
    >>> result.num_batches
    10
    """
    check_at_least(1, num_batches=num_batches)
    check_at_least(0, num_warmup=num_warmup)
    if not 0 <= seconds < math.inf:
        raise UsageError(f"seconds: got {seconds!r}, expected a number of at least 0")
    run = step or (lambda batch: None)
    kept: list[Any] = []
    passes = _batches(loader)
    for batch in islice(passes, num_warmup):
        run(batch)
    times: list[tuple[float, float]] = []  # of the wait and the step
    uses: list[float] = []
    asked = started = time.perf_counter()
    while len(times) < num_batches or asked - started < seconds:
        batch = next(passes)
        arrived = time.perf_counter()
        _finish(run, batch)
        times.append((arrived - asked, time.perf_counter() - arrived))
        kept = [*kept, batch][-_NUM_REPLAYED:]
        uses += _gpu_use()
        asked = time.perf_counter()
    total, num_batches = max(asked - started, _LEAST_SECONDS), len(times)
    for batch in islice(cycle(kept), 0 if step is None else num_batches):
        _finish(run, batch)
    ceiling = num_batches / max(time.perf_counter() - asked, _LEAST_SECONDS)
    (wait_p50, step_p50), (wait_p99, step_p99) = np.percentile(times, (50, 99), axis=0).tolist()
    return LoaderResult(
        num_batches=num_batches,
        batches_per_second=num_batches / total,
        ceiling_batches_per_second=None if step is None else ceiling,
        wait_share=sum(wait for wait, _ in times) / total,
        wait_seconds_p50=wait_p50,
        wait_seconds_p99=wait_p99,
        step_seconds_p50=step_p50,
        step_seconds_p99=step_p99,
        gpu_use=float(np.mean(uses)) if uses else None,
    )


def _batches(loader: Iterable[Any]) -> Any:
    while True:
        is_empty = True
        for batch in loader:
            is_empty = False
            yield batch
        if is_empty:
            raise UsageError("loader: got a pass without batches, expected at least one batch")


def _finish(step: Callable[[Any], object], batch: Any) -> None:
    """Run a step, to the end of its work on a GPU."""
    step(batch)
    if (cuda := _cuda()) is not None:
        cuda.synchronize()


def _gpu_use() -> list[float]:
    """Return the use of the GPU [0 to 1] in the last moments, or nothing if it is not known."""
    try:
        return [cuda.utilization() / 100] if (cuda := _cuda()) is not None else []
    except Exception:  # noqa: BLE001 # item boundary: no nvidia-ml-py, no driver, or an error of NVML, such as with MIG
        return []


def _cuda() -> Any:
    """Return ``torch.cuda`` if this process uses it, else None. It does not import torch."""
    torch = sys.modules.get("torch")
    return torch.cuda if torch is not None and torch.cuda.is_initialized() else None
