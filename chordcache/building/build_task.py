"""The order for one item of a build, and ``needed``, the one question about what of a cached video stays."""

from __future__ import annotations

import os
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from chordcache.amounts import counted, duration
from chordcache.building.build_options import BuildOptions
from chordcache.building.build_plan import ArtefactTask, BuildPlan, resolve_features
from chordcache.config.config import config_from_json
from chordcache.config.picture import PictureConfig
from chordcache.errors import ChordcacheError, MediaError
from chordcache.features.item_fields import fits
from chordcache.features.registry import FeatureSpec
from chordcache.media.source_file import FolderLooks, SourceState, leads_out, look_or_none, real_folder
from chordcache.media.versions import tool_versions
from chordcache.records import SERIES, ContentFacts, Identity, VideoRecord, losses
from chordcache.storage import layout
from chordcache.storage.artefacts.tiers import TIERS
from chordcache.storage.feature_info import FeatureInfo, leaves
from chordcache.storage.find_sidecars import Sidecars, iter_keys
from chordcache.storage.quarantine import Failure, Quarantine
from chordcache.storage.sidecar import Sidecar


@dataclass(frozen=True)
class BuildTask:
    """One item to build: a file, or a segment of one."""

    cache: Path
    item: VideoRecord
    """Record of the index. ``identity`` is that of the source as the plan saw it, or of its sidecar if the file could
    not be read. ``content`` are the facts that the build does not measure again"""
    source_path: str
    """Absolute path"""
    inside: str | None
    """Real folder that no link may lead ``source_path`` out of, or None if links may"""
    picture: PictureConfig
    artefacts: tuple[ArtefactTask, ...]
    """Artefacts that are missing or stale"""
    previous: Sidecar | None = None
    """Existing sidecar"""
    kept: tuple[FeatureInfo, ...] = ()
    """Its features that stay"""
    failure: Failure | None = None
    """Failure of the scan or of an earlier build that would occur again"""
    losses: tuple[str, ...] = ()
    """Labels, captions and columns of the cached video that change or go, see ``records.losses``"""
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
        if not self.artefacts:
            return "up to date"
        return "missing" if self.failure is None else "failed"

    @property
    def specs(self) -> dict[str, FeatureSpec]:
        """Features to extract, by name."""
        return {spec.name: spec for artefact in self.artefacts for spec in artefact.features}

    @property
    def fingerprints(self) -> tuple[str, ...]:
        """Fingerprints of the features to extract."""
        return tuple(spec.fingerprint for spec in self.specs.values())

    def on(self, setting: str, device: str) -> BuildTask:
        """Return the task with the networks of a device setting on one of its devices."""
        artefacts = []
        for artefact in self.artefacts:
            specs = [replace(spec, device=device) if spec.device == setting else spec for spec in artefact.features]
            artefacts.append(replace(artefact, features=tuple(specs)))
        return replace(self, artefacts=tuple(artefacts))

    def failed(self, stage: str, cause: str, message: str, source: Identity | None, **facts: Any) -> Failure:
        """Return a failure of the item with further facts, if its source was this one."""
        return Failure(self.key, self.item.root, self.item.path, stage, cause, message, source, **facts)

    @property
    def described(self) -> Sidecar | None:
        """Its sidecar with the label, the caption and the extra columns of the index."""
        return None if self.previous is None else self.previous.described(self.item)


def needed(
    sidecar: Sidecar | None, plan: BuildPlan, item: Any, is_same_source: bool = True, rebuild: Container[str] = ()
) -> tuple[tuple[ArtefactTask, ...], tuple[FeatureInfo, ...]]:
    """Return the files that a plan makes of an item, and those of its cached features that stay.

    Features with the same fingerprint stay if they are of the same source and of the same pictures. Otherwise all
    features of the cache are made again. ``item`` has the fields that a feature may use. ``rebuild`` are files,
    relative to the cache, that count as missing.
    """
    if sidecar is None:
        return plan.artefacts, ()
    if not is_same_source or sidecar.picture != plan.picture_id:
        return plan.all_artefacts, ()
    artefacts = tuple(a for a in plan.artefacts if not _is_current(plan, a, sidecar, item, rebuild))
    return artefacts, tuple(info for info in sidecar.features if not any(_is_in(info, a) for a in artefacts))


