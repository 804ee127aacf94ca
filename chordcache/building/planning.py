"""The making of a build's plan, from the arguments of the build, or from everything that earlier builds requested."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from chordcache.bucket import source_folder
from chordcache.building.build_options import BuildOptions
from chordcache.building.build_plan import BuildPlan, merged_roots, resolve_features
from chordcache.building.existing_cache import as_cached, earlier_header
from chordcache.building.requested import request_of
from chordcache.config.config import Config, config_from_json
from chordcache.config.yaml_files import ConfigFiles
from chordcache.index.index_files import Index, no_videos, read_index
from chordcache.storage.cache_header import check_named, read_header, roots_now


def make_plan(
    cache: Path,
    index: str | Path | Index,
    config: ConfigFiles | Config | None,
    tiers: Sequence[str] | None,
    features: Sequence[str] | None,
    *,
    roots: Mapping[str, str] | None,
    options: BuildOptions,
) -> BuildPlan:
    """Make the plan of ``build``, which has these parameters.

    Raises ``UsageError``, ``ConfigError`` and ``NotFoundError`` if an argument is wrong, or the folder holds something
    other than a cache.
    """
    earlier = earlier_header(cache)
    config, requested, with_earlier = request_of(config, tiers, features, earlier=earlier, drop=options.drop)
    specs = resolve_features(with_earlier, config, {name for names in requested.values() for name in names})
    if not isinstance(index, Index):
        index = read_index(index)
        if not len(index):
            raise no_videos(index)
    index = as_cached(cache, index, _absolute(roots), earlier.index_digests if earlier else ("", ""))
    plan = BuildPlan(cache, index, earlier, config, requested, with_earlier, specs)
    return _plan(plan, roots, options)


def plan_as_before(
    cache: Path,
    index: Index,
    *,
    roots: Mapping[str, str] | None = None,
    options: BuildOptions,
    trusted: Collection[str] = (),
) -> BuildPlan:
    """Make the plan of a build of everything that earlier builds requested, as far as it can be made here.

    ``trusted`` are classes of plug-ins and models that the user has named, see ``config_from_json``.
    """
    check_named(index.roots, roots)
    earlier = read_header(cache)
    config, features = config_from_json(earlier.config, trusted=trusted), earlier.features
    specs = resolve_features(features, config)
    plan = BuildPlan(cache, index, earlier, config, features, features, specs, part=earlier.part)
    return _plan(plan, roots, options)


def _plan(plan: BuildPlan, roots: Mapping[str, str] | None, options: BuildOptions) -> BuildPlan:
    """Complete a plan with the folders of the sources, and the options that a cache remembers."""
    moved, before = _absolute(roots), plan.earlier
    roots_now({**plan.index.source.header.roots, **(before.roots if before else {})}, moved)  # raises for other names
    completed = replace(
        plan,
        roots={**plan.index.roots, **moved},
        moved=frozenset(moved),
        follow_symlinks=any(other and other.follow_symlinks for other in (options, plan.index, before)),
    )
    merged_roots(before.roots if before else {}, completed)  # raises before a build waits for a lock
    return completed


def _absolute(roots: Mapping[str, str] | None) -> dict[str, str]:
    return {name: source_folder(path) for name, path in (roots or {}).items()}
