"""One row in its process: it makes batches when its parent says so, and reports times."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from itertools import chain, repeat
from pathlib import Path
from typing import Any

from chordcache.storage.artefacts.open_files import forget
from chordcache.tools.bench.gpu import TrainingStep, Utilization
from chordcache.tools.bench.memory import cpu_seconds, drop_from_memory, memory_bytes, share_in_memory
from chordcache.tools.bench.options import SLOW_ROUNDS
from chordcache.tools.bench.readers import dataset_of
from chordcache.tools.bench.setup import RowSetup
from chordcache.tools.bench.stages import stages_of
from chordcache.train.loader import ClipLoader, make_loader


class Row:
    """One row, ready to be measured."""

    def __init__(self, setup: RowSetup) -> None:
        self._setup = setup
        self._dataset = dataset_of(setup)
        self._dataset.read_sample((0, 0))  # imports what it needs, and opens files
        started = time.perf_counter()
        self._dataset.read_sample((0, 1))
        self.clip_seconds = time.perf_counter() - started
        batch_seconds = self.clip_seconds * setup.batch_size / max(1, setup.num_workers)
        self.is_slow = batch_seconds > SLOW_ROUNDS * setup.round_seconds
        self._batch_size = 1 if self.is_slow else setup.batch_size
        self._close_files()
        self._num_passes = 0
        self._step = TrainingStep(setup.step_ms / 1000)

    def measure(self) -> dict[str, Any]:
        """Measure one round: batches as fast as they come, then batches with a step after each."""
        num_workers = self._setup.num_workers
        batches = self._batches()
        for _ in range(num_workers if self.is_slow else max(1, num_workers)):
            next(batches)
        cpu = cpu_seconds()
        at_least = max(1, 2 * num_workers) if self.is_slow else 2
        times = self._timed(batches, 0.6 * self._setup.round_seconds, at_least)
        answer: dict[str, Any] = {
            "batch_seconds": times,
            "num_clips": self._batch_size * len(times),
            "cpu_seconds": cpu_seconds() - cpu,
        }
        if not self.is_slow:
            answer |= self._waited(batches, 0.4 * self._setup.round_seconds)
        answer["memory_bytes"] = memory_bytes()
        del batches
        self._close_files()
        return answer

    def measure_cold(self) -> dict[str, Any]:
        """Measure one round with files that are not in memory."""
        files = self._setup.files
        self._close_files()
        drop_from_memory(files)
        share = share_in_memory(files)
        times = self._timed(self._batches(), 0.6 * self._setup.round_seconds, 1)
        self._close_files()
        return {"batch_seconds": times, "num_clips": self._batch_size * len(times), "share_in_memory": share}

    def stages(self) -> dict[str, float]:
        """Measure the stages of a cached batch."""
        seconds = stages_of(self._setup, self._dataset)
        self._close_files()
        return seconds

    def _close_files(self) -> None:
        """Close all files of the cache. Pages that any process maps cannot be dropped from memory."""
        if self._setup.reader == "cache":
            for thread in threading.enumerate():
                if thread.name.startswith("chordcache-clips"):  # of the last pass: each ends after its clip
                    thread.join()
            for name in self._setup.files:
                forget(Path(name))

    def _batches(self) -> Iterator[dict[str, Any]]:
        """Yield the batches of a new loader without end.

        Each round begins with other clips, so that also a row that reads a few clips in a round reads several videos.
        The clips of a round are the same for all rows.
        """
        setup = self._setup
        loader: Any
        if setup.loader == "ClipLoader":
            threads, prefetch = setup.num_workers, setup.prefetch
            loader = ClipLoader(self._dataset, self._batch_size, num_threads=threads, prefetch=prefetch)
        else:
            loader = make_loader(
                self._dataset, self._batch_size, setup.num_workers, prefetch_factor=setup.prefetch, drop_last=True
            )
        (loader if setup.loader == "ClipLoader" else loader.sampler).set_epoch(self._num_passes)
        self._num_passes += 1
        return chain.from_iterable(repeat(loader))

    def _timed(self, batches: Iterator[dict[str, Any]], seconds: float, at_least: int) -> list[float]:
        """Return the time of each batch [seconds]."""
        times: list[float] = []
        while len(times) < at_least or sum(times) < seconds:
            started = time.perf_counter()
            next(batches)
            times.append(time.perf_counter() - started)
        return times

    def _waited(self, batches: Iterator[dict[str, Any]], seconds: float) -> dict[str, Any]:
        """Run steps for a while. Return the time that they waited and the time of all, [seconds]."""
        self._step.run(next(batches)["frames"])  # the loader was behind until now
        waited = total = 0.0
        num_steps = 0
        with Utilization() as utilization:
            while num_steps < 2 or total < seconds:
                started = time.perf_counter()
                batch = next(batches)
                waited += time.perf_counter() - started
                self._step.run(batch["frames"])
                total += time.perf_counter() - started
                num_steps += 1
        return {"waited_seconds": waited, "step_seconds": total, "gpu_utilization": utilization.mean}
