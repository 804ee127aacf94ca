"""The estimate of a build: pieces of some videos are built in a temporary folder, and scaled to all videos."""

from __future__ import annotations

import math
import time
from array import array
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from chordcache.building.build_plan import ArtefactTask, BuildPlan
from chordcache.building.build_task import BuildTask
from chordcache.building.file_build import build_file
from chordcache.engine import pool, terminal
from chordcache.engine.limits import Limits
from chordcache.engine.signals import stop_signals
from chordcache.media.geometry import expected_shape
from chordcache.media.probe import probe
from chordcache.records import PacketFacts, Segment
from chordcache.storage import opener
from chordcache.storage.quarantine import Failure
from chordcache.storage.sidecar import files_of
from chordcache.temporary import temporary_folder

SEED = 0
"""Seed of the sample"""

SIDECARS = "sidecars"
"""Name of the sidecars among the sizes"""

PIECE_SECONDS = 15.0
"""[seconds] of a longer item that are built"""

_TIME_ERROR = 0.1
"""Standard error of a CPU time, as a part of it: it depends on what else the machine does"""


@dataclass(frozen=True)
class Range:
    """A number, and the range from its 10th to its 90th percentile."""

    value: float
    low: float
    high: float

    def scaled(self, factor: float) -> Range:
        """Return the range of a multiple."""
        return Range(self.value * factor, self.low * factor, self.high * factor)


@dataclass(frozen=True)
class Estimate:
    """The size and the time of a build."""

    num_sampled: int
    """Items that were built, at most ``PIECE_SECONDS`` of each"""
    num_failed: int
    """Number of these that failed"""
    failures: tuple[str, ...]
    """Messages of these"""
    num_unreadable: int
    """Videos whose files do not exist. They are left out"""
    jobs: int
    """Workers that the build will have"""
    sizes: Mapping[str, Range]
    """[bytes] of the files of each feature and tier, such as "frames in lmdb", and of "sidecars" """
    num_bytes: Range
    """[bytes] of all files"""
    cpu_seconds: Range
    """[seconds] CPU time of all workers"""
    elapsed_seconds: Range
    """[seconds] with ``jobs`` workers on as many processors, if disks and other processes do not make them wait"""


class Draw(NamedTuple):
    """One item of the sample."""

    row: int
    """Its row in the table of items"""
    position: float
    """Place of the middle of its piece, in [0, 1]"""
    weight: float
    """Number of items that it stands for"""


class ItemTable:
    """The numbers of each item on which the size and the time of its build depend."""

    def __init__(self, plan: BuildPlan) -> None:
        self._picture = plan.config.picture
        artefacts = (a for a in plan.artefacts if all(spec.is_of_sound for spec in a.features))
        self.of_sound = frozenset(map(size_name, artefacts))
        """Names of sizes that grow with the seconds of sound"""
        self.num_unreadable = 0
        self._rows = array("d")

    def add(self, number: int, tasks: Sequence[BuildTask]) -> None:
        """Add the items of a file that have to be built. ``number`` is that of the file in the order of the plan."""
        for place, task in enumerate(tasks):
            if task.state == "missing" and task.item.identity is None:
                self.num_unreadable += 1
            elif task.state == "missing" and task.item.identity is not None:
                size = task.item.identity.size / len(tasks)
                self._rows.extend((*self._amounts(task), size, number, place))

    def _amounts(self, task: BuildTask) -> tuple[float, float, float, float]:
        """Return the pixels in the cache, the pixels to decode, the seconds of sound, and the seconds of the item.

        They are NaN if the index does not state them.
        """
        header, seconds = task.item.header, task.item.known_seconds
        if header is None or not header.average_fps or seconds is None:
            return (math.nan,) * 4
        size, source_fps = (header.display_width, header.display_height), header.average_fps
        fps = min(source_fps, self._picture.fps or source_fps)
        width, height, num_frames = expected_shape(self._picture, *size, seconds * fps)
        cached_seconds = num_frames / fps
        sound_seconds = cached_seconds if task.item.audio is not None else 0.0
        return num_frames * width * height, cached_seconds * source_fps * size[0] * size[1], sound_seconds, seconds

    @cached_property
    def table(self) -> np.ndarray:
        """All items, after the last one was added [shape=(N, 7), dtype=float64].

        The columns are those of ``_amounts``, the share in the size of the file [bytes], the number of the file, and
        the item's place in it. An item without facts gets those of others, by this size.
        """
        table = np.array(self._rows, np.float64).reshape(-1, 7)
        sizes = table[:, 4]
        for values in table[:, :4].T:
            known = ~np.isnan(values)
            ratio = values[known].sum() / max(sizes[known].sum(), 1.0) if known.any() else 1.0
            values[~known] = ratio * sizes[~known]
        return table

    def draw(self, num_items: int) -> list[Draw]:
        """Choose some items. Long ones may be chosen several times, in other places."""
        table = self.table
        if len(table) <= num_items and (self._picture.buckets or (table[:, 3] <= PIECE_SECONDS).all()):
            return [Draw(row, 0.5, 1.0) for row in range(len(table))]
        return draws(work_of(table), table[:, 4] / np.maximum(table[:, 1], 1.0), num_items)


