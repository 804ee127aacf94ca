"""``build --dry-run``: what a build would do and why, and an estimate of its size and time from a sample."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from chordcache.building.build_options import BuildOptions
from chordcache.building.build_plan import ArtefactTask, BuildPlan, make_plan
from chordcache.building.build_task import BuildTask, is_allowed
from chordcache.building.estimate import Estimate, FileTable, Sample, estimate_of, to_build
from chordcache.building.existing_cache import repairable, tool_versions
from chordcache.building.prune import keys_to_prune, videos_with
from chordcache.building.sample_build import build_sample
from chordcache.building.stale import StaleFeature, differences, stale_features
from chordcache.building.tasks import planned_files
from chordcache.config.config import Config
from chordcache.engine import pool
from chordcache.engine.choice import Engine, engine_of
from chordcache.engine.display import Display, display_of
from chordcache.errors import DamageError, NotFoundError, UsageError
from chordcache.features.item_fields import fits
from chordcache.index.grouping import IndexRows
from chordcache.index.index_files import Index
from chordcache.index.scan import scanned
from chordcache.records import VideoRecord
from chordcache.storage import layout
from chordcache.storage.quarantine import Quarantine
from chordcache.storage.sidecar import Sidecar
from chordcache.storage.sidecars import Sidecars


@dataclass(frozen=True)
class Reason:
    """One reason to build videos, or to rewrite their sidecars."""

    kind: str
    """"new", "source changed", "settings changed", "not requested before", "file lost", "failed before",
    "hash missing" or "label or caption" """
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
    reasons: Mapping[Reason, int] = field(default_factory=dict)
    """Reason to the number of videos, the most frequent one first"""
    estimate: Estimate | None = None
    """The size and the time, if files were built for it"""
    sample: Sample | None = None
    """The files that were built for it"""


def dry_run(
    index: str | Path | Index,
    cache: str | Path = "cache",
    *,
    tiers: str | Sequence[str] | None = None,
    features: str | Sequence[str] | None = None,
    config: str | Path | Config | None = None,
    jobs: int | Engine | None = None,
    roots: Mapping[str, str] | None = None,
    options: BuildOptions | None = None,
    sample: int | None = None,
    progress: bool | Display = False,
) -> DryRun:
    """Return what ``build`` with the same arguments would do. It changes nothing, and needs no lock.

    Parameters
    ----------
    index, cache, tiers, features, config, roots, options
        As in ``build``.
    jobs : int or Engine, optional
        Number of workers that the build will have, by default one for each processor. The sample is built with one.
    sample : int, optional
        Number of files to build in a temporary folder, at most 30 seconds of each. Their bytes and CPU time are scaled
        to those of the build.
    progress : bool or Display
        True to show a bar on a terminal while the sample is built.

    Returns
    -------
    DryRun

    Raises
    ------
    UsageError, ConfigError, NotFoundError, FormatVersionError
        As in ``build``.
    NoSpaceError, WorkersDiedError, StoppedError
        As their names say, while the sample is built.
    """
    layout.check_local("cache", cache)
    if sample is not None and sample < 1:
        raise UsageError(f"sample: got {sample}, expected a positive number")
    num_jobs = pool.default_jobs(engine_of(jobs).jobs) if sample is not None else 1
    options = options or BuildOptions()
    index = scanned(index, follow_symlinks=options.follow_symlinks, limits=options.limits)
    plan = make_plan(Path(cache).absolute(), index, config, tiers, features, roots=roots, options=options)
    files = FileTable(plan)
    with IndexRows(plan.index) as rows:
        sidecars = Sidecars(plan.cache)
        pruned = keys_to_prune(sidecars, rows.keys, options)
        dropped = videos_with(sidecars, options)
        with repairable(plan.cache):
            quarantine = Quarantine(plan.cache, tool_versions(), plan.on_damage)
        states, reasons = Counter[str](), Counter[Reason]()
        for number, tasks in enumerate(planned_files(plan, rows, quarantine, options)):
            for task in tasks:
                states[task.state] += 1
                reason = _reason(plan, task, quarantine, sidecars)
                reasons.update([] if reason is None else [reason])
            if sample is not None:
                files.add(number, tasks)
        result = DryRun(
            plan,
            num_inputs=len(rows.keys),
            num_missing=states["missing"],
            num_up_to_date=states["up to date"],
            num_failed=states["failed"],
            num_pruned=len(pruned),
            dropped=dropped,
            stale=tuple(stale_features(plan, rows.keys)),
            num_described=reasons[_DESCRIBED],
            reasons=dict(reasons.most_common()),
        )
    if sample is None:
        return result
    chosen, numbers = files.sample(sample)
    with IndexRows(plan.index) as rows:
        tasks_of: dict[int, Sequence[BuildTask]] = dict.fromkeys(numbers, ())
        for number, tasks in enumerate(planned_files(plan, rows, quarantine, options)):
            if number in tasks_of:
                tasks_of[number] = to_build(tasks) or tasks
    to_measure = [tasks_of[number] for number in numbers]
    measured, start_seconds = build_sample(to_measure, options.limits, shown=display_of(progress).progress)
    chosen = replace(chosen, files=to_measure, measured=measured)
    return replace(result, estimate=estimate_of(files, chosen, start_seconds, num_jobs), sample=chosen)


_DESCRIBED = Reason("label or caption")


def _reason(plan: BuildPlan, task: BuildTask, quarantine: Quarantine, sidecars: Sidecars) -> Reason | None:
    """Return the reason why a build would do something about a video, or None if it would not."""
    if task.state == "up to date":
        return _DESCRIBED if task.described != task.previous else None
    if task.state == "failed":
        return None
    if task.previous is not None:
        reasons = (_reason_of_artefact(task.previous, task.item, artefact) for artefact in task.artefacts)
        return next(reasons, Reason("hash missing"))
    try:
        sidecar = sidecars.read(task.key)
    except NotFoundError:
        failure = quarantine.get(task.key)
        return Reason("new") if failure is None else Reason("failed before", failure.cause)
    except DamageError:
        return Reason("file lost", "the sidecar is damaged")
    if sidecar.source == task.item.identity and not is_allowed(sidecar, plan.on_damage):
        return Reason("settings changed", f"frames.on_damage is {plan.on_damage}")
    return Reason("source changed")


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
