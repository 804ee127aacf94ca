"""Conditions that are not a fault: clocks that are wrong, and videos larger than any map."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import yaml
from conftest import make_planes, write_video
from helpers import processes

import chordcache as cc
from fault_injection.fixtures import build_args, differs, make_corpus
from fault_injection.harness import Figures, Trial, experiment

# Clocks

FAKETIME = """
import os, sys
offset, *args = sys.argv[1:]
os.execvp("faketime", ["faketime", "-f", offset, sys.executable, "-m", "chordcache", *args])
"""

FILES_KEEP_THEIR_TIMES = {"NO_FAKE_STAT": "1"}
"""Options of libfaketime: the clock is wrong, the times that the disk stores are not."""

CLOCKS = [("+1d", "UTC"), ("-1d", "Pacific/Auckland"), ("+400d", "America/St_Johns")]
"""Offset and time zone of the first run and of those after it."""


def _started_at(trial: Trial, clock: tuple[str, str], args: list[str | Path]) -> processes.Run:
    offset, zone = clock
    env = {**FILES_KEEP_THEIR_TIMES, "TZ": zone}
    return processes.start(trial.folder, offset, *args, program=("-c", FAKETIME), env=env)


@experiment("R9", "built a day ahead, killed, resumed a day behind and in other time zones", trials=10)
def clocks_that_jump(trial: Trial) -> Figures:
    """Nothing is done twice, nothing differs; a scan under another clock gives the same index."""
    assert shutil.which("faketime"), "this experiment needs the command faketime: run 'make reliability'"
    corpus = trial.once("corpus", make_corpus)
    cache = trial.folder / "cache"
    args = build_args(corpus, "lmdb")
    run = _started_at(trial, CLOCKS[0], args)
    assert processes.wait_until(lambda: processes.sidecars(cache), 60), run.stderr
    run.kill_all()
    published = {name: cache / name for name in processes.files_of(cache) if name.startswith("videos/")}
    before = {name: path.stat().st_ino for name, path in published.items()}
    for clock in CLOCKS[1:]:
        run = _started_at(trial, clock, args)
        assert run.wait() == 0, run.stderr
    assert "up to date 4" in run.stdout, run.stdout
    redone = [name for name, path in published.items() if path.stat().st_ino != before[name]]
    assert redone == [], redone
    different = differs(cache, corpus / "whole", "lmdb")
    assert different == [], different
    return {"sum_runs": len(CLOCKS), "sum_videos_kept": len(before), "sum_different": _num_scans_that_differ(trial)}


def _num_scans_that_differ(trial: Trial) -> int:
    corpus = trial.once("corpus", make_corpus)
    indices = set()
    for clock in CLOCKS[:2]:
        run = _started_at(trial, clock, ["scan", corpus / "videos", "-o", "again.json"])
        assert run.wait() == 0, run.stderr
        indices.add((trial.folder / "again.json").read_bytes())
    assert len(indices) == 1
    return len(indices) - 1


# Maps

SIZE = (640, 480)
NUM_FRAMES = 640
"""Raw frames of 900 KiB: an artefact of 563 MiB, for which a first map of 256 MiB is to be doubled twice."""

FIRST_MAP_BYTES = 256 << 20

RAW = {"frames": {"short_side": None, "codec": "raw"}, "features": {"flow": None, "motion": None, "mel": None}}


def _make_large(folder: Path) -> None:
    """A file of 280 MiB: its pictures are not compressed."""
    write_video(folder / "videos/large.avi", num_frames=NUM_FRAMES, size=SIZE, codec="rawvideo", gop=1)
    (folder / "config.yaml").write_text(yaml.dump(RAW))
    cc.scan([folder / "videos"], output=folder / "index.json", jobs=1)


def _map_sizes(trace: Path) -> list[int]:
    """Sizes of the maps of the environment that was written [bytes]."""
    pattern = re.compile(r"mmap\(\w+, (\d+), PROT_READ, MAP_SHARED, \d+<[^>]*/\.partial/[^>]*\.lmdb>")
    sizes = {int(size) for size in pattern.findall(trace.read_text())}
    return sorted(size for size in sizes if size % FIRST_MAP_BYTES == 0)  # a reader maps the file's own size


@experiment("R7", "a file of 280 MiB whose frames fill an LMDB of 560 MiB, from a first map of 256 MiB", trials=3)
def larger_than_any_map(trial: Trial) -> Figures:
    """The writer doubles the map as often as it takes; every frame is there."""
    corpus = trial.once("corpus", _make_large)
    trace = trial.folder / "trace"
    tracer = ["strace", "-f", "-y", "-qq", "--seccomp-bpf", "-e", "trace=mmap", "-o", trace]
    args = build_args(corpus, "lmdb", jobs=1)
    done = subprocess.run(
        [*tracer, sys.executable, "-m", "chordcache", *args], cwd=trial.folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "MapFull" not in done.stderr, done.stderr
    sizes = _map_sizes(trace)
    assert len(sizes) > 2, f"the map was not doubled twice, so nothing was tried: {sizes}"
    with cc.open_cache(trial.folder / "cache") as cache:
        (video,) = cache
        assert video.num_frames == NUM_FRAMES
        for number in range(10, NUM_FRAMES, 90):
            _check_background(cache.read(video, "frames", number, number + 1)[0], number)
    return {"median_map_doubled": len(sizes) - 1, "sum_errors": 0}


def _check_background(frame: np.ndarray, number: int) -> None:
    """The last corner, where nothing moves, is as bright as it was made."""
    luma = make_planes(number, *SIZE)[0][-1, -1]
    expected = (float(luma) - 16) * 255 / 219
    shown = float(frame[-1, -1].astype(float) @ (0.299, 0.587, 0.114))
    assert abs(shown - expected) < 3, f"frame {number}: luma {shown:.1f}, expected {expected:.1f}"