def is_of_source(sidecar: Sidecar, identity: Identity | None, path: str, inside: str | None) -> bool:
    """Return whether a sidecar is of the source that is at a path now. An unreadable source counts as the same one."""
    return not leads_out(path, inside) if identity is None else identity == sidecar.source


def is_stale(info: FeatureInfo, fingerprints: Mapping[str, str | None]) -> bool:
    """Return whether a feature was made with parameters other than the config's, or is not requested any more."""
    return fingerprints.get(info.feature, "") not in (None, info.fingerprint)


def _is_current(plan: BuildPlan, artefact: ArtefactTask, sidecar: Sidecar, item: Any, rebuild: Container[str]) -> bool:
    infos = [info for info in sidecar.features if _is_in(info, artefact)]
    present = {
        info.feature
        for info in infos
        if info.file is None or (info.file.name not in rebuild and plan.files.has(info.file))
    }
    are_sound = all(not is_stale(info, plan.fingerprints) and fits(info, item) for info in infos)
    tables = [info.facts["table"] for info in infos if info.feature == SERIES and info.file]
    return present.issuperset(artefact.names) and are_sound and all(_is_table(plan, item, table) for table in tables)


def _is_table(plan: BuildPlan, item: Any, table: Sequence[int]) -> bool:
    """Return whether the table of series has this size and modification time. An unreadable one counts as the same."""
    root, path = plan.roots.get(item.root), str(item.extra.get(SERIES)).partition("#")[0]
    state = look_or_none(os.path.join(root, path)) if root else None
    return state is None or [state.identity.size, state.identity.mtime_ns] == [*table]


def _is_in(info: FeatureInfo, artefact: ArtefactTask) -> bool:
    return info.tier == artefact.tier and (TIERS[info.tier].one_file or info.feature in artefact.names)


def planned_files(
    plan: BuildPlan,
    files: Iterable[Sequence[tuple[int, VideoRecord]]],
    quarantine: Quarantine,
    options: BuildOptions,
) -> Iterator[Sequence[BuildTask]]:
    """Yield the tasks of a plan, those of one file together, as the files are when their turn comes.

    ``files`` has the rows of each file, as ``IndexRows.by_file``.
    """
    planner = _Planner(plan, quarantine, options)
    inside = {label: None if plan.follow_symlinks else real_folder(root) for label, root in plan.roots.items()}
    folders = {label: os.path.join(root, "") for label, root in plan.roots.items()}
    looks = FolderLooks()
    for rows in files:
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
        self._has_videos = next(iter_keys(plan.cache), None) is not None

    def planned(
        self, record: VideoRecord, row: int, source_path: str, inside: str | None, state: SourceState | None
    ) -> BuildTask:
        """Return the task of one video. It has no artefacts if the video is up to date."""
        plan, identity = self._plan, state.identity if state else None
        sidecar = self._sidecars.read_or_none(layout.key_of(record)) if self._has_videos else None
        is_same = sidecar is not None and is_of_source(sidecar, identity, source_path, inside)
        artefacts, kept = needed(sidecar, plan, record, is_same, self._options.rebuild)
        source = sidecar.source if is_same and sidecar else identity
        content = self._known_content(record, identity, sidecar if is_same else None)
        is_known = record.content is content and record.identity == source
        task = BuildTask(
            cache=plan.cache,
            item=record if is_known else record.replace(identity=source, content=content),
            source_path=source_path,
            inside=inside,
            picture=self._picture,
            artefacts=artefacts,
            previous=sidecar,
            kept=kept,
            losses=() if sidecar is None else tuple(losses(sidecar.about, record)),
            row=0 if plan.part else row,
        )
        if task.state == "up to date":
            return task
        failure = _loss(task, plan) if is_same and sidecar and sidecar.picture != plan.picture_id else None
        if failure is None and not self._options.retry_quarantined:
            failure = self._known_failure(task, record, identity)
        return task if failure is None else replace(task, failure=failure)

    def _known_failure(self, task: BuildTask, record: VideoRecord, identity: Identity | None) -> Failure | None:
        """Return the failure of the scan, or that of an earlier build if neither its file nor the tools changed."""
        if record.error is not None and record.identity == identity:
            error = MediaError(record.error_stage or "probe", record.error_cause or "decode", record.error or "-")
            return task.failed(error.stage, error.cause, record.error, record.identity)
        failure = self._quarantine.get(task.key) if len(self._quarantine) else None  # a key takes long to make
        if failure is None or failure.cause == "features":  # of ``_loss``, which looked at this build
            return None
        if not self._quarantine.still_holds(failure.key, identity, task.fingerprints):
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


