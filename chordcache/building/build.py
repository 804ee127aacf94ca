"""``build``: makes what the index asks for and the cache lacks, with worker processes."""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

from chordcache.amounts import counted
from chordcache.arguments import as_items, names_arguments
from chordcache.building.build_options import BuildOptions
from chordcache.building.build_plan import BuildPlan, write_plan
from chordcache.building.build_task import BuildTask, planned_files
from chordcache.building.existing_cache import check_counts, earlier_header
from chordcache.building.file_build import build_file
from chordcache.building.fix_commands import is_retryable, problems_command, repairable
from chordcache.building.parts import part_plan
from chordcache.building.planning import make_plan, plan_as_before
from chordcache.building.prune import drop, drop_features, keys_to_prune, leaves_cache, videos_with
from chordcache.building.stale import stale_features
from chordcache.config.config import Config
from chordcache.config.yaml_files import ConfigFiles
from chordcache.engine import pool, terminal
from chordcache.engine.choice import Engine, engine_of
from chordcache.engine.cluster import check_address
from chordcache.engine.crashes import MAX_ATTEMPTS
from chordcache.engine.display import Display, display_of
from chordcache.engine.run_progress import Progress
from chordcache.engine.signals import stop_signals
from chordcache.errors import CacheWriteError, ChordcacheError, TooManyFailuresError, UsageError, printable
from chordcache.features.registry import check_gpu
from chordcache.index.grouping import IndexRows
from chordcache.index.index_files import Index
from chordcache.index.scan import scanned
from chordcache.media.versions import tool_versions
from chordcache.records import RunSummary
from chordcache.storage import atomic, layout
from chordcache.storage.artefacts.tiers import TIERS
from chordcache.storage.find_sidecars import Sidecars, update_catalog
from chordcache.storage.lock import locked
from chordcache.storage.quarantine import Failure, Quarantine
from chordcache.storage.run_log import RunNotes, adopt_last_scan, recorded
from chordcache.storage.sidecar import Sidecar


@names_arguments
def build(
    index: str | Path | Index,
    cache: str | Path = "cache",
    *,
    tiers: str | Sequence[str] | None = None,
    features: str | Sequence[str] | None = None,
    config: ConfigFiles | Config | None = None,
    jobs: int | Engine | None = None,
    roots: Mapping[str, str] | None = None,
    options: BuildOptions | None = None,
    progress: bool | Display = False,
) -> RunSummary:
    """Cache every video of an index. Videos that are up to date stay unchanged.

    Parameters
    ----------
    index : str, Path or Index
        An index that ``scan`` made, a hand-written CSV with a column ``path``, or a folder of videos, which is
        scanned first.
    cache : str or Path
        Folder to build in. It is made if it does not exist.
    tiers : str or sequence of {"lmdb", "npz", "hdf5"}, optional
        Tiers to build. The config defines which features go into each. By default they follow from the features.
    features : str or sequence of str, optional
        Build only these features. By default those that the cache has and that ``config`` names, or else frames.
    config : str, Path, sequence of them, or Config, optional
        YAML files or presets, merged in order onto the config of an existing cache, or else onto the packaged defaults.
        A feature that the cache has stays in it, see ``BuildOptions.drop``.
    jobs : int or Engine, optional
        Number of worker processes, by default one for each processor, or an engine such as a Dask cluster.
    roots : mapping of str to str, optional
        Root label to the folder where its data is now, if it moved.
    options : BuildOptions, optional
        Options of the build: when to stop (by default never), whether to wait for another build, and others.
    progress : bool or Display
        True to show progress on standard error: a bar on a terminal, else a line every 30 seconds. At the end, the
        first failures are named there. While the build waits, a line there names the other process.

    Returns
    -------
    RunSummary
        Counts of the run. ``num_failed`` counts the inputs of this index that are in quarantine.

    Raises
    ------
    UsageError, ConfigError
        If an argument is wrong.
    NotFoundError
        If the index does not exist, or has no videos.
    LockedError, NoSpaceError, FormatVersionError, WorkersDiedError
        As their names say. The same call resumes.
    TooManyFailuresError
        If ``options.max_failures`` was exceeded. The same call resumes.
    StoppedError
        On SIGHUP, SIGINT or SIGTERM. The same call resumes.
    """
    folder = layout.cache_folder(cache)
    options = options or BuildOptions()
    cluster = jobs if isinstance(jobs, Engine) and jobs.is_cluster else None
    engine = pool.prepared(engine_of(None if cluster else jobs))
    if cluster is not None:
        check_address(cluster)
        if options.part is not None:
            raise UsageError(f"part: got {options.part} with engine '{cluster.name}', expected none. Leave it out.")
        options = replace(options, part="1/1")  # what a part refuses, and a driver too
    links = options.follow_symlinks

    def plan_of(index: str | Path | Index) -> BuildPlan:
        plan = make_plan(folder, index, config, tiers, features, roots=roots, options=options)
        for spec in () if cluster else plan.network_specs:  # each node of a cluster is checked
            check_gpu(spec)
        if options.drop:
            videos_with(Sidecars(folder), options)  # raises if too many have one of them
        return plan

    index = scanned(index, plan_of, jobs=engine, follow_symlinks=links, limits=options.limits, progress=progress)

    def plan_now() -> BuildPlan:
        return part_plan(plan_of(index), None if cluster else options.part)

    say = functools.partial(terminal.say, shown=display_of(progress).messages)
    plan = plan_now()  # reports wrong arguments before any wait
    for note in filter(None, (plan.index.taken, *plan.index.notes)):
        say(note)
    wait = say if options.wait else None
    if cluster is not None:
        from chordcache.building.cluster_build import build_on_cluster  # most builds do not need it

        with stop_signals(resumes=True), IndexRows(plan.index) as rows:
            limit = options.limit(len(rows.keys))
            arguments = {"tiers": [*as_items(tiers or ())] or None, "features": [*as_items(features or ())] or None}
            of_part = replace(options, max_failures=None if limit == float("inf") else int(limit))
            shown = _progress("build", plan, rows, display_of(progress))
            return build_on_cluster(plan, arguments, of_part, cluster, shown, limit, wait)

    def run(plan: BuildPlan, options: BuildOptions) -> RunSummary:
        with recorded(plan.cache, "build", jobs=engine.jobs) as notes, IndexRows(plan.index) as rows:
            for feature in stale_features(plan, rows.keys):
                say(str(feature))
            shown = _progress("build", plan, rows, display_of(progress))
            summary = _Build(plan, rows, options, shown).run(engine, notes)
            for name, count in videos_with(Sidecars(plan.cache), replace(options, prune_many=True)).items():
                if count:
                    what = f"{count} cached video{'s keep' if count > 1 else ' keeps'} it in a file with other features"
                    say(f"drop: {name}: {what}. Build with an index that names the videos, or add --prune.")
            return summary

    with stop_signals(resumes=True), locked(folder, wait) as has_waited:
        if has_waited or earlier_header(folder) != plan.earlier:  # cache or index may have changed meanwhile
            plan = plan_now()
        adopt_last_scan(folder, plan.index.path)
        return run(plan, options)


