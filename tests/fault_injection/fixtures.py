"""A small corpus and the command line, for experiments."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from conftest import run_chordcache, write_video
from helpers import processes
from helpers.cache_contents import arrays, differing

import chordcache as cc

TIERS = ("lmdb", "npz", "hdf5")

CONFIG: dict[str, Any] = {
    "frames": {"short_side": 64},
    "features": {"flow": {"method": "dis"}, "motion": {}},
    "hdf5": {"features": ["frames", "flow"]},
}


def make_corpus(
    folder: Path, num_videos: int = 4, num_frames: int = 24, height: int = 64, config: Mapping[str, Any] = CONFIG
) -> None:
    """videos/0.mp4 and so on, index.json, config.yaml and whole/, a cache of all tiers that nothing disturbed."""
    for number in range(num_videos):
        size = (height + 16 * (number % 3), height)
        write_video(folder / f"videos/{number}.mp4", num_frames=num_frames + number, size=size)
    (folder / "config.yaml").write_text(yaml.dump(dict(config)))
    cc.scan([folder / "videos"], output=folder / "index.json", jobs=1)
    cc.build(folder / "index.json", folder / "whole", tiers=TIERS, config=folder / "config.yaml", jobs=2)


def build_args(corpus: Path, tier: str, cache: str | Path = "cache", jobs: int = 2) -> list[str | Path]:
    """The arguments of ``chordcache`` that build one tier of ``make_corpus``, or "all" of them."""
    tiers = TIERS if tier == "all" else (tier,)
    options = [part for name in tiers for part in ("--tier", name)]
    return ["build", corpus / "index.json", "-o", cache, f"-j{jobs}", "-c", corpus / "config.yaml", *options]


def differs(cache: Path, whole: Path, tier: str) -> list[tuple[str, str, str]]:
    """Return where a cache of one tier, or "all", differs from the undisturbed one."""
    expected = {name: value for name, value in arrays(whole).items() if tier in ("all", name[1])}
    return differing(arrays(cache), expected)


def build(corpus: Path, tier: str, folder: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Build in ``folder`` and wait."""
    done = run_chordcache(*build_args(corpus, tier), cwd=folder, **options)
    assert processes.fine(done.stderr), done.stderr
    return done


def needs_root() -> None:
    """Fail with what to do where disks cannot be mounted."""
    assert os.geteuid() == 0, "this experiment mounts disks: run it as root, or leave it out with --only"


def states(folder: Path) -> dict[str, tuple[int, ...]]:
    """Everything below a folder: inode, mode, size, and when it was written and changed."""
    statuses = {}
    for path in [folder, *sorted(folder.rglob("*"))]:
        status = path.lstat()
        statuses[str(path)] = (status.st_ino, status.st_mode, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    return statuses
