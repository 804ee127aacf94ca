"""Cached features that a build makes again, because their settings or their extractors changed."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from chordcache.amounts import counted, duration
from chordcache.building.build_plan import BuildPlan, fingerprints_of, resolve_features
from chordcache.building.build_task import is_stale, needed
from chordcache.config.config import config_from_json
from chordcache.errors import ChordcacheError
from chordcache.media.versions import tool_versions
from chordcache.storage.feature_info import leaves
from chordcache.storage.find_sidecars import Sidecars


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
        artefacts = needed(sidecar, plan, sidecar.record).artefacts
        for tier, spec in ((artefact.tier, spec) for artefact in artefacts for spec in artefact.features):
            info = sidecar.feature(spec.name, tier)
            if info is not None and is_stale(info, plan.fingerprints):
                changes = ", ".join(differences(info.feature, info.params, spec.params)) or "made by another version"
                stale.setdefault(info.feature, StaleFeature(info.feature, changes))
                names.add(info.feature)
        for name in names:
            stale[name].num_videos += 1
            stale[name].seconds += sidecar.duration_seconds
    return list(stale.values())


def _may_differ(plan: BuildPlan) -> bool:
    """Return whether a setting of a feature or a tool is another one than in the last build."""
    assert plan.earlier is not None
    before = resolve_features(plan.earlier.features, config_from_json(plan.earlier.config, trusted=()))
    old, new = fingerprints_of(before), plan.fingerprints
    return dict(plan.earlier.versions) != tool_versions() or any(new.get(name) != old[name] for name in old)


def differences(name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """Yield the parameters that differ, such as "frames.quality: 90 -> 80"."""
    before, after = (
        {leaf: list(value) if isinstance(value, tuple) else value for leaf, value in leaves(name, params)}
        for params in (old, new)
    )
    for leaf in sorted(before.keys() | after.keys()):
        if before.get(leaf) != after.get(leaf):
            yield f"{leaf}: {before.get(leaf, 'nothing')} -> {after.get(leaf, 'nothing')}"
