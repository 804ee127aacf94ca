"""Verify names what is damaged and nothing else, at the speed it claims; repair restores that and nothing else."""

from __future__ import annotations

import json
import os
import statistics
import time
from itertools import islice
from pathlib import Path

import yaml
from conftest import REPOSITORY, run_chordcache
from helpers import processes
from helpers.cache_contents import arrays, differing

import chordcache as cc
from chordcache.verifying.findings import Damage
from fault_injection.corruptions import (
    EDITS,
    LISTS,
    ON_BYTES,
    ON_SIZES,
    check_named,
    copy_of,
    edit,
    flip_at_random,
    key_of,
    make_cache,
    pairs,
    strike_all,
)
from fault_injection.fixtures import TIERS
from fault_injection.harness import Figures, Trial, experiment

NUM_VIDEOS = 100

EDGE_BYTES = 4096
"""Bytes at the start and at the end of a file, where formats keep their tables"""


def _cache(trial: Trial) -> Path:
    """A fresh copy of a cache of the variant's tier."""
    return copy_of(trial.once("tiers", _make_tiers) / trial.variant / "whole", trial.folder)


def _make_tiers(folder: Path) -> None:
    for tier in TIERS:
        make_cache(folder / tier, tier, NUM_VIDEOS)


# R11: every bit


@experiment(
    "R11", "one bit flipped in every file of a cache, and verified",
    trials=2000, batch=100, variants=TIERS,
)  # fmt: skip
def random_bits(trial: Trial) -> Figures:
    """A tenth of them in the lists at the top, one by one; the rest in a video each, all at once."""
    cache = _cache(trial)
    num_in_lists = trial.count // 10
    for number in range(num_in_lists):
        _flip_in_list(cache, LISTS[number % len(LISTS)], trial)
    assert cc.verify(cache, jobs=1).damage == []
    victims = [trial.rng.choice(pair) for pair in trial.rng.sample(pairs(cache), trial.count - num_in_lists)]
    for path in victims:
        flip_at_random(path, trial.rng)
    check_named(cc.verify(cache, jobs=1).damage, {str(path.relative_to(cache)) for path in victims})
    return {
        "sum_found": trial.count,
        "sum_missed": 0,
        "sum_false_alarms": 0,
    }


def _flip_in_list(cache: Path, name: str, trial: Trial) -> None:
    offset, bit = flip_at_random(cache / name, trial.rng)
    assert _is_found(cache, name), f"{name}: bit {bit} of byte {offset} goes unnoticed"
    processes.flip(cache / name, offset, bit)


def _is_found(cache: Path, name: str) -> bool:
    try:
        report = cc.verify(cache, level="quick", jobs=1)
    except cc.ChordcacheError as error:  # without its header a folder is not a cache
        return name in str(error)
    assert {finding.file for finding in report.damage if finding.kind in ("damaged", "missing")} <= {name}
    return report.exit_code != 0


@experiment(
    "R11", "every byte of the first and last 4 kB of an artefact, and of a sidecar, flipped in one bit",
    trials=3 * EDGE_BYTES, batch=768, variants=TIERS,
)  # fmt: skip
def every_byte_at_the_edges(trial: Trial) -> Figures:
    """Spread over the videos: each takes one at a time, and gets its bit back."""
    cache = _cache(trial)
    numbers = iter(range(trial.number, trial.number + trial.count))
    files = pairs(cache)
    while batch := list(islice(numbers, len(files))):
        flips = [(*_place(number, *pair), trial.rng.randrange(8)) for number, pair in zip(batch, files, strict=False)]
        for flip in flips:
            processes.flip(*flip)
        check_named(cc.verify(cache, jobs=1).damage, {str(path.relative_to(cache)) for path, _, _ in flips})
        for flip in flips:
            processes.flip(*flip)
    assert cc.verify(cache, jobs=1).damage == []
    return {"sum_found": trial.count, "sum_missed": 0, "sum_false_alarms": 0}


def _place(number: int, artefact: Path, sidecar: Path) -> tuple[Path, int]:
    """File and byte of a trial: the artefact from its start, from its end, the sidecar from its start."""
    where, offset = divmod(number, EDGE_BYTES)
    path = sidecar if where == 2 else artefact
    size = path.stat().st_size
    assert where != 2 or size <= EDGE_BYTES  # all of it is struck
    offset %= size
    return path, size - 1 - offset if where == 1 else offset


