"""``build --part I/N``: a share of the index is built as a cache of its own, which ``finish`` moves into the cache.

The share is a function of the index and of N alone, so parts need no plan that one of them makes for the others.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from chordcache.building.build_plan import BuildPlan
from chordcache.building.existing_cache import settings_of
from chordcache.building.fix_commands import repairable
from chordcache.building.pack import copy_video
from chordcache.config.config import config_to_json
from chordcache.digests import digest_file
from chordcache.errors import DamageError, UsageError, printable
from chordcache.index.grouping import IndexRows
from chordcache.index.index_files import Index, cached_index
from chordcache.media.versions import content_versions
from chordcache.records import VideoRecord
from chordcache.storage import atomic, layout, opener
from chordcache.storage import part_folders as parts
from chordcache.storage.atomic import machine
from chordcache.storage.cache_header import Header
from chordcache.storage.find_sidecars import Sidecars
from chordcache.storage.lock import locked
from chordcache.storage.part import Part
from chordcache.storage.quarantine import Quarantine, write_failures
from chordcache.storage.run_log import adopt_last_scan
from chordcache.storage.sealed_json import seal_versioned


def plan_of_parts(plan: BuildPlan, num_parts: int) -> parts.PartsPlan:
    """Return what the parts of a build share, without the folders of sources: machines may mount them elsewhere."""
    header = Header(
        config_to_json(plan.config), {}, plan.requested, {}, plan.follow_symlinks
    )  # fmt: skip
    path = plan.index.path
    is_of_parts = opener.exists(path.parent, parts.PLAN_FILE)  # it is the copy that a driver's nodes read
    index = parts.read_plan(path.parent).facts["index"] if is_of_parts else digest_file(path)
    return parts.PartsPlan(num_parts, {"index": index, **settings_of(header), **content_versions()})


def register(plan: BuildPlan, shared: parts.PartsPlan) -> Path:
    """Return the folder of a plan. Call it under the shared lock of the cache, so that no build of the whole runs.

    Raises ``UsageError`` if the cache is being built in parts of another plan.
    """
    folder = plan.cache / layout.PARTS / shared.name
    for other in parts.plan_folders(plan.cache):
        if other != folder:
            raise _another(plan.cache, parts.read_plan(other), shared)
    if not opener.exists(plan.cache, f"{layout.PARTS}/{shared.name}/{parts.PLAN_FILE}"):
        with IndexRows(plan.index):  # raises if it names a file twice
            opener.make_folder(plan.cache, f"{layout.PARTS}/{shared.name}")
        adopt_last_scan(folder, plan.index.path)
        plan.index.write(folder / "index.jsonl")
        atomic.publish_text(folder, parts.PLAN_FILE, seal_versioned(shared) + "\n")
    return folder


def _another(cache: Path, plan: parts.PartsPlan, mine: parts.PartsPlan) -> UsageError:
    old = {"part": f"I/{plan.num_parts}", **plan.facts}
    new = {"part": f"I/{mine.num_parts}", **mine.facts}
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    what = "; ".join(f"{name}: got {new.get(name, 'none')}, expected {old.get(name, 'none')}" for name in names)
    return UsageError(
        f"{what}, since cache '{printable(cache)}' is built in {plan.num_parts} parts. Use the same for all parts, or "
        f"{parts.how_to_give_up(cache)}."
    )


@contextmanager
def part_plan(plan: BuildPlan, folder: Path, part: Part, wait: Callable[[str], None] | None) -> Iterator[BuildPlan]:
    """Yield the plan of one part, in its own folder, under its lock. What others have built is taken over before.

    ``plan`` is that of the whole cache, ``folder`` what ``register`` returned, and ``wait`` as in ``locked``.
    """
    target = folder / f"{part.name}.{machine()}"
    with locked(target, wait):
        index = cached_index(folder, _write_share(plan.index, part, folder / f"{target.name}.jsonl"))
        records = {layout.key_of(record): record for record in index}
        for source in (*parts.attempts_of(folder, part), plan.cache):
            if source != target:
                _link_published(source, target, records)
        if not opener.exists(target, "quarantine.jsonl"):
            with repairable(plan.cache):
                earlier = Quarantine(plan.cache, {})
            write_failures(target, (failure for key in records if (failure := earlier.get(key)) is not None))
        yield replace(plan, cache=target, index=index, earlier=None, parts_folder=folder)


def _write_share(index: Index, part: Part, path: Path) -> str:
    """Write the index of one part, longest files first, and return its name. Segments of one file are in one part."""
    files: dict[tuple[str, str], int] = {}
    offsets, numbers, costs = array("q"), array("q"), array("d")
    with index.open() as file:
        for offset, record in index.located(file):
            number = files.setdefault((record.root, record.path), len(files))
            if number == len(costs):
                costs.append(0.0)
            costs[number] += _cost(record)
            offsets.append(offset)
            numbers.append(number)
        costs_of_files, number_of_row = estimated(np.array(costs)), np.array(numbers)
        is_mine = balanced(costs_of_files, part.num_parts) == part.number - 1
        rows = np.flatnonzero(is_mine[number_of_row]) if len(costs) else np.zeros(0, np.int64)
        rows = rows[np.lexsort((rows, number_of_row[rows], -costs_of_files[number_of_row[rows]]))]
        with index.writer(path) as writer:
            for row in rows.tolist():
                writer.write(index.at(file, offsets[row]))
    return path.name


def _cost(record: VideoRecord) -> float:
    """Return the picture elements of an item, or NaN if they are not known."""
    header, packets = record.header, record.packets
    if header is None or packets is None:
        return float("nan")
    seconds = record.known_seconds
    share = 1.0 if record.segment is None or not packets.duration_seconds else (seconds or 0) / packets.duration_seconds
    return packets.num_frames * header.coded_width * header.coded_height * share


def estimated(costs: np.ndarray) -> np.ndarray:
    """Return costs [shape=(N,), dtype=float64] with the mean in the place of each that is NaN, and at least 1."""
    known = costs[np.isfinite(costs)]
    return np.maximum(np.where(np.isfinite(costs), costs, known.mean() if len(known) else 1.0), 1.0)


def balanced(costs: np.ndarray, num_parts: int) -> np.ndarray:
    """Divide files into parts of equal cost: the longest first, each to the part with the least so far.

    ``costs`` [shape=(N,), dtype=float64] may have any unit. Returns the part of each file, from 0 [shape=(N,),
    dtype=int64].
    """
    part_of_file = np.zeros(len(costs), np.int64)
    loads = [(0.0, part) for part in range(num_parts)]
    for number in np.argsort(-costs, kind="stable").tolist():
        load, part = loads[0]
        part_of_file[number] = part
        heapq.heapreplace(loads, (load + float(costs[number]), part))
    return part_of_file


def _link_published(source: Path, target: Path, keys: Iterable[str]) -> None:
    """Link videos that another cache has published and this one lacks: the artefacts, then the sidecar."""
    sidecars = Sidecars(source)
    for key in keys:
        if not opener.exists(target, layout.sidecar_file(key)) and (sidecar := sidecars.read_or_none(key)) is not None:
            with suppress(FileNotFoundError, DamageError):  # it is built then
                copy_video(source, target, sidecar)
