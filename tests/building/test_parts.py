"""Parts of a cache: several runs build caches of their own side by side, and ``finish`` makes one cache of them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import processes, small_disks
from helpers.parts import NUM_GOOD, WHAT, build_part, is_whole, make_work, part_command

import chordcache as cc
from chordcache.building import join_parts as finish_module
from chordcache.building.join_parts import finish
from chordcache.building.pack import pack
from chordcache.building.parts import balanced, estimated
from chordcache.config.config import config_from_json
from chordcache.errors import LockedError, UsageError
from chordcache.index.index_files import read_index
from chordcache.storage import layout
from chordcache.storage.find_sidecars import iter_keys
from chordcache.storage.lock import locked
from chordcache.storage.part_folders import plan_folders
from chordcache.storage.run_log import read_runs

pytestmark = [pytest.mark.usefixtures("inline"), pytest.mark.timeout(300)]

Cli = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path]) -> Path:
    return make_work(tmp_path_factory.mktemp("parts"), make_video)


def on_machine(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr("chordcache.building.parts.machine", lambda: name)


def test_parts_make_the_cache_of_a_whole_build(work: Path, tmp_path: Path, run_cli: Cli) -> None:
    cache = tmp_path / "cache"
    summaries = [build_part(work, cache, f"{number}/3") for number in (2, 3)]
    for command in ("info", "ls", "verify"):
        result = run_cli(command, cache)
        assert (result.returncode, result.stdout) == (10, "")
        assert result.stderr.endswith(f"no cache at '{cache}' but parts of one; run 'chordcache finish {cache}'\n")
    missing = {"num_parts": 3, "missing": [1], "summary": None}
    done = run_cli("finish", cache, "--json")
    assert (done.returncode, json.loads(done.stdout).items() >= missing.items()) == (6, True)
    assert "1 of 3 parts not complete: --array=1; " in run_cli("finish", cache).stdout
    summaries.append(build_part(work, cache, "1/3"))
    assert sum(summary.num_inputs for summary in summaries) == NUM_GOOD + 1
    assert min(summary.num_done for summary in summaries) >= 2
    report = finish(cache)
    assert (report.num_parts, report.missing) == (3, ())
    assert report.summary is not None
    assert (report.summary.num_done, report.summary.num_failed) == (NUM_GOOD, 1)
    is_whole(cache, work / "whole")
    assert [run.command for run in read_runs(cache)] == ["scan", "build", "build", "build", "finish", "verify"]
    again = cc.build(work / "index.json", cache, jobs=1, **WHAT)
    assert (again.num_done, again.num_up_to_date) == (0, NUM_GOOD)
    build_part(work, cache, "1/1")
    again = finish(cache).summary
    assert again is not None
    assert (again.num_done, again.num_up_to_date, again.num_failed) == (0, NUM_GOOD, 1)
    done = run_cli("finish", cache)
    assert (done.returncode, done.stdout) == (0, f"nothing to finish: cache '{cache}' has no parts\n")


@pytest.mark.parametrize("names", [(), ("0123456789abcdef",)])
def test_a_part_begins_beside_one_that_has_made_only_its_folder(
    work: Path, tmp_path: Path, names: tuple[str, ...]
) -> None:
    (tmp_path / "cache/parts").mkdir(parents=True)
    for name in names:
        (tmp_path / "cache/parts" / name).mkdir()
    build_part(work, tmp_path / "cache", "1/1")
    finish(tmp_path / "cache")
    is_whole(tmp_path / "cache", work / "whole")


def test_parts_of_a_cache_that_exists(work: Path, tmp_path: Path) -> None:
    """Videos, failures and other features of the cache are taken over, and nothing of them is lost."""
    for name in ("whole", "cache"):
        cc.build(work / "index.json", tmp_path / name, jobs=1, tiers=["lmdb"], features=["frames"])
    before = {path: path.stat().st_ino for path in (tmp_path / "cache/lmdb").rglob("*.lmdb")}
    cc.build(work / "index.json", tmp_path / "whole", jobs=1, tiers=["npz"], features=["flow"])
    for number in (1, 2):
        build_part(work, tmp_path / "cache", f"{number}/2", tiers=["npz"], features=["flow"])
    finish(tmp_path / "cache")
    is_whole(tmp_path / "cache", tmp_path / "whole")
    assert {path: path.stat().st_ino for path in (tmp_path / "cache/lmdb").rglob("*.lmdb")} == before


@pytest.mark.parametrize("packs", [False, True])
def test_videos_that_the_settings_refuse_now_leave(work: Path, tmp_path: Path, packs: bool) -> None:
    (tmp_path / "videos").mkdir()
    for number in (3, 5, 7):
        shutil.copy(work / f"videos/{number:02}.mp4", tmp_path / "videos")
    index, cache = cc.scan([tmp_path / "videos"], output=tmp_path / "index.json", jobs=1), tmp_path / "cache"
    assert cc.build(index, cache, jobs=1).num_done == 3
    if packs:
        pack(cache)
    settings = {"buckets": [[48, 64, 17]]}
    for number in (1, 2):
        options = cc.BuildOptions(part=f"{number}/2")
        cc.build(index, cache, jobs=1, config=config_from_json({"frames": settings}), options=options)
    finish(cache)
    cc.build(index, tmp_path / "whole", jobs=1, config=config_from_json({"frames": settings}))
    cached = [[video.key for video in cc.open_cache(folder)] for folder in (cache, tmp_path / "whole")]
    assert cached[0] == cached[1]
    assert processes.quarantine(cache).keys() == processes.quarantine(tmp_path / "whole").keys()
    assert {finding.kind for finding in cc.verify(cache, jobs=1).damage} <= {"orphan"}


def test_a_failure_that_was_repaired_goes(work: Path, tmp_path: Path) -> None:
    shutil.copytree(work / "videos", tmp_path / "videos")
    (tmp_path / "videos/repaired.mp4").write_text("no video")
    cc.scan([tmp_path / "videos"], output=tmp_path / "index.json", jobs=1)
    cache = tmp_path / "cache"
    cc.build(tmp_path / "index.json", cache, jobs=1)
    before = processes.quarantine(cache)
    assert before.keys() == {"broken.mp4", "repaired.mp4"}
    shutil.copy(work / "videos/03.mp4", tmp_path / "videos/repaired.mp4")
    cc.scan([tmp_path / "videos"], output=tmp_path / "index.json", jobs=1)
    for number in (1, 2):
        cc.build(tmp_path / "index.json", cache, jobs=1, options=cc.BuildOptions(part=f"{number}/2"))
    assert processes.quarantine(cache) == before  # the lists are joined at the end
    finish(cache)
    assert processes.quarantine(cache) == {"broken.mp4": before["broken.mp4"]}


def test_a_part_that_was_killed_goes_on_on_another_machine(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    with subprocess.Popen(part_command(work, cache, "1/1")) as run:
        assert processes.wait_until(lambda: len([*cache.glob("parts/*/1-of-1.*/videos/*/*.json")]) >= 2, 60)
        run.kill()
    assert finish(cache).missing == (1,)
    on_machine(monkeypatch, "00000002")
    summary = build_part(work, cache, "1/1")
    assert summary.num_up_to_date >= 2
    assert summary.num_done + summary.num_up_to_date == NUM_GOOD
    joined = finish(cache).summary
    assert joined is not None
    assert (joined.num_done, joined.num_up_to_date) == (NUM_GOOD, 0)  # as one build, which was not killed
    is_whole(cache, work / "whole")


def test_a_failure_of_one_machine_only_is_none(work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, index = tmp_path / "cache", tmp_path / "index.json"
    shutil.copytree(work / "videos", tmp_path / "videos")
    cc.scan([tmp_path / "videos"], output=index, jobs=1)
    shutil.move(tmp_path / "videos/03.mp4", tmp_path / "03.mp4")
    assert build_part(work, cache, "1/1", index=index).num_failed == 2
    shutil.move(tmp_path / "03.mp4", tmp_path / "videos/03.mp4")
    on_machine(monkeypatch, "00000002")
    assert build_part(work, cache, "1/1", index=index).num_done == 1
    finish(cache)
    cc.build(index, tmp_path / "whole", jobs=1, **WHAT)
    is_whole(cache, tmp_path / "whole")


KILLED = """
import os, shutil, sys
from chordcache.building.join_parts import finish
name, left = sys.argv[2], int(sys.argv[3])
module = {"replace": os, "rmtree": shutil}[name]
real = getattr(module, name)
def call(*args, **options):
    global left
    left -= "plan" not in str(args) if name == "replace" else 1
    if left < 0:
        os._exit(9)
    return real(*args, **options)
