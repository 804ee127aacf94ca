"""The plan of a build: what it makes and from where. It is made once, before any video is read."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from chordcache.building.fix_commands import repairable
from chordcache.building.requested import Features
from chordcache.config.config import Config, config_to_json
from chordcache.digests import digest_file
from chordcache.errors import UsageError, printable
from chordcache.features.registry import FeatureSpec, check_requirement, resolve
from chordcache.index.column_types import check_values, merged_columns
from chordcache.index.index_files import Index, cached_index
from chordcache.media.versions import tool_versions
from chordcache.storage import atomic, layout
from chordcache.storage.artefacts.tiers import TIERS
from chordcache.storage.cache_header import Header, PartOf, write_header
from chordcache.storage.feature_files import FeatureFiles
from chordcache.storage.find_sidecars import iter_keys
from chordcache.storage.opener import exists


@dataclass(frozen=True)
class ArtefactTask:
    """One file to write."""

    tier: str
    features: tuple[FeatureSpec, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the tier's writer"""

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of its features."""
        return tuple(spec.name for spec in self.features)


@dataclass(frozen=True)
class BuildPlan:
    """The plan of one build: what it makes, and from where."""

    cache: Path
    index: Index
    """The videos to build"""
    earlier: Header | None
    """Header of the cache when the plan was made, or None without a cache"""
    config: Config
    requested: Features
    """Tier to the features that this build makes"""
    features: Features
    """Tier to the features that this build and earlier ones requested"""
    specs: Mapping[str, FeatureSpec | None]
    """Specification of each of ``features``, or None if a package that it needs is not installed here"""
    roots: Mapping[str, str] = field(default_factory=dict)
    """Root label to the folder of the sources"""
    moved: frozenset[str] = frozenset()
    """Labels of roots that the caller has moved on purpose"""
    follow_symlinks: bool = False
    """True to read sources behind links that lead out of their root"""
    part: PartOf | None = None
    """The part of a build that it makes, or None if it makes a whole cache"""

    @cached_property
    def artefacts(self) -> tuple[ArtefactTask, ...]:
        """Files of a video: the requested features that can be made here."""
        return artefacts_of(self.requested, self.specs, self.config)

    @cached_property
    def all_artefacts(self) -> tuple[ArtefactTask, ...]:
        """The same for all features, since nothing is kept of a video if another source is at its path now."""
        return artefacts_of(self.features, self.specs, self.config)

    @cached_property
    def picture_id(self) -> str:
        """Fingerprint of the settings of its pictures."""
        return self.config.picture.fingerprint

    @cached_property
    def fingerprints(self) -> dict[str, str | None]:
        """Fingerprint of each feature, or None if it cannot be made here."""
        return fingerprints_of(self.specs)

    @cached_property
    def files(self) -> FeatureFiles:
        """Files of the features that are cached."""
        return FeatureFiles(self.cache)

    @property
    def network_specs(self) -> tuple[FeatureSpec, ...]:
        """Requested features that a network makes."""
        specs = {spec.network.key: spec for artefact in self.artefacts for spec in artefact.features if spec.device}
        return tuple(specs.values())


def artefacts_of(
    features: Features, specs: Mapping[str, FeatureSpec | None], config: Config
) -> tuple[ArtefactTask, ...]:
    """Return the files of a video that hold these features, as far as these can be made here."""
    artefacts = []
    for tier, names in features.items():
        options = config.writer_options(tier)
        available = tuple(spec for name in names if (spec := specs[name]) is not None)
        if not TIERS[tier].one_file:
            artefacts += [ArtefactTask(tier, (spec,), options) for spec in available]
        elif len(available) == len(names):  # a file without one of its features would replace a file that has it
            artefacts.append(ArtefactTask(tier, available, options))
    return tuple(artefacts)


def resolve_features(
    features: Features, config: Config, required: Container[str] = ()
) -> dict[str, FeatureSpec | None]:
    """Return each feature's specification, or None if it cannot be made here.

    Raises ``UsageError`` or ``ConfigError`` if a required feature needs a package that is not installed, or its
    extractor cannot be imported.
    """
    specs: dict[str, FeatureSpec | None] = {}
    for name in dict.fromkeys(name for names in features.values() for name in names):
        try:
            spec = resolve(name, config)
            check_requirement(spec)
            specs[name] = spec
        except UsageError:
            if name in required:
                raise
            specs[name] = None
    return specs


def fingerprints_of(specs: Mapping[str, FeatureSpec | None]) -> dict[str, str | None]:
    """Return the fingerprint of each feature, or None if the feature cannot be made here."""
    return {name: spec.fingerprint if spec else None for name, spec in specs.items()}


def write_plan(plan: BuildPlan, keys: Container[str], *, prune: bool) -> BuildPlan:
    """Write the index and the header of the cache, under its lock, before any video is built. Return the plan.

    The index gets the records of the plan, whose keys are ``keys``. It keeps the earlier ones, unless ``prune`` is set,
    or the plan's index has all videos of their root and these are not among them. It stays as it is if the last build
    wrote it from the same index. The header keeps the roots of earlier builds. The plan takes over options
    of an earlier index.

    Raises ``UsageError`` if a root has the label of another folder of the cache, or a column has another type there,
    ``DamageError`` if the existing index is damaged, and ``UnreadableError`` if the sidecars cannot be listed.
    """
    cache, path, index = plan.cache, plan.cache / "index.jsonl", plan.index
    for _ in iter_keys(cache):  # raises before anything is written if the sidecars cannot be listed
        pass
    atomic.remove_partials(cache)
    with repairable(cache), atomic.partial_folder(cache) as folder:
        earlier = cached_index(cache) if exists(cache, path.name) else None
        roots = merged_roots(earlier.roots if earlier else {}, plan)
        columns = merged_columns(earlier.columns if earlier else {}, index.columns)
        plan = replace(plan, follow_symlinks=plan.follow_symlinks or (earlier is not None and earlier.follow_symlinks))
        settings = (roots, index.level, plan.follow_symlinks, columns)
        digests = index.digest(), earlier.digest() if earlier else ""
        if plan.part is not None and plan.earlier is not None and digests[0] != plan.part.index:
            digests = plan.earlier.index_digests  # some of its own records: they stay in the order of the whole index
        is_written = (
            not (earlier is None or plan.earlier is None or prune)
            and digests == plan.earlier.index_digests
            and settings == (earlier.roots, earlier.level, earlier.follow_symlinks, earlier.columns)
        )
        if not is_written:
            changes = {"roots": roots, "follow_symlinks": plan.follow_symlinks, "columns": columns, "stated": ()}
            others = (record for record in earlier or () if record.root not in index.whole_roots)
            kept = (record for record in others if layout.key_of(record) not in keys)
            with index.writer(folder / path.name, **changes) as writer:
                for record in chain(() if prune else kept, index):
                    check_values(record.path, record.extra, columns)
                    writer.write(record)
            is_same = digests[0] == index.digest() and not index.is_completed  # another process may have replaced it
            digests = digests[0] if is_same else "", digest_file(folder / path.name)
            atomic.publish(folder / path.name, path)
    config = config_to_json(plan.config)
    header = Header(config, roots, plan.features, tool_versions(), plan.follow_symlinks)
    fingerprints = {**(plan.earlier.fingerprints if plan.earlier else {}), **plan.fingerprints}
    known = {name: fingerprint for name, fingerprint in fingerprints.items() if fingerprint}
    header = header.replace(columns=columns, index_digests=digests, part=plan.part)
    write_header(cache, header.replace(fingerprints=known))
    return plan


def merged_roots(earlier: Mapping[str, str], plan: BuildPlan) -> dict[str, str]:
    """Return the roots of the cache and of this build. One label must not name two folders: it would mix up videos."""
    for label in earlier.keys() & plan.roots.keys():
        old, new = printable(earlier[label]), printable(plan.roots[label])
        if old != new and label not in plan.moved:
            raise UsageError(
                f"root '{label}' of this cache is '{old}', the index says '{new}'; "
                f"say --root {label}={new} if it moved, or scan with another NAME=PATH"
            )
    return {**earlier, **plan.roots}
