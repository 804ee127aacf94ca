"""The videos of a plan: what each of them lacks, and whether it is built, skipped or known to fail."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from chordcache.errors import DamageError, NotFoundError
from chordcache.index.grouping import IndexRows
from chordcache.media.source_file import SourceState, leads_out, look_or_none, real_folder
from chordcache.pipeline.build_task import BuildTask
from chordcache.pipeline.options import BuildOptions
from chordcache.pipeline.plan import ArtefactTask, BuildPlan
from chordcache.pipeline.trim import is_allowed, may_be_cached
from chordcache.records import ContentFacts, FeatureInfo, Identity, VideoRecord
from chordcache.storage import layout
from chordcache.storage.quarantine import Failure, Quarantine
from chordcache.storage.readable import exists
from chordcache.storage.sidecar import Sidecar, read_sidecar


@dataclass(frozen=True)
class PlannedVideo:
    """One video of a plan."""

    task: BuildTask
    state: str
    """"missing", "up to date", or "failed" if it failed before and neither its file nor the tools have changed"""
    record: VideoRecord
    """Record of the index"""
    failure: Failure | None = None
    """Failure that the scan found"""
    replaced: Sidecar | None = None
    """Its sidecar as it is now, also if that is of another source"""


def planned_files(
    plan: BuildPlan, index_rows: IndexRows, quarantine: Quarantine, options: BuildOptions
) -> Iterator[Sequence[PlannedVideo]]:
    """Yield the videos of a plan, those of one file together, as they are when their turn comes."""
    planner = _Planner(plan, quarantine, options)
    for rows in index_rows.by_file():
        yield planner.planned(rows)


class _Planner:
    """The parts of a plan that all its videos share."""

    def __init__(self, plan: BuildPlan, quarantine: Quarantine, options: BuildOptions) -> None:
        self._plan, self._quarantine, self._options = plan, quarantine, options
        self._inside = {
            label: None if plan.follow_symlinks else real_folder(root) for label, root in plan.roots.items()
        }
        self._picture = plan.config.picture
        self._twins = _Twins(plan, options)
        self._has_videos = next(layout.iter_keys(plan.cache), None) is not None

    def planned(self, rows: Sequence[tuple[int, VideoRecord]]) -> list[PlannedVideo]:
        """Return the videos of one file, as they are now. Each row is its number in the index, and the record."""
        first = rows[0][1]
        source_path = os.path.join(self._plan.roots[first.root], first.path)
        state = look_or_none(source_path, self._inside[first.root])
        return [self._planned(record, row, source_path, state) for row, record in rows]

    def _planned(self, record: VideoRecord, row: int, source_path: str, state: SourceState | None) -> PlannedVideo:
        identity = state.identity if state else None
        sidecar = _sidecar_or_none(self._plan.cache, layout.key_of(record)) if self._has_videos else None
        task = self._task(record, row, source_path, state, sidecar)
        if not task.artefacts and not task.needs_hash:
            return PlannedVideo(task, "up to date", record)
        if self._options.retry_quarantined:
            return PlannedVideo(task, "missing", record, replaced=sidecar)
        is_known = record.error is not None and record.identity == identity
        if is_known and not may_be_cached(record, self._plan.on_damage):
            return PlannedVideo(task, "failed", record, _failure_of_scan(task, record))
        has_failed = self._quarantine.get(task.key) is not None  # much faster than the fingerprints of every task
        fails = has_failed and self._quarantine.still_holds(task.key, identity, task.fingerprints)
        return PlannedVideo(task, "failed" if fails else "missing", record, replaced=sidecar)

    def _task(
        self, record: VideoRecord, row: int, source_path: str, state: SourceState | None, sidecar: Sidecar | None
    ) -> BuildTask:
        """Return the task of one video. It has no artefacts if the video is up to date."""
        plan, inside = self._plan, self._inside[record.root]
        key = layout.key_of(record)
        identity = state.identity if state else None
        requested = plan.artefacts
        if sidecar is not None and (
            _is_another(sidecar, identity, source_path, inside) or not is_allowed(sidecar, plan.on_damage)
        ):
            sidecar, requested = None, plan.all_artefacts  # other frames: nothing of the old ones is valid
        missing, kept = self._missing_and_kept(sidecar, record) if sidecar else (requested, ())
        content = self._known_content(record, identity, sidecar)
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
            twins=self._twins.of(identity, record) if sidecar is None and identity else (),
            picture=self._picture,
            requested=requested,
            artefacts=missing,
            all_artefacts=plan.all_artefacts,
            previous=sidecar,
            kept=kept,
            content=content,
            description=record.description(),
            seconds=record.known_seconds,
            row=0 if plan.parts_folder else row,
            on_damage=plan.on_damage,
        )

    def _missing_and_kept(
        self, sidecar: Sidecar, record: VideoRecord
    ) -> tuple[tuple[ArtefactTask, ...], tuple[FeatureInfo, ...]]:
        """Return the files that must be made, and the features that stay or are taken back."""
        plan, rebuild = self._plan, self._options.rebuild
        absent = plan.missing(sidecar, record, rebuild)
        taken = [plan.taken_back(artefact, sidecar, record, rebuild) for artefact in absent]
        missing = tuple(artefact for artefact, infos in zip(absent, taken, strict=True) if not infos)
        return missing, (*plan.kept(sidecar, absent), *(info for infos in taken for info in infos))

    def _known_content(
        self, record: VideoRecord, identity: Identity | None, sidecar: Sidecar | None
    ) -> ContentFacts | None:
        """Return the content facts of an item, unless its frames are chosen by buckets, and may change with them."""
        if self._picture.buckets is None and record.identity == identity and record.segment is None and record.content:
            return record.content
        if sidecar is None or (self._picture.buckets or sidecar.display_crop) is not None:
            return None
        return sidecar.content


def _sidecar_or_none(cache: Path, key: str) -> Sidecar | None:
    if not exists(f"{cache}/{layout.sidecar_file(key)}"):
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

    def of(self, identity: Identity, record: VideoRecord) -> tuple[Sidecar, ...]:
        """Return the sidecars of the same segment of videos that may have the bytes of a source.

        They have all requested features, made of the same fields.
        """
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
            if twin is not None
            and twin.segment == record.segment
            and is_allowed(twin, self._plan.on_damage)
            and not self._plan.missing(twin, record, self._options.rebuild)
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
