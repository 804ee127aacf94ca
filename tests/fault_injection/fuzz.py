"""Mutants of media files and of artefacts: no signal, no hang, one family of exceptions."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import write_video
from helpers import processes
from helpers.array_tables import sealed_again

import chordcache as cc
from chordcache.config.config import config_from_json
from chordcache.digests import digest_file
from chordcache.engine import pool
from chordcache.engine.limits import Limits
from chordcache.storage import layout
from chordcache.storage.artefacts.open_files import forget
from chordcache.storage.feature_info import StoredFile
from chordcache.storage.find_sidecars import write_catalog
from chordcache.storage.sidecar import Sidecar, files_of, read_sidecar
from fault_injection.fixtures import TIERS, make_corpus
from fault_injection.harness import Figures, Trial, experiment
from fault_injection.mutator import Mutator

# Containers

SEEDS: dict[str, tuple[dict[str, Any], ...]] = {
    ".mp4": ({"audio": True, "options": {"bf": "2"}}, {"codec": "mpeg4", "rotation": 90}),
    ".mov": (
        {"container_options": {"movflags": "frag_keyframe+empty_moov"}, "gop": 2, "audio": True},
        {"container_options": {"movflags": "frag_keyframe+empty_moov"}, "codec": "mjpeg", "pixel_format": "yuvj420p"},
    ),
    ".mkv": ({"audio": True}, {"codec": "ffv1"}, {"codec": "libvpx-vp9"}),
    ".webm": ({"codec": "libvpx", "audio": True}, {"codec": "libvpx-vp9"}),
    ".avi": ({"codec": "mpeg4", "audio": True}, {"codec": "mjpeg", "pixel_format": "yuvj420p"}, {"codec": "msmpeg4"}),
    ".ts": ({"audio": True}, {"codec": "mpeg2video"}),
    ".ogv": ({"codec": "libvpx"}, {"codec": "libvpx", "gop": 2}),
    ".flv": ({"audio": True}, {"codec": "flv"}),
}
"""The files of each container, see ``conftest.VideoSpec``."""

_NUM_FRAMES = 6

_SMALL: dict[str, Any] = {"frames": {"short_side": 32}, "features": {"flow": None, "mel": None}}

_MEMORY = "/dev/shm"
"""Where there is such a folder, what is made of mutants need not wait for a disk."""

_LIMITS = Limits(stall_seconds=5, memory_bytes=512 << 20)


def _make_media(folder: Path, suffix: str) -> None:
    for number, spec in enumerate(SEEDS[suffix]):
        write_video(folder / f"seed-{number}{suffix}", num_frames=_NUM_FRAMES, size=(48, 32), **spec)


@experiment(
    "S10", "mutants of media through scan and build, in workers: each is cached and sound, or in quarantine",
    trials=10_000, batch=500, variants=tuple(SEEDS),
)  # fmt: skip
def mutants_of_media(trial: Trial) -> Figures:
    """The sound files go with them, so that they are known to be read."""
    media = trial.once(f"media{trial.variant}", lambda folder: _make_media(folder, trial.variant))
    seeds = {path.name: path.read_bytes() for path in sorted(media.iterdir())}
    mutator = Mutator(trial.variant, list(seeds.values()))
    mutants = {
        f"{number}{trial.variant}": mutator.mutant(trial.rng, number % len(seeds)) for number in range(trial.count)
    }
    with tempfile.TemporaryDirectory(dir=_MEMORY if os.path.isdir(_MEMORY) else None) as folder:
        return _scan_and_build({**mutants, **seeds}, Path(folder), list(seeds))


def _scan_and_build(files: Mapping[str, bytes], folder: Path, sound: Sequence[str]) -> Figures:
    (folder / "videos").mkdir()
    for name, data in files.items():
        (folder / "videos" / name).write_bytes(data)
    index = cc.scan([folder / "videos"], output=folder / "index.jsonl", jobs=1, limits=_LIMITS)
    assert {record.path for record in index} == files.keys()
    options = cc.BuildOptions(limits=_LIMITS)
    cc.build(index, folder / "cache", config=config_from_json(_SMALL), jobs=1, options=options)
    cached, refused = processes.sidecars(folder / "cache"), processes.quarantine(folder / "cache")
    assert sorted([*cached, *refused]) == sorted(files)
    assert {name: cached[name]["num_frames"] for name in sound} == dict.fromkeys(sound, _NUM_FRAMES)
    assert [line for line in refused.values() if line["cause"] in ("", "bug") or not line["message"]] == []
    assert cc.verify(folder / "cache", level="deep", jobs=1).damage == []
    causes = Counter(line["cause"] for line in refused.values())
    return {
        "sum_read": len(cached) - len(sound),
        "sum_refused": len(refused),
        "sum_out_of_memory": causes["oom"],
        "sum_hangs": causes["timeout"],
        "sum_workers_lost": causes["signal"],
        "max_causes": len(causes),
    }


# Stores


@dataclass(frozen=True)
class _Task:
    """One video to read whole, in a worker or here."""

    cache: cc.Cache
    key: str
    seed: str
    """The sound video that it was made of, in ``whole``"""
    whole: Path
    is_resealed: bool
    """The digests inside of it may be those of other content, too"""


@cache
def _truth(whole: Path, key: str, tier: str, feature: str) -> np.ndarray:
    return cc.open_cache(whole).read(key, feature, tier=tier)


def _read(task: _Task) -> list[str]:
    """Read all that a video has; how each read ended. What is read is what was written, unless digests were, too."""
    try:
        video = task.cache[task.key]
    except cc.NotFoundError:  # the catalog has no video whose sidecar claims more than its file has room for
        with pytest.raises(cc.DamageError):
            read_sidecar(task.cache.path, task.key)
        return ["DamageError"]
    ends = []
    for info in video.sidecar.features:
        for feature in info.num_rows:
            try:
                values = task.cache.read(video, feature, tier=info.tier)
            except cc.ChordcacheError as error:
                ends.append(type(error).__name__)
            else:
                if not task.is_resealed:
                    assert np.array_equal(values, _truth(task.whole, task.seed, info.tier, feature)), (task, feature)
                ends.append("read")
    try:
        video.pts_seconds  # noqa: B018 -- reads it
    except cc.ChordcacheError as error:
        ends.append(type(error).__name__)
    forget(task.cache.path / video.sidecar.features[0].file.name)
    return ends


def _mutants(trial: Trial, tier: str, *, resealed: bool) -> list[_Task]:
    """A cache of mutants: of the same size under the sidecar that they had, or of any under one made for them."""
    whole = trial.once("corpus", make_corpus) / "whole"
    sidecars = [Sidecar.from_line(data["_sidecar"].read_text(), "") for data in processes.sidecars(whole).values()]
    seeds = [seed for sidecar in sidecars for seed in _of_each_file(sidecar, tier)]
    files = [whole / seed.features[0].file.name for seed in seeds]
    mutator = Mutator(files[0].suffix, [file.read_bytes() for file in files])
    folder = trial.folder / "cache"
    folder.mkdir()
    (folder / "chordcache.json").write_bytes((whole / "chordcache.json").read_bytes())
    keys = []
    for number in range(trial.count):
        seed = seeds[number % len(seeds)]
        data = mutator.mutant(trial.rng, number % len(seeds), same_size=not resealed)
        keys.append((_put(folder, number, seed, data, resealed=resealed), seed.key))
    write_catalog(folder)
    opened = cc.open_cache(folder)
    return [_Task(opened, key, seed_key, whole, resealed) for key, seed_key in keys]


def _of_each_file(sidecar: Sidecar, tier: str) -> list[Sidecar]:
    """Return a sidecar for each file of a tier, with the features that are in it."""
    infos = [info for info in sidecar.features if info.tier == tier and info.file]
    return [sidecar.replace(features=tuple(i for i in infos if i.file == file)) for file in files_of(infos)]


def _put(folder: Path, number: int, seed: Sidecar, data: bytes, *, resealed: bool) -> str:
    """Write an artefact and a sidecar that names it, and return its key."""
    key = layout.video_key(seed.root, f"{number}.mp4")
    old = seed.features[0]
    tier, _, name = old.file.name.split("/")
    file = f"{tier}/{layout.fan_of(key)}/{key}.{name.partition('.')[2]}"
    (folder / file).parent.mkdir(parents=True, exist_ok=True)
    (folder / file).write_bytes(sealed_again(data) if resealed and not file.endswith(".lmdb") else data)
    digest = digest_file(folder / file) if resealed else old.file.digest
    num_bytes = (folder / file).stat().st_size
    infos = tuple(info.replace(file=StoredFile(file, num_bytes, digest)) for info in seed.features)
    path = folder / layout.sidecar_file(key)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(seed.replace(key=key, path=f"{number}.mp4", features=infos).to_line() + "\n")
    return key


@experiment(
    "S10", "mutants of artefacts, of the size that the sidecar states, read by the main process",
    trials=10_000, batch=500, variants=TIERS,
)  # fmt: skip
def mutants_of_artefacts(trial: Trial) -> Figures:
    """Readers look at the size and not at the digest of the whole: these they open."""
    tasks = _mutants(trial, trial.variant, resealed=False)
    assert {_digest_is_wrong(task) for task in tasks} == {True}
    ends = Counter(end for task in tasks for end in _read(task))
    assert ends.keys() <= {"read", "DamageError"}
    assert ends["DamageError"] > len(tasks) / 10  # else the reader has not seen them
    damaged = {finding.key for finding in cc.verify(tasks[0].cache.path, jobs=1).damage if finding.kind == "damaged"}
    assert damaged == {task.key for task in tasks}
    return {"sum_reads_refused": ends["DamageError"], "sum_reads_right": ends["read"], "sum_crashes": 0}


def _digest_is_wrong(task: _Task) -> bool:
    info = task.cache[task.key].sidecar.features[0]
    return digest_file(task.cache.path / info.file.name) != info.file.digest


@experiment(
    "S10", "mutants of artefacts with a sidecar made to match, read and verified in workers",
    trials=10_000, batch=500, variants=TIERS,
)  # fmt: skip
def resealed_mutants_of_artefacts(trial: Trial) -> Figures:
    """Who rewrites both may change what is read, so it is not compared; but may not do more than that."""
    tasks = _mutants(trial, trial.variant, resealed=True)
    ends: Counter[str] = Counter()
    num_lost = 0
    for _, outcome in pool.run(_read, tasks, jobs=1):
        if isinstance(outcome, pool.Crash):
            assert outcome.cause != "bug", outcome.message
            num_lost += 1
        else:
            ends.update(outcome)
    assert ends.keys() <= {"read", "DamageError"}
    damage = cc.verify(tasks[0].cache.path, level="deep", jobs=1).damage
    assert {finding.kind for finding in damage} <= {"damaged", "incomplete", "missing"}
    return {"sum_reads_refused": ends["DamageError"], "sum_reads_right": ends["read"], "sum_workers_lost": num_lost}
