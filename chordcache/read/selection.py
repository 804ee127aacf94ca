"""Selection of the videos of a dataset: by keys, by a predicate, or by a split file."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeAlias

import numpy as np

from chordcache.errors import NotFoundError, UsageError, printable
from chordcache.read.cache import Cache
from chordcache.read.video import Video

Videos: TypeAlias = "str | Path | Callable[[Video], bool] | Iterable[str]"
"""A split file, a predicate, or keys."""


def select_keys(cache: Cache, videos: Videos) -> list[str]:
    """Return the keys of the chosen videos."""
    if isinstance(videos, (str, Path)):
        keys = _read_split(cache, Path(videos))
    elif callable(videos):
        keys = [video.key for video in cache if videos(video)]
    else:
        keys = list(videos)
        known = set(cache.keys())
        for key in keys:
            if key not in known:
                raise NotFoundError(f"videos: got {key!r}, expected the key of a video of {cache!r}")
    if not keys:
        raise UsageError(f"videos: got no video, expected at least one of {cache!r}")
    return keys


def positions_of(cache: Cache, keys: np.ndarray) -> np.ndarray:
    """Return the positions [shape=(n,), dtype=int64] of keys [shape=(n,), dtype=S] in a cache.

    Raises
    ------
    NotFoundError
        If the cache does not have a video of that key.
    """
    known = np.array(cache.keys(), np.bytes_)  # sorted, and ASCII
    positions = np.searchsorted(known, keys)
    is_known = known[np.minimum(positions, len(known) - 1)] == keys if len(known) else np.zeros(len(keys), bool)
    if not is_known.all():
        key = keys[np.argmin(is_known)].decode()
        raise NotFoundError(f"videos: got {key!r}, expected the key of a video of {cache!r}")
    return positions


def _read_split(cache: Cache, path: Path) -> list[str]:
    """Return the keys that a split file names, in its order."""
    try:
        # As os.fsdecode does: a path that is not UTF-8 can still be written in the file
        lines = path.read_text(encoding="utf-8-sig", errors="surrogateescape").split("\n")
    except OSError as error:
        raise NotFoundError(f"cannot read split file '{printable(path)}': {error.strerror}") from None
    known = set(cache.keys())
    keys_of_path: dict[str, list[str]] = {}
    if any(entry and not entry.startswith("#") and entry not in known for entry in map(str.strip, lines)):
        for video in cache:
            keys_of_path.setdefault(video.path, []).append(video.key)
    keys = []
    for number, entry in enumerate(map(str.strip, lines), start=1):
        if not entry or entry.startswith("#"):
            continue
        found = [entry] if entry in known else keys_of_path.get(entry, [])
        where = f"split file '{printable(path)}', line {number}: got '{printable(entry)}', expected "
        if not found:
            raise NotFoundError(f"{where}the key or the path of a video of {cache!r}")
        if len(found) > 1:
            raise UsageError(f"{where}a key. Several videos have this path: {', '.join(found)}")
        keys += found
    return keys
