"""Builds of missed videos in the background: none is built twice, and few at once. An extractor counts its videos."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from helpers import processes
from helpers.faulty_extractor import ENVIRONMENT, PLUG_IN, STARTS

pytest.importorskip("torch")

from chordcache.building.build import build
from chordcache.index.index_files import read_index
from chordcache.index.scan import scan
from chordcache.train.misses.background import FOLDER
from chordcache.verifying.verify import verify

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

WIDTHS = list(range(64, 80, 2))
"""[pixels] Width of each video, by which the extractor names it"""

BUILD_SECONDS = 120

READER = """
import sys, time
from pathlib import Path
from chordcache.train.dataset import ChordVideoDataset
from chordcache.train.videos import indexed
from chordcache.train.misses import background
folder, first, num_processors = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
background.default_jobs = lambda: num_processors
settings = {"features": ("frames",), "size": None}
videos = indexed(folder / "index.jsonl", folder / "cache", on_miss="build", config=folder / "mine.yaml")
dataset = ChordVideoDataset(videos, **settings)
for epoch in range(10_000):
    for i in range(len(dataset)):
        dataset[(first + i) % len(dataset)]
    if epoch == 0:
        print("read", flush=True)
    time.sleep(0.2)
"""
"""Reads all videos again and again, as training does, on a machine that seems to have so many processors."""


@contextlib.contextmanager
def readers(folder: Path, firsts: list[int], num_processors: int) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that have read all videos, each in its own order, and go on."""
    command = [sys.executable, "-c", READER, str(folder)]
    started = [
        subprocess.Popen(
            [*command, str(first), str(num_processors)],
            stdout=subprocess.PIPE, text=True, env={**os.environ, processes.MARK: f"{os.environ[processes.MARK]}{n}"},
        )
        for n, first in enumerate(firsts)
    ]  # fmt: skip
    try:
        for reader in started:
            assert reader.stdout is not None
            assert reader.stdout.readline() == "read\n"
        yield started
    finally:
        for reader in started:
            reader.kill()
            reader.communicate()


