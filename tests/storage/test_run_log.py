"""The run log: every run of a cache leaves one line, and no run fails because of the log."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest
from conftest import write_video
from helpers import processes

import chordcache as cc
from chordcache.errors import DamageError
from chordcache.storage import opener, run_log
from chordcache.storage.run_log import Run, append_run, read_runs, recorded

pytestmark = pytest.mark.usefixtures("inline")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """videos/ with a video and a file that is none, index.json and cache/."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "videos").mkdir()
    write_video(folder / "videos/a.mp4", num_frames=10)
    (folder / "videos/none.mp4").write_text("not a video")
    cc.scan([folder / "videos"], output=folder / "index.json", jobs=1)
    cc.build(folder / "index.json", folder / "cache", jobs=1)
    return folder


@pytest.fixture
def work(built: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built, tmp_path / "work"))


def commands(cache: Path) -> list[str]:
    return [run.command for run in read_runs(cache)]


def run(command: str = "build") -> Run:
    return Run(command, "2026-01-01T00:00:00.000+00:00", 1.5, "0.1.0")


def test_scan_and_build_are_in_the_log_of_the_cache(built: Path) -> None:
    scan, build = read_runs(built / "cache")
    assert [scan] == list(read_runs(built / "index.json"))
    assert (scan.command, scan.outcome, scan.exit_code, scan.jobs) == ("scan", "done", 3, 1)
    assert scan.counts == {"num_inputs": 2, "num_done": 1, "num_failed": 1}
    assert (build.command, build.outcome, build.exit_code, build.jobs) == ("build", "done", 3, 1)
    assert build.counts == {"num_inputs": 2, "num_done": 1, "num_failed": 1, "num_frames": 10}
    assert build.video_seconds == scan.video_seconds == pytest.approx(0.4, abs=0.1)
    assert build.num_bytes == sum(path.stat().st_size for path in (built / "cache/lmdb").rglob("*.lmdb"))
    assert build.version == cc.__version__
    assert build.started > scan.started


def test_a_scan_is_copied_to_the_cache_once(work: Path) -> None:
    cc.build(work / "index.json", work / "cache", jobs=1)
    assert commands(work / "cache") == ["scan", "build", "build"]
    cc.scan([work / "videos"], output=work / "index.json", jobs=1)
    cc.build(work / "index.json", work / "cache", jobs=1, roots={"videos": str(work / "videos")})
    assert commands(work / "cache") == ["scan", "build", "build", "scan", "build"]


def test_a_scan_without_an_output_leaves_no_log(work: Path) -> None:
    result = cc.scan([work / "videos"], jobs=1)
    assert os.listdir(result.path.parent) == [result.path.name]


def test_verify_repair_gc_and_merge_are_logged(work: Path) -> None:
    cache = work / "cache"
    artefact = next((cache / "lmdb").rglob("*.lmdb"))
    artefact.write_bytes(b"damaged")
    report = cc.verify(cache, jobs=1)
    cc.repair(cache, report.damage, jobs=1)
    assert cc.verify(cache, jobs=1).damage == []
    cc.collect_garbage(cache, dry_run=True)
    cc.collect_garbage(cache)
    *_, damaged, repaired, sound, removed = read_runs(cache)
    assert (damaged.command, damaged.exit_code, damaged.counts) == ("verify", 5, {"num_videos": 1, "num_damaged": 1})
    assert (repaired.command, repaired.counts["num_done"]) == ("repair", 1)
    assert (sound.exit_code, sound.counts) == (0, {"num_videos": 1})
    assert (removed.command, removed.outcome) == ("gc", "done")
    shutil.copytree(cache, work / "other")
    cc.merge([cache, work / "other"], work / "merged")
    assert commands(work / "merged") == ["merge"]


