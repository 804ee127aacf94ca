"""The videos of a plan: what each of them lacks, and whether it is built, skipped or known to fail."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property

from chordcache.building.build_options import BuildOptions
from chordcache.building.build_plan import BuildPlan
from chordcache.building.build_task import BuildTask, Hashing, Needed, is_allowed, is_valid, needed
from chordcache.choices import ON_DAMAGE
from chordcache.errors import MediaError
from chordcache.index.grouping import IndexRows
from chordcache.media.first_damage import may_trim
from chordcache.media.source_file import FolderLooks, SourceState, real_folder
from chordcache.records import ContentFacts, Identity, VideoRecord
from chordcache.storage import layout
from chordcache.storage.quarantine import Failure, Quarantine
from chordcache.storage.sidecar import Sidecar
from chordcache.storage.sidecars import Sidecars


def planned_files(
    plan: BuildPlan, index_rows: IndexRows, quarantine: Quarantine, options: BuildOptions
) -> Iterator[Sequence[BuildTask]]:
    """Yield the tasks of a plan, those of one file together, as the files are when their turn comes."""
    planner = _Planner(plan, quarantine, options)
    inside = {label: None if plan.follow_symlinks else real_folder(root) for label, root in plan.roots.items()}
    looks = FolderLooks()
    for rows in index_rows.by_file():
        first = rows[0][1]
        path = os.path.join(plan.roots[first.root], first.path)
        state = looks.look_or_none(path, inside[first.root])
        yield [planner.planned(record, row, path, inside[record.root], state) for row, record in rows]


class _Planner:
    """The parts of a plan that all its videos share."""

    def __init__(self, plan: BuildPlan, quarantine: Quarantine, options: BuildOptions) -> None:
        self._plan, self._quarantine, self._options = plan, quarantine, options
        self._picture = plan.config.picture
        self._sidecars = Sidecars(plan.cache)
        self._has_videos = not self._sidecars.is_empty()

    def planned(
        self, record: VideoRecord, row: int, source_path: str, inside: str | None, state: SourceState | None
    ) -> BuildTask:
        """Return the task of one video. It has no artefacts if the video is up to date."""
        plan, identity = self._plan, state.identity if state else None
        sidecar = self._sidecars.read_or_none(layout.key_of(record)) if self._has_videos else None
        lack = Needed(plan.artefacts)
        if sidecar is not None and is_valid(sidecar, plan, identity, source_path, inside):
            lack = needed(plan, sidecar, record, self._options.rebuild)
        elif sidecar is not None:
            sidecar, lack = None, Needed(plan.all_artefacts)  # other frames: nothing of the old ones is valid
        hashing = None
        if plan.source_hash and identity is not None:  # the cached data of a lost source stays
            is_rewritten = bool(sidecar and state and sidecar.source_ctime_ns != state.ctime_ns)
            hashing = Hashing(is_rewritten, self._twins(identity, record) if sidecar is None else ())
        content = self._known_content(record, identity, sidecar)
        task = BuildTask(
            cache=plan.cache,
            item=record.replace(identity=sidecar.source if sidecar else identity, content=content),
            source_path=source_path,
            inside=inside,
            picture=self._picture,
            artefacts=lack.artefacts,
            all_artefacts=plan.all_artefacts,
            previous=sidecar,
            kept=lack.kept,
            hashing=hashing,
            may_trim=plan.on_damage != ON_DAMAGE[0],
            row=0 if plan.parts_folder else row,
        )
        if task.state == "up to date" or self._options.retry_quarantined:
            return task
        return replace(task, failure=self._known_failure(task, record, identity))

    def _known_failure(self, task: BuildTask, record: VideoRecord, identity: Identity | None) -> Failure | None:
        """Return the failure of the scan, or that of an earlier build if neither its file nor the tools changed."""
        if record.error is not None and record.identity == identity:
            error = MediaError(record.error_stage or "probe", record.error_cause or "decode", record.error or "-")
            if not (task.may_trim and may_trim(error)):
                return task.failed(error.stage, error.cause, record.error, record.identity)
        failure = self._quarantine.get(task.key)  # much faster than the fingerprints of every task
        if failure is None or not self._quarantine.still_holds(task.key, identity, task.fingerprints):
            return None
        return failure

    def _known_content(
        self, record: VideoRecord, identity: Identity | None, sidecar: Sidecar | None
    ) -> ContentFacts | None:
        """Return the content facts of an item, unless its frames are chosen by buckets, and may change with them."""
        if self._picture.buckets is None and record.identity == identity and record.segment is None and record.content:
            return record.content
        if sidecar is None or (self._picture.buckets or sidecar.display_crop) is not None:
            return None
        return sidecar.content

    @cached_property
    def _hashed(self) -> dict[int, list[str]]:
        """Size of a source to the cached videos of such sources that were hashed."""
        keys: dict[int, list[str]] = {}
        for key in self._sidecars.sorted_keys():
            sidecar = self._sidecars.read_or_none(key)
            if sidecar is not None and sidecar.source_hash is not None:
                keys.setdefault(sidecar.source.size, []).append(key)
        return keys

    def _twins(self, identity: Identity, record: VideoRecord) -> tuple[Sidecar, ...]:
        """Return the sidecars of the same segment of videos that may have the bytes of a source.

        They have all requested features, made of the same fields.
        """
        twins = []
        for twin in map(self._sidecars.read_or_none, self._hashed.get(identity.size, ())):
            if twin is not None and twin.segment == record.segment and is_allowed(twin, self._plan.on_damage):
                lack = needed(self._plan, twin, record, self._options.rebuild)
                twins += [] if lack.artefacts else [twin.replace(features=lack.kept)]
        return tuple(twins)
