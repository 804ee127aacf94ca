"""Contents of a cache, in every tier, read without the package."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from chordcache.storage.artefacts import open_files
from helpers import processes

Arrays = dict[tuple[str, str, str], Any]


def hdf5_records(file: h5py.File, name: str) -> list[bytes]:
    offsets = file[f"{name}.offsets"]
    return [file[name][start:stop].tobytes() for start, stop in pairwise(offsets)]


def of_hdf5(path: Path) -> Iterator[tuple[str, Any]]:
    """Name and values of every dataset, and what its attributes say of it."""
    with h5py.File(path) as file:
        for name, dataset in file.items():
            yield name, hdf5_records(file, name) if f"{name}.offsets" in file else dataset[...]
            reported = {key: dataset.attrs[key] for key in ("units", "params", "facts") if key in dataset.attrs}
            yield f"{name} attributes", sorted(reported.items())


def of_npz(path: Path) -> Iterator[tuple[str, Any]]:
    with np.load(path, allow_pickle=False) as npz:
        yield from npz.items()


def of_lmdb(path: Path) -> Iterator[tuple[str, Any]]:
    open_files.forget(path)  # LMDB opens a file but once in a process
    yield "entries", sorted(processes.entries(path).items())


READERS: dict[str, Callable[[Path], Any]] = {
    "lmdb": of_lmdb,
    "npz": of_npz,
    "hdf5": of_hdf5,
}


def arrays(cache: Path) -> Arrays:
    """(path, tier, array) to what is stored; what is absent, to the reason."""
    contents: Arrays = {}
    for path, data in processes.sidecars(cache).items():
        for info in data["features"]:
            if "file" not in info:
                contents[path, info["tier"], info["feature"]] = info["absent"]
        for tier, file in {(info["tier"], info["file"]["name"]) for info in data["features"] if "file" in info}:
            contents.update({(path, tier, name): values for name, values in READERS[tier](cache / file)})
    return contents


def differing(actual: Arrays, expected: Arrays) -> list[tuple[str, str, str]]:
    """Return where two caches differ."""
    return sorted(
        name
        for name in actual.keys() | expected.keys()
        if name not in actual or name not in expected or not _same(actual[name], expected[name])
    )


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
    return type(a) is type(b) and bool(a == b)


def artefact(cache: Path, path: str, tier: str) -> Path:
    """Return the file of a video in a tier: with all its features, or with the first one."""
    features = processes.sidecars(cache)[path]["features"]
    return cache / next(
        feature["file"]["name"] for feature in features if feature["tier"] == tier and "file" in feature
    )
