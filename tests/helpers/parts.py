"""Builds in parts: their videos, their commands, and the check that a joined cache is that of a whole build."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import chordcache as cc
from chordcache.records import RunSummary
from helpers import processes
from helpers.catalogs import sections_of

NUM_GOOD = 8

WHAT: dict[str, Any] = {"tiers": ["lmdb", "npz"], "features": ["frames", "flow"]}


def make_work(work: Path, make_video: Callable[..., Path]) -> Path:
    """Make videos of different lengths and one broken file, their index, and the cache of a whole build."""
    for number in range(NUM_GOOD):
        make_video(work / f"videos/{number:02}.mp4", num_frames=4 + 3 * number)
    (work / "videos/broken.mp4").write_text("no video")
    cc.scan([work / "videos"], output=work / "index.json", jobs=1)
    cc.build(work / "index.json", work / "whole", jobs=2, **WHAT)
    return work


def build_part(work: Path, parts: Path, part: str, **arguments: Any) -> RunSummary:
    """Build the part I/N in the folder I of ``parts``."""
    index = arguments.pop("index", work / "index.json")
    options = cc.BuildOptions(part=part, **arguments.pop("options", {}))
    return cc.build(index, parts / part.partition("/")[0], jobs=1, options=options, **{**WHAT, **arguments})


def build_parts(work: Path, parts: Path, num_parts: int, **arguments: Any) -> None:
    for number in range(1, num_parts + 1):
        build_part(work, parts, f"{number}/{num_parts}", **arguments)


def join(parts: Path, cache: Path) -> RunSummary:
    return cc.merge(sorted(parts.iterdir()), cache, move=True)


def part_command(work: Path, parts: Path, part: str) -> list[str]:
    cache = parts / part.partition("/")[0]
    command = [sys.executable, "-m", "chordcache", "build", work / "index.json", "-o", cache, "--part", part, "-j1"]
    return [*map(str, command), "-q", "--tier", "lmdb", "--tier", "npz", "--features", "frames,flow"]


def statements(cache: Path) -> list[dict[str, dict[str, Any]]]:
    """Return what the sidecars and the quarantine say, without the paths of this test, and the times."""
    left_out = dict.fromkeys(("_artefact", "_sidecar", "when", "xxh3_128", "attempts"))
    listings = (processes.sidecars(cache), processes.quarantine(cache))
    return [{path: {**data, **left_out} for path, data in listing.items()} for listing in listings]


def is_whole(cache: Path, whole: Path) -> None:
    """Check that a joined cache equals that of a whole build."""
    assert processes.contents(cache) == processes.contents(whole)
    assert (cache / "index.jsonl").read_bytes() == (whole / "index.jsonl").read_bytes()
    one, other = ({**sections_of(folder), "mtimes": b""} for folder in (cache, whole))
    assert one == other  # a catalog leaves out the times of sidecars that are younger than a tick of the clock
    assert statements(cache) == statements(whole)
    assert [video.path for video in cc.open_cache(cache)] == [video.path for video in cc.open_cache(whole)]
    assert not cc.verify(cache, jobs=1).damage
    assert not processes.partials(cache)
