"""The estimate of a build: bytes and CPU time of some files that were built, scaled by pixels and seconds."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from chordcache.building.build_plan import ArtefactTask, BuildPlan
from chordcache.building.build_task import BuildTask
from chordcache.config.picture import PictureConfig
from chordcache.media.geometry import expected_shape
from chordcache.records import VideoRecord

SEED = 0
"""Seed of the sample of files"""

SIDECARS = "sidecars"
"""Name of the sidecars among the sizes"""

_DEVIATIONS = 1.2816
"""Standard deviations from the 10th to the 50th percentile, and from there to the 90th"""

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

    @classmethod
    def of(cls, value: float, deviation: float) -> Range:
        """Return the range of a number with a standard deviation. A low end below zero is zero."""
        return cls(value, max(0.0, value - _DEVIATIONS * deviation), value + _DEVIATIONS * deviation)


@dataclass(frozen=True)
class Estimate:
    """The size and the time of a build."""

    num_sampled: int
    """Files that were built, at most 30 seconds of each"""
    num_failed: int
    """Number of these that were not cached completely"""
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


@dataclass(frozen=True)
class Measured:
    """The measurements of a file, for the whole of it."""

    cpu_seconds: float = 0.0
    num_bytes: Mapping[str, float] = field(default_factory=dict)
    """[bytes] by the names of ``size_name``, and ``SIDECARS``"""
    deviation: float = 0.0
    """[bytes] Standard error of their sum, of a file that was built in part"""
    failures: tuple[str, ...] = ()
    """Messages of items that failed"""
    start_seconds: float = 0.0
    """[seconds] CPU time that the worker had used before"""


def size_name(artefact: ArtefactTask) -> str:
    """Return the name of an artefact's size, such as "frames in lmdb"."""
    return f"{', '.join(artefact.names)} in {artefact.tier}"


@dataclass(frozen=True)
class FileSample:
    """Some files of a table, chosen at random with probabilities in proportion to their work."""

    rows: np.ndarray
    """[shape=(n,), dtype=int64] in the table. Those with a like number of bytes for a pixel are beside each other"""
    weights: np.ndarray
    """[shape=(n,), dtype=float64] number of files that each stands for"""
    files: Sequence[Sequence[BuildTask]] = ()
    """The tasks of each"""
    measured: Sequence[Measured] = ()


class FileTable:
    """The numbers of each file that the size and the time of its build depend on.

    They are pixels of cached frames, or seconds of sound, for each artefact that is missing, the number of items, and
    pixels of decoded frames.
    """

    def __init__(self, plan: BuildPlan) -> None:
        self._picture = plan.config.picture
        self.names = (*map(size_name, plan.artefacts), SIDECARS, "source")
        """Names of the columns"""
        self.num_unreadable = 0
        self._rows = array("d")

    def add(self, number: int, tasks: Sequence[BuildTask]) -> None:
        """Add a file of this number in the order of the plan, if something of it is missing."""
        self.num_unreadable += sum(task.state == "missing" and task.item.identity is None for task in tasks)
        columns = dict.fromkeys(self.names, 0.0)
        missing = to_build(tasks)
        for task in missing:
            pixels, sound, source = _amounts(task.item, self._picture)
            columns[SIDECARS] += 1
            columns["source"] += source
            for artefact in task.artefacts:
                is_of_sound = all(spec.is_of_sound for spec in artefact.features)
                columns[size_name(artefact)] += sound if is_of_sound else pixels
        if missing and missing[0].item.identity is not None:
            self._rows.extend((*columns.values(), missing[0].item.identity.size, number))

    @cached_property
    def _table(self) -> np.ndarray:
        """The columns, the bytes and the number of each file. A file without facts gets those of others, by size."""
        table = np.asarray(self._rows, np.float64).reshape(-1, len(self.names) + 2)
        sizes = table[:, -2]
        for values in table[:, :-2].T:
            known = ~np.isnan(values)
            ratio = values[known].sum() / max(sizes[known].sum(), 1.0) if known.any() else 1.0
            values[~known] = ratio * sizes[~known]
        return table

    @property
    def columns(self) -> np.ndarray:
        """Numbers of all files by ``names`` [shape=(N, k), dtype=float64]."""
        return self._table[:, :-2]

    def sample(self, num_files: int) -> tuple[FileSample, list[int]]:
        """Choose files. Return them, and the number of each in the order of the plan."""
        density = self._table[:, -2] / np.maximum(self._table[:, -3], 1.0)
        sample = choose(work_of(self.columns), density, num_files)
        return sample, self._table[sample.rows, -1].astype(int).tolist()


def to_build(tasks: Sequence[BuildTask]) -> list[BuildTask]:
    """Return the tasks of a file that make artefacts."""
    return [task for task in tasks if task.state == "missing" and task.artefacts and task.item.identity is not None]


