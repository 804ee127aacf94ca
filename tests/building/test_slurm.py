"""``scripts/slurm.sh`` with the variables that SLURM sets for the tasks of an array."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers import processes

import chordcache as cc

SCRIPT = Path(__file__).resolve().parents[2] / "scripts/slurm.sh"


def task(number: int, *arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the task of an array, as SLURM starts a copy of the script."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    slurm = {"SLURM_ARRAY_TASK_ID": str(number), "SLURM_CPUS_PER_TASK": "1", "PATH": path}
    command = ["bash", SCRIPT, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **slurm, **variables})


@pytest.fixture
def index(tmp_path: Path, make_video: Callable[..., Path]) -> Path:
    for number in range(6):
        make_video(tmp_path / f"videos/{number}.mp4", num_frames=5 + number)
    cc.scan([tmp_path / "videos"], output=tmp_path / "index.json", jobs=1)
    return tmp_path / "index.json"


def test_an_array(index: Path, tmp_path: Path) -> None:
    parts, cache = tmp_path / "parts", tmp_path / "cache"
    for number in (1, 3):
        done = task(number, index, "-o", parts, "--tier", "lmdb", PARTS="3")
        assert done.returncode == 0, done.stderr
    done = task(1, index, "-o", parts, "--tier", "lmdb", PARTS="3", OFFSET="2")  # started twice
    assert done.returncode == 0, done.stderr
    command = [sys.executable, "-m", "chordcache", "merge", "--move", "-o", cache]
    missing = subprocess.run([*command, *parts.iterdir()], capture_output=True, text=True)
    assert missing.returncode == 2
    assert "those that are missing: 2." in missing.stderr
    assert task(2, index, "-o", parts, "--tier", "lmdb", PARTS="3").returncode == 0
    assert subprocess.run([*command, *parts.iterdir()], capture_output=True).returncode == 0
    assert len(processes.sidecars(cache)) == 6


def test_without_the_number_of_parts(index: Path, tmp_path: Path) -> None:
    done = task(1, index, "-o", tmp_path / "parts")
    assert done.returncode != 0
    assert "PARTS: is not set" in done.stderr
    assert not (tmp_path / "parts").exists()


def test_a_signal_reaches_the_build(index: Path, tmp_path: Path) -> None:
    """SLURM ends a job with SIGTERM. The script is replaced by the build, so nothing stands between them."""
    command = tmp_path / "chordcache"
    command.write_text("#!/bin/sh\necho $PPID\n")
    command.chmod(0o755)
    done = task(1, index, "-o", tmp_path / "parts", PARTS="1", PATH=f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert int(done.stdout) == os.getpid()
