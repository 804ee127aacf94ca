"""Measure how busy the pass of a network is with it, and its memory: ``python bench/bench_networks.py CLIPS``.

A network waits 10 ms for each frame in place of a GPU. The sources are 720p H.264. Busy is the share of the time from
the begin of the first batch to the end of the last one in which a batch is computed. The rest is decoding.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml
from measure import PEAK_RSS, repeat_video

import chordcache as cc

CLIP = "animation/bigbuckbunny.mp4"


def build(work: Path, name: str, *, num_videos: int, times: int, clips: Path) -> dict[str, Any]:
    """Build the slow feature of some videos, and return what its log says."""
    folder = work / name
    for number in range(num_videos):
        path = folder / f"videos/{number}.mp4"
        path.parent.mkdir(parents=True, exist_ok=True)
        repeat_video(clips / CLIP, path, times)
    cc.scan([folder / "videos"], output=folder / "index.json", jobs=2)
    log = folder / "log"
    section = {"extractor": "slow_network:SlowNetwork", "log": str(log), "batch_size": 8, "device": "cpu"}
    (folder / "slow.yaml").write_text(yaml.dump({"features": {"slow": section}}))
    command = [
        *(sys.executable, "-c", PEAK_RSS, sys.executable, "-m", "chordcache", "build", str(folder / "index.json")),
        *("-o", str(folder / "cache"), "-c", str(folder / "slow.yaml"), "--tier", "npz", "--features", "slow"),
        "-q",
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    batches = [line for line in lines if "begin" in line]
    whole = max(batch["end"] for batch in batches) - min(batch["begin"] for batch in batches)
    return {
        "busy": sum(batch["end"] - batch["begin"] for batch in batches) / whole,
        "frames": sum(batch["size"] for batch in batches),
        "batch": statistics.mean(batch["size"] for batch in batches),
        "loads": len(lines) - len(batches),
        "network": max(batch["peak"] for batch in batches) // 1024,
        "largest": int(done.stdout.split()[-1]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("clips", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rounds = [
            build(Path(folder), f"round{number}", num_videos=8, times=2, clips=arguments.clips)
            for number in range(arguments.rounds)
        ]
        busy = sorted(figures["busy"] for figures in rounds)
        print(
            f"busy, {rounds[0]['frames']} frames: {statistics.median(busy):.3f} "
            f"(min {busy[0]:.3f}, max {busy[-1]:.3f}); {rounds[0]['batch']:.1f} frames in a batch; "
            f"loads {max(figures['loads'] for figures in rounds)}"
        )
        for times in (2, 20):
            run = build(Path(folder), f"long{times}", num_videos=2, times=times, clips=arguments.clips)
            print(
                f"memory, {run['frames'] // 2} frames a video: network {run['network']} MiB, largest process "
                f"{run['largest']} MiB"
            )


if __name__ == "__main__":
    main()
