"""The size and the time of a build, from some of its videos that are built in a temporary folder."""

from __future__ import annotations

import math
import time
from array import array
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from chordcache.building.build_plan import BuildPlan
from chordcache.building.build_task import BuildTask
from chordcache.building.file_build import build_file
from chordcache.engine import pool, terminal
from chordcache.engine.limits import Limits
from chordcache.engine.signals import stop_signals
from chordcache.media.geometry import expected_shape
from chordcache.media.probe import probe
from chordcache.records import Segment
from chordcache.storage import opener
from chordcache.storage.quarantine import Failure
from chordcache.storage.sidecar import files_of
from chordcache.temporary import temporary_folder

OFFSET = 0.6369617
"""Place of each video of a sample in its part of the whole work, from 0 to 1. It is random, and the same in each run"""

PIECE_SECONDS = 15.0
"""[seconds] Part of a longer video that is built"""

_TIME_ERROR = 0.1
"""Standard error of a CPU time, as a part of it: it depends on what else the machine does"""

_TIME, _SIDECARS = "CPU time", "sidecars"
_PIXELS, _SOUND, _DECODED, _SECONDS, _BYTES, ROW = range(6)
"""Columns of ``Videos.table``: pixels in the cache, seconds of sound, pixels to decode, seconds (0 of buckets, which
are not cut), bytes of the source, and the row in the index"""


