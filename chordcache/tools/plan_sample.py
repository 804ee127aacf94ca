"""The build of a sample: real artefacts in a temporary folder, measured and removed one after the other."""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, stdev
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

from chordcache.building.build_options import BuildOptions
from chordcache.building.build_plan import BuildPlan, make_plan
from chordcache.building.build_task import BuildTask
from chordcache.building.existing_cache import tool_versions
from chordcache.building.file_build import build_file
from chordcache.building.tasks import planned_files
from chordcache.config.config import Config
from chordcache.engine import pool
from chordcache.engine.limits import Limits
from chordcache.index.grouping import IndexRows
from chordcache.index.index_files import temporary_index
from chordcache.media.probe import probe
from chordcache.records import Segment, VideoRecord
from chordcache.storage.quarantine import Failure, Quarantine
from chordcache.tools.plan_units import Unit, length_of, part_of

MAX_SECONDS = 30.0
"""[seconds] of a longer file that are built. Clips of data sets are built as they are"""

_NUM_PIECES = 3

_MAX_ROWS = 24
"""Largest number of rows of one file that are built if each takes the frames of a bucket"""

_LEAST_ERROR = 0.02
"""Smallest standard error of the size of a file that was built in part: three pieces may be alike by chance"""

_ERROR_OF_ONE_PIECE = 0.3
"""Standard error of the size of a long file of which one piece was built, as a part of it"""

Group: TypeAlias = tuple[str, str]
"""Tier, and the features of one of its files"""


@dataclass(frozen=True)
class Part:
    """The part of a file that is built for the sample."""

    rows: tuple[VideoRecord, ...]
    scale: float = 1.0
    """Number of times that the file has what the part has"""
    overhead: tuple[VideoRecord, ...] = ()
    """Rows whose build takes only the time that does not grow with the part, for files that are built in part"""
    num_items: int = 1
    """Number of rows of the whole file"""
    fps: float = 25.0
    """[frames per second] of the source"""
    seconds: float = float("inf")
    """[seconds] that are built, infinite if they are not known"""
    has_sound: bool = False


@dataclass(frozen=True)
class Built:
    """The measurements of one task of a worker."""

    cpu_seconds: float = 0.0
    start_seconds: float = 0.0
    """[seconds] CPU time that the worker had used before the task"""
    peak_bytes: int = 0
    num_bytes: Mapping[Group, int] = field(default_factory=dict)
    item_bytes: tuple[int, ...] = ()
    """[bytes] of each item"""
    num_files: int = 0
    sidecar_bytes: int = 0
    failures: tuple[str, ...] = ()


@dataclass(frozen=True)
class Measured:
    """The measurements of a file, for the whole of it."""

    cpu_seconds: float
    peak_bytes: int
    num_bytes: Mapping[Group, float]
    relative_error: float
    """Standard error of ``num_bytes``, as a part of them, of a file that was built in part"""
    num_files: float
    sidecar_bytes: float
    failures: tuple[str, ...]


@dataclass(frozen=True)
class Settings:
    """The settings of the build that is planned."""

    config: Config
    tiers: tuple[str, ...]
    features: tuple[str, ...] | None
    options: BuildOptions
    scratch: str | None = None
    """Folder for temporary files, None for the system's"""


# Parts of long files


def parts_of(units: Sequence[Unit], plan: BuildPlan, limits: Limits) -> list[Part]:
    """Return the part of each unit to build. Files whose packets the index does not know are probed."""
    has_buckets = plan.config.picture.buckets is not None
    probed = {}
    tasks = [(number, unit) for number, unit in enumerate(units) if unit.rows[0].packets is None]
    with closing(pool.run(_probed, tasks, jobs=1, limits=limits)) as outcomes:
        for (number, _), facts in outcomes:
            if isinstance(facts, VideoRecord):
                probed[number] = facts
    parts = []
    for number, unit in enumerate(units):
        rows = tuple(_plain(record) for record in unit.rows)
        part = _part(rows, probed.get(number, unit.rows[0]), has_buckets)
        parts.append(replace(part, num_items=len(rows)))
    return parts


def _probed(task: tuple[int, Unit]) -> VideoRecord:
    record = task[1].rows[0]
    return probe(task[1].source_path, root=record.root, relative_path=record.path)


