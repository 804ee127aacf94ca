"""Parts that run at the same time, as processes: two drivers, full disks, and networks."""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from helpers import processes, small_disks
from helpers.parts import build_part, is_whole, join, make_work, part_command

pytestmark = [pytest.mark.usefixtures("inline"), pytest.mark.slow]

NUM_PARTS = 3

Cli = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path]) -> Path:
    return make_work(tmp_path_factory.mktemp("parts"), make_video)


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=200)


def drive(work: Path, parts: Path, seed: int) -> list[subprocess.CompletedProcess[str]]:
    """Build all parts at once, in an order of its own, as a person or a script does."""
    draw = random.Random(seed)
    commands = [[*part_command(work, parts, f"{n}/{NUM_PARTS}"), "--wait"] for n in range(1, NUM_PARTS + 1)]
    draw.shuffle(commands)

    def later(command: list[str]) -> subprocess.CompletedProcess[str]:
        time.sleep(draw.uniform(0, 2))
        return run(command)

    with ThreadPoolExecutor() as pool:
        return [*pool.map(later, commands)]


def test_two_drivers_of_all_parts(work: Path, tmp_path: Path) -> None:
    """Each starts all parts. A part that the other one builds is waited for, and is then up to date."""
    with ThreadPoolExecutor() as pool:
        for runs in pool.map(lambda seed: drive(work, tmp_path / "parts", seed), (1, 2)):
            for done in runs:
                assert done.returncode in (0, 3), done.stderr
                assert processes.fine(done.stderr)
    join(tmp_path / "parts", tmp_path / "cache")
    is_whole(tmp_path / "cache", work / "whole")


@pytest.mark.skipif(not small_disks.can_mount(small_disks.tmpfs), reason="needs root, to mount a small disk")
def test_a_disk_that_fills_while_three_parts_run(work: Path, tmp_path: Path) -> None:
    size = sum(path.stat().st_size for path in (work / "whole").rglob("*") if path.is_file())
    with small_disks.tmpfs(tmp_path / "disk", "4m") as disk:
        parts = disk / "parts"
        # A part looks for 1 MiB before each video. With more room, all could begin their last one before another ends
        (disk / "ballast").write_bytes(bytes((4 << 20) - (1 << 20) - size // 8))
        commands = [part_command(work, parts, f"{number}/{NUM_PARTS}") for number in range(1, NUM_PARTS + 1)]
        with ThreadPoolExecutor() as pool:
            runs = [*pool.map(run, commands)]
        assert {done.returncode for done in runs} <= {0, 3, 12}
        full = [number for number, done in enumerate(runs, 1) if done.returncode == 12]
        assert full
        assert all(processes.fine(done.stderr) for done in runs)
        (disk / "ballast").unlink()
        for number in full:
            build_part(work, parts, f"{number}/{NUM_PARTS}")
        join(parts, disk / "cache")
        is_whole(disk / "cache", work / "whole")
