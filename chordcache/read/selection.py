"""Selection of the videos of a dataset: by keys or paths, by a predicate, or by a split file."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from chordcache.amounts import counted
from chordcache.errors import NotFoundError, UsageError, printable
from chordcache.index.file_names import VIDEO_SUFFIXES
from chordcache.read.cache import Cache
from chordcache.read.near_keys import hint_for
from chordcache.read.video import Video
from chordcache.storage.cache_header import read_header
from chordcache.storage.feature_info import FeatureInfo, leaves
from chordcache.storage.layout import key_hash
from chordcache.storage.quarantine import read_quarantined

Videos: TypeAlias = "str | Path | Callable[[Video], bool] | Iterable[str]"
"""A split file, a predicate, or keys."""


def select_keys(
    cache: Cache, videos: Videos | None, on_miss: str = "error", where: Mapping[str, str] | None = None
) -> list[str]:
    """Return the keys of the chosen videos, see ``chordcache.videos.cached``. Warn of those that are left out.

    Raises ``NotFoundError`` if a name matches no video and ``on_miss`` is "error", or if the split file cannot be read.
    Raises ``UsageError`` if a name matches several videos, or no video is left.
    """
    if videos is None or (where and not isinstance(videos, (str, Path))):
        raise UsageError(f"where: got {where!r} without a split file, expected one as videos")
    if callable(videos):
        keys = [video.key for video in cache if videos(video)]
        if not keys:
            raise UsageError(f"videos: got no video, expected at least one of {cache!r}")
        return keys
    names = _Names(cache)
    if isinstance(videos, str) and not where and names.exact(videos):
        videos = [videos]
    if isinstance(videos, (str, Path)):
        split = _read_split(cache, names, Path(videos), where or {})
        keys = _resolved(cache, names, f"split file '{printable(videos)}'", on_miss, *split)
        distinct = list(dict.fromkeys(keys))
        if len(distinct) < len(keys):
            what = f"split file '{printable(videos)}': {len(keys) - len(distinct)} of {len(keys)} rows name a video"
            warnings.warn(f"{what} that an earlier row names. It is read once.", stacklevel=6)
        return distinct
    given = list(videos)
    for name in given:
        if not isinstance(name, str):
            raise UsageError(f"videos: got {name!r}, expected keys, such as cache.keys() or [video.key]")
    if not given:
        raise UsageError(f"videos: got no video, expected at least one of {cache!r}")
    return _resolved(cache, names, "videos", on_miss, given)


def warn_of_left_out(
    what: str,
    num_all: int,
    causes: Mapping[str, int],
    others: Mapping[str, int],
    cache: Path | None,
    *,
    stacklevel: int = 7,
) -> None:
    """Warn once of all videos that a dataset leaves out.

    ``what`` is the list that names ``num_all`` videos. ``causes`` has the number of those in the quarantine of
    ``cache`` by cause, ``others`` that of the rest by reason. ``stacklevel`` counts the calls up to that of
    ``ChordVideoDataset``.
    """
    reasons = [f"{count} {reason}" for reason, count in others.items() if count]
    end = ""
    if num_quarantined := sum(causes.values()):
        of_each = ", ".join(f"{cause} {count}" for cause, count in sorted(causes.items(), key=lambda item: -item[1]))
        reasons.insert(0, f"{num_quarantined} in quarantine ({of_each})")
        end = f". List them with 'chordcache info {printable(cache or '')} --problems'"
    if reasons:
        num_left_out = num_quarantined + sum(others.values())
        warnings.warn(
            f"{what}: left out {num_left_out} of {counted(num_all, 'video')}: {', '.join(reasons)}{end}.",
            stacklevel=stacklevel,
        )


class OtherSettings:
    """The videos of a cache with features of other settings than its header states. Sidecars are read if there are.

    A build changes the header first. After Ctrl-C, without a source, or for a part of the index, older videos stay.
    ``features`` are those that count, by default all.
    """

    def __init__(self, cache: Cache, features: Collection[str] | None = None) -> None:
        self._cache, self._now = cache, read_header(cache.path).fingerprints
        now, cached = self._now, cache.catalog.fingerprints
        names = [name for name in cached if name in now and (features is None or name in features)]
        self._of: dict[str, set[str]] = {name: set() for name in names if {*cached[name]} - {now[name]}}
        """Feature to the keys of its videos"""
        self._variants: dict[str, dict[str, FeatureInfo]] = {name: {} for name in self._of}
        for video in cache if self._of else ():
            for name, keys in self._of.items():
                if (info := video.sidecar.feature(name)) is not None:
                    self._variants[name].setdefault(info.fingerprint, info)
                    keys |= {video.key} if info.fingerprint != now[name] else set()
        self.keys = frozenset[str]().union(*self._of.values())
        """Keys of the videos"""

    def left(self, keys: Sequence[str], lacking: Collection[str] = ()) -> Sequence[str]:
        """Leave out videos in quarantine that are ``lacking`` a feature, or have other settings. Warn of all others."""
        stale = self.keys.union(lacking)
        failures = read_quarantined(self._cache.path) if stale else {}
        failed = {key: failures[key].cause for key in keys if key in stale and key in failures}
        if len(failed) < len(keys):
            causes = Counter(failed.values())
            warn_of_left_out(repr(self._cache), len(keys), causes, {}, self._cache.path, stacklevel=8)
            keys = [key for key in keys if key not in failed]
        if text := self.sentence(keys):
            warnings.warn(text, stacklevel=7)
        return keys

    def sentence(self, keys: Collection[str]) -> str:
        """Return how many of some videos have other settings, and which, or "" if none has."""
        counts = {name: len(others.intersection(keys)) for name, others in self._of.items()}
        parts = [
            f"{count} of {counted(len(keys), 'video')} have {name} of other settings{self._values(name)}"
            for name, count in counts.items()
            if count
        ]
        return printable(f"{', '.join(parts)}; run chordcache build") if parts else ""

    def _values(self, name: str) -> str:
        """Return the settings in which the videos of a feature differ, with the values that they have."""
        values: dict[str, dict[str, None]] = {}
        for info in sorted(self._variants[name].values(), key=lambda info: info.fingerprint == self._now[name]):
            for leaf, value in leaves(name, info.params):
                text = "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
                values.setdefault(leaf.replace(f"{name}.picture.", "frames."), {})[text] = None
        differing = [f"{leaf}: {', '.join(texts)}" for leaf, texts in values.items() if len(texts) > 1]
        return f" ({'; '.join(differing)})" if differing else ""


def positions_of(cache: Cache, keys: np.ndarray) -> np.ndarray:
    """Return the positions [shape=(n,), dtype=int64] of keys in a cache, or raise ``NotFoundError``."""
    position_of = {key.encode("ascii"): position for position, key in enumerate(cache.keys())}
    positions = np.fromiter((position_of.get(key, -1) for key in keys.tolist()), np.int64, len(keys))
    if np.any(positions < 0):
        key = keys[np.argmin(positions)].decode()
        raise NotFoundError(f"videos: got {key!r}, expected the key of a video of {cache!r}")
    return positions


def _read_split(cache: Cache, names: _Names, path: Path, where: Mapping[str, str]) -> tuple[Any, ...]:
    from chordcache.read.split_file import read_split  # not before: no other selection reads tables

    try:
        return read_split(path, (names.exact, names.similar), where)
    except NotFoundError as error:
        if path.exists():
            raise
        hint = hint_for(cache.catalog, os.fspath(path))
        raise NotFoundError(f"{error}. It is not a video of {cache!r} either. {hint}") from None


def _resolved(
    cache: Cache,
    names: _Names,
    what: str,
    on_miss: str,
    given: Sequence[str],
    lines: Sequence[int] = (),
    others: Callable[[str], Iterator[str]] = lambda name: iter(()),
) -> list[str]:
    """Return the key of each name of a cached video. See ``split_file.NameList`` for the names."""
    keys: list[str] = []
    causes: Counter[str] = Counter()
    unmatched: list[int] = []

    def place(row: int) -> str:
        return f"{what}, line {lines[row]}" if lines else what

    for row, name in enumerate(given):
        matches = names.find(name, others)
        if len(matches) == 1:
            failure = names.failures.get(matches[0])
            if failure is None:
                keys.append(matches[0])
            else:
                causes[failure.cause] += 1
        elif matches:
            several = f"Several videos have this path: {', '.join(matches)}"
            raise UsageError(f"{place(row)}: got '{printable(name)}', expected a key. {several}")
        else:
            unmatched.append(row)
    if unmatched and on_miss == "error":
        row = unmatched[0]
        name = next(others(given[row]), given[row])
        raise NotFoundError(
            f"{place(row)}: got '{printable(given[row])}', expected the key or the path of a video of {cache!r}. "
            f"{len(unmatched)} of {len(given)} names match no video. {hint_for(cache.catalog, name)} "
            "chordcache.videos.cached with on_miss='skip' leaves them out."
        )
    missing = {f"not cached, such as '{printable(given[unmatched[0]])}'": len(unmatched)} if unmatched else {}
    warn_of_left_out(what, len(given), causes, missing, cache.path, stacklevel=8)
    if not keys:
        raise UsageError(f"{what}: got no cached video among {len(given)} names, expected at least one of {cache!r}")
    return keys


class _Names:
    """The names of the videos of a cache: those that are cached, and those in quarantine.

    A key ends with a hash of the path, so that the key of a path is found without reading any sidecar.
    """

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._roots = tuple(read_header(cache.path).roots)
        cached = cache.keys()
        keys = {key[-16:]: key for key in cached}
        failures = read_quarantined(cache.path).items()
        self.failures = {key: failure for key, failure in failures if key[-16:] not in keys}
        """Videos in quarantine that are not cached, by key"""
        self._keys = keys | {key[-16:]: key for key in self.failures}
        """Hash to key, also of videos in quarantine"""

    def find(self, name: str, others: Callable[[str], Iterator[str]]) -> list[str]:
        """Return the keys of the videos that a name means, or one of its other readings."""
        for matching in (self.exact, self.similar):
            for reading in chain((name,), others(name)):
                if matches := matching(reading):
                    return matches
        return []

    def exact(self, name: str) -> list[str]:
        """Return the keys of the videos that have a name as their key or as their path."""
        keys = self._keys
        if keys.get(name[-16:]) == name:
            return [name]
        return [keys[hash_] for root in self._roots if (hash_ := key_hash(root, name)) in keys]

    def similar(self, name: str) -> list[str]:
        """Return the keys of the videos whose path ends like a name, whatever the suffix of the file.

        A path may also be the end of the name, if a list was written for a folder above.
        """
        base = name.rpartition("/")[2]
        for inner in dict.fromkeys((name, _without_suffix(name))):
            matches = [
                (key, path)
                for key, path in self._paths_of_stem.get(inner.rpartition("/")[2], ())
                if _ends_like(inner, _without_suffix(path))
            ]
            same_suffix = [match for match in matches if match[1].rpartition("/")[2] == base]
            if matches:
                return [key for key, _ in same_suffix or matches]
        return []

    @cached_property
    def _paths_of_stem(self) -> dict[str, list[tuple[str, str]]]:
        paths: dict[str, list[tuple[str, str]]] = {}
        failures = ((failure.key, failure.path) for failure in self.failures.values())
        for key, path in chain(self._cache.catalog.paths(), failures):
            paths.setdefault(_without_suffix(path).rpartition("/")[2], []).append((key, path))
        return paths


def _without_suffix(path: str) -> str:
    stem, suffix = os.path.splitext(path)
    return stem if suffix[1:].lower() in VIDEO_SUFFIXES else path


def _ends_like(name: str, path: str) -> bool:
    """Return whether one path is the end of the other, in whole folders."""
    return f"/{name}".endswith(f"/{path}") or f"/{path}".endswith(f"/{name}")
