"""``build --part I/N``: a share of the index is built as a cache of its own. ``merge --move`` joins all parts.

The share is a function of the index and of N alone, so parts need no plan that one of them makes for the others.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Iterator
from dataclasses import replace
from typing import BinaryIO

import numpy as np

from chordcache.building.build_plan import BuildPlan
from chordcache.building.existing_cache import settings_of
from chordcache.config.config import config_to_json
from chordcache.errors import UsageError, printable
from chordcache.index.index_files import Index
from chordcache.media.versions import content_versions
from chordcache.records import VideoRecord
from chordcache.storage.cache_header import Header, PartOf
from chordcache.storage.part import Part


def part_plan(plan: BuildPlan, name: str | None) -> BuildPlan:
    """Return the plan of the part ``I/N`` of a build, in the cache of that part, or ``plan`` if ``name`` is None.

    A build of the index of the part itself stays one of the part. Raises ``UsageError`` with the differences if the
    cache is another part, or not a part.
    """
    earlier = plan.earlier
    is_own = plan.index.path.absolute() == plan.cache / "index.jsonl"
    if name is None and (is_own or earlier is None or earlier.part is None):
        return replace(plan, part=earlier.part if earlier else None)
    part = None
    if name is not None:
        share = Share(plan.index, Part.parse(name))
        part = PartOf(name, plan.index.digest(), content_versions(), tuple(share.rows.tolist()))
        plan = replace(plan, index=share, part=part)
    if earlier is not None:
        header = Header(config_to_json(plan.config), {}, plan.requested, {}, plan.follow_symlinks, part=part)
        old, new = part_settings(earlier), part_settings(header)
        names = [name for name in {**old, **new} if old.get(name) != new.get(name)] if part else ["part"]
        if names:
            what = "; ".join(f"{name}: got {new.get(name, 'none')}, expected {old.get(name, 'none')}" for name in names)
            raise UsageError(f"{what}, as cache '{printable(plan.cache)}' was built. Use the same, or another folder.")
    return plan


def part_settings(header: Header) -> dict[str, str]:
    """Return the name and value of all in which a part has to stay the same: itself, the index, settings, versions."""
    part = header.part
    facts = {"part": part.name, "index": part.index, **part.versions} if part else {}
    return {**facts, **settings_of(header)}


class Share(Index):
    """The records of an index that one part builds. Segments of one file are in one part."""

    def __init__(self, index: Index, part: Part) -> None:
        super().__init__(index.path, index.source, is_cached=index.is_cached)
        self.roots, self.columns, self._whole = index.roots, index.columns, index
        self.rows = rows_of(index, part)
        """Numbers of its records in the whole index, from 0, ascending [shape=(N,), dtype=int64]"""

    def __len__(self) -> int:
        return len(self.rows)

    def located(self, file: BinaryIO) -> Iterator[tuple[int, VideoRecord]]:
        """Yield the offset for ``at``, and the record, of each line of the part."""
        rows = iter(self.rows.tolist())
        wanted = next(rows, None)
        for row, place in enumerate(self._whole.located(file)):
            if row == wanted:
                yield place
                wanted = next(rows, None)

    def at(self, file: BinaryIO, offset: int) -> VideoRecord:
        """Return the record at a byte offset of the index's open file."""
        return self._whole.at(file, offset)


def rows_of(index: Index, part: Part) -> np.ndarray:
    """Return the numbers of the records of a part, from 0, ascending [shape=(N,), dtype=int64]."""
    files: dict[tuple[str, str], int] = {}
    numbers, costs = array("q"), array("d")
    for record in index:
        number = files.setdefault((record.root, record.path), len(files))
        if number == len(costs):
            costs.append(0.0)
        costs[number] += _cost(record)
        numbers.append(number)
    is_mine = balanced(estimated(np.array(costs)), part.num_parts) == part.number - 1
    return np.flatnonzero(is_mine[np.array(numbers)]) if len(costs) else np.zeros(0, np.int64)


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
