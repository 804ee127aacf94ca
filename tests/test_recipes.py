"""The recipes of docs/recipes on lists in their published form, written over pieces of real clips.

The forms are those of the pages that docs/lists.md cites.
"""

from __future__ import annotations

import json
import re
import runpy
import shlex
import subprocess
import tarfile
import warnings
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path
from typing import Protocol

import pytest
from helpers.ffmpeg import ffmpeg

pytest.importorskip("torch")

import chordcache as cc

RECIPES = Path(__file__).resolve().parent.parent / "docs" / "recipes"

NUM_PIECES = 6


class Piece(Protocol):
    """A function that writes a piece of a real clip."""

    def __call__(self, path: Path, seconds: float = 1.2) -> None: ...


def ucf101(folder: Path, piece: Piece) -> int:
    lines = []
    for number in range(NUM_PIECES):
        label = ("ApplyEyeMakeup", "Archery")[number % 2]
        name = f"{label}/v_{label}_g{number + 8:02d}_c01.avi"
        piece(folder / "UCF-101" / name)
        lines.append(f"{name} {1 + number % 2}\n")
    write(folder / "ucfTrainTestlist" / "trainlist01.txt", "".join(lines))
    write(folder / "ucfTrainTestlist" / "classInd.txt", "1 ApplyEyeMakeup\n2 Archery\n")
    return NUM_PIECES


def kinetics(folder: Path, piece: Piece) -> int:
    rows = ["label,youtube_id,time_start,time_end,split\n"]
    for number in range(NUM_PIECES):
        name = f"-4hS9SHXKp{number}"
        label = ("testifying", '"eating, spaghetti"')[number % 2]
        rows.append(f"{label},{name},{93 + number},{103 + number},train\n")
        piece(folder / "clips" / f"{name}_{93 + number:06d}_{103 + number:06d}.mp4")
    write(folder / "train.csv", "".join(rows))
    return NUM_PIECES


def something_something(folder: Path, piece: Piece) -> int:
    records = []
    for number in range(NUM_PIECES):
        template = ("Holding [something] next to [something]", "Pushing [something]")[number % 2]
        things = ["potato", "vicks bottle"][: 2 - number % 2]
        label = f"{template.split()[0].lower()} {' '.join(things)}"
        records.append({"id": str(74225 + number), "label": label, "template": template, "placeholders": things})
        piece(folder / "20bn-something-something-v2" / f"{74225 + number}.webm")
    write(folder / "labels" / "train.json", json.dumps(records))
    write(
        folder / "labels" / "labels.json",
        json.dumps({"Holding something next to something": "0", "Pushing something": "1"}),
    )
    return NUM_PIECES


def activitynet(folder: Path, piece: Piece) -> int:
    database = {}
    for number in range(NUM_PIECES):
        name = f"sJFgo9H6zN{number}"
        annotations = [
            {"label": ("Fun sliding down", "Beer pong")[number % 2], "segment": [0.1, 0.9]},
            {"label": "Beer pong", "segment": [0.5, 1.01]},
        ]
        database[name] = {
            "duration": 1.2,
            "subset": "training",
            "resolution": "320x240",
            "url": "",
            "annotations": annotations,
        }
        piece(folder / "videos" / f"v_{name}.mp4")
    database["unlabeled00"] = {
        "duration": 1.2,
        "subset": "testing",
        "resolution": "320x240",
        "url": "",
        "annotations": [],
    }
    write(
        folder / "activity_net.v1-3.min.json",
        json.dumps({"database": database, "taxonomy": [], "version": "VERSION 1.3"}),
    )
    return 2 * NUM_PIECES


def ava(folder: Path, piece: Piece) -> int:
    rows = []
    for number in range(2):
        name = f"-5KQ66BBWC{number}"
        piece(folder / "videos" / f"{name}.mkv", 8)
        for second in (2, 3, 4, 5):
            rows.append(f"{name},{second:04d},0.077,0.151,0.283,0.811,80,1\n")
            rows.append(f"{name},{second:04d},0.332,0.194,0.481,0.891,12,0\n")
    write(folder / "ava_train_v2.2.csv", "".join(rows))
    return 2  # whole files


def cogvideo(folder: Path, piece: Piece) -> int:
    for number in range(NUM_PIECES):
        piece(folder / "dataset" / "videos" / f"{number}.mp4")
        write(folder / "dataset" / "labels" / f"{number}.txt", f"Piece {number} of a film, \u201cquoted\u201d.\n")
    return NUM_PIECES


def webdataset(folder: Path, piece: Piece) -> int:
    for number in range(NUM_PIECES):
        piece(folder / "samples" / f"{number:09d}.mp4")
        write(
            folder / "samples" / f"{number:09d}.json", json.dumps({"caption": f"piece {number}", "score": number / 2})
        )
    for number, half in enumerate((range(3), range(3, NUM_PIECES))):
        with tarfile.open(folder_of(folder / "shards" / f"{number:06d}.tar"), "w") as tar:
            for name in (f"{sample:09d}.{suffix}" for sample in half for suffix in ("mp4", "json")):
                tar.add(folder / "samples" / name, name)
    return NUM_PIECES


LAYOUTS = {
    "ucf101": ucf101,
    "kinetics": kinetics,
    "something_something": something_something,
    "activitynet": activitynet,
    "ava": ava,
    "cogvideo": cogvideo,
    "webdataset": webdataset,
}


def folder_of(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def write(path: Path, text: str) -> None:
    folder_of(path).write_text(text, encoding="utf-8")


def commands_of(name: str) -> list[str]:
    """Return the commands of the recipe in README.md."""
    sections = re.split(r"^## ", (RECIPES / "README.md").read_text(), flags=re.MULTILINE)
    (section,) = [section for section in sections if f"docs/recipes/{name}.py" in section]
    return re.findall(r"^\$ (.+)$", section, flags=re.MULTILINE)


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_published_list_trains_for_two_epochs(
    name: str, tmp_path: Path, clips: Path, run_cli: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    num_made = 0

    def piece(path: Path, seconds: float = 1.2) -> None:
        nonlocal num_made
        codecs = {".webm": ("-c:v", "libvpx", "-deadline", "realtime"), ".avi": ("-c:v", "mpeg4", "-q:v", "3")}
        source = clips / ("street/bikes.mp4", "animation/bigbuckbunny.mp4")[num_made % 2]
        cut = ("-t", str(seconds), "-an", "-vf", "scale=160:120", *codecs.get(path.suffix, ()))
        ffmpeg("-stream_loop", "2", "-ss", str(0.3 * num_made), "-i", source, *cut, folder_of(path))
        num_made += 1

    num_items = LAYOUTS[name](tmp_path, piece)
    for command in commands_of(name):
        program, *arguments = shlex.split(command.replace("docs/recipes", str(RECIPES)))
        if program == "chordcache":
            done = run_cli(*arguments, cwd=tmp_path)
            assert done.returncode == 0, f"{command}: {done.stderr}"
            continue
        (script,) = arguments
        with chdir(tmp_path), warnings.catch_warnings():
            warnings.simplefilter("default")  # as in a process of its own, which would import torch again
            runpy.run_path(script, run_name="__main__")
    assert len(cc.Cache(tmp_path / "cache")) == num_items


def test_every_recipe_is_tested() -> None:
    assert {path.stem for path in RECIPES.glob("*.py")} == set(LAYOUTS)
