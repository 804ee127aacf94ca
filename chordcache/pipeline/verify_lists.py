"""The check of a cache's catalog, index and quarantine against its sidecars, and the search for files of no video."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from chordcache.errors import DamageError, NotFoundError, UsageError
from chordcache.index.files import read_index
from chordcache.pipeline.findings import Damage
from chordcache.pipeline.fix_commands import build_command, completing_command, gc_command, repair_command
from chordcache.pipeline.requested import Features
from chordcache.storage import layout
from chordcache.storage.artefacts.tiers import TIERS
from chordcache.storage.catalog import Catalog
from chordcache.storage.owner import OWNER_FILE
from chordcache.storage.parts import PARTS, in_parts
from chordcache.storage.quarantine import Quarantine
from chordcache.storage.run_log import RUNS_FILE, read_runs
from chordcache.storage.sidecar import Sidecar, read_sidecar

_TOP_LEVEL = frozenset(
    (
        *("chordcache.json", "index.jsonl", "videos", "catalog.sqlite", "quarantine.jsonl", "runs.jsonl"),
        *(".partial", ".lock", OWNER_FILE, ".on_demand", PARTS),
    )
).union(TIERS)


def check_catalog(cache: Path, keys: list[str], features: Features) -> list[Damage]:
    """Compare the catalog with the sidecars. A video that only the catalog knows has lost its sidecar."""
    file = "catalog.sqlite"
    unseen, lagging = set(keys), set()
    found = []
    try:
        for key, sidecar in Catalog(cache).check():
            if key not in unseen:
                what = "the catalog names it"
                found.append(Damage("missing", layout.sidecar_file(key), what, repair_command(cache), key))
            elif not _is_sidecar_of(cache, key, sidecar):
                lagging.add(key)
            unseen.discard(key)
    except NotFoundError as error:
        command = completing_command(cache, features) if in_parts(cache) else repair_command(cache)
        return [Damage("missing", file, str(error), command)]
    except DamageError as error:
        return [Damage("damaged", file, str(error), repair_command(cache))]
    if late := lagging | unseen:
        what = f"the catalog lags behind {len(late)} sidecars, such as '{min(late)}': a build is running or was killed"
        found.append(Damage("incomplete", file, what, completing_command(cache, features)))
    return found


def _is_sidecar_of(cache: Path, key: str, sidecar: Sidecar) -> bool:
    try:
        return read_sidecar(cache, key) == sidecar
    except DamageError:
        return True  # reported with its video


def check_index(cache: Path, keys: set[str], features: Features) -> list[Damage]:
    """Check that every requested video is either cached or in quarantine, and that no others are cached."""
    found = []
    unnamed = set(keys)
    try:
        quarantine = Quarantine(cache, {})
    except DamageError as error:
        return [Damage("damaged", "quarantine.jsonl", str(error), repair_command(cache))]
    try:
        for record in read_index(cache / "index.jsonl"):
            key = layout.key_of(record)
            unnamed.discard(key)
            if key not in keys and quarantine.get(key) is None:
                what = "requested, but neither cached nor in quarantine"
                found.append(Damage("incomplete", record.path, what, completing_command(cache, features), key))
    except NotFoundError as error:
        return [*found, Damage("missing", "index.jsonl", str(error), repair_command(cache))]
    except (DamageError, UsageError) as error:
        return [*found, Damage("damaged", "index.jsonl", str(error), repair_command(cache))]
    names = dict.fromkeys(name for names in features.values() for name in names)
    prune_command = f"{build_command(cache, features, names)} --prune"
    what = "the index of the last build does not name this video of its root"
    return found + [Damage("orphan", layout.sidecar_file(key), what, prune_command, key) for key in sorted(unnamed)]


def check_runs(cache: Path) -> list[Damage]:
    """Check that every line of the run log is what was written."""
    try:
        for _ in read_runs(cache):
            pass
    except DamageError as error:
        return [Damage("damaged", RUNS_FILE, str(error), repair_command(cache))]
    return []


def find_orphans(cache: Path) -> list[Damage]:
    """Return the files that no sidecar names: superseded generations, and files that are not part of a cache."""
    named: set[str] = set()
    damaged_keys: set[str] = set()
    sidecars: set[str] = set()
    for key in layout.iter_keys(cache):
        sidecars.add(layout.sidecar_file(key))
        try:
            named.update(str(info.file) for info in read_sidecar(cache, key).features)
        except DamageError:
            damaged_keys.add(key)  # this sidecar may have named any artefact of its video
    orphans = []
    foreign = sorted(set(os.listdir(cache)) - _TOP_LEVEL) + [f for f in _files(cache, "videos") if f not in sidecars]
    for tier in TIERS:
        for file in _files(cache, tier):
            if not layout.is_artefact_file(tier, file):
                foreign.append(file)
            elif file not in named and os.path.basename(file).partition(".")[0] not in damaged_keys:
                orphans.append(file)
    return [Damage("orphan", file, "no sidecar names it", gc_command(cache)) for file in sorted(orphans)] + [
        Damage("orphan", file, "the file does not belong to the cache; move it away", "") for file in sorted(foreign)
    ]


def _files(cache: Path, folder: str) -> Iterator[str]:
    for where, _, names in os.walk(cache / folder):
        for name in names:
            yield os.path.relpath(os.path.join(where, name), cache)
