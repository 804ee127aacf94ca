"""The speed of one way, in its own process."""

from __future__ import annotations

import os
import time
from functools import cache
from typing import Any

from chordcache.tools.bench.loader_waits import bench_loader
from chordcache.tools.bench.ways import NUM_ROUNDS, Way


def measure_round(task: tuple[Way, int]) -> tuple[float, float]:
    """Measure a round: batches as fast as they come. Return clips per second, and the time of all [seconds].

    The process keeps what the first round has loaded.
    """
    way, number = task
    return _row_of(way).measure(number)


@cache
def _row_of(way: Way) -> _OpenWay:
    with open(os.devnull, "w") as nothing:  # libraries may print
        for number in (1, 2):
            os.dup2(nothing.fileno(), number)
    return _OpenWay(way)


class _OpenWay:
    """A dataset that is ready to be read, and the size of its batches."""

    def __init__(self, way: Way) -> None:
        from chordcache.tools.bench.readers import dataset_of  # loads PyTorch, which the parent does not need

        options = way.options
        self._way, self._dataset = way, dataset_of(way)
        self._round_seconds = options.seconds / NUM_ROUNDS
        self._dataset[0, 0]  # imports what it needs, and opens files
        started = time.perf_counter()
        self._dataset[0, 1]
        batch_seconds = (time.perf_counter() - started) * options.batch_size / options.num_jobs
        self._batch_size = 1 if batch_seconds > self._round_seconds else options.batch_size

    def measure(self, number: int) -> tuple[float, float]:
        """Measure a round. It has the same clips for all ways. The start of the workers does not count."""
        num_jobs = self._way.options.num_jobs
        result = bench_loader(
            self._loader(number), num_batches=2 * num_jobs, seconds=self._round_seconds, num_warmup=num_jobs
        )
        return result.batches_per_second * self._batch_size, result.num_batches / result.batches_per_second

    def _loader(self, epoch: int) -> Any:
        from chordcache.train.loader import ClipLoader, make_loader

        options = self._way.options
        if self._way.loader == "ClipLoader":
            clips = ClipLoader(self._dataset, self._batch_size, num_threads=options.num_jobs)
            clips.set_epoch(epoch)
            return clips
        loader: Any = make_loader(self._dataset, self._batch_size, options.workers, drop_last=True)
        loader.sampler.set_epoch(epoch)
        return loader
