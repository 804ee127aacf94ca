"""The common part of ``push`` and ``pull``: the files of a cache in a store, and several copies at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from chordcache.engine import terminal
from chordcache.storage.feature_info import StoredFile
from chordcache.storage.layout import sidecar_file
from chordcache.storage.packs import Pack, packs_of
from chordcache.storage.run_log import RUNS_FILE
from chordcache.storage.sidecar import Sidecar

OTHER_LISTS = ("index.jsonl", "quarantine.jsonl")
"""Lists of a cache that may be missing, in the order in which they are copied, before the header and the catalog"""

_VERIFIES = b'"command": "verify"'

_NUM_THREADS = 8
_FILES_AT_ONCE = 4096
"""Number of files that wait for a thread: each takes memory"""

T = TypeVar("T")


@dataclass(frozen=True)
class CopySummary:
    """The result of ``push`` and ``pull``."""

    num_videos: int
    """Number of videos of the cache"""
    num_files: int
    """Number of artefacts and packs that were copied"""
    num_bytes: int
    """[bytes] of these files"""
    num_present: int
    """Number of artefacts and packs that were there already"""


def files_of(sidecars: Iterable[Sidecar]) -> list[StoredFile | Pack]:
    """Return the artefacts that videos have as files of their own, and the packs that have others."""
    rows = list(sidecars)
    own = {file.name: file for sidecar in rows for file in sidecar.files if file.packed is None}
    return [*own.values(), *packs_of(rows)]


def is_of_cache(name: str, tiers: Iterable[str]) -> bool:
    """Return whether a cache may have a file of this name."""
    folder, _, rest = name.partition("/")
    if not rest:
        return name in ("chordcache.json", "catalog.bin", RUNS_FILE, *OTHER_LISTS)
    return folder in ("videos", "packs", *tiers)


def is_earlier(log: bytes, later: bytes) -> bool:
    """Return whether the log of runs of a cache is that of an earlier or the same state of a cache.

    Each cache has its own log, which grows with every change. Both copies of a cache may have been verified.
    """
    own, others = _changes(log), _changes(later)
    return bool(own) and others[: len(own)] == own


def _changes(log: bytes) -> list[bytes]:
    """Return the lines of runs that may have changed the cache, without one that a kill cut off."""
    return [line for line in log.splitlines(keepends=True) if line.endswith(b"\n") and _VERIFIES not in line]


def copy_all(copy: Callable[[T], None], files: Sequence[T], noun: str, *, progress: bool) -> None:
    """Copy files in threads. The first error ends it."""
    pool = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="chordcache-copies")
    try:
        with terminal.progress_bar(len(files), noun, shown=progress) as bar:
            for start in range(0, len(files), _FILES_AT_ONCE):
                for _ in pool.map(copy, files[start : start + _FILES_AT_ONCE]):
                    bar.update()
    finally:
        pool.shutdown(cancel_futures=True)


def stale_sidecars(names: Iterable[str], keys: Iterable[str]) -> list[str]:
    """Return those names of sidecars that are of other videos than these."""
    current = set(map(sidecar_file, keys))
    return [name for name in names if name.startswith("videos/") and name not in current]
