"""Links inside of a cache that another person made: no command writes, removes or takes a file behind one."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.inline import HERE

import chordcache as cc

Cli = Callable[..., subprocess.CompletedProcess[str]]

PRIVATE = b"a line\nand one without an end"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path]) -> Path:
    """A folder with videos, their index and their cache."""
    work = tmp_path_factory.mktemp("links")
    for name in ("a", "b"):
        make_video(work / f"videos/{name}.mp4", num_frames=4)
    cc.scan([work / "videos"], output=work / "index.json", jobs=HERE)
    cc.build(work / "index.json", work / "cache", tiers=["lmdb"], features=["frames"], jobs=HERE)
    return work


@pytest.fixture
def received(built: Path, tmp_path: Path) -> Path:
    """A copy of the folder, and a private file outside of its cache."""
    shutil.copytree(built, tmp_path / "work")
    (tmp_path / "private").write_bytes(PRIVATE)
    return tmp_path / "work"


def put_link(place: Path, target: Path) -> None:
    place.unlink(missing_ok=True)
    place.symlink_to(target)


@pytest.mark.parametrize("command", [["verify"], ["verify", "--repair"], ["gc"], ["build", "index.json", "-o"]])
@pytest.mark.parametrize("name", ["runs.jsonl", ".lock", "quarantine.jsonl"])
def test_a_list_or_a_lock_that_is_a_link_leaves_its_target_alone(
    received: Path, run_cli: Cli, name: str, command: list[str]
) -> None:
    private = received.parent / "private"
    put_link(received / "cache" / name, private)
    (received / "videos/a.mp4").write_bytes(b"not a video any more")  # a build appends it to the quarantine
    done = run_cli(*command, "cache", cwd=received)
    assert private.read_bytes() == PRIVATE
    if name == ".lock" and command[0] != "verify":  # a sound cache is not locked for verify
        assert done.returncode == 2
        assert "got a link, expected a file" in done.stderr


def test_gc_removes_no_files_of_another_cache(received: Path, make_video: Callable[..., Path], run_cli: Cli) -> None:
    other = received.parent / "other"
    make_video(received.parent / "more/c.mp4", num_frames=4)
    cc.build(cc.scan([received.parent / "more"], jobs=HERE), other, tiers=["lmdb"], features=["frames"], jobs=HERE)
    shutil.rmtree(received / "cache/lmdb")
    (received / "cache/lmdb").symlink_to(other / "lmdb")
    for command in (["gc", "--yes"], ["verify"], ["verify", "--repair"]):
        done = run_cli(*command, "cache", cwd=received)
        assert done.returncode != 0
        assert "cache/lmdb': got a link, expected a folder of the cache" in done.stderr
    assert cc.verify(other, jobs=HERE).damage == []


def test_merge_takes_no_file_behind_a_link(received: Path, make_video: Callable[..., Path], run_cli: Cli) -> None:
    artefact = next((received / "cache").glob("lmdb/*/a-*"))
    num_bytes = artefact.stat().st_size
    private = received.parent / "private"
    private.write_bytes(b"x" * num_bytes)
    put_link(artefact, private)
    make_video(received.parent / "more/c.mp4", num_frames=4)
    index = cc.scan([received.parent / "more"], jobs=HERE)
    cc.build(index, received / "second", tiers=["lmdb"], features=["frames"], jobs=HERE)
    done = run_cli("merge", "cache", "second", "-o", "joined", cwd=received)
    assert done.returncode == 5
    assert "its digest is another one than that in the sidecar" in done.stderr
    assert private.stat().st_nlink == 1
