"""Parts that the benchmarks share: ratios of interleaved pairs, long videos, their caches, the memory of a build."""

from __future__ import annotations

import multiprocessing
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import av
import lmdb
import numpy as np
import simplejpeg

import chordcache as cc
from chordcache.config.config import config_from_json

Name = TypeVar("Name")
Value = TypeVar("Value")

GOP_FRAMES, FPS = 250, 25
"""Length of a group of pictures, and frames per second, of the videos of ``encode_loop``"""

NUM_LOOPS, LOOP_SECONDS = 3, 24
"""Number and length of the videos of ``cache_of_loops``"""

PEAK_RSS = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024)
"""
"""Runs a command and prints the peak memory of the largest process below it, in MiB."""


class Spread(NamedTuple):
    """Summary of the values of all rounds."""

    median: float
    least: float
    most: float


def spread_of(values: Iterable[float]) -> Spread:
    """Return the median, the least and the greatest of some values."""
    ordered = sorted(values)
    return Spread(statistics.median(ordered), ordered[0], ordered[-1])


def in_turn(functions: Mapping[Name, Callable[[], Value]], num_rounds: int) -> list[dict[Name, Value]]:
    """Call all functions in turn in each round, and return what they return.

    A busy minute of the machine then falls on all of them alike.
    """
    return [{name: function() for name, function in functions.items()} for _ in range(num_rounds)]


def seconds(function: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the time of one call, by default on the clock, [seconds]."""
    started = clock()
    function()
    return clock() - started


def cpu_seconds() -> float:
    """Return the CPU time of this process and of its present children, with all threads, [seconds]."""
    clocks = [~child.pid << 3 | 2 for child in multiprocessing.active_children()]  # see clock_getcpuclockid(3)
    return time.process_time() + sum(map(time.clock_gettime, clocks))


def timed_in_turn(
    functions: Mapping[Name, Callable[[], object]], num_rounds: int, clock: Callable[[], float] = time.perf_counter
) -> list[dict[Name, float]]:
    """Return the times of functions that are called in turn, [seconds]. One call of each before does not count."""
    timed = {name: partial(seconds, function, clock) for name, function in functions.items()}
    in_turn(timed, 1)
    return in_turn(timed, num_rounds)


def report(name: str, target: str, a: Callable[[], object], b: Callable[[], object], runs: int) -> None:
    """Print the median of time(a) / time(b) over interleaved runs, after one warm-up of each."""
    report_all([(name, target, b)], a, runs)


def report_all(
    rivals: Sequence[tuple[str, str, Callable[[], object]]],
    a: Callable[[], object],
    runs: int,
    clock: Callable[[], float] = time.perf_counter,
) -> None:
    """Print the medians of time(a) / time(b) for each (name, target, b), all measured in turn in each round."""
    rounds = timed_in_turn({"": a, **{name: b for name, _, b in rivals}}, runs, clock)
    median = spread_of(times[""] for times in rounds).median
    for name, target, _ in rivals:
        ratio = spread_of(times[""] / times[name] for times in rounds)
        other = spread_of(times[name] for times in rounds).median
        print(
            f"{name:58} {ratio.median:5.2f}  (min {ratio.least:.2f}, max {ratio.most:.2f}; "
            f"medians {median:.2f} s / {other:.2f} s; target {target})",
            flush=True,
        )


def epoch_of(loader: Any, num_clips: int) -> Callable[[], None]:
    """Function that runs through one epoch, and compares the number of clips."""

    def run() -> None:
        got = sum(len(batch["frames"]) for batch in loader)
        assert got == num_clips, got

    return run


def repeat_video(source: Path, target: Path, times: int, *, sound: bool = False) -> None:
    """Write a video several times in a row into one file, packets unchanged."""
    with av.open(str(target), "w") as output:
        written: dict[int, Any] = {}
        shift = Fraction(0)
        for _ in range(times):
            with av.open(str(source)) as container:
                tracks = [container.streams.video[0], *(container.streams.audio[:1] if sound else ())]
                for track in tracks:
                    if track.index not in written:
                        written[track.index] = output.add_stream_from_template(track)
                end = shift
                for packet in container.demux(tracks):
                    if packet.dts is None:
                        continue
                    end = max(end, shift + (packet.pts + packet.duration) * packet.time_base)
                    ticks = round(shift / packet.time_base)
                    packet.pts, packet.dts = packet.pts + ticks, packet.dts + ticks
                    packet.stream = written[packet.stream.index]
                    output.mux(packet)
                shift = end


