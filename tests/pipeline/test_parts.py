"""Parts of a cache: several runs build one cache side by side, and ``finish`` joins what they wrote."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import processes

import chordcache as cc
from chordcache.errors import LockedError, UsageError
from chordcache.index.files import IndexWriter, read_index
from chordcache.pipeline.finish import finish
from chordcache.pipeline.parts import balanced
from chordcache.records import Identity, VideoRecord
from chordcache.storage import layout
from chordcache.storage.run_log import read_runs

pytestmark = pytest.mark.timeout(300)

NUM_GOOD = 12

Cli = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path]) -> Path:
    """Videos of different lengths and one broken file, their index, and the cache of a whole build."""
    work = tmp_path_factory.mktemp("parts")
    for number in range(NUM_GOOD):
        make_video(work / f"videos/{number:02}.mp4", num_frames=4 + 3 * number)
    (work / "videos/broken.mp4").write_text("no video")
    cc.scan([work / "videos"], output=work / "index.json", jobs=1)
    cc.build(work / "index.json", work / "whole", tiers=["lmdb", "npz"], features=["frames", "flow"], jobs=2)
    return work


def build_part(work: Path, cache: Path, part: str, **options: Any) -> cc.RunSummary:
    arguments: dict[str, Any] = {
        "index": work / "index.json",
        "tiers": ["lmdb", "npz"],
        "features": ["frames", "flow"],
        **options,
    }
    index = arguments.pop("index")
    return cc.build(index, cache, jobs=1, options=cc.BuildOptions(part=part), **arguments)


def part_command(work: Path, cache: Path, part: str, *options: object) -> list[str]:
    command = [sys.executable, "-m", "chordcache", "build", work / "index.json", "-o", cache, "--part", part, "-j1"]
    return [*map(str, command), "--tier", "lmdb", "--tier", "npz", "--features", "frames,flow", *map(str, options)]


def statements(cache: Path) -> dict[str, Any]:
    """Return the statements of the sidecars, without the paths of this test."""
    return {path: {**data, "_artefact": None, "_sidecar": None} for path, data in processes.sidecars(cache).items()}


def is_whole(work: Path, cache: Path) -> None:
    """Check that a finished cache equals that of a whole build."""
    assert statements(cache) == statements(work / "whole")
    assert len(statements(cache)) == NUM_GOOD
    assert processes.quarantine(cache).keys() == {"broken.mp4"}
    assert [video.path for video in cc.open_cache(cache)] == [video.path for video in cc.open_cache(work / "whole")]
    report = cc.verify(cache, jobs=1)
    assert not report.damage
    assert not processes.partials(cache)
    assert not (cache / "parts").exists()


def test_parts_make_the_cache_of_a_whole_build(work: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    summaries = [build_part(work, cache, f"{number}/3") for number in (2, 3, 1)]
    assert sum(summary.num_inputs for summary in summaries) == NUM_GOOD + 1
    assert min(summary.num_done for summary in summaries) >= 3
    report = finish(cache)
    assert (report.num_parts, report.missing) == (3, ())
    assert report.summary is not None
    assert (report.summary.num_done, report.summary.num_failed) == (NUM_GOOD, 1)
    is_whole(work, cache)
    assert [run.command for run in read_runs(cache)][-5:-1] == ["build", "build", "build", "finish"]
    again = cc.build(work / "index.json", cache, tiers=["lmdb", "npz"], features=["frames", "flow"], jobs=1)
    assert (again.num_done, again.num_up_to_date) == (0, NUM_GOOD)


def test_parts_at_once_of_which_one_is_killed(work: Path, tmp_path: Path, run_cli: Cli) -> None:
    cache = tmp_path / "cache"
    runs = [subprocess.Popen(part_command(work, cache, f"{number}/4", "-q")) for number in range(1, 5)]
    assert processes.wait_until(lambda: len(list(cache.glob("videos/*/*.json"))) >= 2, 60)
    runs[1].kill()
    codes = [run.wait(120) for run in runs]
    assert codes[1] in (-9, 0)
    if codes[1] == -9:
        done = run_cli("finish", cache)
        assert done.returncode == 6
        assert "1 of 4 parts are not complete: --array=2; " in done.stdout
    assert run_cli(*part_command(work, cache, "2/4", "-q")[3:]).returncode in (0, 3)
    done = run_cli("finish", cache)
    assert done.returncode == 3
    assert "finished 4 parts: done " in done.stdout
    is_whole(work, cache)
    done = run_cli("finish", cache)
    assert (done.returncode, done.stdout) == (0, f"nothing to finish: cache '{cache}' has no parts\n")


def test_parts_on_machines_with_other_clocks(work: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    for number, offset in enumerate(("+2d", "-2d", "+0"), 1):
        done = subprocess.run(["faketime", "-f", offset, *part_command(work, cache, f"{number}/3", "-q")])
        assert done.returncode in (0, 3)
    assert finish(cache).missing == ()
    is_whole(work, cache)


def test_a_cache_in_parts_is_closed_to_other_writers(work: Path, tmp_path: Path, run_cli: Cli) -> None:
    cache = tmp_path / "cache"
    build_part(work, cache, "1/2")
    wanted = f"cache '{cache}' is built in parts; run 'chordcache finish {cache}' when they have ended"
    for command in (
        ["build", work / "index.json", "-o", cache],
        ["gc", cache],
        ["verify", cache, "--repair"],
        ["merge", cache, work / "whole", "-o", tmp_path / "merged"],
    ):
        done = run_cli(*command)
        assert done.returncode == 11, done.stderr
        assert wanted in done.stderr
    done = run_cli("finish", cache, "--json")
    assert (done.returncode, json.loads(done.stdout)) == (6, {"num_parts": 2, "missing": [2], "summary": None})
    shutil.rmtree(cache / "parts")  # as the message says
    cc.build(work / "index.json", cache, tiers=["lmdb", "npz"], features=["frames", "flow"], jobs=1)
    is_whole(work, cache)


HOLD = """
import sys
from pathlib import Path
from chordcache.storage.lock import locked, locked_part
cache, folder = map(Path, sys.argv[1:])
with locked_part(cache, folder) if folder != cache else locked(cache):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def held(cache: Path, folder: Path) -> Iterator[None]:
    """Let another process hold a cache, or a part of it."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, cache, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield
        process.kill()


def test_a_part_that_runs(work: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    build_part(work, cache, "1/2")
    build_part(work, cache, "2/2")
    with held(cache, cache / "parts/1-of-2"):
        with pytest.raises(LockedError, match="parts/1-of-2' is being written by process"):
            build_part(work, cache, "1/2")
        with pytest.raises(LockedError, match="is being built by one of its parts; run the same command"):
            finish(cache)
        build_part(work, cache, "2/2")
    assert finish(cache).num_parts == 2
    is_whole(work, cache)


def test_a_part_beside_a_whole_build(work: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cc.build(work / "index.json", cache, jobs=1)
    with held(cache, cache), pytest.raises(LockedError, match="is being written by process"):
        build_part(work, cache, "1/2")
    build_part(work, cache, "1/2")


@pytest.mark.parametrize(
    ("part", "options", "message"),
    [
        ("1/3", {}, "part: got 1/3, expected I/2, since cache .* is built in 2 parts. Use the same"),
        ("2/2", {"index": "other.json"}, "index: got '.*other.json', expected the one that was divided, since cache"),
        ("2/2", {"features": ["frames"], "tiers": ["lmdb"]}, "settings: got others, expected those of the other parts"),
        ("2/2", {"config": "other.yaml"}, "settings: got others, expected those of the other parts"),
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
    changed = {file for file, state in processes.files_of(cache).items() if before.get(file) != state}
    assert {Path(file).name for file in changed} <= {".lock"}


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


@pytest.mark.parametrize("part", ["0/2", "3/2", "2", "a/b", "1/0", "-1/2", "1/2/3", ""])
def test_a_part_that_does_not_exist(part: str) -> None:
    with pytest.raises(UsageError, match=r"^part: got .*, expected "):
        cc.BuildOptions(part=part)


def test_a_part_and_prune() -> None:
    with pytest.raises(UsageError, match="^prune: got True with a part"):
        cc.BuildOptions(part="1/2", prune=True)


def test_failures_of_earlier_builds(work: Path, tmp_path: Path) -> None:
    """A failure that still holds stays with its attempts, and one that was repaired goes."""
    shutil.copytree(work / "videos", tmp_path / "videos")
    (tmp_path / "videos/repaired.mp4").write_text("no video")
    cc.scan([tmp_path / "videos"], output=tmp_path / "index.json", jobs=1)
    cache = tmp_path / "cache"
    cc.build(tmp_path / "index.json", cache, jobs=1)
    assert processes.quarantine(cache).keys() == {"broken.mp4", "repaired.mp4"}
    before = processes.quarantine(cache)["broken.mp4"]
    shutil.copy(work / "videos/03.mp4", tmp_path / "videos/repaired.mp4")
    cc.scan([tmp_path / "videos"], output=tmp_path / "index.json", jobs=1)
    for number in (1, 2):
        cc.build(tmp_path / "index.json", cache, jobs=1, options=cc.BuildOptions(part=f"{number}/2"))
    assert processes.quarantine(cache).keys() == {"broken.mp4", "repaired.mp4"}  # the lists are joined at the end
    finish(cache)
    assert processes.quarantine(cache) == {"broken.mp4": before}


def test_segments_of_a_file_are_in_one_part(work: Path, tmp_path: Path) -> None:
    rows = [f"{path},{start},{start + 2}" for start in (0, 4, 8) for path in ("07.mp4", "08.mp4", "09.mp4", "10.mp4")]
    (work / "segments.csv").write_text("\n".join(["path,start_frame,end_frame", *(f"videos/{row}" for row in rows)]))
    cache = tmp_path / "cache"
    for number in (1, 2):
        options = cc.BuildOptions(part=f"{number}/2")
        assert cc.build(work / "segments.csv", cache, jobs=1, options=options).num_done == 6
    for number in (1, 2):
        paths = [record.path for record in read_index(cache / f"parts/{number}-of-2/index.jsonl")]
        assert len(paths) == 6
        assert len(set(paths)) == 2
    finish(cache)
    assert len(cc.open_cache(cache)) == 12
    assert not cc.verify(cache, jobs=1).damage


def test_more_parts_than_files(work: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    for number in range(1, 21):
        build_part(work, cache, f"{number}/20")
    finish(cache)
    is_whole(work, cache)


def test_the_longest_files_are_divided_first() -> None:
    costs = np.random.default_rng(0).lognormal(3, 1.2, 100_000)
    loads = np.bincount(balanced(costs, 16), weights=costs, minlength=16)
    assert loads.max() / loads.mean() < 1.001
    assert np.bincount(balanced(np.ones(5), 8), minlength=8).max() == 1


def test_sizes_stand_in_for_unknown_lengths(tmp_path: Path) -> None:
    """A hand-written list states neither frames nor sizes."""
    for number in range(8):
        (tmp_path / f"{number}.mp4").write_bytes(bytes(1000 * 2**number))
    (tmp_path / "list.csv").write_text("path\n" + "".join(f"{number}.mp4\n" for number in range(8)))
    cc.build(tmp_path / "list.csv", tmp_path / "cache", jobs=1, options=cc.BuildOptions(part="1/2"))
    paths = [record.path for record in read_index(tmp_path / "cache/parts/1-of-2/index.jsonl")]
    assert paths == ["7.mp4"]  # is as large as the others together


def test_a_damaged_plan_and_summary(work: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    for number in (1, 2):
        build_part(work, cache, f"{number}/2")
    summary = cache / "parts/1-of-2/summary.json"
    processes.flip(summary, 30)
    assert finish(cache).missing == (1,)
    build_part(work, cache, "1/2")
    plan = (cache / "parts/plan.json").read_bytes()
    processes.flip(cache / "parts/plan.json", 30)
    with pytest.raises(cc.DamageError, match="plan.json' is damaged"):
        finish(cache)
    (cache / "parts/plan.json").write_bytes(plan)
    finish(cache)
    is_whole(work, cache)


def test_a_run_that_was_killed_while_it_divided_the_index(work: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    (cache / "parts/1-of-2").mkdir(parents=True)
    (cache / "parts/.lock").touch()
    (cache / "parts/1-of-2/index.jsonl").write_text("half of an in")
    (cache / "parts/7-of-9/index.jsonl").parent.mkdir()
    build_part(work, cache, "2/2")
    build_part(work, cache, "1/2")
    finish(cache)
    is_whole(work, cache)


def test_each_record_is_in_one_part(tmp_path: Path) -> None:
    """At 20,000 records, whose files do not exist."""
    with IndexWriter(tmp_path / "index.jsonl", roots={"videos": str(tmp_path)}, level="packets") as writer:
        for number in range(20_000):
            identity = Identity(1000 + number, number)
            writer.write(VideoRecord("videos", f"{number}.mp4", identity=identity, label=str(number)))
    cache = tmp_path / "cache"
    with pytest.raises(cc.TooManyFailuresError):
        cc.build(tmp_path / "index.jsonl", cache, jobs=1, options=cc.BuildOptions(part="5/7", max_failures=0))
    found = [read_index(path) for path in cache.glob("parts/*-of-7/index.jsonl")]
    assert len(found) == 7
    assert sorted(layout.key_of(record) for index in found for record in index) == sorted(
        layout.key_of(record) for record in read_index(tmp_path / "index.jsonl")
    )
    assert all(record.label == record.path.removesuffix(".mp4") for index in found for record in index)
    assert finish(cache).array == "1-7"