@experiment(
    "R11", "one of each: deleted, empty, cut, longer, zeroed, replaced, swapped, records added, repeated, removed",
    trials=6, variants=TIERS,
)  # fmt: skip
def every_kind_of_damage(trial: Trial) -> Figures:
    """Through the command line, which exits with 5."""
    cache = _cache(trial)
    struck, _ = strike_all(cache, trial.rng)
    done = run_chordcache("verify", cache, "-j1", "--json")
    assert processes.fine(done.stderr), done.stderr
    assert done.returncode == 5
    check_named([Damage(**fields) for fields in json.loads(done.stdout)["damage"]], struck)
    return {"sum_files_struck": len(struck), "sum_found": len(struck), "sum_false_alarms": 0}


# R12: levels


@experiment("R12", "1 % of each kind of damage: what --quick finds, what the default", trials=5, variants=TIERS)
def levels(trial: Trial) -> Figures:
    """Quick finds what is gone, of another size, or a sidecar of another time. The default finds every changed byte."""
    cache = _cache(trial)
    struck, by_size = strike_all(cache, trial.rng)
    quick = cc.verify(cache, level="quick", jobs=1).damage
    # It reads a sidecar whose time was put back if that is so young that its time says nothing
    read_all_the_same = {item.file for item in quick if item.file in struck and item.file.endswith(".json")}
    check_named(quick, by_size | read_all_the_same)
    check_named(cc.verify(cache, jobs=1).damage, struck)
    return {"sum_struck": len(struck), "sum_found_by_quick": len(by_size), "sum_found_by_default": len(struck)}


NUM_LARGE = 12


@experiment("R12", "verify of a cache of raw frames, about 1 GB, with 1 worker", trials=5, alone=True)
def throughput(trial: Trial) -> Figures:
    """From memory, and from the disk."""
    cache = trial.once("large", _make_large) / "cache"
    files = sorted((cache / "lmdb").rglob("*.lmdb"))
    gigabytes = sum(path.stat().st_size for path in files) / 1e9
    assert gigabytes > 0.8
    cc.verify(cache, jobs=1)
    warm = _seconds(cache, "default")
    for path in files:
        _drop_from_memory(path)
    cold = _seconds(cache, "default")
    quick = statistics.median(_seconds(cache, "quick") for _ in range(5))
    assert quick < warm
    return {
        "median_GB_per_s_from_memory": gigabytes / warm,
        "median_GB_per_s_from_disk": gigabytes / cold,
        "median_s_per_TB_from_disk": 1000 * cold / gigabytes,
        "median_quick_ms_per_video": 1000 * quick / len(files),
    }


def _make_large(folder: Path) -> None:
    videos = folder / "videos"
    videos.mkdir(parents=True)
    for number in range(NUM_LARGE):
        (videos / f"{number}.mp4").symlink_to(REPOSITORY / ".clips/street/bikes.mp4")
    (folder / "config.yaml").write_text(yaml.dump({"frames": {"codec": "raw"}}))
    index = cc.scan([videos], jobs=2, follow_symlinks=True)
    cc.build(index, folder / "cache", config=folder / "config.yaml", jobs=2)


def _seconds(cache: Path, level: str) -> float:
    started = time.perf_counter()
    assert cc.verify(cache, level=level, jobs=1).damage == []
    return time.perf_counter() - started


def _drop_from_memory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


# R18: repair


@experiment(
    "R18", "1 % of the videos damaged, in any way, and repaired: what is made again, what stays",
    trials=20, variants=TIERS,
)  # fmt: skip
def repair(trial: Trial) -> Figures:
    """One of 100."""
    cache = _cache(trial)
    good = arrays(cache)
    before = processes.files_of(cache)
    damaged = key_of(str(_strike_one(trial.rng.choice(pairs(cache)), trial)))
    done = run_chordcache("verify", cache, "-j1", "--repair")
    assert (done.returncode, done.stdout) == (0, f"intact: {NUM_VIDEOS} videos, all checksums match\n"), done
    only_sidecar = "built 0 of 1 video again, 1 needed only a sidecar"
    assert "built 1 of 1 video again" in done.stderr or only_sidecar in done.stderr, done.stderr
    after = processes.files_of(cache)
    assert {key_of(file) for file in after if after[file] != before.get(file)} == {damaged}
    assert after.keys() == before.keys()
    assert differing(arrays(cache), good) == []
    return {"sum_videos_damaged": 1, "sum_videos_redone": 1, "sum_other_files_touched": 0}


def _strike_one(pair: tuple[Path, Path], trial: Trial) -> Path:
    """One stroke, of any kind, to the artefact or the sidecar of a video."""
    path = trial.rng.choice(pair)
    strokes = [*ON_SIZES.values(), *ON_BYTES.values()]
    if path == pair[0]:
        strokes += [lambda artefact, rng: edit(artefact, rng.choice(EDITS))]
    trial.rng.choice(strokes)(path, trial.rng)
    return path
