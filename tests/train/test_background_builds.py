"""Builds of missed videos by the children of several readers: none is built twice. An extractor counts its videos."""

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

from chordcache.building.build import build
from chordcache.building.build_options import BuildOptions
from chordcache.index.index_files import read_index
from chordcache.index.scan import scan
from chordcache.verifying.verify import verify

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

WIDTHS = list(range(64, 72, 2))
"""[pixels] Width of each video, by which the extractor names it"""

BUILD_SECONDS = 60

READER = """
import sys, time
from pathlib import Path
from chordcache.train.dataset import ChordVideoDataset
from chordcache.train.videos import indexed
folder, first, feature = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
videos = indexed(folder / "index.jsonl", folder / "cache", on_miss="build", config=folder / "mine.yaml")
dataset = ChordVideoDataset(videos, features=(feature,), size=None)
for epoch in range(10_000):
    for i in range(len(dataset)):
        dataset[(first + i) % len(dataset)]
    if epoch == 0:
        print("read", flush=True)
    time.sleep(0.2)
"""
"""Reads all videos again and again, as training does."""


@contextlib.contextmanager
def readers(
    folder: Path, firsts: list[int], feature: str = "frames", *, number: int = 0
) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that read all videos again and again, each in its own order. The first one has a number."""
    started = [
        subprocess.Popen(
            [sys.executable, "-c", READER, str(folder), str(first), feature],
            stdout=subprocess.PIPE, text=True, env={**os.environ, processes.MARK: f"{os.environ[processes.MARK]}{n}"},
        )
        for n, first in enumerate(firsts, number)
    ]  # fmt: skip
    try:
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


def make_cache(folder: Path, faults: dict[int, str], num_videos: int = len(WIDTHS)) -> Path:
    """Make an empty cache. With the fault "gate", a build waits in its middle until there is a file ``gate``."""
    for width in WIDTHS[num_videos:]:
        (folder / f"videos/{width}.mp4").unlink()
    scan([folder / "videos"], output=folder / "index.jsonl", jobs=1)
    fault_of_width = {str(width): fault for width, fault in faults.items()}
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


def num_cached(folder: Path) -> int:
    return len(processes.sidecars(folder / "cache"))


def check_built(folder: Path, expected: dict[int, int]) -> None:
    """Wait until all videos are built, check how often each was begun, and let the next build list them."""
    cache = folder / "cache"
    assert processes.wait_until(lambda: num_cached(folder) == len(expected), BUILD_SECONDS, step=0.1), starts(folder)
    assert starts(folder) == expected
    assert not processes.quarantine(cache)
    report = verify(cache, jobs=1)
    assert report.damage == []
    assert f"the lists of the cache do not have {len(expected)} video" in report.notes[-1]
    waiting = BuildOptions(wait=True)  # for the child of a reader that has just ended
    summary = build(folder / "index.jsonl", cache, config=folder / "mine.yaml", jobs=1, options=waiting)
    assert (summary.num_done, summary.num_up_to_date) == (0, len(expected))
    assert not list((cache / ".partial").glob("*"))
    report = verify(cache, jobs=1)
    assert report.damage == []
    assert not any("lists of the cache" in note for note in report.notes)


@pytest.mark.parametrize("feature", ["frames", "mine"])
def test_a_reader_that_is_killed_leaves_no_process_and_its_video_to_others(folder: Path, feature: str) -> None:
    """The killed one is in the middle of a build. Only this video is begun again, by another reader."""
    make_cache(folder, {WIDTHS[0]: "gate"}, num_videos=2 if feature == "mine" else len(WIDTHS))
    others = dict.fromkeys(WIDTHS[1 : 2 if feature == "mine" else None], 1)
    with readers(folder, [0], feature) as (victim,):
        assert processes.wait_until((folder / "gate.reached").exists, BUILD_SECONDS)
        with readers(folder, [1, 2], feature, number=1):
            assert processes.wait_until(lambda: num_cached(folder) == len(others), BUILD_SECONDS)
            time.sleep(0.5)  # the other readers miss the first video again and again
            assert starts(folder) == {WIDTHS[0]: 1, **others}
            (orphan,) = [pid for pid in children(0) if holds(pid, f"{WIDTHS[0]}-")]
            victim.kill()
            assert processes.wait_until(lambda: not os.path.exists(f"/proc/{orphan}"), 5)
            (folder / "gate").touch()
            assert processes.wait_until(lambda: num_cached(folder) == len(others) + 1, BUILD_SECONDS)
    check_built(folder, {WIDTHS[0]: 2, **others})


def holds(pid: int, name: str) -> bool:
    """Return whether a process has a file open whose name begins so."""
    files = []
    with contextlib.suppress(OSError):
        files = [os.path.basename(os.readlink(path)) for path in Path(f"/proc/{pid}/fd").iterdir()]
    return any(file.startswith(name) for file in files)


def test_a_child_that_hangs_in_native_code_ends_with_its_reader(folder: Path) -> None:
    make_cache(folder, {WIDTHS[0]: "hold the interpreter"}, num_videos=1)
    with readers(folder, [0]) as (reader,):
        assert processes.wait_until(lambda: bool(starts(folder)), BUILD_SECONDS)
        time.sleep(0.5)
        (child,) = children(0)
        reader.kill()
        assert processes.wait_until(lambda: not os.path.exists(f"/proc/{child}"), 5)


def test_a_build_that_crashes_its_child_costs_one_video(folder: Path) -> None:
    """The reader of frames goes on, and the next child builds the others."""
    make_cache(folder, {WIDTHS[2]: "SIGSEGV"})
    with readers(folder, [0]) as (reader,):
        assert reader.stdout is not None
        assert reader.stdout.readline() == "read\n"
        assert processes.wait_until(lambda: num_cached(folder) == len(WIDTHS) - 1, BUILD_SECONDS)
        time.sleep(0.5)  # the reader goes on to miss it
        assert starts(folder)[WIDTHS[2]] == 1
        assert reader.poll() is None
