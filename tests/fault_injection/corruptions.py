"""Small caches, ways to damage them, and what verify must then name."""

from __future__ import annotations

import os
import random
import shutil
import warnings
import zipfile
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import lmdb
import numpy as np
import yaml
from conftest import make_planes, write_video
from helpers import processes
from helpers.cache_contents import hdf5_records

import chordcache as cc
from chordcache.verifying.findings import Damage

CONFIG: dict[str, Any] = {
    "frames": {"short_side": 48},
    "features": {"flow": None, "mel": None},
    "hdf5": {"features": ["frames"]},
}
"""One feature for each tier: frames in LMDB and HDF5, motion in NPZ."""

LISTS = ("chordcache.json", "index.jsonl", "quarantine.jsonl", "catalog.bin")


def make_cache(folder: Path, tier: str, num_videos: int, config: Mapping[str, Any] = CONFIG) -> None:
    """videos/, no two alike and two that are none, index.json and whole/, a cache of one tier."""
    for number in range(num_videos):
        planes = partial(_planes_from, 3 * number)
        path = folder / f"videos/{number:03}.mp4"
        write_video(path, num_frames=6 + number % 3, size=(64, 48), planes=planes, audio="mel" in config["features"])
    (folder / "videos/text.mp4").write_text("no video")
    (folder / "videos/zero.mp4").touch()
    (folder / "config.yaml").write_text(yaml.dump(dict(config)))
    cc.scan([folder / "videos"], output=folder / "index.json", labels="dir", jobs=1)
    cc.build(folder / "index.json", folder / "whole", tiers=(tier,), config=folder / "config.yaml", jobs=1)
    assert len(processes.sidecars(folder / "whole")) == num_videos


