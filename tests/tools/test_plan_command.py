"""The estimates of plan agree with what a build makes, and its budgets with what fits."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.ffmpeg import ffmpeg

import chordcache as cc
from chordcache.config.config import Config, config_from_json
from chordcache.config.yaml_files import load_config, read_config
from chordcache.tools import plan_estimate, plan_units
from chordcache.tools.plan import PlanOptions, plan_build

SIZES = ("320:180", "480:270", "640:360", "854:480")


def cut(source: Path, target: Path, start: float, seconds: float, size: str) -> None:
    """Encode a part of a clip at another size, with its sound."""
    target.parent.mkdir(parents=True, exist_ok=True)
    encoder = ("-c:v", "libx264", "-preset", "ultrafast", "-threads", "1", "-pix_fmt", "yuv420p")
    ffmpeg("-ss", str(start), "-t", str(seconds), "-i", source, "-vf", f"scale={size},setsar=1", *encoder, target)


@pytest.fixture(scope="module")
def pieces(clips: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of 48 parts of real clips: four sizes, lengths from a third of a second to two seconds."""
    folder = tmp_path_factory.mktemp("pieces")
    rng = np.random.default_rng(7)
    sources = ("animation/bigbuckbunny.mp4", "street/bikes.mp4", "people/carphone_pristine.mp4")
    for number in range(48):
        source = clips / sources[number % 3]
        seconds = round(float(np.exp(rng.uniform(np.log(0.35), np.log(2)))), 2)
        start = round(float(rng.uniform(0, 3)), 2)
        cut(source, folder / f"{number:02}.mp4", start, seconds, SIZES[int(rng.integers(4))])
    return folder


def built(index: Any, folder: Path, config: Config | None = None, **options: Any) -> tuple[int, int]:
    """Build everything, and return the bytes of artefacts and sidecars, and the number of inodes of the cache."""
    cc.build(index, folder, config=config, jobs=1, **options)
    paths = [folder, *folder.rglob("*")]
    inodes = {path.stat().st_ino: path for path in paths}
    files = [path for path in inodes.values() if path.is_file() and path.parent != folder]
    return sum(path.stat().st_size for path in files), len(inodes)


def assert_near(estimate: plan_estimate.Estimate, truth: float, tolerance: float) -> None:
    assert estimate.low <= estimate.value <= estimate.high
    assert estimate.value == pytest.approx(truth, rel=tolerance)


FLOW = {"features": {"flow": {"method": "dis", "preset": "ultrafast"}}}


@pytest.mark.parametrize(
    ("tiers", "config", "num_videos", "num_sampled"),
    [(("lmdb",), {}, 48, 16), (("lmdb", "npz"), FLOW, 24, 10), (("hdf5",), FLOW, 24, 10)],
    ids=["frames", "features", "one file"],
)
def test_the_size_is_right_within_15_percent(
    pieces: Path, tmp_path: Path, tiers: tuple[str, ...], config: Any, num_videos: int, num_sampled: int
) -> None:
    settings = config_from_json(config)
    index = cc.scan([pieces / f"{number:02}.mp4" for number in range(num_videos)], jobs=1)
    found = plan_build(index, tiers=tiers, config=settings, options=PlanOptions(num_sampled=num_sampled))
    size, inodes = built(index, tmp_path / "cache", settings, tiers=tiers)
    assert (found.num_videos, found.num_unreadable, found.num_sampled) == (num_videos, 0, num_sampled)
    assert found.num_failed == 0
    assert_near(found.num_bytes, size, 0.15)
    assert_near(found.inodes, inodes, 0.1)
    true_sizes: dict[tuple[str, str], int] = {}
    for name, num_bytes in cc.summarize(tmp_path / "cache")["bytes"].items():
        features, _, tier = name.rpartition(" in ")
        true_sizes[tier, features] = num_bytes
    assert {(each.tier, each.features) for each in found.sizes} == true_sizes.keys()
    for each in found.sizes:
        assert_near(each.num_bytes, true_sizes[each.tier, each.features], 0.2)
    assert found.memory_bytes.value > found.jobs * 50e6
    assert 0 < found.cpu_hours.low < found.cpu_hours.value
    assert found.hours.value == pytest.approx(found.cpu_hours.value / found.jobs)


