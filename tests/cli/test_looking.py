"""Commands that look at a cache: ls, show, info and extractors, compared with the files themselves."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import cv2
import pytest
from helpers.sealed import reseal

import chordcache as cc
from chordcache.amounts import human_bytes
from chordcache.building.fix_commands import remedy
from chordcache.config.presets import preset_names
from chordcache.look.video_facts import ListedVideo, describe_video

pytestmark = pytest.mark.usefixtures("inline")

HOSTILE = "evil\x1b[31m\u202egpj.mp4"


@pytest.fixture(scope="module")
def folder(tmp_path_factory, make_video) -> Path:
    """Three videos, of which one has a hostile name and a long caption, and two files that cannot be cached."""
    folder = tmp_path_factory.mktemp("looking")
    videos = folder / "videos"
    make_video(videos / "people" / "a.mp4", num_frames=20, audio=True)
    make_video(videos / "people" / "b.webm", num_frames=10, codec="libvpx-vp9")
    make_video(videos / "street" / HOSTILE, num_frames=5)
    (videos / "street" / "junk.mp4").write_bytes(b"junk")
    (videos / "street" / "cut.mp4").write_bytes((videos / "people" / "a.mp4").read_bytes()[:1500])
    with (folder / "labels.csv").open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["path", "label", "caption", "note"])
        rows.writerow(["people/a.mp4", "people", "two\nlines", "n"])
        rows.writerow(["people/b.webm", "people", "", ""])
        rows.writerow([f"street/{HOSTILE}", "street\u202e", "c" * 100_000, "\x1b]0;title\x07"])
    index = cc.scan([videos], labels=folder / "labels.csv", output=folder / "index.json")
    summary = cc.build(index, folder / "cache", tiers=["lmdb", "npz"], jobs=1)
    assert (summary.num_done, summary.num_failed) == (3, 2)
    return folder


def sidecars(folder: Path) -> dict[str, dict]:
    contents = (json.loads(path.read_text()) for path in (folder / "cache" / "videos").glob("*/*.json"))
    return {data["key"]: data for data in contents}


def failures(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "cache" / "quarantine.jsonl").read_text().splitlines()]


def assert_clean(text: str) -> None:
    assert all(line.isprintable() for line in text.splitlines())


def test_ls_agrees_with_the_files(folder, run_cli):
    listed = json.loads(run_cli("ls", "--json", cwd=folder).stdout)["videos"]
    expected = sidecars(folder)
    assert [video["key"] for video in listed] == sorted(expected)
    for video in listed:
        data = expected[video["key"]]
        files = {info["file"]["name"] for info in data["features"] if "file" in info}
        assert video["num_bytes"] == sum(os.stat(folder / "cache" / file).st_size for file in files)
        assert (video["path"], video["num_frames"]) == (data["path"], data["num_frames"])
        assert video["duration_seconds"] == pytest.approx(data["duration_seconds"], abs=1e-6)


def test_ls_prints_a_line_for_each_video(folder, run_cli):
    result = run_cli("ls", "cache", cwd=folder)
    assert (result.returncode, result.stderr) == (0, "")
    header, *lines = result.stdout.splitlines()
    assert header.split() == ["key", "duration", "frames", "size", "bytes", "segment", "labels", "path"]
    assert len(lines) == 3
    assert_clean(result.stdout)
    for line, (key, data) in zip(lines, sorted(sidecars(folder).items()), strict=True):
        size = sum(
            os.stat(folder / "cache" / info["file"]["name"]).st_size for info in data["features"] if "file" in info
        )
        for part in (key, f" {data['num_frames']}  ", "64x48", human_bytes(size)):
            assert part in line
        assert line[header.index("path") :] == cc.errors.printable(data["path"])
    assert "street/evil\\x1b[31m\\u202egpj.mp4" in result.stdout


def test_ls_shows_segments_and_episodes(folder, run_cli, monkeypatch):
    video = ListedVideo("k", "a.mp4", 2.5, 1, 2, 2, 5, "walk, run", {"start_seconds": 1.5, "end_seconds": 4}, 7)
    monkeypatch.setattr("chordcache.look.video_facts.iter_listed", lambda *_: [video])
    result = run_cli("ls", cwd=folder)
    assert re.split("  +", result.stdout.splitlines()[1])[5:] == ["episode 7, [1.5, 4.0) s", "walk, run", "a.mp4"]


def test_a_key_alone_is_of_the_default_cache(folder, run_cli):
    """It is as in ``show KEY``. The path of a video is enough, too."""
    key, data = min(sidecars(folder).items())
    video = folder / "videos" / data["path"]
    for name in (key, key[:-3], data["path"], str(video)):
        whole, alone = (run_cli("info", *args, cwd=folder) for args in (["cache", name], [name]))
        assert (alone.returncode, alone.stdout) == (0, whole.stdout), alone.stderr
        for args in ([name], ["cache", name], ["-o", "cache", name]):
            listed = run_cli("ls", *args, "--json", cwd=folder)
            assert [video["key"] for video in json.loads(listed.stdout)["videos"]] == [key]
    for command in ("info", "ls"):
        for args, message in (
            (["-o", "none", key], "no cache at '"),
            (["none", key], "no cache at '"),
            (["no-such-video"], "KEY: got 'no-such-video', expected a key, the beginning of a key, or the path"),
            (["-o", "cache", "cache", key], "-o: got it with CACHE and KEY, expected one cache"),
            (["index.json", key], "with an index, expected a cache"),
        ):
            result = run_cli(command, *args, cwd=folder)
            assert (result.returncode in (2, 10), result.stdout) == (True, "")
            assert message in result.stderr
        result = run_cli(command, key, cwd=folder / "videos")
        assert f"no cache at '{folder}/videos/{key}'" in result.stderr


def test_ls_lists_an_index(folder, run_cli, tmp_path):
    """A fact that the index does not state is a hyphen, or null."""
    listed = json.loads(run_cli("ls", "index.json", "--json", cwd=folder).stdout)["videos"]
    cached = {video["key"]: video for video in json.loads(run_cli("ls", "--json", cwd=folder).stdout)["videos"]}
    assert set(cached) < {item["key"] for item in listed}
    for item in listed:
        if video := cached.get(item["key"]):
            assert item["num_bytes"] == os.stat(folder / "videos" / item["path"]).st_size
            assert {**item, "num_bytes": 0} == {**video, "num_bytes": 0}
    (tmp_path / "list.csv").write_text("path,label,start_seconds,end_seconds\na b.mp4,run,1,2.5\n")
    line = run_cli("ls", "list.csv", cwd=tmp_path).stdout.splitlines()[1]
    assert re.split("  +", line)[1:] == ["-", "-", "-", "-", "[1.0, 2.5) s", "run", "a b.mp4"]


def test_info_problems_say_what_to_do(folder, run_cli):
    result = run_cli("info", "cache", "--problems", cwd=folder)
    assert result.returncode == 0
    for failure in failures(folder):
        place = result.stdout.index(failure["path"])
        for part in (
            failure["stage"],
            failure["cause"],
            failure["message"],
            remedy(failure["cause"], failure["stage"]),
        ):
            assert part in result.stdout[place:]
    assert result.stdout.endswith("2 problems\n")
    of_index = json.loads(run_cli("info", "index.json", "--problems", "--json", cwd=folder).stdout)["problems"]
    broken = {r["path"]: r["error"] for r in json.loads((folder / "index.json").read_text())["records"] if "error" in r}
    assert {problem["path"]: problem["message"] for problem in of_index} == broken


def test_info_of_one_video_has_all_its_facts(folder, run_cli):
    for key, data in sidecars(folder).items():
        result = run_cli("info", "cache", key, cwd=folder)
        assert result.returncode == 0, result.stderr
        assert_clean(result.stdout)
        assert len(result.stdout) < 5000
        facts = json.loads(run_cli("info", "cache", key, "--json", cwd=folder).stdout)
        assert (facts["num_frames"], facts["num_source_bytes"]) == (data["num_frames"], data["source"]["size"])
        for feature, info in zip(facts["features"], data["features"], strict=True):
            assert (feature["shape"], feature["absent"]) == (info.get("shape", []), info.get("absent"))
            assert info["absent"] if "absent" in info else info["file"]["name"] in result.stdout
        assert f"chordcache show {folder / 'cache'} {key}" in result.stdout
        assert facts["caption"] == data["about"].get("caption")


def test_info_lists_twenty_labels(tmp_path, run_cli):
    lines = "".join(f"v{number}.mp4,{number:03}\n" for number in range(700))
    (tmp_path / "list.csv").write_text("path,label\n" + lines)
    text = run_cli("info", "list.csv", cwd=tmp_path).stdout
    assert "labels               019 1\nlabels               ... and 680 more\n" in text
    assert len(json.loads(run_cli("info", "list.csv", "--json", cwd=tmp_path).stdout)["labels"]) == 700


def test_show_writes_a_picture_and_prints_its_path(folder, run_cli, tmp_path):
    cache = folder / "cache"
    (key,) = (key for key in sidecars(folder) if key.startswith("a-"))
    result = run_cli("show", cache, "a-", cwd=tmp_path)
    assert (result.returncode, result.stdout, result.stderr) == (0, f"{key}.png\n", "")
    assert cv2.imread(os.fspath(tmp_path / f"{key}.png")).shape[1] == 1600
    for name in ("people/a.mp4", os.fspath(folder / "videos/people/a.mp4")):
        arguments = ("--seconds", "0.1:0.5")
        assert run_cli("show", cache, name, "-o", "b.png", *arguments, cwd=tmp_path).stdout == "b.png\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{key}.png", "b.png"]
    sheet = json.loads(run_cli("show", cache, "a-", "-o", "b.png", "--json", cwd=tmp_path).stdout)
    assert (sheet["path"], sheet["key"], sheet["damage"]) == ("b.png", key, {})
    assert "frames" in sheet["drawn"]
    assert not set(sheet["drawn"]) & set(sheet["absent"])


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("nowhere", "a"), 10, "no cache at"),
        (("cache", "aa"), 10, "KEY|PATH: got 'aa', expected a key, the beginning of a key"),
        (("cache", "a-", "-o", "cache/x.png"), 2, "--output: got 'cache/x.png', which is inside the cache"),
        (("cache", "a-", "-o", "nowhere/x.png"), 2, "cannot write the picture 'nowhere/x.png': No such file"),
        (("cache", "a-", "--seconds", "9:"), 2, "--seconds: got 9 to "),
        (("cache", "a-", "--seconds", "9"), 2, "--seconds: got '9', expected START:STOP"),
        (("cache", "a-", "--seconds", "0:1:2"), 2, "--seconds: got '0:1:2', expected START:STOP"),
        ((), 2, "KEY|PATH: got nothing, expected a key or a path"),
    ],
)
def test_wrong_arguments_of_show(folder, run_cli, arguments, code, message):
    before = sorted(folder.rglob("*"))
    result = run_cli("show", *arguments, cwd=folder)
    assert (result.returncode, result.stdout) == (code, "")
    assert message in result.stderr
    assert sorted(folder.rglob("*")) == before


def test_show_of_a_damaged_video_draws_what_it_can(folder, run_cli, tmp_path):
    copy = Path(shutil.copytree(folder / "cache", tmp_path / "cache"))
    for file in copy.glob("npz/*/a-*.mel.*"):
        os.truncate(file, 100)
    result = run_cli("show", "cache", "a-", "-o", "a.png", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (5, "a.png\n")
    assert "mel: " in result.stderr
    assert (tmp_path / "a.png").exists()


def test_show_without_opencv(folder):
    code = "import sys; sys.modules['cv2'] = None\nfrom chordcache.cli import main\nmain()"
    command = [sys.executable, "-c", code, "show", "cache", "a-"]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    assert result.returncode == 2
    assert "error: no OpenCV (cv2) is installed; run: pip install 'chordcache[build]'" in result.stderr


def test_caches_without_videos(tmp_path, run_cli):
    (tmp_path / "videos").mkdir()
    (tmp_path / "videos" / "junk.mp4").write_bytes(b"junk")
    run_cli("scan", "videos", cwd=tmp_path)
    assert run_cli("build", "--tier", "lmdb", cwd=tmp_path).returncode == 3
    assert len(run_cli("ls", cwd=tmp_path).stdout.splitlines()) == 1
    assert json.loads(run_cli("ls", "--json", cwd=tmp_path).stdout)["videos"] == []
    assert "junk.mp4" in run_cli("info", "--problems", cwd=tmp_path).stdout
    assert "videos               0\n" in run_cli("info", cwd=tmp_path).stdout
    assert run_cli("show", "cache", "junk", cwd=tmp_path).returncode == 10


def test_a_cache_that_is_built_for_the_first_time(folder, run_cli, tmp_path):
    copy = Path(shutil.copytree(folder / "cache", tmp_path / "cache"))
    (copy / "catalog.bin").unlink()
    assert "2 problems" in run_cli("info", "--problems", cwd=tmp_path).stdout
    result = run_cli("ls", cwd=tmp_path)
    assert result.returncode == 10
    assert "has no catalog" in result.stderr


def findings_of(run_cli, **options):
    result = run_cli("doctor", "--json", **options)
    assert result.returncode == 0, result.stderr
    return {finding["name"]: finding for finding in json.loads(result.stdout)["findings"]}


def test_doctor_lists_features_and_presets(run_cli):
    findings = findings_of(run_cli)
    names = "frames flow motion mel waveform librosa pose text latents embed".split()
    assert [name for name in findings if name.startswith("feature ")][:10] == [f"feature {name}" for name in names]
    assert findings["feature waveform"]["severity"] == "ok"
    pose = findings["feature pose"]
    assert pose["severity"] == "ok" or pose["action"] == "pip install 'chordcache[pose]'"
    assert [name for name in findings if name.startswith("preset ")] == [f"preset {name}" for name in preset_names()]


PLUG_IN = '''
from chordcache.features.base import Extractor

class Mean(Extractor):
    """The mean of each frame."""

    def __init__(self, name, *, power, scale=2.5, how=print):
        super().__init__(name)
'''


def test_plug_ins_are_found_by_entry_points(run_cli, tmp_path):
    (tmp_path / "pixels.py").write_text(PLUG_IN)
    facts = tmp_path / "pixels-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: pixels\nVersion: 1.0\n")
    lines = ("mean = pixels:Mean", "broken = pixels:Missing", "gone = nowhere:Class")
    (facts / "entry_points.txt").write_text("[chordcache.extractors]\n" + "\n".join(lines) + "\n")
    path = f"{tmp_path}{os.pathsep}{Path(cc.__file__).parent.parent}"
    findings = findings_of(run_cli, env={"PYTHONPATH": path})
    assert findings["feature mean"]["severity"] == "ok"
    assert findings["feature mean"]["what"] == "extractor: pixels:Mean"
    assert "cannot import 'pixels:Missing'" in findings["feature broken"]["why"]
    assert "No module named 'nowhere'" in findings["feature gone"]["why"]


BAD = "a\x1b[2J\n\u202eb\x9b\x07\r"


def test_forged_names_are_escaped(folder, run_cli, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    shutil.copytree(folder / "cache", cache)
    reseal(cache / "quarantine.jsonl", key=BAD, root=BAD, cause=BAD, stage=BAD, message=BAD)
    header = json.loads((cache / "chordcache.json").read_text())
    reseal(cache / "chordcache.json", versions={**header.get("versions", {}), BAD: BAD})
    video = ListedVideo(BAD, BAD, 1.0, 1, 2, 2, 5, BAD, episode=BAD)
    monkeypatch.setattr("chordcache.look.video_facts.iter_listed", lambda *_: [video])
    monkeypatch.setattr("chordcache.look.video_facts.describe_video", lambda video: {**facts(video), "show": BAD})
    facts = describe_video
    for arguments in (
        ["ls", cache], ["ls", cache, "--json"], ["info", cache], ["info", cache, "people"],
        ["info", cache, "--problems"], ["verify", cache], ["gc", cache, "--dry-run"], ["show", cache, BAD],
        ["build", folder / "index.json", "-o", cache, "--dry-run"], ["report", cache, "-o", tmp_path / "r.html"],
        ["info", cache, BAD], ["ls", tmp_path / BAD], ["build", "a", BAD], [BAD],
        ["scan", tmp_path / BAD], ["verify", cache, f"--{BAD}"], ["index", tmp_path / BAD],
        ["build", "--dry-run", "--budget", BAD],
    ):  # fmt: skip
        result = run_cli(*arguments, cwd=tmp_path)
        assert result.stdout or result.stderr
        for text in (result.stdout, result.stderr):
            assert all(line.isprintable() for line in text.replace("\t", "").split("\n")), arguments


def test_commands_print_with_one_function():
    folder = Path(cc.__file__).parent / "cli"
    texts = {path.name: path.read_text() for path in folder.glob("*.py")}
    assert [name for name, text in texts.items() if re.search(r"click\.s?echo|\bprint\(", text)] == ["output.py"]
