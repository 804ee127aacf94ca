"""Videos of two splits that show the same seconds: copies of real clips, and videos that only look alike."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.catalogs import forge, rows_of
from helpers.ffmpeg import ffmpeg
from helpers.inline import HERE
from helpers.scenes import planes_of, scene

import chordcache as cc
from chordcache.config.config import config_from_json
from chordcache.errors import DamageError, UsageError
from chordcache.storage import sealed_json

pytestmark = pytest.mark.usefixtures("inline")

Cli = Callable[..., subprocess.CompletedProcess[str]]

COPIES: dict[str, tuple[float, float, list[str]]] = {
    "crf23": (0, 10, ["-crf", "23"]),
    "crf32": (2, 8, ["-crf", "32"]),
    "crf40": (1, 9, ["-crf", "40"]),
    "scaled": (3, 8, ["-vf", "scale=212:90"]),
    "cropped": (2, 7, ["-vf", "crop=iw*0.9:ih*0.9"]),
    "trimmed": (3.37, 7.61, []),
    "mirrored": (4, 9, ["-vf", "hflip"]),
    "logo": (1, 6, ["-vf", "drawbox=x=iw*0.78:y=ih*0.05:w=iw*0.17:h=ih*0.12:color=white@0.9:t=fill"]),
    "faster": (2, 9, ["-r", "20"]),
}
"""[seconds] Begin and end of the part of bikes.mp4 that a copy shows, and the options of ffmpeg"""


def build(folder: Path, cache: Path, **config: Any) -> Path:
    """Cache a folder of videos. Labels are the letters before the first digit of their names."""
    rows = [f"{path.name},{path.stem.rstrip('0123456789')}\n" for path in sorted(folder.iterdir())]
    (folder / "list.csv").write_text(f"path,label\n{''.join(rows)}")
    settings = config_from_json({"frames": {"short_side": 64}, **config})
    summary = cc.build(folder / "list.csv", cache, config=settings, jobs=HERE)
    assert summary.num_done == len(rows)
    return cache


@pytest.fixture(scope="module")
def copies(clips: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A cache of real clips, and one of copies of a clip and of another scene."""
    folder = tmp_path_factory.mktemp("copies")
    for name in ("train", "val"):
        (folder / name).mkdir()
    for path in ("street/bikes.mp4", "animation/bigbuckbunny.mp4"):
        ffmpeg("-i", clips / path, "-vf", "scale=320:-2", "-an", folder / "train" / Path(path).name)
    for name, (start, end, options) in COPIES.items():
        span = ["-ss", str(start), "-i", clips / "street/bikes.mp4", "-t", str(end - start)]
        ffmpeg(*span, "-an", *options, folder / "val" / f"{name}.mp4")
    ffmpeg("-i", clips / "people/carphone_pristine.mp4", folder / "val/people.mp4")
    return build(folder / "train", folder / "train_cache"), build(folder / "val", folder / "val_cache")


def test_copies_are_found_with_their_times(copies: tuple[Path, Path]) -> None:
    pairs = {Path(pair.val_path).stem: pair for pair in cc.leaks(*copies)}
    assert pairs.keys() == COPIES.keys()
    for name, (start, end, _) in COPIES.items():
        pair = pairs[name]
        assert pair.train_path == "bikes.mp4"
        assert pair.is_mirrored == (name == "mirrored")
        assert pair.similarity is not None
        assert 0.6 <= pair.similarity <= 1
        shift = np.subtract(pair.train_seconds, pair.val_seconds)
        assert shift == pytest.approx([start, start], abs=0.26), name
        assert pair.val_seconds == pytest.approx((0, end - start), abs=0.6), name


def test_a_cache_without_frames_is_compared_by_hashes_alone(copies: tuple[Path, Path], tmp_path: Path) -> None:
    videos = copies[1].parent / "val"
    cache = tmp_path / "sound"
    cc.build(
        videos / "list.csv",
        cache,
        config=config_from_json({"frames": None, "features": {"motion": {}}}),
        tiers=("npz",),
        jobs=HERE,
    )
    pairs = cc.leaks(copies[0], cache)
    assert COPIES.keys() <= {Path(pair.val_path).stem for pair in pairs if pair.train_path == "bikes.mp4"}
    assert {pair.similarity for pair in pairs} == {None}
    assert "by hashes alone" in str(pairs[0])


def test_the_length_of_a_stretch(copies: tuple[Path, Path]) -> None:
    for seconds, names in ((1, COPIES.keys()), (5, COPIES.keys() - {"trimmed"}), (7, {"crf23", "crf40", "faster"})):
        names_found = {Path(pair.val_path).stem for pair in cc.leaks(*copies, seconds=seconds)}
        assert names_found == names, seconds
    with pytest.raises(UsageError, match="seconds: got 0"):
        cc.leaks(*copies, seconds=0)


# Drawn videos


