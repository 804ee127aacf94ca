"""Links that lead out of a root: not read without the option, whenever they were made."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from helpers import processes
from helpers.faulty_extractor import ENVIRONMENT, SOURCE_CHANGER

import chordcache as cc
from chordcache.storage import sealed_json

pytestmark = pytest.mark.usefixtures("inline")

Cli = Callable[..., subprocess.CompletedProcess[str]]
Maker = Callable[..., Path]

REFUSED = "a symbolic link leads it out of its root; to allow that, scan with --follow-symlinks"


@pytest.fixture
def work(tmp_path: Path, make_video: Maker) -> Path:
    """root/ with a.mp4 and sub/b.mp4, their index, and outside/, which has files of the same names."""
    for folder, num_frames in (("root", 4), ("outside", 7)):
        make_video(tmp_path / folder / "a.mp4", num_frames=num_frames)
        make_video(tmp_path / folder / "sub/b.mp4", num_frames=num_frames)
    cc.scan([tmp_path / "root"], output=tmp_path / "index.json", jobs=1)
    return tmp_path


def swap_by_chain(work: Path) -> str:
    (work / "root/a.mp4").unlink()
    (work / "root/step").symlink_to(work / "outside")
    (work / "root/a.mp4").symlink_to("step/a.mp4")
    return "a.mp4"


def opened_outside(work: Path, *args: str) -> tuple[int, str, list[str]]:
    """Run a command under strace. Returns its exit code, its output and what it opened below outside/."""
    tracer = shutil.which("strace")
    if tracer is None:
        pytest.skip("no strace")
    trace = work / "trace"
    done = subprocess.run(
        [tracer, "-f", "-qq", "-y", "-e", "trace=open,openat,openat2", "-o", trace,
         sys.executable, "-m", "chordcache", *args],
        cwd=work, capture_output=True, text=True, timeout=90,
    )  # fmt: skip
    text = trace.read_text(errors="replace")
    assert "index." in text  # the tracer sees what it is to see
    # -y writes behind each descriptor what file it is, so a link does not hide it
    return done.returncode, done.stdout + done.stderr, re.findall(r"<([^>]*/outside[^>]*)>", text)


# Swapped between scan and build


def test_a_swap_after_the_build_is_refused_by_every_command(work: Path, run_cli: Cli) -> None:
    assert run_cli("build", "index.json", "-j1", cwd=work).returncode == 0
    before = processes.contents(work / "cache")
    name = swap_by_chain(work)
    code, out, opened = opened_outside(work, "verify", "--source", "-j1")
    assert (code, opened) == (6, []), out
    assert f"the source cannot be compared: {REFUSED}" in out
    code, out, opened = opened_outside(work, "build", "index.json", "-j1")
    assert (code, opened) == (3, []), out
    assert processes.quarantine(work / "cache")[name]["cause"] == "refused-link"
    processes.flip(processes.sidecars(work / "cache")[name]["_artefact"], 5000)
    code, out, opened = opened_outside(work, "verify", "--repair", "-j1")
    assert (code, opened) == (5, []), out
    after = processes.contents(work / "cache")
    assert {path: rows for path, (rows, _, _) in after.items()} == {path: rows for path, (rows, _, _) in before.items()}


@pytest.mark.parametrize("where", ["a.mp4", "sub"])
@pytest.mark.usefixtures("workers")
def test_a_swap_in_the_middle_of_the_decode_is_refused(work: Path, make_video: Maker, run_cli: Cli, where: str) -> None:
    name = "a.mp4" if where == "a.mp4" else "sub/b.mp4"
    shutil.rmtree(work / "root")
    make_video(work / "root" / name, num_frames=40)
    cc.scan([work / "root"], output=work / "index.json", jobs=1)
    places = {"source": str(work / "root" / where), "other": str(work / "outside" / where)}
    mine = {"extractor": SOURCE_CHANGER, "change": "link", **places}
    (work / "c.yaml").write_text(yaml.dump({"features": {"mine": mine}}))
    args = ["build", "index.json", "-c", "c.yaml", "--tier", "npz", "--features", "mine", "-j1"]
    done = run_cli(*args, cwd=work, env=ENVIRONMENT)
    assert done.returncode == 3, done.stdout + done.stderr
    assert processes.quarantine(work / "cache")[name]["cause"] == "refused-link"
    assert processes.sidecars(work / "cache") == {}
    assert not (work / "cache/npz").exists()


# Followed with the option


@pytest.fixture
def linked(tmp_path: Path, make_video: Maker) -> Path:
    """root/ with a.mp4, a link out of it to a file and one to a folder."""
    make_video(tmp_path / "root/a.mp4", num_frames=4)
    make_video(tmp_path / "outside/b.mp4", num_frames=5)
    make_video(tmp_path / "outside/sub/c.mp4", num_frames=6)
    (tmp_path / "root/b.mp4").symlink_to(tmp_path / "outside/b.mp4")
    (tmp_path / "root/folder").symlink_to("../outside/sub")
    return tmp_path


ALL = {"a.mp4": 4, "b.mp4": 5, "folder/c.mp4": 6}


def num_frames(cache: Path) -> dict[str, int]:
    return {path: rows for path, (rows, _, _) in processes.contents(cache).items()}


@pytest.mark.parametrize("index", ["index.json", "index.jsonl"])
def test_links_that_a_scan_followed_are_followed_later(linked: Path, run_cli: Cli, index: str) -> None:
    def ok(*args: str) -> str:
        done = run_cli(*args, cwd=linked)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    ok("scan", "root", "--follow-symlinks", "-o", index, "-j1")
    ok("build", index, "-j1")
    assert num_frames(linked / "cache") == ALL
    ok("verify", "--source", "-j1")
    # the cache remembers: its own index, an index of a scan that followed nothing, a repair, a lost list
    assert ok("build", "cache/index.jsonl", "-j1").startswith("done 0, up to date 3")
    ok("scan", "root", "-o", "plain.json", "-j1")
    assert ok("build", "plain.json", "-j1").startswith("done 0, up to date 1")
    processes.flip(processes.sidecars(linked / "cache")["b.mp4"]["_artefact"], 5000)
    processes.flip(linked / "cache/index.jsonl", 20)
    ok("verify", "--repair", "-j1")
    assert num_frames(linked / "cache") == ALL
    assert cc.read_index(linked / "cache/index.jsonl").follow_symlinks
    (linked / "outside/b.mp4").touch()
    assert ok("build", "cache/index.jsonl", "-j1").startswith("done 1, up to date 2")


def test_a_csv_index_needs_the_flag_of_build(linked: Path, run_cli: Cli) -> None:
    assert run_cli("scan", "root", "--follow-symlinks", "-o", "index.csv", "-j1", cwd=linked).returncode == 0
    done = run_cli("build", "index.csv", "-j1", cwd=linked)
    assert done.returncode == 3, done.stderr
    assert num_frames(linked / "cache") == {"a.mp4": 4}
    assert {line["cause"] for line in processes.quarantine(linked / "cache").values()} == {"refused-link"}
    code, out, opened = opened_outside(linked, "build", "index.csv", "-j1", "--follow-symlinks")
    assert code == 0, out
    assert {Path(path).name for path in opened} >= {"b.mp4", "c.mp4"}
    assert num_frames(linked / "cache") == ALL
    assert run_cli("verify", "--source", "-j1", cwd=linked).returncode == 0
    done = run_cli("build", "index.csv", "-j1", cwd=linked)
    assert done.stdout.startswith("done 0, up to date 3, quarantined 0 of 3")


def test_a_link_that_is_named_to_scan(linked: Path, run_cli: Cli) -> None:
    done = run_cli("scan", "root/a.mp4", "root/b.mp4", "-o", "index.json", "-j1", cwd=linked)
    assert done.returncode == 0
    assert "skipped 1 symbolic link out of the root, since follow_symlinks (--follow-symlinks) is off" in done.stderr
    assert [record.path for record in cc.read_index(linked / "index.json")] == ["a.mp4"]
    done = run_cli("scan", "root/a.mp4", "root/b.mp4", "-o", "index.json", "-j1", "--follow-symlinks", cwd=linked)
    assert (done.returncode, done.stderr) == (0, "")
    assert [record.path for record in cc.read_index(linked / "index.json")] == ["a.mp4", "b.mp4"]


# Links that lead nowhere else


def test_a_root_that_is_a_link_and_links_inside_it(tmp_path: Path, make_video: Maker, run_cli: Cli) -> None:
    make_video(tmp_path / "real/deep/a.mp4", num_frames=4)
    (tmp_path / "real/b.mp4").symlink_to("deep/a.mp4")
    (tmp_path / "real/c.mp4").symlink_to(tmp_path / "root/deep/a.mp4")  # through the root's other name
    (tmp_path / "root").symlink_to("real")
    assert run_cli("scan", "root", "-j1", cwd=tmp_path).returncode == 0
    assert run_cli("build", "-j1", cwd=tmp_path).returncode == 0
    assert num_frames(tmp_path / "cache") == {"b.mp4": 4, "c.mp4": 4, "deep/a.mp4": 4}
    assert run_cli("verify", "--source", "-j1", cwd=tmp_path).returncode == 0
    assert not cc.read_index(tmp_path / "cache/index.jsonl").follow_symlinks


def test_a_root_that_moved_behind_a_link(work: Path, run_cli: Cli) -> None:
    (work / "disk").mkdir()
    (work / "root").rename(work / "disk/root")
    (work / "now").symlink_to("disk/root")
    done = run_cli("build", "index.json", "--root", "root=now", "-j1", cwd=work)
    assert done.returncode == 0, done.stderr
    (work / "disk/root/a.mp4").unlink()
    (work / "disk/root/a.mp4").symlink_to(work / "disk/b.mp4")
    shutil.copy(work / "outside/a.mp4", work / "disk/b.mp4")
    done = run_cli("verify", "--source", "--root", "root=now", "-j1", cwd=work)
    assert done.returncode == 6
    assert REFUSED in done.stdout


def test_a_folder_whose_name_begins_like_the_root_is_outside(work: Path) -> None:
    (work / "root2").mkdir()
    (work / "root/a.mp4").rename(work / "root2/a.mp4")
    (work / "root/a.mp4").symlink_to("../root2/a.mp4")
    assert cc.build(work / "index.json", work / "cache", jobs=1).num_failed == 1
    assert processes.quarantine(work / "cache")["a.mp4"]["cause"] == "refused-link"


# The choice on the disk


def test_the_choice_is_in_the_header_only_where_it_was_made(linked: Path) -> None:
    for follow in (False, True):
        index = cc.scan([linked / "root"], output=linked / "index.json", jobs=1, follow_symlinks=follow)
        index.write(linked / "copy.jsonl")
        for name in ("index.json", "copy.jsonl"):
            assert cc.read_index(linked / name).follow_symlinks is follow
            assert ("follow_symlinks" in (linked / name).read_text()) is follow


def test_an_unknown_choice_is_damage(work: Path) -> None:
    cc.read_index(work / "index.json").write(work / "index.jsonl")
    header, *rest = (work / "index.jsonl").read_text().splitlines(keepends=True)
    data = sealed_json.unseal(header, "")
    (work / "index.jsonl").write_text(sealed_json.seal({**data, "follow_symlinks": "yes"}) + "\n" + "".join(rest))
    with pytest.raises(cc.DamageError, match="is not the header of an index"):
        cc.read_index(work / "index.jsonl")