def test_a_run_that_ends_with_an_error_is_logged(work: Path) -> None:
    (work / "videos/none2.mp4").write_text("not a video either")
    cc.scan([work / "videos"], output=work / "index.json", jobs=1)
    with pytest.raises(cc.StoppedError):
        options = cc.BuildOptions("0", retry_quarantined=True)
        roots = {"videos": str(work / "videos")}
        cc.build(work / "index.json", work / "cache", jobs=1, options=options, roots=roots)
    *_, last = read_runs(work / "cache")
    assert (last.outcome, last.exit_code) == ("StoppedError", 4)
    assert last.counts["num_failed"] == 1


def test_a_refused_run_is_not_logged(tmp_path: Path) -> None:
    with pytest.raises(cc.UsageError), recorded(tmp_path, "build"):
        raise cc.UsageError("wrong")
    assert os.listdir(tmp_path) == []


def test_a_stopped_run_has_its_exit_code(tmp_path: Path) -> None:
    for error in (KeyboardInterrupt(), cc.StoppedError("stopped", exit_code=143), ZeroDivisionError()):
        with pytest.raises(type(error)), recorded(tmp_path, "build"):
            raise error
    assert [(run.outcome, run.exit_code) for run in read_runs(tmp_path)] == [
        ("KeyboardInterrupt", 130),
        ("StoppedError", 143),
        ("ZeroDivisionError", 1),
    ]


@pytest.mark.parametrize("num_bytes", [1, 20, 100])
def test_a_cut_last_line_is_dropped(tmp_path: Path, num_bytes: int) -> None:
    for command in ("build", "verify"):
        append_run(tmp_path, run(command))
    path = tmp_path / run_log.RUNS_FILE
    path.write_bytes(path.read_bytes()[:-num_bytes])
    assert commands(tmp_path) == ["build"]
    append_run(tmp_path, run("gc"))
    assert commands(tmp_path) == ["build", "gc"]


def test_a_damaged_line_is_found_and_repaired(work: Path) -> None:
    cache = work / "cache"
    processes.flip(cache / run_log.RUNS_FILE, 15)
    with pytest.raises(DamageError, match=r"runs.jsonl' is damaged: the digest of its JSON does not match"):
        list(read_runs(cache))
    report = cc.verify(cache, level="quick")
    assert [(finding.kind, finding.file) for finding in report.damage] == [("damaged", "runs.jsonl")]
    assert "verify --repair" in report.damage[0].fix_command
    assert cc.repair(cache, report.damage).num_inputs == 0
    assert cc.verify(cache, level="quick").damage == []
    assert commands(cache) == ["build", "verify", "repair", "verify"]


def test_a_damaged_log_does_not_stop_a_build(work: Path) -> None:
    processes.flip(work / "cache" / run_log.RUNS_FILE, 15)
    assert cc.build(work / "index.json", work / "cache", jobs=1).num_up_to_date == 1
    assert list(cc.open_cache(work / "cache"))


def test_a_log_that_cannot_be_written_changes_no_result(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_file = opener.open_file

    def refuse(cache: Path, name: str, flags: int = os.O_RDONLY) -> int:
        if name == run_log.RUNS_FILE and flags != os.O_RDONLY:  # as in a read-only cache, which root can write to
            raise PermissionError(errno.EACCES, "Permission denied")
        return open_file(cache, name, flags)

    monkeypatch.setattr(opener, "open_file", refuse)
    before = (work / "cache" / run_log.RUNS_FILE).read_bytes()
    append_run(work / "cache", run())
    assert (work / "cache" / run_log.RUNS_FILE).read_bytes() == before
    assert cc.verify(work / "cache", jobs=1).damage == []
    assert cc.build(work / "index.json", work / "cache", jobs=1).num_up_to_date == 1


def test_a_folder_with_nothing_but_a_log_can_become_a_cache(work: Path) -> None:
    append_run(work, run())
    (work / "new").mkdir()
    append_run(work / "new", run())
    assert cc.build(work / "index.json", work / "new", jobs=1).num_done == 1
    assert commands(work / "new") == ["build", "scan", "build"]
