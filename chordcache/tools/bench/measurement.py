"""The ways to make batches of the same clips, from a seek for each frame to the cache, measured in turn."""

from __future__ import annotations

import functools
import importlib.util
import os
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from chordcache.engine import pool, terminal
from chordcache.engine.child import Worker
from chordcache.engine.limits import NO_LIMITS
from chordcache.engine.worker import Crash, Raised
from chordcache.errors import UsageError, printable
from chordcache.media.source_file import look_or_none
from chordcache.media.versions import library_versions
from chordcache.object_stores.client import is_in_store
from chordcache.read.cache import open_cache
from chordcache.read.video import Video
from chordcache.storage.cache_header import read_header, roots_now
from chordcache.tools.bench.loader_waits import bench_loader
from chordcache.tools.bench.result import NUM_ROUNDS, SOURCES, BenchOptions, BenchResult, RowResult, Way

_MAX_VIDEOS = 64
"""Number of videos of a cache that clips are drawn from, at most"""

_PATIENCE = replace(NO_LIMITS, file_seconds=300.0)
"""Time that a round may take before its process is ended"""


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
    ways, no_source = _ways(cache, options, roots)
    with ExitStack() as stack:
        rows = [_Row(way, no_source) for way in ways]
        for row in rows:
            stack.callback(row.worker.close)
        bar = stack.enter_context(terminal.progress_bar(NUM_ROUNDS * len(rows), "measurement", shown=progress))
        for _ in range(NUM_ROUNDS):  # a busy minute of the machine then falls on all of them alike
            for number, row in enumerate(rows, 1):
                bar.set_description(f"row {number} of {len(rows)}")
                if row.reason is None:
                    row.measure()
                bar.update()
    of_sources = [statistics.median(row.rates) for row in rows if row.way.reader in SOURCES and row.rates]
    best_source = max(of_sources, default=None)
    results = tuple(row.result(best_source) for row in rows)
    return BenchResult(str(cache), len(ways[0].keys), options, pool.default_jobs(), library_versions(), results)


def _ways(cache: str | Path, options: BenchOptions, roots: Mapping[str, str] | None) -> tuple[list[Way], str | None]:
    """Return all ways to read some videos of a cache, and the reason why their sources cannot be read.

    The videos are chosen at random, the same ones each time. Raises ``UsageError`` if none has frames.
    """
    with open_cache(cache) as opened:
        folders = roots_now(read_header(opened.path).roots, roots)
        positions = sorted(random.Random(0).sample(range(len(opened)), min(len(opened), _MAX_VIDEOS)))
        chosen = (opened[position] for position in positions)
        videos = [video for video in chosen if any(i.feature == "frames" and i.file for i in video.sidecar.features)]
    if not videos:
        raise UsageError(
            f"cache: got '{printable(cache)}' without frames of any video, expected at least one. "
            "Build it with 'chordcache build INDEX --tier lmdb'."
        )
    paths = tuple(os.path.join(folders.get(video.root, ""), video.path) for video in videos)
    pairs = [*((reader, "DataLoader") for reader in SOURCES), ("cache", "DataLoader"), ("cache", "ClipLoader")]
    keys = tuple(video.key for video in videos)
    return [Way(*pair, str(opened.path), keys, paths, options) for pair in pairs], _why_no_source(videos, paths)


def _why_no_source(videos: Sequence[Video], paths: Sequence[str]) -> str | None:
    for video, path in zip(videos, paths, strict=True):
        if is_in_store(path):
            return "the sources are in an object store"
        state = look_or_none(path)
        if state is None:
            return f"'{printable(path)}' is missing. Use --root if it moved"
        if state.identity.size != video.sidecar.source.size:
            return f"'{printable(path)}' changed since it was cached"
    return None


class _Row:
    """One way, its process, and its rounds. A crash of a library ends only this process."""

    def __init__(self, way: Way, no_source: str | None) -> None:
        self.way = way
        self.rates: list[float] = []
        """Clips per second in each round"""
        self.reason = no_source if way.reader in SOURCES else None
        """Reason why the way cannot be measured, or not any more"""
        if way.reader == "torchcodec" and importlib.util.find_spec("torchcodec") is None:
            self.reason = "not installed: pip install torchcodec"
        self.worker = Worker(measure_round, _PATIENCE, environment={})

    def measure(self) -> None:
        """Measure a round."""
        answer = self.worker.run((self.way, len(self.rates)))
        if isinstance(answer, Raised | Crash):
            self.reason = printable(str(answer.error) if isinstance(answer, Raised) else answer.message)
        else:
            self.rates.append(answer)

    def result(self, best_source: float | None) -> RowResult:
        """Return the row of the table. ``best_source`` is the rate of the fastest way without the cache."""
        names = SOURCES.get(self.way.reader, self.way.reader), self.way.loader
        if not self.rates:
            return RowResult(*names, reason=self.reason)
        median = statistics.median(self.rates)
        speedup = median / best_source if best_source else None
        return RowResult(*names, median, (min(self.rates), max(self.rates)), speedup, self.reason)


def measure_round(task: tuple[Way, int]) -> float:
    """Measure a round in a process of the way: batches as fast as they come. The start of workers does not count.

    A round has the same clips for all ways. Returns clips per second.
    """
    from chordcache.train.loader import ClipLoader, make_loader  # loads PyTorch, which the parent does not need

    way, number = task
    dataset, batch_size = _opened(way)
    if way.loader == "ClipLoader":
        loader: Any = ClipLoader(dataset, batch_size, num_threads=way.options.num_jobs)
        loader.set_epoch(number)
    else:
        loader = make_loader(dataset, batch_size, way.options.workers, drop_last=True)
        loader.sampler.set_epoch(number)
    seconds, num_jobs = way.options.seconds / NUM_ROUNDS, way.options.num_jobs
    result = bench_loader(loader, num_batches=2 * num_jobs, seconds=seconds, num_warmup=num_jobs)
    return result.batches_per_second * batch_size


@functools.cache
def _opened(way: Way) -> tuple[Any, int]:
    """Return the dataset of a way, ready to be read, and the size of batches. All rounds of a process share them."""
    from chordcache.tools.bench.readers import dataset_of  # loads PyTorch too

    with open(os.devnull, "w") as nothing:  # libraries may print
        for number in (1, 2):
            os.dup2(nothing.fileno(), number)
    dataset, options = dataset_of(way), way.options
    dataset[0, 0]  # imports what it needs, and opens files
    started = time.perf_counter()
    dataset[0, 1]
    batch_seconds = (time.perf_counter() - started) * options.batch_size / options.num_jobs
    return dataset, 1 if batch_seconds > options.seconds / NUM_ROUNDS else options.batch_size
