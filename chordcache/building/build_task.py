"""The order for one item of a build, and the one place that decides what of a cached video stays.

A build asks three times, each time with more knowledge: ``needed`` compares the sidecar with the plan, ``compared`` the
bytes of the source, and ``has_same_frames`` the decoded frames.
"""

from __future__ import annotations

import os
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from chordcache.building.build_options import BuildOptions
from chordcache.building.build_plan import ArtefactTask, BuildPlan
from chordcache.config.picture import PictureConfig
from chordcache.errors import DamageError, MediaError
from chordcache.features.item_fields import fits
from chordcache.features.registry import FeatureSpec
from chordcache.index.grouping import IndexRows
from chordcache.media.source_file import FolderLooks, SourceState, bytes_changed, leads_out, real_folder
from chordcache.records import ContentFacts, Identity, VideoRecord
from chordcache.storage import feature_files, layout
from chordcache.storage.artefacts.tiers import TIERS
from chordcache.storage.feature_info import FeatureInfo
from chordcache.storage.find_sidecars import Sidecars
from chordcache.storage.quarantine import Failure, Quarantine
from chordcache.storage.sidecar import Sidecar


@dataclass(frozen=True)
class Hashing:
    """The facts of an item whose source is hashed."""

    is_rewritten: bool = False
    """True if the source may have been written to since the hash in ``previous``: its ctime is another one"""
    twins: tuple[Sidecar, ...] = ()
    """Cached videos with all requested features. If the source has the bytes of one of them, nothing is decoded"""


@dataclass(frozen=True)
class BuildTask:
    """One item to build: a file, or a segment of one."""

    cache: Path
    item: VideoRecord
    """Record of the index. ``identity`` is that of the source which ``previous`` and ``content`` belong to, or None if
    the file could not be read. ``content`` are the facts that the build does not measure again"""
    source_path: str
    """Absolute path"""
    inside: str | None
    """Real folder that no link may lead ``source_path`` out of, or None if links may"""
    picture: PictureConfig
    artefacts: tuple[ArtefactTask, ...]
    """Artefacts that are missing or stale"""
    all_artefacts: tuple[ArtefactTask, ...] = ()
    """Files that are made if the source turns out to be another one than that of ``previous``"""
    previous: Sidecar | None = None
    """Existing sidecar of the same source"""
    kept: tuple[FeatureInfo, ...] = ()
    """Its features that stay"""
    hashing: Hashing | None = None
    """None if the sidecar needs no hash of the source's bytes"""
    failure: Failure | None = None
    """Failure of the scan or of an earlier build that would occur again"""
    row: int = 0
    """Number of its row in the index, from 1; 0 if it is not from an index"""
    attempt: int = 1
    """Number of times that the task was sent, including this one"""

    @property
    def key(self) -> str:
        """Name in the cache."""
        return layout.key_of(self.item) if self.previous is None else self.previous.key

    @property
    def state(self) -> str:
        """State in the plan: "missing", "up to date", or "failed" if it would fail again."""
        if not self.artefacts and not self.needs_hash:
            return "up to date"
        return "missing" if self.failure is None else "failed"

    @property
    def takes_part(self) -> bool:
        """True if only its own frames of the file are decoded: those of a segment, or in a bucket."""
        return self.item.segment is not None or self.picture.buckets is not None

    @property
    def needs_hash(self) -> bool:
        """True if the source must be hashed, although the existing sidecar may be up to date otherwise."""
        if self.hashing is None or self.previous is None:
            return False
        return self.hashing.is_rewritten or self.previous.source_hash is None

    @property
    def specs(self) -> dict[str, FeatureSpec]:
        """Features to extract, by name."""
        return {spec.name: spec for artefact in self.artefacts for spec in artefact.features}

    @property
    def fingerprints(self) -> tuple[str, ...]:
        """Fingerprints of the features to extract."""
        return tuple(spec.fingerprint for spec in self.specs.values())

    def failed(self, stage: str, cause: str, message: str, source: Identity | None, **facts: Any) -> Failure:
        """Return a failure of the item with further facts, if its source was this one."""
        return Failure(self.key, self.item.root, self.item.path, stage, cause, message, source, **facts)

    @property
    def described(self) -> Sidecar | None:
        """Its sidecar with the features that stay, and the label, caption and extra columns of the index."""
        return None if self.previous is None else self.previous.with_features(self.kept).described(self.item)


