"""The ways to make batches of the same clips, from a seek for each frame to the cache, measured in turn."""

from __future__ import annotations

import importlib.util
import os
import platform
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

from chordcache import __version__
from chordcache.engine import terminal
from chordcache.errors import UsageError, printable
from chordcache.media.versions import library_versions
from chordcache.tools.bench.result import BenchResult, RowResult
from chordcache.tools.bench.rounds import ChildFailedError, ChildProcess, in_turn, spread_of
from chordcache.tools.bench.row import measure_round
from chordcache.tools.bench.ways import NUM_ROUNDS, SOURCES, BenchOptions, VideoSample, Way, sample_of_cache

_MAX_TIMES = 3.0
"""A way whose rounds took this many times its ``seconds`` is not measured in further rounds."""

_ONE_FRAME = BenchOptions(batch_size=1, num_frames=1, workers=0, seconds=1e-6)
"""Options of the look at each video: five frames of it"""


def bench(
    cache: str | Path = "cache",
    *,
    options: BenchOptions | None = None,
    roots: Mapping[str, str] | None = None,
    progress: bool = False,
) -> BenchResult:
    """Measure the ways to feed a training job with clips of a cache's videos. It changes nothing in the cache.

    Each row of the result is one way. It runs in its own process. All rows are measured in turn in each of five rounds,
    on the same clips, and the median of the rounds counts.

    Parameters
    ----------
    cache : str or Path
        A cache.
    options : BenchOptions, optional
        What to measure.
    roots : mapping of str to str, optional
        Label of a root to the folder where its videos are now.
    progress : bool
        True to show a bar on a terminal, with the row that is measured.

    Raises
    ------
    NotFoundError, DamageError
        If the cache cannot be read.
    UsageError
        If there is not a video with frames, or PyTorch or OpenCV is not installed.
    """
    options = options or BenchOptions()
    for module, install in (("torch", "'chordcache[train]'"), ("cv2", "'chordcache[build]'")):
        if importlib.util.find_spec(module) is None:
            raise UsageError(f"bench needs {module}, which is not installed. Run: pip install {install}")
    sample, rows, unread = _measured(sample_of_cache(cache, roots), options, progress)
    notes = () if sample.no_source is None else (f"The sources are left out: {sample.no_source}.",)
    if unread:
        notes = (f"Left out for all, since a way cannot read it: {', '.join(unread)}.",)
    machine = {
        "processors": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "architecture": platform.machine(),
        "versions": {"chordcache": __version__, **library_versions()},
    }
    return BenchResult(str(cache), len(sample.keys), options, machine, rows, notes)


def _measured(
    sample: VideoSample, options: BenchOptions, progress: bool
) -> tuple[VideoSample, tuple[RowResult, ...], list[str]]:
    """Measure all ways on the videos that each can read. Return these, the rows, and names of the other videos."""
    pairs = [*((reader, "DataLoader") for reader in SOURCES), ("cache", "DataLoader"), ("cache", "ClipLoader")]
    with ExitStack() as stack:
        rows = [_Row(Way(*pair, sample, options)) for pair in pairs]
        for row in rows:
            stack.callback(row.close)
        bar = stack.enter_context(terminal.progress_bar(NUM_ROUNDS * len(rows), "measurement", shown=progress))
        bar.set_description("look at the videos")
        unread: list[str] = []
        for row in rows:
            if (failures := row.failures(sample)) and len(failures) < len(sample.keys):
                unread += [f"'{printable(sample.paths[place])}' ({row.way.name})" for place in failures]
                sample = sample.at([place for place in range(len(sample.keys)) if place not in failures])
            elif failures:
                row.reason = failures[0]
        for row in rows:
            row.way = replace(row.way, sample=sample)

        def measure(number: int) -> float | None:
            bar.set_description(f"row {number + 1} of {len(rows)}")
            rate = rows[number].measure()
            bar.update()
            return rate

        rounds = in_turn({number: partial(measure, number) for number in range(len(rows))}, NUM_ROUNDS)
    rates = [[rate for answers in rounds if (rate := answers[number])] for number in range(len(rows))]
    spreads = [spread_of(measured) if measured else None for measured in rates]
    best_source = max((spread.median for spread in spreads[: len(SOURCES)] if spread), default=None)
    results = tuple(
        RowResult(
            row.way.name,
            row.way.loader,
            clips_per_second=spread.median if spread else None,
            clips_per_second_range=(spread.least, spread.most) if spread else None,
            speedup=spread.median / best_source if spread and best_source else None,
            reason=row.reason,
        )
        for row, spread in zip(rows, spreads, strict=True)
    )
    return sample, results, unread


class _Row:
    """One way, and its process."""

    def __init__(self, way: Way) -> None:
        self.way = way
        self.reason = None if way.reader == "cache" else way.sample.no_source
        """Reason why the way cannot be measured, or not any more"""
        if way.reader == "torchcodec" and importlib.util.find_spec("torchcodec") is None:
            self.reason = "not installed: pip install torchcodec"
        self._child = ChildProcess(measure_round)
        self._num_rounds = 0
        self._spent = 0.0

    def failures(self, sample: VideoSample) -> dict[int, str]:
        """Return the places of the videos of which this way cannot read single frames, with the reasons."""
        failures: dict[int, str] = {}
        is_read = self.reason is None and self.way.reader != "cache"
        for place in range(len(sample.keys)) if is_read else ():
            try:
                self._child.call((replace(self.way, sample=sample.at([place]), options=_ONE_FRAME), 0))
            except ChildFailedError as error:
                failures[place] = str(error)
        return failures

    def measure(self) -> float | None:
        """Return the clips per second of a round, None if the way failed or took too much time already."""
        if self.reason is not None or self._spent > _MAX_TIMES * self.way.options.seconds:
            return None
        try:
            rate, spent = self._child.call((self.way, self._num_rounds))
        except ChildFailedError as error:
            self.reason = str(error)
            return None
        self._num_rounds += 1
        self._spent += spent
        return float(rate)

    def close(self) -> None:
        """End the process."""
        self._child.close()
