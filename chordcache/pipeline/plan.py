"""What is asked of a cache, tier by tier and feature by feature, and what of it a video lacks."""

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
from chordcache.storage.layout import Sidecar

Features: TypeAlias = Mapping[str, tuple[str, ...]]
"""Tier to the features in it."""


@dataclass(frozen=True)
class ArtefactTask:
    """One file to write."""

    tier: str
    make: tuple[str, ...]
    """Features to extract"""
    keep: tuple[FeatureInfo, ...] = ()
    """Features that are up to date, copied from the file that is there"""


def requested_features(config: Config, tiers: Sequence[str], features: Sequence[str] | None) -> Features:
    """Tier to the features that a config puts into it, narrowed to ``features``.

    Raises
    ------
    UsageError
        If there is no such tier or feature, or what a feature needs is not installed.
    ConfigError
        If there is nothing to build in a tier, or an extractor cannot be had.
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
    """What a build asks for and what earlier ones did, as far as the config still puts it there.

    Raises
    ------
    ConfigError
        If the config lists a feature in a tier of the cache that it has not.
    """
    found = {}
    for tier in TIERS:
        still = [name for name in earlier.get(tier, ()) if name in config.features_in(tier)]
        found[tier] = tuple(dict.fromkeys((*new.get(tier, ()), *still)))
    return {tier: names for tier, names in found.items() if names}


def fingerprints(wanted: Features, config: Config) -> dict[str, str | None]:
    """Feature to its fingerprint; None where it cannot be made here, as something is not installed."""
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
    """Whether a feature was made with other parameters than those of the config, or is no longer in it."""
    return expected.get(info.feature, "") not in (None, info.fingerprint)


def artefacts_to_write(
    cache: Path,
    sidecar: Sidecar | None,
    asked: Features,
    wanted: Features,
    expected: Mapping[str, str | None],
    rebuild: Container[str],
) -> tuple[ArtefactTask, ...]:
    """What is missing or stale of one video, and what stays in the same files.

    Parameters
    ----------
    cache : Path
        The cache.
    sidecar : Sidecar or None
        What there is.
    asked : mapping of str to tuple of str
        Tier to the features that this build is to make.
    wanted : mapping of str to tuple of str
        The same of all builds: what is stale and not among these is left out of the file, which is written anew.
    expected : mapping of str to str or None
        As ``fingerprints`` gives it.
    rebuild : container of str
        Files, relative to the cache, that do not count as there.
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
