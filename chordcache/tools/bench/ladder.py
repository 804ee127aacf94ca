"""The ladder: every way to make batches of the same clips, from a seek for each frame to the cache."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import platform
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from chordcache import __version__
from chordcache.errors import NotFoundError, UsageError, printable
from chordcache.tools.bench.child import RowFailedError, RowProcess
from chordcache.tools.bench.options import NUM_ROUNDS, SLOW_ROUNDS, BenchOptions
from chordcache.tools.bench.result import BenchResult, RowResult, StageResult, best_of, verdict_of
from chordcache.tools.bench.sample import Sample, build_sample, sample_of_cache
from chordcache.tools.bench.setup import RowSetup, empty_result, setups_of
from chordcache.tools.versions import library_versions

_MAX_TIMES = 3.0
"""A row whose rounds took this many times its ``seconds`` is not measured in further rounds."""


def bench(
    path: str | Path = "cache",
    *,
    options: BenchOptions | None = None,
    tiers: Sequence[str] = ("lmdb",),
    config: str | Path | None = None,
    roots: Mapping[str, str] | None = None,
) -> BenchResult:
    """Measure the ways to feed a training job with clips of a cache's videos. It changes nothing in the cache.

    Each row of the result is one way. It runs in its own process. All rows are measured in turn in each of five rounds,
    on the same clips, and the median of the rounds counts.

    Parameters
    ----------
    path : str or Path
        A cache, or an index. Of an index, a small temporary cache is built.
    options : BenchOptions, optional
        What to measure.
    tiers, config
        As in ``build``, for the temporary cache of an index.
    roots : mapping of str to str, optional
        Label of a root to the folder where its videos are now.

    Raises
    ------
    NotFoundError
        If the path is neither a cache nor an index.
    DamageError, FormatVersionError
        If the cache or the index cannot be read.
    UsageError
        If there is not a video with frames, or PyTorch or OpenCV is not installed.
    """
    options = options or BenchOptions()
    _check_installed()
    path = Path(path)
    if not path.exists():
        raise NotFoundError(f"path: got '{printable(path)}', which does not exist, expected a cache or an index")
    with tempfile.TemporaryDirectory(prefix="chordcache-bench-") as folder:
        work, cache = Path(folder), path.absolute()
        notes: list[str] = []
        if path.is_file():
            cache, notes = build_sample(path, work, tiers, config, roots)
        sample = sample_of_cache(cache, work, roots)
        rows, stages, remarks = _Measurement(sample, options).run()
    settings = dataclasses.asdict(options)
    return BenchResult(
        source=str(path),
        num_videos=len(sample.keys),
        settings=settings,
        machine=_machine(),
        rows=rows,
        stages=stages,
        notes=(*notes, *remarks),
        best=best_of(rows),
        verdict=verdict_of(rows, stages, settings),
    )


class _Measurement:
    """The rounds of all rows."""

    def __init__(self, sample: Sample, options: BenchOptions) -> None:
        self._sample, self._options = sample, options
        self._setups = setups_of(sample, options)
        self._reasons: dict[int, str] = {}
        """Row to the reason why it has no figures"""
        self._rounds: list[dict[int, dict[str, Any]]] = []
        self._cold: list[dict[int, dict[str, Any]]] = []
        self._children: dict[int, RowProcess] = {}
        self._slow: set[int] = set()
        """Rows with batches of one clip"""

    def run(self) -> tuple[tuple[RowResult, ...], tuple[StageResult, ...], list[str]]:
        """Measure everything. Return the rows, the stages, and remarks."""
        with ExitStack() as stack:
            stack.callback(self._close)
            for number, setup in enumerate(self._setups):
                self._start(number, setup)
            for _ in range(NUM_ROUNDS):
                self._rounds.append(self._round("round", self._rounds))
            if self._options.cold:
                for _ in range(NUM_ROUNDS):
                    self._cold.append(self._round("cold", self._cold))
            stages = tuple(self._stages())
        rows = tuple(self._result(number) for number in range(len(self._setups)))
        return rows, stages, self._remarks()

    def _close(self) -> None:
        for child in self._children.values():
            child.close()

    def _start(self, number: int, setup: RowSetup) -> None:
        reason = _why_not(setup, self._sample)
        if reason is None:
            try:
                child = self._children[number] = RowProcess(setup)
                self._slow |= {number} if child.ask("is_slow") else set()
            except RowFailedError as error:
                self._children.pop(number).close()
                reason = str(error)
        if reason is not None:
            self._reasons[number] = reason

    def _round(self, request: str, before: Sequence[dict[int, dict[str, Any]]]) -> dict[int, dict[str, Any]]:
        answers = {}
        for number, child in list(self._children.items()):
            spent = sum(sum(answers[number]["batch_seconds"]) for answers in before if number in answers)
            if spent > _MAX_TIMES * self._options.seconds:
                continue
            try:
                answers[number] = child.ask(request)
            except RowFailedError as error:
                self._reasons[number] = str(error)
                self._children.pop(number).close()
        return answers

    def _stages(self) -> list[StageResult]:
        """Measure the stages of each tier and codec."""
        stages: dict[str, StageResult] = {}
        for number, child in list(self._children.items()):
            setup = self._setups[number]
            if setup.reader == "cache" and setup.name not in stages:
                try:
                    stages[setup.name] = StageResult(setup.name, child.ask("stages"))
                except RowFailedError as error:
                    self._reasons[number] = str(error)
                    self._children.pop(number).close()
        return list(stages.values())

    def _result(self, number: int) -> RowResult:
        setup = self._setups[number]
        rounds = [answers[number] for answers in self._rounds if number in answers]
        row = empty_result(setup, self._sample, self._reasons.get(number))
        if not rounds:
            return row
        rates = [_rate(answer) for answer in rounds]
        is_slow = number in self._slow
        times = [1000 * seconds for answer in rounds for seconds in answer["batch_seconds"]]
        about = self._about_slow(rounds) if is_slow else None
        note = "; ".join(filter(None, (row.note, about)))
        cold = [_rate(answers[number]) for answers in self._cold if number in answers]
        return dataclasses.replace(
            row,
            note=note or None,
            num_rounds=len(rounds),
            clips_per_second=self._typical_rate(number),
            clips_per_second_range=(min(rates), max(rates)),
            speedup=self._speedup(number),
            batch_ms_p50=None if is_slow else _percentile(times, 0.5),
            batch_ms_p99=None if is_slow else _percentile(times, 0.99),
            wait_share=_median(
                [answer["waited_seconds"] / answer["step_seconds"] for answer in rounds if "step_seconds" in answer]
            ),
            gpu_utilization=_median(
                [answer["gpu_utilization"] for answer in rounds if answer.get("gpu_utilization") is not None]
            ),
            cpu_ms_per_clip=_median([1000 * answer["cpu_seconds"] / answer["num_clips"] for answer in rounds]),
            memory_bytes=max(answer["memory_bytes"] for answer in rounds),
            cold_clips_per_second=_median(cold),
        )

    def _typical_rate(self, number: int) -> float:
        """Return the median of the rounds. Of a slow row, whose rounds have few clips, the mean over all clips."""
        rounds = [answers[number] for answers in self._rounds if number in answers]
        if number not in self._slow:
            return statistics.median(map(_rate, rounds))
        num_clips = sum(answer["num_clips"] for answer in rounds)
        return float(num_clips / max(1e-9, sum(sum(answer["batch_seconds"]) for answer in rounds)))

    def _about_slow(self, rounds: Sequence[Mapping[str, Any]]) -> str:
        options = self._options
        num_clips = sum(answer["num_clips"] for answer in rounds)
        limit = SLOW_ROUNDS * options.seconds / NUM_ROUNDS
        return (
            f"measured with {num_clips} clips, in batches of 1, because one of {options.batch_size} takes more than "
            f"{limit:g} s. --seconds raises the limit"
        )

    def _speedup(self, number: int) -> float | None:
        """Return the median ratio of a round to the first row's. The ratio of the whole if either row is slow."""
        if not any(0 in answers for answers in self._rounds):
            return None
        if {0, number} & self._slow:
            return self._typical_rate(number) / self._typical_rate(0)
        both = [answers for answers in self._rounds if number in answers and 0 in answers]
        return _median([_rate(answers[number]) / _rate(answers[0]) for answers in both])

    def _remarks(self) -> list[str]:
        remarks = []
        if self._sample.no_source is not None:
            remarks.append(f"The rows of the sources are left out: {self._sample.no_source}.")
        shares = [answer["share_in_memory"] for answers in self._cold for answer in answers.values()]
        kept = max(shares, default=0.0)
        if kept > 0.05:
            remarks.append(
                f"Cold: up to {100 * kept:.0f} % of a row's pages stayed in memory, so its cold figure is too good."
            )
        return remarks


def _why_not(setup: RowSetup, sample: Sample) -> str | None:
    """Return the reason why a row cannot be measured, as far as it is known before."""
    if setup.reader == "cache":
        return None
    if sample.no_source is not None:
        return "the sources cannot be read"
    if setup.reader == "torchcodec" and importlib.util.find_spec("torchcodec") is None:
        return "not installed: pip install torchcodec"
    return None


def _check_installed() -> None:
    for module, install in (("torch", "'chordcache[torch]'"), ("cv2", "'chordcache[cv]'")):
        if importlib.util.find_spec(module) is None:
            raise UsageError(f"bench needs {module}, which is not installed. Run: pip install {install}")


def _rate(measured: Mapping[str, Any]) -> float:
    """Return the clips per second of a round."""
    num_clips, times = measured["num_clips"], measured["batch_seconds"]
    return float(num_clips / max(1e-9, sum(times)))


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def _percentile(values: Sequence[float], share: float) -> float:
    """Return the least value that a share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _machine() -> dict[str, Any]:
    """Describe the machine and the libraries."""
    return {
        "processors": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "architecture": platform.machine(),
        "versions": {"chordcache": __version__, **library_versions()},
    }
