"""Parts that run at the same time, as processes: two drivers, full disks, networks, and videos that left the index."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import yaml
from helpers import cache_contents, processes, small_disks
from helpers.networks import make_vae
from helpers.parts import NUM_GOOD, WHAT, build_part, is_whole, make_work, part_command

import chordcache as cc
from chordcache.building.join_parts import finish

pytestmark = [pytest.mark.usefixtures("inline"), pytest.mark.timeout(300), pytest.mark.slow]

NUM_PARTS = 3

Cli = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path]) -> Path:
    return make_work(tmp_path_factory.mktemp("parts"), make_video)


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=200)


def drive(work: Path, cache: Path, seed: int) -> list[subprocess.CompletedProcess[str]]:
    """Build all parts at once, in an order of its own, and finish the cache, as a person or a script does."""
    draw = random.Random(seed)
    commands = [[*part_command(work, cache, f"{n}/{NUM_PARTS}"), "--wait"] for n in range(1, NUM_PARTS + 1)]
    draw.shuffle(commands)

    def later(command: list[str]) -> subprocess.CompletedProcess[str]:
        time.sleep(draw.uniform(0, 2))
        return run(command)

    with ThreadPoolExecutor() as pool:
        ended = [*pool.map(later, commands)]
    return [*ended, run([sys.executable, "-m", "chordcache", "finish", str(cache)])]


def test_two_drivers_of_one_cache(work: Path, tmp_path: Path) -> None:
    """Each starts all parts. A part that the other one builds is waited for, and is then up to date."""
    cache = tmp_path / "cache"
    with ThreadPoolExecutor() as pool:
        for runs in pool.map(lambda seed: drive(work, cache, seed), (1, 2)):
            for done in runs:
                assert done.returncode in (0, 3, 11), done.stderr  # 11: finish, while the other one finishes
                assert processes.fine(done.stderr)
    is_whole(cache, work / "whole")


@pytest.mark.skipif(not small_disks.can_mount(small_disks.tmpfs), reason="needs root, to mount a small disk")
def test_a_disk_that_fills_while_three_parts_run(work: Path, tmp_path: Path) -> None:
    size = sum(path.stat().st_size for path in (work / "whole").rglob("*") if path.is_file())
    with small_disks.tmpfs(tmp_path / "disk", "4m") as disk:
        cache = disk / "cache"
        # A part looks for 1 MiB before each video. With more room, all could begin their last one before another ends
        (disk / "ballast").write_bytes(bytes((4 << 20) - (1 << 20) - size // 8))
        commands = [part_command(work, cache, f"{number}/{NUM_PARTS}") for number in range(1, NUM_PARTS + 1)]
        with ThreadPoolExecutor() as pool:
            runs = [*pool.map(run, commands)]
        assert {done.returncode for done in runs} <= {0, 3, 12}
        full = tuple(number for number, done in enumerate(runs, 1) if done.returncode == 12)
        assert full
        assert all(processes.fine(done.stderr) for done in runs)
        assert finish(cache).missing == full
        (disk / "ballast").unlink()
        for number in full:
            build_part(work, cache, f"{number}/{NUM_PARTS}")
        finish(cache)
        is_whole(cache, work / "whole")


@pytest.mark.skipif(not small_disks.can_mount(small_disks.tmpfs), reason="needs root, to mount a small disk")
def test_a_disk_that_is_full_when_the_parts_are_joined(work: Path, tmp_path: Path) -> None:
    with small_disks.tmpfs(tmp_path / "disk", "16m") as disk:
        cache = disk / "cache"
        for number in range(1, NUM_PARTS + 1):
            build_part(work, cache, f"{number}/{NUM_PARTS}")
        with (disk / "ballast").open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))
        with pytest.raises(cc.NoSpaceError, match="make room and run the same command"):
            finish(cache)
        (disk / "ballast").unlink()
        finish(cache)
        is_whole(cache, work / "whole")


@pytest.mark.skipif(not small_disks.can_mount(small_disks.tmpfs), reason="needs root, to mount a small disk")
def test_one_of_three_machines_has_a_full_scratch(work: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    scratches = [tmp_path / f"scratch{number}" for number in range(1, NUM_PARTS + 1)]
    for scratch in scratches:
        scratch.mkdir()
    scratches[1].rmdir()
    with small_disks.tmpfs(scratches[1], "40k", may_be_open=True):
        commands = [
            [*part_command(work, cache, f"{number}/{NUM_PARTS}"), "--scratch", str(scratch)]
            for number, scratch in enumerate(scratches, 1)
        ]
        with ThreadPoolExecutor() as pool:
            runs = [*pool.map(run, commands)]
        assert [done.returncode == 12 for done in runs] == [False, True, False], [done.stderr for done in runs]
        assert str(scratches[1]) in runs[1].stderr
        assert finish(cache).missing == (2,)
        small_disks.enlarge(scratches[1])
        assert run(commands[1]).returncode in (0, 3)
        finish(cache)
        is_whole(cache, work / "whole")


def test_videos_that_left_the_index_stay_until_a_build_prunes(work: Path, tmp_path: Path) -> None:
    shutil.copytree(work / "videos", tmp_path / "videos")
    cache, index = tmp_path / "cache", tmp_path / "index.json"
    cc.build(cc.scan([tmp_path / "videos"], output=index, jobs=1), cache, jobs=1, **WHAT)
    (tmp_path / "videos/00.mp4").unlink()
    (tmp_path / "videos/broken.mp4").unlink()
    shutil.copy(work / "videos/03.mp4", tmp_path / "videos/new.mp4")
    cc.scan([tmp_path / "videos"], output=index, jobs=1)
    for number in range(1, NUM_PARTS + 1):
        build_part(work, cache, f"{number}/{NUM_PARTS}", index=index)
        with pytest.raises(cc.LockedError, match="is built in parts"):
            cc.build(index, cache, jobs=1, options=cc.BuildOptions(prune=True), **WHAT)
    finish(cache)
    assert len(cc.open_cache(cache)) == NUM_GOOD + 1
    pruned = cc.build(index, cache, jobs=1, options=cc.BuildOptions(prune=True, prune_many=True), **WHAT)
    assert (pruned.num_pruned, pruned.num_done, pruned.num_up_to_date) == (1, 0, NUM_GOOD)
    cc.build(index, tmp_path / "whole", jobs=1, **WHAT)
    is_whole(cache, tmp_path / "whole")


def test_latents_of_two_parts_of_which_one_loses_its_network(work: Path, tmp_path: Path, run_cli: Cli) -> None:
    """Each part has a process of the network of its own."""
    latents = {"model": str(make_vae("AutoencoderKLWan", tmp_path / "vae")), "clip_frames": 5, "dtype": "float32"}
    (tmp_path / "latents.yaml").write_text(yaml.dump({"features": {"latents": latents}}))
    build = ["build", str(work / "index.json"), "-c", str(tmp_path / "latents.yaml")]
    build += ["--tier", "lmdb", "--tier", "npz", "--features", "frames,latents", "-j1", "-q", "-o"]
    assert run_cli(*build, tmp_path / "whole").returncode == 3
    cache = tmp_path / "cache"
    with contextlib.ExitStack() as stack:
        parts = [
            stack.enter_context(processes.running(tmp_path, *build, str(cache), "--part", f"{number}/2"))
            for number in (1, 2)
        ]

        def networks() -> list[int]:
            return [
                pid for pid in processes.alive_with(parts[0].mark) if "inference.server" in processes.command_of(pid)
            ]

        assert processes.wait_until(networks, 60)
        os.kill(networks()[0], signal.SIGKILL)
        assert {part.wait(200) for part in parts} == {0, 3}
        assert not [name for part in parts for name in part.survivors()]
    assert finish(cache).missing == ()
    assert not cc.verify(cache, level="deep", jobs=1).damage
    assert processes.quarantine(cache).keys() == {"broken.mp4"}
    arrays, expected = cache_contents.arrays(cache), cache_contents.arrays(tmp_path / "whole")
    assert arrays.keys() == expected.keys()
    for key, values in expected.items():
        if key[2] == "latents":
            assert np.abs(arrays[key] - values).max() <= 1e-5
        elif not key[2].startswith("latents"):  # digests of its rows
            assert np.array_equal(arrays[key], values), key
