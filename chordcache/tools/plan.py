"""``plan``: the estimate of a dry run into a new cache, and the presets that fit a budget."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from chordcache.building.build_options import BuildOptions
from chordcache.building.build_plan import artefacts_of, resolve_features
from chordcache.building.dry_run import DryRun, build_sample, dry_run
from chordcache.building.estimate import FileSample, Measured, Range
from chordcache.choices import PLAN_FILES
from chordcache.config.config import config_from_json
from chordcache.config.presets import preset_names
from chordcache.config.yaml_files import read_config
from chordcache.engine import terminal
from chordcache.engine.limits import Limits
from chordcache.errors import UsageError
from chordcache.index.index_files import Index
from chordcache.temporary import temporary_folder

_NUM_COMPARED = 6
"""Number of files of the sample that are built again with each preset"""

_LEAST_SAVING = 0.01
"""Smallest part of the size or the time that a preset has to save in order to be listed"""


@dataclass(frozen=True)
class Budget:
    """The limits of a cache and of its build. Raises ``UsageError`` if one is not positive."""

    budget_bytes: float | None = None
    """[bytes] that the cache may have"""
    budget_hours: float | None = None
    """[hours] that the build may take"""

    def __post_init__(self) -> None:
        for name in ("budget_bytes", "budget_hours"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise UsageError(f"{name}: got {value}, expected a positive number")

    def excess(self, num_bytes: Range, seconds: Range) -> list[int]:
        """Return 0 if the upper end of a size exceeds its limit, and 1 if that of a time does."""
        limits = (self.budget_bytes, self.budget_hours)
        values = (num_bytes.high, seconds.high / 3600)
        return [i for i, limit in enumerate(limits) if limit is not None and values[i] > limit]


@dataclass(frozen=True)
class Alternative:
    """The estimate with a preset, merged onto the settings of the plan."""

    preset: str
    num_bytes: Range
    elapsed_seconds: Range
    fits: bool
    """True if the upper ends of both ranges are within the budget"""


@dataclass(frozen=True)
class Plan:
    """The estimate of a build, and whether it is within the budget."""

    dry_run: DryRun
    fits: bool = True
    """True if the upper ends of both ranges are within the budget"""
    alternatives: tuple[Alternative, ...] = ()
    """Presets that make a cache smaller or its build shorter, the smallest cache first, if the plan does not fit"""


def plan_build(
    index: str | Path | Index,
    *,
    sample: int = PLAN_FILES,
    budget: Budget | None = None,
    options: BuildOptions | None = None,
    progress: bool = False,
    **arguments: Any,
) -> Plan:
    """Estimate a build into a new cache, and try the presets if the estimate exceeds a budget.

    ``index``, ``sample``, ``options``, ``progress`` and the further ``arguments`` ``tiers``, ``features``, ``config``,
    ``jobs`` and ``roots`` are those of ``dry_run``. It also raises as ``dry_run`` does.
    """
    budget, options = budget or Budget(), options or BuildOptions()
    with temporary_folder() as folder:
        result = dry_run(index, folder / "cache", options=options, sample=sample, progress=progress, **arguments)
    if result.estimate is None or result.sample is None:
        return Plan(result)
    num_bytes, seconds = result.estimate.num_bytes, result.estimate.elapsed_seconds
    excess = budget.excess(num_bytes, seconds)
    alternatives = []
    for name, ratios in _presets(result, result.sample, options.limits, progress) if excess else ():
        if any(ratios[i] < 1 - _LEAST_SAVING for i in excess):
            ranges = num_bytes.scaled(ratios[0]), seconds.scaled(ratios[1])
            alternatives.append(Alternative(name, *ranges, fits=not budget.excess(*ranges)))
    alternatives.sort(key=lambda alternative: alternative.num_bytes.value)
    return Plan(result, not excess, tuple(alternatives))


def _presets(
    result: DryRun, sample: FileSample, limits: Limits, shown: bool
) -> Iterator[tuple[str, tuple[float, float]]]:
    """Yield the presets that make the same features otherwise, with their size and CPU time as parts of the plan's."""
    plan = result.plan
    useful = [number for number, file in enumerate(sample.measured) if file.num_bytes]
    compared = useful[:: max(1, len(useful) // _NUM_COMPARED)]
    weights = sample.weights[compared]
    before = weights @ _numbers([sample.measured[number] for number in compared])
    names = preset_names() if compared else ()
    with terminal.progress_bar(len(names), "preset", shown=shown, name="presets") as bar:
        for name in names:
            config = config_from_json(read_config(name), plan.config)
            artefacts = artefacts_of(plan.requested, resolve_features(plan.requested, config), config)
            if artefacts != plan.artefacts:
                changes: dict[str, Any] = {"artefacts": artefacts, "picture": config.picture}
                files = [[replace(task, **changes) for task in sample.files[number]] for number in compared]
                after, _ = build_sample(files, limits, shown=False)
                size, time = (weights @ _numbers(after) / np.maximum(before, 1e-12)).tolist()
                yield name, (size, time)
            bar.update()


def _numbers(measured: Sequence[Measured]) -> np.ndarray:
    """Return the bytes and the CPU time of files [shape=(n, 2), dtype=float64]."""
    return np.array([(sum(file.num_bytes.values()), file.cpu_seconds) for file in measured], float)
