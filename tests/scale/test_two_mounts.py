"""Two builds of one cache at once, on a disk whose locks do not reach the other machine: the content is sound."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import chordcache as cc

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def two_machines(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """One folder behind two mounts, whose locks do not know each other."""
    (tmp_path / "disk").mkdir()
    mounts = tmp_path / "one", tmp_path / "two"
    with contextlib.ExitStack() as stack:
        for mount in mounts:
            mount.mkdir()
            subprocess.run(["bindfs", tmp_path / "disk", mount], check=True)
            stack.callback(subprocess.run, ["fusermount", "-u", "-z", mount], check=True)
        yield mounts


def race(mounts: tuple[Path, Path], index: Path) -> dict[int, str]:
    """Start a build on each mount at once. Return what each exit code was said with."""
    commands = [[sys.executable, "-m", "chordcache", "build", index, "-o", mount / "cache", "-j1"] for mount in mounts]
    builds = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for command in commands
    ]
    messages = [build.communicate()[1] for build in builds]
    return {build.returncode: message for build, message in zip(builds, messages, strict=True)}


@pytest.mark.trials(20)
def test_two_machines_without_a_common_lock_leave_what_a_build_completes(
    trial: int, tmp_path: Path, two_machines: tuple[Path, Path], make_video: Callable[..., Path]
) -> None:
    for number in range(4):
        make_video(tmp_path / f"videos/{number}.mp4", num_frames=25, size=(320, 240))
    cc.scan([tmp_path / "videos"], output=tmp_path / "index.json", jobs=1)
    messages = race(two_machines, tmp_path / "index.json")
    assert set(messages) <= {0, 11, 12}, "\n".join(messages.values())
    cc.build(tmp_path / "index.json", tmp_path / "disk/cache", jobs=1)
    assert not cc.verify(tmp_path / "disk/cache", level="deep").damage
    assert len(cc.open_cache(tmp_path / "disk/cache")) == 4
