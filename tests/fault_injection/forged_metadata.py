"""Indexes, caches and configs that were forged, digests and all, to reach other files or to run code."""

from __future__ import annotations

import ast
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from conftest import run_chordcache
from helpers import processes
from helpers.array_tables import line_of, table_of
from helpers.cache_contents import READERS
from helpers.catalogs import forge, sections_of

import chordcache as cc
from chordcache.digests import digest_file
from chordcache.storage import layout, sealed_json
from fault_injection.corruptions import copy_of
from fault_injection.fixtures import make_corpus, states
from fault_injection.harness import REPOSITORY, Figures, Trial, experiment
from fault_injection.strace import Traced, traced

_READ = """
import json, resource, sys
import chordcache as cc

ends = {}
with cc.open_cache("cache") as cache:
    for position in range(len(cache)):
        try:
            video = cache[position]
            for info in video.sidecar.features:
                for name in info.num_rows:
                    cache.read(video, name, tier=info.tier)
            ends[position] = video.path
        except cc.ChordcacheError as error:
            ends[position] = type(error).__name__
mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps([list(ends.values()), sorted(sys.modules), mib]))
"""


def _read(folder: Path) -> tuple[Traced, list[str], list[str], float]:
    """Read all of ``folder``/cache under strace: the trace, how each video ended, modules, peak RSS [MiB]."""
    run = traced(folder, program=("-c", _READ))
    assert run.returncode == 0, run.stderr
    ends, modules, mib = json.loads(run.stdout)
    return run, ends, modules, mib


def _edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a file of one sealed line, and seal it again."""
    data = sealed_json.unseal(path.read_text(), str(path))
    change(data)
    path.write_text(sealed_json.seal(data) + "\n")


def _forge_catalog(cache: Path) -> None:
    """Let every row say what the sidecar of its video says."""
    keys = sections_of(cache)["keys"].decode().splitlines()
    lines = [(cache / layout.sidecar_file(key)).read_text().rstrip("\n") for key in keys]
    forge(cache, rows=dict(enumerate(lines)))


def _make_many(folder: Path) -> None:
    make_corpus(folder, _NUM_FORGERIES, num_frames=6)


# S5


def _set(name: str, value: str) -> Callable[[dict[str, Any]], None]:
    return lambda data: data.__setitem__(name, value)


def _set_files(tier: str, prefix: str) -> Callable[[dict[str, Any]], None]:
    """Let a tier's artefact be the one of the same name elsewhere, which is what it should be."""

    def change(data: dict[str, Any]) -> None:
        for info in data["features"]:
            if info["tier"] == tier and "file" in info:
                info["file"]["name"] = f"{prefix}/{os.path.basename(info['file']['name'])}"

    return change


def _forgeries(elsewhere: Path) -> list[Callable[[dict[str, Any]], None]]:
    """Forged contents of sidecars."""
    name = elsewhere.name
    ways = [str(elsewhere), f"../{name}", f"lmdb/../../{name}", f"./../{name}", f"lmdb//..//..//{name}"]
    files = [_set_files(tier, way) for way in ways for tier in ("lmdb", "npz", "hdf5")]
    paths = [_set("path", f"{way}/secret.mp4") for way in ways]
    return [*files, *paths, _set("path", "0.mp4\0"), _set("path", ""), _set("key", f"../../{name}/secret")]


_NUM_FORGERIES = 23


@experiment("S5", "sidecars and catalog that name files outside of cache and root: read, verified, repaired, collected")
def caches_that_lead_out(trial: Trial) -> Figures:
    corpus, elsewhere = trial.once("many", _make_many), trial.folder / "elsewhere"
    cache = copy_of(corpus / "whole", trial.folder)
    forgeries = _forgeries(elsewhere)
    elsewhere.mkdir()
    sidecars = processes.sidecars(cache)
    for data in sidecars.values():
        for file in {info["file"]["name"] for info in data["features"] if "file" in info}:
            shutil.copy(cache / file, elsewhere)
    shutil.copy(corpus / "videos/0.mp4", elsewhere / "secret.mp4")
    before = states(elsewhere)
    for data, change in zip(sidecars.values(), forgeries, strict=True):
        _edit(data["_sidecar"], change)
    _forge_catalog(cache)

    run, ends, _, _ = _read(trial.folder)
    runs = [run]
    assert ends == ["DamageError"] * len(forgeries), ends
    runs.append(traced(trial.folder, "verify", "cache", "--deep", "--source", "--json", "-j1"))
    named = {finding["file"] for finding in json.loads(runs[-1].stdout)["damage"] if finding["kind"] == "damaged"}
    assert {str(data["_sidecar"].relative_to(cache)) for data in sidecars.values()} <= named
    for args in (["gc", "cache"], ["verify", "cache", "--repair", "-j1"], ["build", "cache/index.jsonl", "-j1"]):
        runs.append(traced(trial.folder, *args))
        assert runs[-1].returncode in (0, 5, 6), (args, runs[-1].stderr)
    escapes = {path for run in runs for path in run.touched_below(elsewhere)}
    assert escapes == set()
    assert states(elsewhere) == before
    assert _read(trial.folder)[1] == sorted(sidecars, key=lambda path: sidecars[path]["key"])
    return {"sum_forgeries": len(forgeries), "sum_escapes": len(escapes)}