@dataclass(frozen=True)
class Range:
    """A number, and the range from its 10th to its 90th percentile."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Estimate:
    """The size and the time of a build."""

    num_sampled: int
    num_failed: int
    failures: tuple[str, ...]
    jobs: int
    sizes: Mapping[str, Range]
    """[bytes] Files of each feature and tier, such as "frames in lmdb", and of "sidecars" """
    num_bytes: Range
    cpu_seconds: Range
    elapsed_seconds: Range
    """[seconds] CPU time shared by ``jobs`` workers, if disks and other processes do not make them wait"""


class Videos:
    """The videos to build, with the amounts on which their size and their time depend."""

    def __init__(self) -> None:
        self._rows = array("d")  # a million videos take 48 MB

    def add(self, task: BuildTask, num_bytes: float) -> None:
        """Add a video, which has a share of the bytes of a file. What the index does not state is NaN."""
        header, seconds = task.item.header, task.item.known_seconds
        amounts = (math.nan,) * 4
        if header is not None and header.average_fps and seconds is not None:
            size, fps = (header.display_width, header.display_height), header.average_fps
            cached_fps = min(fps, task.picture.fps or fps)
            width, height, num_frames = expected_shape(task.picture, *size, seconds * cached_fps)
            cached_seconds = num_frames / cached_fps
            sound_seconds = cached_seconds if task.item.audio else 0.0
            decoded = cached_seconds * fps * size[0] * size[1]
            amounts = num_frames * width * height, sound_seconds, decoded, 0.0 if task.picture.buckets else seconds
        self._rows.extend((*amounts, num_bytes, task.row))

    @cached_property
    def table(self) -> np.ndarray:
        """All videos, after the last one was added [shape=(N, 6), dtype=float64].

        A video without facts gets the amounts of others in proportion to the bytes of its source.
        """
        table = np.array(self._rows).reshape(-1, 6)
        known = table[~np.isnan(table[:, _PIXELS])]
        per_byte = known.sum(axis=0) / max(1, known[:, _BYTES].sum()) if len(known) else np.ones(6)
        return np.where(np.isnan(table), table[:, [_BYTES]] * per_byte, table)

    @cached_property
    def work(self) -> np.ndarray:
        """Share of each video in the whole build, roughly [shape=(N,), dtype=float64, sum 1]."""
        pixels = self.table[:, [_PIXELS, _DECODED]]
        work = (pixels / np.maximum(pixels.sum(axis=0), 1)).sum(axis=1) + 0.04 / max(1, len(pixels))
        return np.asarray(work / work.sum())

    def is_whole(self, num_videos: int) -> bool:
        """Return whether a sample of so many videos is all of them, from start to end."""
        return len(self.table) <= num_videos and bool((self.table[:, _SECONDS] <= PIECE_SECONDS).all())

    def sample(self, num_videos: int) -> np.ndarray:
        """Choose places in the table at equal distances of work. A long video may be chosen for several.

        Their order is that of source bytes per pixel: pictures with more detail take more bytes in the cache too.
        Source: Sarndal, Swensson and Wretman, "Model Assisted Survey Sampling", 1992, section 3.6.2.
        """
        if self.is_whole(num_videos):
            return np.arange(len(self.table))
        order = np.argsort(self.table[:, _BYTES] / np.maximum(self.table[:, _DECODED], 1), kind="stable")
        steps = (np.arange(num_videos) + OFFSET) / num_videos
        return np.asarray(order[np.searchsorted(np.cumsum(self.work[order])[:-1], steps, side="right")])


def build_pieces(
    tasks: Sequence[BuildTask], limits: Limits, *, shown: bool
) -> tuple[list[dict[str, float] | str], float]:
    """Build a piece of each video with one worker, in a temporary folder. ``shown`` shows a bar on a terminal.

    Returns the CPU time [seconds] and the sizes [bytes] of each by their names, scaled to the video, or its failure.
    Then the CPU time of the start of a worker, with the imports that the features need [seconds].
    """
    with (
        stop_signals(),
        temporary_folder() as folder,
        terminal.progress_bar(len(tasks) + 1, "item", shown=shown, name="sample") as bar,
    ):
        alone = [replace(task, cache=folder, previous=None, kept=()) for task in tasks]
        pieces = [(task, (number + 0.5) / len(tasks)) for number, task in enumerate(alone)]
        measured: list[tuple[dict[str, float] | str, float]] = []
        # The first is built twice: its first build imports what the features need
        with closing(pool.run(_build, pieces[:1] + pieces, jobs=1, limits=limits, ordered=True)) as results:
            for _, result in results:
                measured.append((result.message, 0.0) if isinstance(result, pool.Crash) else result)
                bar.update()
    return [numbers for numbers, _ in measured[1:]], max(0.0, measured[1][1])


def _build(piece: tuple[BuildTask, float]) -> tuple[dict[str, float] | str, float]:
    """Build a piece, measure it, and remove its files.

    The second result is the CPU time of this worker before, less that of the piece: of its start, after a first build.
    """
    task, scale = _cut(*piece)
    started = time.process_time()
    (outcome,) = build_file([task])
    seconds = time.process_time() - started
    if isinstance(outcome, Failure):
        return outcome.message, started - seconds
    numbers = {_TIME: scale * seconds, _SIDECARS: len(outcome.to_line()) + 1.0}
    for artefact in task.artefacts:
        infos = [info for name in artefact.names if (info := outcome.feature(name, artefact.tier))]
        name = f"{', '.join(artefact.names)} in {artefact.tier}"
        numbers[name] = scale * sum(file.num_bytes for file in files_of(infos))
    for file in outcome.files:
        opener.remove(task.cache, file.name)
    return numbers, started - seconds


def _cut(task: BuildTask, position: float) -> tuple[BuildTask, float]:
    """Return the task for a piece of a long video that begins with a keyframe, and the length of the video in pieces.

    ``position`` is 0 for the start of the video, and 1 for its last piece. The frames of a bucket are not cut.
    """
    record = task.item
    if record.packets is None and task.picture.buckets is None:
        facts = probe(task.source_path, root=record.root, relative_path=record.path, inside=task.inside)
        record = record.replace(header=facts.header, packets=facts.packets)
    seconds, packets = record.known_seconds, record.packets
    if packets is None or seconds is None or seconds <= PIECE_SECONDS or task.picture.buckets is not None:
        return task, 1.0
    segment = record.segment or Segment(start_frame=0)
    first = segment.start_seconds or (segment.start_frame or 0) * packets.duration_seconds / packets.num_frames
    last = first + position * (seconds - PIECE_SECONDS)
    keyframes = [keyframe - packets.start_seconds for keyframe in packets.keyframe_pts_seconds]
    start = max((keyframe for keyframe in keyframes if first <= keyframe <= last), default=first)
    piece = Segment(start_seconds=start, end_seconds=start + PIECE_SECONDS)
    return replace(task, item=task.item.replace(segment=piece, content=None)), seconds / PIECE_SECONDS


def estimate_of(
    plan: BuildPlan,
    videos: Videos,
    places: np.ndarray,
    pieces: Sequence[dict[str, float] | str],
    start_seconds: float,
    jobs: int,
) -> Estimate:
    """Scale the numbers of all pieces to all videos, in proportion to amounts whose totals are known.

    ``places`` and ``start_seconds`` are those of ``Videos.sample`` and ``build_pieces``.
    """
    failures = {place: piece for place, piece in zip(places, pieces, strict=True) if isinstance(piece, str)}
    built = [{} if isinstance(piece, str) else piece for piece in pieces]
    names = [_TIME, *dict.fromkeys(name for piece in built for name in piece if name != _TIME and piece[name])]
    amounts = np.column_stack([_amounts(plan, videos, name) for name in names])
    values = np.array([[piece.get(name, 0.0) for name in names] for piece in built])
    if videos.is_whole(len(pieces)):
        estimates = np.tile(values.sum(axis=0), (max(2, len(pieces)), 1))
    else:  # each piece gives an estimate, less what follows from its share of the amounts
        wholes, known = (numbers / videos.work[places, None] for numbers in (values, amounts[places]))
        rates = wholes.mean(axis=0) / np.maximum(known.mean(axis=0), 1e-9)
        estimates = amounts.sum(axis=0) * rates + wholes - rates * known
    cpu = range_of(estimates[:, 0] + start_seconds * min(jobs, len(videos.table)), _TIME_ERROR)
    return Estimate(
        num_sampled=len(set(places)),
        num_failed=len(failures),
        failures=tuple(dict.fromkeys(failures.values())),
        jobs=jobs,
        sizes={name: range_of(column) for name, column in zip(names[1:], estimates[:, 1:].T, strict=True)},
        num_bytes=range_of(estimates[:, 1:].sum(axis=1)),
        cpu_seconds=cpu,
        elapsed_seconds=Range(cpu.value / jobs, cpu.low / jobs, cpu.high / jobs),
    )


def _amounts(plan: BuildPlan, videos: Videos, name: str) -> np.ndarray:
    """Return the amount of each video to which a number is in proportion."""
    if name == _TIME:
        return videos.work
    if name == _SIDECARS:
        return np.ones(len(videos.work))
    specs = [plan.specs[feature] for feature in name.rpartition(" in ")[0].split(", ")]
    return videos.table[:, _SOUND if all(spec is not None and spec.is_of_sound for spec in specs) else _PIXELS]


def range_of(estimates: np.ndarray, other_error: float = 0.0) -> Range:
    """Return the mean of independent estimates with its range. ``other_error`` is a further part of it.

    The factor is close to the 90th percentile of Student's t.
    """
    value, num = float(estimates.mean()), len(estimates)
    error = value if num == 1 else float(estimates.std()) / math.sqrt(num - 1)
    deviation = math.hypot(error, other_error * value) * (1.28 + 1.2 / max(1, num - 1))
    return Range(value, max(0.0, value - deviation), value + deviation)
