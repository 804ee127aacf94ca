"""``build --dry-run``: what a build would make and why, and an estimate of its size and time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chordcache.arguments import check_at_least, names_arguments
from chordcache.building.build_options import BuildOptions
from chordcache.building.build_plan import ArtefactTask, BuildPlan
from chordcache.building.build_task import BuildTask, differences, planned_files
from chordcache.building.estimate import ROW, Estimate, Videos, build_pieces, estimate_of
from chordcache.building.fix_commands import repairable
from chordcache.building.planning import make_plan
from chordcache.building.prune import leaving
from chordcache.choices import SAMPLE_ITEMS
from chordcache.config.config import Config, config_to_json
from chordcache.config.yaml_files import ConfigFiles
from chordcache.engine import pool
from chordcache.engine.choice import Engine, engine_of
from chordcache.engine.display import Display, display_of
from chordcache.features.item_fields import fits
from chordcache.index.grouping import IndexRows
from chordcache.index.index_files import Index
from chordcache.index.scan import scanned
from chordcache.media.versions import tool_versions
from chordcache.records import VideoRecord
from chordcache.storage import layout
from chordcache.storage.find_sidecars import Sidecars
from chordcache.storage.quarantine import Quarantine
from chordcache.storage.sidecar import Sidecar


@dataclass(frozen=True)
class Reason:
    """One reason to change something about cached videos."""

    kind: str
    """Such as "new" or "settings changed" """
    detail: str = ""
    """The feature, the parameter or the file in question"""


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
    """Number of cached videos that the index does not name, and that would stay"""
    losses: Mapping[str, int]
    """As in ``RunSummary``"""
    reasons: Mapping[Reason, int]
    """Reason to the number of videos, the most frequent one first"""
    features: Mapping[str, Mapping[str, Mapping[str, Any] | None]]
    """Tier to the features that would be made, with their parameters"""
    roots: Mapping[str, str]
    """Root label to the folder of the sources"""
    config: Mapping[str, Any]
    estimate: Estimate | None = None
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
    index, cache, tiers, features, config, jobs, roots, options
        As in ``build``.
    sample : int
        Number of videos or segments to build with one worker in a temporary folder, at most 15 seconds of each. Their
        bytes and CPU time are scaled to those of the build. 0 builds none.
    progress : bool or Display
        True to show a bar on a terminal while the sample is built.

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

    index = scanned(index, plan_of, follow_symlinks=options.follow_symlinks, limits=options.limits)
    plan = plan_of(index)
    sidecars, videos = Sidecars(folder), Videos()
    states, reasons, losses = Counter[str](), Counter[Reason](), Counter[str]()
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
                    reasons.update(_reasons(task, quarantine, cached))
                if task.state == "missing" and task.item.identity is not None:
                    videos.add(task, task.item.identity.size / len(tasks))
        estimate = None
        if sample and len(videos.table):
            places = videos.sample(sample)
            numbers = videos.table[places, ROW].astype(int).tolist()
            chosen = ([row for row in of_file if row[0] in numbers] for of_file in rows.by_file())
            files = planned_files(plan, filter(None, chosen), quarantine, options)
            tasks_by_row = {task.row: task for tasks in files for task in tasks}
            sampled = [tasks_by_row[number] for number in numbers]
            pieces, start_seconds = build_pieces(sampled, options.limits, shown=display_of(progress).progress)
            estimate = estimate_of(plan, videos, places, pieces, start_seconds, num_jobs)
    reasons[Reason("leave the cache, as --prune asks")] = len(leaves.videos)
    reasons.update({Reason(f"lose {name}, as --drop asks"): count for name, count in leaves.features.items()})
    return DryRun(
        index,
        str(plan.cache),
        num_inputs=len(rows.keys),
        num_missing=states["missing"],
        num_up_to_date=states["up to date"],
        num_failed=states["failed"],
        num_unnamed=0 if options.prune is not None else len(cached - rows.keys),
        losses=dict(losses),
        reasons={reason: count for reason, count in reasons.most_common() if count},
        features={
            tier: {name: dict(spec.params) if (spec := plan.specs[name]) else None for name in names}
            for tier, names in plan.requested.items()
        },
        roots=plan.roots,
        config=config_to_json(plan.config),
        estimate=estimate,
    )


def _reasons(task: BuildTask, quarantine: Quarantine, cached: Container[str]) -> Iterator[Reason]:
    """Yield the reason to do something about a video, if there is one. ``cached`` has the keys of all sidecars."""
    previous, record = task.previous, task.item
    if task.state == "up to date":
        if task.described != previous:
            yield Reason("label or caption")
    elif previous is None and cached and task.key in cached:
        yield Reason("file lost", "the sidecar is damaged")
    elif previous is None and record.identity is None:
        yield Reason("source missing")
    elif previous is None:
        failure = quarantine.get(task.key) if quarantine else None
        yield Reason("failed before", failure.cause) if failure else Reason("new")
    elif previous.source != record.identity:
        yield Reason("source changed")
    else:
        yield _reason_of_artefact(previous, record, task.artefacts[0])


def _reason_of_artefact(sidecar: Sidecar, record: VideoRecord, artefact: ArtefactTask) -> Reason:
    for spec in artefact.features:
        info = sidecar.feature(spec.name, artefact.tier)
        if info is None:
            return Reason("not requested before", f"{spec.name} in {artefact.tier}")
        if info.fingerprint != spec.fingerprint:
            changed = ", ".join(differences(spec.name, info.params, spec.params))
            return Reason("settings changed", changed or f"{spec.name} is made by another version")
        if not fits(info, record):
            return Reason("label or caption", f"{spec.name} depends on {', '.join(info.uses)}")
    return Reason("file lost", f"{', '.join(artefact.names)} in {artefact.tier}")
