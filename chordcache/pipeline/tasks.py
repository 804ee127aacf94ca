"""The videos of a plan: what each of them lacks, and whether it is built, skipped or known to fail."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from chordcache.errors import DamageError, NotFoundError
from chordcache.media.source_file import identity_or_none, leads_out, real_folder
from chordcache.pipeline.options import BuildOptions
from chordcache.pipeline.plan import BuildPlan
from chordcache.pipeline.worker import BuildTask
from chordcache.records import Identity, VideoRecord
from chordcache.storage import layout
from chordcache.storage.quarantine import Failure, Quarantine
from chordcache.storage.sidecar import Sidecar, read_sidecar


@dataclass(frozen=True)
class PlannedVideo:
    """One video of a plan."""

    task: BuildTask
    state: str
    """"missing", "up to date", or "failed" if it failed before and neither its file nor the tools have changed"""
    failure: Failure | None = None
    """Failure that the scan found"""


def planned_videos(plan: BuildPlan, quarantine: Quarantine, options: BuildOptions) -> Iterator[PlannedVideo]:
    """Yield every video of a plan, as it is when its turn comes."""
    inside = {label: None if plan.follow_symlinks else real_folder(root) for label, root in plan.roots.items()}
    for record in plan.index:
        source_path = os.path.join(plan.roots[record.root], record.path)
        identity = identity_or_none(source_path, inside[record.root])
        task = _task(plan, record, source_path, inside[record.root], identity, options)
        if not task.artefacts and not task.adds_hash:
            yield PlannedVideo(task, "up to date")
        elif options.retry_quarantined:
            yield PlannedVideo(task, "missing")
        elif record.error is not None and record.identity == identity:
            yield PlannedVideo(task, "failed", _failure_of_scan(task, record))
        else:
            fails = quarantine.still_holds(task.key, identity, task.fingerprints)
            yield PlannedVideo(task, "failed" if fails else "missing")


def _task(
    plan: BuildPlan,
    record: VideoRecord,
    source_path: str,
    inside: str | None,
    identity: Identity | None,
    options: BuildOptions,
) -> BuildTask:
    """Return the task of one video. It has no artefacts if the video is up to date."""
    key = layout.video_key(record.root, record.path)
    try:
        sidecar = read_sidecar(plan.cache, key)
    except (NotFoundError, DamageError):
        sidecar = None
    requested = plan.artefacts
    if sidecar is not None and _is_another(sidecar, identity, source_path, inside):
        sidecar, requested = None, plan.all_artefacts  # another source: nothing of the old one is valid
    missing = plan.missing(sidecar, options.rebuild) if sidecar else requested
    content = record.content if record.identity == identity else None
    return BuildTask(
        cache=plan.cache,
        key=key,
        root=record.root,
        path=record.path,
        source_path=source_path,
        inside=inside,
        source=sidecar.source if sidecar else identity,
        with_hash=plan.source_hash and identity is not None,  # the cached data of a lost source stays
        picture=plan.config.picture,
        requested=requested,
        artefacts=missing,
        previous=sidecar,
        kept=plan.kept(sidecar, missing) if sidecar else (),
        content=content or (sidecar.content if sidecar else None),
        label=record.label,
        caption=record.caption,
        extra=dict(record.extra),
    )


def _is_another(sidecar: Sidecar, identity: Identity | None, path: str, inside: str | None) -> bool:
    """Return whether the path now leads to another source. An unreadable source counts as the same one."""
    return leads_out(path, inside) if identity is None else identity != sidecar.source


def _failure_of_scan(task: BuildTask, record: VideoRecord) -> Failure:
    return Failure(
        task.key,
        task.root,
        task.path,
        record.error_stage or "probe",
        record.error_cause or "decode",
        record.error or "",
        record.identity,
    )