def test_a_sample_of_all_is_exact(clips: Path, tmp_path: Path) -> None:
    index = cc.scan([clips], jobs=1)
    found = plan_build(index, jobs=3)
    size, inodes = built(index, tmp_path / "cache")
    assert found.num_bytes == plan_estimate.Estimate(size, size, size)
    assert found.inodes.value == inodes
    assert (found.num_sampled, found.jobs) == (4, 3)


def test_one_video(pieces: Path, tmp_path: Path) -> None:
    index = cc.scan([pieces / "00.mp4"], jobs=1)
    found = plan_build(index)
    assert found.num_bytes.value == built(index, tmp_path / "cache")[0]


@pytest.fixture(scope="module")
def film(clips: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with a video of 90 seconds, in which the scene changes."""
    folder = tmp_path_factory.mktemp("film")
    for number, name in enumerate(("animation/bigbuckbunny.mp4", "street/bikes.mp4", "people/carphone_pristine.mp4")):
        cut(clips / name, folder / f"{number}.mp4", 0, 3, "320:180,fps=25")
    lines = [f"file '{folder}/{number % 3}.mp4'\n" for number in range(30)]
    (folder / "list.txt").write_text("".join(lines))
    (folder / "films").mkdir()
    options = ("-an", "-c:v", "libx264", "-preset", "ultrafast", "-threads", "1", "-g", "50")
    ffmpeg("-f", "concat", "-safe", "0", "-i", folder / "list.txt", *options, folder / "films" / "film.mp4")
    return folder / "films"


@pytest.mark.parametrize("level", ["packets", "headers"])
def test_a_long_video_is_built_in_part(film: Path, tmp_path: Path, level: str) -> None:
    index = cc.scan([film], jobs=1, level=level)
    found = plan_build(index)
    size, inodes = built(index, tmp_path / "cache")
    assert_near(found.num_bytes, size, 0.15)
    assert found.num_bytes.low < size < found.num_bytes.high
    assert found.inodes.value == inodes


def test_segments(film: Path, tmp_path: Path) -> None:
    os.link(film / "film.mp4", tmp_path / "film.mp4")
    rows = [f"film.mp4,{start},{start + 4}" for start in range(0, 80, 2)]
    (tmp_path / "list.csv").write_text("\n".join(["path,start_seconds,end_seconds", *rows]))
    found = plan_build(tmp_path / "list.csv")
    size, inodes = built(tmp_path / "list.csv", tmp_path / "cache")
    assert_near(found.num_bytes, size, 0.15)
    assert_near(found.inodes, inodes, 0.05)
    assert (found.num_videos, found.num_sampled) == (40, 1)


def test_a_hand_written_list(pieces: Path, tmp_path: Path) -> None:
    """Only the sizes of the files are known, and two files are missing."""
    names = sorted(os.listdir(pieces))
    for name in names:
        os.link(pieces / name, tmp_path / name)
    (tmp_path / "list.csv").write_text("\n".join(["path", *names, "missing1.mp4", "missing2.mp4"]))
    found = plan_build(tmp_path / "list.csv", options=PlanOptions(num_sampled=16))
    size, _ = built(tmp_path / "list.csv", tmp_path / "cache")
    assert (found.num_videos, found.num_unreadable) == (48, 2)
    assert found.num_bytes.low < size < found.num_bytes.high
    scanned = plan_build(cc.scan([pieces], jobs=1), options=PlanOptions(num_sampled=16))
    width, known_width = (each.num_bytes.high - each.num_bytes.low for each in (found, scanned))
    assert width > known_width


def test_unreadable_entries(pieces: Path, tmp_path: Path) -> None:
    videos = tmp_path / "videos"
    videos.mkdir()
    for name in ("00.mp4", "01.mp4", "02.mp4"):
        (videos / name).symlink_to(pieces / name)
    (videos / "junk.mp4").write_bytes(b"not a video" * 1000)
    index = cc.scan([videos], jobs=1, follow_symlinks=True)
    (videos / "02.mp4").unlink()
    (videos / "02.mp4").write_bytes(b"replaced after the scan" * 1000)
    found = plan_build(index)
    assert (found.num_videos, found.num_unreadable, found.num_sampled, found.num_failed) == (3, 1, 3, 1)
    assert len(found.failures) == 1
    assert found.num_bytes.value == built(index, tmp_path / "cache")[0]


def test_an_empty_index(tmp_path: Path, run_cli) -> None:
    (tmp_path / "list.csv").write_text("path\n")
    result = run_cli("plan", "list.csv", "--budget", "1GB", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (10, "")
    assert "list.csv" in result.stderr


def test_only_unreadable_entries(tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text("path\nmissing.mp4\n")
    found = plan_build(tmp_path / "list.csv", options=PlanOptions(budget_bytes=1))
    assert (found.num_videos, found.num_unreadable, found.num_bytes.value, found.fits) == (0, 1, 0.0, True)


# Budgets


@pytest.fixture(scope="module")
def few(pieces: Path) -> cc.ScanResult:
    return cc.scan([pieces / f"{number:02}.mp4" for number in range(4)], jobs=1)


def test_presets_that_fit(few: cc.ScanResult, tmp_path: Path) -> None:
    size, _ = built(few, tmp_path / "cache")
    assert plan_build(few, options=PlanOptions(budget_bytes=1.2 * size)).fits
    found = plan_build(few, options=PlanOptions(budget_bytes=0.6 * size))
    assert (found.fits, found.exit_code) == (False, 7)
    fitting = {other.preset: other for other in found.alternatives if other.fits}
    assert {"compact", "smallest"} <= fitting.keys()
    assert "flow" not in fitting  # it has the same frames
    true_size, _ = built(few, tmp_path / "other", load_config("smallest"))
    assert_near(fitting["smallest"].num_bytes, true_size, 0.05)


def test_a_preset_keeps_the_other_settings(few: cc.ScanResult, tmp_path: Path) -> None:
    config = config_from_json({**FLOW, "frames": {"short_side": 64}})
    size, _ = built(few, tmp_path / "cache", config, tiers=["npz"], features=["flow"])
    options = PlanOptions(num_sampled=3, budget_bytes=0.6 * size)
    found = plan_build(few, tiers=["npz"], features=["flow"], config=config, options=options)
    flow = next(other for other in found.alternatives if other.preset == "flow")
    changed = config_from_json(read_config("flow"), config)
    true_size, _ = built(few, tmp_path / "other", changed, tiers=["npz"], features=["flow"])
    assert_near(flow.num_bytes, true_size, 0.15)


def test_a_budget_that_cannot_be_met(few: cc.ScanResult, tmp_path: Path, run_cli) -> None:
    few.write(tmp_path / "index.json")
    result = run_cli("plan", "--budget", "10kB", "--hours", "1e-9", "--sample", "1", cwd=tmp_path)
    assert (result.returncode, result.stderr) == (7, "")
    assert "\n10 kB and 1e-09 h: these settings do not fit\n" in result.stdout
    assert re.search(r"^  1e-09 h take \d+ workers on \d+ processors$", result.stdout, re.MULTILINE)
    assert re.search(r"^  too much .* -c smallest$", result.stdout, re.MULTILINE)
    assert result.stdout.splitlines()[-1].startswith("no preset fits; ")


# The command


def test_the_command(few: cc.ScanResult, tmp_path: Path, run_cli) -> None:
    few.write(tmp_path / "index.json")
    (tmp_path / "scratch").mkdir()
    result = run_cli("plan", "--scratch", "scratch", "-j", "8", "--budget", "1TB", "--hours", "24", cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[0] == "4 videos; sample: 4 files"
    names = ("lmdb frames ", "all files ", "CPU time ", "time, 8 workers ", "peak memory ", "inodes ")
    assert [line[:26].rstrip() + " " for line in lines[1:7]] == list(names)
    assert lines[7].startswith("  note: the time is that of 8 processors; this machine has ") or os.cpu_count() >= 8
    assert lines[-1] == "1 TB and 24 h: these settings fit"
    assert os.listdir(tmp_path / "scratch") == []
    assert sorted(os.listdir(tmp_path)) == ["index.json", "scratch"]
    data = json.loads(run_cli("plan", "--sample", "2", "--json", cwd=tmp_path).stdout)
    assert (data["num_videos"], data["num_sampled"], data["fits"], data["exit_code"]) == (4, 2, True, 0)
    assert data["num_bytes"].keys() == {"value", "low", "high"}


@pytest.mark.parametrize(
    ("arguments", "exit_code", "message"),
    [
        (("nowhere.json",), 10, "nowhere.json"),
        (("--budget", "4XB"), 2, "--budget: got '4XB', expected a size such as 400GB or 1.5TiB"),
        (("--budget", "0"), 2, "--budget: got 0.0, expected a positive number"),
        (("--hours", "-1"), 2, "--hours: got -1.0, expected a positive number"),
        (("--scratch", "nowhere"), 2, "--scratch: got 'nowhere', expected a folder that exists"),
        (("--tier", "tape"), 2, "--tier: got 'tape'"),
        (("--features", "smell"), 2, "--features: got 'smell'"),
    ],
)
def test_wrong_arguments(
    few: cc.ScanResult, tmp_path: Path, run_cli, arguments: tuple[str, ...], exit_code: int, message: str
) -> None:
    few.write(tmp_path / "index.json")
    result = run_cli("plan", *arguments, cwd=tmp_path)
    assert (result.returncode, result.stdout) == (exit_code, "")
    assert message in result.stderr


@pytest.mark.parametrize(
    ("text", "expected"),
    [("400GB", 400e9), ("1.5TiB", 1.5 * 2**40), ("12", 12.0), ("3k", 3000.0), ("2 mib", 2.0**21)],
)
def test_sizes(text: str, expected: float) -> None:
    from chordcache.cli.plan_command import _parse_size

    assert _parse_size(None, None, text) == expected  # type: ignore[arg-type]


# The statistics


def population(num_files: int, seed: int = 0) -> plan_units.Population:
    rng = np.random.default_rng(seed)
    drivers = np.exp(rng.normal(0, 1, (num_files, len(plan_units.DRIVERS))))
    drivers[:, plan_units.DRIVERS.index("items")] = 1
    return plan_units.Population(drivers, num_files, 0, 1)


@pytest.mark.parametrize(("num_files", "num_sampled"), [(1, 24), (5, 24), (24, 24), (25, 24), (1000, 24), (1000, 1)])
def test_a_sample_stands_for_all(num_files: int, num_sampled: int) -> None:
    for seed in range(20):
        sample = plan_units.choose(population(num_files), num_sampled, seed)
        assert len(set(sample.positions.tolist())) == len(sample.positions) == min(num_files, num_sampled)
        assert sample.weights.sum() == pytest.approx(num_files)
        assert list(sample.positions) == sorted(sample.positions)


def test_a_huge_file_is_always_in_the_sample() -> None:
    files = population(1000)
    files.drivers[500] = 1000 * files.drivers.sum(axis=0)
    for seed in range(20):
        sample = plan_units.choose(files, 8, seed)
        assert sample.weights[sample.positions.tolist().index(500)] == 1


def test_ranges_hold_the_truth_as_often_as_they_say() -> None:
    """Sizes that depend on pixels, with a factor of their own for each file."""
    files = population(400)
    noise = np.exp(np.random.default_rng(1).normal(0, 0.3, 400))
    truth = files.drivers[:, 0] * noise
    inside, errors = 0, []
    for seed in range(100):
        sample = plan_units.choose(files, 24, seed)
        measured = truth[sample.positions]
        found = plan_estimate.total(files.drivers, files.work, sample, measured, np.zeros(len(measured)))
        inside += found.low <= truth.sum() <= found.high
        errors.append(found.value / truth.sum() - 1)
    assert 65 <= inside <= 97
    assert abs(float(np.mean(errors))) < 0.03


def test_a_sum_of_two_drivers_is_found() -> None:
    files = population(300)
    truth = 3 * files.drivers[:, 0] + 5 * files.drivers[:, 3]
    sample = plan_units.choose(files, 24)
    measured = truth[sample.positions]
    found = plan_estimate.total(files.drivers, files.work, sample, measured, np.zeros(24))
    assert found.value == pytest.approx(truth.sum())
    assert found.high - found.low < 1e-6 * found.value