def _amounts(item: VideoRecord, picture: PictureConfig) -> tuple[float, float, float]:
    """Return an item's pixels in the cache, seconds of sound and pixels to decode, or NaN if its length is unknown."""
    header, seconds = item.header, item.known_seconds
    if header is None or not header.average_fps or seconds is None:
        return math.nan, math.nan, math.nan
    size = header.display_width, header.display_height
    fps = min(header.average_fps, picture.fps or header.average_fps)
    width, height, num_frames = expected_shape(picture, *size, seconds * fps)
    seconds = num_frames / fps
    sound = seconds if item.audio is not None else 0.0
    return num_frames * width * height, sound, seconds * header.average_fps * size[0] * size[1]


# Which files are built


def work_of(columns: np.ndarray) -> np.ndarray:
    """Return the share of each file in the whole build, roughly [shape=(N,), dtype=float64, sum 1]."""
    totals = columns.sum(axis=0)
    used = totals > 0
    shares = (columns[:, used] / totals[used]).sum(axis=1) / max(1, np.count_nonzero(used))
    return np.asarray(0.98 * shares + 0.02 / max(1, len(columns)))


def choose(work: np.ndarray, density: np.ndarray, num_files: int) -> FileSample:
    """Choose files. Those with more work than a fair share are always chosen.

    The others are taken at equal distances of work, in the order of ``density``: pictures with more detail take more
    bytes in the source and in the cache.

    Notes
    -----
    Source: systematic sampling with probabilities in proportion to size, Sarndal, Swensson and Wretman, "Model Assisted
    Survey Sampling", 1992, section 3.6.2.
    """
    probability = np.ones(len(work))
    rest = np.arange(len(work) if num_files < len(work) else 0)
    while len(rest):
        num_left = num_files - (len(work) - len(rest))
        probability[rest] = np.minimum(1.0, num_left * work[rest] / work[rest].sum())
        is_certain = probability[rest] == 1.0
        if not is_certain.any():
            break
        rest = rest[~is_certain]
    order = np.argsort(density, kind="stable")
    places = np.arange(min(num_files, len(work))) + np.random.default_rng(SEED).random()
    rows = order[np.searchsorted(np.cumsum(probability[order]), places, side="right")]
    return FileSample(rows, 1 / probability[rows])


# Scaling


def scaled_total(sample: FileSample, values: np.ndarray, column: np.ndarray) -> tuple[float, np.ndarray]:
    """Scale a sum over the sample by a column of all files.

    Returns the estimate of the sum over all files, and the contribution of each file of the sample to its error
    [shape=(n,), dtype=float64].
    """
    known = column[sample.rows]
    weighted, total = float(sample.weights @ values), float(sample.weights @ known)
    factor = float(column.sum()) / total if total > 0 else 1.0
    has_others = total > 0 and np.count_nonzero(sample.weights > 1) > 1  # one file says nothing about the others
    expected = weighted / total * known if has_others else 0.0
    return factor * weighted, factor * sample.weights * (values - expected)


def deviation_of(sample: FileSample, errors: np.ndarray) -> float:
    """Return the standard deviation of a total, from the differences of neighbors.

    Notes
    -----
    Source: Wolter, "Introduction to Variance Estimation", 2007, section 8.2, estimator v2.
    """
    others = sample.weights > 1
    values, left_out = errors[others], 1 - 1 / sample.weights[others]
    if len(values) < 2:
        return float(np.abs(values * left_out**0.5).sum())
    steps = np.diff(values) ** 2 * (left_out[1:] + left_out[:-1]) / 2
    return float((steps.sum() * len(values) / (2 * (len(values) - 1))) ** 0.5)


def estimate_of(files: FileTable, sample: FileSample, start_seconds: float, jobs: int) -> Estimate:
    """Return the estimate of a build from the measurements of a sample."""
    measured, columns = sample.measured, files.columns
    sizes, all_bytes, all_errors = {}, 0.0, np.zeros(len(measured))
    for name, column in zip(files.names, columns.T, strict=True):
        values = np.array([file.num_bytes.get(name, 0.0) for file in measured], float)
        if values.any():
            num_bytes, errors = scaled_total(sample, values, column)
            sizes[name] = Range.of(num_bytes, deviation_of(sample, errors))
            all_bytes, all_errors = all_bytes + num_bytes, all_errors + errors
    in_part = float(sample.weights @ np.array([file.deviation**2 for file in measured], float))
    times = np.array([file.cpu_seconds for file in measured], float)
    cpu_seconds, errors = scaled_total(sample, times, work_of(columns))
    cpu_seconds += start_seconds * jobs
    cpu = Range.of(cpu_seconds, math.hypot(deviation_of(sample, errors), _TIME_ERROR * cpu_seconds))
    return Estimate(
        num_sampled=len(measured),
        num_failed=sum(bool(file.failures) for file in measured),
        failures=tuple(dict.fromkeys(message for file in measured for message in file.failures)),
        num_unreadable=files.num_unreadable,
        jobs=jobs,
        sizes=sizes,
        num_bytes=Range.of(float(round(all_bytes)), math.hypot(deviation_of(sample, all_errors), in_part**0.5)),
        cpu_seconds=cpu,
        elapsed_seconds=cpu.scaled(1 / jobs),
    )
