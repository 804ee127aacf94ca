"""``build --dry-run``: what a build would do and why, and an estimate of its size and time from a sample."""

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

from chordcache.arguments import names_arguments
from chordcache.building.build_options import BuildOptions
from chordcache.building.build_plan import ArtefactTask, BuildPlan
from chordcache.building.build_task import BuildTask, StaleFeature, differences, planned_files, stale_features
from chordcache.building.estimate import (
    SIDECARS,
    Estimate,
    FileSample,
    FileTable,
    Measured,
    estimate_of,
    size_name,
    to_build,
)
from chordcache.building.file_build import build_file
from chordcache.building.fix_commands import repairable
from chordcache.building.planning import make_plan
from chordcache.building.prune import leaving
from chordcache.config.config import Config
from chordcache.config.yaml_files import ConfigFiles
from chordcache.engine import pool, terminal
from chordcache.engine.choice import Engine, engine_of
from chordcache.engine.display import Display, display_of
from chordcache.engine.limits import Limits
from chordcache.engine.signals import stop_signals
from chordcache.errors import DamageError, NotFoundError, UsageError
from chordcache.features.item_fields import fits
from chordcache.index.grouping import IndexRows
from chordcache.index.index_files import Index
from chordcache.index.scan import scanned
from chordcache.media.probe import probe
from chordcache.media.versions import tool_versions
from chordcache.records import PacketFacts, Segment, VideoRecord
from chordcache.storage import layout, opener
from chordcache.storage.find_sidecars import Sidecars
from chordcache.storage.quarantine import Failure, Quarantine
from chordcache.storage.sidecar import Sidecar, files_of
from chordcache.temporary import temporary_folder

MAX_SECONDS = 30.0
"""[seconds] of a longer file that are built"""

_NUM_PIECES = 3
"""Number of pieces of a long file"""

_MAX_ITEMS = 24
"""Largest number of items of one file that are built if each takes the frames of a bucket"""

_LEAST_ERROR = 0.02
"""Smallest standard error of the size of a file that was built in part: three pieces may be alike by chance"""


@dataclass(frozen=True)
class Reason:
    """One reason to build videos, or to rewrite their sidecars."""

    kind: str
    """"new", "source changed", "settings changed", "not requested before", "file lost", "failed before",
    or "label or caption" """
    detail: str = ""
    """The feature, the parameter or the file in question"""


