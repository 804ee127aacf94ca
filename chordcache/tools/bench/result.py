"""The options of a measurement, the ways to make batches that it compares, and its result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from chordcache.amounts import counted
from chordcache.arguments import check_at_least, check_positive
from chordcache.errors import printable

NUM_ROUNDS = 5
"""Rounds of a measurement. Each way is measured once in each, so that a slow minute of the machine hits all of them."""

NUM_CLIPS = 20_000
"""Number of clips that a pass has at least"""

SOURCES: Mapping[str, str] = {
    "opencv": "OpenCV (seek for each frame)",
    "pyav": "PyAV (one seek)",
    "mapped_mp4": "mapped MP4",
    "torchcodec": "torchcodec",
}
"""Reader of the sources to its name in the table"""


@dataclass(frozen=True)
class BenchOptions:
    """Options of ``bench``. Raises ``UsageError`` if a value is out of range."""

    batch_size: int = 8
    """Clips in a batch"""
    num_frames: int = 16
    """Frames in a clip"""
    stride: int = 4
    """Distance of the frames of a clip, [frames]"""
    size: int = 224
    """[pixels] side of the square center crop"""
    workers: int = 2
    """Worker processes of each DataLoader, and threads of the ClipLoader, which has at least one"""
    seconds: float = 5.0
    """[seconds] time that each way is measured for, over all rounds, without its start"""

    def __post_init__(self) -> None:
        check_at_least(1, batch_size=self.batch_size, num_frames=self.num_frames, stride=self.stride, size=self.size)
        check_at_least(0, workers=self.workers)
        check_positive(seconds=self.seconds)

    @property
    def num_jobs(self) -> int:
        """Number of processes or threads that read clips."""
        return max(1, self.workers)


@dataclass(frozen=True)
class Way:
    """One way to make batches. Picklable and hashable."""

    reader: str
    """Key of ``SOURCES``, or "cache" """
    loader: str
    """"DataLoader" or "ClipLoader" """
    cache: str
    keys: tuple[str, ...]
    """Videos of the cache that clips are drawn from"""
    paths: tuple[str, ...]
    """Absolute path of each video's source"""
    options: BenchOptions


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


@dataclass(frozen=True)
class BenchResult:
    """The result of ``bench``."""

    source: str
    """The cache"""
    num_videos: int
    """Videos that the clips were drawn from"""
    settings: BenchOptions
    num_processors: int
    versions: Mapping[str, str]
    rows: tuple[RowResult, ...]

    @property
    def verdict(self) -> str:
        """Summary in a sentence. Workers and threads read on during a step, which waits if it is faster than they."""
        of_cache = [row for row in self.rows if row.name == "cache"]
        best, rival = _fastest(of_cache), _fastest([row for row in self.rows if row.name != "cache"])
        if best is None or best.clips_per_second is None:
            return f"The cache could not be measured: {'; '.join({row.reason or '' for row in of_cache})}."
        settings, loader = self.settings, best.loader
        jobs = counted(*((settings.workers, "worker") if loader == "DataLoader" else (settings.num_jobs, "thread")))
        text = f"The cache feeds {best.clips_per_second:.0f} clips/s with a {loader} of {jobs}"
        if rival is not None and best.speedup is not None:
            is_whole = all(row.clips_per_second for row in self.rows)
            text += f", {best.speedup:.1f} times {rival.name}{', the fastest way without it' * is_whole}"
        batch_ms, clips = 1000 * settings.batch_size / best.clips_per_second, counted(settings.batch_size, "clip")
        return f"{text}; a GPU step of less than {batch_ms:.0f} ms for {clips} would wait."


def as_text(result: BenchResult) -> str:
    """Return the result for a terminal."""
    settings = result.settings
    table = [["read by", "loader", "clips/s", "least-most", "x"]]
    for row in result.rows:
        rate, (least, most), x = row.clips_per_second, row.clips_per_second_range or (0, 0), row.speedup
        figures = [f"{rate:.1f}", f"{least:.1f}-{most:.1f}"] if rate else ["-", "-"]
        table.append([row.name, row.loader, *figures, f"{x:.2f}" if x else "-"])
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = [
        f"{printable(result.source)}: {counted(result.num_videos, 'video')}, batches of "
        f"{counted(settings.batch_size, 'clip')} of {counted(settings.num_frames, 'frame')}, {settings.stride} apart, "
        f"{settings.size}x{settings.size}; {counted(settings.workers, 'worker')} on "
        f"{counted(result.num_processors, 'processor')}",
        "",
    ]
    for cells in table:
        aligned = [c.ljust(w) if i < 2 else c.rjust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True))]
        lines.append("  ".join(aligned).rstrip())
    lines += ["", *dict.fromkeys(printable(f"{row.name}: {row.reason}.") for row in result.rows if row.reason)]
    return "\n".join([*lines, result.verdict])


def _fastest(rows: Sequence[RowResult]) -> RowResult | None:
    measured = [row for row in rows if row.clips_per_second]
    return max(measured, key=lambda row: row.clips_per_second or 0.0, default=None)
