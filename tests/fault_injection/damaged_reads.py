"""Reading: damage is detected by every reader, and nothing else changes for the others."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
import yaml
from conftest import REPOSITORY
from helpers import processes
from helpers.cache_contents import READERS
from helpers.catalogs import forge, rows_of

import chordcache as cc
from chordcache.storage import sealed_json
from chordcache.storage.artefacts import open_files
from chordcache.storage.artefacts.artefact import Artefact
from chordcache.train.samplers.clip_request import ClipRequest
from fault_injection.corruptions import (
    CONFIG,
    ON_BYTES,
    ON_SIZES,
    copy_of,
    flip_at_random,
    make_cache,
    make_newer,
    pairs,
)
from fault_injection.fixtures import TIERS
from fault_injection.harness import Figures, Trial, experiment

# torch takes seconds to load: what needs it is imported where it is used


# R13: what is read is checked

_FLOW = {**CONFIG["features"], "flow": {"method": "dis"}}

CODECS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "lmdb-jpeg": ("lmdb", CONFIG),
    "lmdb-yuv420": ("lmdb", {**CONFIG, "frames": {"short_side": 48, "codec": "yuv420"}}),
    "lmdb-raw": ("lmdb", {**CONFIG, "frames": {"short_side": 48, "codec": "raw"}}),
    "lmdb-mpeg4": ("lmdb", {**CONFIG, "frames": {"short_side": 48, "codec": "mpeg4", "gop": 4, "stride": 2}}),
    "lmdb-h264": ("lmdb", {**CONFIG, "frames": {"short_side": 48, "codec": "h264"}}),
    "npz": ("npz", {**CONFIG, "features": _FLOW}),
    "hdf5-jpeg": ("hdf5", CONFIG),
    "hdf5-raw": ("hdf5", {**CONFIG, "frames": {"short_side": 48, "codec": "raw"}}),
    "hdf5-flow": ("hdf5", {**CONFIG, "features": _FLOW, "hdf5": {"features": ["flow"]}}),
}
"""Tier and config of every way in which rows are stored."""


@experiment(
    "R13", "one bit of a stored row flipped, and all rows read",
    trials=200, batch=50, variants=tuple(CODECS),
)  # fmt: skip
def flip_and_read(trial: Trial) -> Figures:
    """Every other time in the file of a reader that has read it before, which looks again at every JPEG."""
    tier, config = CODECS[trial.variant]
    corpus = trial.once("corpus", lambda folder: make_cache(folder, tier, 4, config))
    cache = copy_of(corpus / "whole", trial.folder)
    files = [artefact for artefact, _ in pairs(cache)]
    good = {path: list(_read(cache, path, tier)) for path in files}
    for number in range(trial.count):
        path = trial.rng.choice(files)
        row = trial.rng.choice(_rows(path, tier))
        offset, bit = path.read_bytes().index(row) + trial.rng.randrange(len(row)), trial.rng.randrange(8)
        if number % 2 or trial.variant != "lmdb-jpeg":
            open_files.forget(path)
        else:
            assert list(_read(cache, path, tier)) == good[path]
        processes.flip(path, offset, bit)
        assert _is_damage(cache, path, tier, good[path]), f"bit {bit} of byte {offset} of {path.name} goes unnoticed"
        processes.flip(path, offset, bit)
        open_files.forget(path)
    assert all(list(_read(cache, path, tier)) == good[path] for path in files)
    return {"sum_detected": trial.count, "sum_missed": 0}


def _rows(path: Path, tier: str) -> list[bytes]:
    """Every row, read past the package."""
    content = dict(READERS[tier](path))
    if tier == "lmdb":
        return [value for key, value in content["entries"] if len(key) == 4]
    streamed = [name for name in content if f"{name}.xxh3_64" in content]
    return [bytes(row) if isinstance(row, bytes) else row.tobytes() for name in streamed for row in content[name]]


def _read(cache: Path, path: Path, tier: str) -> Iterator[bytes]:
    """All that the package reads of a video in a tier, the first half of each array before the whole."""
    with cc.open_cache(cache) as opened:
        video = opened[path.name.partition(".")[0]]
        for info in video.sidecar.features:
            for name, num_rows in info.num_rows.items():
                yield opened.read(video, name, 0, num_rows // 2, tier=tier).tobytes()
                yield opened.read(video, name, tier=tier).tobytes()


def _is_damage(cache: Path, path: Path, tier: str, good: list[bytes]) -> bool:
    """Return whether reading reports that this file is damaged; until it does, all that it reads is right."""
    try:
        for row, expected in zip(_read(cache, path, tier), good, strict=True):
            assert row == expected, f"{path.name} is read wrongly"
    except cc.DamageError as error:
        return path.name in str(error)
    return False


CLIP_FRAMES, CLIP_STRIDE = 16, 4

MAX_PERCENT = 2
"""Share of the time of a clip of JPEGs that checking it may take."""


@experiment(
    "R13", "time of the checks in that of a sample: 16 frames of real clips, short side 256",
    trials=5, alone=True,
)  # fmt: skip
def cost_of_checks(trial: Trial) -> Figures:
    """The same records drawn with and without their checks, and the samples, in turn."""
    caches = trial.once("real", _make_real)
    jpeg, raw = _percent(caches / "jpeg", _cost_of_records), _percent(caches / "raw", _cost_of_rows)
    assert jpeg <= MAX_PERCENT
    return {"median_percent_of_a_JPEG_sample": jpeg, "median_percent_of_the_first_raw_sample_of_a_video": raw}


def _make_real(folder: Path) -> None:
    index = cc.scan([REPOSITORY / ".clips/street", REPOSITORY / ".clips/animation"], jobs=1)
    for codec in ("jpeg", "raw"):
        (folder / codec).mkdir(parents=True)
        config = folder / f"{codec}.yaml"
        config.write_text(yaml.dump({"frames": {"codec": codec}}))
        cc.build(index, folder / codec, config=config, jobs=2)


def _percent(cache: Path, cost: Callable[[Artefact, list[int]], float]) -> float:
    """Time of the checks, in percent of the time of a sample whose file was just opened; of the video that pays most.

    The least of 25 times each, as others may be at work beside it.
    """
    sampler = cc.RegularClipSampler(num_frames=CLIP_FRAMES, stride=CLIP_STRIDE)
    dataset = cc.ChordVideoDataset(cache, clip_sampler=sampler, size=None)
    percents = []
    for position, video in enumerate(cc.open_cache(cache)):
        info = video.feature("frames")
        path = cache / info.file.name
        numbers = [int(number) for number in sampler.frame_numbers(video, ClipRequest())]
        of_samples, of_checks = [], []
        for _ in range(25):
            open_files.forget(path)
            of_samples.append(_seconds(lambda position=position: dataset[position]))
            open_files.forget(path)
            artefact = open_files.open_artefact(path, info.file.num_bytes)
            of_checks.append(cost(artefact, numbers))
        percents.append(100 * min(of_checks) / min(of_samples))
    return max(percents)


def _cost_of_records(artefact: Artefact, numbers: list[int]) -> float:
    def bare() -> None:
        for _ in artefact._iter_records("frames", numbers):
            pass

    def checked() -> None:
        for _ in artefact.records("frames", numbers):
            pass

    bare()  # so that neither pays for the first touch of the file
    checked()
    without = min(_seconds(bare) for _ in range(5))
    return _seconds(checked) - without


def _cost_of_rows(artefact: Artefact, numbers: list[int]) -> float:
    layout = artefact.layout("frames")
    out = np.zeros((len(numbers), *layout.row_shape), np.uint8)
    for number, values in zip(numbers, out, strict=True):
        artefact._read_rows("frames", number, number + 1, values[None])
    first = _seconds(lambda: artefact.rows("frames", numbers, out))
    return first - _seconds(lambda: artefact.rows("frames", numbers, out))


def _seconds(function: Callable[[], object]) -> float:
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


# R14: bad caches in every loader

_KINDS = {name: CODECS[name] for name in ("lmdb-jpeg", "lmdb-raw", "npz", "hdf5-jpeg")}

NUM_VIDEOS, NUM_STRUCK, NUM_CUTS = 40, 32, 10
"""Number of points of each cache; in ten calls a file is cut at 100 points."""

STROKES = [
    *([flip_at_random] * 5),
    *(stroke for name, stroke in {**ON_SIZES, **ON_BYTES}.items() if name not in ("cut", "flipped")),
    make_newer,
]


@experiment(
    "R14", "a fifth of the files sound, the others cut at 100 points, flipped, emptied, foreign, newer: a DataLoader",
    trials=5 * len(_KINDS) * NUM_STRUCK, batch=len(_KINDS) * NUM_STRUCK,
    variants=("0 workers", "fork-2", "fork-8", "forkserver-2", "forkserver-8", "spawn-2", "spawn-8"),
)  # fmt: skip
def bad_items(trial: Trial) -> Figures:
    """Each bad item is an error that names its file, each good one is right; no worker dies."""
    from fault_injection.dataloader_outcomes import serve

    method, _, workers = trial.variant.partition("-")
    loader = (None, 0) if method == "0 workers" else (method, int(workers))
    folder = trial.once("corpus", _make_kinds)
    wholes = [folder / kind / "whole" for kind in _KINDS]
    expected = [serve([_dataset(cache)])[0] for cache in wholes]
    caches = [copy_of(cache, trial.folder / kind) for kind, cache in zip(_KINDS, wholes, strict=True)]
    per_cache = -(-trial.count // len(caches))
    struck = [_strike(cache, per_cache, trial) for cache in caches]
    lost = _dataset(copy_of(wholes[0], trial.folder / "lost"))
    _strike_catalog(trial.folder / "lost/cache/catalog.bin", trial)
    (items,) = serve([*map(_dataset, caches), lost], *loader)
    items_by_cache = [items[at : at + NUM_VIDEOS] for at in range(0, len(items), NUM_VIDEOS)]
    num_detected = sum(map(_check_items, items_by_cache, [*expected, expected[0]], [*struck, None]))
    return {"sum_detected": num_detected, "sum_right": len(items) - num_detected, "sum_dead_workers": 0}


def _make_kinds(folder: Path) -> None:
    for kind, (tier, config) in _KINDS.items():
        make_cache(folder / kind, tier, NUM_VIDEOS, config)


def _dataset(cache: Path) -> cc.ChordVideoDataset:
    """All of every video: its frames, or where there are none its motion."""
    with cc.open_cache(cache) as opened:
        features = {info.feature for info in opened[0].sidecar.features}
    sampler = cc.RegularClipSampler(num_frames=6, stride=1)
    return cc.ChordVideoDataset(cache, clip_sampler=sampler, features=sorted(features), size=None)


def _strike(cache: Path, num_struck: int, trial: Trial) -> dict[int, tuple[str, bool]]:
    """Position of each video that was struck: name of its file, and whether that cannot be read any more."""
    files = sorted(artefact for artefact, _ in pairs(cache))
    keys = sorted(path.name.partition(".")[0] for path in files)
    call = trial.number // (len(_KINDS) * NUM_STRUCK)
    struck = {}
    for number, path in enumerate(trial.rng.sample(files, num_struck)):
        if number < NUM_CUTS:
            os.truncate(path, path.stat().st_size * ((NUM_CUTS * call + number) % 100) // 100)
            stroke = None
        else:
            stroke = STROKES[number % len(STROKES)]
            stroke(path, trial.rng)
        struck[keys.index(path.name.partition(".")[0])] = (path.name, stroke is not flip_at_random)
    return struck


def _strike_catalog(path: Path, trial: Trial) -> None:
    """After the dataset was made: workers open it later."""
    stroke = trial.rng.choice([flip_at_random, _cut_anywhere, *ON_BYTES.values(), _make_row_newer])
    stroke(path, trial.rng)


def _cut_anywhere(path: Path, rng: random.Random) -> None:
    os.truncate(path, rng.randrange(path.stat().st_size))


def _make_row_newer(path: Path, rng: random.Random) -> None:
    """One sidecar of a version of the format that is not there yet, and sealed as it should be."""
    data = sealed_json.unseal(rows_of(path.parent)[1], "")
    forge(path.parent, rows={1: sealed_json.seal({**data, "format_version": 99})})


def _check_items(
    items: list[tuple[str, str]], expected: list[tuple[str, str]], struck: dict[int, tuple[str, bool]] | None
) -> int:
    """Number of items that are reported as bad; None: those of a catalog that was struck, all of which may be."""
    num_detected = 0
    for position, item in enumerate(items):
        file, is_lost = ("catalog.bin", False) if struck is None else struck.get(position, ("", False))
        if item == expected[position]:
            assert not is_lost, f"{file} is read as if it were whole"
            continue
        assert file, f"item {position} is sound, but {item}"
        assert item[0] in ("DamageError", "ChordcacheError"), item
        assert file in item[1], item
        num_detected += 1
    return num_detected


# R15: forks, pickles, workers that stay


NUM_FORKED = 12
"""Videos that every child reads."""


@experiment(
    "R15", "a reader that has files open forks 4 times, is pickled, and serves 3 epochs in workers that stay",
    trials=10, variants=TIERS,
)  # fmt: skip
def forks(trial: Trial) -> Figures:
    """Every child and the parent read all records, at the same time, each in an order of its own."""
    from fault_injection.dataloader_outcomes import serve

    corpus = trial.once("corpus", lambda folder: make_cache(folder, trial.variant, NUM_FORKED))
    feature = "motion" if trial.variant == "npz" else "frames"
    truth = _truth(corpus / "whole", trial.variant)
    with cc.open_cache(corpus / "whole") as opened:
        opened.read(trial.rng.randrange(NUM_FORKED), feature, 0, 1)
        with multiprocessing.get_context("fork").Pool(4, _inherit, [opened]) as children:
            results = [children.apply_async(_records_of, [feature, seed]) for seed in range(4)]
            assert _records(opened, feature, 4) == truth
            assert [result.get(60) for result in results] == [truth] * 4
            assert children.apply(_records, [opened, feature, 5]) == truth  # pickled on its way
        assert _records(opened, feature, 6) == truth
    dataset = _dataset(corpus / "whole")
    alone = serve([dataset])[0]
    assert {kind for kind, _ in alone} == {"sample"}
    method = ("fork", "forkserver", "spawn")[trial.number % 3]
    assert serve([dataset], method, 2, num_epochs=3) == [alone] * 3
    return {"sum_records_read": 7 * len(truth), "sum_wrong": 0}


_inherited: list[cc.Cache] = []


def _inherit(cache: cc.Cache) -> None:
    """In a forked child: keep the parent's own object, which was not pickled."""
    _inherited.append(cache)


def _records_of(feature: str, seed: int) -> dict[tuple[str, int], str]:
    return _records(_inherited[0], feature, seed)


def _records(cache: cc.Cache, feature: str, seed: int) -> dict[tuple[str, int], str]:
    """Path of the video and number of each record: its digest, read one by one in a random order."""
    order = [(video, number) for video in cache for number in range(video.feature(feature).num_rows[feature])]
    random.Random(seed).shuffle(order)
    return {(video.path, number): _sha256(cache.read(video, feature, number, number + 1)[0]) for video, number in order}


def _truth(cache: Path, tier: str) -> dict[tuple[str, int], str]:
    """The same, read past the package."""
    digests = {}
    for name, data in processes.sidecars(cache).items():
        content = dict(READERS[tier](data["_artefact"]))
        open_files.forget(data["_artefact"])
        if tier == "npz":
            rows = list(content["motion"])
        elif tier == "hdf5":
            rows = [simplejpeg.decode_jpeg(bytes(record)) for record in content["frames"]]
        else:
            rows = [simplejpeg.decode_jpeg(value) for key, value in content["entries"] if len(key) == 4]
        digests.update({(name, number): _sha256(row) for number, row in enumerate(rows)})
    return digests


def _sha256(values: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(values)).hexdigest()