@dataclass(frozen=True)
class DryRun:
    """The result of ``dry_run``: what a build would do."""

    plan: BuildPlan
    num_inputs: int
    num_missing: int
    """Number of videos that would be built"""
    num_up_to_date: int
    num_failed: int
    """Number of inputs that failed before and would not be tried again"""
    num_pruned: int = 0
    """Number of cached videos that would be dropped"""
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Feature that would leave the cache to the number of videos that have it"""
    stale: tuple[StaleFeature, ...] = ()
    """Features of cached videos that would be made again"""
    num_described: int = 0
    """Number of videos that are up to date, but for their label, caption or other columns. They are not decoded"""
    num_unnamed: int = 0
    """Number of cached videos that the index does not name, and that would stay"""
    losses: Mapping[str, int] = field(default_factory=dict)
    """As in ``RunSummary``"""
    reasons: Mapping[Reason, int] = field(default_factory=dict)
    """Reason to the number of videos, the most frequent one first"""
    estimate: Estimate | None = None
    """The size and the time, if files were built for it"""
    sample: FileSample | None = None
    """The files that were built for it"""


@names_arguments
def dry_run(
    index: str | Path | Index,
    cache: str | Path = "cache",
    *,
    tiers: str | Sequence[str] | None = None,
    features: str | Sequence[str] | None = None,
    config: ConfigFiles | Config | None = None,
    jobs: int | Engine | None = None,
    roots: Mapping[str, str] | None = None,
    options: BuildOptions | None = None,
    sample: int | None = None,
    progress: bool | Display = False,
) -> DryRun:
    """Return what ``build`` with the same arguments would do. It changes nothing, and needs no lock.

    Parameters
    ----------
    index, cache, tiers, features, config, roots, options
        As in ``build``.
    jobs : int or Engine, optional
        Number of workers that the build will have, by default one for each processor. The sample is built with one.
    sample : int, optional
        Number of files to build in a temporary folder, at most 30 seconds of each. Their bytes and CPU time are scaled
        to those of the build.
    progress : bool or Display
        True to show a bar on a terminal while the sample is built.

    Returns
    -------
    DryRun

    Raises
    ------
    UsageError, ConfigError, NotFoundError, FormatVersionError
        As in ``build``.
    NoSpaceError, WorkersDiedError, StoppedError
        As their names say, while the sample is built.
    """
    folder = layout.cache_folder(cache)
    if sample is not None and sample < 1:
        raise UsageError(f"sample: got {sample}, expected a positive number")
    num_jobs = pool.default_jobs(engine_of(jobs).jobs) if sample is not None else 1
    options = options or BuildOptions()

    def plan_of(index: str | Path | Index) -> BuildPlan:
        return make_plan(folder, index, config, tiers, features, roots=roots, options=options)

    plan = plan_of(scanned(index, plan_of, follow_symlinks=options.follow_symlinks, limits=options.limits))
    files = FileTable(plan)
    with IndexRows(plan.index) as rows:
        sidecars = Sidecars(plan.cache)
        leaves = leaving(sidecars, options, rows.keys)
        with repairable(plan.cache):
            quarantine = Quarantine(plan.cache, tool_versions())
        states, reasons, losses = Counter[str](), Counter[Reason](), Counter[str]()
        cached = None if sidecars.is_empty() else sidecars
        for number, tasks in enumerate(planned_files(plan, rows.by_file(), quarantine, options)):
            for task in tasks:
                states[task.state] += 1
                losses.update(() if task.state == "failed" else task.losses)
                reason = _reason(plan, task, quarantine, cached)
                if reason is not None:
                    reasons[reason] += 1
            if sample is not None:
                files.add(number, tasks)
        result = DryRun(
            plan,
            num_inputs=len(rows.keys),
            num_missing=states["missing"],
            num_up_to_date=states["up to date"],
            num_failed=states["failed"],
            num_pruned=len(leaves.videos),
            dropped=leaves.features,
            stale=tuple(stale_features(plan, rows.keys)),
            num_described=reasons[_DESCRIBED],
            num_unnamed=0 if options.prune else len(set(sidecars.sorted_keys()) - rows.keys),
            losses=dict(losses),
            reasons=dict(reasons.most_common()),
        )
        if sample is None:
            return result
        chosen, numbers = files.sample(sample)
        in_order = sorted(set(numbers))
        tasks_of = dict(
            zip(in_order, planned_files(plan, rows.by_file(), quarantine, options, set(numbers)), strict=True)
        )
    to_measure = [to_build(tasks_of[number]) or tasks_of[number] for number in numbers]
    measured, start_seconds = build_sample(to_measure, options.limits, shown=display_of(progress).progress)
    chosen = replace(chosen, files=to_measure, measured=measured)
    return replace(result, estimate=estimate_of(files, chosen, start_seconds, num_jobs), sample=chosen)


_NEW, _DESCRIBED = Reason("new"), Reason("label or caption")


def _reason(plan: BuildPlan, task: BuildTask, quarantine: Quarantine, sidecars: Sidecars | None) -> Reason | None:
    """Return the reason why a build would do something about a video, or None if it would not.

    ``sidecars`` are those of the cache, None if it has none.
    """
    state = task.state
    if state == "up to date":
        return _DESCRIBED if task.described != task.previous else None
    if state == "failed":
        return None
    if task.previous is not None:
        if task.previous.source != task.item.identity:
            return Reason("source changed")
        return _reason_of_artefact(task.previous, task.item, task.artefacts[0])
    try:
        sidecar = None if sidecars is None else sidecars.read(task.key)
    except NotFoundError:
        sidecar = None
    except DamageError:
        return Reason("file lost", "the sidecar is damaged")
    failure = quarantine.get(task.key) if quarantine and sidecar is None else None
    return _NEW if failure is None else Reason("failed before", failure.cause)


def _reason_of_artefact(sidecar: Sidecar, record: VideoRecord, artefact: ArtefactTask) -> Reason:
    for spec in artefact.features:
        info = sidecar.feature(spec.name, artefact.tier)
        if info is None:
            return Reason("not requested before", f"{spec.name} in {artefact.tier}")
        if info.fingerprint != spec.fingerprint:
            changed = ", ".join(differences(spec.name, info.params, spec.params))
            return Reason("settings changed", changed or f"{spec.name} is made by another version")
        if not fits(info, record):
            return Reason(_DESCRIBED.kind, f"{spec.name} depends on {', '.join(info.uses)}")
    return Reason("file lost", f"{', '.join(artefact.names)} in {artefact.tier}")


def build_sample(files: Sequence[Sequence[BuildTask]], limits: Limits, *, shown: bool) -> tuple[list[Measured], float]:
    """Build files with one worker, at most ``MAX_SECONDS`` of each. ``shown`` shows a bar on a terminal.

    Returns the measurements of each file, and the CPU time that a worker takes to start, with the imports that the
    features need [seconds].
    """
    if not files:
        return [], 0.0
    # the first build imports what the features need, so a small file is built twice, one with sound if there is one
    sizes = [(file[0].item.audio is None, file[0].item.identity.size if file[0].item.identity else 0) for file in files]
    order = [sizes.index(min(sizes)), *range(len(files))]
    measured = [Measured()] * len(order)
    with (
        stop_signals(),
        temporary_folder() as scratch,
        terminal.progress_bar(len(order), "file", shown=shown, name="sample") as bar,
    ):
        orders = enumerate([_alone(task, scratch) for task in files[number]] for number in order)
        with closing(pool.run(_measure, orders, jobs=1, limits=limits)) as results:
            for (place, _), result in results:
                measured[place] = result if isinstance(result, Measured) else Measured(failures=(result.message,))
                bar.update()
    first, again = measured[0], measured[1 + order[0]]
    return measured[1:], first.start_seconds + max(0.0, first.cpu_seconds - again.cpu_seconds)


def _alone(task: BuildTask, scratch: Path) -> BuildTask:
    """Return the task for another folder, where nothing is cached."""
    return replace(task, cache=scratch, previous=None, kept=())


def _measure(numbered: tuple[int, list[BuildTask]]) -> Measured:
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
            by_name = {}
            for artefact in task.artefacts:
                infos = [info for name in artefact.names if (info := outcome.feature(name, artefact.tier))]
                by_name[size_name(artefact)] = sum(file.num_bytes for file in files_of(infos))
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
    for file in (file for outcome in outcomes if isinstance(outcome, Sidecar) for file in outcome.files):
        opener.remove(tasks[0].cache, file.name)
    return outcomes, cpu_seconds


# Pieces of long files


def _pieces(tasks: Sequence[BuildTask]) -> tuple[Sequence[BuildTask], float, BuildTask | None]:
    """Return the items to build of a file, and how many times the file has what these have.

    A long file becomes three pieces that begin with keyframes. Of many segments, some are built, and long ones are cut.
    If the file is built in part, two frames of it are the third result. Their build takes the time that does not grow
    with the pieces.
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
