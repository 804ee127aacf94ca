"""The estimate of a dry run agrees with what a build makes, and its budget with what fits."""

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
from chordcache.arguments import parsed_bytes
from chordcache.building import dry_run
from chordcache.config.config import Config, config_from_json
from chordcache.config.yaml_files import load_config, read_config
from chordcache.engine import terminal
from chordcache.errors import UsageError
from chordcache.look.summary import summarize

pytestmark = pytest.mark.usefixtures("inline")

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


def built(index: Any, folder: Path, config: Config | None = None, **options: Any) -> int:
    """Build everything, and return the bytes of artefacts and sidecars."""
    cc.build(index, folder, config=config, jobs=1, **options)
    return size_of(folder)


def size_of(cache: Path) -> int:
    """Return the bytes of artefacts and sidecars."""
    return sum(path.stat().st_size for path in cache.rglob("*") if path.is_file() and path.parent != cache)


@pytest.fixture(scope="module")
def frames_of_pieces(pieces: Path) -> Path:
    """Cache of the frames of all pieces."""
    cache = pieces.with_name("frames_of_pieces")
    cc.build(cc.scan([pieces], jobs=1), cache, jobs=1)
    return cache


def estimated(index: Any, folder: Path, sample: int = 24, **options: Any) -> dry_run.Estimate:
    """Return the estimate of a build into a new cache."""
    result = cc.dry_run(index, folder / "new", sample=sample, **options).estimate
    assert result is not None
    assert not (folder / "new").exists()
    return result


FLOW = {"features": {"flow": {"method": "dis", "preset": "ultrafast"}}}


@pytest.mark.parametrize(
    ("tiers", "config", "num_videos", "num_sampled"),
    [(("lmdb",), {}, 48, 16), (("lmdb", "npz"), FLOW, 24, 10), (("hdf5",), FLOW, 24, 10)],
    ids=["frames", "features", "one file"],
)
@pytest.mark.usefixtures("workers")
def test_the_size_is_right_within_15_percent(
    pieces: Path, frames_of_pieces: Path, tmp_path: Path,
    tiers: tuple[str, ...], config: Any, num_videos: int, num_sampled: int,
) -> None:  # fmt: skip
    settings = config_from_json(config)
    index = cc.scan([pieces / f"{number:02}.mp4" for number in range(num_videos)], jobs=1)
    result = estimated(index, tmp_path, num_sampled, tiers=tiers, config=settings)
    cache = tmp_path / "cache" if config else frames_of_pieces
    if config:
        cc.build(index, cache, config=settings, jobs=1, tiers=tiers)
    size = size_of(cache)
    assert (result.num_sampled, result.failures) == (num_sampled, ())
    assert result.num_bytes == pytest.approx(size, rel=0.15)
    true_sizes: dict[str, float] = {}
    for name, num_bytes in summarize(cache)["bytes"].items():
        name = "frames, flow, mel in hdf5" if "hdf5" in name else name  # fewer features without sound
        true_sizes[name] = true_sizes.get(name, 0) + num_bytes
    assert result.sizes.keys() == true_sizes.keys() | {"sidecars"}
    for name, num_bytes in true_sizes.items():
        assert result.sizes[name] == pytest.approx(num_bytes, rel=0.2)
    assert 0 < result.elapsed_seconds <= result.cpu_seconds


def test_a_sample_of_all_is_exact(clips: Path, tmp_path: Path) -> None:
    index = cc.scan([clips], jobs=1)
    result = estimated(index, tmp_path, jobs=3)
    size = built(index, tmp_path / "cache")
    assert result.num_bytes == pytest.approx(size)
    assert (result.num_sampled, result.jobs) == (4, 3)


