"""The build of some files for an estimate: real artefacts in a temporary folder, measured and removed file by file."""

from __future__ import annotations

import math
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from statistics import fmean, stdev
from tempfile import TemporaryDirectory
from typing import Any

from chordcache.building.build_plan import ArtefactTask
from chordcache.building.build_task import BuildTask, Hashing
from chordcache.building.file_build import build_file
from chordcache.engine import pool, terminal
from chordcache.engine.limits import Limits
from chordcache.engine.signals import stop_signals
from chordcache.media.probe import probe
from chordcache.records import PacketFacts, Segment
from chordcache.storage import opener
from chordcache.storage.quarantine import Failure
from chordcache.storage.sidecar import Sidecar

MAX_SECONDS = 30.0
"""[seconds] of a longer file that are built"""

SIDECARS = "sidecars"
"""Name of the sidecars among the sizes"""

_NUM_PIECES = 3
"""Number of pieces of a long file"""

_MAX_ITEMS = 24
"""Largest number of items of one file that are built if each takes the frames of a bucket"""

_LEAST_ERROR = 0.02
"""Smallest standard error of the size of a file that was built in part: three pieces may be alike by chance"""


@dataclass(frozen=True)
class Measured:
    """The measurements of a file, for the whole of it."""

    cpu_seconds: float = 0.0
    num_bytes: Mapping[str, float] = field(default_factory=dict)
    """[bytes] by the names of ``size_name``, and ``SIDECARS``"""
    deviation: float = 0.0
    """[bytes] Standard error of their sum, of a file that was built in part"""
    failures: tuple[str, ...] = ()
    """Messages of items that failed"""
    start_seconds: float = 0.0
    """[seconds] CPU time that the worker had used before"""


def size_name(artefact: ArtefactTask) -> str:
    """Return the name of an artefact's size, such as "frames in lmdb"."""
    return f"{', '.join(artefact.names)} in {artefact.tier}"


def build_sample(files: Sequence[Sequence[BuildTask]], limits: Limits, *, shown: bool) -> tuple[list[Measured], float]:
    """Build files with one worker, at most ``MAX_SECONDS`` of each. ``shown`` shows a bar on a terminal.

    Returns
    -------
    list of Measured
        The measurements of each file.
    float
        [seconds] CPU time that a worker takes to start, with the imports that the features need.
    """
    specs = {spec.network.key: spec for file in files for task in file for spec in task.specs.values() if spec.device}
    networks = [spec.network for spec in specs.values()]
    if not files:
        return [], 0.0
    # the first build imports what the features need, so a small file is built twice, one with sound if there is one
    sizes = [(file[0].item.audio is None, file[0].item.identity.size if file[0].item.identity else 0) for file in files]
    order = [sizes.index(min(sizes)), *range(len(files))]
    measured = [Measured()] * len(order)
    with (
        stop_signals(),
        TemporaryDirectory(prefix="chordcache-sample-") as scratch,
        terminal.progress_bar(len(order), "file", shown=shown) as bar,
    ):
        orders = ((place, _alone(files[number], Path(scratch))) for place, number in enumerate(order))
        with closing(pool.run(_measure, orders, jobs=1, limits=limits, networks=networks)) as results:
            for (place, _), result in results:
                measured[place] = result if isinstance(result, Measured) else Measured(failures=(result.message,))
                bar.update()
    first, again = measured[0], measured[1 + order[0]]
    return measured[1:], first.start_seconds + max(0.0, first.cpu_seconds - again.cpu_seconds)


def _alone(tasks: Sequence[BuildTask], scratch: Path) -> tuple[BuildTask, ...]:
    """Return the tasks for another folder, where nothing is cached."""
    new: dict[str, Any] = {"cache": scratch, "previous": None, "kept": ()}
    return tuple(
        replace(task, **new, all_artefacts=task.artefacts, hashing=Hashing() if task.hashing else None)
        for task in tasks
    )


