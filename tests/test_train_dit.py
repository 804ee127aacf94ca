"""The example of a diffusion transformer: killed in a step and in a save, it has the losses of a run that was not."""

from __future__ import annotations

import random
import re
import runpy
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import yaml

import chordcache as cc
from chordcache.engine.choice import Engine

REPOSITORY = Path(__file__).resolve().parent.parent

SIZES = {"a": (64, 48), "b": (64, 48), "c": (96, 64), "d": (80, 48), "tall": (48, 64), "taller": (48, 96)}
"""Name of each video to its width and height. The last two have a bucket of their own"""

CAPTIONS = ("a square", "a square moves over a gray background", "gray")

NUM_STEPS = 12
"""Two epochs of 4 batches of the wide bucket, and 2 of the tall one"""

SAVE_EVERY = 2

KILLED = """
import os, signal
import train_dit

steps = train_dit.Run.step

def step_and_die(run, *args):
    loss = steps(run, *args)
    if run.num_steps == {step}:
        os.kill(os.getpid(), signal.SIGKILL)
    return loss

train_dit.Run.step = step_and_die
train_dit.main()
"""
"""The example, which dies between learning from a batch and printing its loss"""

KILLED_AS_IT_SAVES = """
import os, signal
import train_dit

os.replace = lambda *names: os.kill(os.getpid(), signal.SIGKILL)
train_dit.main()
"""


@dataclass(frozen=True)
class Data:
    cache: Path
    vae: Path


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path]) -> Data:
    """A cache of latents, embeddings and raw frames, by the models of ``scripts/make_random_models.py``."""
    folder = tmp_path_factory.mktemp("dit")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["make_random_models.py", str(folder / "models")])
        runpy.run_path(str(REPOSITORY / "scripts/make_random_models.py"), run_name="__main__")
    rows = ["path,caption"]
    for number, (name, size) in enumerate(SIZES.items()):
        make_video(folder / f"{name}.mp4", num_frames=20, size=size)
        rows.append(f"{name}.mp4,{CAPTIONS[number % len(CAPTIONS)]}")
    (folder / "captions.csv").write_text("\n".join(rows) + "\n")
    config = {
        "frames": {"codec": "raw", "buckets": [[32, 48, 18], [48, 32, 9]]},
        "features": {
            "latents": {"model": str(folder / "models/vae"), "clip_frames": 9},
            "text": {"model": str(folder / "models/text_encoder")},
        },
    }
    (folder / "config.yaml").write_text(yaml.dump(config))
    summary = cc.build(
        folder / "captions.csv", folder / "cache", tiers=["lmdb", "npz"], features=["frames", "latents", "text"],
        config=folder / "config.yaml", jobs=Engine("inline"),
    )  # fmt: skip
    assert summary.num_done == len(SIZES)
    return Data(folder / "cache", folder / "models/vae")


def run(*arguments: object, program: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run the example to its end."""
    start = ["-c", program] if program else ["train_dit.py"]
    command = [sys.executable, *start, *map(str, arguments), "--batch-size", "2", "--clips-per-video", "2"]
    return subprocess.run(command, cwd=REPOSITORY / "examples", capture_output=True, text=True, timeout=200)


def test_a_killed_run_has_the_losses_of_one_that_was_not(data: Data, tmp_path: Path) -> None:
    whole = run(data.cache, "--checkpoint", tmp_path / "whole.pt")
    assert (whole.returncode, whole.stderr) == (0, "")
    lines = whole.stdout.splitlines()
    matches = [re.fullmatch(r"epoch (\d) step (\d+) loss \d\.\d+", line) for line in lines]
    assert [match and (int(match[1]), int(match[2])) for match in matches] == [
        (step // (NUM_STEPS // 2), step + 1) for step in range(NUM_STEPS)
    ]

    arguments = [data.cache, "--checkpoint", tmp_path / "run.pt", "--save-every", SAVE_EVERY]
    step = random.randint(SAVE_EVERY + 1, NUM_STEPS)
    killed = run(*arguments, program=KILLED.format(step=step))
    assert (killed.returncode, killed.stdout.splitlines()) == (-signal.SIGKILL, lines[: step - 1]), killed.stderr
    num_saved = (step - 1) // SAVE_EVERY * SAVE_EVERY
    again = run(*arguments, "--resume", program=KILLED_AS_IT_SAVES)
    assert again.returncode == -signal.SIGKILL, again.stderr
    assert again.stdout.splitlines() == lines[num_saved : num_saved + SAVE_EVERY]
    resumed = run(*arguments, "--resume")
    assert (resumed.returncode, resumed.stdout.splitlines()) == (0, lines[num_saved:]), resumed.stderr

    nets = [torch.load(tmp_path / name, weights_only=True)["net"] for name in ("whole.pt", "run.pt")]
    assert nets[0].keys() == nets[1].keys()
    assert all(torch.equal(nets[0][name], nets[1][name]) for name in nets[0])

    begun = run(*arguments)
    assert begun.returncode == 2
    assert f"--checkpoint: {tmp_path}/run.pt exists; add --resume to continue it" in begun.stderr


def test_both_times_of_a_step_are_printed(data: Data) -> None:
    done = run(data.cache, "--compare", data.vae)
    assert (done.returncode, done.stderr) == (0, "")
    match = re.fullmatch(
        r"with cached latents \d+ ms a step, encoding on the fly \d+ ms\n"
        r"ratio [\d.]+; medians of 5 interleaved steps on \w+; the latents differ by at most (\S+)\n",
        done.stdout,
    )
    assert match, done.stdout
    assert float(match[1]) < 0.002  # which is the rounding to float16