setattr(module, name, call)
finish(sys.argv[1])
"""


def test_finish_may_be_killed_anywhere(work: Path, tmp_path: Path) -> None:
    first = tmp_path / "first"
    for number in (1, 2):
        build_part(work, first, f"{number}/2")
    points = [("replace", number) for number in (0, 1, 2, 9, 2 * NUM_GOOD, 3 * NUM_GOOD, 3 * NUM_GOOD + 3)]
    num_killed = 0
    for name, number in (*points, ("rmtree", 0), ("rmtree", 1)):
        cache = tmp_path / f"{name}{number}"
        shutil.copytree(first, cache)
        num_killed += subprocess.run([sys.executable, "-c", KILLED, cache, name, str(number)]).returncode == 9
        finish(cache)
        is_whole(cache, work / "whole")
    assert num_killed >= 8


@pytest.mark.parametrize(
    ("part", "options", "message"),
    [
        ("1/3", {}, "part: got I/3, expected I/2, since cache .* is built in 2 parts. Use the same"),
        ("2/2", {"index": "other.json"}, "index: got [0-9a-f]{32}, expected [0-9a-f]{32}, since cache"),
        ("2/2", {"features": ["frames"], "tiers": ["lmdb"]}, "features in tier npz: got none, expected flow"),
        ("2/2", {"config": "other.yaml"}, "frames.quality: got 40, expected 90"),
    ],
)
def test_a_part_of_another_build(work: Path, tmp_path: Path, part: str, options: dict[str, Any], message: str) -> None:
    (tmp_path / "other.yaml").write_text("frames: {quality: 40}")
    cc.scan([work / "videos/01.mp4"], output=tmp_path / "other.json", jobs=1)
    cache = tmp_path / "cache"
    build_part(work, cache, "1/2")
    before = processes.files_of(cache)
    given = {name: tmp_path / value if isinstance(value, str) else value for name, value in options.items()}
    with pytest.raises(UsageError, match=message):
        build_part(work, cache, part, **given)
    assert processes.files_of(cache) == before


def test_parts_of_two_plans(work: Path, tmp_path: Path) -> None:
    """Two that began at the same moment, each before the other was there."""
    cache, other = tmp_path / "cache", tmp_path / "other"
    build_part(work, cache, "1/1")
    build_part(work, other, "1/1", tiers=["lmdb"], features=["frames"])
    shutil.copytree(*(plan_folders(folder)[0] for folder in (other,)), cache / "parts" / plan_folders(other)[0].name)
    with pytest.raises(UsageError, match="cache: got parts of 2 plans, '.*', '.*', expected one. Remove the others."):
        finish(cache)
    shutil.rmtree(cache / "parts" / plan_folders(other)[0].name)
    finish(cache)
    is_whole(cache, work / "whole")


def test_a_part_with_other_programs(work: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    build_part(work, cache, "1/2")
    distribution = tmp_path / "other/av-1.0.dist-info"
    distribution.mkdir(parents=True)
    (distribution / "METADATA").write_text("Metadata-Version: 2.1\nName: av\nVersion: 1.0\n")
    paths = os.pathsep.join([str(tmp_path / "other"), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        part_command(work, cache, "2/2"), capture_output=True, text=True, env={**os.environ, "PYTHONPATH": paths}
    )
    assert done.returncode == 2
    assert "av: got 1.0, expected " in done.stderr


@pytest.mark.parametrize("part", ["0/2", "3/2", "2", "a/b", "1/0", "-1/2", "1/2/3", "", "1/100001"])
def test_a_part_that_does_not_exist(part: str) -> None:
    with pytest.raises(UsageError, match=r"^part: got .*, expected "):
        cc.BuildOptions(part=part)


@pytest.mark.parametrize("options", [{"prune": True}, {"drop": ("flow",)}])
def test_a_part_removes_nothing(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"^(prune|drop): got it with a part"):
        cc.BuildOptions(part="1/2", **options)


def test_a_cache_in_parts_is_closed_to_other_writers(work: Path, tmp_path: Path, run_cli: Cli) -> None:
    cache = tmp_path / "cache"
    cc.build(work / "index.json", cache, jobs=1, **WHAT)
    with locked(cache), pytest.raises(LockedError, match="is being written by process"):
        build_part(work, cache, "1/2")
    build_part(work, cache, "1/2")
    with locked(next(cache.glob("parts/*/1-of-2.*[!g!l]"))), pytest.raises(LockedError, match="is being written by"):
        build_part(work, cache, "1/2")
    for command in (["build", work / "index.json", "-o", cache], ["gc", cache], ["verify", cache, "--repair"]):
        done = run_cli(*command)
        if command[0] != "verify":  # finds no damage, so it writes nothing
            assert done.returncode == 11, done.stderr
            assert f"cache '{cache}' is built in parts; run 'chordcache finish {cache}' when they have" in done.stderr
    shutil.rmtree(cache / "parts")  # as the message says
    assert cc.build(work / "index.json", cache, jobs=1, **WHAT).num_up_to_date == NUM_GOOD


def test_what_a_part_publishes_during_finish_and_after_it(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part that was taken for dead goes on in a folder that is being moved."""
    cache = tmp_path / "cache"
    build_part(work, cache, "1/1")
    folder = next(cache.glob("parts/*/1-of-1.*[!l]"))
    key = next(key for key in iter_keys(folder) if key.startswith("03-"))
    late = {path: path.read_bytes() for path in folder.rglob(f"{key}.*") if path.is_file()}
    real = finish_module._move

    def move(cache: Path, source: Path, kinds: Any, keys: Any) -> None:
        if kinds != ["videos"]:
            for path in late:  # it is published after the sidecars were listed, and the artefacts were moved
                path.unlink()
        real(cache, source, kinds, keys)
        if kinds != ["videos"]:
            for path, data in late.items():
                path.write_bytes(data)

    with monkeypatch.context() as patch:
        patch.setattr(finish_module, "_move", move)
        patch.setattr(finish_module, "iter_keys", lambda cache: iter(set(iter_keys(cache)) - {key}))
        with pytest.raises(cc.DamageError, match=f"has no sidecars of 1 video .* such as '{key}'"):
            finish(cache)  # says that it is not there, and moves no sidecar without its artefacts
    assert not (cache / layout.sidecar_file(key)).exists()
    finish(cache)
    is_whole(cache, work / "whole")
    (folder / "videos/ab").mkdir(parents=True)
    (folder / "videos/ab/late.json").write_text("{}")
    assert cc.build(work / "index.json", cache, jobs=1, **WHAT).num_up_to_date == NUM_GOOD
    assert finish(cache).num_parts == 0
    is_whole(cache, work / "whole")


