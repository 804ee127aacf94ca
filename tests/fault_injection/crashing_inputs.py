"""Files that crash a worker, hang, use up memory or raise: each is quarantined, and the good ones are built."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import yaml
from conftest import write_video
from helpers import processes
from helpers.faulty_extractor import ENVIRONMENT, PLUG_IN

import chordcache as cc
from chordcache.engine import pool
from chordcache.engine.limits import Limits
from fault_injection.harness import Figures, Trial, experiment

CAUSES = {
    "SIGSEGV": "signal",
    "exit 0": "signal",
    "SIGKILL": "signal",
    "sys.exit": "extractor",
    "sleep": "timeout",
    "hold the interpreter": "timeout",
    "many arrays": "oom",
    "unpicklable": "extractor",
    "silent": "extractor",
    "unpicklable facts": "extractor",
}
"""Fault of the extractor, and the cause that the file's line in quarantine must state."""

_LETHAL = tuple(fault for fault, cause in CAUSES.items() if cause == "signal")

_WIDTHS = {fault: 64 + 2 * number for number, fault in enumerate((*CAUSES, "none"))}
"""A plug-in knows a video by its size [pixels]."""

_NUM_FRAMES = 6

_LIMITS = ("--stall-timeout", "2", "--file-memory", "768")


def _make_seeds(folder: Path) -> None:
    """A video for each fault, and a config with the faulty extractor alone."""
    for fault, width in _WIDTHS.items():
        write_video(folder / f"{fault}.mp4", num_frames=_NUM_FRAMES, size=(width, 48))
    fault_of_width = {str(width): fault for fault, width in _WIDTHS.items() if fault != "none"}
    mine = {"extractor": PLUG_IN, "fault_of_width": fault_of_width}
    (folder / "mine.yaml").write_text(yaml.dump({"features": {"mine": mine}}))


def _make_corpus(trial: Trial, faults: Sequence[str], name: str = "corpus") -> Path:
    """A folder with index.json of one video for each fault, in this order; what is there stays."""
    seeds = trial.once("seeds", _make_seeds)
    folder = trial.folder / name
    (folder / "videos").mkdir(parents=True, exist_ok=True)
    for number, fault in enumerate(faults):
        path = folder / f"videos/{number:04}.mp4"
        if not path.exists():
            shutil.copy(seeds / f"{fault}.mp4", path)
    cc.scan([folder / "videos"], output=folder / "index.json", jobs=1)
    return folder


def _build(trial: Trial, corpus: Path, *, is_fixed: bool = False) -> processes.Run:
    """Build to the end; nothing of it is alive afterwards, and no traceback was shown."""
    seeds = trial.once("seeds", _make_seeds)
    args = ("build", corpus / "index.json", "-o", "cache", "-c", seeds / "mine.yaml", "--tier", "npz", *_LIMITS)
    env = {**ENVIRONMENT, **({"FAULTS_ARE_FIXED": "1"} if is_fixed else {})}
    with processes.running(corpus, *args, "--features", "mine", "-j2", env=env) as run:
        run.wait(300)
        assert run.survivors() == []
    assert processes.fine(run.stderr), run.stderr
    assert processes.partials(corpus / "cache") == []
    return run


def _check_good(corpus: Path, faults: Sequence[str]) -> None:
    """The good files and no others are cached, with the rows that the plug-in made."""
    sidecars = processes.sidecars(corpus / "cache")
    assert sorted(sidecars) == [f"{number:04}.mp4" for number, fault in enumerate(faults) if fault == "none"]
    for data in sidecars.values():
        with np.load(data["_artefact"], allow_pickle=False) as npz:
            assert npz["mine"].tolist() == list(range(_NUM_FRAMES))


