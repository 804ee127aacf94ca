"""CPU time of another commit against this one's, for the same work: ``make compare BASE=<commit>``.

Both commits run in turn, in fresh processes, with caches of their own, since the format may differ. The measured work
uses only names that both commits have. The median of the ratios of pairs is printed: above 1, the other commit took
longer.
"""

from __future__ import annotations

import argparse
import functools
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from measure import repeat_video, spread_of

NUM_VIDEOS = 4

READ = """
import sys, time
import numpy as np
import chordcache as cc
cache = cc.open_cache(sys.argv[1])
videos = list(cache)
generator = np.random.default_rng(0)
asked = []
for i in generator.integers(len(videos), size=150).tolist():
    start = int(generator.integers(videos[i].num_frames - 16))
    asked.append((videos[i], start))
out = np.empty((16, videos[0].height, videos[0].width, 3), np.uint8)
def read():
    for video, start in asked:
        cache.read(video, start=start, stop=start + 16, out=out)
read()
started = time.process_time()
read()
print(time.process_time() - started)
"""
"""CPU seconds of 150 clips of 16 frames, all files opened before."""

SAMPLES = """
import sys, time
import chordcache as cc
dataset = cc.ChordVideoDataset(sys.argv[1])
numbers = [i % len(dataset) for i in range(60)]
for i in numbers:
    dataset[i]
started = time.process_time()
for i in numbers:
    dataset[i]
print(time.process_time() - started)
"""
"""CPU seconds of 60 samples of the dataset with its defaults."""

OPEN = """
import sys, time
import chordcache as cc
def read():
    for _ in range(10):
        with cc.open_cache(sys.argv[1]) as cache:
            for video in cache:
                for feature in sys.argv[2:]:
                    cache.read(video, feature, 0, 4)
read()
started = time.process_time()
read()
print(time.process_time() - started)
"""
"""CPU seconds to open the artefacts of every video, ten times, and to read 4 rows of each feature."""


class Commit:
    """One side: a source tree, and the folder of its caches."""

    def __init__(self, tree: Path, work: Path) -> None:
        self._tree, self._work = tree, work
        self._work.mkdir()

    def chordcache(self, *args: str | Path) -> float:
        """Run the command line; CPU seconds of all its processes."""
        return self._cpu("-m", "chordcache", *args)

    def cached(self, name: str, index: Path, *options: str | Path) -> Path:
        """A cache built once."""
        cache = self._work / name
        if not cache.exists():
            self.chordcache("build", index, "-o", cache, *options)
        return cache

    def scan(self, videos: Path) -> float:
        """CPU seconds of a scan of its packets."""
        return self.chordcache("scan", videos, "-o", self._work / "scanned.jsonl", "--jobs", "1")

    def build(self, index: Path, *options: str | Path) -> float:
        """CPU seconds of a build from nothing."""
        seconds = self.chordcache("build", index, "-o", self._work / "built", "--jobs", "1", *options)
        shutil.rmtree(self._work / "built")
        return seconds

    def printed(self, program: str, cache: Path, *args: str) -> float:
        """Run a program, and return the number that it prints."""
        return float(self._run("-c", program, cache, *args).stdout)

    def _cpu(self, *args: str | Path) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        self._run(*args)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    def _run(self, *args: str | Path) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(self._tree)}
        return subprocess.run(
            [sys.executable, *args], check=True, capture_output=True, text=True, env=environment, cwd=self._work
        )


def report(name: str, measure: Callable[[Commit], float], base: Commit, here: Commit, rounds: int) -> None:
    """Print one row: medians of both, and of their ratios."""
    for commit in (base, here):
        measure(commit)
    pairs = []
    for i in range(rounds):
        both = {commit: measure(commit) for commit in ((base, here) if i % 2 else (here, base))}
        pairs.append((both[base], both[here]))
    ratio = spread_of(a / b for a, b in pairs)
    old, new = (spread_of(column).median for column in zip(*pairs, strict=True))
    row = f"| {name} | {old:.3f} s | {new:.3f} s | {ratio.median:.2f} | {ratio.least:.2f} to {ratio.most:.2f} |"
    print(row, flush=True)


def main() -> None:
    """Run everything."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("base", type=Path, help="a source tree of the other commit, as 'git worktree add' makes one")
    parser.add_argument("clips", type=Path, help="what scripts/fetch_clips.py fetched")
    parser.add_argument("--rounds", type=int, default=9, help="interleaved runs of each pair")
    parser.add_argument("--only", default="", help="a word of the names of what is measured")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        base = Commit(options.base.resolve(), work / "base")
        here = Commit(Path(__file__).resolve().parent.parent, work / "here")
        videos = work / "videos"
        videos.mkdir()
        clip = options.clips / "animation" / "bigbuckbunny.mp4"
        for i in range(NUM_VIDEOS):
            repeat_video(clip, videos / f"{i}.mp4", 1, sound=True)
        index = work / "index.csv"
        index.write_text("path\n" + "".join(f"{path}\n" for path in sorted(videos.iterdir())))
        in_hdf5 = work / "hdf5.yaml"
        in_hdf5.write_text("hdf5: {features: [frames]}\n")
        flow = work / "flow.yaml"
        flow.write_text("features: {flow: {method: dis, preset: ultrafast}}\n")
        tiers = [word for tier in ("lmdb", "npz", "hdf5") for word in ("--tier", tier)]
        everything = (*tiers, "--features", "frames,flow,motion,mel", "-c", flow)
        frames_in_hdf5 = ("--tier", "hdf5", "--features", "frames", "-c", in_hdf5)

        def scan(commit: Commit) -> float:
            return commit.scan(videos)

        def clips(commit: Commit) -> float:
            return commit.printed(READ, commit.cached("lmdb", index, "--features", "frames"))

        def samples(commit: Commit) -> float:
            return commit.printed(SAMPLES, commit.cached("lmdb", index, "--features", "frames"))

        def clips_in_hdf5(commit: Commit) -> float:
            return commit.printed(READ, commit.cached("hdf5", index, *frames_in_hdf5))

        def opening(commit: Commit) -> float:
            return commit.printed(OPEN, commit.cached("all", index, *everything), "frames", "flow", "motion", "mel")

        def slices(commit: Commit, feature: str) -> float:
            return commit.printed(OPEN, commit.cached("all", index, *everything), feature)

        rows: list[tuple[str, Callable[[Commit], float]]] = [
            ("`chordcache --help`", lambda commit: commit.chordcache("--help")),
            ("`scan`, 4 videos", scan),
            ("`build`, frames in LMDB", lambda commit: commit.build(index, "--features", "frames")),
            ("`build`, frames in HDF5", lambda commit: commit.build(index, *frames_in_hdf5)),
            ("`build`, all features and tiers, DIS", lambda commit: commit.build(index, *everything)),
            ("150 clips of 16 frames, LMDB", clips),
            ("150 clips of 16 frames, HDF5", clips_in_hdf5),
            ("60 samples of the dataset", samples),
            ("40 videos opened, 4 rows of frames, flow, motion and mel", opening),
            *(
                (f"40 videos opened, 4 rows of {feature}", functools.partial(slices, feature=feature))
                for feature in ("flow", "motion", "mel")
            ),
        ]
        print("| CPU time of | before | after | before / after | range |\n|---|---:|---:|---:|---|")
        for name, measure in rows:
            if options.only in name:
                report(name, measure, base, here, options.rounds)


if __name__ == "__main__":
    main()
