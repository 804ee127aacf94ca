"""A copy of a cache by hard links (``cp -al``) that is then written to: the first cache keeps its content."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.inline import HERE

import chordcache as cc
from chordcache.storage.run_log import read_runs


def contents(cache: Path) -> dict[str, bytes]:
    """Return the content of every file but the lock."""
    files = (path for path in cache.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(cache)): path.read_bytes() for path in files}


@pytest.fixture
def copied(tmp_path: Path, make_video: Callable[..., Path]) -> Path:
    """A folder with videos, index.json, cache and copy. A file is in quarantine."""
    make_video(tmp_path / "videos/a.mp4", num_frames=12)
    (tmp_path / "videos/bad.mp4").write_bytes(bytes(5000))
    cc.scan([tmp_path / "videos"], output=tmp_path / "index.json", jobs=HERE)
    cc.build(tmp_path / "index.json", tmp_path / "cache", jobs=HERE)
    subprocess.run(["cp", "-al", tmp_path / "cache", tmp_path / "copy"], check=True)
    return tmp_path


def test_a_build_into_the_copy(copied: Path, make_video: Callable[..., Path]) -> None:
    before = contents(copied / "cache")
    make_video(copied / "videos/b.mp4", num_frames=16)
    (copied / "videos/worse.mp4").write_bytes(bytes(6000))
    cc.scan([copied / "videos"], output=copied / "index.json", jobs=HERE)
    summary = cc.build(
        copied / "index.json", copied / "copy", jobs=HERE, options=cc.BuildOptions(retry_quarantined=True)
    )
    assert (summary.num_done, summary.num_failed) == (1, 2)
    assert contents(copied / "cache") == before
    assert len(cc.open_cache(copied / "copy")) == 2
    assert cc.verify(copied / "copy", jobs=HERE).damage == []
    assert [name for name in os.listdir(copied / "copy") if name.endswith(".partial")] == [".partial"]


def test_other_commands_on_the_copy(copied: Path) -> None:
    before = contents(copied / "cache")
    report = cc.verify(copied / "copy", jobs=HERE)
    cc.repair(copied / "copy", report.damage, jobs=HERE)
    cc.collect_garbage(copied / "copy")
    assert contents(copied / "cache") == before
    assert cc.verify(copied / "copy", level="deep", jobs=HERE).damage == []


def test_a_link_in_the_place_of_the_copy_of_a_log_is_not_written_to(copied: Path) -> None:
    """A stranger can name it, since numbers of processes are small in a container."""
    private = copied / "private"
    private.write_text("private")
    (copied / f"copy/.runs.jsonl-{os.getpid()}.partial").symlink_to(private)
    cc.verify(copied / "copy", jobs=HERE)
    assert private.read_text() == "private"
    assert len(list(read_runs(copied / "copy"))) == len(list(read_runs(copied / "cache"))) + 1


def test_a_lock_that_is_also_another_file_keeps_its_content(copied: Path) -> None:
    private = copied / "private"
    private.write_text("private")
    (copied / "copy/.lock").unlink()
    (copied / "copy/.lock").hardlink_to(private)
    cc.collect_garbage(copied / "copy")
    cc.build(copied / "index.json", copied / "copy", jobs=HERE)
    assert private.read_text() == "private"