def encode_loop(clip: Path, target: Path, seconds: int) -> None:
    """Encode a clip in a loop, without sound, with keyframes as far apart as H.264 usually has them."""
    command = ["ffmpeg", "-v", "error", "-y", "-stream_loop", "-1", "-i", str(clip), "-t", str(seconds), "-an"]
    command += ["-r", str(FPS), "-c:v", "libx264", "-preset", "veryfast", "-b:v", "6M", "-pix_fmt", "yuv420p"]
    command += ["-g", str(GOP_FRAMES), "-keyint_min", str(GOP_FRAMES), "-sc_threshold", "0", "-threads", "1"]
    subprocess.run([*command, str(target)], check=True)


def cache_of_loops(work: Path, clip: Path, codec: str, short_side: int) -> Path:
    """Build a cache of a clip in a loop, encoded a few times, in one codec of frames, unless it is there."""
    videos = work / "videos"
    if not videos.exists():
        videos.mkdir()
        for i in range(NUM_LOOPS):
            encode_loop(clip, videos / f"{i}.mp4", LOOP_SECONDS)
    folder = work / f"{codec}-{short_side}"
    if not folder.exists():
        config = config_from_json({"frames": {"codec": codec, "short_side": short_side}})
        cc.build(cc.scan([videos]), folder, features=["frames"], config=config)
    return folder


class Records:
    """The JPEGs of a cache without this package. LMDB opens a file once per process, so these are copies."""

    def __init__(self, folder: Path) -> None:
        self._environments = {}
        for video in cc.open_cache(folder):
            file = folder / video.feature("frames").file.name
            copy = file.with_suffix(".bare")
            copy.write_bytes(file.read_bytes())
            self._environments[video.key] = lmdb.open(str(copy), subdir=False, readonly=True, lock=False)

    def decode(self, key: str, frames: list[int], out: np.ndarray) -> None:
        """Decode frames of a video [shape=(T, h, w, 3), dtype=uint8]."""
        with self._environments[key].begin(buffers=True) as transaction:
            for i, frame in enumerate(frames):
                simplejpeg.decode_jpeg(transaction.get(frame.to_bytes(4, "big")), "RGB", buffer=out[i])

    def jpegs(self, key: str, frames: list[int]) -> list[bytes]:
        """Frames of a video as they are."""
        with self._environments[key].begin() as transaction:
            return [transaction.get(frame.to_bytes(4, "big")) for frame in frames]


def video_seconds(path: Path) -> float:
    """Duration as the container states it."""
    with av.open(str(path)) as container:
        return container.duration / av.time_base


def report_memory(
    name: str, target: str, work: Path, clip: Path, options: Sequence[str], *, sound: bool = False
) -> None:
    """Print the peak memory of the worker of ``chordcache build OPTIONS`` for a video of 2 minutes and one of 20."""
    peaks = {}
    for minutes in (2, 20):
        videos = work / f"minutes{minutes}"
        videos.mkdir()
        repeat_video(clip, videos / "long.mp4", round(minutes * 60 / video_seconds(clip)), sound=sound)
        index = work / f"minutes{minutes}.jsonl"
        cc.scan([videos], output=index)
        build = ["-m", "chordcache", "build", str(index), "-o", str(work / f"cache{minutes}"), "-j", "1", *options]
        command = [sys.executable, "-c", PEAK_RSS, sys.executable, *build]
        peaks[minutes] = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])
    slope = (peaks[20] - peaks[2]) / 18
    print(
        f"{name:58} {peaks[2]} MiB at 2 minutes, {peaks[20]} MiB at 20 minutes: "
        f"{slope:.2f} MiB a minute (targets: no slope, {target})",
        flush=True,
    )
