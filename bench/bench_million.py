"""A cache of a million videos, all but the files made up: how long it takes to open, and what a worker needs.

Part of ``make bench``; the targets are 1 s to open, 50 MiB a worker, and 2 s for the order of an epoch.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from measure import seconds

import chordcache as cc
from chordcache.storage import layout
from chordcache.storage.catalog import publish_catalog
from chordcache.storage.sidecar import Sidecar

WORKER = """
import resource, sys, time
import torch
import chordcache as cc
cc.ChordVideoDataset, cc.ChordSampler
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
before = peak()
started = time.perf_counter()
dataset = cc.ChordVideoDataset(sys.argv[1])
opened = time.perf_counter()
sampler = cc.ChordSampler(dataset, batch_size=8)
next(iter(sampler))
ordered = time.perf_counter()
video = dataset._video(len(dataset) // 2)
found = time.perf_counter()
print(f"{opened - started:.3f} s to open, {ordered - opened:.3f} s to the first index of an epoch, "
      f"{1e3 * (found - ordered):.2f} ms for a video in the middle, {peak() - before:.0f} MiB")
"""


def synthetic(sidecar: Sidecar, num_videos: int) -> Iterator[Sidecar]:
    """Sidecars like one that is real, of 400 labels."""
    for number in range(num_videos):
        key = f"clip-{number:016x}"
        files = {(info.tier, info.file): layout.file_of_key(info.file, key) for info in sidecar.features if info.file}
        features = tuple(info.replace(file=files.get((info.tier, info.file))) for info in sidecar.features)
        yield sidecar.replace(key=key, path=f"{number}.mp4", label=f"label {number % 400}", features=features)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("clip", type=Path, help="any video")
    parser.add_argument("--videos", type=int, default=1_000_000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder, "cache")
        cc.build(cc.scan([args.clip]), cache, jobs=1)
        (video,) = cc.open_cache(cache)
        took = seconds(lambda: publish_catalog(cache, synthetic(video.sidecar, args.videos)))
        size = (cache / "catalog.sqlite").stat().st_size / 2**20
        print(f"{args.videos:,} videos: catalog of {size:,.0f} MiB in {took:.0f} s")
        for _ in range(5):
            subprocess.run([sys.executable, "-c", WORKER, cache], check=True)


if __name__ == "__main__":
    main()
