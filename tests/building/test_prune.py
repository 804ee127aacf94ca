"""``build --prune``: videos whose sources were removed leave the cache, and nothing else does."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers import processes
from helpers.inline import HERE

import chordcache as cc
from chordcache.errors import StoppedError, UsageError
from chordcache.storage import opener

pytestmark = pytest.mark.usefixtures("inline")

Cli = Callable[..., Any]
Maker = Callable[..., Path]

NUM_VIDEOS = 12


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, make_video: Maker) -> Path:
    """Twelve videos and one file that is not a video, an index, and a cache of two tiers."""
    folder = tmp_path_factory.mktemp("prune")
    for number in range(NUM_VIDEOS):
        make_video(folder / f"videos/{number:02d}.mp4", num_frames=3 + number, size=(32, 32))
    (folder / "videos/broken.mp4").write_bytes(b"junk")
    cc.scan([folder / "videos"], output=folder / "index.json", jobs=HERE)
    cc.build(folder / "index.json", folder / "cache", tiers=["lmdb", "npz"], features=["frames", "motion"], jobs=HERE)
    return folder


@pytest.fixture
def work(built: Path, tmp_path: Path) -> Path:
    """A copy of it, whose root is where the copy is."""
    folder = tmp_path / "work"
    shutil.copytree(built, folder)
    index = cc.scan([folder / "videos"], output=folder / "index.json", jobs=HERE)
    roots = {"videos": str(folder / "videos")}
    summary = cc.build(index, folder / "cache", features=["frames"], jobs=HERE, roots=roots)
    assert summary.num_up_to_date == NUM_VIDEOS
    return folder


def scan_and_build(work: Path, run_cli: Cli, *options: str) -> Any:
    assert run_cli("scan", "videos", "-j1", cwd=work).returncode in (0, 3)
    return run_cli("build", "--tier", "lmdb", "-j1", *options, cwd=work)


def paths_of(cache: Path) -> set[str]:
    return {video.path for video in cc.open_cache(cache)}


def test_a_removed_source_stays_until_it_is_pruned(work: Path, run_cli: Cli) -> None:
    cache = work / "cache"
    before = processes.files_of(cache)
    (work / "videos/03.mp4").unlink()
    (work / "videos/broken.mp4").unlink()
    assert scan_and_build(work, run_cli).returncode == 0
    assert len(paths_of(cache)) == NUM_VIDEOS  # readers keep it
    findings = json.loads(run_cli("verify", "--json", cwd=work).stdout)["damage"]
    assert [(finding["kind"], finding["key"].startswith("03-")) for finding in findings] == [("orphan", True)]
    assert run_cli("verify", cwd=work).returncode == 6
    planned = run_cli("build", "--prune", "10%", "--dry-run", cwd=work).stdout
    assert "1 video                    leave the cache, as --prune asks\n" in planned
    assert len(paths_of(cache)) == NUM_VIDEOS
    fixed = run_cli(*findings[0]["fix_command"].split()[1:], "-j1", cwd=work)
    assert (fixed.returncode, ", pruned 1" in fixed.stdout) == (0, True), fixed.stderr
    assert paths_of(cache) == {f"{number:02d}.mp4" for number in range(NUM_VIDEOS) if number != 3}
    assert run_cli("verify", "--deep", cwd=work).returncode == 0
    assert processes.quarantine(cache) == {}
    after = processes.files_of(cache)
    assert {name: after.get(name) for name in before if "/03-" not in name and name in after} == after
    assert not [name for name in after if "/03-" in name]


def test_more_than_the_limit_is_refused(work: Path, run_cli: Cli) -> None:
    for name in ("03.mp4", "04.mp4"):
        (work / "videos" / name).unlink()
    before = processes.contents(work / "cache")
    done = scan_and_build(work, run_cli, "--prune", "10%")
    assert done.returncode == 2
    assert "--prune: got an index without 2 of the 12 cached videos, expected at most 10%." in done.stderr
    assert processes.contents(work / "cache") == before
    with pytest.raises(UsageError, match="prune: got an index without 2 of"):
        cc.build(work / "index.json", work / "cache", options=cc.BuildOptions(prune="10%"))
    with pytest.raises(UsageError, match="prune: got an index without 2 of"):
        cc.dry_run(work / "index.json", work / "cache", options=cc.BuildOptions(prune="10%"))
    assert scan_and_build(work, run_cli, "--prune", "2").returncode == 3  # the broken one is still there
    assert len(paths_of(work / "cache")) == NUM_VIDEOS - 2
    assert run_cli("verify", cwd=work).returncode == 0


def test_a_list_of_some_videos_of_a_root_removes_none(work: Path, run_cli: Cli) -> None:
    """Two lists of one folder, and a scan of one file, are parts of a cache. They do not say what is gone."""
    (work / "some.csv").write_text("path\nvideos/01.mp4\n")
    cc.scan([work / "videos/02.mp4"], output=work / "one.json", jobs=HERE)
    before = paths_of(work / "cache")
    for index in ("some.csv", "one.json"):
        assert cc.build(work / index, work / "cache", features=["frames"], jobs=HERE).num_up_to_date == 1
    assert paths_of(work / "cache") == before
    assert [finding for finding in cc.verify(work / "cache", jobs=HERE).damage if finding.kind == "orphan"] == []


def test_a_list_of_the_folder_above_names_the_cached_files(work: Path, make_video: Maker) -> None:
    """A file has one name in a cache, also where a list of another root names it, with files that are new."""
    make_video(work / "elsewhere/new.mp4", num_frames=3)
    (work / "list.csv").write_text("path,label\nvideos/01.mp4,cat\nelsewhere/new.mp4,dog\n")
    summary = cc.build(work / "list.csv", work / "cache", features=["frames"], jobs=HERE)
    assert (summary.num_done, summary.num_up_to_date) == (1, 1)
    with cc.open_cache(work / "cache") as cache:
        places = {video.path: (video.sidecar.root, video.label) for video in cache}
    assert places["01.mp4"] == ("videos", "cat")
    assert places["elsewhere/new.mp4"] == (work.name, "dog")
    assert "videos/01.mp4" not in places
    assert {finding.kind for finding in cc.verify(work / "cache", jobs=HERE).damage} == {
        "incomplete"
    }  # the new one's motion
    assert cc.build(work / "list.csv", work / "cache", features=["frames"], jobs=HERE).num_up_to_date == 2


def test_a_build_that_is_stopped_prunes_nothing(work: Path, make_video: Maker) -> None:
    (work / "videos/03.mp4").unlink()
    (work / "videos/new.mp4").write_bytes(b"junk")
    index = cc.scan([work / "videos"], output=work / "index.json", jobs=HERE)
    options = cc.BuildOptions(prune="10%", max_failures=0)
    with pytest.raises(StoppedError):
        cc.build(index, work / "cache", features=["frames"], jobs=HERE, options=options)
    assert "03.mp4" in paths_of(work / "cache")
    summary = cc.build(index, work / "cache", features=["frames"], jobs=HERE, options=cc.BuildOptions(prune="10%"))
    assert summary.num_pruned == 1
    assert "03.mp4" not in paths_of(work / "cache")


def test_a_kill_while_pruning_leaves_what_gc_removes(work: Path, run_cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the sidecar and its files."""
    (work / "videos/03.mp4").unlink()
    index = cc.scan([work / "videos"], output=work / "index.json", jobs=HERE)

    def killed(cache: Path, file: str, remove: Callable[..., None] = opener.remove) -> None:
        if "/03-" in file and not file.endswith(".json"):
            raise KeyboardInterrupt
        remove(cache, file)

    pid = os.fork()
    if not pid:
        monkeypatch.setattr(opener, "remove", killed)
        try:
            cc.build(index, work / "cache", features=["frames"], jobs=HERE, options=cc.BuildOptions(prune="10%"))
        finally:
            os.kill(os.getpid(), 9)
    os.waitpid(pid, 0)
    assert not list((work / "cache/videos").rglob("03-*"))
    assert list((work / "cache").rglob("03-*"))
    again = run_cli("build", "--features", "frames", "--prune", "10%", "-j1", cwd=work)
    assert again.returncode == 3, again.stderr
    assert run_cli("gc", cwd=work).returncode == 0
    assert not list((work / "cache").rglob("03-*"))
    assert run_cli("verify", cwd=work).returncode == 0
