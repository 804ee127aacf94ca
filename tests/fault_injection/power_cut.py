"""Power cuts: whatever the disk had not yet made durable may be gone, and nothing wrong is served."""

from __future__ import annotations

import random
from pathlib import Path

import chordcache as cc
from fault_injection.disk_model import Call, Disk, calls, record
from fault_injection.fixtures import TIERS, build, build_args, differs, make_corpus
from fault_injection.harness import Figures, Trial, experiment

NUM_BUILT_AGAIN = 2
"""States of each call that are built again; the others are looked at only."""

MAY_DIFFER = {".lock", ".partial", "quarantine.jsonl", "runs.jsonl"}
"""Not published: the lock holds a process's number, partials are thrown away, a torn last line is passed over."""


def _make_recording(folder: Path, corpus: Path, tier: str) -> None:
    """disk/, in which a cache was built, and the system calls that did it."""
    (folder / "disk").mkdir(parents=True)
    done = record(folder / "trace", ["-m", "chordcache", *build_args(corpus, tier, folder / "disk/cache", jobs=1)])
    assert done.returncode == 3, done.stderr
    assert not differs(folder / "disk/cache", corpus / "whole", tier)
    disk = Disk(str(folder / "disk"))
    for call in calls(folder / "trace"):
        disk.apply(call)
    disk.write_to(folder / "replayed", "all", random.Random(0))
    assert _files(folder / "replayed") == _files(folder / "disk"), "the model of the disk is wrong"


def _make_corpus(folder: Path) -> None:
    """Two videos, and a file that is none."""
    make_corpus(folder, num_videos=2, num_frames=6)
    (folder / "videos/none.mp4").write_bytes(b"not a video")
    cc.scan([folder / "videos"], output=folder / "index.json", jobs=1)


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _acknowledged(recorded: list[Call], base: str, cut: int) -> set[str]:
    """Sidecars whose folder was flushed, after they were put there, before the cut."""
    renamed: set[str] = set()
    flushed: set[str] = set()
    for call in recorded[:cut]:
        if call.name.startswith("rename") and call.paths()[1].startswith(f"{base}/cache/videos/"):
            renamed.add(call.paths()[1])
        elif call.name == "fsync":
            flushed |= {path for path in renamed if path.rpartition("/")[0] == call.folders[0]}
    return {path.removeprefix(f"{base}/") for path in flushed}


@experiment(
    "R2", "power cut at a random system call, any part of what was not flushed lost",
    trials=1000, batch=50, variants=TIERS,
)  # fmt: skip
def power_cut(trial: Trial) -> Figures:
    """Files with a final name are what was published, acknowledged videos are there, a build restores the rest."""
    corpus = trial.once("corpus", _make_corpus)
    recording = trial.once("recording", lambda folder: _make_recording(folder, corpus, trial.variant))
    recorded, base = calls(recording / "trace"), str(recording / "disk")
    moments = [i for i, call in enumerate(recorded, 1) if call.name != "lseek" and call.is_under(base)]
    whole = _files(recording / "disk")
    num_acknowledged = num_kept = 0
    for number in range(trial.count):
        cut = trial.rng.choice(moments)
        disk = Disk(base)
        for call in recorded[:cut]:
            disk.apply(call)
        state = trial.folder / f"{number}"
        disk.write_to(state, trial.rng.choice(("nothing", "any", "any", "all")), trial.rng)
        acknowledged = _acknowledged(recorded, base, cut)
        kept = _check(state, whole, acknowledged)
        num_acknowledged += len(acknowledged)
        num_kept += len(kept)
        if number < NUM_BUILT_AGAIN:
            _build_again(state, corpus, trial.variant)
    return {"sum_states": trial.count, "sum_videos_acknowledged": num_acknowledged, "sum_videos_kept": num_kept}


def _check(state: Path, whole: dict[str, bytes], acknowledged: set[str]) -> set[str]:
    """Compare with what was published, byte by byte; return the sidecars that are there."""
    files = {name: data for name, data in _files(state).items() if name.split("/")[1] not in MAY_DIFFER}
    torn = [name for name, data in files.items() if whole.get(name) != data]
    assert torn == [], torn
    sidecars = {name for name in files if name.startswith("cache/videos/")}
    assert acknowledged <= sidecars, f"acknowledged and lost: {acknowledged - sidecars}"
    if "cache/chordcache.json" in files:
        reported = cc.verify(state / "cache", level="quick").damage
        damage = [
            finding for finding in reported if finding.kind in ("damaged", "missing") and finding.file != "catalog.bin"
        ]
        assert damage == [], damage
    return sidecars


def _build_again(state: Path, corpus: Path, tier: str) -> None:
    done = build(corpus, tier, state)
    assert done.returncode == 3, done.stderr
    assert differs(state / "cache", corpus / "whole", tier) == []
    damage = cc.verify(state / "cache", jobs=1).damage
    assert damage == [], damage