class Needed(NamedTuple):
    """The difference between a cached video and a plan."""

    artefacts: tuple[ArtefactTask, ...]
    """Requested files that are missing or stale"""
    kept: tuple[FeatureInfo, ...] = ()
    """Features that stay, or are taken back from an earlier build with the same settings"""


def is_valid(sidecar: Sidecar, identity: Identity | None, path: str, inside: str | None) -> bool:
    """Return whether a sidecar is of the source that is at a path now. An unreadable source counts as the same one."""
    return not leads_out(path, inside) if identity is None else identity == sidecar.source


def needed(plan: BuildPlan, sidecar: Sidecar, item: Any, rebuild: Container[str] = ()) -> Needed:
    """Return what a plan makes of a cached video, and what stays.

    ``sidecar`` is of the source that is there now, and ``item`` has the fields that a feature may use. ``rebuild`` are
    files, relative to the cache, that count as missing.
    """
    absent = [artefact for artefact in plan.artefacts if not _is_current(plan, artefact, sidecar, item, rebuild)]
    if not absent:
        return Needed((), sidecar.features)
    taken = [_taken_back(plan, artefact, sidecar, item, rebuild) for artefact in absent]
    others = (info for info in sidecar.features if not any(_is_in(info, artefact) for artefact in absent))
    missing = tuple(artefact for artefact, infos in zip(absent, taken, strict=True) if not infos)
    return Needed(missing, (*others, *(info for infos in taken for info in infos)))


def is_stale(info: FeatureInfo, fingerprints: Mapping[str, str | None]) -> bool:
    """Return whether a feature was made with parameters other than the config's, or is not requested any more."""
    return fingerprints.get(info.feature, "") not in (None, info.fingerprint)


def compared(task: BuildTask, source: SourceState, digest: str | None) -> BuildTask:
    """Return the task for the source as it is now. ``digest`` is the hash of its bytes, if one was asked for.

    Raises ``MediaError`` ``changed`` if the source is another one than the plan saw, or its bytes are not those of
    ``previous`` although nothing wrote to the file. Its disk lost them.
    """
    previous = task.previous
    if source.identity != task.item.identity and (previous is not None or task.item.content is not None):
        raise MediaError("open", "changed", "the file changed while it waited for its turn; run the same command")
    if previous is None or task.hashing is None or None in (previous.source_hash, digest):
        return task
    if previous.source_hash == digest:
        return task
    if not task.hashing.is_rewritten:
        raise bytes_changed(str(digest), str(previous.source_hash))
    return replace(task, previous=None, kept=(), artefacts=task.all_artefacts, item=task.item.replace(content=None))


def has_same_frames(cache: Path, previous: Sidecar, kept: Iterable[FeatureInfo], source_frames: np.ndarray) -> bool:
    """Return whether features were made from the frames of these numbers in the source.

    Artefacts that are unreadable are skipped.
    """
    if previous.num_frames != len(source_frames):
        return False
    for info in (*kept, *previous.features):
        if info.file is not None:
            try:
                with feature_files.open_file(cache, info, previous.claims) as artefact:
                    return np.array_equal(artefact.array("source_frames"), source_frames)
            except DamageError:  # the next artefact may be readable
                continue
    return True


def _is_current(plan: BuildPlan, artefact: ArtefactTask, sidecar: Sidecar, item: Any, rebuild: Container[str]) -> bool:
    infos = [info for info in sidecar.features if _is_in(info, artefact)]
    present = {info.feature for info in infos if info.file not in rebuild and plan.files.has(info)}
    are_sound = all(not is_stale(info, plan.fingerprints) and fits(info, item) for info in infos)
    return present.issuperset(artefact.names) and are_sound


def _taken_back(
    plan: BuildPlan, artefact: ArtefactTask, sidecar: Sidecar, item: Any, rebuild: Container[str]
) -> tuple[FeatureInfo, ...]:
    """Return the features of a missing file that an earlier build with the same settings left on the disk."""
    infos = [info for info in (*sidecar.features, *sidecar.superseded) if info.tier == artefact.tier]
    fitting = [
        info
        for info in infos
        if not is_stale(info, plan.fingerprints)
        and fits(info, item)
        and info.file not in rebuild
        and plan.files.has(info)
    ]
    for file in dict.fromkeys(info.file for info in fitting):
        usable = {info.feature: info for info in fitting if info.file in (file, None)}
        stored = {info.feature for info in infos if info.file is not None and info.file == file}
        if usable.keys() >= set(artefact.names) >= stored:  # else a dropped feature would stay in the file
            return tuple(usable[name] for name in artefact.names)
    return ()


