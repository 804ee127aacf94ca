"""``finish``: moves what the parts of a cache have built into the cache, once all parts are complete."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from chordcache.amounts import counted
from chordcache.building.build_plan import BuildPlan, write_plan
from chordcache.building.existing_cache import as_cached, earlier_header
from chordcache.building.fix_commands import repairable
from chordcache.building.prune import drop, leaves_cache
from chordcache.config.config import config_from_json
from chordcache.engine.signals import stop_signals
from chordcache.errors import DamageError, UsageError, printable
from chordcache.index.grouping import IndexRows
from chordcache.index.index_files import Index, cached_index
from chordcache.records import RunSummary
from chordcache.storage import atomic, layout
from chordcache.storage import part_folders as parts
from chordcache.storage.artefacts.tiers import TIERS
from chordcache.storage.cache_header import Header, read_header
from chordcache.storage.find_sidecars import Sidecars, iter_keys, write_catalog
from chordcache.storage.lock import locked
from chordcache.storage.opener import iter_files, list_folder, remove
from chordcache.storage.quarantine import Failure, Quarantine, write_failures
from chordcache.storage.run_log import Run, append_run, read_runs, recorded
from chordcache.storage.sidecar import read_sidecar


@dataclass(frozen=True)
class FinishReport:
    """The result of ``finish``."""

    num_parts: int
    """Number of parts, 0 if the cache is not built in parts"""
    missing: tuple[int, ...] = ()
    """Parts that are not complete, from 1. Nothing was moved if there are any"""
    summary: RunSummary | None = None
    """Counts of all parts, or None if nothing was moved"""

    @property
    def array(self) -> str:
        """The parts that are not complete, as an argument of ``sbatch --array``, such as "2,5-7"."""
        runs = ([n for _, n in run] for _, run in groupby(enumerate(self.missing), lambda pair: pair[1] - pair[0]))
        return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)


def finish(cache: str | Path, *, on_wait: Callable[[str], None] | None = None) -> FinishReport:
    """Move what the parts of a cache have built into the cache, and write its lists.

    Call it after the last part of ``build(options=BuildOptions(part="I/N"))``. It can be called again, also after it
    was killed.

    Parameters
    ----------
    cache : str or Path
        The cache.
    on_wait : callable, optional
        Wait while another process writes to the cache. It is called once, with a line that names that process.

    Returns
    -------
    FinishReport
        Counts of all parts, or the parts that are not complete.

    Raises
    ------
    UsageError
        If the folder is not a cache, or has parts of several plans.
    LockedError
        If another command writes to the cache.
    DamageError
        If a list of the parts is damaged, or sidecars are missing.
    NoSpaceError, StoppedError
        As their names say. The same call resumes.
    """
    folder = layout.cache_folder(cache)
    if not parts.in_parts(folder) and earlier_header(folder) is None:
        read_header(folder)  # raises
    with stop_signals(resumes=True), locked(folder, on_wait, finishes_parts=True):
        plans = parts.plan_folders(folder)
        if not plans:
            _remove_parts(folder)
            return FinishReport(0)
        if len(plans) > 1:
            names = ", ".join(f"'{printable(plan)}'" for plan in plans)
            raise UsageError(f"cache: got parts of {len(plans)} plans, {names}, expected one. Remove the others.")
        shared = parts.read_plan(plans[0])
        attempts = {part.number: [*filter(parts.is_done, parts.attempts_of(plans[0], part))] for part in shared.parts()}
        if missing := tuple(number for number, folders in attempts.items() if not folders):
            return FinishReport(shared.num_parts, missing)
        with recorded(folder, "finish") as notes:
            summary = _join(folder, plans[0], list(attempts.values()))
            notes.take(summary)
        return FinishReport(shared.num_parts, (), summary)


def _join(cache: Path, plan: Path, attempts: list[list[Path]]) -> RunSummary:
    """Move the videos, then write the lists. The header and the index come first: they make the folder a cache."""
    runs = _runs_of([plan, *parts.folders_of(plan)])
    sidecars = Sidecars(cache)
    before = set(sidecars.sorted_keys())
    header = read_header(attempts[0][0])
    keys = _register(cache, cached_index(plan), header)
    failures: dict[str, Failure] = {}
    for folders in attempts:
        failures |= _move_part(sidecars, folders)
    after = Sidecars(cache)
    earlier = ((failure, after.read_or_none(key)) for key, failure in failures.items())
    drop(after, [failure.key for failure, one in earlier if one and leaves_cache(failure)])
    cached = set(Sidecars(cache).sorted_keys())
    if lost := keys - cached - failures.keys():
        raise DamageError(
            f"'{printable(plan)}' has no sidecars of {counted(len(lost), 'video')} that its parts have built, such as "
            f"'{min(lost)}', expected all. Copy or mount them, or {parts.how_to_give_up(cache)} and build again."
        )
    with repairable(cache, "remove that file and run the same command"):
        others = (failure for failure in Quarantine(cache, {}) if failure.key not in keys)
    write_failures(cache, (*others, *failures.values()))
    write_catalog(cache)
    known = {(run.started, run.elapsed_seconds) for run in _runs_of([cache])}  # an earlier call was killed here
    for run in runs:
        if (run.started, run.elapsed_seconds) not in known:
            append_run(cache, run)
    _remove_parts(cache)
    num_cached = len(keys) - len(failures)
    builds = [run for run in runs if run.command == "build"]  # the others are of the scan
    # A build that was killed has no line about what it built
    num_new = sum(key not in before for key in keys & cached - failures.keys())
    num_done = min(num_cached, max(num_new, sum(run.counts.get("num_done", 0) for run in builds)))
    return RunSummary(
        num_inputs=len(keys),
        num_done=num_done,
        num_up_to_date=num_cached - num_done,
        num_failed=len(failures),
        num_frames=sum(run.counts.get("num_frames", 0) for run in builds),
        elapsed_seconds=sum(run.elapsed_seconds for run in builds),
    )


def _register(cache: Path, index: Index, header: Header) -> set[str]:
    """Write the header of the parts, and the whole index: its order is that of the videos. Return its keys."""
    index = as_cached(cache, index, header.roots)
    plan = BuildPlan(
        cache, index, None, config_from_json(header.config, trusted=()), header.features, header.features, {},
        roots=header.roots, moved=frozenset(header.roots), follow_symlinks=header.follow_symlinks,
    )  # fmt: skip
    with IndexRows(index) as rows:
        write_plan(plan, rows.keys, prune=False)
        return rows.keys


def _move_part(sidecars: Sidecars, folders: list[Path]) -> Mapping[str, Failure]:
    """Move the videos of one part, which one machine or several completed. Return the failures that all of them had.

    A video that is in a pack of the cache, and has not changed, stays there. A move that was killed goes on where it
    was.
    """
    cache = sidecars.cache
    failed: dict[Path, dict[str, Failure]] = {}
    for folder in folders:
        with repairable(cache, f"remove '{printable(folder)}' and start the part again"):
            failed[folder] = {failure.key: failure for failure in Quarantine(folder, {})}
            keys = {layout.key_of(record) for record in cached_index(folder)}
    everywhere = {key for key in keys if all(key in failures for failures in failed.values())}
    left = set(keys)
    for folder in folders:
        # The sidecars are listed before the artefacts: a process that still publishes here, unseen, adds complete ones
        mine = {key for key in iter_keys(folder) if key in left}
        mine -= failed[folder].keys() - everywhere
        left -= mine
        packed = {key for key in mine if sidecars.packs.owner(key)}
        mine -= {key for key in packed if sidecars.read(key).unpacked() == read_sidecar(folder, key)}
        _move(cache, folder, TIERS, mine)
        _move(cache, folder, ["videos"], mine)
    return {key: failure for key, failure in failed[folders[0]].items() if key in everywhere}


def _move(cache: Path, folder: Path, kinds: Iterable[str], keys: Collection[str]) -> None:
    """Rename the files of some videos."""
    for kind in kinds:
        files = (file for file in iter_files(folder, kind) if os.path.basename(file).partition(".")[0] in keys)
        atomic.publish_all(cache, {folder / file: file for file in files}, are_synced=True)


def _runs_of(folders: Iterable[Path]) -> list[Run]:
    """Return the runs in some logs by their start. Those behind damage, which ``verify`` reports, are left out."""
    runs: list[Run] = []
    for folder in folders:
        with suppress(DamageError):
            runs.extend(read_runs(folder))
    return sorted(runs, key=lambda run: run.started)


def _remove_parts(cache: Path) -> None:
    """Remove what is left of joined parts. Without its plan first, no half of a folder counts as parts."""
    with suppress(FileNotFoundError):
        for name in list_folder(cache, layout.PARTS):
            if parts.is_plan_name(name):
                remove(cache, f"{layout.PARTS}/{name}/{parts.PLAN_FILE}")
                shutil.rmtree(cache / layout.PARTS / name, ignore_errors=True)
    with suppress(OSError):
        os.rmdir(cache / layout.PARTS)
