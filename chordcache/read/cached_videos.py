"""The chosen videos of a cache, as a dataset reads them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol, TypeVar

import numpy as np

from chordcache.config.config import config_from_json
from chordcache.errors import UsageError
from chordcache.read.cache import Cache
from chordcache.read.clips import FeatureReader
from chordcache.read.selection import Videos, positions_of, select_keys, warn_of_left_out
from chordcache.read.video import Video
from chordcache.storage.annotation_names import AnnotationNames
from chordcache.storage.cache_header import read_header
from chordcache.storage.catalog_columns import FeatureState
from chordcache.storage.quarantine import read_quarantined

Sample = TypeVar("Sample")


class VideoSet(Protocol):
    """The videos of a dataset, in any place. Picklable, and read by several threads at a time."""

    labels: list[str]
    """All labels that a video may have, sorted"""

    columns: Mapping[str, str]
    """Extra column to its type, if it is not text"""

    @property
    def num_named(self) -> int | None:
        """Number of videos that ``annotation_names`` counts. None if it counts others too."""
        ...

    @property
    def stereo(self) -> str:
        """Eye of stereo pictures that the videos show, as ``frames.stereo`` of a config."""
        ...

    def annotation_names(self) -> AnnotationNames:
        """Return the names in the annotations of all videos."""
        ...

    def feature_states(self, feature: str) -> np.ndarray:
        """Return the ``FeatureState`` of a feature in every video [shape=(len(self),), dtype=uint8].

        A video that is read from its source counts as CACHED.
        """
        ...

    def keys_of(self, positions: np.ndarray) -> list[str]:
        """Return the keys of some videos."""
        ...

    def keep(self, mask: np.ndarray) -> None:
        """Leave out the videos where the mask [shape=(len(self),), dtype=bool] is False."""
        ...

    def __len__(self) -> int: ...

    def numbered_labels(self) -> tuple[list[str], np.ndarray]:
        """Return all labels, and the position there of every video's [shape=(len(self),), dtype=int], -1 for none."""
        ...

    def read(self, position: int, sample: Callable[[FeatureReader, Video], Sample]) -> Sample:
        """Return the result of ``sample`` for a video and a reader of its features."""
        ...

    def close(self) -> None:
        """Close what is open in this process. It is opened again when a video is read."""
        ...


def stereo_of(cache: Cache) -> str:
    """Return the eye of stereo pictures that a cache has, as ``frames.stereo`` of its config."""
    return config_from_json(read_header(cache.path).config, trusted=()).picture.stereo


class CachedVideos:
    """All videos of a cache in the order of their keys, or some of them.

    Picklable. Each process opens the cache itself.

    Parameters
    ----------
    cache : Cache
        The cache. It belongs to this object.
    videos : Videos, optional
        The videos, see ``chordcache.videos.cached``. By default all.
    on_miss : {"error", "skip"}
        See ``select_keys``.
    features : sequence of str
        The features that will be read. A video in quarantine that was not built with one of them is left out, with a
        warning.

    Raises
    ------
    NotFoundError, UsageError
        As in ``select_keys``.
    """

    def __init__(
        self, cache: Cache, videos: Videos | None = None, on_miss: str = "error", features: Sequence[str] = ()
    ) -> None:
        self._cache = cache
        # Bytes in one array: they pickle small, and reference counts in forked workers do not copy their pages
        self._keys = None if videos is None else np.array(select_keys(cache, videos, on_miss), np.bytes_)
        self._positions: np.ndarray | None = None
        """Positions of the keys in the catalog, while the dataset is made"""
        self._num_videos = len(cache if self._keys is None else self._keys)
        self._leave_out_failed(features)
        self.labels = cache.labels()
        """The distinct labels of the whole cache, sorted"""
        self.columns: Mapping[str, str] = dict(read_header(cache.path).columns)
        """Extra column to its type, if it is not text"""

    def _leave_out_failed(self, features: Sequence[str]) -> None:
        lacks = [self.feature_states(name) == FeatureState.NOT_BUILT for name in features]
        lacking = np.flatnonzero(np.any(lacks, axis=0)) if lacks else np.empty(0, np.int64)
        failures = read_quarantined(self._cache.path) if len(lacking) else {}
        failed = {
            int(n): failures[key] for n, key in zip(lacking, self.keys_of(lacking), strict=True) if key in failures
        }
        if 0 < len(failed) < len(self):
            causes = Counter(failure.cause for failure in failed.values())
            warn_of_left_out(repr(self._cache), len(self), causes, {}, self._cache.path)
            self.keep(~np.isin(np.arange(len(self)), list(failed)))

    def __len__(self) -> int:
        return self._num_videos

    def __repr__(self) -> str:
        return repr(self._cache)

    def annotation_names(self) -> AnnotationNames:
        """Return the names in the annotations of all videos of the cache."""
        return self._cache.annotation_names()

    def feature_states(self, feature: str) -> np.ndarray:
        """Return the ``FeatureState`` of a feature in every video [shape=(len(self),), dtype=uint8]."""
        states = self._cache.feature_states(feature)
        if self._keys is None:
            return states
        if self._positions is None:
            self._positions = positions_of(self._cache, self._keys)
        chosen: np.ndarray = states[self._positions]
        return chosen

    def keys_of(self, positions: np.ndarray) -> list[str]:
        """Return the keys of some videos."""
        keys = np.array(self._cache.keys(), np.bytes_) if self._keys is None else self._keys
        return [key.decode() for key in keys[positions]]

    def keep(self, mask: np.ndarray) -> None:
        """Leave out the videos where the mask [shape=(len(self),), dtype=bool] is False."""
        self._keys = np.array(self.keys_of(np.flatnonzero(mask)), np.bytes_)
        self._num_videos = len(self._keys)
        self._positions = None

    @property
    def num_named(self) -> int | None:
        """Number of videos that ``annotation_names`` counts. None if it counts others too."""
        return len(self) if self._keys is None else None

    @property
    def stereo(self) -> str:
        """Eye of stereo pictures that the cache has, as ``frames.stereo`` of its config."""
        return stereo_of(self._cache)

    def close(self) -> None:
        """Close the cache in this process. It is opened again when a video is read."""
        self._positions = None
        self._cache.close()

    def numbered_labels(self) -> tuple[list[str], np.ndarray]:
        """Return the labels that the cache has now, and the position there of every video's [shape=(n,), dtype=int].

        Raises
        ------
        UsageError
            If the cache has gained or lost videos.
        """
        with Cache(self._cache.path) as cache:  # not the dataset's own, which other threads may be reading
            names, ids = cache.labels(), cache.label_ids
            if self._keys is not None:
                return names, ids[positions_of(cache, self._keys)]
            self._check_num_videos(cache)
            return names, ids

    def read(self, position: int, sample: Callable[[FeatureReader, Video], Sample]) -> Sample:
        """Return the result of ``sample`` for the cache and a video."""
        return sample(self._cache, self._video(position))

    def __iter__(self) -> Iterator[Video]:
        return map(self._video, range(self._num_videos))

    def _video(self, position: int) -> Video:
        if self._keys is not None:
            return self._cache[self._keys[position].decode()]
        self._check_num_videos(self._cache)
        return self._cache[position]

    def _check_num_videos(self, cache: Cache) -> None:
        # The catalog may have been opened again since the videos were counted. A build in between moves the positions
        if len(cache) != self._num_videos:
            raise UsageError(
                f"{cache!r} had {self._num_videos} videos when the dataset was made. Recreate the dataset, or "
                "pass videos=cache.keys() to pin today's videos."
            )
