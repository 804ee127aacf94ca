"""``build --dry-run``: what a build would make and why, and its size and time, estimated from some of its videos."""

from __future__ import annotations

import time
from array import array
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from chordcache.arguments import check_at_least, names_arguments
from chordcache.building.build_options import BuildOptions
from chordcache.building.build_plan import BuildPlan
from chordcache.building.build_task import BuildTask, differences, planned_files
from chordcache.building.file_build import build_file
from chordcache.building.fix_commands import repairable
from chordcache.building.planning import make_plan
from chordcache.building.prune import leaving
from chordcache.choices import SAMPLE_ITEMS
from chordcache.config.config import Config
from chordcache.config.yaml_files import ConfigFiles
from chordcache.engine import pool, terminal
from chordcache.engine.choice import Engine, engine_of
from chordcache.engine.display import Display, display_of
from chordcache.engine.limits import Limits
from chordcache.engine.signals import stop_signals
from chordcache.features.item_fields import fits
from chordcache.index.grouping import IndexRows
from chordcache.index.index_files import Index
from chordcache.index.scan import scanned
from chordcache.media.geometry import expected_shape
from chordcache.media.versions import tool_versions
from chordcache.storage import layout, opener
from chordcache.storage.find_sidecars import Sidecars
from chordcache.storage.quarantine import Failure, Quarantine
from chordcache.storage.sidecar import files_of
from chordcache.temporary import temporary_folder

AMOUNTS = ("work", "pixels", "sound", "sidecars", "detail")
"""Amounts of a video: pixels to decode and cache, pixels to cache, seconds of sound, 1, and source bytes for a pixel"""

Measured: TypeAlias = dict[tuple[str, str], float] | Failure | pool.Crash
"""Numbers of a video that was built, by name and amount to which they are in proportion, or its failure"""


@dataclass(frozen=True)
class Estimate:
    """The size and the time of a build."""

    num_sampled: int
    failures: tuple[str, ...]
    """Message of each item of the sample that failed"""
    jobs: int
    sizes: Mapping[str, float]
    """[bytes] Files of each feature and tier, such as "frames in lmdb", and of "sidecars" """
    num_bytes: float
    cpu_seconds: float
    elapsed_seconds: float
    """[seconds] CPU time shared by ``jobs`` workers, if disks and other processes do not make them wait"""


@dataclass(frozen=True)
class DryRun:
    """The result of ``dry_run``. Its ``num_unnamed`` and ``losses`` are as in ``RunSummary``."""

    index: str | Path | Index
    """The index, or the scan of a folder: a further dry run does not scan it again"""
    cache: str
    num_inputs: int
    num_missing: int
    """Number of videos that would be built"""
    num_up_to_date: int
    num_failed: int
    """Number of inputs that failed before and would not be tried again"""
    num_unnamed: int
    losses: Mapping[str, int]
    reasons: Mapping[str, int]
    """Reason to change something, such as "new", to the number of videos, the most frequent one first"""
    features: Mapping[str, Mapping[str, Mapping[str, Any] | None]]
    """Tier to the features that would be made, with their parameters"""
    estimate: Estimate | None
    """The size and the time, if something would be built and a sample was asked for"""


