"""R16 and R17: many readers of one cache, wherever it lies and whatever happens to it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
import yaml
from conftest import run_chordcache
from helpers import processes
from helpers.cache_contents import arrays
from helpers.small_disks import make_read_only, tmpfs

import chordcache as cc
from fault_injection import reader_job
from fault_injection.fixtures import CONFIG, TIERS, build_args, make_corpus, needs_root, states
from fault_injection.harness import Figures, Trial, experiment

OTHER_USER = 65534

NUM_JOBS = 4
"""Processes that the readers of a crowd are forked from."""

NUM_READERS = 300

SHORT_SIDES = (64, 48, 80)
"""[pixels] Generations that a cache goes through while it is read; the first is that of the corpus's whole cache."""


def _truth(whole: Path) -> dict[str, str]:
    """Arrays of every feature of a cache, read without the package."""
    stored = arrays(whole)
    truth = {}
    for path, data in processes.sidecars(whole).items():
        for info in data["features"]:
            if info["feature"] in reader_job.FEATURES[info["tier"]] and "file" in info:
                values = _values(stored, path, info["tier"], info["feature"])
                name = reader_job.name_of(path, info["tier"], info["feature"], info["fingerprint"])
                truth[name] = reader_job.digest(values)
    return truth


def _values(stored: Any, path: str, tier: str, feature: str) -> Any:
    if feature == "flow":  # codes, of a scale for each pair of frames
        scale = stored[path, tier, "flow.scale"]
        return stored[path, tier, "flow"].astype(np.float32) * scale[:, None, None, None]
    if feature != "frames":
        return stored[path, tier, feature]
    if tier == "hdf5":
        records = stored[path, tier, "frames"]
    else:
        records = [value for key, value in stored[path, tier, "entries"] if len(key) == 4]
    return np.stack([simplejpeg.decode_jpeg(record, "RGB") for record in records])


@contextlib.contextmanager
def _jobs(folder: Path, calls: list[list[str]]) -> Iterator[list[subprocess.Popen[str]]]:
    """``reader`` processes; none is left afterwards."""
    with (folder / "readers.err").open("a") as errors, contextlib.ExitStack() as stack:
        jobs = []
        for args in calls:
            job = subprocess.Popen(
                [sys.executable, reader_job.__file__, *args],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, cwd="/",
            )  # fmt: skip
            stack.callback(job.wait)
            stack.callback(job.kill)
            jobs.append(job)
        yield jobs


def _errors(folder: Path) -> str:
    return (folder / "readers.err").read_text()


# Many at once


@experiment(
    "R16", f"{NUM_READERS} readers at once of one cache",
    trials=2 * NUM_READERS, batch=NUM_READERS, variants=("as another user", "on a read-only disk", "on a full disk"),
)  # fmt: skip
def crowd(trial: Trial) -> Figures:
    """All have it open at the same time; nothing in the cache is made or changed."""
    needs_root()
    corpus = trial.once("corpus", lambda folder: make_corpus(folder, num_videos=2, num_frames=8))
    truth = trial.folder / "truth.json"
    truth.write_text(json.dumps(_truth(corpus / "whole")))
    trial.shared.chmod(0o711)  # other users are not to get in
    with tmpfs(trial.folder / "disk", "32m", may_be_open=True) as disk:
        subprocess.run(["cp", "-a", corpus / "whole", disk / "cache"], check=True)
        uid = _prepare(disk, trial.variant)
        before = states(disk)
        size = trial.count // NUM_JOBS
        call = ["crowd", str(disk / "cache"), str(truth), str(size), str(uid)]
        with _jobs(trial.folder, [call] * NUM_JOBS) as jobs:
            opened = [job.stdout.readline() for job in jobs if job.stdout]
            assert opened == [f"{size} have it open\n"] * NUM_JOBS, _errors(trial.folder)
            ended = [json.loads(job.communicate()[0]) for job in jobs]
        assert ended == [{"readers": size, "wrong": 0}] * NUM_JOBS, _errors(trial.folder)
        assert _errors(trial.folder) == ""
        assert states(disk) == before
    return {"sum_errors": 0, "min_at_once": NUM_JOBS * size}


def _prepare(disk: Path, how: str) -> int:
    """Make a disk what the variant says; whom the readers run as."""
    if how == "on a read-only disk":
        make_read_only(disk)
    elif how == "on a full disk":
        with (disk / "ballast").open("wb") as file:
            status = os.statvfs(disk)
            os.posix_fallocate(file.fileno(), 0, status.f_bavail * status.f_frsize)
        assert os.statvfs(disk).f_bavail == 0
    return OTHER_USER if how == "as another user" else 0


# While it is built

NUM_WATCHERS = 6

NUM_REBUILDS = 3


def _make_generations(folder: Path) -> None:
    """Whole caches, one for each of ``SHORT_SIDES``, and the configs that make them."""
    make_corpus(folder, num_videos=3, num_frames=12)
    (folder / "whole").rename(folder / f"whole-{SHORT_SIDES[0]}")
    for side in SHORT_SIDES:
        config = folder / f"{side}.yaml"
        config.write_text(yaml.dump({**CONFIG, "frames": {"short_side": side}}))
        if side != SHORT_SIDES[0]:
            cc.build(folder / "index.json", folder / f"whole-{side}", tiers=TIERS, config=config, jobs=2)


@experiment(
    "R17", f"{NUM_WATCHERS} readers of a cache while it is built, and built again {NUM_REBUILDS} times", trials=10
)
def watched(trial: Trial) -> Figures:
    """Each read is right for the generation that was opened; the first one stays readable until gc."""
    corpus = trial.once("generations", _make_generations)
    truth = trial.folder / "truth.json"
    wholes = [_truth(corpus / f"whole-{side}") for side in SHORT_SIDES]
    truth.write_text(json.dumps({name: value for whole in wholes for name, value in whole.items()}))
    cache = trial.folder / "cache"
    calls = [["watch", str(cache), str(truth), f"{trial.number} {i}"] for i in range(NUM_WATCHERS)]
    with _jobs(trial.folder, calls) as jobs:
        for turn in range(1 + NUM_REBUILDS):
            config = corpus / f"{SHORT_SIDES[turn % len(SHORT_SIDES)]}.yaml"
            done = run_chordcache(*build_args(corpus, "all", cache), "-c", config)
            assert done.returncode == 0, done.stderr
            notes = done.stderr.splitlines()
            assert all(": builds 3 cached videos " in note for note in notes), done.stderr
        outputs = [job.communicate()[0] for job in jobs]
    assert all(outputs), _errors(trial.folder)
    ended = [json.loads(output) for output in outputs]
    _check_garbage(cache)
    return {
        "sum_reads": sum(counts["reads"] for counts in ended),
        "sum_torn": 0,
        "median_generations_seen": sum(counts["generations"] for counts in ended) / len(ended),
    }


def _check_garbage(cache: Path) -> None:
    """gc leaves what the sidecars name, and that is still right."""
    done = run_chordcache("gc", cache)
    assert (done.returncode, done.stderr) == (0, "")
    named = {
        info["file"]["name"]
        for data in processes.sidecars(cache).values()
        for info in data["features"]
        if "file" in info
    }
    assert {name for name in processes.files_of(cache) if not name.startswith("videos/")} == named
    assert cc.verify(cache, jobs=1).damage == []
