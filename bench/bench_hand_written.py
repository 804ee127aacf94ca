"""CPU time of the loaders against a dataset that a user would write by hand: part of ``make bench-loader``.

The dataset reads the same JPEGs from one LMDB, in one worker of torch's DataLoader. ``ClipLoader`` has one thread, and
``make_loader`` one worker. All ways of a row are measured in turn in each round, with the CPU time of their workers.
Below 1, chordcache takes less. The sources are those of ``bench_loader``.

    python bench/bench_hand_written.py CLIPS --runs 7
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import cv2
import lmdb
import numpy as np
import simplejpeg
import torch
from measure import NUM_LOOPS, Records, cache_of_loops, cpu_seconds, epoch_of, spread_of, timed_in_turn
from torch.utils.data import DataLoader, Dataset

import chordcache as cc
from chordcache.media import jpeg, turbojpeg

CODECS = {"JPEG": "jpeg", "libturbojpeg 3": "jpeg", "`yuv420`": "yuv420"}
"""Name of a column to the codec of its cache"""

HAND_WRITTEN = "hand-written"
TITLES = ("`ClipLoader`", "`make_loader`")


class Case(NamedTuple):
    """A row of the table."""

    name: str
    short_side: int
    """Short side of the cached frames [pixels]. Their middle is cut out, and scaled to ``side`` if it is larger"""
    num_frames: int
    stride: int
    side: int
    batch_size: int
    clips_per_video: int


CASES = (
    Case("16 frames of 224x224, stride 1", 224, 16, 1, 224, 8, 32),
    Case("16 frames of 224x224, stride 4", 224, 16, 4, 224, 8, 32),
    Case("16 frames, `size=(224, 224)` from 256", 256, 16, 4, 224, 8, 32),
    Case("1 frame of 224x224, batches of 64", 224, 1, 1, 224, 64, 640),
    Case("16 frames of 32x32, batches of 32", 32, 16, 4, 32, 32, 320),
    Case("1 frame of 32x32, batches of 64", 32, 1, 1, 32, 64, 1280),
)


class HandWrittenClips(Dataset):
    """Random clips from an LMDB of JPEGs."""

    def __init__(self, path: Path, lengths: list[int], case: Case) -> None:
        self.path, self.lengths, self.case = str(path), lengths, case
        self.records = None

    def __len__(self) -> int:
        return len(self.lengths) * self.case.clips_per_video

    def __getitem__(self, index: int) -> dict[str, Any]:
        if self.records is None:  # in the worker: an environment of LMDB cannot be used after a fork
            self.records = lmdb.open(self.path, subdir=False, readonly=True, lock=False, readahead=False)
            cv2.setNumThreads(0)
        video, size = index // self.case.clips_per_video, self.case.side
        last = (self.case.num_frames - 1) * self.case.stride
        first = random.randrange(self.lengths[video] - last)
        clip = np.empty((self.case.num_frames, size, size, 3), np.uint8)
        with self.records.begin(buffers=True) as transaction:
            for i, out in enumerate(clip):
                record = transaction.get(b"%d/%d" % (video, first + i * self.case.stride))
                frame = simplejpeg.decode_jpeg(record, "RGB")
                side = min(frame.shape[:2])
                top, left = (frame.shape[0] - side) // 2, (frame.shape[1] - side) // 2
                middle = frame[top : top + side, left : left + side]
                if side == size:
                    out[:] = middle
                else:
                    cv2.resize(middle, (size, size), dst=out)
        return {"frames": torch.from_numpy(clip), "label": 0}


def copy_jpegs(cache: Path, target: Path) -> None:
    """Copy the JPEGs of a cache into one LMDB."""
    records = Records(cache)
    with lmdb.open(str(target), subdir=False, map_size=1 << 32) as copies, copies.begin(write=True) as transaction:
        for number, video in enumerate(cc.open_cache(cache)):
            for frame, data in enumerate(records.jpegs(video.key, list(range(video.num_frames)))):
                transaction.put(b"%d/%d" % (number, frame), data)


def with_whole_jpegs(run: Callable[[], None]) -> Callable[[], None]:
    """Function that calls another one as if libturbojpeg was not installed, also in workers that start meanwhile."""

    def run_without() -> None:
        with mock.patch.object(jpeg, "part_decoder", return_value=None):
            run()

    return run_without


def ways_of(case: Case, work: Path, clip: Path) -> dict[str, Callable[[], None]]:
    """Return each column of a row as a function that reads an epoch."""
    num_clips = NUM_LOOPS * case.clips_per_video
    cache = cache_of_loops(work, clip, "jpeg", case.short_side)
    records = cache.with_suffix(".lmdb")
    if not records.exists():
        copy_jpegs(cache, records)
    by_hand = HandWrittenClips(records, [video.num_frames for video in cc.open_cache(cache)], case)
    loader = DataLoader(by_hand, case.batch_size, shuffle=True, num_workers=1, persistent_workers=True)
    ways = {HAND_WRITTEN: epoch_of(loader, num_clips)}
    for name, codec in CODECS.items():
        dataset = cc.ChordVideoDataset(
            cache_of_loops(work, clip, codec, case.short_side),
            clip_sampler=cc.RandomClipSampler(case.num_frames, stride=case.stride),
            clips_per_video=case.clips_per_video,
            size=(case.side, case.side),
        )
        threads = cc.ClipLoader(dataset, case.batch_size, num_threads=1)
        workers = cc.make_loader(dataset, case.batch_size, 1, start_method="fork")
        for title, batches in zip(TITLES, (threads, workers), strict=True):
            run = epoch_of(batches, num_clips)
            ways[f"{title}, {name}"] = with_whole_jpegs(run) if name == "JPEG" else run
    return ways


def report(case: Case, rounds: list[dict[str, float]]) -> None:
    """Print a row of Markdown: the time of a sample of the hand-written dataset, and all others as its multiples."""
    num_clips = NUM_LOOPS * case.clips_per_video
    median = spread_of(times[HAND_WRITTEN] / num_clips for times in rounds).median
    cells = [case.name, f"{1000 * median:.2f} ms"]
    for name in rounds[0]:
        if name != HAND_WRITTEN:
            ratio = spread_of(times[name] / times[HAND_WRITTEN] for times in rounds)
            cells.append(f"{ratio.median:.2f} ({ratio.least:.2f} to {ratio.most:.2f})")
    print(f"| {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Run everything."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("clips", type=Path, help="what scripts/fetch_clips.py fetched")
    parser.add_argument("--runs", type=int, default=7, help="interleaved rounds of each row")
    options = parser.parse_args()
    library = turbojpeg.load_library(turbojpeg.candidates())
    if library is None:
        CODECS.pop("libturbojpeg 3")
    print(f"JPEGs are decoded whole, but with libturbojpeg 3: {library._name if library else 'not installed'}\n")
    clip = options.clips / "animation" / "bigbuckbunny.mp4"
    columns = [HAND_WRITTEN, *(f"{title}, {name}" for name in CODECS for title in TITLES)]
    print(f"| | {' | '.join(columns)} |\n|---|{'---:|' * len(columns)}", flush=True)
    with tempfile.TemporaryDirectory() as work:
        for case in CASES:
            report(case, timed_in_turn(ways_of(case, Path(work), clip), options.runs, cpu_seconds))


if __name__ == "__main__":
    main()
