"""Description of one row."""

from __future__ import annotations

from collections.abc import Sequence

from chordcache.records import Record
from chordcache.tools.bench.options import NUM_ROUNDS, BenchOptions
from chordcache.tools.bench.result import RowResult
from chordcache.tools.bench.sample import Sample, reader_name

OPENCV = "OpenCV, seek for each frame"
"""Name of the rows whose first one is the baseline"""

SOURCE_READERS = {"opencv": OPENCV, "mapped_mp4": "mapped MP4", "torchcodec": "torchcodec"}
"""Readers of the sources to the names of their rows"""

CLIPS_IN_ALL = 20_000
"""Number of clips that a pass has at least"""


class RowSetup(Record, frozen=True, kw_only=True):
    """One way to make batches."""

    name: str
    reader: str
    """Key of ``SOURCE_READERS``, or "cache" """
    loader: str
    """"DataLoader" or "ClipLoader" """
    num_workers: int
    """Worker processes, or threads"""
    prefetch: int
    cache: str
    tier: str | None
    """Tier of "cache" """
    keys: tuple[str, ...]
    paths: tuple[str, ...]
    """Source of each video"""
    index: str
    files: tuple[str, ...]
    """Files that are read, for cold rounds"""
    batch_size: int
    num_frames: int
    stride: int
    size: int
    step_ms: float
    round_seconds: float

    @property
    def clips_per_video(self) -> int:
        """Number of clips of each video in a pass."""
        return -(-CLIPS_IN_ALL // len(self.keys))


def setups_of(sample: Sample, options: BenchOptions) -> list[RowSetup]:
    """Describe all rows, the baseline first."""
    rows = []
    for reader, name in SOURCE_READERS.items():
        for num_workers in sorted({0, *options.workers} if reader == "opencv" else set(options.workers)):
            rows.append(_setup(sample, options, name, reader, "DataLoader", num_workers, options.prefetch[0]))
    for tier, codec in sample.groups:
        name = reader_name(tier, codec)
        for num_workers in sorted(set(options.workers)):
            for prefetch in options.prefetch if num_workers else options.prefetch[:1]:
                rows.append(_setup(sample, options, name, "cache", "DataLoader", num_workers, prefetch))
        for threads in sorted(set(options.threads)):
            for prefetch in options.prefetch:
                rows.append(_setup(sample, options, name, "cache", "ClipLoader", threads, prefetch))
    return rows


def empty_result(setup: RowSetup, sample: Sample, reason: str | None = None) -> RowResult:
    """Return the result of a row before it was measured."""
    is_cache = setup.reader == "cache"
    note = None
    if len(setup.keys) < len(sample.keys):
        note = f"{len(setup.keys)} of {len(sample.keys)} videos"
    return RowResult(
        setup.name,
        setup.loader,
        setup.num_workers,
        setup.prefetch if setup.num_workers else 0,
        is_cache,
        reason=reason,
        note=note,
        bytes_per_frame=sample.bytes_per_frame.get(setup.name if is_cache else "source"),
    )


def _setup(
    sample: Sample, options: BenchOptions, name: str, reader: str, loader: str, num_workers: int, prefetch: int
) -> RowSetup:
    group = next((group for group in sample.groups if reader_name(*group) == name), None)
    keys: Sequence[str] = sample.keys if group is None else sample.groups[group]
    path_of = dict(zip(sample.keys, sample.paths, strict=True))
    return RowSetup(
        name=name,
        reader=reader,
        loader=loader,
        num_workers=num_workers,
        prefetch=prefetch,
        cache=sample.cache,
        tier=None if group is None else group[0],
        keys=tuple(keys),
        paths=tuple(path_of[key] for key in keys),
        index=sample.index,
        files=sample.files.get(name if group else "source", ()),
        batch_size=options.batch_size,
        num_frames=options.num_frames,
        stride=options.stride,
        size=options.size,
        step_ms=options.step_ms,
        round_seconds=options.seconds / NUM_ROUNDS,
    )
