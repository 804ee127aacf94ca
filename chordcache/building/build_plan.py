"""The plan of a build: what it makes and from where. It is made once, before any video is read."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from chordcache.building.requested import Features
from chordcache.config.config import Config
from chordcache.errors import UsageError
from chordcache.features.registry import FeatureSpec, check_requirement, resolve
from chordcache.index.index_files import Index
from chordcache.storage.artefacts.tiers import TIERS
from chordcache.storage.cache_header import Header, PartOf
from chordcache.storage.feature_files import FeatureFiles


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

    @cached_property
    def device(self) -> str:
        """Device setting of the last pass that one of its features needs, "" without a network."""
        return max(spec.device for spec in self.features)


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
    device: str = ""
    """Device setting of the networks of a pass"""
    other_devices: frozenset[str] = frozenset()
    """Device settings of the features that other passes make, "" for those without a network"""

    def passes(self) -> list[BuildPlan]:
        """Return the passes of a build, in order: the features without a network, then those of each device setting.

        Features that are not requested, and are made again because the source is another one, are of the first pass.
        """
        devices = {artefact.device for artefact in self.artefacts}
        if not any(devices):
            return [self]
        known = {artefact.device for artefact in self.all_artefacts}
        first, *others = sorted(devices | (known & {""}))
        passes = [replace(self, device=first, other_devices=frozenset(devices - {first}))]
        return passes + [replace(self, device=device, other_devices=frozenset(known - {device})) for device in others]

    def devices(self) -> tuple[str, ...]:
        """Return the devices of a pass, for a process each. Raise ``UsageError`` if this machine lacks them."""
        specs = (spec for artefact in self.artefacts for spec in artefact.features if self.device)
        return next((spec.devices() for spec in specs if spec.device == self.device), ())

    @cached_property
    def artefacts(self) -> tuple[ArtefactTask, ...]:
        """Files of a video: the requested features that can be made here."""
        return artefacts_of(self.requested, self.specs, self.config, self.other_devices)

    @cached_property
    def all_artefacts(self) -> tuple[ArtefactTask, ...]:
        """The same for all features, since nothing is kept of a video if another source is at its path now."""
        return artefacts_of(self.features, self.specs, self.config, self.other_devices)

    @cached_property
    def picture_id(self) -> str:
        """Fingerprint of the settings of its pictures."""
        return self.config.picture.fingerprint

    @cached_property
    def fingerprints(self) -> dict[str, str | None]:
        """Fingerprint of each feature, or None if it cannot be made here."""
        return {name: spec.fingerprint if spec else None for name, spec in self.specs.items()}

    @cached_property
    def files(self) -> FeatureFiles:
        """Files of the features that are cached."""
        return FeatureFiles(self.cache)


def artefacts_of(
    features: Features,
    specs: Mapping[str, FeatureSpec | None],
    config: Config,
    other_devices: Container[str] = (),
) -> tuple[ArtefactTask, ...]:
    """Return the files of a video that hold these features, as far as these can be made here.

    Those that belong to passes of other devices are left out.
    """
    artefacts = []
    for tier, names in features.items():
        settings = config.frames.codec_settings if tier == "lmdb" and config.frames else {}
        options: dict[str, Any] = {name: settings[name] for name in ("gop", "stride") if name in settings}
        available = tuple(spec for name in names if (spec := specs[name]) is not None)
        if not TIERS[tier].one_file:
            artefacts += [ArtefactTask(tier, (spec,), options) for spec in available]
        elif len(available) == len(names):  # a file without one of its features would replace a file that has it
            artefacts.append(ArtefactTask(tier, available, options))
    return tuple(artefact for artefact in artefacts if artefact.device not in other_devices)


def resolve_features(
    features: Features, config: Config, required: Container[str] = ()
) -> dict[str, FeatureSpec | None]:
    """Return each feature's specification, or None if it cannot be made here.

    Raises ``UsageError`` if a required feature needs a package that is not installed, or its
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