@experiment(
    "R19", "a build with one file in a hundred of each that crashes, exits, is killed, hangs, eats memory, raises",
    trials=1_000, batch=100,
)  # fmt: skip
def crashing_files(trial: Trial) -> Figures:
    """In random order; a trial is a file."""
    faults = ["none"] * trial.count
    num_faults = min(len(CAUSES), trial.count)
    chosen = trial.rng.sample(list(CAUSES), num_faults)
    for fault, number in zip(chosen, trial.rng.sample(range(trial.count), num_faults), strict=True):
        faults[number] = fault
    corpus = _make_corpus(trial, faults)
    run = _build(trial, corpus)
    assert run.process.returncode == 3, run.stderr
    _check_good(corpus, faults)
    causes = {path: line["cause"] for path, line in processes.quarantine(corpus / "cache").items()}
    assert causes == {f"{number:04}.mp4": CAUSES[fault] for number, fault in enumerate(faults) if fault != "none"}

    before = (corpus / "cache/quarantine.jsonl").read_bytes()
    again = _build(trial, corpus)
    assert again.process.returncode == 3, again.stderr
    num_good = faults.count("none")
    assert again.stdout.startswith(f"done 0, up to date {num_good}, quarantined {num_faults} of {trial.count} ")
    assert (corpus / "cache/quarantine.jsonl").read_bytes() == before
    return {"sum_good_files_done": num_good, "sum_faulty_files_isolated": len(causes)}


@experiment(
    "R19", "a build in an environment that kills every worker: exit 14, then the same command in a sound one", trials=20
)
def a_deadly_environment(trial: Trial) -> Figures:
    """Files that were done before stay done; none is blamed."""
    done = ["none"] * trial.rng.randrange(1, 4)
    _build(trial, _make_corpus(trial, done))
    faults = [*done, *(trial.rng.choice(_LETHAL) for _ in range(8))]
    corpus = _make_corpus(trial, faults)
    run = _build(trial, corpus)
    assert run.process.returncode == 14, run.stderr
    assert "5 tasks in a row killed their workers" in run.stderr
    assert processes.quarantine(corpus / "cache") == {}
    _check_good(corpus, faults)
    again = _build(trial, corpus, is_fixed=True)
    assert again.process.returncode == 0, again.stderr
    assert again.stdout.startswith(f"done 8, up to date {len(done)}, quarantined 0 of {len(faults)} ")
    _check_good(corpus, ["none"] * len(faults))
    return {"sum_files_blamed": 0}


@experiment("R19", "a build in which no file can be decoded: no breaker trips", trials=5)
def nothing_to_decode(trial: Trial) -> Figures:
    """A scan of the headers finds nothing wrong."""
    folder = trial.folder / "corpus"
    for number in range(12):
        video = write_video(folder / f"videos/{number:04}.mp4", num_frames=_NUM_FRAMES, options={"bf": "0"})
        data = bytearray(video.read_bytes())
        start = data.index(b"mdat") + 4
        stop = data.index(b"moov") - 4
        data[start:stop] = trial.rng.randbytes(stop - start)
        video.write_bytes(data)
    index = cc.scan([folder / "videos"], output=folder / "index.json", level="headers", jobs=1)
    assert [record.error for record in index] == [None] * 12
    run = _build(trial, folder)
    assert run.process.returncode == 3, run.stderr
    assert {line["cause"] for line in processes.quarantine(folder / "cache").values()} == {"decode"}
    assert processes.sidecars(folder / "cache") == {}
    return {"sum_files_in_quarantine": len(processes.quarantine(folder / "cache"))}


# What it costs

_MAX_ISOLATION_SECONDS = 0.015
"""For one file"""


def _nothing(number: int) -> int:
    return number


@experiment("R19", "what isolation costs: tasks that do nothing in a worker, and files that kill one", alone=True)
def what_isolation_costs(trial: Trial) -> Figures:
    """A lost worker costs mainly the start of the next one."""
    num_tasks = 1_000
    tasks = list(range(num_tasks))
    started = time.monotonic()
    assert [_nothing(task) for task in tasks] == tasks
    plain_seconds = time.monotonic() - started
    results = pool.run(_nothing, tasks, jobs=1, limits=Limits(), ordered=True)
    assert next(results) == (0, 0)  # the start of the worker is paid once, however many files there are
    started = time.monotonic()
    assert [result for _, result in results] == tasks[1:]
    isolation_seconds = (time.monotonic() - started - plain_seconds) / num_tasks
    assert isolation_seconds <= _MAX_ISOLATION_SECONDS

    seconds = {}
    for name, faults in {"good": ["none"] * 20, "bad": [*["none"] * 20, *_LETHAL]}.items():
        corpus = _make_corpus(trial, faults, name)
        started = time.monotonic()
        _build(trial, corpus)
        seconds[name] = time.monotonic() - started
        _check_good(corpus, faults)
    death_seconds = (seconds["bad"] - seconds["good"]) / len(_LETHAL)
    return {"max_ms_a_file": 1e3 * isolation_seconds, "max_ms_a_death": 1e3 * death_seconds}
