"""``chordcache bench``: every row, on real caches, and what it does with bad input. No test asserts a time."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys

import pytest

import chordcache as cc
from chordcache.tools.bench import BenchOptions, BenchResult, RowResult, as_html, as_markdown, as_text, bench
from chordcache.tools.bench.memory import drop_from_memory, share_in_memory
from chordcache.tools.bench.result import best_of, verdict_of
from chordcache.tools.bench.stages import _differences

QUICK = ("--seconds", "0.2", "--workers", "0", "--threads", "1", "--num-frames", "4", "--stride", "2", "--size", "32")
ONE_CLIP = ("--batch-size", "2")
TIMEOUT = 280


def digests(folder):
    """File: digest, size and modification time, of a whole folder."""
    return {
        str(path.relative_to(folder)): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory, make_video, run_process):
    """Two videos, their index, and their cache in two tiers."""
    folder = tmp_path_factory.mktemp("bench")
    for name in ("a.mp4", "b.mp4"):
        make_video(folder / "videos" / name, num_frames=40)
    for arguments in (["scan", "videos"], ["build", "--tier", "lmdb", "--tier", "hdf5", "--features", "frames"]):
        result = run_process(*arguments, cwd=folder)
        assert result.returncode == 0, result.stderr
    return folder


@pytest.fixture(scope="module")
def measured(folder, run_process):
    """The digests of the cache before and after a measurement with all outputs, and its JSON."""
    before = digests(folder / "cache")
    options = (*QUICK, *ONE_CLIP, "--workers", "0,1", "--cold", "--json", "--md", "out.md", "--html", "out.html")
    result = run_process("bench", "cache", *options, cwd=folder, timeout=TIMEOUT)
    assert result.returncode == 0, result.stderr
    return before, digests(folder / "cache"), json.loads(result.stdout)


def test_every_row_is_measured(measured):
    _, _, found = measured
    rows = {(row["name"], row["loader"], row["num_workers"]): row for row in found["rows"]}
    expected = {(name, "DataLoader", n) for name in ("OpenCV, seek for each frame", "mapped MP4") for n in (0, 1)}
    for name in ("cache: lmdb, jpeg", "cache: hdf5, jpeg"):
        expected |= {(name, "DataLoader", 0), (name, "DataLoader", 1), (name, "ClipLoader", 1)}
    assert expected <= rows.keys()
    for key in expected:
        row = rows[key]
        assert row["reason"] is None, row
        assert row["num_rounds"] >= 1
        least, most = row["clips_per_second_range"]
        assert 0 < least <= row["clips_per_second"] <= most
        assert row["speedup"] > 0
        assert row["cold_clips_per_second"] > 0
        assert row["memory_bytes"] > 1 << 20
        assert row["bytes_per_frame"] > 0
        if row["wait_share"] is not None:
            assert 0 <= row["wait_share"] <= 1
    assert rows["OpenCV, seek for each frame", "DataLoader", 0]["speedup"] == 1


def test_the_stages_of_both_tiers_are_measured(measured):
    _, _, found = measured
    assert [stage["name"] for stage in found["stages"]] == ["cache: lmdb, jpeg", "cache: hdf5, jpeg"]
    for stage in found["stages"]:
        names = ["read", "decode", "crop", "choose frames, make tensors", "collate", "copy"]
        assert list(stage["milliseconds"]) == names
        assert sum(stage["milliseconds"].values()) > 0


def test_the_verdict_has_the_figures_of_the_best_row(measured):
    _, _, found = measured
    best = found["best"]
    assert best["is_cache"]
    assert best["clips_per_second"] == max(row["clips_per_second"] or 0 for row in found["rows"] if row["is_cache"])
    assert f"feeds {best['clips_per_second']:.0f} clips/s" in found["verdict"]
    assert f"{best['speedup']:.1f} times OpenCV" in found["verdict"]


def test_nothing_in_the_cache_changes(measured):
    before, after, _ = measured
    assert before
    assert before == after


def test_the_pages_have_every_row_and_the_verdict(measured, folder):
    _, _, found = measured
    page = (folder / "out.html").read_text(encoding="utf-8")
    assert "default-src 'none'" in page
    assert "<script" not in page
    assert page.count("<rect") == sum(row["clips_per_second"] is not None for row in found["rows"])
    markdown = (folder / "out.md").read_text(encoding="utf-8")
    assert markdown.count("\n| ") == len(found["rows"]) + 2
    assert found["verdict"].replace("_", "\\_") in markdown


def test_a_package_that_is_not_installed_has_a_row_that_says_so(measured):
    if importlib.util.find_spec("torchcodec") is not None:
        pytest.skip("torchcodec is installed")
    _, _, found = measured
    (row, _) = [row for row in found["rows"] if row["name"] == "torchcodec"]
    assert row["reason"] == "not installed: pip install torchcodec"
    assert row["clips_per_second"] is None


def test_a_crash_of_a_library_ends_only_its_row(folder, tmp_path, run_process):
    decoders = tmp_path / "torchcodec" / "decoders"
    decoders.mkdir(parents=True)
    (decoders.parent / "__init__.py").touch()
    (decoders / "__init__.py").write_text("import os\nos.kill(os.getpid(), 11)\n")
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    options = (*QUICK, *ONE_CLIP, "--json")
    result = run_process("bench", "cache", *options, cwd=folder, env={"PYTHONPATH": path}, timeout=TIMEOUT)
    assert result.returncode == 0, result.stderr
    rows = json.loads(result.stdout)["rows"]
    reasons = [row["reason"] for row in rows if row["name"] == "torchcodec"]
    assert reasons == ["the worker died: SIGSEGV(-11), at __init__.py:2 <module>"]
    assert all(row["clips_per_second"] for row in rows if row["name"] != "torchcodec")


def test_one_short_video_of_an_index(tmp_path, make_video, run_process):
    make_video(tmp_path / "videos" / "short.mp4", num_frames=3)
    assert run_process("scan", "videos", cwd=tmp_path).returncode == 0
    before = digests(tmp_path)
    result = run_process("bench", "index.json", *QUICK, *ONE_CLIP, cwd=tmp_path, timeout=TIMEOUT)
    assert result.returncode == 0, result.stderr
    assert "A temporary cache of 1 of the 1 videos" in result.stdout
    assert "clips/s on this machine" in result.stdout
    assert digests(tmp_path) == before


def test_names_are_escaped_where_sources_are_missing(tmp_path, make_video, run_process):
    name = "<img src=x onerror=alert(1)>|`&.mp4"
    make_video(tmp_path / "videos" / name, num_frames=40)
    for arguments in (["scan", "videos"], ["build", "-o", "<b>cache"]):
        assert run_process(*arguments, cwd=tmp_path).returncode == 0
    shutil.rmtree(tmp_path / "videos")
    options = (*QUICK, *ONE_CLIP, "--html", "out.html", "--md", "out.md")
    result = run_process("bench", "<b>cache", *options, cwd=tmp_path, timeout=TIMEOUT)
    assert result.returncode == 0, result.stderr
    assert "The rows of the sources are left out: the sources of 1 of 1 videos are missing" in result.stdout
    page = (tmp_path / "out.html").read_text(encoding="utf-8")
    assert "&lt;img src=x" in page
    assert "<img" not in page
    assert "<b>" not in page
    assert "\\<img" in (tmp_path / "out.md").read_text(encoding="utf-8")


def test_an_empty_cache_is_an_error(tmp_path, run_process):
    (tmp_path / "videos").mkdir()
    (tmp_path / "videos" / "bad.mp4").write_bytes(b"not a video")
    run_process("scan", "videos", cwd=tmp_path)
    run_process("build", cwd=tmp_path)
    for path, what in (("cache", "cache"), ("index.json", "index")):
        result = run_process("bench", path, cwd=tmp_path)
        assert result.returncode == 2
        assert f"got {what} '" in result.stderr
        assert "expected at least one" in result.stderr
        assert not result.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("nowhere",), 10, "got 'nowhere', which does not exist"),
        (("cache", "--workers", "two"), 2, "--workers: got 'two', expected numbers"),
        (("cache", "--workers", "-1"), 2, "--workers: got -1, expected an integer of at least 0"),
        (("cache", "--prefetch", "0"), 2, "--prefetch: got 0, expected an integer of at least 1"),
        (("cache", "--seconds", "0"), 2, "--seconds: got 0.0, expected a number above 0"),
        (("cache", "--batch-size", "0"), 2, "--batch-size: got 0, expected an integer of at least 1"),
        (("cache", "--html", "no/such/folder.html"), 2, "cannot write 'no/such/folder.html'"),
    ],
)
def test_bad_arguments(folder, run_process, arguments, code, message):
    result = run_process("bench", *arguments, cwd=folder)
    assert result.returncode == code
    assert message in result.stderr


@pytest.mark.parametrize(("module", "install"), [("torch", "chordcache[torch]"), ("cv2", "chordcache[cv]")])
def test_without_a_package_it_says_what_to_install(folder, module, install):
    code = f"import sys\nsys.modules[{module!r}] = None\nfrom chordcache.cli import main\nmain()"
    command = [sys.executable, "-c", code, "bench", str(folder / "cache")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 2
    assert f"{module}, which is not installed. Run: pip install '{install}'" in result.stderr


def test_files_leave_memory_and_come_back(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(os.urandom(1 << 20))
    drop_from_memory([str(path)])
    if share_in_memory([str(path)]) == 1:
        pytest.skip("this file system keeps its files in memory")
    assert share_in_memory([str(path)]) == 0
    path.read_bytes()
    assert share_in_memory([str(path)]) == 1


def test_stages_are_differences_that_are_not_negative():
    times = {"read": 1.0, "decode": 5.0, "crop": 4.0, "collate": 2.0}
    assert _differences(times, ("read", "decode", "crop")) == {"read": 1.0, "decode": 4.0, "crop": 0.0, "collate": 2.0}


# The verdict and the pages, from figures

SLOW = RowResult("OpenCV, seek for each frame", "DataLoader", 0, 0, False, clips_per_second=10.0, speedup=1.0)
FAST = RowResult("cache: lmdb, jpeg", "ClipLoader", 2, 4, True, clips_per_second=61.0, speedup=6.1, wait_share=0.02)
SETTINGS = dataclasses.asdict(BenchOptions())


def test_the_verdict_in_a_sentence():
    assert verdict_of((SLOW, FAST), (), SETTINGS) == (
        "The cache (lmdb, jpeg) feeds 61 clips/s on this machine with a ClipLoader, 2 threads, prefetch 4, 6.1 times "
        "OpenCV without workers; a step of 50 ms for 8 clips would wait 2 % of its time."
    )


def test_the_verdict_claims_nothing_that_was_not_measured():
    alone = dataclasses.replace(FAST, speedup=None, wait_share=None)
    text = verdict_of((alone,), (), SETTINGS)
    assert "OpenCV" not in text
    assert "wait" not in text
    broken = dataclasses.replace(alone, clips_per_second=None, reason="it broke")
    assert verdict_of((broken,), (), SETTINGS) == "The cache could not be measured: it broke."
    assert best_of((broken, SLOW)) is None


def test_the_verdict_names_a_faster_way_without_the_cache():
    faster = dataclasses.replace(SLOW, name="mapped MP4", clips_per_second=99.0)
    assert "Faster without the cache: mapped MP4, no workers, 99 clips/s." in verdict_of((faster, FAST), (), SETTINGS)


def test_a_result_without_any_figure_can_be_shown():
    row = dataclasses.replace(FAST, clips_per_second=None, speedup=None, wait_share=None, reason="it broke")
    result = BenchResult("x", 1, SETTINGS, {"processors": 1}, (row,), (), (), None, verdict_of((row,), (), SETTINGS))
    for show in (as_text, as_markdown, as_html):
        assert "it broke" in show(result)


def test_the_function_refuses_what_is_not_a_cache(tmp_path):
    with pytest.raises(cc.NotFoundError, match="which does not exist"):
        bench(tmp_path / "nowhere")
    with pytest.raises(cc.NotFoundError, match="no cache at"):
        bench(tmp_path)
