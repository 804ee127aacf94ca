"""``build --dry-run``: what a build would make and why, and an estimate of its size and time."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from chordcache.arguments import check_at_least, names_arguments
from chordcache.building.build_options import BuildOptions
from chordcache.building.build_plan import BuildPlan
from chordcache.building.build_task import BuildTask, differences, planned_files
from chordcache.building.estimate import AMOUNTS, Estimate, amounts_of, build_sample, estimate_of, sample_of
from chordcache.building.fix_commands import repairable
from chordcache.building.planning import make_plan
from chordcache.building.prune import leaving
from chordcache.choices import SAMPLE_ITEMS
from chordcache.config.config import Config
from chordcache.config.yaml_files import ConfigFiles
from chordcache.engine import pool
from chordcache.engine.choice import Engine, engine_of
from chordcache.engine.display import Display, display_of
from chordcache.features.item_fields import fits
from chordcache.index.grouping import IndexRows
from chordcache.index.index_files import Index
from chordcache.index.scan import scanned
from chordcache.media.versions import tool_versions
from chordcache.storage import layout
from chordcache.storage.find_sidecars import Sidecars
from chordcache.storage.quarantine import Quarantine


@dataclass(frozen=True)
class DryRun:
    """The result of ``dry_run``: what a build would do."""

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
    """The same as in ``RunSummary``. So is ``num_unnamed``"""
    reasons: Mapping[str, int]
    """Reason to change something, such as "new" or "settings changed (crf)", to the number of videos, the most frequent
    one first"""
    features: Mapping[str, Mapping[str, Mapping[str, Any] | None]]
    """Tier to the features that would be made, with their parameters"""
    roots: Mapping[str, str]
    """Root label to the folder of the sources"""
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
    """Return what ``build`` with the same arguments would do. It changes nothing, and needs no lock.

    Parameters
    ----------
    index, cache, tiers, features, config, jobs, roots, options, progress
        As in ``build``.
    sample : int
        Number of videos or segments to build with one worker in a temporary folder. Their bytes and CPU
        time are scaled to those of the build. 0 builds none.

    Raises
    ------
    UsageError, NotFoundError, StorageError, StoppedError
        As in ``build``.
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
        estimate = None
        if sample and table:
            amounts = np.array(table).reshape(-1, len(AMOUNTS) + 1)
            places, weights = sample_of(amounts, sample)
            numbers = dict.fromkeys(amounts[places, -1].astype(int).tolist())
            some = ([row for row in of_file if row[0] in numbers] for of_file in rows.by_file())
            files = planned_files(plan, filter(None, some), quarantine, options)
            by_row = {task.row: task for tasks in files for task in tasks}
            shown = display_of(progress).progress
            measured = build_sample([by_row[row] for row in numbers], options.limits, shown=shown)
            estimate = estimate_of(amounts, places, weights, measured, num_jobs)
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
        features={
            tier: {name: dict(spec.params) if (spec := plan.specs[name]) else None for name in names}
            for tier, names in plan.requested.items()
        },
        roots=plan.roots,
        estimate=estimate,
    )


def _reason(task: BuildTask, quarantine: Quarantine, cached: Container[str]) -> str:
    """Return the reason to do something about a video, or "". ``cached`` has the keys of all sidecars."""
    sidecar, record = task.previous, task.item
    if task.state == "up to date":
        return "" if task.described == sidecar else "label or caption"
    if sidecar is None:
        if task.key in cached:
            return "file lost (the sidecar is damaged)"
        if record.identity is None:
            return "source missing"
        failure = quarantine.get(task.key)
        return f"failed before ({failure.cause})" if failure else "new"
    if sidecar.source != record.identity:
        return "source changed"
    artefact = task.artefacts[0]
    for spec in artefact.features:
        info = sidecar.feature(spec.name, artefact.tier)
        if info is None:
            return f"not requested before ({spec.name} in {artefact.tier})"
        if info.fingerprint != spec.fingerprint:
            changed = ", ".join(differences(spec.name, info.params, spec.params))
            return f"settings changed ({changed or f'{spec.name} is made by another version'})"
        if not fits(info, record):
            return f"label or caption ({spec.name} depends on {', '.join(info.uses)})"
    return f"file lost ({', '.join(artefact.names)} in {artefact.tier})"