def test_only_what_is_missing_is_estimated(pieces: Path, tmp_path: Path) -> None:
    """Videos that are cached, and features of others that are, do not count."""
    cache = tmp_path / "cache"
    cc.build(cc.scan([pieces / "00.mp4"], jobs=1), cache, jobs=1)
    both = ["frames", "motion"]
    cc.build(cc.scan([pieces / "01.mp4"], jobs=1), cache, features=both, jobs=1)
    index = cc.scan([pieces / f"{number:02}.mp4" for number in range(4)], jobs=1)
    before = {path: path.read_bytes() for path in cache.rglob("*") if path.is_file()}
    result = cc.dry_run(index, cache, features=both, sample=24)
    assert {path: path.read_bytes() for path in cache.rglob("*") if path.is_file()} == before
    assert result.num_missing == 3
    assert result.estimate is not None
    assert result.estimate.num_sampled == 3
    cc.build(index, cache, features=both, jobs=1)
    new = [path for path in cache.rglob("*") if path.is_file() and path not in before]
    for tier, name in (("lmdb", "frames in lmdb"), ("npz", "motion in npz")):
        size = sum(path.stat().st_size for path in new if path.is_relative_to(cache / tier))
        assert result.estimate.sizes[name] == pytest.approx(size)


def test_segments(clips: Path, tmp_path: Path) -> None:
    os.link(clips / "street/bikes.mp4", tmp_path / "bikes.mp4")
    rows = [f"bikes.mp4,{start / 10},{start / 10 + 1}" for start in range(40)]
    (tmp_path / "list.csv").write_text("\n".join(["path,start_seconds,end_seconds", *rows]))
    result = estimated(tmp_path / "list.csv", tmp_path)
    size = built(tmp_path / "list.csv", tmp_path / "cache")
    assert result.num_bytes == pytest.approx(size, rel=0.15)
    assert result.num_sampled == 24


def test_a_hand_written_list(pieces: Path, frames_of_pieces: Path, tmp_path: Path) -> None:
    """Only the sizes of the files are known, and two files are missing."""
    names = sorted(os.listdir(pieces))
    for name in names:
        os.link(pieces / name, tmp_path / name)
    (tmp_path / "list.csv").write_text("\n".join(["path", *names, "missing1.mp4", "missing2.mp4"]))
    result = estimated(tmp_path / "list.csv", tmp_path, 16)
    assert result.num_sampled == 16
    assert cc.dry_run(tmp_path / "list.csv", tmp_path / "new", sample=0).reasons["source missing"] == 2
    assert result.num_bytes == pytest.approx(size_of(frames_of_pieces), rel=0.15)


def test_unreadable_entries(pieces: Path, tmp_path: Path) -> None:
    videos = tmp_path / "videos"
    videos.mkdir()
    for name in ("00.mp4", "01.mp4", "02.mp4"):
        (videos / name).symlink_to(pieces / name)
    (videos / "junk.mp4").write_bytes(b"not a video" * 1000)
    index = cc.scan([videos], jobs=1, follow_symlinks=True)
    (videos / "02.mp4").unlink()
    (videos / "02.mp4").write_bytes(b"replaced after the scan" * 1000)
    result = estimated(index, tmp_path)
    assert (result.num_sampled, len(result.failures)) == (3, 1)
    assert result.num_bytes == pytest.approx(built(index, tmp_path / "cache"))


