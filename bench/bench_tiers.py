"""Frames of one cache in every tier, and as a source, against the LMDB tier: part of ``make bench``.

CPU time, all interleaved, after a warm-up. The samples are those of ``bench_loader``, not cut: 16 random frames, 4
apart. Raw frames are compared with a copy of a batch of the same size.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from measure import encode_loop, epoch_of, report_all

import chordcache as cc
from chordcache.config.config import config_from_json
from chordcache.sources.video_source import CachedSource

BATCH_SIZE, NUM_VIDEOS, CLIPS_PER_VIDEO, SECONDS, SHORT_SIDE = 8, 2, 12, 8, 224
SAMPLER = cc.RandomClipSampler(num_frames=16, stride=4)
SETTINGS: dict[str, Any] = {"clip_sampler": SAMPLER, "clips_per_video": CLIPS_PER_VIDEO, "size": None}


def make_cache(work: Path, codec: str, tier: str) -> Path:
    """Build a cache with one codec in one tier."""
    target = work / f"{codec}_{tier}"
    config = config_from_json({"frames": {"codec": codec, "short_side": SHORT_SIDE}, "hdf5": {"features": ["frames"]}})
    cc.build(cc.scan([work / "videos"]), target, tiers=[tier], features=["frames"], config=config)
    return target


def epoch(dataset: Any) -> Callable[[], None]:
    """Run through one epoch of a loader with one thread."""
    return epoch_of(cc.ClipLoader(dataset, BATCH_SIZE, num_threads=1), NUM_VIDEOS * CLIPS_PER_VIDEO)


def source_of(cache: Path) -> Any:
    """The same clips, from a ``CachedSource``."""
    opened = cc.open_cache(cache)
    keys = [video.key for video in opened]
    return cc.ChordVideoDataset(cc.videos.from_files(CachedSource(opened), keys), **SETTINGS)


def copies(cache: Path) -> Callable[[], None]:
    """Copy as many batches as an epoch has."""
    video = next(iter(cc.open_cache(cache)))
    batch = np.ones((BATCH_SIZE, SAMPLER.num_frames, video.height, video.width, 3), np.uint8)
    target = np.empty_like(batch)

    def run() -> None:
        for _ in range(NUM_VIDEOS * CLIPS_PER_VIDEO // BATCH_SIZE):
            np.copyto(target, batch)

    return run


def report(names: dict[str, tuple[Callable[[], None], str]], runs: int) -> None:
    """Print the CPU time of the first over that of each, as medians over interleaved rounds."""
    (first, (run, _)), *others = names.items()
    report_all([(f"{first} / {name}", target, other) for name, (other, target) in others], run, runs, time.process_time)


def main() -> None:
    """Run everything."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("clips", type=Path, help="what scripts/fetch_clips.py fetched")
    parser.add_argument("--runs", type=int, default=5, help="interleaved rounds")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        (work / "videos").mkdir()
        for i in range(NUM_VIDEOS):
            encode_loop(options.clips / "animation" / "bigbuckbunny.mp4", work / "videos" / f"{i}.mp4", SECONDS)
        lmdb, hdf5, raw = (
            make_cache(work, "jpeg", "lmdb"),
            make_cache(work, "jpeg", "hdf5"),
            make_cache(work, "raw", "lmdb"),
        )
        report(
            {
                "JPEG in LMDB": (epoch(cc.ChordVideoDataset(lmdb, **SETTINGS)), ""),
                "JPEG in HDF5": (epoch(cc.ChordVideoDataset(hdf5, **SETTINGS)), ">= 0.9"),
                "JPEG in LMDB by CachedSource": (epoch(source_of(lmdb)), ">= 0.9"),
            },
            options.runs,
        )
        report(
            {
                "memcpy of the batch": (copies(raw), ""),
                "raw in LMDB": (epoch(cc.ChordVideoDataset(raw, **SETTINGS)), ">= 0.35"),
            },
            options.runs,
        )


if __name__ == "__main__":
    main()
