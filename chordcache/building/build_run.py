"""The run of a build's plan, under the lock of the cache: what is missing is built, and what is not wanted leaves."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

from chordcache.amounts import counted
from chordcache.building.build_options import BuildOptions
from chordcache.building.build_plan import BuildPlan
from chordcache.building.build_task import BuildTask, planned_files, stale_features
from chordcache.building.file_build import build_file, build_file_on
from chordcache.building.fix_commands import is_retryable, problems_command, repairable
from chordcache.building.planning import plan_as_before, write_plan
from chordcache.building.prune import drop, drop_features, leaving, num_with
from chordcache.engine import pool, terminal
from chordcache.engine.choice import Engine
from chordcache.engine.display import Display, display_of
from chordcache.engine.run_progress import Progress
from chordcache.errors import CANNOT_WRITE, TOO_MANY_FAILED, ChordcacheError, StoppedError, printable
from chordcache.index.grouping import IndexRows
from chordcache.index.index_files import Index
from chordcache.media.versions import tool_versions
from chordcache.records import RunSummary
from chordcache.storage import atomic, layout
from chordcache.storage.artefacts.tiers import TIERS
from chordcache.storage.find_sidecars import Sidecars, update_catalog
from chordcache.storage.quarantine import Failure, Quarantine
from chordcache.storage.run_log import RunNotes
from chordcache.storage.sidecar import Sidecar

_STATES = ("num_up_to_date", "num_done", "num_failed")
"""Counts of a run. A video that has several of these states in the passes counts as the last of them"""


def run_plan(
    command: str, plan: BuildPlan, engine: Engine, options: BuildOptions, display: Display, notes: RunNotes
) -> RunSummary:
    """Build what a cache lacks of a plan, under its lock. ``notes`` take what is known of the run at its end.

    The catalog and the quarantine are complete, however the run ends.
    """
    with IndexRows(plan.index) as rows:
        for feature in stale_features(plan, rows.keys):
            terminal.say(str(feature), shown=display.messages)
        run = _Run(plan, rows, options, build_progress(command, plan, rows, display))
        try:
            run.build(engine)
        except ChordcacheError as error:
            if error.exit_code != CANNOT_WRITE:
                run.write_lists()
            else:
                with suppress(OSError):  # of the same disk
                    atomic.remove_partials(plan.cache)
            raise
        finally:
            notes.take(run.summary)
            notes.video_seconds, notes.num_bytes = run.video_seconds, run.num_bytes
        summary = run.summary
        num_handled = summary.num_done + summary.num_up_to_date + summary.num_failed
        if num_handled != summary.num_inputs:
            raise ChordcacheError(
                f"the run ended with {summary.num_done} done, {summary.num_up_to_date} up to date and "
                f"{summary.num_failed} quarantined, expected {summary.num_inputs} in all. Run the same command again."
            )
        for name, count in num_with(Sidecars(plan.cache), options.drop).items():
            what = f"{counted(count, 'cached video')} keep{'s' * (count == 1)} it in a file with other features"
            line = f"drop: {name}: {what}. Build with an index that names the videos, or drop them with --prune."
            terminal.say(line, shown=display.messages)
    return summary


def build_as_before(
    cache: Path,
    index: Index,
    *,
    roots: Mapping[str, str] | None,
    engine: Engine,
    options: BuildOptions,
    progress: bool | Display,
    notes: RunNotes,
    trusted: Collection[str],
) -> RunSummary:
    """Build the videos of an index with everything that earlier builds of the cache requested, under its lock.

    The parameters are those of ``run_plan`` and ``plan_as_before``.
    """
    display = display_of(progress)
    plan = plan_as_before(cache, index, roots=roots, options=options, trusted=trusted)
    for tier in {file.partition("/")[0] for file in options.rebuild} & plan.features.keys():
        lost = [name for name in plan.features[tier] if plan.specs[name] is None]
        if lost and TIERS[tier].one_file:
            what = f"files of tier {tier} are not made again: {', '.join(lost)} cannot be made here"
            remedy = "install its package, or name its plug-in or model with -c, then run the command again"
            terminal.say(f"{what}; {remedy}", shown=display.messages)
    return run_plan("repair", plan, engine, options, display, notes)


def build_progress(command: str, plan: BuildPlan, rows: IndexRows, display: Display) -> Progress:
    """Return the progress of a run over all rows of a plan's index."""
    see = f"'{problems_command(plan.cache)}'"
    num_passes = len(plan.passes())
    return Progress(
        command, display, total=len(rows.keys), total_seconds=rows.total_seconds, num_passes=num_passes, see=see
    )


