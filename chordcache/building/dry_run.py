"""``build --dry-run``: what a build would do, why, and roughly how many bytes it would write."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from chordcache.building.build_options import BuildOptions
from chordcache.building.build_plan import ArtefactTask, BuildPlan, make_plan
from chordcache.building.build_task import BuildTask
from chordcache.building.existing_cache import repairable, tool_versions
from chordcache.building.prune import keys_to_prune, videos_with
from chordcache.building.stale import StaleFeature, differences, stale_features
from chordcache.building.tasks import planned_files
from chordcache.building.trim import is_allowed
from chordcache.config.config import Config
from chordcache.errors import DamageError, NotFoundError
from chordcache.features.item_fields import fits
from chordcache.index.grouping import IndexRows
from chordcache.index.index_files import Index
from chordcache.index.scan import scanned
from chordcache.media.geometry import expected_shape
from chordcache.records import FeatureInfo, VideoRecord
from chordcache.storage import layout
from chordcache.storage.quarantine import Quarantine
from chordcache.storage.sidecar import Sidecar, read_sidecar

_BYTES_PER_PIXEL = {"jpeg": 0.25, "raw": 3.0}
"""[bytes] Size of a cached frame for each of its pixels. JPEG: the four clips of ``make demo`` at quality 90"""


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
    num_bytes: int | None = None
    """[bytes] Rough size of the files that would be written, or None if nothing can be said"""
    unknown: tuple[str, ...] = ()
    """Features whose size is not in ``num_bytes``, since no cached video has them"""


def dry_run(
    index: str | Path | Index,
    cache: str | Path = "cache",
    *,
    tiers: str | Sequence[str] | None = None,
    features: str | Sequence[str] | None = None,
    config: str | Path | Config | None = None,
    roots: Mapping[str, str] | None = None,
    options: BuildOptions | None = None,
) -> DryRun:
    """Return what ``build`` with the same arguments would do. It changes nothing, and needs no lock.

    Raises
    ------
    UsageError, ConfigError, NotFoundError, FormatVersionError
        As in ``build``.
    """
    layout.check_local("cache", cache)
    options = options or BuildOptions()
    index = scanned(index, follow_symlinks=options.follow_symlinks, limits=options.limits)
    plan = make_plan(Path(cache).absolute(), index, config, tiers, features, roots=roots, options=options)
    with IndexRows(plan.index) as rows:
        pruned = keys_to_prune(plan.cache, rows.keys, options)
        dropped = videos_with(plan.cache, options)
        with repairable(plan.cache):
            quarantine = Quarantine(plan.cache, tool_versions(), plan.on_damage)
        states, reasons, sizes = Counter[str](), Counter[Reason](), _Sizes(plan)
        for tasks in planned_files(plan, rows, quarantine, options):
            for task in tasks:
                states[task.state] += 1
                reason = _reason(plan, task, quarantine)
                reasons.update([] if reason is None else [reason])
                sizes.add(task)
        return DryRun(
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
            num_bytes=sizes.num_bytes(),
            unknown=sizes.unknown(),
        )


_DESCRIBED = Reason("label or caption")


def _reason(plan: BuildPlan, task: BuildTask, quarantine: Quarantine) -> Reason | None:
    """Return the reason why a build would do something about a video, or None if it would not."""
    if task.state == "up to date":
        return _DESCRIBED if task.described != task.previous else None
    if task.state == "failed":
        return None
    if task.previous is None:
        return _reason_without_sidecar(plan, task, quarantine)
    for artefact in task.artefacts:
        return _reason_of_artefact(task.previous, task.item, artefact)
    return Reason("hash missing")


def _reason_without_sidecar(plan: BuildPlan, task: BuildTask, quarantine: Quarantine) -> Reason:
    key = task.key
    failure = quarantine.get(key)
    try:
        sidecar = read_sidecar(plan.cache, key)
    except NotFoundError:
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


class _Sizes:
    """Rough sizes: bytes for each second of the videos that are cached, else for each pixel of the frames."""

    def __init__(self, plan: BuildPlan) -> None:
        self._plan = plan
        self._cached: Counter[str] = Counter()
        """Bytes of the cached artefacts of each kind"""
        self._cached_seconds: dict[str, float] = defaultdict(float)
        self._missing_seconds: dict[str, float] = defaultdict(float)
        self._pixel_bytes: Counter[str] = Counter()
        """Bytes of the missing frames by their pixels"""
        self._num_unknown: Counter[str] = Counter()
        """Number of missing artefacts of videos whose length the index does not state"""

    def add(self, task: BuildTask) -> None:
        """Take a video into account."""
        sidecar = task.previous
        missing = task.artefacts if task.state == "missing" else ()
        for artefact in self._plan.artefacts:
            kind = _kind(artefact)
            if artefact in missing:
                self._miss(kind, artefact, task.item)
            elif sidecar is not None and sidecar.duration_seconds > 0:
                infos = [info for name in artefact.names if (info := sidecar.feature(name, artefact.tier))]
                self._cached[kind] += _num_bytes(infos)
                self._cached_seconds[kind] += sidecar.duration_seconds

    def _miss(self, kind: str, artefact: ArtefactTask, record: VideoRecord) -> None:
        picture, frames = self._plan.config.picture, self._plan.config.frames
        seconds, header = record.known_seconds, record.header
        has_rate = header is not None and bool(header.average_fps)
        if seconds is None or (picture.buckets is not None and not has_rate):
            self._num_unknown[kind] += 1
            return
        if header is None or not header.average_fps:
            self._missing_seconds[kind] += seconds
            return
        fps = min(header.average_fps, picture.fps or header.average_fps)
        width, height, num_frames = expected_shape(picture, header.display_width, header.display_height, seconds * fps)
        self._missing_seconds[kind] += num_frames / fps
        if artefact.names == ("frames",) and frames is not None and frames.codec in _BYTES_PER_PIXEL:
            self._pixel_bytes[kind] += round(num_frames * width * height * _BYTES_PER_PIXEL[frames.codec])

    def _bytes_of(self, kind: str) -> float | None:
        if self._cached_seconds[kind]:
            return self._missing_seconds[kind] * self._cached[kind] / self._cached_seconds[kind]
        return self._pixel_bytes[kind] or None

    def num_bytes(self) -> int | None:
        """Return the rough size of all that is missing, or None if nothing is known of it."""
        sizes = [self._bytes_of(kind) for kind in self._missing_seconds]
        known = [size for size in sizes if size is not None]
        if not known and (sizes or self._num_unknown):
            return None
        return round(sum(known))

    def unknown(self) -> tuple[str, ...]:
        """Return the kinds of files whose size is not known, or not of all videos."""
        kinds = [kind for kind in self._missing_seconds if self._bytes_of(kind) is None]
        return tuple(dict.fromkeys([*kinds, *self._num_unknown]))


def _kind(artefact: ArtefactTask) -> str:
    return f"{', '.join(artefact.names)} in {artefact.tier}"


def _num_bytes(infos: Sequence[FeatureInfo]) -> int:
    return sum({info.file: info.num_bytes for info in infos}.values())
