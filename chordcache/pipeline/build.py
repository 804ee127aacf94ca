"""``build``: makes what the index asks for and the cache lacks, with worker processes."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from chordcache.config import Config, config_to_json, load_config
from chordcache.engine import pool
from chordcache.engine.signals import stop_signals
from chordcache.errors import (
    CacheWriteError,
    ChordcacheError,
    DamageError,
    NotFoundError,
    TooManyFailuresError,
    printable,
)
from chordcache.index.files import Index, read_index
from chordcache.media.source_file import identity_or_none, leads_out, real_folder
from chordcache.pipeline.options import BuildOptions
from chordcache.pipeline.plan import Features, artefacts_to_write, fingerprints, merge, requested_features
from chordcache.pipeline.registration import earlier_config, keys_of, register, repairable, tool_versions, wanted_before
from chordcache.pipeline.worker import BuildTask, build_video, described
from chordcache.records import Identity, RunSummary, VideoRecord
from chordcache.storage import atomic, layout
from chordcache.storage.cache_header import Header
from chordcache.storage.catalog import write_catalog
from chordcache.storage.lock import locked
from chordcache.storage.quarantine import Failure, Quarantine
from chordcache.storage.sidecar import Sidecar, read_sidecar


def build(
    index: str | Path | Index,
    cache: str | Path = "cache",
    *,
    tiers: Sequence[str] = ("lmdb",),
    features: Sequence[str] | None = None,
    config: str | Path | Config | None = None,
    jobs: int | None = None,
    roots: Mapping[str, str] | None = None,
    policy: BuildOptions | None = None,
    progress: bool = False,
) -> RunSummary:
    """Cache every video of an index. Videos that are up to date stay unchanged.

    Parameters
    ----------
    index : str, Path or Index
        An index that ``scan`` made, or a hand-written CSV with a column ``path``.
    cache : str or Path
        Folder to build in. It is made if it does not exist.
    tiers : sequence of {"lmdb", "npz", "hdf5"}
        Tiers to build. The config defines which features go into each.
    features : sequence of str, optional
        Build only these features of them.
    config : str, Path or Config, optional
        YAML merged onto the packaged defaults. By default an existing cache keeps its config.
    jobs : int, optional
        Number of worker processes, by default one for each processor.
    roots : mapping of str to str, optional
        Root label to the folder where its data is now, if it moved.
    policy : BuildOptions, optional
        Options of the build: when to stop (by default never), whether to wait for another build, and others.
    progress : bool
        True to show a progress bar on standard error, if that is a terminal. While the build waits, a line there names
        the other process.

    Returns
    -------
    RunSummary
        Counts of the run. ``num_failed`` counts the inputs of this index that are in quarantine.

    Raises
    ------
    UsageError, ConfigError
        If an argument is wrong.
    NotFoundError
        If there is no such index.
    LockedError, NoSpaceError, FormatVersionError, WorkersDiedError
        As their names say. The same call resumes.
    TooManyFailuresError
        If ``policy.max_failures`` was exceeded. The same call resumes.
    StoppedError
        On SIGHUP, SIGINT or SIGTERM. The same call resumes.
    """
    folder = Path(cache).absolute()
    policy = policy or BuildOptions()
    _resolve(folder, index, config, tiers, features)  # reports wrong arguments before any wait
    say = functools.partial(pool.say, shown=progress)
    with stop_signals(), locked(folder, say if policy.wait else None):
        # resolve again, because the build that this one waited for may have changed the cache
        index, config, asked = _resolve(folder, index, config, tiers, features)
        return build_asked(index, folder, config, asked, jobs=jobs, roots=roots, policy=policy, progress=progress)


def _resolve(
    cache: Path,
    index: str | Path | Index,
    config: str | Path | Config | None,
    tiers: Sequence[str],
    features: Sequence[str] | None,
) -> tuple[Index, Config, Features]:
    """Read the index and the config that ``build`` received by name. Raises as ``build`` does."""
    earlier = earlier_config(cache)
    if not isinstance(config, Config):
        config = earlier if config is None and earlier else load_config(config)
    asked = requested_features(config, tiers, features)
    return index if isinstance(index, Index) else read_index(index), config, asked


def build_asked(
    index: Index,
    cache: Path,
    config: Config,
    asked: Features,
    *,
    jobs: int | None,
    roots: Mapping[str, str] | None,
    policy: BuildOptions,
    progress: bool,
) -> RunSummary:
    """Build the chosen features of each tier, under the cache's lock."""
    moved = {name: os.path.abspath(path) for name, path in (roots or {}).items()}
    run = _Build(cache, config, asked, index.roots, moved, policy)
    run.register(index)
    return run.run(index, jobs or pool.default_jobs(), progress)


