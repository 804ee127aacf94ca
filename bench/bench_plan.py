"""Errors of ``chordcache plan`` against real builds of the same files: part of ``make bench``.

Each round builds everything with one worker, then plans it with another sample. The size is compared for all files and
for those that were not in the sample. CPU time is that of all processes.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from measure import encode_loop

import chordcache as cc
from chordcache.building import estimate
from chordcache.config.config import Config, config_from_json
from chordcache.index.index_files import Index

Result = TypeVar("Result")

CONFIGS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "frames": (("lmdb",), {}),
    "frames, flow (DIS ultrafast), motion, mel": (
        ("lmdb", "npz"),
        {"features": {"flow": {"method": "dis", "preset": "ultrafast"}}},
    ),
}
FILM_SECONDS = 240
NUM_PIECES = 80


def cpu_seconds(function: Callable[[], Result]) -> tuple[Result, float]:
    """Result of a call, and the CPU time of this process and of the workers that ended meanwhile."""

    def used() -> float:
        usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(usage.ru_utime + usage.ru_stime for usage in usages)

    before = used()
    return function(), used() - before


def bytes_by_key(cache: Path) -> dict[str, int]:
    """Size of the artefacts and the sidecar of each video."""
    with cc.open_cache(cache) as opened:
        return {video.key: video.sidecar.num_bytes() + len(video.sidecar.to_line()) for video in opened}


def compare(name: str, index: Index, tiers: Sequence[str], config: Config, num_sampled: int, runs: int) -> None:
    """Print the errors of some samples, each with the number of ranges that hold the truth."""
    sizes, others, times, cost, size_inside, time_inside = [], [], [], [], 0, 0
    for seed in range(runs):
        with tempfile.TemporaryDirectory() as folder:
            cache = Path(folder, "cache")
            _, cpu = cpu_seconds(lambda: cc.build(index, cache, tiers=tiers, config=config, jobs=1))  # noqa: B023
            true_bytes = bytes_by_key(cache)
        estimate.SEED = seed
        with tempfile.TemporaryDirectory() as folder:
            arguments: Any = {"tiers": tiers, "config": config, "jobs": 1, "sample": num_sampled}
            result, plan_cpu = cpu_seconds(lambda: cc.dry_run(index, Path(folder, "cache"), **arguments))  # noqa: B023
        numbers, sample = result.estimate, result.sample
        assert numbers is not None
        assert sample is not None
        size = sum(true_bytes.values())
        held_out = size - sum(true_bytes.get(task.key, 0) for file in sample.files for task in file)
        sizes.append(numbers.num_bytes.value / size - 1)
        if held_out:
            others.append((numbers.num_bytes.value - size) / held_out)
        times.append(numbers.cpu_seconds.value / cpu - 1)
        cost.append(plan_cpu / cpu)
        size_inside += numbers.num_bytes.low <= size <= numbers.num_bytes.high
        time_inside += numbers.cpu_seconds.low <= cpu <= numbers.cpu_seconds.high
    print(f"{name}: {len(sample.files)} of {len(index)} files in the sample, {runs} samples")
    for what, errors in (("size", sizes), ("size of the other files", others), ("CPU time", times)):
        if errors:
            listed = ", ".join(f"{error:+.1%}" for error in errors)
            print(f"  {what:24} median error {statistics.median(map(abs, errors)):.1%}  ({listed})")
    print(f"  range holds the truth: size {size_inside} of {runs}, CPU time {time_inside} of {runs}")
    print(f"  CPU time of plan / of the build: {statistics.median(cost):.2f}", flush=True)


def cut_pieces(clips: Path, folder: Path) -> Path:
    """Folder with parts of the clips, of other lengths and sizes."""
    folder.mkdir()
    rng = np.random.default_rng(7)
    sources = sorted(clips.rglob("*.mp4"))
    for number in range(NUM_PIECES):
        start, seconds = rng.uniform(0, 3), float(np.exp(rng.uniform(np.log(0.35), np.log(2))))
        size = str(rng.choice(["320:180", "480:270", "640:360", "1280:720"]))
        command = ["ffmpeg", "-v", "error", "-ss", f"{start:.2f}", "-t", f"{seconds:.2f}"]
        command += ["-i", str(sources[number % len(sources)]), "-vf", f"scale={size},setsar=1", "-threads", "1"]
        command += ["-c:v", "libx264", "-preset", "veryfast", "-pix_fmt", "yuv420p", str(folder / f"{number}.mp4")]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    return folder


def main() -> None:
    """Compare a long video, and a folder of videos with each config."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("clips", type=Path, help="what scripts/fetch_clips.py fetched")
    parser.add_argument("--videos", type=Path, help="folder of videos, by default parts of the clips")
    parser.add_argument("--runs", type=int, default=5, help="samples of each config")
    parser.add_argument("--sample", type=int, default=24, help="files in a sample")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        (Path(temporary) / "films").mkdir()
        encode_loop(
            options.clips / "animation" / "bigbuckbunny.mp4", Path(temporary) / "films" / "film.mp4", FILM_SECONDS
        )
        film = cc.scan([Path(temporary) / "films"], jobs=1)
        compare("a long video, frames", film, ("lmdb",), Config(), options.sample, options.runs)
        index = cc.scan([options.videos or cut_pieces(options.clips, Path(temporary) / "pieces")], jobs=1)
        for name, (tiers, config) in CONFIGS.items():
            compare(name, index, tiers, config_from_json(config), options.sample, options.runs)


if __name__ == "__main__":
    main()
