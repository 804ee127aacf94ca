"""Merge: caches become one without a decode. It can be killed at any moment, and the caches stay as they were."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from helpers import processes

import chordcache as cc
from chordcache.index.index_files import IndexWriter
from chordcache.storage import sealed_json
from chordcache.storage.lock import locked, locked_for_reading

pytestmark = pytest.mark.usefixtures("inline")

Cli = Callable[..., subprocess.CompletedProcess[str]]

CONFIG = "frames: {short_side: 32}\nfeatures: {flow: null, mel: null}\n"


def cache_of(work: Path, name: str, paths: Sequence[str], config: str = CONFIG, **options: object) -> Path:
    """Build a cache of some of the videos."""
    index = cc.read_index(work / "index.jsonl")
    with IndexWriter(work / f"{name}.jsonl", roots=index.roots, level=index.level) as writer:
        for record in index:
            if record.path in paths:
                writer.write(record)
    (work / f"{name}.yaml").write_text(config)
    arguments = {"tiers": ["lmdb", "npz"], "jobs": 1, **options}
    cc.build(work / f"{name}.jsonl", work / name, config=work / f"{name}.yaml", **arguments)  # type: ignore[arg-type]
    return work / name


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path]) -> Path:
    """videos/, and the caches ab/ and bc/, which both have b.mp4, and one broken input each."""
    work = tmp_path_factory.mktemp("merge")
    for number, name in enumerate(("a.mp4", "b.mp4", "c.mkv")):
        make_video(work / "videos" / name, num_frames=10 + 4 * number)
    for name in ("broken.mp4", "torn.mp4"):
        (work / "videos" / name).write_text("no video")
    cc.scan([work / "videos"], output=work / "index.jsonl", labels="dir", jobs=1)
    cache_of(work, "ab", ["a.mp4", "b.mp4", "broken.mp4"])
    cache_of(work, "bc", ["b.mp4", "c.mkv", "broken.mp4", "torn.mp4"])
    return work


def data_of(cache: Path) -> dict[str, bytes]:
    """All files but the lock, whose times change."""
    return {str(path.relative_to(cache)): path.read_bytes() for path in cache.rglob("*") if path.is_file()}


def artefacts_of(cache: Path) -> list[Path]:
    return sorted(path for tier in ("lmdb", "npz") for path in (cache / tier).rglob("*") if path.is_file())


def assert_whole(work: Path, output: Path) -> None:
    """Everything of both caches is there, nothing else, and nothing is left to build."""
    assert cc.verify(output, level="deep", source=True, jobs=1).damage == []
    both = {**processes.contents(work / "ab"), **processes.contents(work / "bc")}
    assert processes.contents(output) == both
    assert set(cc.open_cache(output).keys()) == {
        video.key for name in ("ab", "bc") for video in cc.open_cache(work / name)
    }
    assert {record.path for record in cc.read_index(output / "index.jsonl")} == {
        "a.mp4", "b.mp4", "c.mkv", "broken.mp4", "torn.mp4",
    }  # fmt: skip
    assert processes.quarantine(output).keys() == {"broken.mp4", "torn.mp4"}
    assert not (output / ".partial").exists() or not list((output / ".partial").iterdir())


def test_two_caches_become_one(work: Path, tmp_path: Path, run_cli: Cli) -> None:
    before = [data_of(work / name) for name in ("ab", "bc")]
    done = run_cli("merge", work / "ab", work / "bc", "-o", tmp_path / "out")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("merged 3, up to date 0, quarantined 2 of 5 in ")
    assert_whole(work, tmp_path / "out")
    assert [data_of(work / name) for name in ("ab", "bc")] == before
    assert len(artefacts_of(tmp_path / "out")) == 6
    inodes = {path.stat().st_ino for name in ("ab", "bc") for path in artefacts_of(work / name)}
    assert all(path.stat().st_ino in inodes for path in artefacts_of(tmp_path / "out"))
    index = tmp_path / "out/index.jsonl"
    done = run_cli("build", index, "-o", tmp_path / "out", "--tier", "lmdb", "--tier", "npz", "-j1")
    assert done.stdout.startswith("done 0, up to date 3, quarantined 2 of 5 in ")


def test_the_same_command_again_changes_nothing(work: Path, tmp_path: Path, run_cli: Cli) -> None:
    assert cc.merge([work / "ab", work / "bc"], tmp_path / "out").num_done == 3
    before = processes.files_of(tmp_path / "out")
    done = run_cli("merge", work / "ab", work / "bc", "-o", tmp_path / "out", "--json")
    summary = json.loads(done.stdout)
    assert (done.returncode, summary["num_done"], summary["num_up_to_date"], summary["num_inputs"]) == (0, 0, 3, 5)
    assert processes.files_of(tmp_path / "out") == before


def test_three_caches_and_a_repeated_one(work: Path, tmp_path: Path) -> None:
    assert cc.merge([work / "ab", work / "bc", work / "ab"], tmp_path / "out").num_done == 3
    assert_whole(work, tmp_path / "out")
    again = cc.merge([tmp_path / "out", work / "ab"], tmp_path / "more")
    assert (again.num_done, again.num_failed) == (3, 2)
    assert_whole(work, tmp_path / "more")


def test_an_input_that_only_one_cache_could_make_is_not_in_quarantine(
    work: Path, tmp_path: Path, make_video: Callable[..., Path]
) -> None:
    """The file was broken when the first cache was built, and replaced before the second one."""
    video = tmp_path / "videos/a.mp4"
    video.parent.mkdir()
    video.write_text("no video")
    for name in ("first", "second"):
        cc.build(cc.scan([tmp_path / "videos"], output=tmp_path / f"{name}.json", jobs=1), tmp_path / name, jobs=1)
        make_video(video, num_frames=6)
    summary = cc.merge([tmp_path / "first", tmp_path / "second"], tmp_path / "out")
    assert (summary.num_inputs, summary.num_done, summary.num_failed) == (1, 1, 0)
    assert cc.verify(tmp_path / "out", level="deep", jobs=1).damage == []
    (record,) = cc.read_index(tmp_path / "out/index.jsonl")
    assert record.error is None


# Copies


@pytest.fixture
def no_links(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: object, **_options: object) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(os, "link", refuse)


@pytest.mark.usefixtures("no_links")
def test_copies_where_links_are_not_possible(work: Path, tmp_path: Path) -> None:
    cc.merge([work / "ab", work / "bc"], tmp_path / "out")
    assert_whole(work, tmp_path / "out")
    inodes = {path.stat().st_ino for name in ("ab", "bc") for path in artefacts_of(work / name)}
    assert not any(path.stat().st_ino in inodes for path in artefacts_of(tmp_path / "out"))


@pytest.mark.usefixtures("no_links")
def test_a_copy_of_a_damaged_artefact_is_not_made(work: Path, tmp_path: Path) -> None:
    shutil.copytree(work / "bc", tmp_path / "bc")
    artefact = processes.sidecars(tmp_path / "bc")["c.mkv"]["_artefact"]
    processes.flip(artefact, 9000)
    with pytest.raises(cc.DamageError, match=rf"'{artefact}' is damaged: its digest .*verify --repair {tmp_path}/bc'"):
        cc.merge([work / "ab", tmp_path / "bc"], tmp_path / "out")
    with pytest.raises(cc.NotFoundError):
        cc.open_cache(tmp_path / "out")
    cc.repair(tmp_path / "bc", cc.verify(tmp_path / "bc", jobs=1).damage, jobs=1)
    cc.merge([work / "ab", tmp_path / "bc"], tmp_path / "out")
    assert_whole(work, tmp_path / "out")


@pytest.mark.parametrize("damage", ["deleted", "cut"])
def test_a_missing_or_cut_artefact_is_damage(work: Path, tmp_path: Path, damage: str) -> None:
    shutil.copytree(work / "bc", tmp_path / "bc")
    artefact = processes.sidecars(tmp_path / "bc")["c.mkv"]["_artefact"]
    if damage == "deleted":
        artefact.unlink()
    else:
        os.truncate(artefact, 5000)
    what = "the file is missing" if damage == "deleted" else "got 5000 bytes, expected"
    with pytest.raises(cc.DamageError, match=f"{artefact.name}' is damaged: {what}"):
        cc.merge([work / "ab", tmp_path / "bc"], tmp_path / "out")
    with pytest.raises(cc.NotFoundError):
        cc.open_cache(tmp_path / "out")


# The caches stay as they are


def test_changes_of_the_new_cache_do_not_reach_the_old_ones(work: Path, tmp_path: Path) -> None:
    """Artefacts are replaced and never changed in place: by a build, a repair and gc."""
    before = [data_of(work / name) for name in ("ab", "bc")]
    output = tmp_path / "out"
    cc.merge([work / "ab", work / "bc"], output)
    processes.sidecars(output)["a.mp4"]["_artefact"].unlink()
    assert cc.repair(output, cc.verify(output, jobs=1).damage, jobs=1).num_done == 1
    (tmp_path / "other.yaml").write_text(CONFIG.replace("short_side: 32", "short_side: 32, quality: 50"))
    index = output / "index.jsonl"
    assert cc.build(index, output, tiers=["lmdb"], config=tmp_path / "other.yaml", jobs=1).num_done == 3
    assert len(cc.collect_garbage(output)) == 3
    assert cc.verify(output, level="deep", jobs=1).damage == []
    assert [data_of(work / name) for name in ("ab", "bc")] == before
    shutil.rmtree(output)
    assert cc.verify(work / "bc", level="deep", jobs=1).damage == []


# Caches that do not fit together


def refused(work: Path, caches: Sequence[Path], run_cli: Cli, code: int = 2) -> str:
    """Return the one line of error of a merge that writes nothing."""
    before = [data_of(cache) for cache in caches]
    done = run_cli("merge", *caches, "-o", work / "refused")
    assert done.returncode == code, done.stdout + done.stderr
    assert done.stderr.count("\n") == 1
    assert not (work / "refused").exists()
    assert [data_of(cache) for cache in caches] == before
    return done.stderr


def test_all_differences_of_the_configs_are_listed(work: Path, run_cli: Cli) -> None:
    other = cache_of(work, "other", ["c.mkv"], CONFIG.replace("32", "16, quality: 80"), tiers=["lmdb"])
    error = refused(work, [work / "ab", other], run_cli)
    ab = work / "ab"
    assert error.startswith("chordcache merge: error: CACHE: got 3 differences, expected equal settings. Build the ")
    assert f"features in tier npz: got motion in '{ab}' and nothing in '{other}'; " in error
    assert f"frames.quality: got 90 in '{ab}' and 80 in '{other}'; " in error
    assert f"frames.short_side: got 32 in '{ab}' and 16 in '{other}'" in error


def test_two_versions_of_a_video(work: Path, run_cli: Cli, tmp_path: Path) -> None:
    shutil.copytree(work / "bc", tmp_path / "bc")
    sidecar = processes.sidecars(tmp_path / "bc")["b.mp4"]["_sidecar"]
    data = json.loads(sidecar.read_text())
    del data["xxh3_128"]
    sidecar.write_text(sealed_json.seal({**data, "about": {"label": "another"}}) + "\n")
    error = refused(work, [work / "ab", tmp_path / "bc"], run_cli)
    assert f"got two versions of video '{data['key']}' in '{work / 'ab'}' and in '{tmp_path / 'bc'}', expected" in error


def test_one_label_for_two_folders(work: Path, run_cli: Cli, tmp_path: Path) -> None:
    shutil.copytree(work / "videos", tmp_path / "videos")
    index = cc.scan([tmp_path / "videos"], output=tmp_path / "index.json", jobs=1)
    cc.build(index, tmp_path / "cache", tiers=["lmdb", "npz"], config=work / "ab.yaml", jobs=1)
    error = refused(work, [work / "ab", tmp_path / "cache"], run_cli)
    assert f"got root 'videos' at '{work / 'videos'}' in '{work / 'ab'}' and at '{tmp_path / 'videos'}' in" in error
    assert "build one of the caches again with --root videos=PATH" in error
    assert "scan one of them with another NAME=PATH" in error


def test_what_is_not_a_cache(work: Path, run_cli: Cli) -> None:
    assert "no cache at " in refused(work, [work / "ab", work / "videos"], run_cli, code=10)
    assert not (work / "videos/.lock").exists()
    assert "CACHE: got 1, expected at least 2" in refused(work, [work / "ab"], run_cli)


# The output


@pytest.mark.parametrize("what", ["file", "text", "videos", "index", "cache", "more", "source"])
def test_an_output_with_something_else_stays_as_it_is(work: Path, tmp_path: Path, what: str) -> None:
    output = tmp_path / "out"
    if what == "file":
        output.write_text("x")
    elif what in ("cache", "source"):
        shutil.copytree(work / "bc", output)
    elif what == "more":
        cc.merge([work / "ab", work / "bc"], output)
    else:
        (output / "videos").mkdir(parents=True)
        if what == "index":
            shutil.copy(work / "ab.jsonl", output / "index.jsonl")
        else:
            (output / ("thesis.tex" if what == "text" else "videos/a.mp4")).write_text("x")
    before = data_of(output) if output.is_dir() else {}
    caches = [work / "ab", output if what == "source" else work / "bc"]
    if what in ("cache", "more"):
        caches = [work / "ab", work / "ab"]
    with pytest.raises(cc.UsageError, match=r"^output: got '.*out', .*[Nn]ame a(nother|\snew)"):
        cc.merge(caches, output)
    after = data_of(output) if output.is_dir() else {}
    assert {name: data for name, data in after.items() if name != ".lock"} == {
        name: data for name, data in before.items() if name != ".lock"
    }


# Locks


def test_a_cache_that_is_being_built_is_not_merged(work: Path, tmp_path: Path, run_cli: Cli) -> None:
    with locked(work / "bc"):
        done = run_cli("merge", work / "ab", work / "bc", "-o", tmp_path / "out")
    assert done.returncode == 11
    assert f"cache '{work / 'bc'}' is being written by process {os.getpid()} on " in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_cache_that_is_being_merged_is_not_built(work: Path) -> None:
    with (
        locked_for_reading(work / "bc"),
        locked_for_reading(work / "bc"),
        pytest.raises(cc.LockedError, match="bc' is being read by 'chordcache merge', or readers"),
        locked(work / "bc"),
    ):
        pass
    with locked(work / "bc"):
        pass


def test_a_copied_cache_without_a_lock_is_merged_and_not_written_to(work: Path, tmp_path: Path) -> None:
    shutil.copytree(work / "bc", tmp_path / "bc")
    (tmp_path / "bc/.lock").unlink()
    before = processes.files_of(tmp_path / "bc")
    cc.merge([work / "ab", tmp_path / "bc"], tmp_path / "out")
    assert processes.files_of(tmp_path / "bc") == before
    assert not (tmp_path / "bc/.lock").exists()


# Kills and full disks


def test_settings_that_changed_before_do_not_matter(work: Path, tmp_path: Path) -> None:
    paths, build = ["a.mp4", "b.mp4"], {"tiers": ["lmdb"]}
    first = cache_of(work, "changed", paths, CONFIG.replace("32", "16"), **build)
    cache_of(work, "changed", paths, **build)
    second = cache_of(work, "unchanged", ["b.mp4"], **build)
    cc.merge([first, second], tmp_path / "merged")
    assert cc.verify(tmp_path / "merged", level="deep", jobs=1).damage == []
    assert cc.merge([first, second], tmp_path / "merged").num_up_to_date == 2


def test_a_cache_without_a_feature_of_a_video_is_named(work: Path, tmp_path: Path) -> None:
    first = cache_of(work, "less", ["a.mp4", "b.mp4"], tiers=["lmdb"])
    cache_of(work, "less", ["a.mp4"])
    second = cache_of(work, "more", ["b.mp4"])
    with pytest.raises(
        cc.UsageError, match=r"less' without motion in npz of video 'b-.*', expected the features"
    ) as error:
        cc.merge([first, second], tmp_path / "merged")
    assert "Run 'chordcache build" in str(error.value)
