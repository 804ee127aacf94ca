"""The files of an index as the units of a sample, with what is known of each before it is decoded."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from chordcache.building.build_plan import BuildPlan
from chordcache.building.trim import may_be_cached
from chordcache.config.picture import PictureConfig
from chordcache.index.grouping import IndexRows
from chordcache.media.geometry import expected_shape
from chordcache.records import VideoRecord
from chordcache.storage import layout

DRIVERS = ("cached_mpx", "source_mpx", "cached_frames", "sound_seconds", "segment_seconds", "file_mib", "items")
"""Numbers that the size and the time of a build depend on. Pixels are in millions, summed over frames"""

_MPX = 1e6
_MIB = 1 << 20


@dataclass(frozen=True)
class Unit:
    """One file of an index, with the rows that name it. A build decodes it once."""

    rows: tuple[VideoRecord, ...]
    source_path: str
    size: int
    """[bytes] of the file"""


@dataclass(frozen=True)
class Population:
    """All files of an index that can be built.

    Attributes
    ----------
    drivers : np.ndarray [shape=(N, k), dtype=float64]
        For each file its ``DRIVERS``, as far as the index has them.
    num_rows, num_unreadable : int
        Rows of the index, and those of them that a build will not try.
    num_folders : int
        Folders of sidecars that the cache will have. Each tier has as many.
    """

    drivers: np.ndarray
    num_rows: int
    num_unreadable: int
    num_folders: int

    @property
    def work(self) -> np.ndarray:
        """Share of each file in the whole build, roughly [shape=(N,), dtype=float64, sum 1]."""
        shares = self.drivers / np.maximum(self.drivers.sum(axis=0), 1e-12)
        columns = [DRIVERS.index(name) for name in ("cached_mpx", "source_mpx")]
        if not self.drivers[:, columns].any():  # a hand-written list
            columns = [DRIVERS.index(name) for name in ("file_mib", "segment_seconds")]
        used = [column for column in columns if self.drivers[:, column].any()]
        work = shares[:, used].mean(axis=1) if used else np.zeros(len(shares))
        return np.asarray(0.98 * work / max(float(work.sum()), 1e-12) + 0.02 / max(1, len(work)))

    @property
    def density(self) -> np.ndarray:
        """Bytes of each file for a pixel, or for a second [shape=(N,), dtype=float64]: detailed pictures have more."""
        length = np.maximum(
            self.drivers[:, DRIVERS.index("source_mpx")], self.drivers[:, DRIVERS.index("items")] * 1e-3
        )
        return np.asarray(self.drivers[:, DRIVERS.index("file_mib")] / length)


def units_of(plan: BuildPlan) -> Iterator[Unit]:
    """Yield the files of a plan's index that can be built."""
    with IndexRows(plan.index) as rows:
        for group in rows.by_file():
            readable = tuple(
                record for _, record in group if record.error is None or may_be_cached(record, plan.on_damage)
            )
            if not readable:
                continue
            path = os.path.join(plan.roots[readable[0].root], readable[0].path)
            size = _size(readable[0], path)
            if size is not None:
                yield Unit(readable, path, size)


def _size(record: VideoRecord, path: str) -> int | None:
    """Return the size of a file, or None if a hand-written index names a file that does not exist."""
    if record.identity is not None:
        return record.identity.size
    try:
        return os.stat(path).st_size
    except OSError:
        return None


def population_of(plan: BuildPlan) -> Population:
    """Read the index of a plan. Files that the index has no facts of get those of the others, by their size."""
    rows, num_readable = [], 0
    folders: set[str] = set()
    for unit in units_of(plan):
        rows.append(_drivers(unit, plan.config.picture))
        num_readable += len(unit.rows)
        folders.update(layout.sidecar_file(layout.key_of(record)).split("/")[1] for record in unit.rows)
    drivers = np.asarray(rows, np.float64).reshape(-1, len(DRIVERS))
    return Population(_imputed(drivers), len(plan.index), len(plan.index) - num_readable, len(folders))


def _imputed(drivers: np.ndarray) -> np.ndarray:
    sizes = drivers[:, DRIVERS.index("file_mib")]
    for column in range(drivers.shape[1]):
        values = drivers[:, column]
        known = ~np.isnan(values)
        ratio = values[known].sum() / max(sizes[known].sum(), 1e-12)
        values[~known] = ratio * sizes[~known]
    return drivers


