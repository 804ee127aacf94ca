"""Time until a part of a cache begins its first video, among a million records that are made up.

Part of ``make bench-engines``. The sources do not exist, and a part ends at its first failure, so its time is that of
its start: at most 5 s for all parts but the first, which divides the index.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import chordcache as cc
from chordcache.errors import TooManyFailuresError
from chordcache.index.files import IndexWriter
from chordcache.pipeline.parts import balanced
from chordcache.records import Identity

MAX_START_SECONDS = 5.0

MAX_IMBALANCE = 1.02
"""Work of the largest part, if 1 is the mean"""


def write_index(index: Path, clip: Path, num_frames: np.ndarray) -> None:
    """Write records like that of a real clip, with other names, sizes and numbers of frames."""
    (record,) = cc.scan([clip], jobs=1)
    assert record.packets is not None
    with IndexWriter(index, roots={"videos": str(index.parent / "videos")}, level="packets") as writer:
        for number, count in enumerate(num_frames.tolist()):
            identity = Identity(2000 * count, number)
            packets = record.packets.replace(num_frames=count)
            writer.write(record.replace(root="videos", path=f"{number}.mp4", identity=identity, packets=packets))


def start(index: Path, cache: Path, part: str) -> tuple[float, float]:
    """Start a part, and return its time [seconds] and its largest memory [MiB]."""
    command = [sys.executable, "-m", "chordcache", "build", index, "-o", cache, "--part", part]
    began = time.perf_counter()
    process = subprocess.Popen([*map(str, command), "-j1", "-q", "--max-failures", "0"], stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    assert os.waitstatus_to_exitcode(status) == TooManyFailuresError.exit_code
    return time.perf_counter() - began, usage.ru_maxrss / 1024


def main() -> None:
    """Run everything."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("clip", type=Path, help="any video")
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--parts", type=int, default=16)
    options = parser.parse_args()
    num_frames = np.random.default_rng(0).lognormal(6, 1.2, options.records).astype(int) + 1
    loads = np.bincount(balanced(num_frames.astype(float), options.parts), num_frames)
    print(f"work of the largest part: {loads.max() / loads.mean():.7f} of the mean (target {MAX_IMBALANCE})")
    with tempfile.TemporaryDirectory() as folder:
        index, cache = Path(folder, "index.jsonl"), Path(folder, "cache")
        write_index(index, options.clip, num_frames)
        for number in (1, 2, options.parts // 2, options.parts):
            took, memory = start(index, cache, f"{number}/{options.parts}")
            what = "divides the index and starts" if number == 1 else f"starts (target {MAX_START_SECONDS} s)"
            print(f"part {number} of {options.parts}: {what}: {took:.1f} s, {memory:.0f} MiB", flush=True)


if __name__ == "__main__":
    main()
