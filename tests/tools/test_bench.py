"""``chordcache bench``: every way, on real caches, and what it does with bad input. No test asserts a time."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from helpers.ffmpeg import ffmpeg

import chordcache as cc
from chordcache.media.versions import library_versions
from chordcache.tools.bench import measurement
from chordcache.tools.bench.measurement import bench
from chordcache.tools.bench.readers import DECODERS
from chordcache.tools.bench.result import SOURCES as SOURCES_BY_KEY
from chordcache.tools.bench.result import BenchOptions, BenchResult, RowResult, as_text

QUICK = BenchOptions(batch_size=2, num_frames=4, stride=2, size=32, workers=1, seconds=0.2)
SOURCES = ["OpenCV (seek for each frame)", "PyAV (one seek)", "mapped MP4", "torchcodec"]
HAS_TORCHCODEC = importlib.util.find_spec("torchcodec") is not None


def digests(folder):
    """File: digest, size and modification time, of a whole folder."""
    return {
        str(path.relative_to(folder)): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory, make_video, run_cli):
    """Two videos, their index, and their cache."""
    folder = tmp_path_factory.mktemp("bench")
    for name in ("a.mp4", "b.mp4"):
        make_video(folder / "videos" / name, num_frames=40)
    for arguments in (["scan", "videos"], ["build", "--features", "frames"]):
        result = run_cli(*arguments, cwd=folder)
        assert result.returncode == 0, result.stderr
    return folder


@pytest.fixture(scope="module")
def measured(folder):
    """The digests of the cache before and after a measurement of two rounds, and its data."""
    before = digests(folder / "cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measurement, "NUM_ROUNDS", 2)
        result = bench(folder / "cache", options=QUICK)
    return before, digests(folder / "cache"), dataclasses.asdict(result)


def test_every_way_is_measured(measured):
    _, _, report = measured
    pairs = [*((name, "DataLoader") for name in SOURCES), ("cache", "DataLoader"), ("cache", "ClipLoader")]
    assert [(row["name"], row["loader"]) for row in report["rows"]] == pairs
    for row in report["rows"]:
        if row["name"] == "torchcodec" and not HAS_TORCHCODEC:
            assert row["reason"] == "not installed: pip install torchcodec"
            assert row["clips_per_second"] is None
            continue
        assert row["reason"] is None, row
        least, most = row["clips_per_second_range"]
        assert 0 < least <= row["clips_per_second"] <= most
        assert row["speedup"] > 0
    assert max(row["speedup"] or 0 for row in report["rows"] if row["name"] != "cache") == 1
    assert report["settings"]["workers"] == 1
    assert report["versions"] == library_versions()


def test_nothing_in_the_cache_changes(measured):
    before, after, _ = measured
    assert before
    assert before == after


@pytest.mark.parametrize("reader", [name for name in DECODERS if name != "torchcodec" or HAS_TORCHCODEC])
@pytest.mark.parametrize("numbers", [[3, 7, 11], [0, 1], [39, 39], [20]])
def test_readers_of_sources_have_the_frames_asked_for(folder, reader, numbers):
    path = folder / "videos" / "a.mp4"
    with cc.MP4Source().open(path) as source:
        everything = source.get_frames(range(source.num_frames)).astype(np.int16)
    for number, frame in zip(numbers, DECODERS[reader](str(path), numbers), strict=True):
        errors = np.abs(everything - frame).mean((1, 2, 3))
        assert int(errors.argmin()) == number
        assert errors[number] < 3


def test_a_crash_of_a_library_ends_only_its_row(folder, tmp_path, monkeypatch, bench_once):
    decoders = tmp_path / "torchcodec" / "decoders"
    decoders.mkdir(parents=True)
    (decoders.parent / "__init__.py").touch()
    (decoders / "__init__.py").write_text("import os\nos.kill(os.getpid(), 11)\n")
    monkeypatch.syspath_prepend(tmp_path)  # a process of a row has this process's path
    rows = dataclasses.asdict(bench_once(folder / "cache", "torchcodec", "mapped_mp4"))["rows"]
    reasons = [row["reason"] for row in rows if row["name"] == "torchcodec"]
    assert reasons == ["the worker died: SIGSEGV(-11), at __init__.py:2 <module>"]
    assert all(row["clips_per_second"] for row in rows if row["name"] != "torchcodec")


@pytest.fixture
def bench_once(monkeypatch):
    """``bench`` of some ways, with one round and without workers of a DataLoader."""
    monkeypatch.setattr(measurement, "NUM_ROUNDS", 1)

    def measure(cache, *sources):
        monkeypatch.setattr(measurement, "SOURCES", {source: SOURCES_BY_KEY[source] for source in sources})
        return bench(cache, options=dataclasses.replace(QUICK, workers=0))

    return measure


def make_ivf(folder, make_video):
    """A video whose average frame rate is not known to PyAV."""
    ffmpeg("-i", make_video(folder / "made.mp4", num_frames=20), "-c:v", "libvpx", folder / "videos" / "b.ivf")


def test_a_way_that_cannot_read_a_file_is_a_row_without_figures(tmp_path, make_video, bench_once):
    (tmp_path / "videos").mkdir()
    make_ivf(tmp_path, make_video)
    cc.build(tmp_path / "videos", tmp_path / "cache", features=["frames"], jobs=1)
    result = bench_once(tmp_path / "cache", "pyav", "opencv")
    assert result.num_videos == 1
    reasons = {row.name: row.reason for row in result.rows}
    assert "NoneType" in reasons["PyAV (one seek)"]
    assert reasons["cache"] is None
    assert " times " in result.verdict
    assert "fastest" not in result.verdict


def test_the_command_without_sources(tmp_path, make_video, run_cli, monkeypatch):
    monkeypatch.setattr(measurement, "NUM_ROUNDS", 1)
    make_video(tmp_path / "videos" / "a\n.mp4", num_frames=40)
    for arguments in (["scan", "videos"], ["build"]):
        assert run_cli(*arguments, cwd=tmp_path).returncode == 0
    shutil.rmtree(tmp_path / "videos")
    result = run_cli("bench", "cache", "--jobs", "0", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "\\n.mp4' is missing. Use --root if it moved.\n" in result.stdout
    assert "\nThe cache feeds " in result.stdout
    assert " ms for 8 clips" in result.stdout


def test_an_empty_cache_is_an_error(tmp_path, run_cli, run_process):
    (tmp_path / "videos").mkdir()
    (tmp_path / "videos" / "bad.mp4").write_bytes(b"not a video")
    run_cli("scan", "videos", cwd=tmp_path)
    run_cli("build", cwd=tmp_path)
    result = run_process("bench", "cache", cwd=tmp_path)
    assert result.returncode == 2
    assert "expected at least one" in result.stderr
    assert not result.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("nowhere",), 10, "no cache at '"),
        (("index.json",), 10, "no cache at '"),
        (("cache", "--jobs", "-1"), 2, "--jobs: got -1, expected an integer of at least 0"),
    ],
)
def test_bad_arguments(folder, run_cli, arguments, code, message):
    result = run_cli("bench", *arguments, cwd=folder)
    assert result.returncode == code
    assert message in result.stderr


@pytest.mark.parametrize(("module", "install"), [("torch", "chordcache[train]"), ("cv2", "chordcache[build]")])
def test_without_a_package_it_says_what_to_install(folder, module, install):
    code = f"import sys\nsys.modules[{module!r}] = None\nfrom chordcache.cli import main\nmain()"
    command = [sys.executable, "-c", code, "bench", str(folder / "cache")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 2
    assert f"{module}, which is not installed. Run: pip install '{install}'" in result.stderr


SLOW = RowResult("OpenCV (seek for each frame)", "DataLoader", 10.0, (9.0, 11.0), 0.33)
MAPPED = RowResult("mapped MP4", "DataLoader", 30.5, (30.0, 31.0), 1.0)
FAST = RowResult("cache", "ClipLoader", 61.0, (60.0, 62.0), 2.0)


def result_of(*rows: RowResult, **options: object) -> BenchResult:
    return BenchResult("x", 1, BenchOptions(**options), 1, {}, rows)


def test_the_verdict_in_a_sentence():
    assert result_of(SLOW, MAPPED, FAST).verdict == (
        "The cache feeds 61 clips/s with a ClipLoader of 2 threads, 2.0 times mapped MP4, the fastest way "
        "without it; a GPU step of less than 131 ms for 8 clips would wait."
    )


def test_the_verdict_claims_nothing_that_was_not_measured():
    alone = dataclasses.replace(FAST, speedup=None)
    assert "times" not in result_of(alone).verdict
    broken = dataclasses.replace(alone, clips_per_second=None, reason="it broke")
    assert result_of(broken).verdict == "The cache could not be measured: it broke."
    assert "it broke" in as_text(result_of(dataclasses.replace(broken, clips_per_second_range=None)))


def test_the_verdict_names_a_faster_way_without_the_cache():
    faster = dataclasses.replace(MAPPED, clips_per_second=122.0)
    slower = dataclasses.replace(FAST, speedup=0.5)
    assert "0.5 times mapped MP4, the fastest way without it" in result_of(SLOW, faster, slower).verdict


def test_the_error_of_a_process_is_a_reason(folder, monkeypatch):
    (way, *_), _ = measurement._ways(folder / "cache", QUICK, None)
    monkeypatch.setattr(measurement, "measure_round", os.kill)
    row = measurement._Row(way, None)
    row.measure()
    row.worker.close()
    assert "takes exactly 2 arguments" in row.reason
    assert row.result(None).clips_per_second is None