def test_only_unreadable_entries(tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text("path\nmissing.mp4\n")
    result = cc.dry_run(tmp_path / "list.csv", tmp_path / "new")
    assert (result.reasons, result.estimate) == ({"source missing": 1}, None)


def test_nothing_to_build(few: cc.ScanResult, tmp_path: Path) -> None:
    built(few, tmp_path / "cache")
    assert cc.dry_run(few, tmp_path / "cache").estimate is None


# The command


@pytest.fixture(scope="module")
def few(pieces: Path) -> cc.ScanResult:
    return cc.scan([pieces / f"{number:02}.mp4" for number in range(4)], jobs=1)


def dry_run_of(run_cli, few: cc.ScanResult, folder: Path, *arguments: str) -> dict[str, Any]:
    few.write(folder / "index.json")
    result = run_cli("build", "--dry-run", "--json", *arguments, cwd=folder)
    data: dict[str, Any] = json.loads(result.stdout)
    assert result.returncode == data.get("exit_code", 0)
    return data


def test_presets_that_fit(few: cc.ScanResult, tmp_path: Path, run_cli) -> None:
    size = built(few, tmp_path / "other")
    fitting = dry_run_of(run_cli, few, tmp_path, "--budget", f"{1.2 * size}B")
    assert (fitting["fits"], fitting["presets"], fitting["exit_code"]) == (True, {}, 0)
    result = dry_run_of(run_cli, few, tmp_path, "--budget", f"{1.1 * size}B")
    assert (result["fits"], result["exit_code"]) == (False, 7)
    sizes = result["presets"]
    assert {"compact", "smallest"} <= sizes.keys()
    assert "flow" not in sizes  # it has the same frames
    assert [*sizes] == sorted(sizes, key=sizes.get)
    true_size = built(few, tmp_path / "smaller", load_config("smallest"))
    assert sizes["smallest"] == pytest.approx(true_size, rel=0.05)


def test_a_preset_keeps_the_other_settings(few: cc.ScanResult, tmp_path: Path, run_cli) -> None:
    floats = {"flow": {**FLOW["features"]["flow"], "dtype": "float16"}}
    settings = {"features": floats, "frames": {"short_side": 64}}
    config = config_from_json(settings)
    size = built(few, tmp_path / "other", config, tiers=["npz"], features=["flow"])
    (tmp_path / "my.yaml").write_text(json.dumps(settings))
    arguments = ("--tier", "npz", "--features", "flow", "-c", "my.yaml", "--budget", f"{0.6 * size}B")
    result = dry_run_of(run_cli, few, tmp_path, *arguments)
    changed = config_from_json(read_config("flow"), config)
    true_size = built(few, tmp_path / "smaller", changed, tiers=["npz"], features=["flow"])
    assert result["presets"]["flow"] == pytest.approx(true_size, rel=0.15)


def test_a_budget_scans_a_folder_once(clips: Path, tmp_path: Path, run_cli) -> None:
    """The presets are tried with the index of the first scan, also if the cache has it under another root."""
    (tmp_path / "videos/more").mkdir(parents=True)
    for number, clip in enumerate(sorted(clips.rglob("*.mp4"))[:2]):
        os.link(clip, tmp_path / f"videos/more/{number}.mp4")
    run_cli("build", "videos", "-o", "cache", "--features", "motion", "-j", "1", "-q", cwd=tmp_path)
    options = ("--dry-run", "--budget", "1kB", "--sample", "1", "--features", "frames,motion", "--json")
    result = run_cli("build", "videos/more", *options, cwd=tmp_path)
    data = json.loads(result.stdout)
    assert (result.returncode, data["num_inputs"], data["num_missing"]) == (7, 2, 2)
    assert "smallest" in data["presets"]
    assert result.stderr.count("scanned") == 1
    assert data["reasons"] == {"not requested before (frames in lmdb)": 2}


def test_a_budget_that_cannot_be_met(few: cc.ScanResult, tmp_path: Path, run_cli) -> None:
    few.write(tmp_path / "index.json")
    result = run_cli("build", "--dry-run", "--budget", "10kB", "--sample", "1", cwd=tmp_path)
    assert (result.returncode, result.stderr) == (7, "")
    assert re.search(r"^budget 10 kB +too small: take a preset that fits, or a smaller ", result.stdout, re.MULTILINE)
    assert re.search(r"^-c smallest +[\d.]+ MB$", result.stdout, re.MULTILINE)


def test_a_budget_needs_a_sample_that_can_be_built(tmp_path: Path, run_cli) -> None:
    (tmp_path / "a.mp4").write_bytes(b"not a video" * 1000)
    (tmp_path / "list.csv").write_text("path\na.mp4\n")
    result = run_cli("build", "list.csv", "--dry-run", "--budget", "1GB", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    assert "--sample: got items that all failed (" in result.stderr


def test_the_command(few: cc.ScanResult, tmp_path: Path, run_cli) -> None:
    few.write(tmp_path / "index.json")
    (tmp_path / "scratch").mkdir()
    environment = {"TMPDIR": str(tmp_path / "scratch")}
    result = run_cli("build", "--dry-run", "-j", "8", "--budget", "1TB", cwd=tmp_path, env=environment)
    assert (result.returncode, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[0] == f"would build 4 of 4 videos into {tmp_path / 'cache'} (up to date 0, failed before 0)"
    assert lines[1].split(maxsplit=2) == ["4", "videos", "new"]
    assert lines[2].startswith("frames in lmdb             {")
    assert lines[3].split() == ["sample", "4", "items"]
    names = ("sidecars ", "frames in lmdb ", "all files ", "CPU time ", "time, 8 workers ")
    assert [line[:26].rstrip() + " " for line in lines[4:-1]] == list(names)
    assert lines[-1] == "budget 1 TB                these settings fit"
    assert os.listdir(tmp_path / "scratch") == []
    assert sorted(os.listdir(tmp_path)) == ["index.json", "scratch"]


def test_a_terminal_shows_the_scan_and_the_sample(
    clips: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(terminal, "is_terminal", lambda: True)
    cc.dry_run(clips / "street", tmp_path / "cache", sample=1, progress=True)
    output = capsys.readouterr().err
    assert 0 < output.index("| 1/1 [") < output.index("scanned 1 video") < output.index("sample: 100%")


def test_json(few: cc.ScanResult, tmp_path: Path, run_cli) -> None:
    data = dry_run_of(run_cli, few, tmp_path, "--sample", "2")
    assert data["estimate"]["num_sampled"] == 2
    assert data["estimate"]["cpu_seconds"] > 0
    assert "fits" not in data
    assert dry_run_of(run_cli, few, tmp_path, "--sample", "0")["estimate"] is None


def test_a_sample_of_fewer_than_no_items(few: cc.ScanResult, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="^sample: got -1, expected an integer of at least 0"):
        cc.dry_run(few, tmp_path / "cache", sample=-1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--dry-run", "--budget", "4XB"), "--budget: got '4XB', expected a size with a unit, such as 400GB or 1.5TiB"),
        (("--dry-run", "--budget", "5"), "--budget: got '5', expected a size with a unit, such as 400GB or 1.5TiB"),
        (("--dry-run", "--budget", "1GB", "--sample", "0"), "--sample: got 0 with --budget"),
        (("--dry-run", "--sample", "-1"), "--sample: got -1"),
        (("--sample", "2"), "--sample: got it without --dry-run, expected both"),
        (("--budget", "1GB"), "--budget: got it without --dry-run, expected both"),
    ],
)
def test_wrong_arguments(few: cc.ScanResult, tmp_path: Path, run_cli, arguments: tuple[str, ...], message: str) -> None:
    few.write(tmp_path / "index.json")
    result = run_cli("build", *arguments, cwd=tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    assert message in result.stderr


@pytest.mark.parametrize(
    ("text", "expected"),
    [("400GB", 400e9), ("1.5TiB", 1.5 * 2**40), ("12 B", 12.0), ("3k", 3000.0), ("2 mib", 2.0**21)],
)
def test_sizes(text: str, expected: float) -> None:
    assert parsed_bytes(text, "--budget") == expected


# The statistics


def table_of(num_items: int) -> np.ndarray:
    """Return the amounts of videos with random pixels in the cache and to decode, and random detail."""
    pixels, decoded, detail = np.exp(np.random.default_rng(0).normal(0, 1, (3, num_items)))
    return np.stack([pixels + decoded, pixels, pixels, np.ones(num_items), detail], axis=1)


@pytest.mark.parametrize(("num_items", "num_sampled"), [(25, 24), (1000, 24), (1000, 1)])
def test_a_sample_has_videos_in_proportion_to_their_work(num_items: int, num_sampled: int) -> None:
    table = table_of(num_items)
    table[num_items // 2] *= 10
    expected, counts = num_sampled * table[:, 0] / table[:, 0].sum(), np.zeros(num_items)
    for seed in range(200):
        places, weights = dry_run.sample_of(table, num_sampled, np.random.default_rng(seed).random())
        numbers = np.zeros(num_items)
        numbers[places] = weights * table[places, 0]
        assert numbers.sum() == pytest.approx(num_sampled)
        assert (abs(numbers - expected) < 1.001).all()
        counts += numbers
    largest = np.argsort(expected)[-5:]
    assert counts[largest].sum() == pytest.approx(200 * expected[largest].sum(), rel=0.5)


def test_an_estimate_is_without_bias() -> None:
    """Sizes depend on pixels, with a factor of their own for each item."""
    table = table_of(400)
    truth = table[:, 1] * np.exp(np.random.default_rng(1).normal(0, 0.3, 400))
    errors = []
    for seed in range(100):
        places, weights = dry_run.sample_of(table, 24, np.random.default_rng(seed).random())
        measured: list[dry_run.Measured] = [{("frames in lmdb", "pixels"): truth[place]} for place in places]
        errors.append(dry_run.estimate_of(table, places, weights, measured, 1).num_bytes / truth.sum() - 1)
    assert abs(float(np.mean(errors))) < 0.03
    assert float(np.std(errors)) < 0.15
