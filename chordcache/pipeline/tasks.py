"""The videos of a plan: what each of them lacks, and whether it is built, skipped or known to fail."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from chordcache.errors import DamageError, NotFoundError
from chordcache.media.source_file import SourceState, leads_out, look_or_none, real_folder
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
    planner = _Planner(plan, quarantine, options)
    return (planner.planned(record) for record in plan.index)


class _Planner:
    """The parts of a plan that all its videos share."""

    def __init__(self, plan: BuildPlan, quarantine: Quarantine, options: BuildOptions) -> None:
        self._plan, self._quarantine, self._options = plan, quarantine, options
        self._inside = {
            label: None if plan.follow_symlinks else real_folder(root) for label, root in plan.roots.items()
        }
        self._picture = plan.config.picture
        self._twins = _Twins(plan, options)

    def planned(self, record: VideoRecord) -> PlannedVideo:
        """Return one video, as it is now."""
        source_path = os.path.join(self._plan.roots[record.root], record.path)
        state = look_or_none(source_path, self._inside[record.root])
        identity = state.identity if state else None
        task = self._task(record, source_path, state)
        if not task.artefacts and not task.needs_hash:
            return PlannedVideo(task, "up to date")
        if self._options.retry_quarantined:
            return PlannedVideo(task, "missing")
        if record.error is not None and record.identity == identity:
            return PlannedVideo(task, "failed", _failure_of_scan(task, record))
        fails = self._quarantine.still_holds(task.key, identity, task.fingerprints)
        return PlannedVideo(task, "failed" if fails else "missing")

    def _task(self, record: VideoRecord, source_path: str, state: SourceState | None) -> BuildTask:
        """Return the task of one video. It has no artefacts if the video is up to date."""
        plan, inside = self._plan, self._inside[record.root]
        key = layout.video_key(record.root, record.path)
        identity = state.identity if state else None
        sidecar = _sidecar_or_none(plan.cache, key)
        requested = plan.artefacts
        if sidecar is not None and _is_another(sidecar, identity, source_path, inside):
            sidecar, requested = None, plan.all_artefacts  # another source: nothing of the old one is valid
        missing = plan.missing(sidecar, self._options.rebuild) if sidecar else requested
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
            is_rewritten=bool(sidecar and state and sidecar.source_ctime_ns != state.ctime_ns),
            twins=self._twins.of(identity) if sidecar is None and identity else (),
            picture=self._picture,
            requested=requested,
            artefacts=missing,
            all_artefacts=plan.all_artefacts,
            previous=sidecar,
            kept=plan.kept(sidecar, missing) if sidecar else (),
            content=content or (sidecar.content if sidecar else None),
            label=record.label,
            caption=record.caption,
            extra=dict(record.extra),
        )


def _sidecar_or_none(cache: Path, key: str) -> Sidecar | None:
    if not layout.sidecar_path(cache, key).exists():
        return None  # much faster than the error, which has a message
    try:
        return read_sidecar(cache, key)
    except (NotFoundError, DamageError):
        return None


class _Twins:
    """The cached videos whose sources were hashed, by the size of the source."""

    def __init__(self, plan: BuildPlan, options: BuildOptions) -> None:
        self._plan, self._options = plan, options
        self._keys: dict[int, list[str]] | None = None

    def of(self, identity: Identity) -> tuple[Sidecar, ...]:
        """Return the sidecars of videos that may have the bytes of a source, and have all requested features."""
        if not self._plan.source_hash:
            return ()
        if self._keys is None:
            self._keys = {}
            for key in layout.iter_keys(self._plan.cache):
                sidecar = _sidecar_or_none(self._plan.cache, key)
                if sidecar is not None and sidecar.source_hash is not None:
                    self._keys.setdefault(sidecar.source.size, []).append(key)
        alike = (_sidecar_or_none(self._plan.cache, key) for key in self._keys.get(identity.size, ()))
        return tuple(
            twin.replace(features=self._plan.kept(twin, ()))
            for twin in alike
            if twin is not None and not self._plan.missing(twin, self._options.rebuild)
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
