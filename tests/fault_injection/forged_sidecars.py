"""Sidecars that say anything, under a seal that is right: each is read, or is damage that is named."""

from __future__ import annotations

import copy
import json
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from conftest import write_video
from helpers import processes

import chordcache as cc
from chordcache.config.config import config_from_json
from chordcache.digests import digest_file
from chordcache.engine import pool
from chordcache.engine.choice import Engine
from chordcache.engine.limits import Limits
from chordcache.look.summary import summarize
from chordcache.look.video_facts import describe_video
from chordcache.media.cropping import Rectangle
from chordcache.storage import layout, sealed_json
from chordcache.storage.artefacts.writer import create_artefact
from chordcache.storage.feature_info import FeatureInfo, StoredFile
from chordcache.storage.find_sidecars import iter_keys, write_catalog
from chordcache.storage.sidecar import Sidecar, read_sidecar
from fault_injection.harness import Figures, Trial, experiment

NUM_FRAMES = 10

SEEDS: Mapping[str, Mapping[str, Any]] = {
    "jpeg": {
        "frames": {"short_side": 32},
        "features": {"flow": {"method": "dis"}, "motion": {}, "mel": {}, "waveform": {}},
        "hdf5": {"features": ["frames", "flow", "mel"]},
    },
    "packets": {
        "frames": {"short_side": 32, "codec": "mpeg4", "gop": 4, "stride": 2},
        "features": {"flow": {"dtype": "int8"}, "motion": None, "mel": {"mono": False}},
        "hdf5": {"features": ["frames"]},
    },
    "raw": {
        "frames": {"short_side": 32, "codec": "raw"},
        "features": {"flow": {}, "mel": {}, "waveform": {"dtype": "int16", "channels": "all", "sample_rate": None}},
        "hdf5": {"features": ["frames"]},
    },
}
"""Configs of the sound caches. Their videos differ in whether they have sound"""

_NETWORKS: Mapping[str, tuple[tuple[int, ...], str, Mapping[str, Any], Mapping[str, Any]]] = {
    "pose": ((NUM_FRAMES, 33, 4), "float32", {"stride": 1}, {}),
    "embed": ((NUM_FRAMES, 8), "float16", {"output": "pooled"}, {}),
    "text": ((5, 8), "float16", {}, {"is_of_video": True, "num_tokens_left_out": 0}),
    "latents": (
        (4, 2, 4, 6),
        "float16",
        {"compression": [4, 8]},
        {"frames_per_row": 4, "frames_in_first_row": 1},
    ),
}
"""Shape, dtype, params and facts of the features that networks make, whose rows are made up"""

_LIMITS = Limits(stall_seconds=20, memory_bytes=768 << 20)
"""A reader of the sound caches takes about 200 MiB of its own"""


def _make(folder: Path) -> None:
    write_video(folder / "videos/sound.mp4", num_frames=NUM_FRAMES, size=(48, 32), audio=True)
    write_video(folder / "videos/silent.mp4", num_frames=NUM_FRAMES, size=(48, 32), gop=2)
    index = cc.scan([folder / "videos"], output=folder / "index.json", jobs=1)
    for name, config in SEEDS.items():
        tiers = ["npz", "hdf5"] if name == "raw" else ["lmdb", "npz", "hdf5"]
        cc.build(index, folder / name, tiers=tiers, config=config_from_json(config), jobs=1)
        for key in iter_keys(folder / name):
            _add_networks(folder / name, read_sidecar(folder / name, key))


def _add_networks(cache: Path, sidecar: Sidecar) -> None:
    """Add the features of networks to a video."""
    infos = []
    for feature, (shape, dtype, params, facts) in _NETWORKS.items():
        path = cache / ".partial" / f"{feature}.npz"
        path.parent.mkdir(exist_ok=True)
        numbers = np.arange(NUM_FRAMES)
        with create_artefact(path) as writer:
            writer.append(feature, np.ones(shape, dtype))
            writer.finish({"pts_seconds": numbers / 25, "source_frames": numbers, "keyframes": numbers[:1]}, {})
        file = f"npz/{sidecar.key[-16:-14]}/{sidecar.key}.{feature}.0123abcd.npz"
        path.rename(cache / file)
        size, digest = (cache / file).stat().st_size, digest_file(cache / file)
        rows = {feature: shape[0]}
        stored = StoredFile(file, size, digest)
        infos.append(FeatureInfo(feature, "npz", "0" * 16, params, stored, shape, dtype, rows, facts))
    (cache / layout.sidecar_file(sidecar.key)).write_text(
        sidecar.with_features((*sidecar.features, *infos)).to_line() + "\n"
    )


