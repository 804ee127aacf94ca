"""The request of a build: the config that holds for it, and the features that go into each tier.

A config changes only what it names. On an existing cache it is merged onto the cache's own config, and the features of
earlier builds stay requested.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeAlias

from chordcache.arguments import as_items, did_you_mean
from chordcache.config.config import Config, config_from_json
from chordcache.config.features import FEATURE_SECTIONS
from chordcache.config.yaml_files import ConfigFiles, load_config, read_config
from chordcache.errors import UsageError
from chordcache.storage.artefacts.tiers import TIERS
from chordcache.storage.cache_header import Header

Features: TypeAlias = Mapping[str, tuple[str, ...]]
"""Tier to the names of its features."""


def request_of(
    config: ConfigFiles | Config | None,
    tiers: Sequence[str] | None,
    features: Sequence[str] | None,
    *,
    earlier: Header | None,
    drop: Sequence[str] = (),
) -> tuple[Config, Features, Features]:
    """Resolve the arguments of ``build`` to a config and the features to make.

    Return the config, the features that this build makes, and those that it and earlier builds requested, both by tier.
    Raises ``UsageError`` if a tier or a feature does not exist, no tier takes a feature, or a tier would hold no
    feature. ``load_config`` raises ``NotFoundError``, too.
    """
    before = config_from_json(earlier.config, trusted=()) if earlier else None
    data = {} if config is None or isinstance(config, Config) else read_config(config)
    whole = load_config(config, before)
    for tier in (*as_items(tiers or ()), *whole.tiers):
        if tier not in TIERS:
            raise UsageError(f"tiers: got '{tier}', expected one of {', '.join(TIERS)}{did_you_mean(tier, TIERS)}")
    built = _without(earlier.features if earlier else {}, drop)
    whole = _completed(whole, before, built, drop, as_items(features or ()))
    requested = _requested(whole, tiers, features, built, _named(data, whole, built, drop))
    for tier, names in requested.items():
        if not names:
            raise UsageError(f"tiers: got {tier}, for which the config has no feature that is asked for")
    merged = {t: tuple(dict.fromkeys((*requested.get(t, ()), *built.get(t, ())))) for t in TIERS}
    merged = {tier: names for tier, names in merged.items() if names}
    requested = {tier: merged[tier] if TIERS[tier].one_file else names for tier, names in requested.items()}
    return whole, requested, merged


def _without(features: Features, drop: Sequence[str]) -> Features:
    """Return features without dropped ones. Raises ``UsageError`` if the cache lacks one of these, or has no other."""
    names = dict.fromkeys(name for of_tier in features.values() for name in of_tier)
    for name in as_items(drop):
        if name not in names:
            valid = f"one of {', '.join(names)}" if names else "none, since nothing is cached"
            raise UsageError(f"drop: got '{name}', expected {valid}{did_you_mean(name, names)}")
    kept = {tier: tuple(name for name in of_tier if name not in drop) for tier, of_tier in features.items()}
    if drop and not any(kept.values()):
        raise UsageError(f"drop: got {', '.join(drop)}, which is all that the cache has. Remove its folder instead.")
    return {tier: of_tier for tier, of_tier in kept.items() if of_tier}


def _completed(
    config: Config, before: Config | None, built: Features, drop: Sequence[str], names: Sequence[str]
) -> Config:
    """Return a config with the features that a cache has and those of ``names``, but without dropped ones.

    Where the config has no settings of a feature, they are those of the cache, or else the default ones. The settings
    of frames stay, since they are those of all pictures.
    """
    cached = {name for of_tier in built.values() for name in of_tier}
    earlier = {name: section for name, section in (before.features if before else {}).items() if name in cached}
    features = {name: section for name, section in {**earlier, **config.features}.items() if name not in drop}
    for name in names:
        if name in drop:
            raise UsageError(f"drop: got '{name}', which is one of features, too. Name it in one of them.")
        if name in FEATURE_SECTIONS and name not in features:
            with suppress(UsageError, TypeError):  # such as a network, which needs the name of a model
                features[name] = FEATURE_SECTIONS[name]()
    in_hdf5 = dict.fromkeys(n for n in (*config.hdf5.features, *built.get("hdf5", ())) if n not in drop)
    frames = config.frames or (before.frames if before and "frames" in cached else None)
    untrusted = config.untrusted | (before.untrusted - config.features.keys() if before else frozenset())
    hdf5 = replace(config.hdf5, features=tuple(in_hdf5))
    return replace(config, frames=frames, features=features, hdf5=hdf5, untrusted=untrusted)


def _named(data: Any, config: Config, built: Features, drop: Sequence[str]) -> Features:
    """Return the features that a config file asks for: those of the tiers that it names, or else those it names.

    A dropped feature is not asked for, as if its section was null.
    """
    if not data:
        return {}
    sections = {"frames": data.get("frames", {}), **(data.get("features") or {}), **dict.fromkeys(drop)}
    if data.get("tiers"):
        by_tier = {tier: config.in_tier(tier) for tier in config.tiers}
        return {t: tuple(n for n in names if sections.get(n, {}) is not None) for t, names in by_tier.items()}
    del sections["frames"]  # its settings are those of all pictures
    return _by_tier(config, [name for name, section in sections.items() if section is not None], built)


def _requested(
    config: Config, tiers: Sequence[str] | None, features: Sequence[str] | None, built: Features, named: Features
) -> Features:
    for name in as_items(features or ()):
        if name not in config.names():
            valid = f"{', '.join(config.names())}{did_you_mean(name, config.names())}"
            raise UsageError(f"features: got '{name}', expected one of {valid}")
    names = None if features is None else as_items(features)
    if tiers is not None:
        return _in_tiers(config, as_items(tiers), names)
    if names is not None:
        return _by_tier(config, names, built)
    usual = built or {tier: names for tier in config.tiers if (names := config.in_tier(tier)) or not named}
    both = {tier: tuple(dict.fromkeys((*usual.get(tier, ()), *named.get(tier, ())))) for tier in TIERS}
    return {tier: both[tier] for tier in TIERS if tier in usual or tier in named}


def _in_tiers(config: Config, tiers: Sequence[str], names: Sequence[str] | None) -> Features:
    """Return the features that a config puts into some tiers, limited to ``names``."""
    by_tier = {tier: config.in_tier(tier) for tier in dict.fromkeys(tiers)}
    for name in names or ():
        if not any(name in of_tier for of_tier in by_tier.values()):
            where = " or ".join(tier for tier in TIERS if name in config.in_tier(tier))
            raise UsageError(
                f"tiers: got {', '.join(by_tier)}, expected one that takes '{name}'. Add {where}, or leave tiers out."
            )
    if names is not None:
        by_tier = {tier: tuple(name for name in of_tier if name in names) for tier, of_tier in by_tier.items()}
    return by_tier


def _by_tier(config: Config, names: Sequence[str], built: Features) -> Features:
    """Return features by tier: where the cache has them, else in the config's tiers, else in LMDB or NPZ."""
    by_tier: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        where = [tier for tier, of_tier in built.items() if name in of_tier]
        where = where or [tier for tier in config.tiers if name in config.in_tier(tier)]
        for tier in where or ["lmdb" if name == "frames" else "npz"]:
            by_tier.setdefault(tier, []).append(name)
    return {tier: tuple(by_tier[tier]) for tier in TIERS if tier in by_tier}
