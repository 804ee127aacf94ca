"""CPU time of a clip from a ``ClipLoader`` that keeps frames, against one that does not, in turn.

Clips are 16 frames of 224x224 at random places, in batches of 8 and one thread: ``bench_kept_frames.py CACHE``.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

import chordcache as cc


def cpu_seconds(loader: cc.ClipLoader) -> float:
    """Return the CPU time of one epoch."""
    start = time.process_time()
    for batch in loader:
        assert batch["frames"].shape[-1] == 224
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("cache")
    parser.add_argument("--keep", default="8GB")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(1)
    sampler = cc.RandomClipSampler(num_frames=16)
    dataset = cc.ChordVideoDataset(options.cache, clip_sampler=sampler, clips_per_video=40, size=(224, 224))
    plain = cc.ClipLoader(dataset, 8, num_threads=1)
    keeping = cc.ClipLoader(dataset, 8, num_threads=1, keep=options.keep)
    cpu_seconds(plain)
    cpu_seconds(keeping)  # fills the memory
    ratios = sorted(cpu_seconds(keeping) / cpu_seconds(plain) for _ in range(options.rounds))
    print(f"with keep / without: {statistics.median(ratios):.2f}, {ratios[0]:.2f} to {ratios[-1]:.2f}")
    print(keeping.kept_frames)


if __name__ == "__main__":
    main()