def work_of(table: np.ndarray) -> np.ndarray:
    """Return the share of each item in the whole build, roughly [shape=(N,), dtype=float64, sum 1]."""
    shares = table[:, :2] / np.maximum(table[:, :2].sum(axis=0), 1e-9)
    work = shares.sum(axis=1) + 0.04 / max(1, len(table))
    return np.asarray(work / work.sum())


def draws(work: np.ndarray, density: np.ndarray, num_items: int) -> list[Draw]:
    """Choose items at equal distances of work, in the order of ``density``, so that the sample has all densities.

    Pictures with more detail take more bytes in the source and in the cache.

    Notes
    -----
    Source: systematic sampling with probabilities in proportion to size, Sarndal, Swensson and Wretman, "Model Assisted
    Survey Sampling", 1992, section 3.6.2.
    """
    order = np.argsort(density, kind="stable")
    ends = np.cumsum(work[order])
    places = (np.arange(num_items) + np.random.default_rng(SEED).random()) / num_items * ends[-1]
    numbers = np.minimum(np.searchsorted(ends, places, side="right"), len(order) - 1)
    rows = order[numbers]
    positions = 1 - (ends[numbers] - places) / work[rows]
    weights = ends[-1] / (num_items * work[rows])
    return list(map(Draw, rows.tolist(), positions.tolist(), weights.tolist()))


# Building


@dataclass(frozen=True)
class Measured:
    """The measurements of an item, scaled to the whole of it."""

    cpu_seconds: float = 0.0
    num_bytes: Mapping[str, float] = field(default_factory=dict)
    """[bytes] by the names of ``size_name``, and ``SIDECARS``"""
    failure: str = ""
    started: float = 0.0
    """[seconds] CPU time of the worker before"""


def size_name(artefact: ArtefactTask) -> str:
    """Return the name of an artefact's size, such as "frames in lmdb"."""
    return f"{', '.join(artefact.names)} in {artefact.tier}"


def build_sample(
    tasks: Sequence[BuildTask], sample: Sequence[Draw], limits: Limits, *, shown: bool
) -> tuple[list[Measured], float]:
    """Build a piece of each item with one worker, in a temporary folder. ``shown`` shows a bar on a terminal.

    ``tasks`` are those of the sample.

    Returns the measurements of each, and the CPU time that a worker takes to start, with the imports that the features
    need [seconds].
    """
    if not tasks:
        return [], 0.0
    measured = []
    with (
        stop_signals(),
        temporary_folder() as folder,
        terminal.progress_bar(len(tasks) + 1, "item", shown=shown, name="sample") as bar,
    ):
        alone = [replace(task, cache=folder, previous=None, kept=()) for task in tasks]
        pieces = [(task, draw.position) for task, draw in zip(alone, sample, strict=True)]
        # The first build imports what the features need, so that its item is built twice
        with closing(pool.run(_measure, pieces[:1] + pieces, jobs=1, limits=limits, ordered=True)) as results:
            for _, result in results:
                measured.append(Measured(failure=result.message) if isinstance(result, pool.Crash) else result)
                bar.update()
    first, *measured = measured
    return measured, first.started + max(0.0, first.cpu_seconds - measured[0].cpu_seconds)


def _measure(whole: tuple[BuildTask, float]) -> Measured:
    """Build the piece of an item at a position in a worker, remove its artefacts, and scale its numbers to the item."""
    started = time.process_time()
    task, scale = _piece(*whole)
    begun = time.process_time()
    (outcome,) = build_file([task])
    seconds = (time.process_time() - begun) * scale
    if isinstance(outcome, Failure):
        return Measured(seconds, failure=outcome.message, started=started)
    num_bytes = {SIDECARS: len(outcome.to_line()) + 1.0}
    for artefact in task.artefacts:
        infos = [info for name in artefact.names if (info := outcome.feature(name, artefact.tier))]
        num_bytes[size_name(artefact)] = scale * sum(file.num_bytes for file in files_of(infos))
    for file in outcome.files:
        opener.remove(task.cache, file.name)
    return Measured(seconds, num_bytes, started=started)