def _measure(numbered: tuple[int, tuple[BuildTask, ...]]) -> Measured:
    """Build the items of a file, or pieces of it, in a worker, and remove what was written."""
    tasks = numbered[1]
    pieces, scale, beginning = _pieces(tasks)
    started = time.process_time()
    outcomes, cpu_seconds = _built(pieces)
    fixed_seconds = min(_built([beginning])[1], cpu_seconds) if beginning else 0.0
    sidecars = [outcome for outcome in outcomes if isinstance(outcome, Sidecar)]
    num_bytes = Counter[str]()
    sizes = []
    for task, outcome in zip(pieces, outcomes, strict=True):
        if isinstance(outcome, Sidecar):
            by_name = {size_name(artefact): _size(outcome, artefact) for artefact in task.artefacts}
            num_bytes.update(by_name)
            sizes.append(sum(by_name.values()))
    error = 0.0
    if beginning and len(sizes) > 1:
        error = max(_LEAST_ERROR * sum(sizes), stdev(sizes) * len(sizes) ** 0.5)
    line_bytes = fmean(len(sidecar.to_line()) + 1 for sidecar in sidecars) * len(tasks) if sidecars else 0.0
    return Measured(
        cpu_seconds=fixed_seconds + (cpu_seconds - fixed_seconds) * scale,
        num_bytes={**{name: size * scale for name, size in num_bytes.items()}, SIDECARS: line_bytes},
        deviation=error * scale,
        failures=tuple(outcome.message for outcome in outcomes if isinstance(outcome, Failure)),
        start_seconds=started,
    )


def _built(tasks: Sequence[BuildTask]) -> tuple[list[Sidecar | Failure], float]:
    """Build items of one file, and remove their artefacts. Return the outcomes and the CPU time."""
    started = time.process_time()
    outcomes = build_file(tasks)
    cpu_seconds = time.process_time() - started
    for info in (info for outcome in outcomes if isinstance(outcome, Sidecar) for info in outcome.features):
        if info.file is not None:
            opener.remove(tasks[0].cache, info.file)
    return outcomes, cpu_seconds


def _size(sidecar: Sidecar, artefact: ArtefactTask) -> int:
    infos = [info for name in artefact.names if (info := sidecar.feature(name, artefact.tier))]
    return sum({info.file: info.num_bytes for info in infos if info.file is not None}.values())


# Pieces of long files


def _pieces(tasks: Sequence[BuildTask]) -> tuple[Sequence[BuildTask], float, BuildTask | None]:
    """Return the items to build of a file.

    A long file becomes three pieces that begin with keyframes. Of many segments, some are built, and long ones are cut.

    Returns
    -------
    sequence of BuildTask
        The items.
    float
        Number of times that the file has what these have.
    BuildTask or None
        Two frames, whose build takes the time that does not grow with the pieces, if the file is built in part.
    """
    first = tasks[0]
    if first.picture.buckets is not None:  # an item takes a few frames, whatever its length
        chosen = tasks[:: math.ceil(len(tasks) / _MAX_ITEMS)]
        return chosen, len(tasks) / len(chosen), None
    record = first.item
    packets = record.packets
    if packets is None:
        packets = probe(first.source_path, root=record.root, relative_path=record.path, inside=first.inside).packets
    if packets is None or not packets.num_frames:
        return tasks, 1.0, None
    fps = packets.num_frames / max(packets.duration_seconds, 1e-3)
    spans = [_span(task.item.segment, packets, fps) for task in tasks]
    ends = list(accumulate(last - start for start, last in spans))
    if ends[-1] <= MAX_SECONDS * fps:
        return tasks, 1.0, None
    longest = math.ceil(MAX_SECONDS * fps / _NUM_PIECES)
    num_pieces = max(_NUM_PIECES, int(MAX_SECONDS * fps * len(tasks) / ends[-1]))
    pieces, beginning, num_frames = [], None, 0
    behind: dict[int, int] = {}
    """Number of an item to the frame behind its last piece"""
    for i in range(num_pieces):
        position = ends[-1] * (2 * i + 1) // (2 * num_pieces)
        number = bisect_right(ends, position)
        start, last = spans[number]
        is_long = last - start > longest
        if is_long:
            wanted = last - (ends[number] - position)
            start = max(start, max((k for k in packets.keyframe_numbers if k <= wanted), default=0))
        start = max(start, behind.get(number, 0))
        last = min(start + longest, last)
        if start < last:
            pieces.append(_cut(tasks[number], start, last) if is_long else tasks[number])
            beginning = beginning or _cut(tasks[number], start, start + 2)
            num_frames, behind[number] = num_frames + last - start, last
    return pieces, ends[-1] / num_frames, beginning


def _span(segment: Segment | None, packets: PacketFacts, fps: float) -> tuple[int, int]:
    """Return the frames [first, behind the last) of an item."""
    start = stop = None
    if segment is not None:
        start = segment.start_frame if segment.start_seconds is None else round(segment.start_seconds * fps)
        stop = segment.end_frame if segment.end_seconds is None else round(segment.end_seconds * fps)
    last = packets.num_frames if stop is None else min(stop, packets.num_frames)
    return min(start or 0, last), last


def _cut(task: BuildTask, start: int, last: int) -> BuildTask:
    return replace(task, item=task.item.replace(segment=Segment(start_frame=start, end_frame=last), content=None))
