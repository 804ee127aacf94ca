"""``plan``: estimates what a build will take, by building a sample of the index for real."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from chordcache.building.build_options import BuildOptions
from chordcache.building.build_plan import BuildPlan, make_plan
from chordcache.building.requested import request_of
from chordcache.choices import PLAN_FILES
from chordcache.config.config import Config, config_from_json
from chordcache.config.presets import preset_names
from chordcache.config.yaml_files import read_config
from chordcache.engine import pool, terminal
from chordcache.engine.choice import check_jobs
from chordcache.engine.signals import stop_signals
from chordcache.errors import UsageError
from chordcache.index.index_files import Index
from chordcache.index.scan import scanned
from chordcache.tools import plan_units
from chordcache.tools.plan_estimate import DEVIATIONS, Estimate, ratio, total
from chordcache.tools.plan_sample import Group, Measured, Part, Settings, measure, parts_of
from chordcache.tools.plan_units import Population, Sample

_TIME_ERROR = 0.1
"""Standard error of a CPU time, as a part of it: it depends on what else the machine does"""

_NUM_COMPARED = 6
"""Number of files of the sample that are built again with each preset"""

_LEAST_SAVING = 0.01
"""Smallest part of the size or the time that a preset has to save in order to be listed"""

_FILES_OF_A_CACHE = 7
"""The folder of the cache, its header, index, catalog, lock and run log, and its folder for partial files"""

_HOUR = 3600.0


@dataclass(frozen=True)
class PlanOptions:
    """The options of ``plan_build``.

    Raises
    ------
    UsageError
        If a number is not positive.
    """

    num_sampled: int = PLAN_FILES
    """Number of files that are built, at most 30 seconds of each"""
    seed: int = 0
    """Seed of the choice of these files"""
    scratch: str | None = None
    """Folder for temporary files, by default that of the system. One file at a time is in it"""
    budget_bytes: float | None = None
    """[bytes] that the cache may have"""
    budget_hours: float | None = None
    """[hours] that the build may take"""
    build: BuildOptions = field(default_factory=BuildOptions)
    """Options of the build"""

    def __post_init__(self) -> None:
        for name in ("num_sampled", "budget_bytes", "budget_hours"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise UsageError(f"{name}: got {value}, expected a positive number")


@dataclass(frozen=True)
class TierSize:
    """The size of the files of some features in a tier."""

    tier: str
    features: str
    """Names of the features, which share a file if there are several"""
    num_bytes: Estimate


@dataclass(frozen=True)
class Alternative:
    """The estimate with a preset, merged onto the settings of the plan."""

    preset: str
    num_bytes: Estimate
    hours: Estimate
    fits: bool
    """True if the upper end of both ranges is within the budgets"""


@dataclass(frozen=True)
class Plan:
    """The estimate of a build. Ranges are from the 10th to the 90th percentile."""

    num_videos: int
    """Rows of the index that a build will try"""
    num_unreadable: int
    """Rows that a build will not try, because the scan found an error or the file does not exist"""
    num_sampled: int
    num_failed: int
    """Files of the sample that were not cached completely"""
    jobs: int
    """Workers that the build will have"""
    num_processors: int
    """Processors of this machine"""
    sizes: tuple[TierSize, ...]
    num_bytes: Estimate
    """[bytes] of all files, with sidecars"""
    cpu_hours: Estimate
    """[hours] of CPU time of all workers"""
    hours: Estimate
    """[hours] with ``jobs`` workers on as many processors, if disks and other processes do not make them wait"""
    memory_bytes: Estimate
    """[bytes] Peak of all workers together"""
    inodes: Estimate
    fits: bool = True
    """True if the upper end of both ranges is within the budgets"""
    alternatives: tuple[Alternative, ...] = ()
    """Presets that make a cache smaller or its build shorter, the smallest cache first, if the plan does not fit"""
    failures: tuple[str, ...] = ()
    """Messages of files of the sample that failed"""

    @property
    def exit_code(self) -> int:
        """Exit code of the command: 0 if the settings fit."""
        return 0 if self.fits else 7

    def jobs_for(self, hours: float) -> int:
        """Return the number of workers, on as many processors, that end within some hours, at the end of the range."""
        return math.ceil(self.cpu_hours.high / hours)


def plan_build(
    index: str | Path | Index,
    *,
    tiers: str | Sequence[str] | None = None,
    features: str | Sequence[str] | None = None,
    config: str | Path | Config | None = None,
    jobs: int | None = None,
    roots: Mapping[str, str] | None = None,
    options: PlanOptions | None = None,
    progress: bool = False,
) -> Plan:
    """Estimate the size, the time, the memory and the inodes of a build.

    A sample of the files, chosen at random in strata of similar work, is built in a temporary folder.

    Parameters
    ----------
    index, tiers, features, config, roots, progress
        As in ``build``.
    jobs : int, optional
        Number of workers that the build will have, by default one for each processor. The sample is built with one.
    options : PlanOptions, optional
        Size of the sample, budgets, and options of the build.

    Returns
    -------
    Plan

    Raises
    ------
    UsageError, ConfigError, NotFoundError, FormatVersionError
        As in ``build``.
    NoSpaceError, WorkersDiedError, StoppedError
        As their names say.
    """
    options = options or PlanOptions()
    request = request_of(config, tiers, features, earlier=None)
    settings = Settings(
        request.config,
        tuple(request.requested),
        tuple(dict.fromkeys(name for names in request.requested.values() for name in names)),
        options.build,
        options.scratch,
    )
    check_jobs(jobs)
    if options.scratch is not None and not Path(options.scratch).is_dir():
        raise UsageError(f"scratch: got '{options.scratch}', expected a folder that exists")
    index = scanned(index, jobs=jobs, follow_symlinks=options.build.follow_symlinks, limits=options.build.limits)
    with stop_signals(), TemporaryDirectory(prefix="chordcache-plan-") as folder:
        asked = (settings.config, settings.tiers, settings.features)
        plan = make_plan(Path(folder, "cache"), index, *asked, roots=roots, options=options.build)
        return _Planning(plan, settings, options, pool.default_jobs(jobs), progress).run()


class _Planning:
    """One run of ``plan_build``."""

    def __init__(self, plan: BuildPlan, settings: Settings, options: PlanOptions, jobs: int, progress: bool) -> None:
        self._plan, self._settings, self._options, self._jobs = plan, settings, options, jobs
        self._progress = progress
        self._population: Population = plan_units.population_of(plan)
        self._sample: Sample = plan_units.choose(self._population, options.num_sampled, options.seed)
        units = plan_units.rows_of(plan, self._sample.positions.tolist())
        self._parts: list[Part] = parts_of(units, plan, settings.options.limits)
        self._measured: list[Measured] = []

    def run(self) -> Plan:
        """Build the sample, and try the presets if the estimate is not within the budgets."""
        start_seconds = 0.0
        if self._parts:
            self._measured, start_seconds = self._measure(self._parts, self._settings, "video")
        estimate = self._estimates(start_seconds)
        fits = self._fits(estimate.num_bytes, estimate.hours)
        return estimate if fits else self._with_presets(estimate)

    def _measure(self, parts: Sequence[Part], settings: Settings, unit: str) -> tuple[list[Measured], float]:
        total_builds = 1 + len(parts) + sum(bool(part.overhead) for part in parts)
        with terminal.progress_bar(total_builds, unit, shown=self._progress) as bar:
            return measure(self._plan, parts, settings, bar.update)

    def _total(self, quantity: Callable[[Measured], float], *, is_size: bool = False) -> Estimate:
        values = np.array([quantity(file) for file in self._measured], float)
        errors = np.array([quantity(file) * file.relative_error * is_size for file in self._measured], float)
        if not len(values):
            return Estimate(0.0, 0.0, 0.0)
        return total(self._population.drivers, self._population.work, self._sample, values, errors)

    def _estimates(self, start_seconds: float) -> Plan:
        groups = dict.fromkeys(group for file in self._measured for group in file.num_bytes)
        sizes = [TierSize(*group, self._total(partial(_bytes_of, group), is_size=True)) for group in groups]
        everything = self._total(lambda each: sum(each.num_bytes.values()) + each.sidecar_bytes, is_size=True)
        in_tasks = self._total(lambda each: each.cpu_seconds)
        cpu = _with_error(in_tasks, start_seconds * self._jobs, _TIME_ERROR)
        num_others = (self._population.num_folders + 1) * (1 + len(self._settings.tiers)) + _FILES_OF_A_CACHE
        inodes = self._total(lambda each: each.num_files)
        peaks = sorted(file.peak_bytes for file in self._measured) or [0]
        num_videos = self._population.num_rows - self._population.num_unreadable
        return Plan(
            num_videos=num_videos,
            num_unreadable=self._population.num_unreadable,
            num_sampled=len(self._measured),
            num_failed=sum(bool(file.failures) for file in self._measured),
            jobs=self._jobs,
            num_processors=pool.default_jobs(),
            sizes=tuple(sizes),
            num_bytes=everything,
            cpu_hours=cpu.scaled(1 / _HOUR),
            hours=cpu.scaled(1 / _HOUR / self._jobs),
            memory_bytes=Estimate(*(self._jobs * float(peaks[place]) for place in (-1, len(peaks) // 2, -1))),
            inodes=Estimate(*(round(num_files) + num_others for num_files in (inodes.value, inodes.low, inodes.high))),
            failures=tuple(dict.fromkeys(message for file in self._measured for message in file.failures)),
        )

    def _fits(self, num_bytes: Estimate, hours: Estimate) -> bool:
        limits = ((num_bytes, self._options.budget_bytes), (hours, self._options.budget_hours))
        return all(limit is None or estimate.high <= limit for estimate, limit in limits)

    # Presets

    def _with_presets(self, found: Plan) -> Plan:
        """Return the plan with the presets that save something."""
        useful = [number for number, file in enumerate(self._measured) if file.num_bytes]
        by_work = sorted(useful, key=lambda number: self._parts[number].seconds)
        step = max(1.0, len(by_work) / _NUM_COMPARED)
        compared = [by_work[int((i + 0.5) * step)] for i in range(min(len(by_work), _NUM_COMPARED))]
        presets = _presets_for(self._settings) if compared else ()
        tried = [self._try(found, name, settings, compared) for name, settings in presets]
        saving = (alternative for alternative in tried if self._saves(found, alternative))
        alternatives = sorted(saving, key=lambda alternative: alternative.num_bytes.value)
        return replace(found, fits=False, alternatives=tuple(alternatives))

    def _saves(self, found: Plan, tried: Alternative) -> bool:
        pairs = (
            (found.num_bytes, tried.num_bytes, self._options.budget_bytes),
            (found.hours, tried.hours, self._options.budget_hours),
        )
        return any(
            limit is not None and before.high > limit and after.value < (1 - _LEAST_SAVING) * before.value
            for before, after, limit in pairs
        )

    def _try(self, found: Plan, preset: str, settings: Settings, compared: Sequence[int]) -> Alternative:
        """Build some files of the sample with the settings of a preset."""
        after, _ = self._measure([self._parts[number] for number in compared], settings, preset)
        before = [self._measured[number] for number in compared]
        weights = self._sample.weights[list(compared)].tolist()
        sizes = [[sum(file.num_bytes.values()) for file in side] for side in (before, after)]
        times = [[file.cpu_seconds for file in side] for side in (before, after)]
        num_bytes = found.num_bytes.scaled(ratio(weights, *sizes))
        hours = found.hours.scaled(ratio(weights, *times))
        return Alternative(preset, num_bytes, hours, self._fits(num_bytes, hours))


def _presets_for(settings: Settings) -> Iterator[tuple[str, Settings]]:
    """Yield the presets that make the same features otherwise, with the settings that they lead to."""
    before = _sections(settings)
    for name in preset_names():
        changed = replace(settings, config=config_from_json(read_config(name), settings.config))
        if _sections(changed) != before:
            yield name, changed


def _sections(settings: Settings) -> list[Any]:
    """Return the sections of the config that the features of a plan depend on."""
    config = settings.config
    names = [*(settings.features or ()), *settings.tiers]
    sections = [config.section(name) for name in names if name in config.names()]
    return [config.picture, *sections, *([config.hdf5.compression] if "hdf5" in settings.tiers else [])]


def _bytes_of(group: Group, measured: Measured) -> float:
    return measured.num_bytes.get(group, 0.0)


def _with_error(estimate: Estimate, more: float, relative_error: float) -> Estimate:
    """Return an estimate plus a known number, with a further relative error."""
    value = estimate.value + more
    deviation = math.hypot((estimate.high - estimate.value) / DEVIATIONS, relative_error * value)
    return Estimate.of(value, deviation)