def _is_in(info: FeatureInfo, artefact: ArtefactTask) -> bool:
    return info.tier == artefact.tier and (TIERS[info.tier].one_file or info.feature in artefact.names)


def planned_files(
    plan: BuildPlan,
    index_rows: IndexRows,
    quarantine: Quarantine,
    options: BuildOptions,
    numbers: Container[int] | None = None,
) -> Iterator[Sequence[BuildTask]]:
    """Yield the tasks of a plan, those of one file together, as the files are when their turn comes.

    ``numbers`` are those of the files to yield, from 0 on, or None for all.
    """
    planner = _Planner(plan, quarantine, options)
    inside = {label: None if plan.follow_symlinks else real_folder(root) for label, root in plan.roots.items()}
    folders = {label: os.path.join(root, "") for label, root in plan.roots.items()}
    looks = FolderLooks()
    for number, rows in enumerate(index_rows.by_file()):
        if numbers is None or number in numbers:
            first = rows[0][1]
            path = folders[first.root] + first.path
            state = looks.look_or_none(path, inside[first.root])
            yield [planner.planned(record, row, path, inside[record.root], state) for row, record in rows]


class _Planner:
    """The parts of a plan that all its videos share."""

    def __init__(self, plan: BuildPlan, quarantine: Quarantine, options: BuildOptions) -> None:
        self._plan, self._quarantine, self._options = plan, quarantine, options
        self._picture = plan.config.picture
        self._sidecars = Sidecars(plan.cache)
        self._has_videos, self._has_failures = not self._sidecars.is_empty(), len(quarantine) > 0

    def planned(
        self, record: VideoRecord, row: int, source_path: str, inside: str | None, state: SourceState | None
    ) -> BuildTask:
        """Return the task of one video. It has no artefacts if the video is up to date."""
        plan, identity = self._plan, state.identity if state else None
        sidecar = self._sidecars.read_or_none(layout.key_of(record)) if self._has_videos else None
        lack = Needed(plan.artefacts)
        if sidecar is not None and is_valid(sidecar, identity, source_path, inside):
            lack = needed(plan, sidecar, record, self._options.rebuild)
        elif sidecar is not None:
            sidecar, lack = None, Needed(plan.all_artefacts)  # other frames: nothing of the old ones is valid
        hashing = None
        if plan.source_hash and identity is not None:  # the cached data of a lost source stays
            is_rewritten = bool(sidecar and state and sidecar.source_ctime_ns != state.ctime_ns)
            hashing = Hashing(is_rewritten, self._twins(identity, record) if sidecar is None else ())
        source, content = sidecar.source if sidecar else identity, self._known_content(record, identity, sidecar)
        is_same = record.content is content and record.identity == source
        task = BuildTask(
            cache=plan.cache,
            item=record if is_same else record.replace(identity=source, content=content),
            source_path=source_path,
            inside=inside,
            picture=self._picture,
            artefacts=lack.artefacts,
            all_artefacts=plan.all_artefacts,
            previous=sidecar,
            kept=lack.kept,
            hashing=hashing,
            row=0 if plan.parts_folder else row,
        )
        if task.state == "up to date" or self._options.retry_quarantined:
            return task
        failure = self._known_failure(task, record, identity)
        return task if failure is None else replace(task, failure=failure)

    def _known_failure(self, task: BuildTask, record: VideoRecord, identity: Identity | None) -> Failure | None:
        """Return the failure of the scan, or that of an earlier build if neither its file nor the tools changed."""
        if record.error is not None and record.identity == identity:
            error = MediaError(record.error_stage or "probe", record.error_cause or "decode", record.error or "-")
            return task.failed(error.stage, error.cause, record.error, record.identity)
        failure = self._quarantine.get(task.key) if self._has_failures else None  # a key takes long to make
        if failure is None or not self._quarantine.still_holds(failure.key, identity, task.fingerprints):
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
            if twin is not None and twin.segment == record.segment:
                lack = needed(self._plan, twin, record, self._options.rebuild)
                twins += [] if lack.artefacts else [twin.replace(features=lack.kept)]
        return tuple(twins)
