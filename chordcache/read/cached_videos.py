"""The chosen videos of a cache, as a dataset reads them, and the features that some of them do not have."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from functools import partial
from itertools import compress
from typing import TypeVar

import numpy as np

from chordcache.amounts import counted
from chordcache.digests import hex64
from chordcache.errors import AbsentFeatureError, DamageError
from chordcache.features.built_in import read_sides
from chordcache.features.read_side import RowReader
from chordcache.object_stores.local_folder import local_folder
from chordcache.read.cache import Cache
from chordcache.read.clips import HOW_TO_ADD, ClipReader
from chordcache.read.selection import OtherSettings, Videos, positions_of, select_keys
from chordcache.read.video import Video
from chordcache.storage.annotation_names import AnnotationNames
from chordcache.storage.cache_header import read_header
from chordcache.storage.catalog_columns import FeatureState

Sample = TypeVar("Sample")


class VideoSet(ABC):
    """Base class of the videos of a dataset, in any place. Picklable, and read by several threads at a time."""

    labels: list[str]
    """All labels that a video may have, sorted"""
    columns: Mapping[str, str]
    """Extra column to its type, if it is not text"""

    @abstractmethod
    def __len__(self) -> int: ...

    @property
    def num_named(self) -> int | None:
        """Number of videos that ``annotation_names`` counts. None if it counts others too."""
        return len(self)

    @property
    @abstractmethod
    def stereo(self) -> str:
        """Eye of stereo pictures that the videos show, as ``frames.stereo`` of a config."""

    @abstractmethod
    def annotation_names(self) -> AnnotationNames:
        """Return the names in the annotations of all videos."""

    def feature_states(self, feature: str) -> np.ndarray:
        """Return the ``FeatureState`` of a feature in every video [shape=(len(self),), dtype=uint8].

        A video that is read from its source counts as CACHED.
        """
        return np.full(len(self), FeatureState.CACHED, np.uint8)

    @abstractmethod
    def keep(self, mask: np.ndarray) -> None:
        """Leave out the videos where the mask [shape=(len(self),), dtype=bool] is False."""

    @abstractmethod
    def numbered_labels(self) -> tuple[list[str], np.ndarray]:
        """Return all labels, and the position there of every video's [shape=(len(self),), dtype=int], -1 for none."""

    @abstractmethod
    def read(self, position: int, sample: Callable[[RowReader, Video], Sample]) -> Sample:
        """Return the result of ``sample`` for a video and a reader of its features."""

    def identity(self) -> Mapping[str, str]:
        """Return digests of the keys, the contents and the labels of all videos, by name, or nothing if unknown."""
        return {}

    def measured(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the number of frames of every video [shape=(len(self),), dtype=int64], and ``Catalog.pictures`` of it.

        None if a video has to be opened for it. Raises as ``read``.
        """
        return None

    @property
    def fetches(self) -> bool:
        """True if the files of videos come from an object store."""
        return False

    def fetch(self, position: int, features: Sequence[str]) -> None:  # noqa: B027 # only in an object store
        """Fetch the files of some features of a video from an object store. Raises as ``read``."""

    def close(self) -> None:  # noqa: B027 # files are only open while a sample is read
        """Close what is open in this process. It is opened again when a video is read."""


class CachedVideos(VideoSet):
    """All videos of a cache in the order of their keys, or some of them. Each process opens the cache itself.

    ``cache`` belongs to this object. ``videos``, ``on_miss`` and ``where`` are those of ``select_keys``, by default for
    all videos. ``features`` are those that will be read. A video in quarantine that was not built with one of them is
    left out, with a warning. Raises as ``select_keys`` does.
    """

    def __init__(
        self,
        cache: Cache,
        videos: Videos | None = None,
        on_miss: str = "error",
        features: Sequence[str] = (),
        where: Mapping[str, str] | None = None,
    ) -> None:
        self._cache = cache
        # Bytes in one array: they pickle small, and reference counts in forked workers do not copy their pages
        is_all = videos is None and not where
        self._keys = None if is_all else np.array(select_keys(cache, videos, on_miss, where), np.bytes_)
        self._positions: np.ndarray | None = None
        """Positions of the keys in the catalog, while the dataset is made"""
        self._num_videos = len(cache if self._keys is None else self._keys)
        cache.num_pinned = self._num_videos if is_all else None
        self._leave_out_failed(features)
        self.labels = cache.labels()
        self.columns = dict(read_header(cache.path).columns)

    def _leave_out_failed(self, features: Sequence[str]) -> None:
        lacks = [self.feature_states(name) == FeatureState.NOT_BUILT for name in features]
        others = OtherSettings(self._cache, features)
        if others.keys or np.any(lacks):
            keys = self._keys_at(slice(None))
            left = others.left(keys, lacking=[*compress(keys, np.any(lacks, axis=0) if lacks else ())])
            if len(left) < len(keys):
                self.keep(np.isin(keys, left))

    def __len__(self) -> int:
        return self._num_videos

    def __repr__(self) -> str:
        return repr(self._cache)

    def annotation_names(self) -> AnnotationNames:
        """Return the names in the annotations of all videos of the cache. See ``VideoSet``."""
        return self._cache.catalog.annotation_names()

    def feature_states(self, feature: str) -> np.ndarray:
        """Return the state of a feature in every video. See ``VideoSet``."""
        states = self._cache.catalog.feature_states(feature)
        if self._keys is None:
            return states
        if self._positions is None:
            self._positions = positions_of(self._cache, self._keys)
        chosen: np.ndarray = states[self._positions]
        return chosen

    def _keys_at(self, places: np.ndarray | slice) -> list[str]:
        keys = np.array(self._cache.keys(), np.bytes_) if self._keys is None else self._keys
        return [key.decode() for key in keys[places]]

    def keep(self, mask: np.ndarray) -> None:
        """Leave out the videos where the mask is False. See ``VideoSet``."""
        self._keys = np.array(self._keys_at(mask), np.bytes_)
        self._num_videos, self._cache.num_pinned = len(self._keys), None
        self._positions = None

    @property
    def num_named(self) -> int | None:
        """Number of videos that ``annotation_names`` counts. See ``VideoSet``."""
        return len(self) if self._keys is None else None

    @property
    def stereo(self) -> str:
        """Eye of stereo pictures that the cache has. See ``VideoSet``."""
        from chordcache.config.config import config_from_json  # not before: only boxes need it

        return config_from_json(read_header(self._cache.path).config, trusted=()).picture.stereo

    def close(self) -> None:
        """Close the cache in this process. See ``VideoSet``."""
        self._positions = None
        self._cache.close()

    def numbered_labels(self) -> tuple[list[str], np.ndarray]:
        """Return the labels that the cache has now, and the position there of every video's [shape=(n,), dtype=int].

        Raises ``UsageError`` if the cache has gained or lost videos.
        """
        with copy(self._cache) as cache:  # not the dataset's own, which other threads may be reading
            return cache.labels(), cache.label_ids[self._rows_in(cache)]

    def identity(self) -> Mapping[str, str]:
        """Return digests of the videos. See ``VideoSet``. Raises as ``numbered_labels``."""
        with copy(self._cache) as cache:
            names, ids = cache.labels(), cache.label_ids[self._rows_in(cache)]
            keys = np.array(cache.keys(), np.bytes_) if self._keys is None else self._keys
            contents = cache.catalog.contents[self._rows_in(cache)]
        labels = "\0".join(names).encode() + ids.tobytes()
        parts = {"videos": keys.tobytes(), "contents": contents.tobytes(), "labels": labels}
        return {name: hex64(content) for name, content in parts.items()}

    def measured(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the number of frames and the picture of every video. See ``VideoSet``."""
        catalog, rows = self._cache.catalog, self._rows_in(self._cache)
        return catalog.num_frames[rows].astype(np.int64), catalog.pictures[rows]

    def _rows_in(self, cache: Cache) -> np.ndarray | slice:
        """Return the places of the videos in the arrays of a cache, which may have been built since."""
        return slice(None) if self._keys is None else positions_of(cache, self._keys)

    def read(self, position: int, sample: Callable[[RowReader, Video], Sample]) -> Sample:
        """Return the result of ``sample`` for the cache and a video."""
        return sample_of(self._cache, partial(self._video, position), sample)

    @property
    def fetches(self) -> bool:
        """True if the files of videos come from an object store. See ``VideoSet``."""
        return local_folder(self._cache.path) is not None

    def fetch(self, position: int, features: Sequence[str]) -> None:
        """Fetch the files of some features of a video. See ``VideoSet``."""
        folder = local_folder(self._cache.path)
        if folder is not None:
            video = self._video(position)
            for info in filter(None, map(video.sidecar.feature, features)):
                if info.file is not None:
                    folder.ensure(info.file)

    def __iter__(self) -> Iterator[Video]:
        return map(self._video, range(self._num_videos))

    def _video(self, position: int) -> Video:
        return self._cache[position if self._keys is None else self._keys[position].decode()]


def sample_of(cache: Cache, find: Callable[[], Video], sample: Callable[[RowReader, Video], Sample]) -> Sample:
    """Return the result of ``sample`` for a cache and the video that ``find`` returns.

    A build and ``gc`` may have replaced the video's files since the catalog was opened. It is opened once more then.
    """
    video = find()
    try:
        return sample(cache, video)
    except DamageError:
        cache.close()
        before, video = video, find()
        if video.sidecar == before.sidecar:
            raise
    return sample(cache, video)


def settle_absences(videos: VideoSet, clips: ClipReader) -> None:
    """Raise now what a video without a feature would raise in the middle of an epoch, or leave such videos out.

    No sidecar is read for it, since the catalog knows the features that videos lack. Raises ``NotFoundError`` if a
    video was not built with a feature, unless it is skipped, if a feature is absent from one with ``missing="error"``,
    or with "zeros" if the shape of the zeros is unknown, and if no video is left.
    """
    states = np.stack([videos.feature_states(name) for name in clips.features])
    not_built = states == FeatureState.NOT_BUILT
    if clips.missing == "skip":
        has_all = np.all(states == FeatureState.CACHED, axis=0)
        if not has_all.any():
            lacks = _lacking(videos, states != FeatureState.CACHED, clips.features)
            raise AbsentFeatureError(f"{lacks}. No video has all of them. {HOW_TO_ADD}")
        if not has_all.all():
            videos.keep(has_all)
    elif np.any(not_built):
        skip = "" if np.any(not_built, axis=0).all() else " Or take missing='skip'."
        raise AbsentFeatureError(f"{_lacking(videos, not_built, clips.features)}. {HOW_TO_ADD}{skip}")
    elif clips.missing == "error" and np.any(states == FeatureState.ABSENT):
        lacks = _lacking(videos, states == FeatureState.ABSENT, clips.features)
        raise AbsentFeatureError(f"{lacks}. Take missing='zeros', missing='skip', or a selection by videos=.")
    else:
        _check_zeros(videos, states == FeatureState.ABSENT, clips)


def _lacking(videos: VideoSet, lacks: np.ndarray, features: tuple[str, ...]) -> str:
    """Return the number of videos that lack each feature, with an example, in words."""
    counts = []
    for name, row in zip(features, lacks, strict=True):
        if row.any():
            sidecar = videos.read(int(np.argmax(row)), lambda _, video: video.sidecar)
            info = sidecar.feature(name)
            have = ", ".join(dict.fromkeys(other.feature for other in sidecar.features))
            reason = f"it has {have}" if info is None else info.absent
            count = f"{np.count_nonzero(row)} of {counted(len(row), 'video')}"
            counts.append(f"{count} without {name}, such as '{sidecar.key}' ({reason})")
    return f"features: {'; '.join(counts)}"


def _check_zeros(videos: VideoSet, is_absent: np.ndarray, clips: ClipReader) -> None:
    """Raise ``NotFoundError`` for the first video whose absent features cannot be replaced."""
    has_none = np.all(is_absent, axis=0)
    for name in read_sides() if has_none.any() else ():  # any other feature has the frame times too
        has_none = has_none & (videos.feature_states(name) != FeatureState.CACHED)
    unknown = np.flatnonzero(has_none)
    if len(unknown) and not videos.read(int(unknown[0]), lambda _, video: video.sidecar.files):
        raise AbsentFeatureError(
            f"{_lacking(videos, is_absent, clips.features)}. {len(unknown)} have none of the features, so their frame "
            "times are unknown. Take missing='skip', or build the feature frames."
        )
    for name, row in zip(clips.features, is_absent, strict=True):
        if row.any():
            videos.read(int(np.argmax(row)), partial(clips.check_zeros, name))