def build_as_before(
    cache: Path,
    index: Index,
    *,
    roots: Mapping[str, str] | None = None,
    jobs: int | Engine | None = None,
    options: BuildOptions,
    progress: bool | Display = False,
    notes: RunNotes | None = None,
    trusted: Collection[str] = (),
) -> RunSummary:
    """Build the videos of an index with everything that earlier builds of the cache requested, under its lock.

    The parameters are those of ``build`` and ``plan_as_before``. ``notes`` take what is known of the run at its end.
    """
    display = display_of(progress)
    plan = plan_as_before(cache, index, roots=roots, options=options, trusted=trusted)
    for tier in {file.partition("/")[0] for file in options.rebuild} & plan.features.keys():
        lost = [name for name in plan.features[tier] if plan.specs[name] is None]
        if lost and TIERS[tier].one_file:
            what = f"files of tier {tier} are not made again: {', '.join(lost)} cannot be made here"
            remedy = "install its package, or name its plug-in or model with -c, then run the command again"
            terminal.say(f"{what}; {remedy}", shown=display.messages)
    with IndexRows(plan.index) as rows:
        shown = _progress("repair", plan, rows, display)
        return _Build(plan, rows, options, shown).run(engine_of(jobs), notes or RunNotes())


def _progress(command: str, plan: BuildPlan, rows: IndexRows, display: Display) -> Progress:
    see = f"'{problems_command(plan.cache)}'"
    return Progress(command, display, total=len(rows.keys), total_seconds=rows.total_seconds, see=see)