@pytest.fixture
def folder(tmp_path: Path, make_video: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """Videos, their index, and an empty cache, whose features have one that counts."""
    for name, value in {**ENVIRONMENT, STARTS: str(tmp_path / "starts"), processes.MARK: uuid.uuid4().hex}.items():
        monkeypatch.setenv(name, value)
    for width in WIDTHS:
        make_video(tmp_path / f"videos/{width}.mp4", size=(width, 48), num_frames=20)
    (tmp_path / "starts").touch()
    return tmp_path


def make_cache(folder: Path, waiting: list[int], num_videos: int = len(WIDTHS)) -> Path:
    """Make an empty cache. Builds of some videos wait in the middle until there is a file ``gate``."""
    for width in WIDTHS[num_videos:]:
        (folder / f"videos/{width}.mp4").unlink()
    scan([folder / "videos"], output=folder / "index.jsonl", jobs=1)
    fault_of_width = {str(width): "gate" for width in waiting}
    mine = {"extractor": PLUG_IN, "fault_of_width": fault_of_width, "gate": str(folder / "gate")}
    (folder / "mine.yaml").write_text(yaml.dump({"features": {"mine": mine}}))
    (folder / "nothing.csv").write_text("path\n")
    what = {"tiers": ["lmdb", "npz"], "features": ["frames", "mine"], "config": folder / "mine.yaml"}
    build(read_index(folder / "nothing.csv"), folder / "cache", jobs=1, **what)
    return folder / "cache"


def starts(folder: Path) -> dict[int, int]:
    """Return how often each video was begun, by its width."""
    return dict(Counter(map(int, (folder / "starts").read_text().split())))


def children(reader: int) -> list[int]:
    """Return the processes of a reader, by its number."""
    mark = f"{os.environ[processes.MARK]}{reader}"
    return [pid for pid in processes.alive_with(mark) if "chordcache.engine.worker" in processes.command_of(pid)]


def check_built(folder: Path, cache: Path, expected: dict[int, int]) -> None:
    """Wait until all videos are built and the lists have them, and check how often each was begun."""

    def is_built() -> bool:
        names = [name for name in os.listdir(cache / FOLDER) if not name.startswith("slot-")]
        return not names and len(processes.sidecars(cache)) == len(expected)

    assert processes.wait_until(is_built, BUILD_SECONDS, step=0.1), (os.listdir(cache / FOLDER), starts(folder))
    assert starts(folder) == expected
    assert not processes.quarantine(cache)
    assert verify(cache, jobs=1).damage == []


def test_readers_in_different_orders_of_which_one_is_killed_build_no_video_twice(folder: Path) -> None:
    """The killed one is in the middle of a build. Only this video is begun again, by another reader."""
    cache = make_cache(folder, WIDTHS[:1])
    with readers(folder, [0, 2, 4, 6], num_processors=16) as started:
        assert processes.wait_until((folder / "gate.reached").exists, BUILD_SECONDS)
        others = dict.fromkeys(WIDTHS[1:], 1)
        assert processes.wait_until(lambda: len(processes.sidecars(cache)) == len(others), BUILD_SECONDS)
        assert starts(folder) == {WIDTHS[0]: 1, **others}  # the other readers ask for the first video again and again
        victims = set(range(4))
        while len(victims) > 1:  # one that asks has the file open for a moment, the one that builds has it always
            victims &= {number for number in range(4) for pid in children(number) if holds(pid, f"{WIDTHS[0]}-")}
        (victim,) = victims
        started[victim].kill()
        assert processes.wait_until(lambda: not children(victim), BUILD_SECONDS)
        (folder / "gate").touch()
        check_built(folder, cache, {WIDTHS[0]: 2, **others})


def holds(pid: int, name: str) -> bool:
    """Return whether a process has a file open whose name begins so."""
    files = []
    with contextlib.suppress(OSError):
        files = [os.path.basename(os.readlink(path)) for path in Path(f"/proc/{pid}/fd").iterdir()]
    return any(file.startswith(name) for file in files)


def test_two_ranks_that_miss_one_video_build_it_once(folder: Path) -> None:
    cache = make_cache(folder, WIDTHS[:1], num_videos=1)
    with readers(folder, [0, 0], num_processors=16):
        assert processes.wait_until((folder / "gate.reached").exists, BUILD_SECONDS)
        assert processes.wait_until(lambda: children(0) and children(1), BUILD_SECONDS)
        time.sleep(2)  # the rank that does not build asks all the time
        assert starts(folder) == {WIDTHS[0]: 1}
        (folder / "gate").touch()
        check_built(folder, cache, {WIDTHS[0]: 1})


@pytest.mark.parametrize(("num_processors", "num_slots"), [(1, 1), (8, 2)])
def test_a_quarter_of_the_processors_build_at_once(folder: Path, num_processors: int, num_slots: int) -> None:
    """Four readers want to build. All others wait until one that builds has been idle for a while, or is killed."""
    cache = make_cache(folder, WIDTHS)
    with readers(folder, [0, 2, 4, 6], num_processors) as started:
        assert processes.wait_until(lambda: len(starts(folder)) >= num_slots, BUILD_SECONDS)
        time.sleep(2)  # the others try to get a slot all the time
        building = [number for number in range(4) if children(number)]
        assert len(building) == num_slots
        assert len(starts(folder)) == num_slots
        started[building[0]].kill()  # frees its slot
        assert processes.wait_until(lambda: len([n for n in range(4) if children(n)]) == num_slots, BUILD_SECONDS)
        assert processes.wait_until(lambda: sum(starts(folder).values()) == num_slots + 1, BUILD_SECONDS)
        (folder / "gate").touch()
        assert processes.wait_until(lambda: len(processes.sidecars(cache)) == len(WIDTHS), BUILD_SECONDS)
    assert sum(starts(folder).values()) == len(WIDTHS) + 1
    assert not processes.quarantine(cache)