def _plain(record: VideoRecord) -> VideoRecord:
    """Return a row without label, caption and columns."""
    return VideoRecord(
        record.root, record.path, identity=record.identity, level=record.level, error=record.error,
        error_cause=record.error_cause, error_stage=record.error_stage, content=record.content,
        segment=record.segment,
    )  # fmt: skip


def _part(rows: tuple[VideoRecord, ...], facts: VideoRecord, has_buckets: bool) -> Part:
    length = length_of(facts)
    if length is None or facts.packets is None or facts.error is not None:
        return Part(rows)
    seconds, frames = length
    wanted = seconds * sum(part_of(row, seconds, frames) for row in rows)
    common = Part(rows, fps=frames / seconds, seconds=min(wanted, MAX_SECONDS), has_sound=facts.audio is not None)
    if has_buckets:  # an item takes a few frames, whatever its length
        chosen = rows[:: math.ceil(len(rows) / _MAX_ROWS)]
        return replace(common, rows=chosen, scale=len(rows) / len(chosen))
    if wanted <= MAX_SECONDS:
        return common
    if rows[0].segment is not None:
        return _some_segments(common, seconds, frames)
    pieces = _pieces(facts.packets.keyframe_numbers, int(frames), common.fps)
    return replace(
        common,
        rows=tuple(_cut(rows[0], first, last) for first, last in pieces),
        scale=frames / sum(last - first for first, last in pieces),
        overhead=tuple(_cut(rows[0], first, min(first + 2, last)) for first, last in pieces),
    )