class _Build:
    """One run over one index, under the cache's lock."""

    def __init__(
        self,
        cache: Path,
        config: Config,
        asked: Features,
        roots: Mapping[str, str],
        moved: Mapping[str, str],
        policy: BuildOptions,
    ) -> None:
        self._cache = cache
        self._config = config
        self._asked = asked
        self._wanted = merge(asked, wanted_before(cache), config)
        self._expected = fingerprints(self._wanted, config)
        self._asked_fingerprints = [self._expected[name] or "" for names in asked.values() for name in names]
        self._roots = {**roots, **moved}
        self._moved = moved.keys()
        self._inside: dict[str, str | None] = {}
        """Root label to the real folder that links must not lead out of, or None if links may"""
        self._with_hash = policy.source_hash
        self._policy = policy
        with repairable(cache):
            self._quarantine = Quarantine(cache, tool_versions())
        self._num_inputs = self._num_done = self._num_up_to_date = self._num_failed = self._num_frames = 0
        self._num_frames_skipped = 0
        self._num_new_failures = 0
        self._limit = float("inf")
        self._bar = pool.progress_bar(None, "video", shown=False)

    def register(self, index: Index) -> None:
        """Write the index and the header before any video is built."""
        keys = keys_of(index)
        self._num_inputs = len(keys)
        self._limit = self._policy.limit(self._num_inputs)
        header = Header(
            config_to_json(self._config),
            self._roots,
            self._wanted,
            tool_versions(),
            self._policy.follow_symlinks,
            self._policy.source_hash,
        )
        header = register(self._cache, index, keys, header, self._moved)
        self._with_hash = header.source_hash
        self._inside = {
            label: None if header.follow_symlinks else real_folder(root) for label, root in self._roots.items()
        }

    def run(self, index: Index, jobs: int, progress: bool) -> RunSummary:
        """Build what is missing or stale. The catalog and the quarantine are complete, however the run ends."""
        started = time.monotonic()
        self._bar = pool.progress_bar(self._num_inputs, "video", shown=progress)
        try:
            outcomes = pool.run(
                build_video, self._todo(index), jobs=jobs, limits=self._policy.limits, retry=self._once_more
            )
            with self._bar, closing(outcomes):  # no worker may publish after the cleanup
                for task, outcome in outcomes:
                    self._take(task, outcome)
        except CacheWriteError:
            atomic.remove_partials(self._cache)
            raise
        except ChordcacheError:
            self._finish()
            raise
        self._finish()
        return RunSummary(
            num_inputs=self._num_inputs,
            num_done=self._num_done,
            num_up_to_date=self._num_up_to_date,
            num_failed=self._num_failed,
            num_frames=self._num_frames,
            num_frames_skipped=self._num_frames_skipped,
            elapsed_seconds=time.monotonic() - started,
        )

    def _finish(self) -> None:
        atomic.remove_partials(self._cache)
        self._quarantine.compact()
        write_catalog(self._cache)

    def _todo(self, index: Index) -> Iterator[BuildTask]:
        """Yield the tasks for the workers. Records that need no worker are handled here."""
        for record in index:
            source_path, inside = os.path.join(self._roots[record.root], record.path), self._inside[record.root]
            identity = identity_or_none(source_path, inside)
            task = self._task(record, source_path, inside, identity)
            if not task.artefacts and not task.adds_hash:
                self._describe(task)
                self._num_up_to_date += 1
                self._quarantine.discard(task.key, self._asked_fingerprints)
                self._bar.update()
            elif record.error is not None and record.identity == identity and not self._policy.retry_quarantined:
                self._fail(task, _failure_of_scan(task, record))
            elif self._still_fails(task, identity):
                self._num_failed += 1
                self._bar.update()
            else:
                atomic.check_space(self._cache)
                yield task

    def _task(self, record: VideoRecord, source_path: str, inside: str | None, identity: Identity | None) -> BuildTask:
        """Return the task of one video. It has no artefacts if the video is up to date."""
        key = layout.video_key(record.root, record.path)
        try:
            sidecar = read_sidecar(self._cache, key)
        except (NotFoundError, DamageError):
            sidecar = None
        asked = self._asked
        if sidecar is not None and _is_another(sidecar, identity, source_path, inside):
            sidecar, asked = None, self._wanted  # another source: the other tiers of the old one are invalid
        content = record.content if record.identity == identity else None
        return BuildTask(
            cache=self._cache,
            key=key,
            root=record.root,
            path=record.path,
            source_path=source_path,
            inside=inside,
            source=sidecar.source if sidecar else identity,
            with_hash=self._with_hash and identity is not None,  # the cached data of a lost source stays
            config=self._config,
            artefacts=artefacts_to_write(
                self._cache, sidecar, asked, self._wanted, self._expected, self._policy.rebuild
            ),
            previous=sidecar,
            content=content or (sidecar.content if sidecar else None),
            label=record.label,
            caption=record.caption,
            extra=dict(record.extra),
        )

    def _describe(self, task: BuildTask) -> None:
        """Rewrite the sidecar of a video whose label or caption alone has changed."""
        if task.previous is None:
            return
        sidecar = described(task, task.previous)
        if sidecar != task.previous:
            path = layout.sidecar_path(self._cache, task.key)
            atomic.publish_text(self._cache, path, sidecar.to_line() + "\n")

    def _fingerprints_of(self, task: BuildTask) -> tuple[str, ...]:
        """Return the fingerprints of the features to extract."""
        return tuple(dict.fromkeys(self._expected[name] or "" for each in task.artefacts for name in each.make))

    def _still_fails(self, task: BuildTask, identity: Identity | None) -> bool:
        """Return whether the input failed before, and the input, the tools and the failed features are unchanged."""
        held = self._quarantine.still_holds(task.key, identity, self._fingerprints_of(task))
        return held and not self._policy.retry_quarantined

    def _once_more(self, task: BuildTask, outcome: Sidecar | Failure) -> BuildTask | None:
        """Return another attempt if the source's disk failed and attempts are left, else None."""
        if isinstance(outcome, Failure) and outcome.cause == "io" and task.attempt <= self._policy.limits.retries:
            return replace(task, attempt=task.attempt + 1)
        return None

    def _take(self, task: BuildTask, outcome: Sidecar | Failure | pool.Crash) -> None:
        if isinstance(outcome, pool.Crash):
            outcome = Failure(
                task.key, task.root, task.path, "decode", outcome.cause, outcome.message, task.source,
                attempts=task.attempt - 1 + outcome.attempts, fingerprints=self._fingerprints_of(task))  # fmt: skip
        if isinstance(outcome, Failure):
            self._fail(task, outcome)
            return
        self._quarantine.discard(task.key, self._fingerprints_of(task))
        self._num_done += 1
        self._num_frames += outcome.num_frames if task.artefacts else 0
        self._num_frames_skipped += outcome.num_frames_skipped if task.artefacts else 0
        self._show()

    def _fail(self, task: BuildTask, failure: Failure) -> None:
        if not self._still_fails(task, failure.source):
            self._quarantine.add(failure)
            self._num_new_failures += 1
        self._num_failed += 1
        self._show()
        if self._num_new_failures > self._limit:
            raise TooManyFailuresError(
                f"stopped after {self._num_new_failures} failures, the last one '{printable(task.path)}': "
                f"{failure.message}; the same command resumes"
            )

    def _show(self) -> None:
        self._bar.update()
        frames_per_second = self._num_frames / max(self._bar.format_dict["elapsed"], 1e-3)
        self._bar.set_postfix_str(f"{frames_per_second:.0f} frames/s, {self._num_failed} failed", refresh=False)


def _is_another(sidecar: Sidecar, identity: Identity | None, path: str, inside: str | None) -> bool:
    """Return whether the path now leads to another source. An unreadable source counts as the same one."""
    return leads_out(path, inside) if identity is None else identity != sidecar.source


def _failure_of_scan(task: BuildTask, record: VideoRecord) -> Failure:
    return Failure(
        task.key,
        task.root,
        task.path,
        record.error_stage or "probe",
        record.error_cause or "decode",
        record.error or "",
        record.identity,
    )