def _loss(task: BuildTask, plan: BuildPlan) -> Failure | None:
    """Return the failure of an item whose pictures are others now, if not all of its features can be made of them."""
    artefacts = replace(plan, other_devices=frozenset()).all_artefacts
    requested = {(artefact.tier, name) for artefact in artefacts for name in artefact.names}
    features = task.previous.features if task.previous else ()
    lost = [info.feature for info in features if (info.tier, info.feature) not in requested]
    if not lost:
        return None
    names = ", ".join(dict.fromkeys(lost))
    what = f"its frames are others now, and {names} cannot be made of them here"
    return task.failed(
        "publish",
        "features",
        f"{what}. Install what it needs, or build with --drop {lost[0]}.",
        task.item.identity,
        fingerprints=task.fingerprints,
    )


@dataclass
class StaleFeature:
    """A feature that is made again."""

    feature: str
    differences: str
    """Settings that differ, such as "frames.quality: 90 -> 80" """
    num_videos: int = 0
    seconds: float = 0.0
    """[seconds] Duration of these videos"""

    def __str__(self) -> str:
        videos = counted(self.num_videos, "cached video")
        return f"{self.feature}: builds {videos} ({duration(self.seconds)}) again: {self.differences}"


def stale_features(plan: BuildPlan, keys: Container[str]) -> list[StaleFeature]:
    """Return the features that ``plan`` makes again of cached videos among ``keys``, if settings or tools changed."""
    before = plan.earlier
    if before is None or not _may_differ(plan):
        return []
    stale: dict[str, StaleFeature] = {}
    sidecars = Sidecars(plan.cache)
    for key in sidecars.sorted_keys():
        if key not in keys:
            continue
        try:
            sidecar = sidecars.read(key)
        except ChordcacheError:  # the build finds it again, and says so
            continue
        names = set()
        artefacts, _ = needed(sidecar, plan, sidecar.record)
        for tier, spec in ((artefact.tier, spec) for artefact in artefacts for spec in artefact.features):
            info = sidecar.feature(spec.name, tier)
            if info is not None and is_stale(info, plan.fingerprints):
                stale.setdefault(info.feature, StaleFeature(info.feature, differences(info, spec)))
                names.add(info.feature)
        for name in names:
            stale[name].num_videos += 1
            stale[name].seconds += sidecar.duration_seconds
    return list(stale.values())


def _may_differ(plan: BuildPlan) -> bool:
    """Return whether a setting of a feature or a tool is another one than in the last build."""
    assert plan.earlier is not None
    before = resolve_features(plan.earlier.features, config_from_json(plan.earlier.config, trusted=()))
    new = plan.fingerprints
    return dict(plan.earlier.versions) != tool_versions() or any(
        new.get(name) != (spec and spec.fingerprint) for name, spec in before.items()
    )


def differences(info: FeatureInfo, spec: FeatureSpec) -> str:
    """Return the parameters that differ, such as "frames.quality: 90 -> 80", or the reason for another fingerprint."""
    before, after = (
        {leaf: list(value) if isinstance(value, tuple) else value for leaf, value in leaves(spec.name, params)}
        for params in (info.params, spec.params)
    )
    changed = sorted(leaf for leaf in before.keys() | after.keys() if before.get(leaf) != after.get(leaf))
    changes = (f"{leaf}: {before.get(leaf, 'nothing')} -> {after.get(leaf, 'nothing')}" for leaf in changed)
    return ", ".join(changes) or "made by another version"
