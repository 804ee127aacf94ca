"""Packs: kills while they are written, and bits that flip in them."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np
from helpers import processes

import chordcache as cc
from chordcache.building.pack import pack
from fault_injection.corruptions import copy_of, flip_at_random, make_cache
from fault_injection.crashes import SPREAD
from fault_injection.harness import Figures, Trial, experiment

NUM_VIDEOS = 60

Rows = dict[tuple[str, str], np.ndarray]


def _make_corpus(folder: Path) -> None:
    make_cache(folder, "lmdb", NUM_VIDEOS)


def _rows(cache: Path) -> Rows:
    """All rows of all videos by key and feature."""
    with cc.open_cache(cache) as opened:
        return {
            (video.key, info.feature): opened.read(video, info.feature, 0, video.num_frames)
            for video in opened
            for info in video.sidecar.features
        }


def _assert_same(cache: Path, before: Rows) -> None:
    now = _rows(cache)
    assert now.keys() == before.keys()
    assert all(np.array_equal(now[place], rows) for place, rows in before.items())


@experiment("R25", "pack, then unpack, killed with -9 at a random moment, then the same commands again", trials=40)
def packing_killed(trial: Trial) -> Figures:
    """The moments cover each command from its lock to its end."""
    cache = copy_of(trial.once("corpus", _make_corpus) / "whole", trial.folder)
    before, num_killed = _rows(cache), 0
    for command, source, output in (("pack", "cache", "packed"), ("unpack", "packed", "again")):
        duration = trial.once(
            f"duration of {command}", lambda path, command=command: _write_duration(path, command, trial)
        )
        lock, words = trial.folder / output / ".lock", (command, source, "-o", output, "--move")
        with processes.running(trial.folder, *words) as run:
            processes.wait_until(lambda run=run, lock=lock: _has(lock, run.process.pid), 60)
            time.sleep((trial.number + 1) * SPREAD % 1 * float(duration.read_text()))
            if run.process.poll() is None:
                os.kill(run.process.pid, signal.SIGKILL)
                num_killed += 1
            run.wait()
            assert processes.fine(run.stderr), run.stderr
        is_complete = (trial.folder / output / "chordcache.json").exists()
        whole = trial.folder / (output if is_complete else source)
        _assert_same(whole, before)
        assert not [finding for finding in cc.verify(whole, jobs=1).damage if finding.kind in ("damaged", "missing")]
        with processes.running(trial.folder, *words) as run:
            run.wait()
        _assert_same(trial.folder / output, before)
        assert cc.verify(trial.folder / output, level="deep", jobs=1).damage == []
        assert not (trial.folder / source / "chordcache.json").exists()
    return {"sum_killed": num_killed, "sum_videos_lost": 0}


def _has(lock: Path, pid: int) -> bool:
    return lock.exists() and str(pid) in lock.read_text()


def _write_duration(path: Path, command: str, trial: Trial) -> None:
    """Seconds from the lock to the end of a command that nothing disturbs."""
    folder = path.with_name(f"undisturbed {command}")
    folder.mkdir()
    cache = copy_of(trial.once("corpus", _make_corpus) / "whole", folder)
    if command == "unpack":
        pack(cache, folder / "packed")
    source = cache.name if command == "pack" else "packed"
    with processes.running(folder, command, source, "-o", "new", "--move") as run:
        processes.wait_until(lambda: _has(folder / "new" / ".lock", run.process.pid), 60)
        started = time.monotonic()
        run.wait()
        path.write_text(str(time.monotonic() - started))


@experiment("R11", "one bit flipped in a pack, and verified", trials=300, batch=50)
def bits_of_packs(trial: Trial) -> Figures:
    """One at a time, anywhere in the pack."""
    cache = trial.folder / "packed"
    pack(copy_of(trial.once("corpus", _make_corpus) / "whole", trial.folder), cache)
    (path,) = (cache / "packs").glob("*.pack")
    for _ in range(trial.count):
        offset, bit = flip_at_random(path, trial.rng)
        kinds = {finding.kind for finding in cc.verify(cache, jobs=1).damage}
        assert "damaged" in kinds, f"bit {bit} of byte {offset} goes unnoticed"
        processes.flip(path, offset, bit)
    assert cc.verify(cache, level="deep", jobs=1).damage == []
    return {"sum_found": trial.count, "sum_missed": 0}
