"""``build --engine dask|ray``: starts the parts of a build on the nodes of a cluster, and moves them into the cache."""

from __future__ import annotations

import json
import os
import shutil
import time
import uuid
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from chordcache.amounts import counted
from chordcache.building.build_plan import BuildPlan
from chordcache.building.join_parts import finish
from chordcache.building.parts import plan_of_parts, register
from chordcache.config.config import Config, config_to_json
from chordcache.engine import terminal
from chordcache.engine.choice import Engine
from chordcache.engine.cluster import Cluster, connect
from chordcache.engine.on_node import Exit, NodeLost
from chordcache.engine.run_progress import Progress
from chordcache.engine.signals import uninterruptible
from chordcache.errors import CacheWriteError, LockedError, TooManyFailuresError, WorkersDiedError
from chordcache.records import RunSummary
from chordcache.storage import opener
from chordcache.storage import part_folders as parts
from chordcache.storage.lock import locked
from chordcache.storage.part import Part

_MODULE = "chordcache.building.part_process"
"""Module that takes an order"""

_PARTS_OF_NODE = 16
"""Number of parts for each node: with fewer, the nodes wait longer for the last one at the end"""

_FILES_OF_PART = 8
"""Smallest number of files of a part, since to start one takes about a second"""

_POLL_SECONDS = 0.1
_LOOK_SECONDS = 1.0
"""Time from one look at the nodes and at the progress to the next, [seconds]"""

_NODES_SECONDS = 60.0
"""Time that a run waits for a node when there is none, [seconds]"""

_REST_SECONDS = 5.0
"""Time that a node gets nothing after it lost a part, [seconds]. Ray takes long to see that a node is gone"""

_MAX_LOSSES = 5
"""Number of nodes that a part may lose before the run ends"""

_DOUBTFUL = frozenset(("io", "signal", "oom", "timeout"))
"""Causes of failures that may lie in the node"""

_LOCKED, _DIED, _TOO_MANY = (error.exit_code for error in (LockedError, WorkersDiedError, TooManyFailuresError))


def build_on_cluster(
    plan_now: Callable[[], BuildPlan],
    arguments: dict[str, Any],
    engine: Engine,
    progress: Progress,
    max_failures: float,
    on_wait: Callable[[str], None] | None,
) -> RunSummary:
    """Build an index in parts on the nodes of a cluster, then finish the cache.

    ``plan_now`` makes the plan of the whole cache. ``arguments`` are those of ``build`` for all parts, as JSON data but
    for a ``Config``. All paths are on a disk that the nodes share. The run ends after ``max_failures`` of all parts.
    ``on_wait`` is that of ``locked``.
    """
    started = time.monotonic()
    cluster, cache = connect(engine), Path(arguments["cache"])
    run = uuid.uuid4().hex
    summary = None
    try:
        while summary is None:
            with locked(cache, on_wait, begins_part=True):
                shared, folder = _registered(plan_now(), engine, cluster)
            # Only one driver works at a time. It holds no lock of the cache while it waits: the other one finishes it
            with locked(folder, on_wait) as has_waited:
                if has_waited or not opener.exists(folder, parts.PLAN_FILE):
                    continue
                if folder.name != shared.name:
                    with locked(cache, on_wait, begins_part=True):
                        opener.remove(folder, parts.PLAN_FILE)  # ends the parts that still run
                        shutil.rmtree(folder, ignore_errors=True)
                    continue
                order = {"folder": str(folder), **arguments, "config": _shared(arguments["config"], folder)}
                with progress:
                    _Driver(cluster, run, order, shared, progress, max_failures).run()
                summary = finish(cache, on_wait=lambda _: None).summary
                if summary is None:
                    what = "has finished or removed parts of"
                    raise LockedError(f"another process {what} '{cache}'; run the same command again")
    finally:
        with uninterruptible():
            cluster.close(run)
    return replace(summary, elapsed_seconds=time.monotonic() - started)