def _pieces(keyframes: Sequence[int], num_frames: int, fps: float) -> list[tuple[int, int]]:
    """Return pieces of a long file [first frame, behind the last) that begin with keyframes, at equal distances."""
    starts = sorted(
        {
            max((k for k in keyframes if k <= num_frames * (2 * i + 1) // (2 * _NUM_PIECES)), default=0)
            for i in range(_NUM_PIECES)
        }
    )
    length = math.ceil(MAX_SECONDS * fps / _NUM_PIECES)
    pieces: list[tuple[int, int]] = []
    for start in starts:
        first = max(start, pieces[-1][1] if pieces else 0)
        if first < min(first + length, num_frames):
            pieces.append((first, min(first + length, num_frames)))
    return pieces or [(0, num_frames)]


def _cut(row: VideoRecord, first: int, last: int) -> VideoRecord:
    return row.replace(segment=Segment(start_frame=first, end_frame=last), content=None)


def _some_segments(part: Part, seconds: float, frames: float) -> Part:
    """Return some of many segments, at equal distances. A long one is cut."""
    rows = part.rows
    lengths = [seconds * part_of(row, seconds, frames) for row in rows]
    longest = MAX_SECONDS / _NUM_PIECES
    num_chosen = max(1, min(len(rows), int(MAX_SECONDS / min(longest, sum(lengths) / len(rows)))))
    places = sorted({int((i + 0.5) * len(rows) / num_chosen) for i in range(num_chosen)})
    return replace(
        part,
        rows=tuple(_shortened(rows[place], lengths[place], longest, part.fps) for place in places),
        scale=sum(lengths) / sum(min(lengths[place], longest) for place in places),
        overhead=(_cut(rows[0], 0, 2),),
    )


def _shortened(row: VideoRecord, seconds: float, longest: float, fps: float) -> VideoRecord:
    segment = row.segment
    if segment is None or seconds <= longest:
        return row
    if segment.start_frame is not None or segment.end_frame is not None:
        first = segment.start_frame or 0
        return _cut(row, first, first + math.ceil(longest * fps))
    start = segment.start_seconds or 0.0
    return row.replace(segment=Segment(start_seconds=start, end_seconds=start + longest), content=None)


# The build


def measure(
    plan: BuildPlan, parts: Sequence[Part], settings: Settings, on_done: Callable[[], object] = lambda: None
) -> tuple[list[Measured], float]:
    """Build parts of files with one worker.

    Returns
    -------
    list of Measured
        For each part, what its whole file takes.
    float
        [seconds] CPU time that a worker takes to start, with the imports that the features need.
    """
    warm_up = min(range(len(parts)), key=lambda number: (not parts[number].has_sound, parts[number].seconds))
    jobs = [parts[warm_up].rows, *(part.rows for part in parts), *(part.overhead for part in parts if part.overhead)]
    outcomes = [Built()] * len(jobs)
    with TemporaryDirectory(prefix="chordcache-plan-", dir=settings.scratch) as scratch:
        tasks = (
            (i, task) for i, rows in enumerate(jobs) for task in _tasks(plan, rows, settings, Path(scratch, str(i)))
        )
        with closing(pool.run(_build, tasks, jobs=1, limits=settings.options.limits)) as results:
            for (number, _), built in results:
                outcomes[number] = built if isinstance(built, Built) else Built(failures=(built.message,))
                on_done()
    first, again = outcomes[0], outcomes[1 + warm_up]
    start_seconds = first.start_seconds + max(0.0, first.cpu_seconds - again.cpu_seconds)
    overheads = iter(outcomes[1 + len(parts) :])
    pairs = zip(parts, outcomes[1:], strict=False)
    return [_whole(part, built, next(overheads) if part.overhead else None) for part, built in pairs], start_seconds


def _whole(part: Part, built: Built, overhead: Built | None) -> Measured:
    """Return the measurements of a file, from those of its part."""
    fixed = min(overhead.cpu_seconds, built.cpu_seconds) if overhead else 0.0
    sizes, error = built.item_bytes, 0.0
    if overhead and sum(sizes):
        spread = stdev(sizes) / fmean(sizes) / len(sizes) ** 0.5 if len(sizes) > 1 else _ERROR_OF_ONE_PIECE
        error = max(_LEAST_ERROR, spread)
    num_built = max(1, len(sizes))
    num_sidecars = part.num_items if sizes else 0
    return Measured(
        cpu_seconds=fixed + (built.cpu_seconds - fixed) * part.scale,
        peak_bytes=built.peak_bytes,
        num_bytes={group: size * part.scale for group, size in built.num_bytes.items()},
        relative_error=error,
        num_files=built.num_files / num_built * part.num_items + num_sidecars,
        sidecar_bytes=built.sidecar_bytes / num_built * num_sidecars,
        failures=built.failures,
    )


def _tasks(
    plan: BuildPlan, rows: Sequence[VideoRecord], settings: Settings, cache: Path
) -> Iterator[tuple[BuildTask, ...]]:
    """Yield the tasks of the rows of one file."""
    options = replace(settings.options, follow_symlinks=plan.follow_symlinks)
    cache.mkdir()
    with temporary_index(rows, roots=plan.roots, follow_symlinks=plan.follow_symlinks) as index:
        sample = make_plan(
            cache, index, settings.config, settings.tiers, settings.features, roots=None, options=options
        )
        quarantine = Quarantine(cache, tool_versions(), sample.on_damage)
        with IndexRows(index) as index_rows:
            yield from map(tuple, planned_files(sample, index_rows, quarantine, options))


def _build(numbered: tuple[int, tuple[BuildTask, ...]]) -> Built:
    """Build the items of one file, in a worker, and remove what was written."""
    _, tasks = numbered
    _forget_peak()
    started = time.process_time()
    outcomes = build_file(tasks)
    cpu_seconds = time.process_time() - started
    num_bytes: Counter[Group] = Counter()
    item_bytes, failures, files, sidecar_bytes = [], [], {}, 0
    for outcome in outcomes:
        if isinstance(outcome, Failure):
            failures.append(outcome.message)
            continue
        by_file: dict[str, list[Any]] = {}
        for info in outcome.features:
            if info.file is not None:
                by_file.setdefault(info.file, []).append(info)
        for file, infos in by_file.items():
            num_bytes[infos[0].tier, ", ".join(info.feature for info in infos)] += infos[0].num_bytes
            files[file] = infos[0].num_bytes
        item_bytes.append(sum(infos[0].num_bytes for infos in by_file.values()))
        sidecar_bytes += len(outcome.to_line()) + 1
    for file in files:
        (tasks[0].cache / file).unlink(missing_ok=True)
    sizes = (num_bytes, tuple(item_bytes), len(files), sidecar_bytes)
    return Built(cpu_seconds, started, _peak_bytes(), *sizes, tuple(failures))


def _forget_peak() -> None:
    """Let the kernel forget the peak of this process's memory. Source: proc_pid_clear_refs(5)."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _peak_bytes() -> int:
    with suppress(OSError):
        if match := re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="utf-8")):
            return int(match[1]) * 1024
    return 0
