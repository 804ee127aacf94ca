"""The check of a cache's catalog, index, quarantine and files against its sidecars."""

from __future__ import annotations

from collections import deque
from collections.abc import Set
from contextlib import suppress
from pathlib import Path

from chordcache.amounts import counted
from chordcache.building.existing_cache import TOP_LEVEL, unnamed_files
from chordcache.building.fix_commands import build_command, gc_command, repair_command
from chordcache.building.requested import Features
from chordcache.errors import (
    OTHER_FORMAT,
    ChordcacheError,
    DamageError,
    NotFoundError,
    StorageError,
    UsageError,
    printable,
)
from chordcache.index.index_files import cached_index
from chordcache.storage import layout, opener
from chordcache.storage.artefacts.tiers import TIERS
from chordcache.storage.catalog import Catalog
from chordcache.storage.catalog_file import CATALOG
from chordcache.storage.find_sidecars import Sidecars
from chordcache.storage.packs import check_pack, packs_of
from chordcache.storage.quarantine import Quarantine
from chordcache.storage.run_log import RUNS_FILE, read_runs
from chordcache.storage.sidecar import Sidecar
from chordcache.verifying.findings import Damage


def added_by_readers(cache: Path, keys: Set[str]) -> set[str]:
    """Return the keys of sidecars that neither the catalog nor the index names: readers added them, no build did."""
    added: set[str] = set()
    with suppress(ChordcacheError):  # reported by check_catalog and check_index
        added = set(keys).difference(Catalog(cache).keys())
        if added:
            added -= set(map(layout.key_of, cached_index(cache)))
    return added


def check_catalog(
    cache: Path, sidecars: Sidecars, features: Features, *, level: str, added: Set[str] = frozenset()
) -> list[Damage]:
    """Compare the catalog with the sidecars. A video that only the catalog knows has lost its sidecar.

    With the level "quick", a sidecar is not read again if its size and mtime are those that the catalog states. The
    catalog of a packed cache is compared with itself. Nothing is said about ``added``, see ``added_by_readers``.
    """
    unseen, lagging = set(sidecars.sorted_keys()) - added, set()
    findings = []
    try:
        catalog = Catalog(cache)
        if level == "quick":
            catalog.check_digests()
        keys = catalog.keys() if level == "quick" else (key for key, _ in catalog.check())
        for position, key in enumerate(keys):
            if key not in unseen:
                what = "the catalog names it"
                findings.append(Damage("missing", layout.sidecar_file(key), what, repair_command(cache), key))
            elif not sidecars.is_packed and not (
                (level == "quick" and catalog.is_unchanged(position, key))
                or _is_sidecar_of(sidecars, key, catalog.at(position))
            ):
                lagging.add(key)
            unseen.discard(key)
    except ChordcacheError as error:
        if isinstance(error, NotFoundError) or error.exit_code == OTHER_FORMAT:
            return [Damage("missing", CATALOG, str(error), repair_command(cache))]
        return [of_error(cache, CATALOG, error)]
    if late := lagging | unseen:
        num_late = counted(len(late), "sidecar")
        what = f"the catalog lags behind {num_late}, such as '{min(late)}': a build is running or was killed"
        findings.append(Damage("incomplete", CATALOG, what, build_command(cache, features)))
    return findings


def _is_sidecar_of(sidecars: Sidecars, key: str, sidecar: Sidecar) -> bool:
    try:
        return sidecars.stored_row(key)[0] == sidecar
    except (DamageError, StorageError):
        return True  # reported with its video


def of_error(cache: Path, file: str, error: ChordcacheError) -> Damage:
    """Return the finding about a list that cannot be read. To repair it does not help against a lack of permission."""
    if isinstance(error, StorageError):
        return Damage("unreadable", file, str(error), "")
    return Damage("damaged", file, str(error).partition("; run ")[0], repair_command(cache))


def check_index(cache: Path, keys: set[str], features: Features) -> list[Damage]:
    """Check that every requested video is either cached or in quarantine, and that no others are cached."""
    unnamed = set(keys)
    missing: dict[str, str] = {}
    """Key of each video that is not built to its path"""
    num_records = 0
    quarantine, findings = None, []
    try:
        quarantine = Quarantine(cache, {})
    except (DamageError, StorageError) as error:
        findings = [of_error(cache, "quarantine.jsonl", error)]
    try:
        for record in cached_index(cache):
            num_records += 1
            key = layout.key_of(record)
            unnamed.discard(key)
            if key not in keys and quarantine is not None and quarantine.get(key) is None:
                missing[key] = record.path
    except NotFoundError as error:
        return [*findings, Damage("missing", "index.jsonl", str(error), repair_command(cache))]
    except (DamageError, StorageError, UsageError) as error:
        return [*findings, of_error(cache, "index.jsonl", error)]
    if missing:
        what = f"not built yet: {len(missing)} of {counted(num_records, 'indexed video')}"
        what += f", such as {', '.join(repr(printable(path)) for path in list(missing.values())[:3])}"
        command = build_command(cache, features)
        only = next(iter(missing)) if len(missing) == 1 else None
        findings.append(Damage("incomplete", "index.jsonl", what, command, only, count=len(missing)))
    names = dict.fromkeys(name for names in features.values() for name in names)
    prune_command = f"{build_command(cache, features, names)} --prune 10%"
    what = "the index of the last build does not name this video of its root"
    return findings + [Damage("orphan", layout.sidecar_file(key), what, prune_command, key) for key in sorted(unnamed)]


def check_runs(cache: Path) -> list[Damage]:
    """Check that every line of the run log is what was written."""
    try:
        deque(read_runs(cache), maxlen=0)
    except (DamageError, StorageError) as error:
        return [of_error(cache, RUNS_FILE, error)]
    return []


def find_orphans(cache: Path) -> list[Damage]:
    """Return the files that no sidecar names: superseded generations, and files that are not part of a cache."""
    try:
        superseded, foreign = unnamed_files(cache)
    except StorageError as error:  # a folder
        return [Damage("unreadable", str(printable(cache)), str(error), "")]
    return [Damage("orphan", file, "no sidecar names it", gc_command(cache)) for file in superseded] + [
        Damage("orphan", file, "chordcache did not make it, and gc leaves it; move it away", "") for file in foreign
    ]


def check_packed(cache: Path, sidecars: Sidecars) -> list[Damage]:
    """Check the parts of packs between their files. Return also the files that are not part of the packed cache."""
    rows = [row for row in map(sidecars.read_or_none, sidecars.sorted_keys()) if row is not None]
    findings = []
    for pack in packs_of(rows):
        try:
            check_pack(cache, pack, with_files=False)
        except (DamageError, StorageError) as error:
            findings.append(of_error(cache, pack.name, error))
    named = {layout.place_of(file)[0] for sidecar in rows for file in sidecar.files}
    files = [file for folder in (*TIERS, layout.PACKS) for file in opener.iter_files(cache, folder)]
    if len(rows) < len(sidecars.sorted_keys()):  # a row that cannot be read may name each file
        return findings
    others = sorted({*opener.list_folder(cache)} - TOP_LEVEL | {*files} - named)
    what = "no sidecar names it; move it away"
    return findings + [Damage("orphan", file, what, "") for file in others]
