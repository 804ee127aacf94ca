"""The making of a build's plan, from the arguments of the build, or from everything that earlier builds requested."""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from chordcache.building.build_options import BuildOptions
from chordcache.building.build_plan import BuildPlan, resolve_features
from chordcache.building.existing_cache import as_cached, earlier_header
from chordcache.building.fix_commands import repairable
from chordcache.building.requested import request_of
from chordcache.config.config import Config, config_from_json, config_to_json
from chordcache.config.yaml_files import ConfigFiles
from chordcache.digests import digest_file
from chordcache.errors import UsageError, printable
from chordcache.index.column_types import check_values, merged_columns
from chordcache.index.index_files import Index, cached_index, no_videos, read_index
from chordcache.media.versions import tool_versions
from chordcache.object_stores.client import source_folder
from chordcache.storage import atomic, layout
from chordcache.storage.cache_header import Header, check_named, read_header, roots_now, write_header
from chordcache.storage.find_sidecars import iter_keys
from chordcache.storage.opener import exists


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

    Raises ``UsageError`` and ``NotFoundError`` if an argument is wrong, or the folder holds something
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


def write_plan(plan: BuildPlan, keys: Container[str], *, prune: bool) -> BuildPlan:
    """Write the index and the header of the cache, under its lock, before any video is built. Return the plan.

    The index gets the records of the plan, whose keys are ``keys``. It keeps the earlier ones, unless ``prune`` is set,
    or the plan's index has all videos of their root and these are not among them. It stays as it is if the last build
    wrote it from the same index. The header keeps the roots of earlier builds. The plan takes over options
    of an earlier index.

    Raises ``UsageError`` if a root has the label of another folder of the cache, or a column has another type there,
    ``DamageError`` if the existing index is damaged, and ``StorageError`` if the sidecars cannot be listed.
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