@pytest.mark.usefixtures("workers")
def test_a_part_ends_when_its_plan_is_removed(work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "cache"
    build_part(work, cache, "1/2")

    def removed(cache: Path) -> None:
        shutil.rmtree(cache.parent.parent)

    monkeypatch.setattr("chordcache.building.build.stale_features", lambda *_: ())
    monkeypatch.setattr("chordcache.storage.atomic.check_space", removed)
    with pytest.raises(cc.CacheWriteError, match="does not exist any more: 'chordcache finish' has joined the parts"):
        build_part(work, cache, "2/2")


def test_a_disk_that_fills_in_the_middle_of_a_part(work: Path, tmp_path: Path) -> None:
    if not small_disks.can_mount(small_disks.tmpfs):
        pytest.skip("no right to mount a tmpfs")
    with small_disks.tmpfs(tmp_path / "disk", "4m") as disk:
        (disk / "c.yaml").write_text("frames: {codec: raw}")
        cc.build(work / "index.json", tmp_path / "whole", jobs=1, config=disk / "c.yaml", **WHAT)
        size = sum(path.stat().st_size for path in (tmp_path / "whole").rglob("*") if path.is_file())
        (disk / "ballast").write_bytes(bytes(max(0, (4 << 20) - (1 << 20) - size // 2)))
        with pytest.raises(cc.NoSpaceError, match="make room and run the same command"):
            for number in (1, 2):
                build_part(work, disk / "cache", f"{number}/2", config=disk / "c.yaml")
        assert finish(disk / "cache").missing
        (disk / "ballast").unlink()
        for number in (1, 2):
            build_part(work, disk / "cache", f"{number}/2", config=disk / "c.yaml")
        finish(disk / "cache")
        is_whole(disk / "cache", tmp_path / "whole")


def test_segments_of_a_file_are_in_one_part(work: Path, tmp_path: Path) -> None:
    rows = [f"{path},{start},{start + 2}" for start in (0, 4, 8) for path in ("04.mp4", "05.mp4", "06.mp4", "07.mp4")]
    (work / "segments.csv").write_text("\n".join(["path,start_frame,end_frame", *(f"videos/{row}" for row in rows)]))
    cache = tmp_path / "cache"
    for number in (1, 2):
        assert cc.build(work / "segments.csv", cache, jobs=1, options=cc.BuildOptions(part=f"{number}/2")).num_done == 6
    for path in cache.glob("parts/*/*-of-2.*/index.jsonl"):
        assert len({record.path for record in read_index(path)}) == 2
    finish(cache)
    assert len(cc.open_cache(cache)) == 12
    assert not cc.verify(cache, jobs=1).damage


def test_more_parts_than_files(work: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    for number in range(1, 13):
        build_part(work, cache, f"{number}/12")
    finish(cache)
    is_whole(cache, work / "whole")


def test_a_damaged_plan_or_log(work: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    build_part(work, cache, "1/1")
    plan = plan_folders(cache)[0] / "plan.json"
    for path, wanted in ((plan, cc.DamageError), (next(cache.glob("parts/*/1-of-1.*[!l]/runs.jsonl")), None)):
        before = path.read_bytes()
        processes.flip(path, 30)
        if wanted is None:
            assert finish(cache).missing == (1,)
        else:
            with pytest.raises(wanted, match=r"plan.json' is damaged.*; remove '.*parts' to give these parts up"):
                finish(cache)
        path.write_bytes(before)
    finish(cache)
    is_whole(cache, work / "whole")


def test_the_longest_files_are_divided_first() -> None:
    costs = np.random.default_rng(0).lognormal(3, 1.2, 100_000)
    loads = np.bincount(balanced(costs, 16), weights=costs, minlength=16)
    assert loads.max() / loads.mean() < 1.001
    assert np.bincount(balanced(np.ones(5), 8), minlength=8).max() == 1
    assert estimated(np.array([2.0, np.nan, 4.0])).tolist() == [2.0, 3.0, 4.0]
