"""The request to a cache, by tier and feature, and the part of it that a video lacks."""

from __future__ import annotations

import os
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from chordcache.config import TIERS, Config
from chordcache.errors import ConfigError, UsageError
from chordcache.features.registry import check_requirement, resolve
from chordcache.records import FeatureInfo
from chordcache.storage.sidecar import Sidecar

Features: TypeAlias = Mapping[str, tuple[str, ...]]
"""Tier to the names of its features."""


@dataclass(frozen=True)
class ArtefactTask:
    """One file to write."""

    tier: str
    make: tuple[str, ...]
    """Features to extract"""
    keep: tuple[FeatureInfo, ...] = ()
    """Up-to-date features, copied from the existing file"""


def requested_features(config: Config, tiers: Sequence[str], features: Sequence[str] | None) -> Features:
    """Return the features that a config puts into each tier, limited to ``features``.

    Raises
    ------
    UsageError
        If there is no such tier or feature, or a package that a feature needs is not installed.
    ConfigError
        If a tier would hold no feature, or an extractor cannot be imported.
    """
    for tier in tiers:
        if tier not in TIERS:
            raise UsageError(f"unknown tier '{tier}'; valid tiers are {', '.join(TIERS)}")
    for name in features or ():
        if name not in config.names():
            raise UsageError(f"unknown feature '{name}'; this config has {', '.join(config.names())}")
    asked = {}
    for tier in dict.fromkeys(tiers):
        asked[tier] = tuple(name for name in config.features_in(tier) if features is None or name in features)
        if not asked[tier]:
            what = f"none of {', '.join(features)}" if features else "nothing"
            raise ConfigError(f"the config puts {what} into tier {tier}: nothing to build there")
        for name in asked[tier]:
            check_requirement(resolve(name, config))
    return asked


def merge(new: Features, earlier: Features, config: Config) -> Features:
    """Return what this build and earlier builds ask for, limited to what the config still puts into each tier.

    Raises
    ------
    ConfigError
        If the config lists a feature for a tier of the cache but does not define it.
    """
    found = {}
    for tier in TIERS:
        still = [name for name in earlier.get(tier, ()) if name in config.features_in(tier)]
        found[tier] = tuple(dict.fromkeys((*new.get(tier, ()), *still)))
    return {tier: names for tier, names in found.items() if names}


def fingerprints(wanted: Features, config: Config) -> dict[str, str | None]:
    """Return each feature's fingerprint, or None if it cannot be made here because a package is not installed."""
    found: dict[str, str | None] = {}
    for name in dict.fromkeys(name for names in wanted.values() for name in names):
        try:
            spec = resolve(name, config)
            check_requirement(spec)
            found[name] = spec.fingerprint
        except UsageError:
            found[name] = None
    return found


def is_stale(info: FeatureInfo, expected: Mapping[str, str | None]) -> bool:
    """Return whether a feature was made with parameters other than the config's, or is no longer in the config."""
    return expected.get(info.feature, "") not in (None, info.fingerprint)


def artefacts_to_write(
    cache: Path,
    sidecar: Sidecar | None,
    asked: Features,
    wanted: Features,
    expected: Mapping[str, str | None],
    rebuild: Container[str],
) -> tuple[ArtefactTask, ...]:
    """Return the missing or stale artefacts of one video, and the features that stay in the same files.

    Parameters
    ----------
    cache : Path
        The cache.
    sidecar : Sidecar or None
        The existing sidecar.
    asked : mapping of str to tuple of str
        Tier to the features that this build must make.
    wanted : mapping of str to tuple of str
        Tier to the features that all builds asked for. A stale feature that is not among these is left out of the new
        file.
    expected : mapping of str to str or None
        As ``fingerprints`` returns it.
    rebuild : container of str
        Files, relative to the cache, that count as missing.
    """
    tasks = []
    for tier, names in asked.items():
        infos = [info for info in sidecar.features if info.tier == tier] if sidecar else []
        current = [info for info in infos if not is_stale(info, expected) and _is_there(cache, info, rebuild)]
        have = {info.feature for info in current}
        make = tuple(name for name in names if name not in have and expected[name] is not None)
        removed = any(is_stale(info, expected) and info.feature not in wanted.get(tier, ()) for info in infos)
        if make or removed:
            tasks.append(ArtefactTask(tier, make, tuple(current)))
    return tuple(tasks)


def _is_there(cache: Path, info: FeatureInfo, rebuild: Container[str]) -> bool:
    if info.file is None:
        return True
    try:
        return info.file not in rebuild and os.path.getsize(cache / info.file) == info.num_bytes
    except OSError:
        return False
