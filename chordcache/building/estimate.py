"""The size and the time of a build, from some of its videos that are built in a temporary folder."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from chordcache.building.build_task import BuildTask
from chordcache.building.file_build import build_file
from chordcache.engine import pool, terminal
from chordcache.engine.limits import Limits
from chordcache.engine.signals import stop_signals
from chordcache.media.geometry import expected_shape
from chordcache.storage import opener
from chordcache.storage.quarantine import Failure
from chordcache.storage.sidecar import files_of
from chordcache.temporary import temporary_folder

OFFSET = 0.6369617
"""Place of each video of a sample in its part of the whole work, from 0 to 1. It is random, and the same in each run"""

AMOUNTS = ("work", "pixels", "sound", "sidecars", "detail")
"""Amounts of a video: pixels to decode and to cache, pixels to cache, seconds of sound, 1, and bytes of the source for
each pixel"""

Measured: TypeAlias = dict[tuple[str, str], float] | str
"""Numbers of a video that was built, by name and amount to which they are in proportion, or its failure"""


@dataclass(frozen=True)
class Estimate:
    """The size and the time of a build."""

    num_sampled: int
    failures: tuple[str, ...]
    """Message of each item of the sample that failed"""
    jobs: int
    sizes: Mapping[str, float]
    """[bytes] Files of each feature and tier, such as "frames in lmdb", and of "sidecars" """
    num_bytes: float
    cpu_seconds: float
    elapsed_seconds: float
    """[seconds] CPU time shared by ``jobs`` workers, if disks and other processes do not make them wait"""


def amounts_of(task: BuildTask, num_bytes: float) -> tuple[float, ...]:
    """Return the ``AMOUNTS`` of a video, whose source has a number of bytes.

    One of unknown length counts as one of 1 Mbit/s with 10 pixels for each byte.
    """
    header, seconds = task.item.header, task.item.known_seconds
    pixels, decoded, sound_seconds = 10 * num_bytes, 10 * num_bytes, num_bytes / 125_000
    if header is not None and header.average_fps and seconds is not None:
        size, fps = (header.display_width, header.display_height), header.average_fps
        cached_fps = min(fps, task.picture.fps or fps)
        width, height, num_frames = expected_shape(task.picture, *size, seconds * cached_fps)
        pixels, decoded = num_frames * width * height, num_frames / cached_fps * fps * size[0] * size[1]
        sound_seconds = num_frames / cached_fps if task.item.audio else 0.0
    work = pixels + decoded + 1e6  # to decode and to encode a pixel take about as long
    return work, pixels, sound_seconds, 1.0, num_bytes / work


def sample_of(table: np.ndarray, num_videos: int) -> tuple[np.ndarray, np.ndarray]:
    """Choose videos, and return their places in a table of amounts, with the weight of each.

    They have equal distances of work, in the order of detail, which takes bytes in the cache too.
    Source: Sarndal, Swensson and Wretman, "Model Assisted Survey Sampling", 1992, section 3.6.2.
    """
    if len(table) <= num_videos:
        return np.arange(len(table)), np.ones(len(table))
    work = table[:, AMOUNTS.index("work")]
    order = np.argsort(table[:, AMOUNTS.index("detail")], kind="stable")
    steps = (np.arange(num_videos) + OFFSET) / num_videos * work.sum()
    chosen = order[np.searchsorted(np.cumsum(work[order])[:-1], steps, side="right")]
    places, counts = np.unique(chosen, return_counts=True)  # one with much work may be chosen several times
    return places, counts / work[places]


def build_sample(tasks: Sequence[BuildTask], limits: Limits, *, shown: bool) -> list[Measured]:
    """Build videos with one worker, in a temporary folder. ``shown`` shows a bar on a terminal."""
    measured: list[Measured] = []
    with (
        stop_signals(),
        temporary_folder() as folder,
        terminal.progress_bar(len(tasks) + 1, "item", shown=shown, name="sample") as bar,
    ):
        alone = [replace(task, cache=folder, previous=None, kept=()) for task in tasks]
        # The first is built twice: its first build imports what the features need
        with closing(pool.run(_build, [alone[0], *alone], jobs=1, limits=limits, ordered=True)) as results:
            for _, result in results:
                measured.append(result.message if isinstance(result, pool.Crash) else result)
                bar.update()
    return measured[1:]


def _build(task: BuildTask) -> Measured:
    """Build a video, measure CPU time [seconds] and sizes [bytes], and remove its files."""
    started = time.process_time()
    (outcome,) = build_file([task])
    seconds = time.process_time() - started
    if isinstance(outcome, Failure):
        return outcome.message
    numbers = {("CPU time", "work"): seconds, ("sidecars", "sidecars"): len(outcome.to_line()) + 1.0}
    for artefact in task.artefacts:
        infos = [info for name in artefact.names if (info := outcome.feature(name, artefact.tier))]
        amount = "sound" if all(spec.is_of_sound for spec in artefact.features) else "pixels"
        name = f"{', '.join(artefact.names)} in {artefact.tier}"
        numbers[name, amount] = float(sum(file.num_bytes for file in files_of(infos)))
    for file in outcome.files:
        opener.remove(task.cache, file.name)
    return numbers


def estimate_of(
    table: np.ndarray, places: np.ndarray, weights: np.ndarray, measured: Sequence[Measured], jobs: int
) -> Estimate:
    """Scale the numbers of a sample to all videos, in proportion to amounts whose totals are known."""
    failures = tuple(numbers for numbers in measured if isinstance(numbers, str))
    built = [{} if isinstance(numbers, str) else numbers for numbers in measured]
    totals: dict[str, float] = {}
    for name, amount in dict.fromkeys(key for numbers in built for key in numbers):
        amounts = table[:, AMOUNTS.index(amount)]
        values = [numbers.get((name, amount), 0.0) for numbers in built]
        totals[name] = float(amounts.sum() * (weights @ values) / max(weights @ amounts[places], 1e-9))
    cpu_seconds = totals.pop("CPU time", 0.0)
    sizes = {name: total for name, total in totals.items() if total}
    return Estimate(len(places), failures, jobs, sizes, sum(sizes.values()), cpu_seconds, cpu_seconds / jobs)