def over(background: np.ndarray, seed: int, num_frames: int) -> list[np.ndarray]:
    """Return pictures of one room, in which a bright square goes its own way."""
    steps = np.random.default_rng(seed).uniform(-4, 4, (num_frames // 5 + 1, 2)).repeat(5, axis=0)
    places = (np.abs(np.cumsum(steps, axis=0) + np.array([40, 24])) % (80, 48)).astype(int)
    pictures = [background.copy() for _ in range(num_frames)]
    for picture, (x, y) in zip(pictures, places, strict=False):
        picture[y : y + 14, x : x + 14] = 235
    return pictures


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path]) -> Path:
    """A cache of rooms, of videos with the same black or still seconds, and of a copy and a single frame."""
    folder = tmp_path_factory.mktemp("drawn")
    room, title = scene(50, 1)[0], scene(51, 1)
    black = [np.full((64, 96), 16, np.uint8)] * 125
    shown: dict[str, Sequence[np.ndarray]] = {f"room{seed}": over(room, seed, 150) for seed in range(4)}
    shown |= {f"black{seed}": [*black, *over(scene(seed, 1)[0], seed, 50)] for seed in (60, 61)}
    shown |= {f"title{seed}": [*title * 125, *over(scene(seed, 1)[0], seed, 50)] for seed in (62, 63)}
    shown |= {"first1": scene(70, 30), "frame1": scene(71, 1)}
    for name, pictures in shown.items():
        planes = planes_of(pictures)
        make_video(folder / f"videos/{name}.mp4", num_frames=len(pictures), size=(96, 64), planes=planes)
    shutil.copy(folder / "videos/first1.mp4", folder / "videos/other1.mp4")
    cache = build(folder / "videos", folder / "cache")
    for name in ("room0", "room1", "frame1", "first1", "other1"):
        (folder / f"{name}.txt").write_text(f"{name}.mp4\n")
    return cache


def leaks_of(cache: Path, train: Sequence[str], val: Sequence[str] | None) -> list[tuple[str, str]]:
    splits = [cc.videos.cached(cache, [f"{name}.mp4" for name in names]) for names in (train, val) if names is not None]
    return [(pair.train_path[:-4], pair.val_path[:-4]) for pair in cc.leaks(*splits)]


def test_only_equal_content_is_found_among_videos_that_look_alike(drawn: Path) -> None:
    """Rooms, black and still stretches are not copies. Content under another name is one, though of a second."""
    (pair,) = cc.leaks(drawn)
    assert (pair.train_path, pair.val_path, pair.similarity) == ("first1.mp4", "other1.mp4", 1.0)
    assert pair.train_seconds == pair.val_seconds == pytest.approx((0, 1.2), abs=1e-3)
    assert leaks_of(drawn, ["room0", "black60", "title62"], ["room1", "room2", "black61", "title63"]) == []
    assert leaks_of(drawn, ["other1"], ["room1", "first1"]) == [("other1", "first1")]


def test_a_video_in_both_splits_is_a_pair_whatever_it_shows(drawn: Path) -> None:
    both = ["black60", "frame1", "room0"]
    assert sorted(leaks_of(drawn, [*both, "room1"], [*both, "room2"])) == [(name, name) for name in both]
    assert leaks_of(drawn, both, None) == []


# The command line


def test_verify_compares_splits(drawn: Path, run_cli: Cli) -> None:
    folder = drawn.parent
    done = run_cli("verify", drawn, "--splits", folder / "room0.txt", folder / "room1.txt")
    assert (done.returncode, done.stderr) == (0, "")
    done = run_cli("verify", drawn, "--splits", folder / "first1.txt", folder / "other1.txt")
    expected = "'first1.mp4': 0.0 to 1.2 s is 0.0 to 1.2 s of 'other1.mp4' (similarity 1.00)"
    assert (done.returncode, expected in done.stdout) == (6, True), done.stdout
    done = run_cli("verify", drawn, "--splits", "label=first", "label=other", "--json")
    (finding,) = json.loads(done.stdout)["damage"]
    assert (done.returncode, finding["kind"], finding["file"]) == (6, "leak", "first1.mp4")
    assert run_cli("verify", drawn, "--splits", "label=room", "label=room").returncode == 0  # within one split
    assert run_cli("verify", drawn, "--splits", "label=room", folder / "room1.txt").returncode == 6


@pytest.mark.parametrize(
    ("split", "expected"),
    [
        ("gone.txt", "gone.txt"),
        ("unknown.txt", "unknown.mp4"),
        ("label=walk", "'label' has black, first, frame"),
        ("size=2", "'size' has no value"),
    ],
)
def test_splits_without_videos_are_errors(drawn: Path, run_cli: Cli, split: str, expected: str) -> None:
    (drawn.parent / "unknown.txt").write_text("unknown.mp4\n")
    done = run_cli("verify", drawn, "--splits", "label=room", split, cwd=drawn.parent)
    assert done.returncode not in (0, 6)
    assert expected in done.stderr


@pytest.mark.parametrize("hashes", ["xyz", "0" * 15, "G" * 16, 5])
def test_a_forged_sidecar_is_an_error_that_names_the_place(
    drawn: Path, tmp_path: Path, run_cli: Cli, hashes: object
) -> None:
    cache = Path(shutil.copytree(drawn, tmp_path / "cache"))
    (row,) = [number for number, line in enumerate(rows_of(cache)) if "room1.mp4" in line]
    data = sealed_json.unseal(rows_of(cache)[row], "")
    data["content"]["second_hashes"] = hashes
    forge(cache, rows={row: sealed_json.seal(data)})
    with pytest.raises(DamageError, match=r"catalog\.bin.*second_hashes"):
        cc.leaks(cache)
    done = run_cli("verify", cache, "--splits", "label=room", "label=first")
    assert (done.returncode, "catalog.bin" in done.stdout) == (5, True)
    assert "the splits are not compared" in done.stderr
