"""Results of a measurement: plain data, and the sentence that sums them up."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class RowResult:
    """One way to make batches, and its figures. A figure is None if it was not measured."""

    name: str
    """Name of the way to read frames, such as "OpenCV, seek for each frame" or "cache: lmdb, jpeg" """
    loader: str
    """"DataLoader" or "ClipLoader" """
    num_workers: int
    """Worker processes of the DataLoader, or threads of the ClipLoader"""
    prefetch: int
    """Batches that are made ahead. 0 without workers"""
    is_cache: bool
    """True if the row reads the cache"""
    reason: str | None = None
    """Reason why the row was not measured"""
    note: str | None = None
    """Remark on the figures"""
    num_rounds: int = 0
    clips_per_second: float | None = None
    """Median of the rounds. Mean over all clips if the row has batches of one clip, see ``note``"""
    clips_per_second_range: tuple[float, float] | None = None
    """Least and greatest of the rounds"""
    speedup: float | None = None
    """Median over the rounds of the ratio to the first row's clips per second in the same round. Ratio of the two
    ``clips_per_second`` if one of the rows has batches of one clip"""
    batch_ms_p50: float | None = None
    """[milliseconds] time until the next batch is there, if the consumer does nothing else"""
    batch_ms_p99: float | None = None
    """[milliseconds] the same, which 1 % of the batches exceed"""
    wait_share: float | None = None
    """Share of time [0 to 1] that a training step of ``step_ms`` for each batch would wait for batches"""
    gpu_utilization: float | None = None
    """Utilization of the GPU [0 to 1] during these steps, according to NVML"""
    cpu_ms_per_clip: float | None = None
    """[milliseconds] CPU time of all processes of the row for a clip"""
    memory_bytes: int | None = None
    """[bytes] largest sum, over rounds, of the memory of the row's processes. Shared memory counts once"""
    bytes_per_frame: float | None = None
    """[bytes] on disk"""
    cold_clips_per_second: float | None = None
    """Median of rounds that begin with files out of memory. It includes the start of the workers"""


@dataclass(frozen=True)
class StageResult:
    """CPU time of the stages of a cached batch, in one thread, [milliseconds for a batch]."""

    name: str
    """Name of the rows of this tier and codec"""
    milliseconds: Mapping[str, float]
    """Stage to its CPU time, in the order of the stages"""


@dataclass(frozen=True)
class BenchResult:
    """The result of ``bench``."""

    source: str
    """The cache or the index"""
    num_videos: int
    """Videos that the clips were drawn from"""
    settings: Mapping[str, Any]
    """Options of the measurement"""
    machine: Mapping[str, Any]
    """Processor, versions"""
    rows: tuple[RowResult, ...]
    stages: tuple[StageResult, ...]
    notes: tuple[str, ...]
    """Remarks on the whole measurement"""
    best: RowResult | None
    """The fastest row of the cache"""
    verdict: str
    """Summary in a sentence or two. Every figure in it was measured"""

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain JSON data."""
        return dataclasses.asdict(self)


def setting_of(row: RowResult) -> str:
    """Return the loader's setting for people, such as "2 workers, prefetch 2"."""
    if row.loader == "ClipLoader":
        return f"{row.num_workers} thread{'s' * (row.num_workers != 1)}, prefetch {row.prefetch}"
    if not row.num_workers:
        return "no workers"
    return f"{row.num_workers} worker{'s' * (row.num_workers != 1)}, prefetch {row.prefetch}"


def best_of(rows: tuple[RowResult, ...]) -> RowResult | None:
    """Return the fastest row of the cache, None if none was measured."""
    measured = [row for row in rows if row.is_cache and row.clips_per_second]
    return max(measured, key=lambda row: row.clips_per_second or 0.0, default=None)


def verdict_of(rows: tuple[RowResult, ...], stages: tuple[StageResult, ...], settings: Mapping[str, Any]) -> str:
    """Sum the figures up. Only measured figures appear."""
    best = best_of(rows)
    if best is None or best.clips_per_second is None:
        reasons = "; ".join(dict.fromkeys(row.reason for row in rows if row.is_cache and row.reason))
        return f"The cache could not be measured: {reasons or 'it has no row'}."
    name = best.name.removeprefix("cache: ")
    text = f"The cache ({name}) feeds {best.clips_per_second:.0f} clips/s on this machine with a {best.loader}, "
    text += setting_of(best)
    if best.speedup is not None:
        text += f", {best.speedup:.1f} times OpenCV without workers"
    if best.wait_share is not None:
        text += (
            f"; a step of {settings['step_ms']:g} ms for {settings['batch_size']} clips would wait "
            f"{100 * best.wait_share:.0f} % of its time"
        )
    text += "."
    faster = [row for row in rows if not row.is_cache and (row.clips_per_second or 0.0) > best.clips_per_second]
    if faster:
        row = max(faster, key=lambda row: row.clips_per_second or 0.0)
        text += f" Faster without the cache: {row.name}, {setting_of(row)}, {row.clips_per_second:.0f} clips/s."
    stage = next((stage for stage in stages if stage.name == best.name), None)
    if stage is not None and sum(stage.milliseconds.values()) > 0:
        largest = max(stage.milliseconds, key=lambda name: stage.milliseconds[name])
        share = stage.milliseconds[largest] / sum(stage.milliseconds.values())
        text += f" Of a batch's CPU time, {100 * share:.0f} % is {largest}."
    return text
