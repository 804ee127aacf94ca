"""Errors of the estimate of ``build --dry-run`` against a real build of the same files: part of ``make bench``.

Everything is built with one worker. Then each item is measured once as a sample is, and many samples are drawn from
these measurements. CPU time is that of all processes.
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

import chordcache as cc
from chordcache.building import dry_run
from chordcache.building.build_options import BuildOptions
from chordcache.building.build_task import planned_files
from chordcache.building.planning import make_plan
from chordcache.config.config import Config, config_from_json
from chordcache.engine.display import Display
from chordcache.engine.limits import Limits
from chordcache.index.grouping import IndexRows
from chordcache.index.index_files import Index
from chordcache.media.versions import tool_versions
from chordcache.storage.quarantine import Quarantine

Result = TypeVar("Result")

CONFIGS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "frames": (("lmdb",), {}),
    "frames, flow (DIS ultrafast), motion, mel": (
        ("lmdb", "npz"),
        {"features": {"flow": {"method": "dis", "preset": "ultrafast"}, "motion": {}, "mel": {}}},
    ),
}
NUM_PIECES = 80
NUM_DRAWS = 200


def cpu_seconds(function: Callable[[], Result]) -> tuple[Result, float]:
    """Result of a call, and the CPU time of this process and of the workers that ended meanwhile."""

    def used() -> float:
        usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(usage.ru_utime + usage.ru_stime for usage in usages)

    before = used()
    return function(), used() - before


def bytes_of(cache: Path) -> int:
    """Size of all artefacts and sidecars."""
    with cc.open_cache(cache) as opened:
        return sum(video.sidecar.num_bytes() + len(video.sidecar.to_line()) for video in opened)


def compare(name: str, index: Index, tiers: Sequence[str], config: Config, sizes: Sequence[int]) -> None:
    """Print the errors of many samples of each size."""
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder, "cache")
        _, true_cpu = cpu_seconds(lambda: cc.build(index, cache, tiers=tiers, config=config, jobs=1))
        true_bytes = bytes_of(cache)
        plan = make_plan(Path(folder, "new"), index, config, tiers, None, roots=None, options=BuildOptions())
        quarantine = Quarantine(plan.cache, tool_versions())
        with IndexRows(plan.index) as rows:
            tasks = [
                task for tasks in planned_files(plan, rows.by_file(), quarantine, BuildOptions()) for task in tasks
            ]
    identities = [task.item.identity for task in tasks]
    table = np.array(
        [dry_run.amounts_of(task, source.size) for task, source in zip(tasks, identities, strict=True) if source]
    )
    measured = dry_run.build_sample(tasks, Limits(), Display(progress=False))
    for num_items in sizes:
        errors: dict[str, list[float]] = {"size": [], "CPU time": []}
        for number in range(NUM_DRAWS):
            places, weights = dry_run.sample_of(table, num_items, (number + 0.5) / NUM_DRAWS)
            result = dry_run.estimate_of(table, places, weights, [measured[place] for place in places], 1)
            errors["size"].append(abs(result.num_bytes / true_bytes - 1))
            errors["CPU time"].append(abs(result.cpu_seconds / true_cpu - 1))
        print(f"{name}: {num_items} of {len(tasks)} items, {NUM_DRAWS} samples")
        for what, of_samples in errors.items():
            ninth = statistics.quantiles(of_samples, n=10)[-1]
            print(
                f"  {what:9} error: median {statistics.median(of_samples):.1%}, 90th percentile {ninth:.1%}, "
                f"largest {max(of_samples):.1%}",
                flush=True,
            )


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
    """Compare a folder of videos with each config."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("clips", type=Path, help="what scripts/fetch_clips.py fetched")
    parser.add_argument("--videos", type=Path, help="folder of videos, by default parts of the clips")
    parser.add_argument("--samples", type=int, nargs="*", default=[5, 8, 12, 24], help="items in a sample")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        index = cc.scan([options.videos or cut_pieces(options.clips, Path(temporary) / "pieces")], jobs=1)
        for name, (tiers, config) in CONFIGS.items():
            compare(name, index, tiers, config_from_json(config), options.samples)


if __name__ == "__main__":
    main()
