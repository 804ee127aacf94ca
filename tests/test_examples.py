"""The multimodal example on real footage: two processes, one of them killed in the middle, and the run goes on."""

from __future__ import annotations

import math
import os
import re
import signal
import socket
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
from helpers.ffmpeg import ffmpeg

torch = pytest.importorskip("torch")
tokenizers = pytest.importorskip("tokenizers")

import chordcache as cc  # noqa: E402

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"

NUM_VIDEOS = 11
"""Odd, so that two ranks cannot share them evenly: one video comes twice in an epoch."""


@dataclass(frozen=True)
class Data:
    cache: Path
    tokenizer: Path


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, clips: Path) -> Data:
    """Pieces of real clips, some with sound, with labels and captions; and a tokenizer for these."""
    folder = tmp_path_factory.mktemp("multimodal")
    pieces = [("street/bikes", "street", 6), ("animation/bigbuckbunny", "animation", 5)]
    rows, captions = [], []
    for name, label, count in pieces:
        for number in range(count):
            piece = f"{label}{number}.mp4"
            start = ("-ss", str(0.7 * number))
            ffmpeg(*start, "-i", clips / f"{name}.mp4", "-t", "0.6", "-vf", "scale=160:-2", folder / piece)
            captions.append(f"piece {number} of the {label}")
            rows.append(f"{piece},{label},{captions[-1]}\n")
    (folder / "labels.csv").write_text("path,label,caption\n" + "".join(rows))
    config = folder / "config.yaml"
    config.write_text("frames: {short_side: 64}\nfeatures: {flow: {method: dis}, motion: null}\n")
    summary = cc.build(folder / "labels.csv", folder / "cache", tiers=("lmdb", "npz"), config=config, jobs=1)
    assert summary.num_done == NUM_VIDEOS
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(unk_token="[UNK]"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.train_from_iterator(
        captions, tokenizers.trainers.WordLevelTrainer(special_tokens=["[UNK]"], show_progress=False)
    )
    words.save(str(folder / "tokenizer.json"))
    return Data(folder / "cache", folder / "tokenizer.json")


KILLED = """
import os, signal
import train_multimodal

save = train_multimodal.Run.save

def save_and_die(run):
    save(run)
    run.num_saved = getattr(run, "num_saved", 0) + 1
    if run.rank == 0 and run.num_saved == 2:
        os.kill(os.getpid(), signal.SIGKILL)

train_multimodal.Run.save = save_and_die
train_multimodal.main()
"""
"""The example, whose first rank dies after the second batch is saved."""


@dataclass(frozen=True)
class Rank:
    code: int
    lines: list[str]
    errors: str


def run_example(*arguments: object, program: tuple[str, ...], num_ranks: int) -> list[Rank]:
    """Run all ranks to their ends, as torchrun starts them."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    env = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(num_ranks)}
    processes = [
        subprocess.Popen(
            [sys.executable, *program, *map(str, arguments)],
            env={**env, "RANK": str(rank)} if num_ranks > 1 else dict(os.environ),
            cwd=EXAMPLES,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(num_ranks)
    ]
    try:
        outputs = [process.communicate(timeout=200) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [
        Rank(process.returncode, output.splitlines(), errors)
        for process, (output, errors) in zip(processes, outputs, strict=True)
    ]


def seen(ranks: list[Rank]) -> dict[int, Counter[str]]:
    """Epoch to how often each video was learned from; all losses are numbers."""
    counts: dict[int, Counter[str]] = {}
    for number, rank in enumerate(ranks):
        for line in rank.lines:
            match = re.fullmatch(r"epoch (\d+) rank (\d+) loss (\S+) videos (.+)", line)
            assert match, line
            assert int(match[2]) == number
            assert math.isfinite(float(match[3]))
            counts.setdefault(int(match[1]), Counter()).update(match[4].split())
    return counts


@pytest.mark.slow
def test_two_ranks_of_which_one_is_killed_and_the_run_goes_on(data: Data, tmp_path: Path) -> None:
    checkpoint = tmp_path / "run.pt"
    arguments = [data.cache, data.tokenizer, "--checkpoint", checkpoint]
    arguments += ["--save-every", 1, "--batch-size", 2, "--threads", 1]
    killed = run_example(*arguments, program=("-c", KILLED), num_ranks=2)
    assert killed[0].code == -signal.SIGKILL, killed[0].errors
    assert killed[1].code not in (0, -signal.SIGKILL)  # it does not wait for the dead one
    state = torch.load(checkpoint, weights_only=True)["loader"]
    assert (state["epoch"], state["num_consumed"]) == (0, 8)
    resumed = run_example(*arguments, program=("train_multimodal.py",), num_ranks=2)
    assert [rank.code for rank in resumed] == [0, 0], [rank.errors for rank in resumed]
    before, after = seen(killed), seen(resumed)
    keys = cc.open_cache(data.cache).keys()
    assert before.keys() == {0}
    assert after.keys() == {0, 1}
    for counts in (before[0] + after[0], after[1]):
        assert sorted(counts) == sorted(keys)
        assert sum(counts.values()) == NUM_VIDEOS + 1
    assert sum(after[0].values()) == 4
    last = torch.load(checkpoint, weights_only=True)["loader"]
    assert (last["epoch"], last["num_consumed"]) == (1, NUM_VIDEOS)


def test_an_error_is_one_line(data: Data, tmp_path: Path) -> None:
    (rank,) = run_example(tmp_path, data.tokenizer, program=("train_multimodal.py",), num_ranks=1)
    assert rank.code == 10
    assert re.fullmatch(r"train_multimodal: error: .+\n", rank.errors)