def _registered(plan: BuildPlan, engine: Engine, cluster: Cluster) -> tuple[parts.PartsPlan, Path]:
    """Return the plan of the parts, and its folder or that of another plan, which has to be removed before.

    Parts of an earlier run with the same settings go on.
    """
    num_parts = min(_PARTS_OF_NODE * len(cluster.nodes()), len(plan.index) // _FILES_OF_PART)
    shared = plan_of_parts(plan, engine.num_parts or max(1, len(cluster.nodes()), num_parts))
    Part.parse(f"1/{shared.num_parts}")  # raises if there are too many
    for folder in parts.plan_folders(plan.cache):
        earlier = parts.read_plan(folder)
        if earlier.facts != shared.facts:
            return shared, folder
        shared = earlier
    return shared, register(plan, shared)


def _shared(config: Any, folder: Path) -> Any:
    """Return a config that the nodes can read, as JSON data. A file is copied to the disk of the cache."""
    if isinstance(config, Config):
        return {"config": config_to_json(config)}
    if not isinstance(config, str) or not os.path.isfile(config):
        return config
    opener.remove(folder, "config.yaml")  # a link in its place would be followed
    return str(shutil.copyfile(config, folder / "config.yaml"))


class _Driver:
    """One run over the parts that are missing: which node builds which part, and which node is not used any more."""

    def __init__(
        self,
        cluster: Cluster,
        run: str,
        order: dict[str, Any],
        shared: parts.PartsPlan,
        progress: Progress,
        limit: float,
    ) -> None:
        self._cluster, self._run, self._order = cluster, run, order
        self._progress, self._max_failures = progress, limit
        self._folder, self._num_parts = Path(order["folder"]), shared.num_parts
        missing = (
            part for part in shared.parts() if not any(map(parts.is_done, parts.attempts_of(self._folder, part)))
        )
        self._queue = deque(part.number for part in missing)
        self._running: dict[Any, tuple[str, int]] = {}
        """Node and part of each handle"""
        self._seen: defaultdict[int, set[str]] = defaultdict(set)
        """Nodes that have built a part, or could not"""
        self._doubtful: dict[int, str] = {}
        """Parts of which another node looks at the failures, with the first node"""
        self._fruitless: set[int] = set()
        """Doubtful parts of which the first node built nothing. If it built any, one bad file is not its fault"""
        self._proven: set[str] = set()
        """Nodes that have built a video"""
        self._nodes: dict[str, int] = {}
        self._unfit: dict[str, str] = {}
        """Nodes that get no work, with the reason"""
        self._rests_until: dict[str, float] = {}
        self._losses: Counter[int] = Counter()
        self._deaths: Counter[str] = Counter()
        self._full: set[int] = set()
        """Parts for which a node had no room"""
        self._numbers: dict[int, dict[str, Any]] = {}
        """Progress of each part"""
        self._had_nodes_at = time.monotonic()

    def run(self) -> None:
        """Return when all parts are complete."""
        looked_at = 0.0
        while self._queue or self._running:
            if time.monotonic() - looked_at >= _LOOK_SECONDS:
                self._update_nodes()
                looked_at = time.monotonic()
            for node in self._free():
                self._start(node)
            for handle in list(self._running):
                with uninterruptible():
                    result = self._cluster.result(handle)
                node, number = self._running[handle]
                if result is None and node not in self._nodes:
                    result = NodeLost()
                if result is not None:
                    del self._running[handle]
                    self._handle_result(node, number, result)
            time.sleep(_POLL_SECONDS)
        self._show()

    def _update_nodes(self) -> None:
        with uninterruptible():
            self._nodes = self._cluster.nodes()
        now = time.monotonic()
        if self._fit():
            self._had_nodes_at = now
        elif now - self._had_nodes_at > _NODES_SECONDS or (self._nodes and not self._running):
            raise WorkersDiedError(
                f"the cluster has no node that can work: it has {counted(len(self._nodes), 'node')}, and "
                f"{len(self._unfit)} were refused. Look at the nodes, then run the same command."
            )
        self._show()

    def _fit(self) -> list[str]:
        return [node for node in self._nodes if node not in self._unfit]

    def _free(self) -> list[str]:
        """Return the nodes that may begin a part."""
        busy = {node for node, _ in self._running.values()}
        now = time.monotonic()
        return [node for node in self._fit() if node not in busy and self._rests_until.get(node, 0.0) <= now]

    def _start(self, node: str) -> None:
        """Start the first part that the node has not seen, or that all nodes have seen.

        A node whose failures another one looks at begins no part until then, but looks at those of others.
        """
        fit = set(self._fit())
        allowed = [number for number in self._queue if node not in self._seen[number] or fit <= self._seen[number]]
        if node in self._doubtful.values():
            allowed = [number for number in allowed if number in self._doubtful]
        number = next((number for number in allowed if self._may_look(node, number)), None)
        if number is None:
            return
        self._queue.remove(number)
        options = {**self._order["options"], "part": f"{number}/{self._num_parts}", "wait": False}
        if number in self._doubtful:
            options["retry_quarantined"] = True
        log = f"{number}.log"
        os.close(opener.open_file(self._folder, log, os.O_WRONLY | os.O_CREAT))  # raises for a link
        facts = {"jobs": self._nodes[node], "options": options, "log_file": str(self._folder / log)}
        order = json.dumps({**self._order, **facts})
        with uninterruptible():
            self._running[self._cluster.start(node, _MODULE, order, self._run)] = node, number

    def _may_look(self, node: str, number: int) -> bool:
        """Return whether a node may begin a part. Failures are looked at by a node that has built a video.

        Another one looks at them only if no node has, nor could have soon.
        """
        if number not in self._doubtful or node in self._proven:
            return True
        better = self._proven | {other for other, _ in self._running.values()}
        return not better.intersection(self._fit()) - self._seen[number]

    def _handle_result(self, node: str, number: int, result: Exit | NodeLost) -> None:
        if isinstance(result, NodeLost):
            self._losses[number] += 1
            if self._losses[number] >= _MAX_LOSSES:
                raise WorkersDiedError(f"{_MAX_LOSSES} nodes were lost while they built part {number}")
            self._rests_until[node] = time.monotonic() + _REST_SECONDS
            self._queue.appendleft(number)
        elif result.code == 0:
            self._built(node, number, json.loads(result.output.splitlines()[-1]))
        elif result.code == _LOCKED:  # a process that was taken for lost builds it, or another driver's
            self._rests_until[node] = time.monotonic() + 2.0
            self._queue.append(number)
        else:
            self._failed(node, number, result)

    def _built(self, node: str, number: int, report: dict[str, Any]) -> None:
        """Let another node look at failures that may lie in the node. If it has fewer, the first node is at fault."""
        self._deaths[node] = 0
        counts, first = report["counts"], self._doubtful.pop(number, None)
        if counts["num_done"]:
            self._proven.add(node)
        self._seen[number].add(node)
        if first is not None:
            if counts["num_done"] and number in self._fruitless:
                self._put_aside(first, f"what failed there was built on {node}")
        elif _DOUBTFUL.intersection(report["causes"]) and set(self._fit()) - self._seen[number]:
            self._doubtful[number] = node
            if not counts["num_done"] + counts["num_up_to_date"]:
                self._fruitless.add(number)
            self._numbers.pop(number, None)
            self._queue.appendleft(number)

    def _failed(self, node: str, number: int, result: Exit) -> None:
        message = (result.errors.strip().splitlines() or [f"exit code {result.code}"])[-1]
        if result.code == _TOO_MANY:
            raise TooManyFailuresError(message)
        self._seen[number].add(node)
        self._queue.append(number)
        self._deaths[node] += 1
        if result.code == CacheWriteError.exit_code:
            if number in self._full or len(self._fit()) == 1:
                raise CacheWriteError(message)
            self._full.add(number)
        if result.code not in (_DIED, *(-number for number in (9, 15)), 143) or self._deaths[node] > 1:
            self._put_aside(node, message)

    def _put_aside(self, node: str, reason: str) -> None:
        """Start nothing more on a node, and say so once."""
        if self._unfit.setdefault(node, reason) is reason:
            terminal.say(f"node {node} gets no work: {reason}", shown=True)

    def _show(self) -> None:
        """Show the sum of the numbers in the logs of the parts."""
        for _, number in list(self._running.values()):
            with suppress(OSError, ValueError, IndexError):
                with opener.open_binary(self._folder, f"{number}.log") as log:
                    log.seek(max(0, os.fstat(log.fileno()).st_size - 4000))
                    lines = [json.loads(line) for line in log.read().splitlines()[1:]]
                self._numbers[number] = [line for line in lines if "num_videos" in line][-1]
        names = ("num_videos", "video_seconds", "num_failed", "num_frames", "num_bytes")
        sums = {name: sum(numbers.get(name, 0) for numbers in self._numbers.values()) for name in names}
        self._progress.show(sums)
        if sums["num_failed"] > self._max_failures:
            failures = counted(sums["num_failed"], "failure")
            raise TooManyFailuresError(f"stopped after {failures}; the same command resumes")
