"""Packs: CPU time to pack a cache of many videos, and to read clips before and after. Part of ``make bench``."""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
from measure import seconds, spread_of, timed_in_turn

import chordcache as cc
from chordcache.building.pack import pack
from chordcache.storage import find_sidecars, layout

CONFIG = "frames: {short_side: 40, fps: 5}\nfeatures: {flow: null, mel: null}\n"
NUM_READS = 500


def many(cache: Path, num_videos: int) -> int:
    """Add links to the artefact of the only video under other keys. Return the size of all artefacts [bytes]."""
    with cc.open_cache(cache) as opened:
        sidecar = opened[0].sidecar
    (info,) = sidecar.features
    for number in range(num_videos - 1):
        key = f"clip-{number:016x}"
        file = layout.file_of_key(info.file.name, key)
        (cache / file).parent.mkdir(exist_ok=True)
        os.link(cache / info.file.name, cache / file)
        copy = sidecar.replace(
            key=key, path=f"{number}.mp4", features=(info.replace(file=info.file.replace(name=file)),)
        )
        (cache / layout.sidecar_file(key)).parent.mkdir(exist_ok=True)
        (cache / layout.sidecar_file(key)).write_text(copy.to_line() + "\n")
    find_sidecars.write_catalog(cache)
    return num_videos * info.file.num_bytes


def read_clips(cache: cc.Cache) -> None:
    """Read clips of 16 frames of random videos, each twice: the first time its artefact is opened."""
    random = np.random.default_rng(0)
    for position in random.integers(len(cache), size=NUM_READS // 2).tolist():
        video = cache[position]
        for start in random.integers(video.num_frames - 16, size=2).tolist():
            cache.read(video, "frames", start, start + 16)


def main() -> None:
    """Print both measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("clips", type=Path, help="folder of fetch_clips.py")
    parser.add_argument("--videos", type=int, default=10_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.yaml").write_text(CONFIG)
        index = cc.scan([arguments.clips / "street"], output=folder / "index.jsonl")
        cc.build(index, folder / "loose", tiers=("lmdb",), config=folder / "config.yaml")
        num_bytes = many(folder / "loose", arguments.videos)
        took = seconds(lambda: pack(folder / "loose", folder / "packed"), time.process_time)
        print(f"packed {arguments.videos:,} artefacts, {num_bytes / 2**20:.0f} MiB, in {took:.2f} s of CPU")
        num_files = sum(len(files) for _, _, files in os.walk(folder / "packed"))
        print(f"files: {2 * arguments.videos:,} and lists before, {num_files} after")
        with cc.open_cache(folder / "loose") as loose, cc.open_cache(folder / "packed") as packed:
            ways = {"packed": partial(read_clips, packed), "loose": partial(read_clips, loose)}
            rounds = timed_in_turn(ways, 9, time.process_time)
            ratios = [times["packed"] / times["loose"] for times in rounds]
        print(f"reading clips, packed / loose: {spread_of(ratios).median:.3f} (median of 9)")


if __name__ == "__main__":
    main()
