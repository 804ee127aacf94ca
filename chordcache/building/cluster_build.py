"""``build --engine dask|ray``: builds parts on the nodes of a cluster in ``CACHE.parts``, and joins them.

Dask and Ray run the part of a lost node again on another one, where it goes on.
"""

from __future__ import annotations

import json
import os
import shutil
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from chordcache.amounts import counted
from chordcache.building.build_options import BuildOptions
from chordcache.building.build_plan import BuildPlan
from chordcache.building.build_run import build_progress
from chordcache.building.existing_cache import earlier_header
from chordcache.building.join_parts import joined_before
from chordcache.building.merge import merge
from chordcache.config.config import config_to_json
from chordcache.engine.choice import Engine
from chordcache.engine.cluster import check_address
from chordcache.engine.display import Display
from chordcache.engine.run_progress import Progress
from chordcache.engine.signals import uninterruptible
from chordcache.errors import (
    CANNOT_WRITE,
    TOO_MANY_FAILED,
    ChordcacheError,
    DamageError,
    LockedError,
    NotFoundError,
    StoppedError,
    StorageError,
    UsageError,
    printable,
)
from chordcache.index.grouping import IndexRows
from chordcache.json_records import to_json
from chordcache.media.versions import content_versions
from chordcache.records import RunSummary
from chordcache.storage import opener
from chordcache.storage.cache_header import read_header
from chordcache.storage.lock import locked
from chordcache.storage.part import Part
from chordcache.storage.quarantine import Quarantine
from chordcache.storage.run_log import adopt_last_scan

if TYPE_CHECKING:  # optional packages
    from chordcache.engine.dask_cluster import DaskCluster
    from chordcache.engine.ray_cluster import RayCluster

Cluster: TypeAlias = "DaskCluster | RayCluster"

_ERRORS: Mapping[int, type[ChordcacheError]] = {
    **{error.exit_code: error for error in (UsageError, DamageError, NotFoundError, LockedError, StorageError)},
    CANNOT_WRITE: StorageError,
    TOO_MANY_FAILED: StoppedError,
}
"""Exit code of a part to the error of the run, which has the same one. After any other, the part is lost"""

_INDEX = "index.jsonl"

_PARTS_OF_NODE = 16
"""Number of parts for each node: with fewer, the nodes wait longer for the last one at the end"""

_FILES_OF_PART = 8
"""Smallest number of files of a part, since to start one takes about a second"""

_LOOK_SECONDS = 0.5
"""Time from one look at the nodes and at the progress to the next, [seconds]"""

_NODES_SECONDS = 60.0
"""Time that a run waits for a node when there is none, [seconds]"""

_END_SECONDS = 15.0
"""Longest time that a run waits for its parts when it ends early, [seconds]"""


def build_on_cluster(
    plan: BuildPlan,
    arguments: Mapping[str, Any],
    options: BuildOptions,
    engine: Engine,
    display: Display,
    on_wait: Callable[[str], None] | None,
) -> RunSummary:
    """Build an index in parts on the nodes of a cluster, then join them.

    ``arguments`` are ``tiers`` and ``features`` of ``build`` for all parts. All paths are on a disk that the nodes
    share. The run ends after ``options.max_failures`` new ones of all parts. ``on_wait`` is that of ``locked``.
    """
    started, cache = time.monotonic(), plan.cache
    folder = cache.with_name(f"{cache.name}.parts")
    if plan.earlier is not None and not folder.exists():
        raise _exists(cache)
    cluster = _connected(engine)
    try:
        with locked(folder, on_wait):
            parts = _parts_in(folder)
            if earlier_header(cache) is None:
                _build_parts(cluster, plan, arguments, options, engine, display, folder)
            elif not parts or joined_before(parts, cache) is None:
                with suppress(OSError):  # another driver has removed the folder of the lock meanwhile, or it is in use
                    if not parts:
                        opener.remove(folder, ".lock")
                        folder.rmdir()
                raise _exists(cache)
            summary = merge(_parts_in(folder), cache, move=True)
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        with uninterruptible():
            cluster.close()
    return replace(summary, elapsed_seconds=time.monotonic() - started)


def _build_parts(
    cluster: Cluster,
    plan: BuildPlan,
    arguments: Mapping[str, Any],
    options: BuildOptions,
    engine: Engine,
    display: Display,
    folder: Path,
) -> None:
    """Build all parts in a folder, which is locked."""
    parts = _parts_in(folder)
    num_parts = _num_parts(plan, parts, engine, cluster)
    with _run_in(folder, plan) as run, IndexRows(plan.index) as rows:
        order = {
            **arguments,
            "index": str(folder / _INDEX),
            "config": config_to_json(plan.config),
            "roots": dict(plan.roots),
            "run": str(run),
            "versions": content_versions(),
        }
        limit = options.limit("max_failures", len(rows.keys))
        options = replace(options, max_failures=None if limit == float("inf") else int(limit))
        num_failed_before = sum(1 for part in parts for _ in Quarantine(part, {}))
        with build_progress("build", plan, rows, display) as progress:
            _ClusterRun(cluster, order, options, folder, num_parts, progress, limit + num_failed_before).run()


def _exists(cache: Path) -> UsageError:
    return UsageError(
        f"cache: got '{printable(cache)}', which exists, expected a new folder. Bring it up to date without --engine, "
        f"or build in another one. '{printable(cache)}.parts', if it exists, has parts of a build that did not end."
    )


