"""``verify --repair`` and ``gc``: the commands that change a cache in which ``verify`` found damage."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

from chordcache.arguments import names_arguments
from chordcache.building.build_options import BuildOptions
from chordcache.building.build_run import build_as_before
from chordcache.building.existing_cache import check_sidecars, index_of, unnamed_files
from chordcache.building.fix_commands import gc_command
from chordcache.config.config import Config, trusted_names
from chordcache.config.yaml_files import ConfigFiles, load_config
from chordcache.engine import pool
from chordcache.engine.choice import Engine, engine_of
from chordcache.engine.display import Display
from chordcache.engine.limits import Limits
from chordcache.engine.signals import stop_signals
from chordcache.errors import ChordcacheError, DamageError, StorageError, printable
from chordcache.index.index_files import IndexWriter, cached_index, temporary_index
from chordcache.records import RunSummary, VideoRecord
from chordcache.storage import atomic, feature_files, layout, opener, sealed_json
from chordcache.storage.cache_header import Header, read_header
from chordcache.storage.catalog import Catalog
from chordcache.storage.catalog_file import CATALOG
from chordcache.storage.find_sidecars import Sidecars, update_catalog, write_catalog
from chordcache.storage.lock import locked
from chordcache.storage.run_log import RUNS_FILE, RunNotes, recorded
from chordcache.verifying.findings import Damage
from chordcache.verifying.verify_lists import added_by_readers, check_index, find_orphans


@names_arguments
def repair(
    cache: str | Path,
    damage: Sequence[Damage],
    *,
    jobs: int | Engine | None = None,
    roots: Mapping[str, str] | None = None,
    limits: Limits | None = None,
    config: ConfigFiles | Config | None = None,
    progress: bool | Display = False,
) -> RunSummary:
    """Build again what ``verify`` found damaged or missing, and nothing else.

    Parameters
    ----------
    cache : str or Path
        The cache that was verified.
    damage : sequence of Damage
        Findings of ``verify``: the ``damage`` of its report, or some of it.
    jobs, roots, progress
        As in ``build``.
    config
        As in ``verify``. Features of plug-ins and models that only the cache names are not built.
    limits : Limits, optional
        Limits for one input.

    Returns
    -------
    RunSummary
        Counts of the videos that were built again.

    Raises
    ------
    DamageError
        If the index of the cache does not name a damaged video, so that its source is unknown.
    LockedError
        If another process writes to the cache.
    """
    folder = layout.cache_folder(cache)
    broken = [finding for finding in damage if finding.kind in ("damaged", "missing")]
    trusted = trusted_names(load_config(config))
    read_header(folder).writable(folder)  # raises before a lock is made in a folder that is not a cache
    engine = pool.prepared(engine_of(jobs))
    options = BuildOptions(rebuild=frozenset(finding.file for finding in broken), limits=limits or Limits())
    with (
        stop_signals(resumes=True), locked(folder), recorded(folder, "repair", jobs=engine.jobs) as notes,
        atomic.writing_to(folder),
    ):  # fmt: skip
        records = _repair_lists(folder, broken, options)
        if not records:
            return RunSummary(num_inputs=0, num_done=0, num_up_to_date=0, num_failed=0)
        with temporary_index(records, **_index_settings(read_header(folder))) as index:
            return build_as_before(
                folder, index, roots=roots, engine=engine, options=options, progress=progress, notes=notes,
                trusted=trusted,
            )  # fmt: skip


def _repair_lists(folder: Path, broken: Sequence[Damage], options: BuildOptions) -> list[VideoRecord]:
    """Repair the lists of a cache, and return the records of the videos to build."""
    for name in {"quarantine.jsonl", RUNS_FILE}.intersection(options.rebuild):
        atomic.publish_text(folder, name, "".join(f"{line}\n" for line in _sound_lines(folder, name)))
    restored = _restored_sidecars(folder, broken)
    keys = {str(finding.key) for finding in broken if finding.key is not None and finding.file != CATALOG}
    if "index.jsonl" in options.rebuild or added_by_readers(folder, set(Sidecars(folder).sorted_keys())):
        _repair_index(folder, read_header(folder))
    records = _records_of(folder, keys, restored)
    write_catalog(folder)
    return records


def _index_settings(header: Header) -> dict[str, Any]:
    settings = {"roots": header.roots, "follow_symlinks": header.follow_symlinks, "columns": header.columns}
    return {**settings, "level": "packets"}


def _restored_sidecars(cache: Path, broken: Sequence[Damage]) -> set[str]:
    """Write lost and damaged sidecars as the catalog has them, if their files are intact. Return their keys."""
    restored = set()
    with suppress(ChordcacheError):  # the catalog may be damaged too: their videos are built again
        catalog = Catalog(cache)
        for finding in broken:
            if finding.key is not None and finding.file == layout.sidecar_file(finding.key):
                sidecar = catalog.find(finding.key)
                if sidecar is not None and all(feature_files.is_intact(cache, file) for file in sidecar.files):
                    atomic.publish_text(cache, finding.file, sidecar.to_line() + "\n")
                    restored.add(finding.key)
    return restored


def _records_of(cache: Path, keys: set[str], restored: Collection[str]) -> list[VideoRecord]:
    """Return the records of the videos to build. One whose sidecar was restored is up to date if its files are."""
    if not keys:
        return []
    records = {key: record for record in cached_index(cache) if (key := layout.key_of(record)) in keys}
    if unknown := sorted(keys.difference(records, restored)):
        raise DamageError(
            f"'{printable(unknown[0])}' is damaged and the cache's index does not name its source; "
            "run 'chordcache build' with an index that does"
        )
    return list(records.values())


def _sound_lines(cache: Path, name: str) -> list[str]:
    sound = []
    for data in opener.iter_lines(cache, name):
        line = data.decode("ascii", "replace").rstrip("\r\n")
        with suppress(ChordcacheError):
            sealed_json.unseal(line, "")
            sound.append(line)
    return sound


def _repair_index(cache: Path, header: Header) -> None:
    """Keep the sound lines. A lost record is restored from its sidecar, without the values that the scan measured."""
    records: dict[str, VideoRecord] = {}
    sidecars = Sidecars(cache)
    for key in sidecars.sorted_keys():
        if (sidecar := sidecars.read_or_none(key)) is not None and sidecar.root in header.roots:
            records[key] = sidecar.record
    path = cache / "index.jsonl"
    for line in _sound_lines(cache, path.name):
        with suppress(DamageError):  # the first and the last line are not records
            record = sealed_json.unseal_as(line, str(path), VideoRecord, "a record")
            records[layout.key_of(record)] = record
    with atomic.partial_folder(cache) as folder:
        with IndexWriter(folder / path.name, **_index_settings(header)) as writer:
            for key in sorted(records):
                writer.write(records[key])
        atomic.publish(folder / path.name, path)


@names_arguments
def collect_garbage(cache: str | Path, *, dry_run: bool = False) -> list[str]:
    """Remove artefacts that no sidecar names: superseded generations, and those of videos that left the index.

    An artefact whose video is in the index and has no sidecar stays: a build that was killed completes it, or the
    sidecar is not copied yet. Files that chordcache did not make stay too, see ``kept_orphans``.

    Parameters
    ----------
    cache : str or Path
        A cache that no process builds. Readers that still use an old generation lose it.
    dry_run : bool
        True to return the files without removing them.

    Returns
    -------
    list of str
        The orphaned files, relative to the cache.

    Raises
    ------
    DamageError
        If a sidecar or the index is damaged or missing, such as in a copy that is not complete. Artefacts would look
        like garbage.
    StorageError
        If a list cannot be read.
    LockedError
        If a build is running.
    """
    folder = layout.cache_folder(cache)
    read_header(folder).writable(folder)
    log = nullcontext(RunNotes()) if dry_run else recorded(folder, "gc")
    with locked(folder), log as notes, atomic.writing_to(folder):
        check_sidecars(folder)
        index_of(folder)
        files, _ = unnamed_files(folder, must_read=True)
        if not dry_run:
            added = added_by_readers(folder, set(Sidecars(folder).sorted_keys()))  # the next build lists them
            # A catalog that lags may name a file to remove. If the disk is full now, there is space after the removal
            try:
                update_catalog(folder, added)
            except StorageError as error:
                if error.errno not in atomic.NO_SPACE:
                    raise
            for file in files:
                opener.remove(folder, file)
            atomic.remove_partials(folder, of_all_machines=True)
            update_catalog(folder, added)
        notes.counts = {"num_removed": len(files)}
    return files


def kept_orphans(cache: str | Path) -> list[Damage]:
    """Return the orphans that ``verify`` finds and ``collect_garbage`` leaves, each with the reason."""
    folder = layout.cache_folder(cache)
    in_lists = check_index(folder, set(Sidecars(folder).sorted_keys()), read_header(folder).features)
    orphans = (finding for finding in (*in_lists, *find_orphans(folder)) if finding.kind == "orphan")
    return [orphan for orphan in orphans if orphan.fix_command != gc_command(folder)]
