"""``bench_loader`` against loaders and steps whose times are known: a clock that only they move."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import chordcache as cc
from chordcache.tools.bench import loader_waits


class Clock:
    """A clock that is moved by hand [seconds]."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def after(self, seconds: float, value: object = None) -> object:
        """Move the clock, and return a value."""
        self.now += seconds
        return value


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(loader_waits, "time", clock)
    return clock


class Passes:
    """A loader that makes batches in known times, pass after pass."""

    def __init__(self, clock: Clock, seconds: list[float]) -> None:
        self.clock, self.seconds = clock, seconds

    def __iter__(self) -> Iterator[object]:
        return (self.clock.after(wait, number) for number, wait in enumerate(self.seconds))


def test_a_loader_that_is_slower_than_the_step(clock: Clock) -> None:
    result = cc.bench_loader(Passes(clock, [0.03] * 10), lambda batch: clock.after(0.01), num_batches=50)
    assert result.wait_share == pytest.approx(0.75)
    assert result.batches_per_second == pytest.approx(25)
    assert result.ceiling_batches_per_second == pytest.approx(100)
    assert (result.wait_seconds_p50, result.step_seconds_p99) == pytest.approx((0.03, 0.01))
    assert result.verdict == "The step waits 75% of the time: 25 batches/s, and 100 if it never waited."


def test_one_slow_batch_shows_in_the_99th_percentile(clock: Clock) -> None:
    seconds = [0.001] * 99 + [0.1]
    result = cc.bench_loader(Passes(clock, seconds), lambda batch: clock.after(0.01), num_batches=100, num_warmup=0)
    assert result.wait_seconds_p50 == pytest.approx(0.001)
    assert result.wait_seconds_p99 > 0.001


def test_a_pass_that_ends_is_begun_again_and_the_first_batches_do_not_count(clock: Clock) -> None:
    batches: list[object] = []
    result = cc.bench_loader(Passes(clock, [5.0, 0.01, 0.01]), batches.append, num_batches=2, num_warmup=1)
    assert batches[:3] == [0, 1, 2]
    assert result.wait_seconds_p99 == pytest.approx(0.01)


def test_a_time_to_measure(clock: Clock) -> None:
    result = cc.bench_loader(Passes(clock, [0.25]), num_batches=2, seconds=10.0, num_warmup=0)
    assert result.num_batches == 40


def test_without_a_step(clock: Clock) -> None:
    result = cc.bench_loader(Passes(clock, [0.5]), num_batches=4)
    assert result.ceiling_batches_per_second is None
    assert result.verdict == "The loader makes 2 batches/s. Name a step to see whether it waits."


def test_a_data_loader_of_torch() -> None:
    loader = torch.utils.data.DataLoader(list(range(10)), batch_size=2)
    sums: list[int] = []
    result = cc.bench_loader(loader, lambda batch: sums.append(int(batch.sum())), num_batches=20, num_warmup=5)
    assert 0 < result.wait_share < 1
    assert sums[:5] == [1, 5, 9, 13, 17]
    assert result.gpu_use is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_batches": 0}, "num_batches: got 0"),
        ({"num_warmup": -1}, "num_warmup: got -1"),
        ({"seconds": float("inf")}, "seconds: got inf"),
        ({"seconds": float("nan")}, "seconds: got nan"),
        ({"seconds": -1}, "seconds: got -1"),
    ],
    ids=str,
)
def test_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(cc.UsageError, match=message):
        cc.bench_loader([1], **arguments)


def test_a_loader_without_batches() -> None:
    with pytest.raises(cc.UsageError, match="loader: got a pass without batches"):
        cc.bench_loader([])


def test_a_gpu_whose_use_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """With MIG, NVML raises an error of its own, which only its package names."""

    class NVMLErrorNotSupported(Exception):
        pass

    def utilization() -> int:
        raise NVMLErrorNotSupported

    cuda = SimpleNamespace(utilization=utilization, synchronize=lambda: None)
    monkeypatch.setattr(loader_waits, "_cuda", lambda: cuda)
    assert cc.bench_loader([1], num_batches=2).gpu_use is None