class _Run:
    """One run of a plan."""

    def __init__(self, plan: BuildPlan, rows: IndexRows, options: BuildOptions, progress: Progress) -> None:
        self._rows, self._cache, self._options, self._progress = rows, plan.cache, options, progress
        self._started = time.monotonic()
        self._max_failures = options.limit("max_failures", len(rows.keys))
        self._sidecars = Sidecars(plan.cache)
        self._leaving = leaving(self._sidecars, options, rows.keys)
        if self._leaving.features:
            drop_features(self._sidecars, options.drop)
        with repairable(plan.cache):
            self._quarantine = Quarantine(plan.cache, tool_versions())
        self._plan = write_plan(plan, rows.keys, prune=options.prune is not None)
        self._counts = Counter(num_done=0, num_up_to_date=0, num_failed=0)
        """Counts of the run by the names of ``RunSummary``"""
        self._passes = self._plan.passes()
        self._states: dict[str, str] = {}
        """Key of each video that had its turn to the count that it is in, if there are several passes"""
        self._losses = Counter[str]()
        may_stay = options.prune is None and plan.part is None
        self._num_unnamed = len(set(self._sidecars.sorted_keys()) - rows.keys) if may_stay else 0
        self._num_new_failures = 0
        self.num_bytes = 0
        """[bytes] Size of the files that were written"""
        self.video_seconds = 0.0
        """[seconds] Length of the videos that were built"""

    @property
    def summary(self) -> RunSummary:
        """Counts so far."""
        return RunSummary(
            num_inputs=len(self._rows.keys),
            num_pruned=len(self._leaving.videos),
            num_unnamed=self._num_unnamed,
            losses=dict(self._losses),
            elapsed_seconds=time.monotonic() - self._started,
            **self._counts,
        )

    def build(self, engine: Engine) -> None:
        """Build what is missing or stale, remove the videos that leave, and complete the lists of the cache."""
        options: dict[str, Any] = {"jobs": engine, "limits": self._options.limits, "retry": self._once_more}
        with self._progress:
            for step in self._passes:
                todo = self._tasks(step)
                if step.device:
                    first = [*islice(todo, 1)]  # the devices of a pass with nothing to do are not asked for
                    devices = step.devices() if first else ()
                    todo = chain(first, todo)
                    options["of_devices"] = [partial(build_file_on, step.device, device) for device in devices]
                outcomes = pool.run(build_file, todo, **options)
                with closing(outcomes):  # no worker may publish after the cleanup
                    for tasks, outcome in outcomes:
                        for number, task in enumerate(tasks):
                            self._record_outcome(task, outcome if isinstance(outcome, pool.Crash) else outcome[number])
        drop(self._sidecars, self._leaving.videos)
        if self._options.prune is not None:
            self._quarantine.keep_only(self._rows.keys)
        self.write_lists()

    def write_lists(self) -> None:
        """Complete the lists of the cache, after partial files are removed."""
        atomic.remove_partials(self._cache)
        self._quarantine.compact()
        update_catalog(self._cache)

    def _tasks(self, step: BuildPlan) -> Iterator[tuple[BuildTask, ...]]:
        """Yield the tasks of a pass for the workers, those of one file together. Other videos are handled here."""
        requested = [spec.fingerprint for artefact in self._plan.artefacts for spec in artefact.features]
        for planned in planned_files(step, self._rows.by_file(), self._quarantine, self._options):
            tasks = planned if step is self._passes[0] else list(self._left(planned))
            for task in tasks:
                if task.state != "failed":
                    self._losses.update(task.losses)
                if task.state != "missing":
                    self._record_without_work(task, requested if step is self._passes[-1] else None)
            missing = tuple(task for task in tasks if task.state == "missing")
            if missing:
                atomic.check_space(self._cache)
                yield missing

    def _left(self, planned: Sequence[BuildTask]) -> Iterator[BuildTask]:
        """Yield the tasks of a later pass, without those that have failed. One fails if its source has changed."""
        for task in planned:
            if self._states[task.key] == "num_failed":
                self._progress.skip(task.item.known_seconds)
            elif task.artefacts and task.previous is not None and task.previous.source != task.item.identity:
                what = "the file changed during the build; run the same command"
                yield replace(task, failure=task.failed("open", "changed", what, task.item.identity))
            else:
                yield task

    def _count(self, key: str, state: str) -> bool:
        """Count a video in one of ``_STATES``. Return False if an earlier pass did, in this one or a later one."""
        before = self._states.get(key)
        if before is not None:
            if _STATES.index(before) >= _STATES.index(state):
                return False
            self._counts[before] -= 1
        self._counts[state] += 1
        if len(self._passes) > 1:
            self._states[key] = state
        return True

    def _record_without_work(self, task: BuildTask, requested: Sequence[str] | None) -> None:
        """Handle a video that needs no worker. ``requested`` are the fingerprints of all passes, in the last one."""
        if task.failure is not None:
            self._counts["num_retryable"] += is_retryable(task.failure.cause)
            self._fail(task, task.failure, is_work=False)
            return
        sidecar = task.described
        if sidecar is not None and sidecar != task.previous:  # another label, caption or column
            atomic.publish_text(self._cache, layout.sidecar_file(task.key), sidecar.to_line() + "\n")
        self._count(task.key, "num_up_to_date")
        if requested is not None:
            self._quarantine.discard(task.key, requested)
        self._progress.skip(task.item.known_seconds)

    def _once_more(
        self, tasks: tuple[BuildTask, ...], outcomes: Sequence[Sidecar | Failure]
    ) -> tuple[BuildTask, ...] | None:
        """Return another attempt if the source's disk failed and attempts are left, else None."""
        has_failed = any(isinstance(outcome, Failure) and outcome.cause == "io" for outcome in outcomes)
        if has_failed and tasks[0].attempt < pool.MAX_ATTEMPTS:
            return tuple(replace(task, attempt=task.attempt + 1) for task in tasks)
        return None

    def _record_outcome(self, task: BuildTask, outcome: Sidecar | Failure | pool.Crash) -> None:
        if isinstance(outcome, pool.Crash):
            facts = {"attempts": task.attempt - 1 + outcome.attempts, "fingerprints": task.fingerprints}
            outcome = task.failed("decode", outcome.cause, outcome.message, task.item.identity, **facts)
        if isinstance(outcome, Failure):
            self._fail(task, outcome)
            return
        self._quarantine.discard(task.key, task.fingerprints)
        previous = task.previous
        num_frames, num_bytes = outcome.num_frames, outcome.num_bytes(without=task.kept)
        if self._count(task.key, "num_done"):
            self._counts.update(num_frames=num_frames, num_frames_skipped=outcome.num_frames_skipped)
            self.video_seconds += outcome.duration_seconds
        self._counts["num_unused_bytes"] += previous.num_bytes(without=outcome.features) if previous else 0
        self.num_bytes += num_bytes
        name = f"{task.item.root}/{task.item.path}"
        self._progress.done(name, seconds=task.item.known_seconds, num_frames=num_frames, num_bytes=num_bytes)

    def _fail(self, task: BuildTask, failure: Failure, *, is_work: bool = True) -> None:
        fails_again = self._quarantine.still_holds(task.key, failure.source, task.fingerprints)
        if self._options.retry_quarantined or not fails_again:
            self._quarantine.add(failure)
            self._num_new_failures += 1
        if failure.source is not None and failure.cause == "bucket":  # a video of a lost source stays
            drop(self._sidecars, [task.key])
        self._count(task.key, "num_failed")
        name, seconds = f"{task.item.root}/{task.item.path}", task.item.known_seconds
        self._progress.fail(name, failure.cause, failure.message, seconds=seconds, is_work=is_work)
        if self._num_new_failures > self._max_failures:
            raise StoppedError(
                f"stopped after {counted(self._num_new_failures, 'failure')}, the last one "
                f"'{printable(task.item.path)}': {failure.message}; the same command resumes",
                exit_code=TOO_MANY_FAILED,
            )