def _planes_from(first: int, number: int, width: int, height: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return make_planes(first + number, width, height)


def copy_of(cache: Path, folder: Path) -> Path:
    """A copy to damage, in ``folder``."""
    return Path(shutil.copytree(cache, folder / "cache"))


def pairs(cache: Path) -> list[tuple[Path, Path]]:
    """Artefact and sidecar of every video of a cache of one tier."""
    return [(data["_artefact"], data["_sidecar"]) for data in processes.sidecars(cache).values()]


def flip_at_random(path: Path, rng: random.Random) -> tuple[int, int]:
    """Flip one bit of a file; return its byte and its number there."""
    offset, bit = rng.randrange(path.stat().st_size), rng.randrange(8)
    processes.flip(path, offset, bit)
    return offset, bit


# Strokes


def _cut(path: Path, rng: random.Random) -> None:
    os.truncate(path, rng.randrange(1, path.stat().st_size - 1))  # without its last newline, a sidecar is still whole


def _lengthen(path: Path, rng: random.Random) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def _zero(path: Path, rng: random.Random) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def _replace(path: Path, rng: random.Random) -> None:
    path.write_bytes(rng.randbytes(path.stat().st_size))


Stroke = Callable[[Path, random.Random], object]

ON_SIZES: Mapping[str, Stroke] = {
    "deleted": lambda path, rng: path.unlink(),
    "empty": lambda path, rng: os.truncate(path, 0),
    "cut": _cut,
    "longer": _lengthen,
}
"""Strokes that change the size, or leave no file"""

ON_BYTES: Mapping[str, Stroke] = {"flipped": flip_at_random, "zeroed": _zero, "replaced": _replace}
"""Strokes that leave the size as it is"""


def make_newer(path: Path, rng: random.Random) -> None:
    """Let an artefact be of a version of its format that is not there yet."""
    data = bytearray(path.read_bytes())
    mark = b"\xde\xc0\xef\xbe" if path.suffix == ".lmdb" else b'{"arrays"'  # LMDB's version follows its mark
    at = data.find(mark)
    assert at >= 0
    while at >= 0:
        data[at + len(mark)] = 99
        at = data.find(mark, at + 1)
    path.write_bytes(data)


def _edit_lmdb(path: Path, what: str) -> None:
    with lmdb.open(str(path), subdir=False, lock=False) as environment, environment.begin(write=True) as transaction:
        first, second = (number.to_bytes(4, "big") for number in (0, 1))
        if what == "added":
            transaction.put(b"~", b"x")
        elif what == "repeated":
            transaction.put(second, transaction.get(first))
        else:
            transaction.delete(first)


def _edit_npz(path: Path, what: str) -> None:
    with zipfile.ZipFile(path) as archive:
        members = [(name, archive.read(name)) for name in archive.namelist()]
    if what == "added":
        members.append(("more.npy", members[0][1]))
    elif what == "repeated":
        members.append(members[0])
    else:
        del members[0]
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w") as archive:
        warnings.simplefilter("ignore")  # that the name is there twice
        for name, data in members:
            archive.writestr(name, data)


def _repeat_hdf5(file: h5py.File) -> None:
    """Put frame 0 in the place of frame 1, of JPEG or of pixels."""
    if "frames.offsets" not in file:
        file["frames"][1] = file["frames"][0]
        return
    records = hdf5_records(file, "frames")
    records[1] = records[0]
    offsets = np.cumsum([0, *map(len, records)])
    for name, values in (("frames", np.frombuffer(b"".join(records), np.uint8)), ("frames.offsets", offsets)):
        del file[name]
        file[name] = values


def _edit_hdf5(path: Path, what: str) -> None:
    with h5py.File(path, "r+") as file:
        if what == "added":
            file["more"] = np.arange(3)
        elif what == "repeated":
            _repeat_hdf5(file)
        else:
            del file["source_frames"]


_EDITORS = {".lmdb": _edit_lmdb, ".npz": _edit_npz, ".h5": _edit_hdf5}

EDITS = ("added", "repeated", "removed")


def edit(path: Path, what: str) -> None:
    """Add, repeat or remove a record or an array of an artefact, by its own library, and do not seal it again."""
    before = path.read_bytes()
    _EDITORS[path.suffix](path, what)
    assert path.read_bytes() != before


def strike_all(cache: Path, rng: random.Random) -> tuple[set[str], set[str]]:
    """Deal one stroke of each kind, to a video each. Return the files struck, and those that sizes or times show."""
    files = iter(rng.sample(pairs(cache), 2 * len(ON_SIZES) + 2 * len(ON_BYTES) + len(EDITS) + 6))
    struck, by_size = [], []
    for strokes, reported in ((ON_SIZES, by_size), (ON_BYTES, struck)):
        for stroke in strokes.values():
            artefact, (_, sidecar) = next(files)[0], next(files)
            for path in (artefact, sidecar):
                stroke(path, rng)
            reported.append(artefact)
            (struck if stroke is flip_at_random else by_size).append(sidecar)  # a flip puts the times back
    for what in EDITS:
        artefact, num_bytes = (path := next(files)[0]), path.stat().st_size
        edit(artefact, what)
        (struck if artefact.stat().st_size == num_bytes else by_size).append(artefact)
    one, other = next(files), next(files)
    sizes = {pair[0].stat().st_size for pair in (one, other)}
    processes.swap(one[0], other[0])
    (struck if len(sizes) == 1 else by_size).extend((one[0], other[0]))
    one, other = next(files), next(files)
    processes.swap(one[1], other[1])
    by_size += [one[1], other[1]]
    sidecar = next(files)[1]
    twin = sidecar.with_name(f"twin-{sidecar.name}")
    shutil.copy(sidecar, twin)
    by_size.append(twin)
    names = [{str(path.relative_to(cache)) for path in paths} for paths in (struck, by_size)]
    return names[0] | names[1], names[1]


# What verify says


def key_of(file: str) -> str:
    """Key of the video whose artefact or sidecar that is."""
    return os.path.basename(file).partition(".")[0]


def check_named(damage: Sequence[Damage], struck: Collection[str]) -> None:
    """All that was struck is named, and nothing else but what follows from it for the same videos."""
    named = {finding.file for finding in damage if finding.kind in ("damaged", "missing")}
    assert named == set(struck), f"missed {sorted(set(struck) - named)}, false {sorted(named - set(struck))}"
    keys = {key_of(file) for file in struck}
    others = [finding for finding in damage if finding.kind not in ("damaged", "missing")]
    false = [
        finding
        for finding in others
        if (finding.key or key_of(finding.file)) not in keys and finding.file != "catalog.bin"
    ]
    assert false == [], false
