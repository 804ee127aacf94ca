"""``build --dry-run``: what a build would do and why, and an estimate of its size and time from a sample."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from chordcache.arguments import names_arguments
from chordcache.building.build_options import BuildOptions
from chordcache.building.build_plan import ArtefactTask, BuildPlan
from chordcache.building.build_task import BuildTask, StaleFeature, differences, planned_files, stale_features
from chordcache.building.estimate import Estimate, ItemTable, build_sample, estimate_of
from chordcache.building.fix_commands import repairable
from chordcache.building.planning import make_plan
from chordcache.building.prune import leaving
from chordcache.choices import SAMPLE_ITEMS
from chordcache.config.config import Config
from chordcache.config.yaml_files import ConfigFiles
from chordcache.engine import pool
from chordcache.engine.choice import Engine, engine_of
from chordcache.engine.display import Display, display_of
from chordcache.errors import DamageError, NotFoundError, UsageError
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
    """One reason to build videos, or to rewrite their sidecars."""

    kind: str
    """"new", "source changed", "settings changed", "not requested before", "file lost", "failed before",
    or "label or caption" """
    detail: str = ""
    """The feature, the parameter or the file in question"""


@dataclass(frozen=True)
class DryRun:
    """The result of ``dry_run``: what a build would do."""

    plan: BuildPlan
    num_inputs: int
    num_missing: int
    """Number of videos that would be built"""
    num_up_to_date: int
    num_failed: int
    """Number of inputs that failed before and would not be tried again"""
    num_pruned: int = 0
    """Number of cached videos that would be dropped"""
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Feature that would leave the cache to the number of videos that have it"""
    stale: tuple[StaleFeature, ...] = ()
    """Features of cached videos that would be made again"""
    num_described: int = 0
    """Number of videos that are up to date, but for their label, caption or other columns. They are not decoded"""
    num_unnamed: int = 0
    """Number of cached videos that the index does not name, and that would stay"""
    losses: Mapping[str, int] = field(default_factory=dict)
    """As in ``RunSummary``"""
    reasons: Mapping[Reason, int] = field(default_factory=dict)
    """Reason to the number of videos, the most frequent one first"""
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
    index, cache, tiers, features, config, roots, options
        As in ``build``.
    jobs : int or Engine, optional
        Number of workers that the build will have, by default one for each processor. The sample is built with one.
    sample : int
        Number of videos or segments to build in a temporary folder, at most 15 seconds of each. Their bytes and CPU
        time are scaled to those of the build. 0 builds none.
    progress : bool or Display
        True to show a bar on a terminal while the sample is built.

    Returns
    -------
    DryRun

    Raises
    ------
    UsageError, NotFoundError
        As in ``build``.
    StorageError, StoppedError
        As their names say, while the sample is built.
    """
    folder = layout.cache_folder(cache)
    if sample < 0:
        raise UsageError(f"sample: got {sample}, expected a number of at least 0")
    num_jobs = pool.default_jobs(engine_of(jobs).jobs)
    options = options or BuildOptions()

    def plan_of(index: str | Path | Index) -> BuildPlan:
        return make_plan(folder, index, config, tiers, features, roots=roots, options=options)

    plan = plan_of(scanned(index, plan_of, follow_symlinks=options.follow_symlinks, limits=options.limits))
    items = ItemTable(plan)
    with IndexRows(plan.index) as rows:
        sidecars = Sidecars(plan.cache)
        leaves = leaving(sidecars, options, rows.keys)
        with repairable(plan.cache):
            quarantine = Quarantine(plan.cache, tool_versions())
        states, reasons, losses = Counter[str](), Counter[Reason](), Counter[str]()
        cached = None if sidecars.is_empty() else sidecars
        for number, tasks in enumerate(planned_files(plan, rows.by_file(), quarantine, options)):
            for task in tasks:
                states[task.state] += 1
                losses.update(() if task.state == "failed" else task.losses)
                reason = _reason(plan, task, quarantine, cached)
                if reason is not None:
                    reasons[reason] += 1
            if sample:
                items.add(number, tasks)
        result = DryRun(
            plan,
            num_inputs=len(rows.keys),
            num_missing=states["missing"],
            num_up_to_date=states["up to date"],
            num_failed=states["failed"],
            num_pruned=len(leaves.videos),
            dropped=leaves.features,
            stale=tuple(stale_features(plan, rows.keys)),
            num_described=reasons[_DESCRIBED],
            num_unnamed=0 if options.prune is not None else len(set(sidecars.sorted_keys()) - rows.keys),
            losses=dict(losses),
            reasons=dict(reasons.most_common()),
        )
        if not sample or not states["missing"]:
            return result
        drawn = items.draw(sample)
        places = [tuple(map(int, items.table[draw.row, -2:])) for draw in drawn]
        numbers = sorted({number for number, _ in places})
        files = planned_files(plan, rows.by_file(), quarantine, options, set(numbers))
        tasks_of = dict(zip(numbers, files, strict=True))
    chosen = [tasks_of[number][place] for number, place in places]
    measured = build_sample(chosen, drawn, options.limits, shown=display_of(progress).progress)
    return replace(result, estimate=estimate_of(items, drawn, *measured, num_jobs))


_NEW, _DESCRIBED = Reason("new"), Reason("label or caption")


def _reason(plan: BuildPlan, task: BuildTask, quarantine: Quarantine, sidecars: Sidecars | None) -> Reason | None:
    """Return the reason why a build would do something about a video, or None if it would not.

    ``sidecars`` are those of the cache, None if it has none.
    """
    state = task.state
    if state == "up to date":
        return _DESCRIBED if task.described != task.previous else None
    if state == "failed":
        return None
    if task.previous is not None:
        if task.previous.source != task.item.identity:
            return Reason("source changed")
        return _reason_of_artefact(task.previous, task.item, task.artefacts[0])
    try:
        sidecar = None if sidecars is None else sidecars.read(task.key)
    except NotFoundError:
        sidecar = None
    except DamageError:
        return Reason("file lost", "the sidecar is damaged")
    failure = quarantine.get(task.key) if quarantine and sidecar is None else None
    return _NEW if failure is None else Reason("failed before", failure.cause)


def _reason_of_artefact(sidecar: Sidecar, record: VideoRecord, artefact: ArtefactTask) -> Reason:
    for spec in artefact.features:
        info = sidecar.feature(spec.name, artefact.tier)
        if info is None:
            return Reason("not requested before", f"{spec.name} in {artefact.tier}")
        if info.fingerprint != spec.fingerprint:
            changed = ", ".join(differences(spec.name, info.params, spec.params))
            return Reason("settings changed", changed or f"{spec.name} is made by another version")
        if not fits(info, record):
            return Reason(_DESCRIBED.kind, f"{spec.name} depends on {', '.join(info.uses)}")
    return Reason("file lost", f"{', '.join(artefact.names)} in {artefact.tier}")