def _connected(engine: Engine) -> Cluster:
    """Connect to the cluster of an engine. Raise ``UsageError`` if it does not answer in time."""
    check_address(engine)
    if engine.name == "ray":
        from chordcache.engine.ray_cluster import RayCluster  # an optional package

        return RayCluster(str(engine.address))
    from chordcache.engine.dask_cluster import DaskCluster  # an optional package

    return DaskCluster(str(engine.address))


def _parts_in(folder: Path) -> list[Path]:
    return [path.parent for path in sorted(folder.glob("*/chordcache.json"))]


def _num_parts(plan: BuildPlan, parts: list[Path], engine: Engine, cluster: Cluster) -> int:
    """Return the number of parts: the given one, or that of parts that are there, or some for each node."""
    num_nodes = len(cluster.nodes())
    number = max(1, num_nodes, min(_PARTS_OF_NODE * num_nodes, len(plan.index) // _FILES_OF_PART))
    for part in (header.part for header in map(read_header, parts)):
        number = Part.parse(part.name).num_parts if part else number
    return Part.parse(f"1/{engine.num_parts or number}").num_parts  # raises if there are too many


@contextmanager
def _run_in(folder: Path, plan: BuildPlan) -> Iterator[Path]:
    """Write the index for the nodes, and yield a file without which their parts end: also those of an earlier run."""
    for name in opener.list_folder(folder):
        if name.startswith("run-"):
            opener.remove(folder, name)
    plan.index.write(folder / _INDEX)
    adopt_last_scan(folder / _INDEX, plan.index.path)
    name = f"run-{uuid.uuid4().hex}"
    os.close(opener.open_file(folder, name, os.O_WRONLY | os.O_CREAT))
    try:
        yield folder / name
    finally:
        opener.remove(folder, name)


class _ClusterRun:
    """One run over all parts. A node builds one part at a time."""

    def __init__(
        self,
        cluster: Cluster,
        order: dict[str, Any],
        options: BuildOptions,
        folder: Path,
        num_parts: int,
        progress: Progress,
        limit: float,
    ) -> None:
        self._cluster, self._order, self._options = cluster, order, options
        self._folder, self._num_parts, self._progress, self._limit = folder, num_parts, progress, limit
        self._running: dict[Any, tuple[str, int]] = {}
        """Handle to the node where it began and the part"""
        self._numbers: dict[int, dict[str, Any]] = {}
        """Progress of each part"""

    def run(self) -> None:
        """Return when all parts are complete. Else raise when they have ended."""
        queue, had_nodes_at = deque(range(1, self._num_parts + 1)), time.monotonic()
        try:
            while queue or self._running:
                nodes = self._cluster.nodes()
                had_nodes_at = time.monotonic() if nodes else had_nodes_at
                if time.monotonic() - had_nodes_at > _NODES_SECONDS:
                    raise StoppedError("the cluster has no nodes. Start some, then run the same command.")
                busy = {node for node, _ in self._running.values()}
                for node in nodes.keys() - busy:
                    if queue:
                        self._start(node, nodes[node], queue.popleft())
                self._take_results()
                self._show()
                time.sleep(_LOOK_SECONDS)
        except BaseException as error:  # cleanup boundary
            opener.remove(self._folder, Path(self._order["run"]).name)
            # Else the cluster is lost, or a part on it, and has no results. Ray ends the driver 60 s later
            if not isinstance(error, StoppedError) or error.exit_code != StoppedError.exit_code:
                self._wait_for_end()
            raise

    def _wait_for_end(self) -> None:
        """Wait for the parts that run. They end themselves, since the file of the run is gone."""
        end = time.monotonic() + _END_SECONDS
        with uninterruptible(), suppress(ChordcacheError):
            while self._running and time.monotonic() < end:
                self._running = {h: part for h, part in self._running.items() if self._cluster.result(h) is None}
                time.sleep(_LOOK_SECONDS)

    def _start(self, node: str, jobs: int, number: int) -> None:
        options = to_json(replace(self._options, part=f"{number}/{self._num_parts}", wait=True))
        log = f"{number}.log"
        os.close(opener.open_file(self._folder, log, os.O_WRONLY | os.O_CREAT))  # raises for a link
        facts = {"cache": str(self._folder / str(number)), "jobs": jobs, "log_file": str(self._folder / log)}
        order = json.dumps({**self._order, **facts, "options": options})
        with uninterruptible():
            self._running[self._cluster.start(node, order)] = node, number

    def _take_results(self) -> None:
        for handle, (_, number) in list(self._running.items()):
            with uninterruptible():
                result = self._cluster.result(handle)
            if result is None:
                continue
            del self._running[handle]
            host, code, line = result
            message = f"part {number} on {host}: {line or f'exit code {code}'}"
            if code in _ERRORS:
                raise _ERRORS[code](message, exit_code=code)
            if code:
                raise StoppedError(message)

    def _show(self) -> None:
        """Show the sum of the numbers in the logs of the parts."""
        for _, number in self._running.values():
            with suppress(OSError, ValueError, IndexError):
                with opener.open_binary(self._folder, f"{number}.log") as log:
                    log.seek(max(0, os.fstat(log.fileno()).st_size - 4000))
                    lines = [json.loads(line) for line in log.read().splitlines()[1:]]
                self._numbers[number] = [line for line in lines if "num_videos" in line][-1]
        names = ("num_videos", "video_seconds", "num_failed", "num_frames", "num_bytes")
        sums = {name: sum(numbers.get(name, 0) for numbers in self._numbers.values()) for name in names}
        self._progress.show(sums)
        if sums["num_failed"] > self._limit:
            failures = counted(sums["num_failed"], "failure")
            raise StoppedError(f"stopped after {failures}; the same command resumes", exit_code=TOO_MANY_FAILED)
