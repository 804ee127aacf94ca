"""``build --part --scratch``: the part is built on another disk, and copied to the cache."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers import processes, small_disks

import chordcache as cc
from chordcache.building.join_parts import finish
from chordcache.records import RunSummary

pytestmark = [pytest.mark.usefixtures("inline"), pytest.mark.timeout(300)]

NUM_GOOD = 5


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path]) -> Path:
    """Videos, a broken file, their index, and the cache of a whole build."""
    work = tmp_path_factory.mktemp("scratch")
    for number in range(NUM_GOOD):
        make_video(work / f"videos/{number}.mp4", num_frames=10)
    (work / "videos/broken.mp4").write_text("no video")
    cc.scan([work / "videos"], output=work / "index.json", jobs=1)
    cc.build(work / "index.json", work / "whole", jobs=1)
    return work


def build_part(work: Path, cache: Path, scratch: Path, part: str = "1/1", **options: object) -> RunSummary:
    scratch.mkdir(exist_ok=True)
    chosen = cc.BuildOptions(part=part, scratch=str(scratch), **options)  # type: ignore[arg-type]
    return cc.build(work / "index.json", cache, jobs=1, options=chosen)


def check_finished(work: Path, cache: Path, scratch: Path) -> None:
    """Check that the cache equals that of a whole build after ``finish``, and that nothing is left in the scratch."""
    finish(cache)
    assert processes.contents(cache) == processes.contents(work / "whole")
    assert processes.quarantine(cache).keys() == {"broken.mp4"}
    assert not cc.verify(cache, level="deep", jobs=1).damage
    assert list(scratch.iterdir()) == []


def test_parts_are_those_of_a_build_without_scratch(work: Path, tmp_path: Path) -> None:
    cache, scratch = tmp_path / "cache", tmp_path / "scratch"
    summaries = [build_part(work, cache, scratch, part) for part in ("1/2", "2/2")]
    assert sum(summary.num_done for summary in summaries) == NUM_GOOD
    assert sum(summary.num_failed for summary in summaries) == 1
    again = build_part(work, cache, scratch, "1/2")
    assert (again.num_done, again.num_up_to_date, again.num_failed) == (
        0, summaries[0].num_done, summaries[0].num_failed,
    )  # fmt: skip
    check_finished(work, cache, scratch)


def test_a_part_that_is_killed_goes_on(work: Path, tmp_path: Path) -> None:
    """The next process builds nothing that the scratch holds."""
    cache, scratch = tmp_path / "cache", tmp_path / "scratch"
    scratch.mkdir()
    command = [sys.executable, "-m", "chordcache", "build", work / "index.json", "-o", cache, "-j1", "-q"]
    with subprocess.Popen([*map(str, command), "--part", "1/1", "--scratch", str(scratch)]) as run:
        assert processes.wait_until(lambda: len([*scratch.glob("*/videos/*/*.json")]) >= 2, 60)
        run.send_signal(signal.SIGKILL)
    inodes = {path.stat().st_ino for path in scratch.glob("*/lmdb/*/*.lmdb")}
    assert not [*cache.glob("parts/*/1-of-1.*/videos/*/*.json")]
    summary = build_part(work, cache, scratch)
    assert summary.num_up_to_date >= 2
    assert summary.num_done + summary.num_up_to_date == NUM_GOOD
    assert len(inodes) >= 2
    check_finished(work, cache, scratch)


def test_another_machine_takes_over_what_was_copied(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy is made during the build, so a machine that is lost takes little with it."""
    cache, scratch = tmp_path / "cache", tmp_path / "scratch"
    scratch.mkdir()
    code = "import sys; from chordcache.building import scratch as s; s._COPY_SECONDS = 0.05\n"
    code += "from chordcache.cli import main; sys.argv[1:] = sys.argv[1:]; main()"
    command = [sys.executable, "-c", code, "build", work / "index.json", "-o", cache, "-j1", "-q"]
    with subprocess.Popen([*map(str, command), "--part", "1/1", "--scratch", str(scratch)]) as run:
        assert processes.wait_until(lambda: len([*cache.glob("parts/*/1-of-1.*/videos/*/*.json")]) >= 1, 60)
        run.send_signal(signal.SIGKILL)
    shutil.rmtree(scratch)
    monkeypatch.setattr("chordcache.building.parts.machine", lambda: "0badcafe")
    summary = build_part(work, cache, scratch)
    assert summary.num_up_to_date >= 1
    check_finished(work, cache, scratch)


@pytest.mark.skipif(not small_disks.can_mount(small_disks.tmpfs), reason="needs root, to mount a small disk")
@pytest.mark.parametrize("full", ["scratch", "cache"])
def test_a_full_disk_is_named(work: Path, tmp_path: Path, full: str) -> None:
    folders = {"scratch": tmp_path / "scratch", "cache": tmp_path / "cache"}
    with small_disks.tmpfs(folders[full], "100k", may_be_open=True):
        with pytest.raises(cc.NoSpaceError, match=str(folders[full])):
            build_part(work, folders["cache"], folders["scratch"])
        small_disks.enlarge(folders[full])
        build_part(work, folders["cache"], folders["scratch"])
        check_finished(work, folders["cache"], folders["scratch"])


def test_a_scratch_that_cannot_be_used(work: Path, tmp_path: Path) -> None:
    for options, message in (
        ({"scratch": str(tmp_path)}, "without a part, expected --part or a cluster"),
        ({"scratch": str(tmp_path / "none"), "part": "1/2"}, "expected a folder that exists"),
    ):
        with pytest.raises(cc.UsageError, match=message):
            cc.build(work / "index.json", tmp_path / "cache", options=cc.BuildOptions(**options))
    assert not os.path.exists(tmp_path / "cache")
