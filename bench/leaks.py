"""Recall and precision of ``cc.leaks`` on pieces of real videos, and the time and memory of its hashes.

``python bench/leaks.py VIDEOS`` cuts pieces of 3 s out of the videos of a folder. They are compressed, scaled,
cropped or mirrored, or have a logo. It needs ffmpeg, and half an hour for 200 videos.
"""

from __future__ import annotations

import argparse
import random
import resource
import subprocess
import tempfile
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np

import chordcache as cc
from chordcache.media.picture_facts import _hash_of
from chordcache.verifying import leaks

PIECE_SECONDS = 3.0
FILTERS = {
    "crf 23": "null",
    "crf 32": "null",
    "crf 40": "null",
    "scaled to 2/3": "scale=trunc(iw/3)*2:trunc(ih/3)*2",
    "cropped by 10 %": "crop=trunc(iw*0.45)*2:trunc(ih*0.45)*2",
    "mirrored": "hflip",
    "logo": "drawbox=x=iw*0.78:y=ih*0.05:w=iw*0.17:h=ih*0.12:color=white@0.9:t=fill",
}


def cut_piece(source: Path, target: Path, kind: str, start: float) -> None:
    """Encode a piece of a video that is changed in one way."""
    quality = kind[4:] if kind.startswith("crf") else "23"
    before = f"ffmpeg -nostdin -v error -y -ss {start} -t {PIECE_SECONDS} -i".split()
    after = f"-an -pix_fmt yuv420p -c:v libx264 -preset veryfast -threads 1 -crf {quality} -vf".split()
    filters = f"{FILTERS[kind]},scale=trunc(iw/2)*2:trunc(ih/2)*2"
    subprocess.run([*before, str(source), *after, filters, str(target)], check=True)


def build(videos: Path, cache: Path) -> list[cc.Video]:
    cc.build(cc.scan([videos], output=cache.with_suffix(".json")), cache)
    with cc.open_cache(cache) as opened:
        return list(opened)


def measure_recall(folder: Path, work: Path, num_pieces: int) -> None:
    """Print how many pieces are found, and pairs with other videos, which may be copies too."""
    sources = [video for video in build(folder, work / "train") if video.duration_seconds > PIECE_SECONDS + 0.4]
    drawn, kinds, pieces = random.Random(7), list(FILTERS), {}
    (work / "pieces").mkdir()
    for number in range(num_pieces):
        source = sources[number % len(sources)]
        kind = kinds[(number // len(sources) + number) % len(kinds)]
        start = round(drawn.uniform(0, source.duration_seconds - PIECE_SECONDS - 0.1), 3)
        pieces[f"{number:04}.mp4"] = (source, kind, start)
        cut_piece(folder / source.path, work / f"pieces/{number:04}.mp4", kind, start)
    cached = build(work / "pieces", work / "val")
    started = time.process_time()
    pairs = cc.leaks(work / "train", work / "val")
    print(f"{len(pairs)} pairs in {time.process_time() - started:.1f} s of CPU time")
    pair_of = {(pair.train, pair.val_path): pair for pair in pairs}
    tried, missed, errors = Counter[str](), Counter[str](), []
    for video in cached:
        source, kind, start = pieces[video.path]
        tried[kind] += 1
        pair = pair_of.pop((source.key, video.path), None)
        if pair is None:
            missed[kind] += 1
            print(f"missed: {kind}, {source.path}")
        else:
            errors.append(abs(pair.train_seconds[0] - pair.val_seconds[0] - start))
    print(f"recall {1 - missed.total() / tried.total():.3f} of {tried.total()} pieces; missed {dict(missed)}")
    print(f"error of the times: median {np.median(errors):.2f} s, 95 % {np.quantile(errors, 0.95):.2f} s")
    for pair in (*pair_of.values(), *cc.leaks(work / "train")):
        print(f"another pair: '{pair.train_path}': {pair}")


def drawn_hashes(random: np.random.Generator, num_videos: int) -> np.ndarray:
    """Return hashes of pictures that change slowly within a video [shape=(num_videos, 10), dtype=uint64]."""
    hashes = np.empty((num_videos, 10), np.uint64)
    for video in hashes:
        scene = random.normal(128, 40, (12, 12)).astype(np.float32)
        video[:] = [
            _hash_of(cv2.blur(scene + random.normal(0, 14, (12, 12)).astype(np.float32), (3, 3))) for _ in video
        ]
    return hashes


def measure_hashes(num_train: int, num_val: int) -> None:
    """Print the time and the memory of the hashes alone. 200 videos are copies, with 14 % of their bits changed."""
    random = np.random.default_rng(1)
    train, val = drawn_hashes(random, num_train), drawn_hashes(random, num_val)
    for number in range(200):
        noise = np.packbits(random.random((3, 64)) < 0.14, axis=1).view(">u8").ravel().astype(np.uint64)
        val[number, 4:7] = train[number, 2:5] ^ noise

    def split(hashes: np.ndarray) -> Any:
        owners, starts = np.repeat(np.arange(len(hashes)), 10), np.arange(len(hashes)) * 10
        return SimpleNamespace(hashes=hashes.ravel(), owners=owners, starts=starts, keys=range(len(hashes)))

    started, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    pairs = {row[:2] for flag in (False, True) for row in leaks._candidates(split(train), split(val), 3, flag)}
    seconds = time.process_time() - started
    gigabytes = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1e6
    num_found = sum((number, number) in pairs for number in range(200))
    print(f"{num_train} x {num_val} videos of 10 s: {seconds:.1f} s of CPU time, {gigabytes:.2f} GB more,", end=" ")
    print(f"{len(pairs)} pairs to compare, {num_found} of 200 copies among them")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("videos", type=Path)
    parser.add_argument("--pieces", type=int, default=300)
    parser.add_argument("--hashes", type=int, nargs=2, default=(90_000, 10_000), metavar=("TRAIN", "VAL"))
    options = parser.parse_args()
    measure_hashes(*options.hashes)
    with tempfile.TemporaryDirectory() as work:
        measure_recall(options.videos, Path(work), options.pieces)


if __name__ == "__main__":
    main()
