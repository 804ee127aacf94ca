"""``build --part``: divide the index of a cache into parts, and make the plan of one part.

Registration of a million records takes minutes. So it is done once, and a part reads its own records only.
"""

from __future__ import annotations

import heapq
import json
import os
import shutil
from array import array
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import numpy as np

from chordcache.config.config import config_to_json
from chordcache.digests import digest_file, hex128
from chordcache.errors import UsageError, printable
from chordcache.index.files import Index, IndexWriter, no_videos, read_index
from chordcache.index.grouping import IndexRows
from chordcache.pipeline.existing_cache import repairable, tool_versions
from chordcache.pipeline.plan import BuildPlan, write_plan
from chordcache.records import VideoRecord
from chordcache.storage import atomic, layout, parts
from chordcache.storage.lock import locked, locked_part
from chordcache.storage.node_check import versions
from chordcache.storage.owner import check_run, run_of
from chordcache.storage.part import Part
from chordcache.storage.parts import PartsPlan
from chordcache.storage.quarantine import Failure, Quarantine, write_failures
from chordcache.storage.readable import exists, list_folder
from chordcache.storage.run_log import adopt_last_scan
from chordcache.storage.sealed_json import seal

Planner: TypeAlias = Callable[[str | Path | Index], BuildPlan]
"""Function that makes the plan of a build from its index"""

Say: TypeAlias = Callable[[str], None]

RESTART = "remove that file and start the part again"
"""Action for a damaged list of a part. ``verify --repair`` is refused until the parts are joined"""


@contextmanager
def part_plan(
    cache: Path, part: Part, index: str | Path | Index, plan_of: Planner, say: Say, *, wait: bool
) -> Iterator[BuildPlan]:
    """Yield the plan of one part, under the lock of the part. The first part that starts divides the index.

    Parameters
    ----------
    cache : Path
        Folder of the cache.
    part : Part
        The part.
    index : str, Path or Index
        The index of all parts.
    plan_of : callable
        Function that makes the plan of an index.
    say : callable
        Function that shows a message. It is called before a wait.
    wait : bool
        True to wait while another process writes to this part or to the whole cache.

    Raises
    ------
    UsageError
        If the cache is being built in another number of parts, of another index, with other settings or by other
        programs.
    LockedError
        If another process writes to this part or to the whole cache.
    """
    path = Path(index.path if isinstance(index, Index) else index)
    if not parts.in_parts(cache):
        plan_of(index)  # reports wrong arguments before a folder is made
        if parts.is_foreign(cache):
            raise UsageError(f"'{printable(cache / parts.PARTS)}' was not made by chordcache; move it away")
    if not parts.in_parts(cache) or run_of(cache / parts.PARTS):  # the process that divides still holds the cache
        waits = f"part {part.number} of {part.num_parts} waits until another part has divided the index"
        with locked(cache / parts.PARTS, lambda _: say(waits)):
            if not parts.in_parts(cache):
                _divide(cache, part.num_parts, path, lambda: plan_of(index), say if wait else None)
    found = parts.read_plan(cache)
    _check_same(cache, part, found, path)
    folder = parts.part_folder(cache, part)
    with locked_part(cache, folder, say if wait else None):
        with repairable(cache, parts.how_to_give_up(cache)):
            records = read_index(folder / "index.jsonl")
        plan = replace(plan_of(records), part_folder=folder)
        if _settings_of(plan) != found.settings:
            raise _another(cache, found, "settings: got others, expected those of the other parts")
        yield plan


def _check_same(cache: Path, part: Part, found: PartsPlan, index: Path) -> None:
    if part.num_parts != found.num_parts:
        raise _another(cache, found, f"part: got {part.number}/{part.num_parts}, expected I/{found.num_parts}")
    if not exists(index):
        read_index(index)  # raises
    if digest_file(index) != found.index:
        raise _another(cache, found, f"index: got '{printable(index)}', expected the one that was divided")
    here = versions()
    for name, version in found.versions.items():
        if here.get(name) != version:
            raise _another(cache, found, f"{name}: got {here.get(name, 'none')}, expected {version}")


def _another(cache: Path, found: PartsPlan, what: str) -> UsageError:
    return UsageError(
        f"{what}, since cache '{printable(cache)}' is built in {found.num_parts} parts. Use the same for all parts, "
        f"or {parts.how_to_give_up(cache)}."
    )


def _settings_of(plan: BuildPlan) -> str:
    """Return a hash of the settings that decide about the content of a cache. Folders of sources are not among them."""
    settings = [config_to_json(plan.config), plan.requested, plan.follow_symlinks, plan.source_hash]
    return hex128(json.dumps([*settings, plan.on_damage], sort_keys=True).encode())