@experiment(
    "S5", "an index that names files outside of its root: built", trials=12, batch=4, variants=("json", "jsonl", "csv")
)
def indexes_that_lead_out(trial: Trial) -> Figures:
    corpus = trial.once("corpus", make_corpus)
    elsewhere = trial.folder / "elsewhere"
    elsewhere.mkdir()
    shutil.copy(corpus / "videos/0.mp4", elsewhere / "secret.mp4")
    up = os.path.relpath(elsewhere, corpus / "videos")
    ways = [f"{elsewhere}/secret.mp4", f"{up}/secret.mp4", f"a/../{up}/secret.mp4", f"./{up}//secret.mp4"]
    index = trial.folder / f"index.{trial.variant}"
    escapes = set()
    for way in [*ways, *ways, *ways][trial.number : trial.number + trial.count]:
        cc.read_index(corpus / "index.json").write(index)
        lines = [_with_path(line, "1.mp4", way) for line in index.read_text().splitlines()]
        index.write_text("".join(f"{line}\n" for line in lines))
        run = traced(trial.folder, "build", index.name, "-j1")
        assert run.returncode == (2 if trial.variant == "csv" else 5), run.stderr  # a list of a person is not damaged
        assert "path" in run.stderr or "record" in run.stderr, run.stderr
        escapes |= run.touched_below(elsewhere)
    assert escapes == set()
    return {"sum_escapes": len(escapes)}


def _with_path(line: str, old: str, new: str) -> str:
    """Give a record another path, under a digest that is right if the line has one."""
    start, stop = line.find("{"), line.rfind("}") + 1
    if start < 0:
        return line.replace(f",{old},", f",{new},")
    if f'"{old}"' not in line:
        return line
    if "xxh3_128" not in line:
        return line.replace(f'"{old}"', json.dumps(new))
    data = sealed_json.unseal(line[start:stop], "")
    return line[:start] + sealed_json.seal({**data, "path": new}) + line[stop:]


# S7


class _Bomb:
    """Makes a folder when it is unpickled."""

    def __init__(self, flag: Path) -> None:
        self.flag = str(flag)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.flag,)


def _artefact(cache: Path, path: str, tier: str) -> Path:
    infos = processes.sidecars(cache)[path]["features"]
    return cache / next(info["file"]["name"] for info in infos if info["tier"] == tier and "file" in info)


def _seal_artefact(cache: Path, path: str, tier: str) -> None:
    """Let a sidecar vouch for the artefact as it is now."""
    artefact = _artefact(cache, path, tier)

    def change(data: dict[str, Any]) -> None:
        for info in data["features"]:
            if info["tier"] == tier and "file" in info:
                info["file"].update(num_bytes=artefact.stat().st_size, digest=digest_file(artefact))

    _edit(processes.sidecars(cache)[path]["_sidecar"], change)
    _forge_catalog(cache)


@experiment(
    "S7", "pickles in artefacts, a plug-in in a cache's config, objects in a build's config: read, verified, built"
)
def caches_that_explode(trial: Trial) -> Figures:
    cache, flag = copy_of(trial.once("corpus", make_corpus) / "whole", trial.folder), trial.folder / "exploded"
    artefact = _artefact(cache, "0.mp4", "npz")
    content = dict(READERS["npz"](artefact))
    feature = next(name for name in content if f"{name}.xxh3_64" in content)
    bomb = np.empty(len(content[feature]), object)
    bomb[:] = _Bomb(flag)
    np.savez(artefact, **{**content, feature: bomb, "pts_seconds": bomb})
    _seal_artefact(cache, "0.mp4", "npz")
    (trial.folder / "exploding.py").write_text(f"import os\nos.mkdir({str(flag)!r})\n")
    mine = {"extractor": "exploding:Bomb"}
    _edit(cache / "chordcache.json", lambda data: data["config"]["features"].update(mine=mine))

    _, ends, modules, _ = _read(trial.folder)
    assert sorted(ends) == ["1.mp4", "2.mp4", "3.mp4", "DamageError"], ends
    assert "exploding" not in modules
    _edit(cache / "chordcache.json", lambda data: data["config"]["features"].pop("mine"))
    verified = run_chordcache("verify", "cache", "--deep", cwd=trial.folder)
    assert verified.returncode == 5, verified.stderr
    (trial.folder / "config.yaml").write_text(f"features: !!python/object/apply:os.mkdir [{str(flag)!r}]\n")
    built = run_chordcache("build", cache / "index.jsonl", "-c", "config.yaml", cwd=trial.folder)
    assert built.returncode == 2, built.stderr
    assert not flag.exists()
    return {"sum_explosions": 0}


