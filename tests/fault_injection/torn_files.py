"""Lists, sidecars and the header: cut short at every byte, and read at every moment of builds that replace them."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xxhash

import chordcache as cc
from chordcache.errors import DamageError
from chordcache.index.index_files import IndexWriter, read_index
from chordcache.storage import atomic, cache_header, quarantine
from chordcache.storage.catalog import Catalog
from chordcache.storage.catalog_file import CATALOG
from chordcache.storage.sidecar import read_sidecar
from fault_injection.fixtures import make_corpus
from fault_injection.harness import Figures, Trial, experiment

NUM_BUILDS = 3
"""That a watched cache is built again, each with other labels, so that every file of it is replaced."""


def _make_cache(folder: Path) -> None:
    """whole/, with two videos and three lines in its quarantine."""
    make_corpus(folder, num_videos=2, num_frames=6)
    for name in ("a", "b", "c"):
        (folder / f"videos/{name}.mp4").write_bytes(b"not a video")
    listed = cc.scan([folder / "videos"], output=folder / "index.json", jobs=1)
    cc.build(listed, folder / "whole", tiers=["npz"], jobs=1)


def _read_index(path: Path) -> list[Any]:
    return list(read_index(path))


def _read_quarantine(path: Path) -> list[Any]:
    return list(quarantine.Quarantine(path.parent, {})._failures.values())


def _read_sidecar(path: Path) -> list[Any]:
    return [read_sidecar(path.parents[2], path.stem)]


def _read_header(path: Path) -> list[Any]:
    return [cache_header.read_header(path.parent)]


READERS: dict[str, Callable[[Path], list[Any]]] = {
    "index": _read_index,
    "quarantine": _read_quarantine,
    "sidecar": _read_sidecar,
    "header": _read_header,
}


def _file(cache: Path, kind: str) -> Path:
    names = {"index": "index.jsonl", "quarantine": "quarantine.jsonl", "header": "chordcache.json"}
    return cache / names[kind] if kind in names else min((cache / "videos").glob("*/*.json"))


def _copy(whole: Path, kind: str, folder: Path) -> Path:
    """That file alone, at its place in an empty cache."""
    source = _file(whole, kind)
    path = folder / source.relative_to(whole)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(source.read_bytes())
    return path


def _outcome(kind: str, path: Path) -> list[Any] | str:
    """Return what is read, or how the damage is named."""
    try:
        return READERS[kind](path)
    except DamageError as error:
        return str(error)


@experiment("R4", "index, quarantine, sidecar and header cut short at each byte of their last two lines")
def cut_at_every_byte(trial: Trial) -> Figures:
    """The lines before a torn last one, where lines are appended; damage that names the file, where it is replaced."""
    whole = trial.once("corpus", _make_cache) / "whole"
    return {f"sum_cuts_of_{kind}": _cut(_copy(whole, kind, trial.folder / kind), kind) for kind in READERS}


def _cut(path: Path, kind: str) -> int:
    data = path.read_bytes()
    expected = READERS[kind](path)
    start = len(data) - sum(map(len, data.splitlines(keepends=True)[-2:]))
    for length in range(start, len(data)):
        path.write_bytes(data[:length])
        outcome = _outcome(kind, path)
        where = f"{length} of {len(data)} bytes of {kind}: {outcome}"
        if kind == "quarantine":
            assert outcome == expected[: data[:length].count(b"\n")], where
        elif outcome != expected or data[length:] != b"\n":  # a line without its newline is whole
            assert isinstance(outcome, str), where
            assert str(path) in outcome, where
    return len(data) - start


@experiment("R4", "a line in the middle of the index and the quarantine torn at each byte")
def torn_in_the_middle(trial: Trial) -> Figures:
    """Damage that names the file, whether the next line follows at once or on a line of its own."""
    whole = trial.once("corpus", _make_cache) / "whole"
    kinds = ("index", "quarantine")
    return {f"sum_cuts_of_{kind}": _tear(_copy(whole, kind, trial.folder / kind), kind) for kind in kinds}


def _tear(path: Path, kind: str) -> int:
    first, torn, *rest = path.read_bytes().splitlines(keepends=True)
    num_cuts = 0
    for length in range(len(torn) - 1):
        for newline in (b"\n", b""):
            if length == 0 and newline == b"" and kind == "quarantine":
                continue  # that line is gone without a trace: nothing is torn
            path.write_bytes(first + torn[:length] + newline + b"".join(rest))
            outcome = _outcome(kind, path)
            assert isinstance(outcome, str), f"{length} of {len(torn)} bytes of {kind}: {outcome}"
            assert str(path) in outcome, outcome
            num_cuts += 1
    return num_cuts


@experiment("R4", "quarantine torn at each byte, then added to")
def added_to_after_a_tear(trial: Trial) -> Figures:
    """The torn line goes, those before it stay, the new one is whole."""
    whole = trial.once("corpus", _make_cache) / "whole"
    path = _copy(whole, "quarantine", trial.folder / "cache")
    data = path.read_bytes()
    lines = data.splitlines(keepends=True)
    start = len(data) - len(lines[-1])
    for length in range(start, len(data)):
        path.write_bytes(data[:length])
        atomic.append_lines(path.parent, path.name, [lines[0].decode().rstrip("\n")])
        assert path.read_bytes() == b"".join([*lines[:-1], lines[0]]), f"{length} of {len(data)} bytes"
    return {"sum_cuts": len(data) - start}


# Read while they are replaced


def _is_sealed(line: str) -> bool:
    """Return whether a line carries the digest of the rest, computed without the package."""
    body, mark, tail = line.removesuffix("\n").rpartition(', "xxh3_128": "')
    return mark != "" and tail == f'{xxhash.xxh3_128_hexdigest(body.encode())}"}}' and bool(json.loads(line))


def _is_whole(path: Path) -> bool:
    if path.name == CATALOG:
        return len(list(Catalog(path.parent).check())) > 0
    text = path.read_text()
    return text.endswith("\n") and all(map(_is_sealed, text.splitlines()))


@dataclass
class _Watcher:
    """Reads files over and over in a thread of its own."""

    paths: list[Path]
    torn: list[str] = field(default_factory=list)
    versions: dict[Path, set[tuple[int, int]]] = field(default_factory=dict)
    """File to the inodes that it was seen with, and when these were put there"""
    num_reads: int = 0
    is_over: bool = False

    def run(self) -> None:
        """Until ``is_over``."""
        while not self.is_over:
            for path in self.paths:
                self._look(path)
            time.sleep(0.001)

    def _look(self, path: Path) -> None:
        self.versions.setdefault(path, set())
        try:
            status = path.stat()
            self.versions[path].add((status.st_ino, status.st_ctime_ns))
            if not _is_whole(path):
                self.torn.append(f"{path} is not whole")
        except (FileNotFoundError, cc.DamageError, ValueError) as error:
            self.torn.append(f"{path}: {error}")
        self.num_reads += 1


def _relabeled(corpus: Path, folder: Path) -> Iterator[Path]:
    """Indices of the corpus with other labels each time."""
    listed = cc.read_index(corpus / "index.json")
    for number in range(NUM_BUILDS):
        path = folder / f"{number}.json"
        with IndexWriter(path, roots=listed.roots, level=listed.level) as writer:
            for record in listed:
                writer.write(record.replace(label=str(number)))
        yield path


@experiment("R4", "read over and over while builds replace every list, sidecar and the catalog", trials=6)
def read_while_replaced(trial: Trial) -> Figures:
    """Never torn, never gone."""
    corpus = trial.once("corpus", make_corpus)
    cache = trial.folder / "cache"
    first, *others = _relabeled(corpus, trial.folder)
    cc.build(first, cache, tiers=["npz"], jobs=1)
    paths = [cache / "chordcache.json", cache / "index.jsonl", cache / CATALOG, *cache.glob("videos/*/*.json")]
    watcher = _Watcher(paths)
    thread = threading.Thread(target=watcher.run)
    thread.start()
    try:
        for listed in others:
            cc.build(listed, cache, tiers=["npz"], jobs=1)
    finally:
        watcher.is_over = True
        thread.join()
    assert watcher.torn == [], watcher.torn[:5]
    once_only = [path.name for path, versions in watcher.versions.items() if len(versions) < 2]
    assert once_only == [], f"these were not replaced, so nothing was tried: {once_only}"
    return {"sum_reads": watcher.num_reads, "sum_torn": 0}
