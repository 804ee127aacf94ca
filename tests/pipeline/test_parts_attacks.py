"""Kills, forged files and unlucky moments while a cache is built in parts."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from helpers import processes

import chordcache as cc
from chordcache.errors import LockedError, NotFoundError, UsageError
from chordcache.pipeline.finish import finish
from chordcache.storage import parts
from chordcache.storage.run_log import read_runs
from chordcache.storage.sealed_json import seal

pytestmark = pytest.mark.timeout(300)

NUM_BROKEN = 4


@pytest.fixture
def index(tmp_path: Path) -> Path:
    """Return an index of broken files: their parts need no worker processes."""
    for number in range(NUM_BROKEN):
        (tmp_path / f"videos/{number}.mp4").parent.mkdir(exist_ok=True)
        (tmp_path / f"videos/{number}.mp4").write_text(f"no video {number}")
    cc.scan([tmp_path / "videos"], output=tmp_path / "index.json", jobs=1)
    return tmp_path / "index.json"


def build_part(index: Path, cache: Path, part: str, **options: object) -> cc.RunSummary:
    return cc.build(index, cache, jobs=1, options=cc.BuildOptions(part=part, **options))  # type: ignore[arg-type]


HOLD = """
import sys
from contextlib import ExitStack
from pathlib import Path
from chordcache.storage.lock import locked
with ExitStack() as stack:
    for folder in sys.argv[1:]:
        stack.enter_context(locked(Path(folder), finishes_parts=True))
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def held(*folders: Path) -> Iterator[subprocess.Popen[str]]:
    """Let another process hold the locks of some folders, as the process that divides and ``finish`` do."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, *folders], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


@contextmanager
def waiting_part(index: Path, cache: Path, part: str, *options: str) -> Iterator[subprocess.Popen[str]]:
    """Start a part that waits for another process. Yield it when it has said so."""
    command = [sys.executable, "-m", "chordcache", "build", index, "-o", cache, "--part", part, "-j1", *options]
    with subprocess.Popen([*map(str, command)], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert "wait" in process.stderr.readline()
        yield process


def test_a_part_that_starts_when_the_plan_has_just_been_written(index: Path, tmp_path: Path) -> None:
    """The process that divides holds the cache for a moment longer. Its other parts wait for that."""
    cache = tmp_path / "cache"
    build_part(index, cache, "1/2")
    with held(cache / "parts", cache) as divider, waiting_part(index, cache, "2/2") as part:
        divider.kill()
        assert part.wait(60) == 3
    assert finish(cache).num_parts == 2


def test_a_part_that_waits_while_finish_joins_the_parts(index: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    build_part(index, cache, "1/1")
    with held(cache) as finishing, waiting_part(index, cache, "1/1", "--wait") as part:
        shutil.rmtree(cache / "parts")
        finishing.kill()
        assert part.wait(60) == NotFoundError.exit_code
        assert part.stderr is not None
        assert "1-of-1' does not exist any more: 'chordcache finish' has joined the parts, or" in part.stderr.read()
    assert not (cache / "parts").exists()


def test_finish_twice_at_once(index: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    build_part(index, cache, "1/1")
    with (
        held(cache),
        pytest.raises(LockedError, match="being written by process .*; run the same command when it ends"),
    ):
        finish(cache)


KILLED = """
import os
import sys
from chordcache.pipeline.finish import finish
import chordcache as cc

replace, left = os.replace, int(sys.argv[1])

def killing(*arguments, **options):
    global left
    left -= 1
    if left == 0:
        os._exit(9)
    replace(*arguments, **options)

os.replace = killing
command, index, cache = sys.argv[2:]
if command == "finish":
    finish(cache)
else:
    cc.build(index, cache, jobs=1, options=cc.BuildOptions(part="1/2"))
