"""Build: resume, staleness, quarantine and budgets. ``fault_injection`` interrupts builds and fills their disks."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers import processes

import chordcache as cc
from chordcache.records import RunSummary
from chordcache.storage import sealed_json

pytestmark = pytest.mark.usefixtures("inline")

Cli = Callable[..., subprocess.CompletedProcess[str]]
Maker = Callable[..., Path]


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory, make_video: Maker) -> Path:
    """videos/ with four good inputs and a bad one."""
    folder = tmp_path_factory.mktemp("pristine")
    for number in range(4):
        make_video(folder / "videos" / f"{number}.mp4", num_frames=12 + number)
    (folder / "videos/bad.mp4").write_bytes(b"no video" * 100)
    return folder


@pytest.fixture
def work(pristine: Path, tmp_path: Path) -> Path:
    """videos/, index.json and cache/ after a first build."""
    shutil.copytree(pristine / "videos", tmp_path / "work/videos")
    scan_again(tmp_path / "work")
    assert build(tmp_path / "work").num_failed == 1
    return tmp_path / "work"


def scan_again(work: Path) -> None:
    cc.scan([work / "videos"], output=work / "index.json", labels="dir", jobs=1)


DEFAULTS = Path(__file__).resolve().parents[2] / "docs/reference/default.yaml"


def build(work: Path, **options: object) -> RunSummary:
    return cc.build(work / "index.json", work / "cache", jobs=1, **options)


def numbers(summary: RunSummary) -> tuple[int, int, int]:
    return summary.num_done, summary.num_up_to_date, summary.num_failed


def touched(before: dict, after: dict) -> set[str]:
    return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}


def key_of(cache: Path, path: str) -> str:
    return processes.sidecars(cache)[path]["key"]


# Resume


def test_the_second_time_does_nothing(work: Path, run_cli: Cli) -> None:
    before = processes.files_of(work / "cache")
    lists = [(work / "cache" / name).read_bytes() for name in ("index.jsonl", "quarantine.jsonl", "chordcache.json")]
    done = run_cli("build", work / "index.json", "-o", work / "cache", "-j1")
    assert done.returncode == 3
    assert "done 0, up to date 4, quarantined 1 of 5" in done.stdout
    assert processes.files_of(work / "cache") == before
    assert lists == [
        (work / "cache" / name).read_bytes() for name in ("index.jsonl", "quarantine.jsonl", "chordcache.json")
    ]
    assert processes.partials(work / "cache") == []


@pytest.mark.parametrize("how", ["touched", "rewritten", "replaced"])
@pytest.mark.parametrize("scanned_again", [True, False])
def test_only_a_changed_source_is_built_again(work: Path, make_video: Maker, how: str, scanned_again: bool) -> None:
    before = processes.files_of(work / "cache")
    old = processes.sidecars(work / "cache")["1.mp4"]["_artefact"]
    source = work / "videos/1.mp4"
    if how == "touched":
        os.utime(source)
    else:
        make_video(source if how != "replaced" else work / "new.mp4", num_frames=21)
        if how == "replaced":
            (work / "new.mp4").rename(source)
    if scanned_again:
        scan_again(work)
    assert numbers(build(work)) == (1, 3, 1)
    new = processes.sidecars(work / "cache")["1.mp4"]
    assert new["num_frames"] == (13 if how == "touched" else 21)
    assert new["_artefact"] != old
    assert old.exists()
    changed = touched(before, processes.files_of(work / "cache"))
    assert changed == {str(p.relative_to(work / "cache")) for p in (new["_sidecar"], new["_artefact"])}
    assert numbers(build(work)) == (0, 4, 1)
    cc.collect_garbage(work / "cache")
    assert not old.exists()
    assert cc.verify(work / "cache", jobs=1).damage == []


def test_another_quality_builds_all_again(work: Path) -> None:
    before = processes.contents(work / "cache")
    (work / "c.yaml").write_text("frames: {quality: 50}")
    assert numbers(build(work, config=work / "c.yaml")) == (4, 0, 1)
    assert all(processes.contents(work / "cache")[path] != facts for path, facts in before.items())
    assert numbers(build(work, config=work / "c.yaml")) == (0, 4, 1)
    assert numbers(build(work)) == (0, 4, 1)  # without a config, a cache keeps the one that it has
    assert numbers(build(work, config=DEFAULTS)) == (4, 0, 1)  # what was replaced is made again
    assert processes.contents(work / "cache") == before


def test_another_label_rewrites_the_sidecar_alone(work: Path) -> None:
    before = processes.files_of(work / "cache")
    (work / "labels.csv").write_text("path,label,caption,camera\n0.mp4,jump,a jump,left\n")
    cc.scan([work / "videos"], output=work / "index.json", labels=str(work / "labels.csv"), jobs=1)
    assert numbers(build(work)) == (0, 4, 1)
    assert all(name.startswith("videos/") for name in touched(before, processes.files_of(work / "cache")))
    video = cc.open_cache(work / "cache")[key_of(work / "cache", "0.mp4")]
    assert (video.label, video.caption, video.extra) == ("jump", "a jump", {"camera": "left"})
    assert cc.verify(work / "cache", jobs=1).damage == []


def test_an_added_video_is_built_alone(work: Path, make_video: Maker) -> None:
    before = processes.files_of(work / "cache")
    make_video(work / "videos/sub/new.mp4", num_frames=9)
    scan_again(work)
    assert numbers(build(work)) == (1, 4, 1)
    changed = touched(before, processes.files_of(work / "cache"))
    assert len(changed) == 2
    assert all("new-" in name for name in changed)


def test_the_index_is_written_if_it_differs(work: Path) -> None:
    """One of equal bytes stays. A record more, a lost line, another root and a flipped bit are each noticed."""
    path = work / "cache" / "index.jsonl"
    inode, content = path.stat().st_ino, path.read_bytes()
    assert numbers(build(work)) == (0, 4, 1)
    assert path.stat().st_ino == inode
    lines = content.splitlines(keepends=True)
    path.write_bytes(
        b"".join([*lines[:1], *lines[2:-1]]) + sealed_json.seal({"num_records": len(lines) - 3}).encode() + b"\n"
    )
    assert numbers(build(work)) == (0, 4, 1)
    assert path.read_bytes() == content
    assert numbers(cc.build(work / "index.json", work / "cache", jobs=1, roots={"videos": work / "videos"})) == (
        0,
        4,
        1,
    )
    assert path.read_bytes() == content
    processes.flip(path, len(content) // 2, 3)
    with pytest.raises(cc.DamageError, match="index.jsonl.*is damaged"):
        build(work)


def test_another_index_adds_to_the_cache(work: Path, make_video: Maker) -> None:
    make_video(work / "more/x.mp4", num_frames=9)
    cc.scan([work / "more"], output=work / "more.json", jobs=1)
    assert numbers(cc.build(work / "more.json", work / "cache", jobs=1)) == (1, 0, 0)
    assert len(cc.open_cache(work / "cache")) == 5
    assert cc.verify(work / "cache", jobs=1).damage == []


def test_an_artefact_that_is_there_with_its_content_is_not_replaced(work: Path) -> None:
    """Readers, also on other machines, may have it open."""
    video = processes.sidecars(work / "cache")["3.mp4"]
    before = video["_artefact"].stat()
    video["_sidecar"].unlink()
    assert numbers(build(work)) == (1, 3, 1)
    assert processes.sidecars(work / "cache")["3.mp4"]["_artefact"] == video["_artefact"]
    after = video["_artefact"].stat()
    assert (after.st_ino, after.st_ctime_ns) == (before.st_ino, before.st_ctime_ns)


def test_a_missing_artefact_is_built_again(work: Path) -> None:
    good = processes.contents(work / "cache")
    processes.sidecars(work / "cache")["3.mp4"]["_artefact"].unlink()
    assert numbers(build(work)) == (1, 3, 1)
    assert processes.contents(work / "cache") == good


@pytest.mark.usefixtures("workers")
def test_one_worker_and_two_make_the_same_cache(work: Path) -> None:
    cc.build(work / "index.json", work / "two", jobs=2)
    assert processes.contents(work / "two") == processes.contents(work / "cache")


# Quarantine


def test_the_quarantine_is_skipped_until_asked_for_or_replaced(work: Path, make_video: Maker) -> None:
    make_video(work / "videos/cut.mkv", num_frames=40)
    data = (work / "videos/cut.mkv").read_bytes()
    (work / "videos/cut.mkv").write_bytes(data[: len(data) // 2])
    (work / "list.csv").write_text("path\nvideos/cut.mkv\nvideos/0.mp4\n")  # no scan that could know better
    run = lambda **options: numbers(cc.build(work / "list.csv", work / "c", jobs=1, **options))  # noqa: E731
    assert run() == (1, 0, 1)
    line = processes.quarantine(work / "c")["videos/cut.mkv"]
    assert (line.get("attempts", 1), line["cause"] in ("truncated", "short", "decode")) == (1, True)
    assert line["message"]
    assert run() == (0, 1, 1)
    assert processes.quarantine(work / "c")["videos/cut.mkv"] == line
    assert run(options=cc.BuildOptions(retry_quarantined=True)) == (0, 1, 1)
    assert processes.quarantine(work / "c")["videos/cut.mkv"]["attempts"] == 2
    (work / "videos/cut.mkv").write_bytes(data)
    assert run() == (1, 1, 0)
    assert processes.quarantine(work / "c") == {}
    assert cc.verify(work / "c", jobs=1).damage == []


def test_a_scanned_failure_replaced_by_a_good_file_is_tried_though_the_index_is_old(
    work: Path, make_video: Maker
) -> None:
    make_video(work / "videos/bad.mp4", num_frames=7)
    assert numbers(build(work)) == (1, 4, 0)
    assert processes.quarantine(work / "cache") == {}


def test_a_good_video_replaced_by_a_bad_one_is_quarantined_and_reported(work: Path, run_cli: Cli) -> None:
    (work / "videos/0.mp4").write_bytes(b"rubbish" * 50)
    assert numbers(build(work)) == (0, 3, 2)
    assert "0.mp4" in processes.quarantine(work / "cache")
    assert numbers(build(work)) == (0, 3, 2)
    assert run_cli("verify", work / "cache", "-j1").returncode in (0, 6)


# Budgets


@pytest.fixture
def half_bad(tmp_path: Path, make_video: Maker) -> Path:
    """list.csv of ten inputs: five good, five bad, the bad ones first."""
    for number in range(5):
        make_video(tmp_path / f"{number}-good.mp4", num_frames=6)
        (tmp_path / f"{number}-bad.mp4").write_bytes(b"bad" * 100)
    names = [f"{n}-bad.mp4" for n in range(5)] + [f"{n}-good.mp4" for n in range(5)]
    (tmp_path / "list.csv").write_text("path\n" + "".join(f"{name}\n" for name in names))
    return tmp_path


@pytest.mark.parametrize(
    ("options", "code", "num_quarantined"),
    [
        (["--max-failures", "0"], 4, 1),
        (["--max-failures", "2"], 4, 3),
        (["--max-failures", "5"], 3, 5),
        (["--max-failures", "20%"], 4, 3),
        (["--max-failures", "50%"], 3, 5),
    ],
)
def test_a_budget_of_failures(
    half_bad: Path, run_cli: Cli, options: list[str], code: int, num_quarantined: int
) -> None:
    done = run_cli("build", "list.csv", "-o", "cache", "-j1", *options, cwd=half_bad)
    assert done.returncode == code, done.stderr
    assert processes.fine(done.stderr)
    assert len(processes.quarantine(half_bad / "cache")) == num_quarantined
    assert processes.partials(half_bad / "cache") == []
    if code == 4:
        assert "-bad.mp4" in done.stderr
        assert cc.verify(half_bad / "cache", jobs=1).exit_code == 6
    assert run_cli("build", "list.csv", "-o", "cache", "-j1", cwd=half_bad).returncode == 3
    assert len(processes.contents(half_bad / "cache")) == 5
    assert len(processes.quarantine(half_bad / "cache")) == 5
    assert cc.verify(half_bad / "cache", jobs=1).damage == []


def test_known_failures_do_not_count_again(half_bad: Path, run_cli: Cli) -> None:
    for _ in range(2):
        run_cli("build", "list.csv", "-o", "cache", "-j1", "--max-failures=0", cwd=half_bad)
    assert len(processes.quarantine(half_bad / "cache")) == 2


@pytest.mark.parametrize("value", ["x", "-1", "5%%", "", "nan", "nan%", "-3%"])
def test_an_impossible_budget(tmp_path: Path, run_cli: Cli, value: str) -> None:
    (tmp_path / "list.csv").write_text("path\na.mp4\n")
    done = run_cli("build", "list.csv", "-o", "cache", f"--max-failures={value}", cwd=tmp_path)
    assert done.returncode == 2
    assert "max" in done.stderr
