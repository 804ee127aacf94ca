"""Caches of 1,000 to 1,000,000 videos, all but the files made up: how long they take to open, and what a worker needs.

Part of ``make bench``. The targets at a million are 1 s to open, 50 MB a worker, and 2 s for the order of an epoch.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from measure import seconds, spread_of

import chordcache as cc
from chordcache.storage import layout
from chordcache.storage.catalog_columns import publish_catalog
from chordcache.storage.sidecar import Sidecar

WORKER = """
import json, resource, sys, time
import torch
import chordcache as cc
cc.ChordVideoDataset, cc.ChordSampler
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
before = peak()
started = time.process_time()
dataset = cc.ChordVideoDataset(sys.argv[1])
opened = time.process_time()
sampler = cc.ChordSampler(dataset, batch_size=8)
next(iter(sampler))
ordered = time.process_time()
dataset.describe((0, len(dataset) // 2))
described = time.process_time()
print(json.dumps([opened - started, ordered - opened, 1000 * (described - ordered), peak() - before]))
"""
"""CPU time to open [s], to the first index of an epoch [s], to a video in the middle [ms], and memory [MiB]"""


def synthetic(sidecar: Sidecar, num_videos: int) -> Iterator[tuple[Sidecar, bytes, int]]:
    """Yield rows of sidecars like one that is real, of 400 labels."""
    for number in range(num_videos):
        key = f"clip-{number:016x}"
        files = {file.name: file.replace(name=layout.file_of_key(file.name, key)) for file in sidecar.files}
        features = tuple(info.replace(file=info.file and files[info.file.name]) for info in sidecar.features)
        about = sidecar.about.replace(label=f"label {number % 400}")
        copy = sidecar.replace(key=key, path=f"{number}.mp4", about=about, features=features)
        yield copy, f"{copy.to_line()}\n".encode(), 0


def measure(cache: Path, sidecar: Sidecar, num_videos: int, num_runs: int) -> None:
    """Print a line of the table."""
    took = seconds(lambda: publish_catalog(cache, synthetic(sidecar, num_videos)))
    size = (cache / "catalog.bin").stat().st_size / 2**20
    command = [sys.executable, "-c", WORKER, str(cache)]
    runs = [json.loads(subprocess.run(command, check=True, capture_output=True).stdout) for _ in range(num_runs)]
    opened, ordered, lookup, memory = (spread_of(column).median for column in zip(*runs, strict=True))
    print(
        f"| {num_videos:,} | {size:,.1f} MiB | {took:.1f} s | {opened:.3f} s | {ordered:.3f} s | {lookup:.1f} ms | "
        f"{memory:.0f} MiB |",
        flush=True,
    )


def main() -> None:
    """Run everything."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("clip", type=Path, help="any video")
    parser.add_argument("--videos", type=int, nargs="+", default=[10**3, 10**4, 10**5, 10**6])
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    print("| videos | catalog | written in | open | first index of an epoch | a video in the middle | memory |")
    print("|---:|---:|---:|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder, "cache")
        cc.build(cc.scan([options.clip]), cache, jobs=1)
        (video,) = cc.open_cache(cache)
        for num_videos in options.videos:
            measure(cache, video.sidecar, num_videos, options.runs)


if __name__ == "__main__":
    main()