"""


def is_killed(number: int, command: str, index: Path, cache: Path) -> bool:
    """Kill a command when it is about to replace a file for the n-th time. Return False if it ended before."""
    done = subprocess.run([sys.executable, "-c", KILLED, str(number), command, index, cache], stderr=subprocess.PIPE)
    assert done.returncode in (0, 9), done.stderr
    return done.returncode == 9


def test_a_kill_at_each_step_of_a_division(index: Path, tmp_path: Path) -> None:
    """A part that is killed anywhere, also while it divides the index, can be started again."""
    number = 1
    while is_killed(number, "build", index, cache := tmp_path / f"cache{number}"):
        assert sum(build_part(index, cache, f"{part}/2").num_failed for part in (2, 1)) == NUM_BROKEN
        assert finish(cache).missing == ()
        assert len(processes.quarantine(cache)) == NUM_BROKEN
        assert not (cache / "parts").exists()
        assert cc.verify(cache, jobs=1).exit_code == 0
        number += 1
    assert number > 10


def test_a_kill_at_each_step_of_finish(index: Path, tmp_path: Path) -> None:
    number = 1
    made = tmp_path / "made"
    for part in (1, 2):
        build_part(index, made, f"{part}/2")
    while True:
        cache = tmp_path / f"cache{number}"
        shutil.copytree(made, cache)
        if not is_killed(number, "finish", index, cache):
            break
        assert finish(cache).num_parts == 2
        assert len(processes.quarantine(cache)) == NUM_BROKEN
        assert [run.command for run in read_runs(cache)].count("build") == 2
        assert cc.verify(cache, jobs=1).exit_code == 0
        number += 1
    assert number > 3


def test_a_failure_that_is_repaired_after_a_killed_finish(
    index: Path, tmp_path: Path, make_video: Callable[..., Path]
) -> None:
    """The quarantine of the first ``finish`` is replaced by that of the second one."""
    cache = tmp_path / "cache"
    build_part(index, cache, "1/1")
    number = 1
    while not (cache / "quarantine.jsonl").exists():
        assert is_killed(number, "finish", index, cache)
        number += 1
    make_video(tmp_path / "new.mp4", num_frames=4)
    os.replace(tmp_path / "new.mp4", tmp_path / "videos/0.mp4")
    assert build_part(index, cache, "1/1").num_done == 1
    finish(cache)
    assert processes.quarantine(cache).keys() == {"1.mp4", "2.mp4", "3.mp4"}


@pytest.mark.parametrize("num_parts", [0, 2**31 - 1, 2**40])
def test_a_forged_number_of_parts(index: Path, tmp_path: Path, num_parts: int) -> None:
    cache = tmp_path / "cache"
    build_part(index, cache, "1/1")
    plan = {"num_parts": num_parts, "index": "", "settings": "", "versions": {}}
    (cache / "parts/plan.json").write_text(seal({"format_version": 3, **plan}) + "\n")
    for call in (lambda: finish(cache), lambda: build_part(index, cache, "1/1")):
        with pytest.raises(cc.DamageError, match="plan.json' is damaged: it is not a plan of parts"):
            call()
    assert (cache / "parts/1-of-1/index.jsonl").exists()


@pytest.mark.parametrize("part", ["3/8000000", "1/999999999", "1/99999999999999999999"])
def test_a_number_of_parts_that_is_a_typing_error(part: str) -> None:
    with pytest.raises(UsageError, match=f"^part: got {part}, expected at most 100000 parts"):
        cc.BuildOptions(part=part)


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (os.mkdir, cc.UnreadableError, "plan.json': got Is a directory, expected a readable file"),
        (os.mkfifo, cc.DamageError, "plan.json' is damaged: .*; remove '.*parts' to give these parts up"),
    ],
)
def test_something_else_in_place_of_the_plan(
    index: Path, tmp_path: Path, make: Callable[[Path], None], error: type[Exception], match: str
) -> None:
    cache = tmp_path / "cache"
    build_part(index, cache, "1/1")
    (cache / "parts/plan.json").unlink()
    make(cache / "parts/plan.json")
    for call in (lambda: finish(cache), lambda: build_part(index, cache, "1/1")):
        with pytest.raises(error, match=match):
            call()


def test_a_part_whose_folder_was_removed(index: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    build_part(index, cache, "1/2")
    shutil.rmtree(cache / "parts/2-of-2")
    with pytest.raises(NotFoundError, match="no such folder '.*2-of-2'; remove '.*parts' to give these parts up"):
        build_part(index, cache, "2/2")
    assert finish(cache).missing == (2,)


def test_a_folder_of_that_name_with_other_files(index: Path, tmp_path: Path) -> None:
    """A user's own folder ``parts`` is neither divided into nor removed."""
    mine = tmp_path / "cache/parts/1-of-8/data"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    for part in ("1/2", None):
        with pytest.raises(UsageError, match=r"is not a cache and not empty \(it holds 'parts'\)"):
            cc.build(index, tmp_path / "cache", jobs=1, options=cc.BuildOptions(part=part))
    cc.build(index, tmp_path / "other", jobs=1)
    shutil.copytree(tmp_path / "cache/parts", tmp_path / "other/parts")
    with pytest.raises(UsageError, match="other/parts' was not made by chordcache"):
        build_part(index, tmp_path / "other", "1/2")
    cc.collect_garbage(tmp_path / "other")
    assert mine.exists()
    assert (tmp_path / "other/parts/1-of-8/data").exists()