_UNPICKLERS = {"pickle", "cPickle", "dill", "marshal", "shelve", "cloudpickle"}
_EVALUATORS = {"eval", "exec", "compile", "__import__"}
_OF_OWN_PROCESSES = {"worker.py: pickle"}
"""Module of ``engine`` that unpickles what the processes of a run send to each other, as multiprocessing does. It
reads no file"""


@experiment("S7", "the package's own code: no unpickling of files, no eval, no YAML but what is safe")
def no_loader_of_code(trial: Trial) -> Figures:
    loaders, num_files = [], 0
    for path in sorted((REPOSITORY / "chordcache").rglob("*.py")):
        num_files += 1
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Import(names=names):
                    used = {alias.name.partition(".")[0] for alias in names} & _UNPICKLERS
                case ast.ImportFrom(module=str(module)):
                    used = {module.partition(".")[0]} & _UNPICKLERS
                case ast.Call(func=ast.Name(id=name)):
                    used = {name} & _EVALUATORS
                case ast.Call(func=ast.Attribute(value=ast.Name(id="yaml"), attr=name)):
                    used = {name} - {"safe_load", "safe_dump", "dump"}
                case ast.keyword(arg="allow_pickle", value=value):
                    used = set() if ast.unparse(value) == "False" else {"allow_pickle"}
                case _:
                    used = set()
            loaders += [f"{path.name}: {name}" for name in used]
    assert num_files > 50
    assert set(loaders) == _OF_OWN_PROCESSES
    return {"sum_files": num_files, "sum_loaders": len(set(loaders) - _OF_OWN_PROCESSES)}


# S8


def _external_link(file: h5py.File, name: str, secret: Path) -> None:
    file[name] = h5py.ExternalLink(secret, name)


def _external_storage(file: h5py.File, name: str, secret: Path) -> None:
    size = secret.stat().st_size
    file.create_dataset(name, (size,), np.uint8, external=[(secret, 0, size)])


def _virtual(file: h5py.File, name: str, secret: Path) -> None:
    with h5py.File(secret) as other:
        shape, dtype = other[name].shape, other[name].dtype
    layout = h5py.VirtualLayout(shape, dtype)
    layout[...] = h5py.VirtualSource(secret, name, shape)
    file.create_virtual_dataset(name, layout)


def _claim(file: h5py.File, name: str, secret: Path) -> None:
    """512 GiB that are a few kB on the disk."""
    del secret
    file.create_dataset(name, (1 << 19, 1 << 20), np.uint8, chunks=(1, 1 << 20), compression="gzip")


_WAYS_OUT: Mapping[str, Callable[[h5py.File, str, Path], None]] = {
    "external link": _external_link,
    "external storage": _external_storage,
    "virtual dataset": _virtual,
    "a claim of 512 GiB": _claim,
}

_MAX_READER_MIB = 500
"""Peak RSS of a process that reads a cache; without a bad file it has about 100."""


@experiment(
    "S8", "HDF5 files whose values are in another file, or that claim too much: read, verified",
    variants=tuple(_WAYS_OUT),
)  # fmt: skip
def hdf5_that_leads_out(trial: Trial) -> Figures:
    cache = copy_of(trial.once("corpus", make_corpus) / "whole", trial.folder)
    elsewhere = trial.folder / "elsewhere"
    elsewhere.mkdir()
    artefact = _artefact(cache, "0.mp4", "hdf5")
    secret = Path(shutil.copy(artefact, elsewhere / "secret.h5"))
    names = list(table_of(artefact))
    maximum_mib = 0.0
    for name in names:
        shutil.copy(secret, artefact)
        with h5py.File(artefact, "r+") as h5:
            del h5[name]
            _WAYS_OUT[trial.variant](h5, name, secret)
        with artefact.open("ab") as file:  # what was free may have other bytes now
            file.write(b"\n" + line_of(table_of(secret)))
        _seal_artefact(cache, "0.mp4", "hdf5")
        run, ends, modules, mib = _read(trial.folder)
        assert {"1.mp4", "2.mp4", "3.mp4"} < set(ends) <= {"0.mp4", "1.mp4", "2.mp4", "3.mp4", "DamageError"}, ends
        assert "h5py" not in modules
        verified = traced(trial.folder, "verify", "cache", "--deep", "--json", "-j1")
        damaged = {finding["file"] for finding in json.loads(verified.stdout)["damage"]}
        assert damaged <= {str(artefact.relative_to(cache))}, verified.stdout
        assert run.touched_below(elsewhere) | verified.touched_below(elsewhere) == set()
        maximum_mib = max(maximum_mib, mib)
        assert mib < _MAX_READER_MIB
    return {"sum_arrays": len(names), "sum_disclosures": 0, "max_reader_MiB": maximum_mib}