def _piece(task: BuildTask, position: float) -> tuple[BuildTask, float]:
    """Return the task for a piece of a long item, and how many times the item has the frames of the piece.

    The piece begins with a keyframe, and its middle is about at ``position``. An item that takes the frames of a bucket
    is built as a whole.
    """
    record = task.item
    packets = record.packets
    if packets is None and task.picture.buckets is None:
        packets = probe(task.source_path, root=record.root, relative_path=record.path, inside=task.inside).packets
    if packets is None or not packets.num_frames or task.picture.buckets is not None:
        return task, 1.0
    first, behind = _span(record.segment, packets)
    num_frames = math.ceil(PIECE_SECONDS * packets.num_frames / max(packets.duration_seconds, 1e-3))
    if behind - first <= num_frames:
        return task, 1.0
    wanted = first + position * (behind - first) - num_frames / 2
    start = max((k for k in packets.keyframe_numbers if first <= k <= wanted), default=first)
    start = min(start, behind - num_frames)
    segment = Segment(start_frame=start, end_frame=start + num_frames)
    return replace(task, item=record.replace(segment=segment, content=None)), (behind - first) / num_frames


def _span(segment: Segment | None, packets: PacketFacts) -> tuple[int, int]:
    """Return the number of the first frame of an item, and that behind its last one."""
    start = stop = None
    if segment is not None:
        fps = packets.num_frames / max(packets.duration_seconds, 1e-3)
        start = segment.start_frame if segment.start_seconds is None else round(segment.start_seconds * fps)
        stop = segment.end_frame if segment.end_seconds is None else round(segment.end_seconds * fps)
    behind = packets.num_frames if stop is None else min(stop, packets.num_frames)
    return min(start or 0, behind), behind


# Scaling


def total_of(values: np.ndarray, amounts: np.ndarray, weights: np.ndarray, total: float) -> tuple[float, np.ndarray]:
    """Scale values of a sample to all items, in proportion to an amount whose total is known.

    ``values``, ``amounts`` and ``weights`` are those of each item of the sample [shape=(n,), dtype=float64]. Returns
    the estimate, and the contribution of each item to its error [shape=(n,), dtype=float64].
    """
    weighted, known = float(weights @ values), float(weights @ amounts)
    factor = total / known if known > 0 else 1.0
    expected = weighted / known * amounts if known > 0 else 0.0
    return factor * weighted, factor * weights * (values - expected)


def range_of(value: float, errors: np.ndarray, is_all: bool, further: float = 0.0) -> Range:
    """Return an estimate with its range. ``further`` is another standard error, which is independent of the sample.

    The factor is close to the 90th percentile of Student's t, with one degree of freedom less than there are items.
    """
    num = len(errors)
    if is_all:
        deviation = 0.0
    elif num < 2:
        deviation = value
    else:
        deviation = math.sqrt(num / (num - 1) * float(errors @ errors))
    deviation = math.hypot(deviation, further) * (1.28 + 1.2 / max(1, num - 1))
    return Range(value, max(0.0, value - deviation), value + deviation)


def estimate_of(
    items: ItemTable, sample: Sequence[Draw], measured: Sequence[Measured], start_seconds: float, jobs: int
) -> Estimate:
    """Return the estimate of a build from the measurements of a sample, see ``build_sample``."""
    table, rows = items.table, [draw.row for draw in sample]
    weights = np.array([draw.weight for draw in sample], float)
    is_all = len(sample) == len(table) and bool((weights == 1).all())
    sizes, all_bytes, all_errors = {}, 0.0, np.zeros(len(sample))
    for name in dict.fromkeys(name for item in measured for name in item.num_bytes):
        amounts = np.ones(len(table)) if name == SIDECARS else table[:, 2 if name in items.of_sound else 0]
        values = np.array([item.num_bytes.get(name, 0.0) for item in measured], float)
        num_bytes, errors = total_of(values, amounts[rows], weights, float(amounts.sum()))
        if values.any():
            sizes[name] = range_of(num_bytes, errors, is_all)
            all_bytes, all_errors = all_bytes + num_bytes, all_errors + errors
    work = work_of(table) if len(table) else np.zeros(0)
    times = np.array([item.cpu_seconds for item in measured], float)
    cpu_seconds, errors = total_of(times, work[rows], weights, 1.0)
    cpu_seconds += start_seconds * min(jobs, max(1, len(table)))
    cpu = range_of(cpu_seconds, errors, is_all, _TIME_ERROR * cpu_seconds)
    failures = {draw.row: item.failure for draw, item in zip(sample, measured, strict=True) if item.failure}
    return Estimate(
        num_sampled=len(set(rows)),
        num_failed=len(failures),
        failures=tuple(dict.fromkeys(failures.values())),
        num_unreadable=items.num_unreadable,
        jobs=jobs,
        sizes=sizes,
        num_bytes=range_of(float(round(all_bytes)), all_errors, is_all),
        cpu_seconds=cpu,
        elapsed_seconds=cpu.scaled(1 / jobs),
    )