def _divide(cache: Path, num_parts: int, index: Path, plan_now: Callable[[], BuildPlan], on_wait: Say | None) -> None:
    """Register the records of an index in the cache, and write the index of each part."""
    with locked(cache, on_wait):
        plan = plan_now()
        if not len(plan.index):
            raise no_videos(plan.index)
        adopt_last_scan(cache, plan.index.path)
        digest, run = digest_file(index), run_of(cache) or ""
        folder = cache / parts.PARTS
        for name in list_folder(folder):  # left by a process that was killed here
            if "-of-" in name or name == ".partial":
                shutil.rmtree(folder / name, ignore_errors=True)
        with IndexRows(plan.index) as rows:
            with repairable(cache):
                quarantine = Quarantine(cache, tool_versions(), plan.on_damage)
            plan = write_plan(plan, rows.keys, prune=False)
            if index.samefile(cache / "index.jsonl"):  # was written again just now
                digest = digest_file(index)
            failures = {failure.key: failure for failure in quarantine if failure.key in rows.keys}
            with atomic.no_space_as_error(folder), atomic.partial_folder(folder) as partial:
                _Division(plan, partial, failures).write(rows, num_parts)
                for part in range(1, num_parts + 1):
                    name = Part(part, num_parts).name
                    atomic.publish_folder(partial / name, folder / name)
        write_failures(folder, failures.values())
        check_run(cache, run)
        settings = _settings_of(plan_now())  # the header of the cache exists now, as it does for each part
        parts.write_plan(cache, PartsPlan(num_parts, digest, settings, versions()))


class _Division:
    """The division of an index into parts of equal work. Segments of one file are in one part."""

    def __init__(self, plan: BuildPlan, folder: Path, failures: Mapping[str, Failure]) -> None:
        self._plan, self._folder, self._failures = plan, folder, failures
        self._offsets = array("q", [0])
        """Byte offset of each file's records in the spool, and the end"""
        self._costs, self._sizes = array("d"), array("d")
        """Picture elements of each file, and its size [bytes]. NaN if it is not known"""
        self._failed: dict[int, list[Failure]] = {}
        """Number of a file to the earlier failures of its items"""

    def write(self, rows: IndexRows, num_parts: int) -> None:
        """Write one folder for each part. The longest files of a part come first."""
        with open(self._folder / "records", "w+b") as spool:
            for group in rows.by_file():
                self._add(len(self._costs), [record for _, record in group])
                spool.writelines((seal(record) + "\n").encode("ascii") for _, record in group)
                self._offsets.append(spool.tell())
            spool.flush()
            costs = _estimated(np.array(self._costs), np.array(self._sizes))
            part_of = balanced(costs, num_parts)
            order = np.argsort(-costs, kind="stable")
            by_part = order[np.argsort(part_of[order], kind="stable")]
            ends = np.cumsum(np.bincount(part_of, minlength=num_parts))
            for number, files in enumerate(np.split(by_part, ends[:-1]), 1):
                self._write_part(Part(number, num_parts), files.tolist(), spool.fileno())

    def _add(self, number: int, records: list[VideoRecord]) -> None:
        self._costs.append(sum(_cost(record) for record in records))
        self._sizes.append(self._size(records[0]))
        failed = [self._failures[key] for key in map(layout.key_of, records) if key in self._failures]
        if failed:
            self._failed[number] = failed

    def _size(self, record: VideoRecord) -> float:
        if record.identity is not None:
            return record.identity.size
        try:
            return os.path.getsize(os.path.join(self._plan.roots[record.root], record.path))
        except (OSError, ValueError):
            return float("nan")

    def _write_part(self, part: Part, files: list[int], spool: int) -> None:
        folder = self._folder / part.name
        folder.mkdir()
        with IndexWriter(
            folder / "index.jsonl",
            roots=self._plan.roots,
            level=self._plan.index.level,
            follow_symlinks=self._plan.follow_symlinks,
            columns=self._plan.index.columns,
        ) as writer:
            for number in files:
                start, end = self._offsets[number], self._offsets[number + 1]
                for line in os.pread(spool, end - start, start).splitlines(keepends=True):
                    writer.write_sealed(line)
        write_failures(folder, (failure for number in files for failure in self._failed.get(number, ())))


def _cost(record: VideoRecord) -> float:
    """Return the picture elements of an item, or NaN if they are not known."""
    header, packets = record.header, record.packets
    if header is None or packets is None:
        return float("nan")
    seconds = record.known_seconds
    share = 1.0 if record.segment is None or not packets.duration_seconds else (seconds or 0) / packets.duration_seconds
    return packets.num_frames * header.coded_width * header.coded_height * share


def _estimated(costs: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return the cost of each file, by its size where the picture elements are not known, and at least 1."""
    both = np.isfinite(costs) & np.isfinite(sizes) & (sizes > 0)
    per_byte = float(np.median(costs[both] / sizes[both])) if both.any() else 1.0
    costs = np.where(np.isfinite(costs), costs, sizes * per_byte)
    known = costs[np.isfinite(costs)]
    return np.maximum(np.where(np.isfinite(costs), costs, known.mean() if len(known) else 1.0), 1.0)


def balanced(costs: np.ndarray, num_parts: int) -> np.ndarray:
    """Divide files into parts of equal cost: the longest first, each to the part with the least so far.

    Parameters
    ----------
    costs : np.ndarray
        [shape=(N,), dtype=float64] Cost of each file, any unit.
    num_parts : int
        Number of parts.

    Returns
    -------
    np.ndarray
        [shape=(N,), dtype=int64] Part of each file, from 0.
    """
    found = np.zeros(len(costs), np.int64)
    loads = [(0.0, part) for part in range(num_parts)]
    for number in np.argsort(-costs, kind="stable").tolist():
        load, part = loads[0]
        found[number] = part
        heapq.heapreplace(loads, (load + float(costs[number]), part))
    return found
