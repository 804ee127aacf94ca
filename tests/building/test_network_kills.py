"""Builds of latents of which a process is killed: the run, or a worker of each pass. No video is lost or differs."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers import cache_contents, processes
from helpers.networks import make_vae

import chordcache as cc

pytestmark = [pytest.mark.usefixtures("inline"), pytest.mark.slow]

NUM_VIDEOS = 8

Cli = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path], run_cli: Cli) -> Path:
    """Videos, their index, a VAE of clips, and the cache of a build that nothing disturbed."""
    work = tmp_path_factory.mktemp("kills")
    for number in range(NUM_VIDEOS):
        make_video(work / f"videos/{number:02}.mp4", num_frames=20 + number, size=(96, 64))
    cc.scan([work / "videos"], output=work / "index.json", jobs=2)
    latents = {"model": str(make_vae("AutoencoderKLWan", work / "vae")), "clip_frames": 9, "dtype": "float32"}
    (work / "latents.yaml").write_text(yaml.dump({"features": {"latents": latents}}))
    done = run_cli(*command(work / "whole"), cwd=work)
    assert done.returncode == 0, done.stderr
    return work


def command(cache: Path) -> list[str]:
    return [
        *("build", "index.json", "-o", str(cache), "-c", "latents.yaml", "-j2"),
        *("--tier", "lmdb", "--tier", "npz", "--features", "frames,latents"),
    ]


def check(work: Path, cache: Path) -> None:
    """Check that a cache is sound, and as the undisturbed one."""
    assert not processes.quarantine(cache)
    assert not processes.partials(cache)
    assert not cc.verify(cache, level="deep", jobs=1).damage
    arrays, expected = cache_contents.arrays(cache), cache_contents.arrays(work / "whole")
    assert arrays.keys() == expected.keys()
    assert not cache_contents.differing(arrays, expected)


@pytest.mark.parametrize(("victim", "tier"), [("worker", "npz"), ("run", "lmdb")])
def test_a_kill_costs_one_retry(work: Path, tmp_path: Path, victim: str, tier: str) -> None:
    """The first pass makes the tier lmdb, and the pass of the network npz."""
    cache = tmp_path / "cache"
    with processes.running(work, *command(cache)) as run:
        assert processes.wait_until(lambda: any(cache.glob(f"{tier}/*/*")), 120)
        time.sleep(random.uniform(0, 0.1))
        kill(run, victim)
        code = run.wait(120)
        stderr = run.stderr
        assert not run.survivors()
    if victim == "run":
        assert code == -signal.SIGKILL
        with processes.running(work, *command(cache)) as run:
            code, stderr = run.wait(120), run.stderr
    assert code == 0, stderr
    assert processes.fine(stderr)
    check(work, cache)


def kill(run: processes.Run, victim: str) -> None:
    if victim == "run":
        run.process.kill()
        return
    workers = "chordcache.engine.worker"
    pids: list[Any] = [pid for pid in processes.alive_with(run.mark) if workers in processes.command_of(pid)]
    assert pids, "it was over too early"
    with contextlib.suppress(ProcessLookupError):
        os.kill(pids[0], signal.SIGKILL)