def test_the_index_inside_the_cache(index: Path, tmp_path: Path) -> None:
    """The division writes that file again, here with another folder of the sources."""
    cache = tmp_path / "cache"
    cc.build(index, cache, jobs=1)
    shutil.copytree(tmp_path / "videos", tmp_path / "moved")
    roots = {"videos": str(tmp_path / "moved")}
    for part in (1, 2):
        cc.build(cache / "index.jsonl", cache, jobs=1, roots=roots, options=cc.BuildOptions(part=f"{part}/2"))
    assert finish(cache).missing == ()


def test_damaged_lists_of_a_part(index: Path, tmp_path: Path) -> None:
    """The message names what helps: a repair of the whole cache is refused until its parts are joined."""
    cache = tmp_path / "cache"
    for part in (1, 2):
        build_part(index, cache, f"{part}/2")
    for name in ("quarantine.jsonl", "runs.jsonl"):
        list_of_part = cache / "parts/2-of-2" / name
        sound = list_of_part.read_bytes()
        list_of_part.write_bytes(b"x" + sound)
        with pytest.raises(cc.DamageError, match=f"{name}' is damaged: .*; remove that file and start the part again"):
            finish(cache)
        list_of_part.unlink()
        build_part(index, cache, "2/2")
    finish(cache)
    assert len(processes.quarantine(cache)) == NUM_BROKEN


def test_verify_of_a_cache_in_parts(index: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    build_part(index, cache, "1/2")
    damage = cc.verify(cache, jobs=1).damage
    assert {each.kind for each in damage} == {"missing", "incomplete"}
    assert {each.fix_command for each in damage} == {f"chordcache finish {cache}"}
    with pytest.raises(
        NotFoundError, match=f"has no catalog: it is built in parts, which 'chordcache finish {cache}' joins"
    ):
        cc.open_cache(cache)


def test_parts_that_store_nothing(tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text("path\nnone.mp4\n")
    summaries = [build_part(tmp_path / "list.csv", tmp_path / "cache", f"{part}/2") for part in (1, 2)]
    assert sorted((summary.num_inputs, summary.num_failed) for summary in summaries) == [(0, 0), (1, 1)]
    report = finish(tmp_path / "cache")
    assert report.summary is not None
    assert (report.summary.num_inputs, report.summary.num_done) == (1, 0)
    assert parts.in_parts(tmp_path / "cache") is False