# Mutants

_NUMBERS: tuple[Any, ...] = (
    0, 1, 2, 3, -1, -2, 7, 64, 255, 4096, 16384, 16385, 65536, (1 << 31) - 1, 1 << 31, 1 << 40, (1 << 63) - 1, 1 << 63,
    10**30, -(10**30), 0.0, -0.0, 0.5, -1.5, 1e-9, 5e-324, 1e9, 1e18, 1e300, -1e300,
)  # fmt: skip
_OTHERS: tuple[Any, ...] = (
    None, True, False, "", "7", "NaN", "inf", "object", "O", "f8", "float64", "S1000000", "V8", "i4,i4", "raw", "jpeg",
    "h264", "mpeg4", "planes", "frames", "flow", "mel", "all", "../x", "x" * 300, "\ud800", [],
    [0], [3, 3], {}, {"a": 1},
)  # fmt: skip
_NEW_KEYS: tuple[tuple[str, Any], ...] = (
    ("row_seconds", 0.01), ("row_seconds", 0), ("start_seconds", 0.0), ("silence", 0), ("frames_per_row", 0),
    ("frames_per_row", 2), ("frames_in_first_row", 1), ("frames_per_clip", 5), ("is_of_video", True), ("codec", "raw"),
    ("gop", 0), ("stride", 0), ("flow.scale", 9), ("motion.types", 10), ("frames", 10), ("absent", "no reason"),
    ("x", None),
)  # fmt: skip


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path to every value of plain data."""
    if path:
        yield path
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in pairs:
        yield from _places(inner, (*path, name))


def _mutant(rng: random.Random, seed: Mapping[str, Any]) -> dict[str, Any]:
    """Return another sidecar than the seed: one to four values are changed, removed, added or exchanged."""
    data = copy.deepcopy(dict(seed))
    while data == seed:
        for _ in range(rng.choice((1, 1, 1, 2, 4))):
            rng.choice(_EDITS)(rng, data)
    return data


def _place(rng: random.Random, data: dict[str, Any]) -> tuple[Any, Any]:
    """Choose a value: the container that has it, and its name there. Three of four belong to a feature."""
    paths = list(_places(data))
    of_features = [path for path in paths if path[0] == "features" and len(path) > 1]
    *above, name = rng.choice(of_features if of_features and rng.random() < 0.75 else paths)
    container: Any = data
    for part in above:
        container = container[part]
    return container, name


def _replace(rng: random.Random, data: dict[str, Any]) -> None:
    container, name = _place(rng, data)
    container[name] = copy.deepcopy(rng.choice(_NUMBERS if rng.random() < 0.7 else _OTHERS))


def _shift(rng: random.Random, data: dict[str, Any]) -> None:
    """Change a number by little, or by a factor."""
    container, name = _place(rng, data)
    if isinstance(container[name], (int, float)):
        container[name] = rng.choice(
            (container[name] + rng.choice((-1, 1, 8)), container[name] * rng.choice((2, -1, 1000)))
        )


def _remove(rng: random.Random, data: dict[str, Any]) -> None:
    container, name = _place(rng, data)
    del container[name]


def _add(rng: random.Random, data: dict[str, Any]) -> None:
    container, name = _place(rng, data)
    target = container[name] if isinstance(container[name], (dict, list)) else container
    if isinstance(target, dict):
        key, value = rng.choice(_NEW_KEYS)
        target[key] = value
    else:
        target.insert(rng.randrange(len(target) + 1), rng.choice([*target, 1]))


def _exchange(rng: random.Random, data: dict[str, Any]) -> None:
    """Give a feature a field of another one."""
    features = data.get("features")
    if not isinstance(features, list) or not all(isinstance(info, dict) for info in features) or len(features) < 2:
        return
    one, other = rng.sample(features, 2)
    name = rng.choice(("params", "facts", "shape", "dtype", "num_rows", "feature", "tier", "file", "absent"))
    one[name], other[name] = copy.deepcopy(other.get(name)), copy.deepcopy(one.get(name))


_EDITS: tuple[Callable[[random.Random, dict[str, Any]], None], ...] = (
    _replace, _replace, _replace, _shift, _remove, _add, _exchange,
)  # fmt: skip


# Reading


@dataclass(frozen=True)
class _Task:
    """A cache of one mutant."""

    cache: Path
    line: str
    """The sidecar"""


_CROPS: tuple[dict[str, Any], ...] = (
    {"crop": cc.crops.CenterCrop((16, 16))},
    {"crop": cc.crops.HorizontalFlip(1.0, cc.crops.CenterCrop((24, 40)))},
    {"crop": cc.crops.RandomResizedCrop((20, 12))},
    {"size": None},
)


def _ways(cache: cc.Cache, video: cc.Video) -> Iterator[Callable[[], object]]:
    """Yield all ways to read a video, each of which may find damage."""
    yield lambda: describe_video(video)
    yield lambda: (video.pts_seconds, video.source_frames, video.keyframes, video.content, repr(video))
    for info in video.sidecar.features:
        for name in info.num_rows:
            yield lambda info=info, name=name: cache.read(video, name, tier=info.tier)
            yield lambda info=info, name=name: cache.read(video, name, 3, 7, tier=info.tier)
            yield lambda info=info, name=name: cache.read(video, name, indices=[8, 2, 2, 5], tier=info.tier)
    yield lambda: [frames.sum() for frames in cache.iter_frames(video, [9, 1, 2], part=Rectangle(3, 5, 20, 17))]
    yield lambda: cache.read_encoded(video, [0, 9])
    features = sorted({info.feature for info in video.sidecar.features})
    for number, crop in enumerate(_CROPS):
        sampler = cc.RegularClipSampler(num_frames=4, stride=1 + number % 2)
        for feature in features:
            yield lambda crop=crop, sampler=sampler, feature=feature: cc.ChordVideoDataset(
                cache.path, clip_sampler=sampler, features=[feature], missing="zeros", **crop
            )[0]
    yield lambda: cc.show(video)
    yield lambda: summarize(cache.path)


def _exercise(task: _Task) -> list[str]:
    """Read all of a mutant in each way. Return how each ended."""
    kinds = {finding.kind for finding in cc.verify(task.cache, level="deep", jobs=Engine("inline")).damage}
    assert kinds <= {"damaged", "stale", "incomplete", "missing", "orphan"}, kinds
    try:
        Sidecar.from_line(task.line, "sidecar")
    except cc.ChordcacheError as error:
        assert "damaged" in kinds, kinds
        return [type(error).__name__]
    ends = []
    with cc.open_cache(task.cache) as cache:
        for way in _ways(cache, cache[0]):
            try:
                way()
                ends.append("read")
            except cc.ChordcacheError as error:
                ends.append(type(error).__name__)
            except IndexError:  # frames that the video does not have, by what it says
                ends.append("IndexError")
    return ends


def _tasks(trial: Trial) -> Iterator[_Task]:
    whole = trial.once("corpus", _make) / trial.variant
    seeds = [sealed_json.unseal(path["_sidecar"].read_text(), "") for path in processes.sidecars(whole).values()]
    for number in range(trial.count):
        seed = {name: value for name, value in seeds[number % len(seeds)].items() if name != "format_version"}
        line = sealed_json.seal({"format_version": sealed_json.FORMAT_VERSION, **_mutant(trial.rng, seed)})
        folder = trial.folder / str(number)
        for name in ("lmdb", "npz", "hdf5"):
            if (whole / name).exists():
                shutil.copytree(whole / name, folder / name, copy_function=os.link)
        (folder / "chordcache.json").write_bytes((whole / "chordcache.json").read_bytes())
        path = folder / layout.sidecar_file(seed["key"])
        path.parent.mkdir(parents=True)
        path.write_text(f"{line}\n")
        write_catalog(folder)
        yield _Task(folder, line)


@experiment(
    "R14", "sidecars forged under a right seal: shapes, dtypes, parameters, facts, rows, times; read and verified",
    trials=3400, batch=100, variants=tuple(SEEDS),
)  # fmt: skip
def forged_sidecars(trial: Trial) -> Figures:
    """A mutant is read, or is damage; nothing else, in bounded memory."""
    ends: Counter[str] = Counter()
    wrong = []
    tasks = list(_tasks(trial))
    for task, outcome in pool.run(_exercise, tasks, jobs=1, limits=_LIMITS):
        if isinstance(outcome, pool.Crash):
            wrong.append(f"{outcome.cause}: {outcome.message} {json.loads(task.line)}")
        else:
            ends.update(outcome)
    assert wrong == [], f"{len(wrong)} of {len(tasks)}: {wrong[0]}"
    return {"sum_read": ends["read"], "sum_refused": ends.total() - ends["read"], "sum_wrong": 0}