class _Build:
    """One run of a plan, under the cache's lock."""

    def __init__(self, plan: BuildPlan, rows: IndexRows, options: BuildOptions, progress: Progress) -> None:
        self._rows, self._cache, self._options, self._progress = rows, plan.cache, options, progress
        self._max_failures = options.limit(len(rows.keys))
        self._sidecars = Sidecars(plan.cache)
        self._pruned = keys_to_prune(self._sidecars, rows.keys, options)
        if videos_with(self._sidecars, options):
            drop_features(self._sidecars, options.drop)
        with repairable(plan.cache):
            self._quarantine = Quarantine(plan.cache, tool_versions())
        self._plan = write_plan(plan, rows.keys, prune=options.prune)
        self._counts = Counter(num_done=0, num_up_to_date=0, num_failed=0)
        """Counts of the run by the names of ``RunSummary``"""
        self._losses = Counter[str]()
        self._num_unnamed = 0 if options.prune or plan.part else len(set(self._sidecars.sorted_keys()) - rows.keys)
        self._num_new_failures = self._num_bytes = 0
        self._video_seconds = 0.0

    def run(self, engine: Engine, notes: RunNotes) -> RunSummary:
        """Build what is missing or stale. The catalog and the quarantine are complete, however the run ends."""
        started = time.monotonic()
        try:
            self._work(engine)
            check_counts(self._summary(started))
        finally:
            summary = self._summary(started)
            notes.take(summary)
            notes.video_seconds, notes.num_bytes = self._video_seconds, self._num_bytes
        return summary

    def _summary(self, started: float) -> RunSummary:
        return RunSummary(
            num_inputs=len(self._rows.keys),
            num_pruned=len(self._pruned),
            num_unnamed=self._num_unnamed,
            losses=dict(self._losses),
            elapsed_seconds=time.monotonic() - started,
            **self._counts,
        )

    def _work(self, engine: Engine) -> None:
        try:
            outcomes = pool.run(
                build_file,
                self._tasks(),
                jobs=engine,
                limits=self._options.limits,
                retry=self._once_more,
                networks=[spec.network for spec in self._plan.network_specs],
            )
            with self._progress, closing(outcomes):  # no worker may publish after the cleanup
                for tasks, outcome in outcomes:
                    for number, task in enumerate(tasks):
                        self._record_outcome(task, outcome if isinstance(outcome, pool.Crash) else outcome[number])
        except CacheWriteError:
            with suppress(OSError):  # of the same disk
                atomic.remove_partials(self._cache)
            raise
        except ChordcacheError:
            self._finish()
            raise
        drop(self._sidecars, self._pruned)
        if self._options.prune:
            self._quarantine.keep_only(self._rows.keys)
        self._finish()

    def _finish(self) -> None:
        atomic.remove_partials(self._cache)
        self._quarantine.compact()
        update_catalog(self._cache)

    def _tasks(self) -> Iterator[tuple[BuildTask, ...]]:
        """Yield the tasks for the workers, those of one file together. Other videos are handled here."""
        requested = [spec.fingerprint for artefact in self._plan.artefacts for spec in artefact.features]
        for tasks in planned_files(self._plan, self._rows, self._quarantine, self._options):
            for task in tasks:
                if task.state != "failed":
                    self._losses.update(task.losses)
                if task.state != "missing":
                    self._record_without_work(task, requested)
            missing = tuple(task for task in tasks if task.state == "missing")
            if missing:
                atomic.check_space(self._cache)
                yield missing

    def _record_without_work(self, task: BuildTask, requested: Sequence[str]) -> None:
        """Handle a video that needs no worker."""
        if task.failure is not None:
            self._counts["num_retryable"] += is_retryable(task.failure.cause)
            self._fail(task, task.failure, is_work=False)
            return
        sidecar = task.described
        if sidecar is not None and sidecar != task.previous:  # another label or caption, or a feature less
            atomic.publish_text(self._cache, layout.sidecar_file(task.key), sidecar.to_line() + "\n")
        self._counts["num_up_to_date"] += 1
        self._quarantine.discard(task.key, requested)
        self._progress.skip(task.item.known_seconds)

    def _once_more(
        self, tasks: tuple[BuildTask, ...], outcomes: Sequence[Sidecar | Failure]
    ) -> tuple[BuildTask, ...] | None:
        """Return another attempt if the source's disk failed and attempts are left, else None."""
        has_failed = any(isinstance(outcome, Failure) and outcome.cause == "io" for outcome in outcomes)
        if has_failed and tasks[0].attempt < MAX_ATTEMPTS:
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
        self._counts.update(
            num_done=1,
            num_frames=num_frames,
            num_frames_skipped=outcome.num_frames_skipped,
            num_unused_bytes=previous.num_bytes(without=outcome.features) if previous else 0,
        )
        self._video_seconds += outcome.duration_seconds
        self._num_bytes += num_bytes
        self._progress.done(_name(task), seconds=task.item.known_seconds, num_frames=num_frames, num_bytes=num_bytes)

    def _fail(self, task: BuildTask, failure: Failure, *, is_work: bool = True) -> None:
        fails_again = self._quarantine.still_holds(task.key, failure.source, task.fingerprints)
        if self._options.retry_quarantined or not fails_again:
            self._quarantine.add(failure)
            self._num_new_failures += 1
        sidecar = self._sidecars.read_or_none(task.key)
        if sidecar is not None and leaves_cache(failure):
            drop(self._sidecars, [task.key])
        self._counts["num_failed"] += 1
        seconds = task.item.known_seconds
        self._progress.fail(_name(task), failure.cause, failure.message, seconds=seconds, is_work=is_work)
        if self._num_new_failures > self._max_failures:
            raise TooManyFailuresError(
                f"stopped after {counted(self._num_new_failures, 'failure')}, the last one "
                f"'{printable(task.item.path)}': {failure.message}; the same command resumes"
            )


def _name(task: BuildTask) -> str:
    return f"{task.item.root}/{task.item.path}"
