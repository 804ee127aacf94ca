"""Eight parts at once in namespaces of their own, two of which are killed: the cache is that of one machine."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers import processes

import chordcache as cc

pytestmark = [pytest.mark.timeout(400), pytest.mark.slow]

NUM_PARTS = 8

NUM_GOOD = 24

OPTIONS = ("--tier", "lmdb", "--tier", "npz", "--features", "frames,mel", "-j1", "-q", "--stall-timeout", "100")


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path]) -> Path:
    """Videos of different lengths, two broken files, their index, and the cache of one machine."""
    work = tmp_path_factory.mktemp("parts")
    for number in range(NUM_GOOD):
        make_video(work / f"videos/{number:02}.mp4", num_frames=10 + 5 * number)
    for name in ("a", "b"):
        (work / f"videos/broken-{name}.mp4").write_text("no video")
    cc.scan([work / "videos"], output=work / "index.json", jobs=2)
    assert subprocess.run(build_command(work, work / "whole")).returncode == 3
    return work


def build_command(work: Path, cache: Path, *options: str) -> list[str]:
    command = [sys.executable, "-m", "chordcache", "build", work / "index.json", "-o", cache, *OPTIONS, *options]
    return list(map(str, command))


def start_part(work: Path, parts: Path, number: int) -> subprocess.Popen[bytes]:
    """Start a part in network, mount, process and host name namespaces of its own, as on another machine."""
    machine = f'hostname node{number} && exec "$@"'
    prefix = ["unshare", "--net", "--uts", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]
    build = build_command(work, parts / str(number), "--part", f"{number}/{NUM_PARTS}")
    command = [*prefix, "sh", "-c", machine, "sh", *build]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)


def statements(cache: Path) -> dict[str, Any]:
    """Return the statements of the sidecars, without the paths of this test."""
    return {path: {**data, "_artefact": None, "_sidecar": None} for path, data in processes.sidecars(cache).items()}


@pytest.mark.trials(20)
def test_parts_of_which_two_are_killed(trial: int, work: Path, tmp_path: Path) -> None:
    draw = random.Random(trial)
    cache, parts = tmp_path / "cache", tmp_path / "parts"
    runs = {number: start_part(work, parts, number) for number in range(1, NUM_PARTS + 1)}
    victims = draw.sample(range(1, NUM_PARTS + 1), 2)
    for number in victims:
        time.sleep(draw.uniform(0, 3))
        runs[number].send_signal(signal.SIGKILL)
    codes = {number: run.wait(200) for number, run in runs.items()}
    assert {code for number, code in codes.items() if number not in victims} <= {0, 3}
    for number in victims:
        if codes[number] == -signal.SIGKILL:
            assert start_part(work, parts, number).wait(200) in (0, 3)
    assert cc.merge([parts / str(number) for number in range(1, NUM_PARTS + 1)], cache, move=True).num_failed == 2
    assert statements(cache) == statements(work / "whole")
    assert len(statements(cache)) == NUM_GOOD
    assert processes.quarantine(cache).keys() == {"broken-a.mp4", "broken-b.mp4"}
    report = cc.verify(cache, jobs=1)
    assert not report.damage
    assert not processes.partials(cache)
    shutil.rmtree(cache)
