"""``build --scratch``: a part is built on a disk of its machine, and copied from time to time."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from chordcache.building.build_options import BuildOptions
from chordcache.building.build_plan import BuildPlan
from chordcache.building.build_task import planned_files
from chordcache.building.pack import copy_video
from chordcache.errors import ChordcacheError, UsageError, printable
from chordcache.index.grouping import IndexRows
from chordcache.index.index_files import cached_index
from chordcache.media.versions import tool_versions
from chordcache.records import RunSummary
from chordcache.storage import atomic
from chordcache.storage.find_sidecars import iter_keys
from chordcache.storage.quarantine import Quarantine, write_failures
from chordcache.storage.sidecar import read_sidecar

_COPY_SECONDS = 120.0
"""[seconds] Time between two copies. A machine that is lost has to build again what it built since the last one"""


def checked_scratch(scratch: str | None, *, has_parts: bool) -> None:
    """Raise ``UsageError`` if a scratch cannot be used. That of a cluster is a folder of each node."""
    if scratch is None:
        return
    if not has_parts:
        raise UsageError(f"scratch: got '{printable(scratch)}' without a part, expected --part or a cluster")
    if not os.path.isdir(scratch):
        raise UsageError(f"scratch: got '{printable(scratch)}', expected a folder that exists")


def build_in_scratch(
    plan: BuildPlan, options: BuildOptions, build: Callable[[BuildPlan, BuildOptions], RunSummary]
) -> RunSummary:
    """Build what a part lacks in its scratch, copy it, and then complete the part where it is.

    ``plan`` is that of the part, under its lock. ``build`` builds a plan with options, and returns its counts.
    """
    part, local = plan.cache, Path(str(options.scratch), f"{plan.cache.parent.name}-{plan.cache.name}")
    inside = replace(options, scratch=None)
    if num_missing := _write_missing(plan, inside, local):
        with _copied(local, part):
            built = build(replace(plan, cache=local, index=cached_index(local, "missing.jsonl")), inside)
        failures = {failure.key: failure for cache in (part, local) for failure in Quarantine(cache, {})}
        write_failures(part, failures.values())
    summary = build(plan, replace(inside, retry_quarantined=False))  # writes the lists
    shutil.rmtree(local, ignore_errors=True)
    if not num_missing:
        return summary
    return replace(
        built,
        num_inputs=summary.num_inputs,
        num_failed=summary.num_failed,
        num_up_to_date=summary.num_inputs - summary.num_failed - built.num_done,
    )


def _write_missing(plan: BuildPlan, options: BuildOptions, local: Path) -> int:
    """Write the index of the videos that the part lacks, and return their number. What is in the scratch stays."""
    atomic.make_folder(local)
    quarantine = Quarantine(plan.cache, tool_versions())
    num_missing = 0
    with IndexRows(plan.index) as rows, plan.index.writer(local / "missing.jsonl") as writer:
        for tasks in planned_files(plan, rows, quarantine, options):
            for task in tasks:
                if task.state == "missing":
                    writer.write(task.item)
                    num_missing += 1
    return num_missing


@contextmanager
def _copied(local: Path, part: Path) -> Iterator[None]:
    """Copy the videos that are built in the block from time to time, and at its end, however it ends."""
    copied: set[str] = set()
    ended = threading.Event()

    def copy() -> None:
        for key in iter_keys(local):
            if key not in copied:
                copy_video(local, part, read_sidecar(local, key))
                copied.add(key)

    def copy_in_turn() -> None:
        while not ended.wait(_COPY_SECONDS):
            with suppress(OSError, ChordcacheError):  # the copy at the end raises it again
                copy()

    thread = threading.Thread(target=copy_in_turn, name="chordcache scratch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        with atomic.no_space_as_error(part):
            copy()
