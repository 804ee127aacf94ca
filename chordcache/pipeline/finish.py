"""``finish``: joins the lists of the parts of a cache, once all parts are complete."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from itertools import chain
from pathlib import Path
from typing import Any

from chordcache.engine.signals import stop_signals
from chordcache.errors import DamageError, printable
from chordcache.pipeline.existing_cache import check_counts, repairable, tool_versions
from chordcache.pipeline.parts import RESTART
from chordcache.records import RunSummary
from chordcache.storage import layout, parts
from chordcache.storage.cache_header import read_header
from chordcache.storage.catalog import write_catalog
from chordcache.storage.lock import locked
from chordcache.storage.owner import check_run, run_of
from chordcache.storage.quarantine import Quarantine, write_failures
from chordcache.storage.run_log import append_run, read_runs, recorded


@dataclass(frozen=True)
class FinishReport:
    """The result of ``finish``."""

    num_parts: int
    """Number of parts, 0 if the cache is not built in parts"""
    missing: tuple[int, ...] = ()
    """Parts that are not complete, from 1. Nothing was joined if there are any"""
    summary: RunSummary | None = None
    """Counts of all parts, or None if nothing was joined"""

    @property
    def array(self) -> str:
        """The parts that are not complete, as an argument of ``sbatch --array``, such as "2,5-7"."""
        runs: list[list[int]] = []
        for number in self.missing:
            if runs and runs[-1][-1] == number - 1:
                runs[-1] = [runs[-1][0], number]
            else:
                runs.append([number])
        return ",".join("-".join(map(str, run)) for run in runs)


def finish(cache: str | Path) -> FinishReport:
    """Join what the parts of a cache wrote: the catalog, the quarantine and the run log.

    Call it after the last part of ``build(options=BuildOptions(part="I/N"))``. It can be called again.

    Parameters
    ----------
    cache : str or Path
        The cache.

    Returns
    -------
    FinishReport
        Counts of all parts, or the parts that are not complete.

    Raises
    ------
    NotFoundError, FormatVersionError
        If the folder is not a cache of this format.
    LockedError
        If a part or another command writes to the cache.
    DamageError
        If a list of the parts is damaged.
    NoSpaceError, StoppedError
        As their names say. The same call resumes.
    """
    layout.check_local("cache", cache)
    folder = Path(cache).absolute()
    read_header(folder)
    if not parts.in_parts(folder):
        return FinishReport(0)
    if (report := _missing(folder)).missing:
        return report
    with stop_signals(), locked(folder, finishes_parts=True):
        if not parts.in_parts(folder):  # another call was faster
            return FinishReport(0)
        if (report := _missing(folder)).missing:
            return report
        with recorded(folder, "finish") as notes:
            summary = _join(folder)
            notes.take(summary)
        return FinishReport(report.num_parts, (), summary)


def _missing(cache: Path) -> FinishReport:
    plan = parts.read_plan(cache)
    missing = [part.number for part in plan.parts() if parts.read_summary(parts.part_folder(cache, part)) is None]
    return FinishReport(plan.num_parts, tuple(missing))


def _join(cache: Path) -> RunSummary:
    this_run = run_of(cache) or ""
    folders = [parts.part_folder(cache, part) for part in parts.read_plan(cache).parts()]
    with repairable(cache, RESTART):
        found = {failure.key: failure for folder in folders for failure in Quarantine(folder, tool_versions())}
        runs = sorted(chain.from_iterable(map(read_runs, folders)), key=lambda run: run.started)
    with repairable(cache, "remove that file and run the same command"):
        earlier = {failure.key: failure for failure in Quarantine(cache / parts.PARTS, tool_versions())}
        all_failures = {failure.key: failure for failure in Quarantine(cache, tool_versions())}
    summary = _sum(filter(None, map(parts.read_summary, folders)))
    _check_complete(cache, summary)
    check_run(cache, this_run)
    if not found.keys() <= earlier.keys():  # for the next call, if this one is killed and a part runs again
        write_failures(cache / parts.PARTS, {**earlier, **found}.values())
    others = {key: failure for key, failure in all_failures.items() if key not in earlier}
    write_failures(cache, {**others, **found}.values())
    write_catalog(cache)
    known: set[tuple[str, float]] = set()
    with suppress(DamageError):  # ``verify --repair`` repairs it when the parts are joined
        known.update((run.started, run.elapsed_seconds) for run in read_runs(cache))
    for run in runs:
        if (run.started, run.elapsed_seconds) not in known:
            append_run(cache, run)
    check_run(cache, this_run)
    _remove(cache)
    return summary


def _check_complete(cache: Path, summary: RunSummary) -> None:
    """Raise an error if the parts left inputs out, or if the sidecars of what they built are not all there."""
    check_counts(summary)
    num_sidecars, num_built = sum(1 for _ in layout.iter_keys(cache)), summary.num_done + summary.num_up_to_date
    if num_sidecars < num_built:
        raise DamageError(
            f"'{printable(cache / 'videos')}' has {num_sidecars} sidecars, expected at least the {num_built} that the "
            f"parts built. Mount it or copy it, or {parts.how_to_give_up(cache)} and build again."
        )


def _sum(summaries: Iterable[RunSummary]) -> RunSummary:
    counts: dict[str, Any] = {field.name: 0 for field in fields(RunSummary)}
    for summary in summaries:
        for name, count in asdict(summary).items():
            counts[name] += count
    return RunSummary(**counts)


def _remove(cache: Path) -> None:
    """Remove the folder of the parts. It has another name first, so that no half of it can be taken for a plan."""
    gone = cache / ".partial" / f"parts-{uuid.uuid4().hex}"
    gone.parent.mkdir(exist_ok=True)
    os.replace(cache / parts.PARTS, gone)
    shutil.rmtree(gone, ignore_errors=True)