def _drivers(unit: Unit, picture: PictureConfig) -> tuple[float, ...]:
    items = float(len(unit.rows))
    listed = sum(_listed_seconds(record) for record in unit.rows)
    first, size = unit.rows[0], unit.size / _MIB
    length = length_of(first)
    if length is None or first.header is None:
        return (*(float("nan"),) * 4, listed, size, items)
    seconds, frames = length
    parts = [part_of(record, seconds, frames) for record in unit.rows]
    source = first.header.display_width * first.header.display_height
    kept = frames if picture.fps is None else min(frames, seconds * picture.fps)
    cached_frames = cached_pixels = 0.0
    for part in parts:
        width, height, taken = expected_shape(
            picture, first.header.display_width, first.header.display_height, part * kept
        )
        cached_frames += taken
        cached_pixels += taken * width * height
    decoded = cached_frames / max(kept, 1e-12)  # in files, of which several items may decode the same part
    sound = decoded * seconds if first.audio is not None else 0.0
    mpx = (cached_pixels / _MPX, decoded * frames * source / _MPX)
    return (*mpx, cached_frames, sound, listed, size * min(1.0, sum(parts)), items)


def length_of(record: VideoRecord) -> tuple[float, float] | None:
    """Return the seconds and the number of frames of a record's file, or None if the index does not have them."""
    if record.packets is not None:
        return max(record.packets.duration_seconds, 1e-3), float(record.packets.num_frames)
    header = record.header
    if header is None or not header.header_duration_seconds or not header.average_fps:
        return None
    return header.header_duration_seconds, header.header_duration_seconds * header.average_fps


def part_of(record: VideoRecord, seconds: float, frames: float) -> float:
    """Return the part of its file that a row names [0 to 1]."""
    segment = record.segment
    if segment is None:
        return 1.0
    if segment.start_frame is not None or segment.end_frame is not None:
        stop = frames if segment.end_frame is None else min(segment.end_frame, frames)
        return max(0.0, stop - (segment.start_frame or 0)) / max(frames, 1.0)
    end = seconds if segment.end_seconds is None else min(segment.end_seconds, seconds)
    return max(0.0, end - (segment.start_seconds or 0.0)) / seconds


def _listed_seconds(record: VideoRecord) -> float:
    segment = record.segment
    if segment is None or segment.end_seconds is None:
        return 0.0
    return max(0.0, segment.end_seconds - (segment.start_seconds or 0.0))


# The sample


@dataclass(frozen=True)
class Sample:
    """Some files of a population, chosen at random within strata of similar work.

    Attributes
    ----------
    positions : np.ndarray [shape=(n,), dtype=int64]
        Numbers of the files, ascending.
    weights : np.ndarray [shape=(n,), dtype=float64]
        Number of files of the population that each stands for.
    strata : np.ndarray [shape=(n,), dtype=int64]
        Number of the stratum of each.
    """

    positions: np.ndarray
    weights: np.ndarray
    strata: np.ndarray


def choose(population: Population, num_sampled: int, seed: int = 0) -> Sample:
    """Choose files, more of those with much work. A file with more work than a stratum is always in the sample.

    Strata have equal work. In each, files are taken at equal distances in the order of ``density``.
    """
    work, density = population.work, population.density
    order = np.argsort(-work, kind="stable")
    num_sampled = min(num_sampled, len(work))
    num_certain, left = 0, float(work.sum())
    while num_certain < num_sampled and work[order[num_certain]] * (num_sampled - num_certain) >= left:
        left -= float(work[order[num_certain]])
        num_certain += 1
    chosen = [(int(position), 1.0, number) for number, position in enumerate(order[:num_certain])]
    rng = np.random.default_rng(seed)
    for number, (stratum, size) in enumerate(
        _strata(order[num_certain:], work, num_sampled - num_certain), num_certain
    ):
        stratum = stratum[np.argsort(density[stratum], kind="stable")]
        places = ((np.arange(size) + rng.random()) * len(stratum) / size).astype(int)
        chosen += [(int(position), len(stratum) / size, number) for position in stratum[places]]
    chosen.sort()
    positions, weights, strata = zip(*chosen, strict=True) if chosen else ((), (), ())
    return Sample(np.asarray(positions, np.int64), np.asarray(weights, float), np.asarray(strata, np.int64))


def _strata(order: np.ndarray, work: np.ndarray, num_sampled: int) -> Iterator[tuple[np.ndarray, int]]:
    """Yield strata of equal work, and the number of files to take of each: two or three."""
    num_strata = max(1, num_sampled // 2)
    shares = np.cumsum(work[order])
    while num_sampled and len(order):
        share = shares[-1] - (shares[0] - work[order[0]])
        size = -(-num_sampled // num_strata)
        reach = shares[0] - work[order[0]] + share / num_strata
        stop = max(size, int(np.searchsorted(shares, reach)) + 1)
        if num_strata == 1 or len(order) - stop < num_sampled - size:
            yield order, num_sampled
            return
        yield order[:stop], size
        order, shares = order[stop:], shares[stop:]
        num_sampled, num_strata = num_sampled - size, num_strata - 1


def rows_of(plan: BuildPlan, positions: Sequence[int]) -> list[Unit]:
    """Return the units at some positions, ascending."""
    wanted = set(positions)
    return [unit for number, unit in enumerate(units_of(plan)) if number in wanted]