@names_arguments
def dry_run(
    index: str | Path | Index,
    cache: str | Path = "cache",
    *,
    tiers: str | Sequence[str] | None = None,
    features: str | Sequence[str] | None = None,
    config: ConfigFiles | Config | None = None,
    jobs: int | Engine | None = None,
    roots: Mapping[str, str] | None = None,
    options: BuildOptions | None = None,
    sample: int = SAMPLE_ITEMS,
    progress: bool | Display = False,
) -> DryRun:
    """Return what ``build`` with the same arguments would do, and raise as it does. Change nothing, and need no lock.

    Parameters
    ----------
    sample : int
        Number of videos or segments to build with one worker in a temporary folder. Their bytes and CPU
        time are scaled to those of the build. 0 builds none.
    """
    check_at_least(0, sample=sample)
    folder, num_jobs = layout.cache_folder(cache), pool.default_jobs(engine_of(jobs).jobs)
    options = options or BuildOptions()

    def plan_of(index: str | Path | Index) -> BuildPlan:
        return make_plan(folder, index, config, tiers, features, roots=roots, options=options)

    links = options.follow_symlinks
    index = scanned(index, plan_of, jobs=jobs, follow_symlinks=links, limits=options.limits, progress=progress)
    plan, sidecars, table = plan_of(index), Sidecars(folder), array("d")
    states, reasons, losses = Counter[str](), Counter[str](), Counter[str]()
    estimate = None
    with IndexRows(plan.index) as rows:
        cached = set(sidecars.sorted_keys())
        leaves = leaving(sidecars, options, rows.keys)
        with repairable(folder):
            quarantine = Quarantine(folder, tool_versions())
        for tasks in planned_files(plan, rows.by_file(), quarantine, options):
            for task in tasks:
                states[task.state] += 1
                if task.state != "failed":
                    losses.update(task.losses)
                    reasons[_reason(task, quarantine, cached)] += 1
                if task.state == "missing" and task.item.identity is not None:
                    table.extend((*amounts_of(task, task.item.identity.size / len(tasks)), task.row))
        if sample and table:
            amounts = np.array(table).reshape(-1, len(AMOUNTS) + 1)
            places, weights = sample_of(amounts, sample)
            numbers = set(amounts[places, -1].tolist())
            chosen = ([row for row in file if row[0] in numbers] for file in rows.by_file())
            files = planned_files(plan, filter(None, chosen), quarantine, options)  # in the order of the places
            measured = build_sample(list(chain.from_iterable(files)), options.limits, display_of(progress))
            estimate = estimate_of(amounts, places, weights, measured, num_jobs)
    params = {name: dict(spec.params) if spec else None for name, spec in plan.specs.items()}
    reasons["leave the cache, as --prune asks"] = len(leaves.videos)
    reasons.update({f"lose {name}, as --drop asks": count for name, count in leaves.features.items()})
    return DryRun(
        index,
        str(plan.cache),
        num_inputs=len(rows.keys),
        num_missing=states["missing"],
        num_up_to_date=states["up to date"],
        num_failed=states["failed"],
        num_unnamed=0 if options.prune is not None else len(cached - rows.keys),
        losses=dict(losses),
        reasons={reason: count for reason, count in reasons.most_common() if reason and count},
        features={tier: {name: params[name] for name in names} for tier, names in plan.requested.items()},
        estimate=estimate,
    )


def _reason(task: BuildTask, quarantine: Quarantine, cached: Container[str]) -> str:
    """Return the reason to do something about a video, or "". ``cached`` has the keys of all sidecars."""
    sidecar, item = task.previous, task.item
    if sidecar is None:
        failure = quarantine.get(task.key)
        new = "source missing" if item.identity is None else f"failed before ({failure.cause})" if failure else "new"
        return "file lost (the sidecar is damaged)" if task.key in cached else new
    if not task.artefacts:
        return "" if task.described == sidecar else "label or caption"
    if sidecar.source != item.identity:
        return "source changed"
    artefact = task.artefacts[0]
    for spec in artefact.features:
        info = sidecar.feature(spec.name, artefact.tier)
        if info is None:
            return f"not requested before ({spec.name} in {artefact.tier})"
        if info.fingerprint != spec.fingerprint:
            return f"settings changed ({differences(info, spec)})"
        if not fits(info, item):
            return f"label or caption ({spec.name} depends on {', '.join(info.uses)})"
    return f"file lost ({', '.join(artefact.names)} in {artefact.tier})"


