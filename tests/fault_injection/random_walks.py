"""Random commands on one cache, while its videos, lists and settings change: nothing is lost, garbled or left out.

No command knows of the others. So each walk compares with what the cache had before, and after each build of the whole
list with a cache that is built from nothing.
"""

from __future__ import annotations

import csv
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from conftest import write_video
from helpers.inline import HERE

import chordcache as cc
from chordcache.building.pack import pack, unpack
from chordcache.config.config import config_from_json
from chordcache.storage.cache_header import read_header
from chordcache.storage.layout import key_of
from fault_injection.harness import Figures, Trial, experiment

NUM_COMMANDS = 20
FEATURES = ("frames", "motion", "mel", "waveform", "flow")
TIERS = ("lmdb", "npz", "hdf5")
SETTINGS = ("{quality: 70}", "{quality: 80}", "{codec: jpeg}", "{codec: raw}", "{codec: yuv420}")
BROKEN = ("damaged", "missing", "unreadable")

Place = tuple[str, str, str]
"""Key of a video, feature and tier. The label and the caption are the feature "label" of no tier"""


class _Walk:
    """A cache, its sources and its list.

    Parameters
    ----------
    rng : random.Random
        The random numbers of the walk.
    folder : Path
        Empty folder.
    """

    def __init__(self, rng: random.Random, folder: Path) -> None:
        self._rng, self._folder = rng, folder
        self._cache = folder / "cache"
        self._labels: dict[str, str] = {}
        """Name of each video that there is to its label"""
        self._contents: dict[Place, Any] = {}
        self._num_videos = 0
        self._has_segments = False
        self.num_refused = 0
        for _ in range(3):
            self.add_video()
        self._build(features=rng.sample(FEATURES, 2))
        self.check()

    # What users do to their files

    def add_video(self) -> None:
        self._num_videos += 1
        name = f"{self._num_videos}.mp4"
        self._labels[name] = "first"
        self._write(name)

    def _write(self, name: str) -> None:
        rng = self._rng
        size = rng.choice([(32, 32), (48, 32), (64, 48)])
        spec = {"num_frames": rng.randint(2, 7), "fps": rng.choice([10, 25]), "audio": rng.random() < 0.6, "size": size}
        write_video(self._folder / "videos" / name, **spec)

    def replace_video(self) -> None:
        self._write(self._name())

    def rename_video(self) -> None:
        old = self._name()
        self._num_videos += 1
        new = f"{self._num_videos}.mp4"
        os.rename(self._folder / "videos" / old, self._folder / "videos" / new)
        self._labels[new] = self._labels.pop(old)

    def relabel_video(self) -> None:
        self._labels[self._name()] = self._rng.choice(["second", "third"])

    def use_segments(self) -> None:
        self._has_segments = not self._has_segments

    def _name(self) -> str:
        return self._rng.choice(sorted(self._labels))

    def _list(self, names: list[str] | None = None) -> Path:
        """Write the list of some videos, or of all."""
        path = self._folder / "list.csv"
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["path", "label", "caption", *(["start_frame", "end_frame"] if self._has_segments else [])])
            for name in sorted(self._labels if names is None else names):
                row = [f"videos/{name}", self._labels[name], f"a {self._labels[name]} caption"]
                for ends in [("0", "1"), ("1", "2")] if self._has_segments else [()]:
                    writer.writerow([*row, *ends])
        if self._rng.random() < 0.5:
            return path
        cc.read_index(path).write(path.with_suffix(".json"))
        return path.with_suffix(".json")

    # Commands

    def _build(self, index: Path | None = None, option: dict[str, Any] | None = None, **what: Any) -> bool:
        """Build the videos of a list, or all. Return False if the build refuses its arguments."""
        options = cc.BuildOptions(**(option or {}))
        try:
            cc.build(index or self._list(), self._cache, jobs=HERE, options=options, **what)
        except cc.UsageError:
            self.num_refused += 1
            return False
        return True

    def build_some(self) -> None:
        rng = self._rng
        index = self._list(rng.sample(sorted(self._labels), rng.randint(1, len(self._labels))))
        what = {"features": rng.sample(FEATURES, rng.randint(1, 2))} if rng.random() < 0.7 else {}
        what |= {"tiers": rng.sample(TIERS, rng.randint(1, 2))} if rng.random() < 0.5 else {}
        self._build(index, **what)

    def build_all(self) -> None:
        self._build()
        self.check_complete()

    def change_settings(self) -> None:
        config = self._folder / "settings.yaml"
        config.write_text(f"frames: {self._rng.choice(SETTINGS)}\n")
        if self._build(config=config):
            self.check_complete()

    def prune(self) -> None:
        self._build(option={"prune": "100%"})
        built = self.check_complete()
        assert {key for key, *_ in self._read(self._cache)} == built
        self._forget(lambda place: place[0] not in built)

    def drop_feature(self) -> None:
        """Drop a feature. A file of several features that is not built again keeps it."""
        features = {name for names in read_header(self._cache).features.values() for name in names}
        dropped = self._rng.choice(sorted(features))
        if not self._build(option={"drop": (dropped,)}):
            return
        contents = self._read(self._cache)
        listed = {key_of(record) for record in cc.read_index(self._list())}
        left = [place for place in contents if place[1] == dropped]
        assert all(tier == "hdf5" and key not in listed for key, _, tier in left), left
        keys = {key for key, *_ in contents}  # a video without another feature has left
        self._forget(lambda place: place[1] == dropped or place[0] not in keys)

    def pack(self) -> None:
        """Pack the cache, and unpack it in its place."""
        packed = self._folder / "packed"
        pack(self._cache, packed, move=True)
        unpack(packed, self._cache, move=True)

    def collect_garbage(self) -> None:
        cc.collect_garbage(self._cache)

    def change_a_copy(self) -> None:
        """Build, prune and clean a copy by hard links."""
        copy, before = self._folder / "copy", self._read(self._cache)
        shutil.copytree(self._cache, copy, copy_function=os.link)
        options = cc.BuildOptions(prune="100%")
        cc.build(self._list([self._name()]), copy, jobs=HERE, options=options)
        cc.collect_garbage(copy)
        _assert_has(self._read(self._cache), before)
        shutil.rmtree(copy)

    def damage_and_repair(self) -> None:
        """Damage a file and repair the cache. What has no source any more cannot be built again, and is pruned."""
        folders = ("lmdb", "npz", "hdf5", "videos")
        files = [path for folder in folders for path in (self._cache / folder).rglob("*") if path.is_file()]
        path = self._rng.choice(sorted([*files, self._cache / "catalog.bin", self._cache / "index.jsonl"]))
        data, place = bytearray(path.read_bytes()), self._rng.randrange(path.stat().st_size)
        path.unlink()  # a copy by hard links would be damaged too
        damage = self._rng.choice(["removed", "flipped", "cut"])
        if damage == "flipped":
            data[place] ^= 1 << self._rng.randrange(8)
        if damage != "removed":
            path.write_bytes(data[:place] if damage == "cut" else data)
        summary = cc.repair(self._cache, cc.verify(self._cache, jobs=HERE).damage, jobs=HERE)
        if summary.num_failed:
            self.prune()

    # Checks

    def check(self) -> None:
        """Check that the cache is sound, and has all that it had before. Values may change with their settings."""
        broken = [finding for finding in cc.verify(self._cache, jobs=HERE).damage if finding.kind in BROKEN]
        assert broken == [], broken
        contents = self._read(self._cache)
        lost = self._contents.keys() - contents.keys()
        assert not lost, f"lost: {sorted(lost)}"
        self._contents = contents

    def check_complete(self) -> set[str]:
        """Compare the listed videos with those of a cache that is built from nothing. Return their keys."""
        fresh, header = self._folder / "fresh", read_header(self._cache)
        config = config_from_json(header.config)
        for tier, names in header.features.items():
            cc.build(self._list(), fresh, jobs=HERE, config=config, tiers=[tier], features=list(names))
        expected = self._read(fresh)
        shutil.rmtree(fresh)
        built = {key for key, *_ in expected}
        _assert_has({p: value for p, value in self._read(self._cache).items() if p[0] in built}, expected)
        wrong = [
            finding for finding in cc.verify(self._cache, level="deep", jobs=HERE).damage if finding.kind in BROKEN
        ]
        assert wrong == [], wrong
        return built

    def _forget(self, is_gone: Callable[[Place], bool]) -> None:
        self._contents = {place: value for place, value in self._contents.items() if not is_gone(place)}

    def _read(self, cache: Path) -> dict[Place, Any]:
        """Return all that a reader finds in a cache."""
        contents: dict[Place, Any] = {}
        with cc.open_cache(cache) as opened:
            for video in opened:
                contents[video.key, "label", ""] = (video.label, video.caption)
                for info in video.sidecar.features:
                    value = opened.read(video, info.feature, tier=info.tier) if info.file else info.absent
                    contents[video.key, info.feature, info.tier] = value
        return contents


