"""Extractors with a network: its weights are loaded once in each worker, and cost no file its time or memory."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers import processes
from helpers.faulty_extractor import ENVIRONMENT

import chordcache as cc

NUM_VIDEOS = 6

Cli = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path]) -> Path:
    folder = tmp_path_factory.mktemp("setup")
    for number in range(NUM_VIDEOS):
        make_video(folder / f"videos/{number}.mp4", num_frames=4)
    cc.scan([folder / "videos"], output=folder / "index.json", jobs=1)
    return folder


def build(
    folder: Path, work: Path, run_cli: Cli, *options: str, **params: Any
) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Build the feature "network". Return the process, and one line for each time that weights were loaded."""
    log = work / "log"
    log.touch()
    network = {"extractor": "helpers.row_extractors:Network", "log": str(log), **params}
    (work / "network.yaml").write_text(yaml.dump({"features": {"network": network}}))
    done = run_cli(
        "build", folder / "index.json", "-o", work / "cache", "-c", work / "network.yaml", "-j2", "--tier", "npz",
        "--features", "network", "--stall-timeout", "2", "--file-timeout", "4", "--file-memory", "512", *options,
        env=ENVIRONMENT,
    )  # fmt: skip
    return done, log.read_text().splitlines()


def test_weights_cost_no_file_its_time_or_memory(folder: Path, tmp_path: Path, run_cli: Cli) -> None:
    """They take twice the limits of a file."""
    done, loaded = build(folder, tmp_path, run_cli, mebibytes=1024, seconds=5.0)
    assert done.returncode == 0, done.stderr
    assert 1 <= len(loaded) <= 2
    assert len(set(loaded)) == len(loaded)
    assert all(line.endswith(" cpu") for line in loaded)
    with cc.open_cache(tmp_path / "cache") as opened:
        assert all(opened.read(video, "network").tolist() == [1.0] * 4 for video in opened)


def test_a_file_has_its_own_memory_beside_the_weights(folder: Path, tmp_path: Path, run_cli: Cli) -> None:
    done, _ = build(folder, tmp_path, run_cli, mebibytes=768, seconds=0.0, fault="memory")
    assert done.returncode == 3, done.stderr
    assert {failure["cause"] for failure in processes.quarantine(tmp_path / "cache").values()} == {"oom"}


def test_weights_that_cannot_be_loaded_end_the_build(folder: Path, tmp_path: Path, run_cli: Cli) -> None:
    done, _ = build(folder, tmp_path, run_cli, mebibytes=1, seconds=0.0, fault="raises")
    assert done.returncode == 2
    assert "features.network: its network cannot be loaded: FileNotFoundError: no weights" in done.stderr
    assert not processes.quarantine(tmp_path / "cache")