def amounts_of(task: BuildTask, num_bytes: float) -> tuple[float, ...]:
    """Return the ``AMOUNTS`` of a video, whose source has a number of bytes.

    One of unknown length counts as one of 1 Mbit/s with 10 pixels for each byte.
    """
    header, seconds = task.item.header, task.item.known_seconds
    pixels, decoded, sound_seconds = 10 * num_bytes, 10 * num_bytes, num_bytes / 125_000
    if header is not None and header.average_fps and seconds is not None:
        size, fps = (header.display_width, header.display_height), header.average_fps
        cached_fps = min(fps, task.picture.fps or fps)
        width, height, num_frames = expected_shape(task.picture, *size, seconds * cached_fps)
        pixels, decoded = num_frames * width * height, num_frames / cached_fps * fps * size[0] * size[1]
        sound_seconds = num_frames / cached_fps if task.item.audio else 0.0
    work = pixels + decoded + 1e6  # to decode and to encode a pixel take about as long
    return work, pixels, sound_seconds, 1.0, num_bytes / work


def sample_of(table: np.ndarray, num_videos: int, offset: float = 0.637) -> tuple[np.ndarray, np.ndarray]:
    """Choose videos, and return their places in a table of amounts, with the weight of each.

    They have equal distances of work, in the order of detail, which takes bytes in the cache too. ``offset`` is the
    place of each in its part of the work, from 0 to 1.
    Source: Sarndal, Swensson and Wretman, "Model Assisted Survey Sampling", 1992, section 3.6.2.
    """
    if len(table) <= num_videos:
        return np.arange(len(table)), np.ones(len(table))
    work = table[:, AMOUNTS.index("work")]
    order = np.argsort(table[:, AMOUNTS.index("detail")], kind="stable")
    steps = (np.arange(num_videos) + offset) / num_videos * work.sum()
    chosen = order[np.searchsorted(np.cumsum(work[order])[:-1], steps, side="right")]
    places, counts = np.unique(chosen, return_counts=True)  # one with much work may be chosen several times
    return places, counts / work[places]


def build_sample(tasks: Sequence[BuildTask], limits: Limits, display: Display) -> list[Measured]:
    """Build videos with one worker, in a temporary folder."""
    bar_of = terminal.progress_bar(len(tasks) + 1, "item", shown=display.progress, name="sample")
    measured: list[Measured] = []
    with stop_signals(), temporary_folder() as folder, bar_of as bar:
        alone = [replace(task, cache=folder, previous=None, kept=()) for task in tasks]
        # The first is built twice: its first build imports what the features need
        with closing(pool.run(_build, [alone[0], *alone], jobs=1, limits=limits, ordered=True)) as results:
            for _, result in results:
                measured.append(result)
                bar.update()
    return measured[1:]


def _build(task: BuildTask) -> dict[tuple[str, str], float] | Failure:
    """Build a video, measure CPU time [seconds] and sizes [bytes], and remove its files."""
    started = time.process_time()
    (outcome,) = build_file([task])
    if isinstance(outcome, Failure):
        return outcome
    seconds = time.process_time() - started
    numbers = {("CPU time", "work"): seconds, ("sidecars", "sidecars"): len(outcome.to_line()) + 1.0}
    for artefact in task.artefacts:
        infos = [info for name in artefact.names if (info := outcome.feature(name, artefact.tier))]
        amount = "sound" if all(spec.is_of_sound for spec in artefact.features) else "pixels"
        for file in files_of(infos):
            numbers[f"{', '.join(artefact.names)} in {artefact.tier}", amount] = float(file.num_bytes)
            opener.remove(task.cache, file.name)
    return numbers


def estimate_of(
    table: np.ndarray, places: np.ndarray, weights: np.ndarray, measured: Sequence[Measured], jobs: int
) -> Estimate:
    """Scale the numbers of a sample to all videos, in proportion to amounts whose totals are known."""
    failures = tuple(result.message for result in measured if not isinstance(result, dict))
    built = [result if isinstance(result, dict) else {} for result in measured]
    sizes: dict[str, float] = {}
    for name, amount in dict.fromkeys(key for numbers in built for key in numbers):
        amounts = table[:, AMOUNTS.index(amount)]
        values = [numbers.get((name, amount), 0.0) for numbers in built]
        sizes[name] = float(amounts.sum() * (weights @ values) / max(weights @ amounts[places], 1e-9))
    cpu_seconds = sizes.pop("CPU time", 0.0)
    return Estimate(len(places), failures, jobs, sizes, sum(sizes.values()), cpu_seconds, cpu_seconds / jobs)
