"""The result of a measurement: plain data, a table, and the sentence that sums it up."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chordcache.amounts import counted
from chordcache.errors import printable
from chordcache.tools.bench.ways import BenchOptions


@dataclass(frozen=True)
class RowResult:
    """One way to make batches, and its speed. A figure is None if it was not measured."""

    name: str
    """Name of the reader, such as "mapped MP4" or "cache" """
    loader: str
    """"DataLoader" or "ClipLoader" """
    clips_per_second: float | None = None
    """Median of the rounds"""
    clips_per_second_range: tuple[float, float] | None = None
    """Least and greatest of the rounds"""
    speedup: float | None = None
    """Ratio to the clips per second of the fastest row without the cache"""
    reason: str | None = None
    """Reason why the row was not measured"""

    @property
    def is_cache(self) -> bool:
        """Return whether the row reads the cache."""
        return self.name == "cache"


@dataclass(frozen=True)
class BenchResult:
    """The result of ``bench``."""

    source: str
    """The cache"""
    num_videos: int
    """Videos that the clips were drawn from"""
    settings: BenchOptions
    machine: Mapping[str, Any]
    """Processors, versions"""
    rows: tuple[RowResult, ...]
    notes: tuple[str, ...] = ()
    """Remarks on the whole measurement"""

    @property
    def verdict(self) -> str:
        """Summary in a sentence. Workers and threads read on during a step, which waits if it is faster than they."""
        best = _fastest(row for row in self.rows if row.is_cache)
        if best is None or best.clips_per_second is None:
            reasons = "; ".join(dict.fromkeys(row.reason for row in self.rows if row.is_cache and row.reason))
            return f"The cache could not be measured: {reasons or 'it has no row'}."
        settings = self.settings
        jobs = counted(settings.num_jobs, "thread")
        if best.loader == "DataLoader":
            jobs = counted(settings.workers, "worker")
        text = f"The cache feeds {best.clips_per_second:.0f} clips/s with a {best.loader} of {jobs}"
        rival = _fastest(row for row in self.rows if not row.is_cache)
        if rival is not None and best.speedup is not None:
            is_whole = all(row.clips_per_second for row in self.rows)
            text += f", {best.speedup:.1f} times {rival.name}{', the fastest way without it' * is_whole}"
        batch_ms, clips = 1000 * settings.batch_size / best.clips_per_second, counted(settings.batch_size, "clip")
        if best.loader == "DataLoader" and not settings.workers:
            return f"{text}; each GPU step waits {batch_ms:.0f} ms for {clips}."
        return f"{text}; a GPU step of less than {batch_ms:.0f} ms for {clips} would wait."

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain JSON data."""
        return {**dataclasses.asdict(self), "verdict": self.verdict}


def as_text(result: BenchResult) -> str:
    """Return the result for a terminal."""
    settings = result.settings
    table = [["read by", "loader", "clips/s", "least-most", "x"]]
    for row in result.rows:
        least_most = "-" if row.clips_per_second_range is None else "{:.1f}-{:.1f}".format(*row.clips_per_second_range)
        table.append([row.name, row.loader, _number(row.clips_per_second, 1), least_most, _number(row.speedup, 2)])
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = [
        f"{printable(result.source)}: {counted(result.num_videos, 'video')}, batches of "
        f"{counted(settings.batch_size, 'clip')} of {counted(settings.num_frames, 'frame')}, {settings.stride} apart, "
        f"{settings.size}x{settings.size}; {counted(settings.workers, 'worker')} on "
        f"{counted(result.machine['processors'], 'processor')}",
        "",
    ]
    for cells in table:
        aligned = [c.ljust(w) if i < 2 else c.rjust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True))]
        lines.append("  ".join(aligned).rstrip())
    reasons = [f"{row.name}: {row.reason}." for row in result.rows if row.reason is not None]
    return "\n".join([*lines, "", *map(printable, dict.fromkeys([*result.notes, *reasons])), result.verdict])


def _fastest(rows: Any) -> RowResult | None:
    measured: Sequence[RowResult] = [row for row in rows if row.clips_per_second]
    return max(measured, key=lambda row: row.clips_per_second or 0.0, default=None)


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
