"""Parts of a build: several runs build caches of their own side by side, and ``merge`` joins them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import processes, small_disks
from helpers.parts import NUM_GOOD, WHAT, build_part, build_parts, is_whole, join, make_work, part_command

import chordcache as cc
from chordcache.building.parts import balanced, estimated
from chordcache.errors import LockedError, UsageError
from chordcache.index.index_files import read_index
from chordcache.storage.lock import locked
from chordcache.storage.run_log import read_runs

pytestmark = pytest.mark.usefixtures("inline")

Cli = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path]) -> Path:
    return make_work(tmp_path_factory.mktemp("parts"), make_video)


@pytest.fixture(scope="module")
def two(work: Path) -> Path:
    """Two parts, which a test copies."""
    build_parts(work, work / "two", 2)
    return work / "two"


def test_parts_make_the_cache_of_a_whole_build(work: Path, tmp_path: Path, run_cli: Cli) -> None:
    parts, cache = tmp_path / "parts", tmp_path / "cache"
    summaries = [build_part(work, parts, f"{number}/3") for number in (1, 3)]
    for command in ("info", "ls", "verify"):  # a part is an ordinary cache
        assert run_cli(command, parts / "1").returncode == (6 if command == "verify" and summaries[0].num_failed else 0)
    missing = run_cli("merge", parts / "1", parts / "3", "-o", cache, "--move")
    assert missing.returncode == 2
    assert "CACHE: got 2 of 3 parts, expected all. Build and name those that are missing: 2." in missing.stderr
    assert not cache.exists()
    summaries.append(build_part(work, parts, "2/3"))
    assert sum(summary.num_inputs for summary in summaries) == NUM_GOOD + 1
    assert min(summary.num_done for summary in summaries) >= 2
    done = run_cli("merge", *sorted(parts.iterdir()), "-o", cache, "--move", "--json")
    counts = json.loads(done.stdout)
    assert (counts["num_inputs"], counts["num_done"], counts["num_failed"]) == (NUM_GOOD + 1, NUM_GOOD, 1)
    is_whole(cache, work / "whole")
    assert not [*parts.iterdir()]
    commands = [run.command for run in read_runs(cache)]
    assert [commands.count(name) for name in ("scan", "build", "merge")] == [1, 3, 1]
    again = cc.build(work / "index.json", cache, jobs=1, **WHAT)
    assert (again.num_done, again.num_up_to_date) == (0, NUM_GOOD)


def test_parts_are_merged_without_a_move(work: Path, two: Path, tmp_path: Path) -> None:
    before = processes.contents(two / "1")
    assert cc.merge([two / "1", two / "2"], tmp_path / "cache").num_done == NUM_GOOD
    assert processes.contents(tmp_path / "cache") == processes.contents(work / "whole")
    assert processes.contents(two / "1") == before


def test_a_part_goes_on_and_is_repaired_as_any_cache(work: Path, tmp_path: Path, run_cli: Cli) -> None:
    parts = tmp_path / "parts"
    with pytest.raises(cc.StoppedError):
        build_part(work, parts, "1/1", options={"max_failures": 0})
    summary = build_part(work, parts, "1/1")
    assert summary.num_done + summary.num_up_to_date == NUM_GOOD
    processes.sidecars(parts / "1")["03.mp4"]["_artefact"].unlink()
    assert run_cli("verify", "--repair", parts / "1", "-j1").returncode in (0, 6)
    again = run_cli("build", parts / "1/index.jsonl", "-o", parts / "1", "-j1")  # as findings say
    assert f"up to date {NUM_GOOD}, quarantined 1 of {NUM_GOOD + 1}" in again.stdout
    join(parts, tmp_path / "cache")
    is_whole(tmp_path / "cache", work / "whole")


def kill_at(call: int, parts: list[Path], cache: Path) -> bool:
    """Join in a child that ends before a rename, a link, or a removal. Return whether it came to that call."""
    pid = os.fork()
    if pid:
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert code in (0, 9)
        return code == 9
    left = call

    def killing(function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                os._exit(9)
            return function(*args, **options)

        return counted

    os.replace, os.link, os.unlink, os.rmdir = map(killing, (os.replace, os.link, os.unlink, os.rmdir))
    try:
        cc.merge(parts, cache, move=True)
        os._exit(0)
    finally:
        os._exit(1)


@pytest.mark.slow
def test_a_join_may_be_killed_anywhere(work: Path, two: Path, tmp_path: Path) -> None:
    """The same command completes it."""
    number, is_killed = 0, True
    while is_killed:
        parts, cache = tmp_path / f"parts{number}", tmp_path / f"cache{number}"
        shutil.copytree(two, parts)
        names = [parts / "1", parts / "2"]
        is_killed = kill_at(number, names, cache)
        if is_killed:
            with contextlib.suppress(cc.NotFoundError):
                assert len(cc.open_cache(cache)) == NUM_GOOD, "it is opened before it is complete"
            cc.merge(names, cache, move=True)
        is_whole(cache, work / "whole")
        assert not [*parts.iterdir()]
        runs = [(run.started, run.command) for run in read_runs(cache) if run.command == "build"]
        assert len(runs) == len(set(runs)) == 2
        shutil.rmtree(cache)
        number += 5 if number < 120 else 11
    assert number > 60


def test_a_joined_cache_is_not_joined_with_other_parts(work: Path, two: Path, tmp_path: Path) -> None:
    shutil.copytree(two, tmp_path / "parts")
    join(tmp_path / "parts", tmp_path / "cache")
    shutil.copytree(two / "2", tmp_path / "parts/2")
    assert join(tmp_path / "parts", tmp_path / "cache").num_up_to_date == NUM_GOOD  # all of it is there
    assert not [*(tmp_path / "parts").iterdir()]
    shutil.copytree(work / "videos", tmp_path / "videos")
    cc.scan([tmp_path / "videos"], output=tmp_path / "index.json", jobs=1)
    build_part(work, tmp_path / "parts", "1/1", index=tmp_path / "index.json")
    before = processes.files_of(tmp_path / "cache")
    with pytest.raises(UsageError, match="^output: got '.*', which holds another"):
        join(tmp_path / "parts", tmp_path / "cache")
    assert {**processes.files_of(tmp_path / "cache"), ".lock": 0} == {**before, ".lock": 0}
    assert (tmp_path / "parts/1/chordcache.json").exists()


@pytest.mark.parametrize(
    ("part", "options", "message"),
    [
        ("1/3", {}, "part: got 1/3, expected 1/2, as cache '.*' was built. Use the same, or another folder."),
        ("1/2", {"index": "other.json"}, "index: got [0-9a-f]{32}, expected [0-9a-f]{32}, as cache"),
        ("1/2", {"features": ["frames"], "tiers": ["lmdb"]}, "features in tier npz: got none, expected flow"),
        ("1/2", {"config": "other.yaml"}, "frames.quality: got 40, expected 90"),
    ],
)
def test_a_part_of_another_build(
    work: Path, two: Path, tmp_path: Path, part: str, options: dict[str, Any], message: str
) -> None:
    (tmp_path / "other.yaml").write_text("frames: {quality: 40}")
    cc.scan([work / "videos/01.mp4"], output=tmp_path / "other.json", jobs=1)
    before = processes.files_of(two)
    given = {name: tmp_path / value if isinstance(value, str) else value for name, value in options.items()}
    with pytest.raises(UsageError, match=message):
        build_part(work, two, part, **given)
    assert processes.files_of(two) == before
    number = part.replace("1", "2", 1).replace("2/3", "3/3")  # the same mistake in a new folder: the join names it
    shutil.copytree(two / "1", tmp_path / "parts/1")
    build_part(work, tmp_path / "parts", number, **given)
    shared = message.partition(", as cache")[0].partition(": got ")[0].replace("part", "part: got I/2")
    with pytest.raises(UsageError, match=rf"expected equal settings.*{shared}"):
        join(tmp_path / "parts", tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_a_part_is_built_with_its_number(work: Path, two: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="^part: got none, expected 1/2, as cache"):
        cc.build(work / "index.json", two / "1", jobs=1, **WHAT)
    with pytest.raises(UsageError, match="part: got 1/2, expected none; "):
        cc.build(work / "index.json", work / "whole", jobs=1, options=cc.BuildOptions(part="1/2"), **WHAT)
    with pytest.raises(UsageError, match="^caches: got '.*whole', which is not a part, expected a cache that"):
        cc.merge([work / "whole"], tmp_path / "cache", move=True)
    shutil.copytree(two / "1", tmp_path / "copy")
    with pytest.raises(UsageError, match="^caches: got part 1 in '.*' and in '.*copy', expected one. Leave one out."):
        cc.merge([two / "1", two / "2", tmp_path / "copy"], tmp_path / "cache", move=True)
    shutil.copytree(two, tmp_path / "parts")
    (tmp_path / "parts/2/thesis.tex").write_text("x")
    with pytest.raises(UsageError, match="^caches: got 'thesis.tex' in '.*2', which is not a file of a cache"):
        join(tmp_path / "parts", tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_a_part_with_other_programs(work: Path, two: Path, tmp_path: Path) -> None:
    distribution = tmp_path / "other/av-1.0.dist-info"
    distribution.mkdir(parents=True)
    (distribution / "METADATA").write_text("Metadata-Version: 2.1\nName: av\nVersion: 1.0\n")
    paths = os.pathsep.join([str(tmp_path / "other"), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run(part_command(work, two, "2/2"), capture_output=True, text=True, env=environment)
    assert done.returncode == 2
    assert "av: got 1.0, expected " in done.stderr
    shutil.copytree(two / "1", tmp_path / "parts/1")
    assert subprocess.run(part_command(work, tmp_path / "parts", "2/2"), env=environment).returncode in (0, 3)
    with pytest.raises(UsageError, match=r"av: got .* in '.*1' and 1.0 in '.*2'"):
        join(tmp_path / "parts", tmp_path / "cache")


@pytest.mark.parametrize("part", ["0/2", "3/2", "2", "a/b", "1/0", "-1/2", "1/2/3", "", "1/100001"])
def test_a_part_that_does_not_exist(part: str) -> None:
    with pytest.raises(UsageError, match=r"^part: got .*, expected "):
        cc.BuildOptions(part=part)


@pytest.mark.parametrize("options", [{"prune": "10%"}, {"drop": ("flow",)}])
def test_a_part_removes_nothing(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"^(prune|drop): got it with a part"):
        cc.BuildOptions(part="1/2", **options)


def test_a_part_that_is_being_built(work: Path, two: Path, tmp_path: Path) -> None:
    with locked(two / "1"):
        with pytest.raises(LockedError, match="is being written by process"):
            build_part(work, two, "1/2")
        with pytest.raises(LockedError, match="is being written by process"):
            join(two, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_a_part_that_is_not_complete(work: Path, two: Path, tmp_path: Path) -> None:
    shutil.copytree(two, tmp_path / "parts")
    (sidecar,) = (tmp_path / "parts").rglob("03-*.json")
    sidecar.unlink()
    (sidecar.parents[2] / "catalog.bin").unlink()
    with pytest.raises(UsageError, match="which lacks 1 of . indexed videos, such as '03.mp4', expected complete"):
        join(tmp_path / "parts", tmp_path / "cache")
    build_parts(work, tmp_path / "parts", 2)
    join(tmp_path / "parts", tmp_path / "cache")
    is_whole(tmp_path / "cache", work / "whole")


@pytest.mark.parametrize("damaged", ["chordcache.json", "index.jsonl", "videos"])
def test_a_damaged_part(work: Path, two: Path, tmp_path: Path, damaged: str) -> None:
    shutil.copytree(two, tmp_path / "parts")
    path = tmp_path / "parts/1" / damaged
    processes.flip(next(path.rglob("*.json")) if path.is_dir() else path, 60)
    with pytest.raises(cc.DamageError, match="is damaged"):
        join(tmp_path / "parts", tmp_path / "cache")
    assert (tmp_path / "parts/1/chordcache.json").exists()


@pytest.mark.skipif(not small_disks.can_mount(small_disks.tmpfs), reason="no right to mount a tmpfs")
def test_a_disk_that_fills_in_the_middle_of_a_part_and_of_the_join(work: Path, tmp_path: Path) -> None:
    """The parts lie on the disk of a machine, and the cache on another one."""
    with small_disks.tmpfs(tmp_path / "disk", "4m") as disk, small_disks.tmpfs(tmp_path / "other", "4m") as other:
        (tmp_path / "c.yaml").write_text("frames: {codec: raw}")
        given = {"config": tmp_path / "c.yaml"}
        cc.build(work / "index.json", tmp_path / "whole", jobs=1, **given, **WHAT)
        size = sum(path.stat().st_size for path in (tmp_path / "whole").rglob("*") if path.is_file())
        for folder in (disk, other):
            (folder / "ballast").write_bytes(bytes(max(0, (4 << 20) - (1 << 20) - size // 2)))
        with pytest.raises(cc.StorageError, match="make room and run the same command"):
            build_parts(work, disk / "parts", 2, **given)
        (disk / "ballast").unlink()
        build_parts(work, disk / "parts", 2, **given)
        with pytest.raises(cc.StorageError, match="MiB in cache .*make room and run the same command"):
            join(disk / "parts", other / "cache")
        assert len([*(disk / "parts").iterdir()]) == 2
        (other / "ballast").unlink()
        join(disk / "parts", other / "cache")
        assert not [*(disk / "parts").iterdir()]
        is_whole(other / "cache", tmp_path / "whole")


def test_segments_of_a_file_are_in_one_part(work: Path, tmp_path: Path) -> None:
    rows = [f"{path},{start},{start + 2}" for start in (0, 4, 8) for path in ("04.mp4", "05.mp4", "06.mp4", "07.mp4")]
    (work / "segments.csv").write_text("\n".join(["path,start_frame,end_frame", *(f"videos/{row}" for row in rows)]))
    parts = tmp_path / "parts"
    for number in (1, 2):
        options = cc.BuildOptions(part=f"{number}/2")
        assert cc.build(work / "segments.csv", parts / str(number), jobs=1, options=options).num_done == 6
        assert len({record.path for record in read_index(parts / str(number) / "index.jsonl")}) == 2
    join(parts, tmp_path / "cache")
    cc.build(work / "segments.csv", tmp_path / "whole", jobs=1)
    is_whole(tmp_path / "cache", tmp_path / "whole")


def test_more_parts_than_files(work: Path, tmp_path: Path) -> None:
    build_parts(work, tmp_path / "parts", 12)
    join(tmp_path / "parts", tmp_path / "cache")
    is_whole(tmp_path / "cache", work / "whole")


def test_the_longest_files_are_divided_first() -> None:
    costs = np.random.default_rng(0).lognormal(3, 1.2, 100_000)
    loads = np.bincount(balanced(costs, 16), weights=costs, minlength=16)
    assert loads.max() / loads.mean() < 1.001
    assert np.bincount(balanced(np.ones(5), 8), minlength=8).max() == 1
    assert estimated(np.array([2.0, np.nan, 4.0])).tolist() == [2.0, 3.0, 4.0]