def _assert_has(contents: dict[Place, Any], expected: dict[Place, Any]) -> None:
    assert contents.keys() == expected.keys(), contents.keys() ^ expected.keys()
    for place, value in expected.items():
        np.testing.assert_array_equal(contents[place], value, err_msg=str(place))


COMMANDS = (
    *[_Walk.build_some] * 5,
    *[_Walk.build_all] * 2,
    *[_Walk.damage_and_repair, _Walk.pack] * 2,
    *(_Walk.change_settings, _Walk.prune, _Walk.drop_feature, _Walk.collect_garbage, _Walk.change_a_copy),
    *(_Walk.add_video, _Walk.replace_video, _Walk.rename_video, _Walk.relabel_video, _Walk.use_segments),
)


@experiment("R26", f"{NUM_COMMANDS} random commands on a cache whose videos, list and settings change", trials=100)
def random_walk(trial: Trial) -> Figures:
    walk = _Walk(trial.rng, trial.folder)
    names = []
    for _ in range(NUM_COMMANDS):
        command = trial.rng.choice(COMMANDS)
        names.append(command.__name__)
        try:
            command(walk)
            walk.check()
        except Exception as error:
            raise AssertionError(f"after {', '.join(names)}: {error}") from error
    return {"sum_commands": NUM_COMMANDS, "sum_refused": walk.num_refused, "sum_lost": 0}
