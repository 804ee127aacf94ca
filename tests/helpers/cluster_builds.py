"""Builds of one corpus on clusters, and what one machine builds of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

import chordcache as cc
from helpers import clusters, processes
from helpers.faulty_extractor import ENVIRONMENT, PLUG_IN

FAULTS = {"SIGSEGV": "signal", "exit 3": "signal", "sleep": "timeout", "many arrays": "oom"}
"""Fault of the extractor, and its cause in quarantine"""

GOOD_WIDTH = 64
"""[pixels] of a video without a fault"""


@dataclass(frozen=True)
class Material:
    """Good videos, one video for each fault, and their index."""

    folder: Path
    num_good: int
    causes: Mapping[str, str]
    """Cause of the failure of each other video, by its path in the index"""

    @property
    def index(self) -> Path:
        return self.folder / "index.json"

    @property
    def reference(self) -> Path:
        """The cache that one machine builds."""
        return self.folder / "reference"

    def plain_command(self, cache: Path, *options: str) -> list[str]:
        """Return the command that builds a cache of it with these options."""
        return [sys.executable, "-m", "chordcache", "build", str(self.index), "-o", str(cache), *options]

    def command(
        self,
        cache: Path,
        cluster: clusters.Cluster | None,
        *options: str,
        config: Path | None = None,
        stall_seconds: int = 3,
    ) -> list[str]:
        """Return the command that builds a cache of it, on a cluster or on this machine."""
        features = ["--features", "frames,mine", "-c", str(config or self.folder / "mine.yaml")]
        where = ["--engine", f"{cluster.engine}={cluster.address}"] if cluster else []
        limits = ["--stall-timeout", str(stall_seconds), "--file-memory", "768"]
        return self.plain_command(cache, "--tier", "lmdb", "--tier", "npz", *limits, *features, *where, *options)

    def check_built(self, cache: Path, *, has_names: bool = True) -> None:
        """Check that a cache has all good videos with the content of one machine, and each fault with its cause.

        The names of artefacts too, unless the nodes read copies: the time of change of a video is part of the names.
        """
        assert sidecars(cache, with_names=has_names) == sidecars(self.reference, with_names=has_names)
        assert len(sidecars(cache)) == self.num_good
        failures = processes.quarantine(cache)
        causes = {path: failure["cause"] for path, failure in failures.items()}
        assert causes == self.causes, failures
        messages = {path: failure["message"] for path, failure in failures.items()}
        for path in messages.keys() & {"SIGSEGV.mp4", "sleep.mp4"}:
            assert "faulty_extractor.py:" in messages[path]
        assert not cc.verify(cache, level="deep", jobs=1).damage


def make_material(
    folder: Path, make_video: Callable[..., Path], num_good: int, faults: tuple[str, ...] = tuple(FAULTS)
) -> Material:
    """Make videos, their index and the cache that one machine builds."""
    for number in range(num_good):
        make_video(folder / f"videos/{number:02}.mp4", size=(GOOD_WIDTH, 48), num_frames=12 + number)
    widths = {str(96 + 2 * number): fault for number, fault in enumerate(faults)}
    for width, fault in widths.items():
        make_video(folder / f"videos/{fault}.mp4", size=(int(width), 48), num_frames=6)
    write_config(folder / "mine.yaml", fault_of_width=widths)
    cc.scan([folder / "videos"], output=folder / "index.json", jobs=2)
    material = Material(folder, num_good, {f"{fault}.mp4": FAULTS[fault] for fault in faults})
    done = run(material.command(material.reference, None))
    assert done.returncode == (3 if faults else 0), done.stderr
    return material


def write_config(path: Path, **parameters: Any) -> None:
    """Write a config with the faulty extractor as the feature "mine"."""
    path.write_text(yaml.dump({"features": {"mine": {"extractor": PLUG_IN, **parameters}}}))


def environment() -> dict[str, str]:
    return {**os.environ, **ENVIRONMENT, **clusters.ENVIRONMENT}


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=300)


@contextmanager
def started(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """Start a command, and end it at the end at the latest."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def sidecars(cache: Path, *, with_names: bool = True) -> dict[str, Any]:
    """Return the statements of the sidecars, without the paths of this test, with the names of artefacts or without."""
    statements = {
        path: {**data, "_artefact": None, "_sidecar": None} for path, data in processes.sidecars(cache).items()
    }
    if not with_names:
        for data in statements.values():
            data["features"] = [{**feature, "file": None} for feature in data["features"]]
            del data["xxh3_128"]  # of the sidecar itself
    return statements


def num_built(cache: Path) -> int:
    """Return the number of videos that the parts of a cache have published."""
    return len({path.name for path in cache.with_name(f"{cache.name}.parts").glob("*/videos/*/*.json")})


def num_starts(file: Path) -> tuple[int, int]:
    """Return how often a good video was begun, and how often any video was."""
    widths = Counter(file.read_text().split())
    return widths[str(GOOD_WIDTH)], widths.total()


def node_workers(cluster: clusters.Cluster) -> list[int]:
    """Return the worker processes of chordcache that run on the nodes of a cluster."""
    return [
        pid for pid in processes.alive_with(cluster.mark) if "chordcache.engine.worker" in processes.command_of(pid)
    ]
