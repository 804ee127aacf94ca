"""The command line as a user meets it: bare words, one-line results, exit codes, JSON."""

from __future__ import annotations

import json
import os
import re
import shutil

import pytest
from helpers.commands import COMMANDS


@pytest.fixture(scope="module")
def journey(tmp_path_factory, clips, run_cli):
    """A folder in which the four commands of the README were typed, and what they printed."""
    folder = tmp_path_factory.mktemp("journey")
    shutil.copytree(clips, folder / "videos")
    steps = (
        ("scan", "videos/", "--labels", "dir"),
        ("build", "--tier", "lmdb"),
        ("verify",),
        ("info",),
    )
    return folder, [run_cli(*step, cwd=folder) for step in steps]


def test_commands_without_options_work(journey):
    _, results = journey
    assert [result.returncode for result in results] == [0, 0, 0, 0]
    assert results[0].stdout.startswith("scanned 4, unchanged 0, broken 0 of 4 videos in ")
    assert results[1].stdout.startswith("done 4, up to date 0, quarantined 0 of 4 in ")
    assert results[2].stdout == "intact: 4 videos, all checksums match\n"
    assert "people 2" in results[3].stdout
    assert [result.stderr for result in results] == [""] * 4


def test_json_is_for_machines(journey, run_cli):
    folder, _ = journey
    for step, expected in (
        (("scan", "videos", "--labels", "dir"), {"num_up_to_date": 4, "num_failed": 0}),
        (("build",), {"num_up_to_date": 4, "num_failed": 0}),
        (("info",), {"num_videos": 4, "num_frames": 622}),
        (("info", "index.json"), {"num_videos": 4, "num_frames": 622}),
    ):
        data = json.loads(run_cli(*step, "--json", cwd=folder).stdout)
        assert data.items() >= expected.items()
    assert json.loads(run_cli("verify", "--json", cwd=folder).stdout)["damage"] == []


def test_the_group_lists_the_journey_in_order(run_cli):
    result = run_cli("--help")
    listed = re.findall(r"^  ([a-z]+)  ", result.stdout.partition("\nMake a cache:\n")[2], re.M)
    assert tuple(listed) == COMMANDS


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (("info", "nowhere"), 10, "chordcache info: error: no cache at "),
        (("gc", "nowhere"), 10, "chordcache gc: error: no cache at "),
        (("build", "i.json", "-o", "s3://bucket/cache"), 2, "got 's3://bucket/cache', expected a path"),
        (("build", "i.json", "-o", "s3://bucket/cache", "--dry-run"), 2, "got 's3://bucket/cache', expected a path"),
        (("info", "s3://bucket/cache"), 2, "CACHE|INDEX: got 's3://bucket/cache', expected a path on a mounted disk"),
        (("verify", "s3://bucket/cache"), 2, "CACHE: got 's3://bucket/cache', expected a path on a mounted disk"),
        (("scan", ".", "-o", "gs://bucket/i.json"), 2, "got 'gs://bucket/i.json', expected a path on a mounted disk"),
        (("build", "--parts", "3"), 2, "--parts: got 3, expected none with engine 'local'. Leave it out."),
    ],
)
def test_errors_are_one_line_and_a_code(run_cli, tmp_path, args, code, message):
    result = run_cli(*args, cwd=tmp_path)
    assert result.returncode == code
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "command",
    [
        ("scan", "videos"),
        ("index", "list.csv"),
        ("export", "cache", "--format", "folder"),
        ("report",),
    ],
    ids=str,
)
def test_outputs_do_not_replace_files_of_a_cache(journey, run_cli, tmp_path, command):
    (tmp_path / "list.csv").write_text("path\nvideos/street/bikes.mp4\n")
    for name in ("cache", "videos"):
        shutil.copytree(journey[0] / name, tmp_path / name)
    for name in ("chordcache.json", "index.jsonl", "new.json"):
        refused = run_cli(*command, "-o", f"cache/{name}", cwd=tmp_path)
        assert (refused.returncode, "inside the cache" in refused.stderr) == (2, True), refused.stderr
    assert run_cli("verify", "cache", cwd=tmp_path).returncode == 0


def test_debug_shows_the_traceback(run_cli, tmp_path):
    result = run_cli("--debug", "info", "nowhere", cwd=tmp_path)
    assert result.returncode == 10
    assert result.stderr.startswith("Traceback")


def test_scan_ends_3_if_something_is_broken(run_cli, tmp_path):
    (tmp_path / "videos").mkdir()
    (tmp_path / "videos" / "x.mp4").write_bytes(b"junk")
    result = run_cli("scan", "videos", cwd=tmp_path)
    assert result.returncode == 3
    assert "broken 1 of 1" in result.stdout


def test_moved_data_is_found_with_root(journey, run_cli, tmp_path):
    folder, _ = journey
    moved = shutil.copytree(folder / "videos", tmp_path / "elsewhere")
    result = run_cli("build", folder / "index.json", "-o", "cache", "--root", f"videos={moved}", cwd=tmp_path)
    assert result.returncode == 0
    assert run_cli("verify", "cache", "--source", cwd=tmp_path).returncode == 0


@pytest.mark.parametrize("command", [("build", "{index}"), ("verify", "--source"), ("bench",)], ids=str)
def test_a_root_that_does_not_exist(journey, run_cli, tmp_path, command):
    folder, _ = journey
    arguments = [argument.format(index=folder / "index.json") for argument in command]
    result = run_cli(*arguments, "-o", folder / "cache", "--root", f"video={tmp_path}", cwd=tmp_path)
    assert result.returncode == 2
    assert f"{command[0]}: error: --root: got 'video', expected one of videos. Did you mean 'videos'?" in result.stderr


def test_python_warnings_are_lines_of_the_command(journey, run_process):
    folder, _ = journey
    (folder / "sitecustomize.py").write_text(
        "import sys, warnings\n"
        "class Finder:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'chordcache.look.summary':\n"
        "            warnings.warn('a b\\nc', UserWarning)\n"
        "sys.meta_path.insert(0, Finder())\n"
    )
    paths = [str(folder), os.environ.get("PYTHONPATH", "")]
    done = run_process("info", cwd=folder, env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)})
    assert (done.returncode, done.stderr) == (0, "chordcache info: warning: a b c\n")
