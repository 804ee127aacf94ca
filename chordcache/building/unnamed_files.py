"""The files of a cache that no sidecar names."""

from __future__ import annotations

import os
from pathlib import Path

from chordcache.errors import DamageError, NotFoundError, UnreadableError, UsageError
from chordcache.index.index_files import cached_index
from chordcache.storage import layout
from chordcache.storage.artefacts.tiers import TIERS
from chordcache.storage.catalog_file import CATALOG, OLD_CATALOG
from chordcache.storage.opener import iter_files, list_folder
from chordcache.storage.packs import REMOVED_FILE, Packs, is_pack_file
from chordcache.storage.part_folders import PARTS
from chordcache.storage.sidecars import Sidecars

_TOP_LEVEL = frozenset(
    (
        *("chordcache.json", "index.jsonl", "videos", CATALOG, OLD_CATALOG, "quarantine.jsonl", "runs.jsonl"),
        *(".partial", ".lock", ".on_demand", PARTS, layout.PACKS),
    )
).union(TIERS)


def unnamed_files(cache: Path, *, must_read: bool = False) -> tuple[list[str], list[str]]:
    """Return the superseded artefacts and packs, and the files that are not part of a cache, each sorted.

    An artefact is not superseded while its sidecar may still come: the index names the video, and it has no sidecar,
    since a build was killed, or a copy of the cache is not complete. With ``must_read``, a sidecar that cannot be read
    raises its error. Without, it may name each file of its video.
    """
    named: set[str] = set()
    unknown: set[str] = set()
    damaged: dict[str, DamageError] | None = None if must_read else {}
    sidecars = Sidecars(cache, Packs(cache, damaged))
    own = set(layout.iter_keys(cache))
    keys = own.union(sidecars.packs.keys())
    for key in keys:
        try:
            named |= sidecars.files(key)
        except (DamageError, UnreadableError):
            if must_read:
                raise
            unknown.add(key)  # this sidecar may have named any artefact of its video
    files_of_own = set(map(layout.sidecar_file, own))
    superseded: list[str] = []
    early: list[str] = []
    foreign = sorted(set(list_folder(cache)) - _TOP_LEVEL)
    foreign += [file for file in iter_files(cache, "videos") if file not in files_of_own]
    for tier in TIERS:
        for file in iter_files(cache, tier):
            key = os.path.basename(file).partition(".")[0]
            if not layout.is_artefact_file(tier, file):
                foreign.append(file)
            elif file not in named and key not in unknown:
                (superseded if key in keys else early).append(file)
    if early:
        superseded += _without_indexed(cache, early)
    are_known = not unknown and not damaged  # else one that cannot be read may name each pack
    packs = list(iter_files(cache, layout.PACKS))
    foreign += [file for file in packs if not is_pack_file(file)]
    if are_known:
        kept = {*named, REMOVED_FILE} if named.intersection(packs) else named
        superseded += [file for file in packs if is_pack_file(file) and file not in kept]
    return sorted(superseded), sorted(foreign)


def _without_indexed(cache: Path, files: list[str]) -> list[str]:
    """Return the artefacts of videos that the index does not name. Without a sound index, it may name each of them."""
    try:
        keys = set(map(layout.key_of, cached_index(cache)))
    except (DamageError, NotFoundError, UnreadableError, UsageError):
        return []
    return [file for file in files if os.path.basename(file).partition(".")[0] not in keys]
