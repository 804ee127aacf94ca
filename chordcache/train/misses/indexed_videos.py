"""The videos of an index, read from their sources, or from a cache that may not have all of them."""

from __future__ import annotations

import copy
import os
import warnings
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from chordcache.amounts import counted
from chordcache.building.build import build
from chordcache.building.build_options import BuildOptions
from chordcache.building.build_task import is_of_source
from chordcache.config.config import Config, config_from_json, trusted_names
from chordcache.config.yaml_files import load_config
from chordcache.errors import (
    AbsentFeatureError,
    DamageError,
    LockedError,
    MediaError,
    NotFoundError,
    UsageError,
    printable,
)
from chordcache.features.read_side import RowReader
from chordcache.index.index_files import Index, temporary_index
from chordcache.index.lists.tables import open_for_reading
from chordcache.media.source_file import look, look_or_none, real_folder
from chordcache.read.cache import Cache
from chordcache.read.cached_videos import VideoSet, sample_of
from chordcache.read.clips import HOW_TO_ADD
from chordcache.read.segment_of import SegmentOfFile
from chordcache.read.selection import OtherSettings, warn_of_left_out
from chordcache.read.video import Video
from chordcache.records import VideoRecord
from chordcache.sources.media_file import naming
from chordcache.sources.uncached_video import StoredSource, UncachedVideo, features_of_sound
from chordcache.sources.video_source import VideoSource
from chordcache.storage.annotation_names import AnnotationCounter, AnnotationNames
from chordcache.storage.artefacts.tiers import TIERS
from chordcache.storage.cache_header import read_header
from chordcache.storage.catalog_columns import FeatureState
from chordcache.storage.feature_info import FeatureInfo
from chordcache.storage.find_sidecars import read_packed
from chordcache.storage.layout import key_hash, key_of, video_key
from chordcache.storage.lock import locked_key
from chordcache.storage.opener import check_still_there
from chordcache.storage.quarantine import Failure, read_quarantined
from chordcache.storage.sidecar import read_sidecar
from chordcache.train.misses.builds import Miss, builds

Sample = TypeVar("Sample")

_UNREADABLE, _NOT_CACHED = "that the scan could not read", "not cached"
"""Reasons for which a record is left out"""


class SourceVideos(VideoSet):
    """The videos of an index, in its order, whose features a source gives. They have the keys of a cache.

    Only the offset of each record in the file of the index is kept. Each sample opens its file with a copy of the
    source. ``config`` has the settings of the features of sound. ``why_left_out`` returns the failure of a record that
    is in the quarantine of ``cache``, or another reason to leave the record out, or None to keep it.

    Raises ``UsageError`` if the source cannot give one of the features, or if no video is left. A source of None is
    never read.
    """

    def __init__(
        self,
        source: VideoSource | None,
        index: Index,
        features: Sequence[str],
        config: Config,
        why_left_out: Callable[[VideoRecord], Failure | str | None] | None = None,
        cache: Path | None = None,
    ) -> None:
        self._source, self._index, self.columns = source, index, index.columns
        self._follow_symlinks, self._stereo = index.follow_symlinks, source.stereo if source else config.picture.stereo
        self._of_sound = features_of_sound(source, features, config) if source else []
        why_left_out = why_left_out or (lambda record: None if record.error is None else _UNREADABLE)
        offsets, label_ids, ids = array("q"), array("i"), dict[str, int]()
        causes, others, examples = Counter[str](), Counter[str](), dict[str, str]()
        annotations = AnnotationCounter()
        with open_for_reading(index.path) as file:
            self._state = _state(file.fileno())
            for offset, record in index.located(file):
                reason = why_left_out(record)
                if reason is None:
                    offsets.append(offset)
                    label_ids.append(-1 if record.label is None else ids.setdefault(record.label, len(ids)))
                    annotations.add(record)
                elif isinstance(reason, Failure):
                    causes[reason.cause] += 1
                else:
                    others[reason] += 1
                    examples.setdefault(reason, f"{reason}, such as '{printable(record.path)}'")
        self._offsets, self._names, self._num_named = np.asarray(offsets), annotations.names(), len(offsets)
        self.labels = sorted(ids)
        places = {label: place for place, label in enumerate(self.labels)}
        self._label_ids = np.array([*(places[label] for label in ids), -1], np.int32)[np.asarray(label_ids)]
        num_all = len(offsets) + causes.total() + others.total()
        counts = {example: others[reason] for reason, example in examples.items()}
        warn_of_left_out(f"index '{printable(index.path)}'", num_all, causes, counts, cache)
        if not offsets:
            what = f"'{printable(index.path)}' without a video that can be read"
            raise UsageError(f"index: got {what}, expected at least one. Scan again, or build them.")

    def __repr__(self) -> str:
        return f"<{counted(len(self), 'video')} of {', '.join(map(printable, self._index.roots.values()))}>"

    def __len__(self) -> int:
        return len(self._offsets)

    def numbered_labels(self) -> tuple[list[str], np.ndarray]:
        """Return the labels of the index, and the position there of every video's. See ``VideoSet``."""
        return self.labels, self._label_ids

    def annotation_names(self) -> AnnotationNames:
        """Return the names in the annotations of all videos. See ``VideoSet``."""
        return self._names

    @property
    def num_named(self) -> int | None:
        """Number of videos that ``annotation_names`` counts. See ``VideoSet``."""
        return self._num_named if self._num_named == len(self) else None

    @property
    def stereo(self) -> str:
        """Eye of stereo pictures that the source shows, or that the cache has. See ``VideoSet``."""
        return self._stereo

    def keep(self, mask: np.ndarray) -> None:
        """Leave out the videos where the mask is False. See ``VideoSet``."""
        self._offsets, self._label_ids = self._offsets[mask], self._label_ids[mask]

    def record(self, position: int) -> VideoRecord:
        """Return the record of a video. Raise ``UsageError`` if the index has changed."""
        with open_for_reading(self._index.path) as file:
            if _state(file.fileno()) == self._state:
                return self._index.at(file, int(self._offsets[position]))
        path = printable(self._index.path)
        raise UsageError(f"index: '{path}' changed since the dataset was made. Recreate the dataset.")

    def read(self, position: int, sample: Callable[[RowReader, Video], Sample]) -> Sample:
        """Return the result of ``sample`` for a file, and its video. See ``VideoSet``."""
        assert self._source is not None
        record = self.record(position)
        folder = self._index.roots[record.root]
        path = os.path.join(folder, record.path)
        source = copy.deepcopy(self._source)  # an open source belongs to one thread
        source.inside = None if self._follow_symlinks else real_folder(folder)
        with naming(path):
            identity = look(path, source.inside).identity
        with source.open(path):
            with naming(path):
                video = UncachedVideo(source, path, record, identity, self._of_sound, self)
            return sample(video, video)


def _state(fd: int) -> tuple[int, int, int]:
    status = os.fstat(fd)
    return status.st_ino, status.st_size, status.st_mtime_ns


class IndexedVideos(SourceVideos):
    """The videos of an index, cached or not. No video is opened before it is read. See ``chordcache.videos.indexed``.

    Raises ``NotFoundError`` if the cache does not exist, if it is not built for one of the features, or if ``on_miss``
    is "error" and a video is neither cached nor in quarantine. Raises ``UsageError`` if another argument is wrong.
    """

    def __init__(
        self,
        index: Index,
        cache: Cache | str | Path,
        features: Sequence[str],
        on_miss: str,
        config: Config | str | Path | None = None,
    ) -> None:
        self._features, self._on_miss, given = tuple(features), on_miss, load_config(config)
        self._is_from_cache = on_miss in ("error", "skip")
        self._trusted = trusted_names(given)
        """Classes of plug-ins and models that the user has named, see ``config_from_json``"""
        try:
            self.cache = Cache(cache.path if isinstance(cache, Cache) else cache)
        except NotFoundError:
            if on_miss != "build" or isinstance(cache, Cache):
                raise
            self.cache = _new_cache(index, cache, self._features, given)
        self._header = read_header(self.cache.path)
        settings = config_from_json(self._header.config, trusted=self._trusted)
        if config is not None and settings != load_config(config, settings):
            raise UsageError(
                f"config: got one that is not that of cache '{printable(self.cache.path)}', expected None for a cache "
                "that exists. Leave config out, or build the cache with it."
            )
        self._check_cache(index)
        source, self._why_not = None, ""
        if not self._is_from_cache:
            try:
                source = StoredSource(settings, self._features)
            except UsageError as error:
                self._why_not = str(error)
        others = OtherSettings(self.cache, self._features)
        places = _Places(self.cache, self._features, on_miss, others.keys, settings.picture.buckets is None)
        super().__init__(source, index, self._features, settings, places.why_left_out, self.cache.path)
        self._follow_symlinks = self._follow_symlinks or self._header.follow_symlinks
        self._positions = np.asarray(places.positions)
        """Position of each video in the catalog when the dataset was made, -1 if it was not cached"""
        if others.keys:
            keys = self.cache.keys()
            others.left([keys[position] for position in self._positions if position >= 0])
        self._check_uncached(np.flatnonzero(self._positions < 0))

    def _check_cache(self, index: Index) -> None:
        path = printable(self.cache.path)
        have = dict.fromkeys(name for names in self._header.features.values() for name in names)
        for name in self._features:
            if name not in have:
                raise AbsentFeatureError(
                    f"features: got '{name}', expected one of {', '.join(have) or 'none'}, which cache '{path}' is "
                    f"built for. {HOW_TO_ADD}"
                )
        for label, folder in index.roots.items() if not self._is_from_cache else ():
            there = self._header.roots.get(label, folder)
            if there != folder:
                raise UsageError(
                    f"index: got root '{printable(label)}' in '{printable(folder)}', expected '{printable(there)}' as "
                    f"in cache '{path}'. Scan with another NAME=PATH."
                )
        if self._on_miss == "build":
            self._header.writable(self.cache.path)
            with suppress(LockedError), locked_key(self.cache.path, "check"):  # raises if no build can write
                pass

    def _check_uncached(self, positions: np.ndarray) -> None:
        """Raise ``NotFoundError`` if a video must be cached and is not, ``UsageError`` if no source gives it."""
        if not len(positions):
            return
        counts = f"{len(positions)} of {counted(len(self), 'video')} not in {self.cache!r}"
        if self._on_miss == "source" and self._why_not:
            raise UsageError(f"on_miss: got 'source' for {counts}, expected 'build'. {self._why_not}")
        if self._on_miss == "error":
            first = self.record(int(positions[0]))
            raise NotFoundError(
                f"index '{printable(self._index.path)}': got {counts}, such as '{printable(first.path)}' of root "
                f"'{printable(first.root)}', expected all of them. Build them, or leave them out with on_miss='skip', "
                "or read their files with on_miss='source'."
            )

    def feature_states(self, feature: str) -> np.ndarray:
        """Return the state of a feature in every video. See ``VideoSet``."""
        states = self.cache.catalog.feature_states(feature)
        chosen: np.ndarray = np.append(states, np.uint8(FeatureState.CACHED))[self._positions]  # the last is for -1
        return chosen

    def keep(self, mask: np.ndarray) -> None:
        """Leave out the videos where the mask is False. See ``VideoSet``."""
        super().keep(mask)
        self._positions = self._positions[mask]

    def close(self) -> None:
        """Close the cache in this process. See ``VideoSet``."""
        self.cache.close()

    def read(self, position: int, sample: Callable[[RowReader, Video], Sample]) -> Sample:
        """Return the result of ``sample`` for a reader and a video, or again for its source if the video is damaged.

        Raises ``NotFoundError`` if the video is neither cached nor at its source, ``MediaError`` if the source cannot
        be read, and if the build is waited for, ``LockedError`` while another process writes to the cache.
        """
        record = self.record(position)
        if self._is_from_cache:
            return sample_of(self.cache, partial(self._named, record), sample)
        try:
            if (video := self._cached(record)) is not None:
                return sample(self.cache, video)
        except DamageError as error:
            warnings.warn(f"{error}; its source is read instead", stacklevel=2)
        check_still_there(self.cache.path)
        try:
            if self._on_miss == "build":
                self._build(record)
            if not self._why_not:
                return super().read(position, sample)
        except MediaError as error:
            what = f"{error.message}; video '{key_of(record)}' is not cached either. Restore or repair the file, or "
            what += "scan again."
            if (error.stage, error.cause) == ("open", "io"):
                raise NotFoundError(what) from None
            raise MediaError(error.stage, error.cause, what, error.num_frames_ok) from error
        if self._on_miss != "build" or (video := self._cached(record)) is None:
            what = f"on_miss: got {self._on_miss!r} for video '{key_of(record)}', which is not cached now"
            raise UsageError(f"{what}, expected a cached video. {self._why_not}")
        return sample(self.cache, video)

    def _build(self, record: VideoRecord) -> None:
        """Let the child build a video, and wait for it if the source does not give all features."""
        small, header = record.replace(packets=None), self._index.source.header
        miss = Miss(self.cache.path, small, header, self._trusted, waits=bool(self._why_not))
        builds().build(miss) if miss.waits else builds().begin(miss)

    def _named(self, record: VideoRecord) -> Video:
        """Return the cached video of an item, or the segment of the file that is cached whole."""
        key = key_of(record)
        return self._described(self.cache[key if key in self.cache else video_key(record.root, record.path)], record)

    def _cached(self, record: VideoRecord) -> Video | None:
        """Return the video if it is cached with all features, and from the file that is at its path now. Else None.

        The sidecar is read instead of the catalog, which does not have videos published after it was opened.
        """
        read = read_packed if self._header.is_packed else read_sidecar
        path = os.path.join(self._index.roots[record.root], record.path)
        for key in dict.fromkeys((key_of(record), video_key(record.root, record.path))):
            try:
                sidecar = read(self.cache.path, key)
            except NotFoundError:
                continue
            is_whole = sidecar.about.segment == record.segment or sidecar.display_crop is None  # else in a bucket
            state = None if sidecar.source == record.identity else look_or_none(path)
            identity = state.identity if state else None
            is_of_file = sidecar.source == record.identity or is_of_source(sidecar, identity, path, None)
            if is_whole and is_of_file and all(map(self._is_current, map(sidecar.feature, self._features))):
                return self._described(Video(self.cache.path, sidecar), record)
        return None

    def _is_current(self, info: FeatureInfo | None) -> bool:
        """Return whether a build of the cache would keep a feature."""
        return info is not None and info.fingerprint == self._header.fingerprints.get(info.feature, info.fingerprint)

    def _described(self, video: Video, record: VideoRecord) -> Video:
        """Return the item with the label, the caption and the extra columns of the index."""
        if video.segment == record.segment:
            return Video(self.cache.path, video.sidecar.described(record))
        video.read_features = self._features
        return SegmentOfFile(video, record)


def _new_cache(index: Index, cache: str | Path, features: Sequence[str], config: Config) -> Cache:
    """Make a cache without a video, in the first tiers that take each file of a feature alone."""
    flat = [tier for tier in TIERS if not TIERS[tier].one_file and set(config.in_tier(tier)) & set(features)]
    header = {"roots": index.roots, "level": index.level, "follow_symlinks": index.follow_symlinks}
    with temporary_index((), **header) as nothing:
        build(nothing, cache, tiers=flat, features=features, config=config, options=BuildOptions(wait=True))
    return Cache(cache)


class _Places:
    """The place of each record of an index in a cache. ``others`` are the keys of videos with other settings."""

    def __init__(
        self, cache: Cache, features: tuple[str, ...], on_miss: str, others: frozenset[str], has_whole_files: bool
    ) -> None:
        self._cache, self._on_miss, self._has_whole_files = cache, on_miss, has_whole_files
        self._has_frames_only = features == ("frames",)
        self._cached = {key[-16:]: position for position, key in enumerate(cache.keys())}
        """Hash at the end of each key to its position in the catalog"""
        self._failures = {key[-16:]: failure for key, failure in read_quarantined(cache.path).items()}
        self._lacks = np.zeros(len(cache), bool)
        for name in features:
            self._lacks |= np.equal(cache.catalog.feature_states(name), FeatureState.NOT_BUILT)
        if others:
            self._lacks |= np.isin(cache.keys(), list(others))
        self.positions = array("q")
        """Position in the catalog of each record that is kept, -1 if its source is read"""

    def why_left_out(self, record: VideoRecord) -> Failure | str | None:
        """Return why a record is left out, or None if it is kept. See ``SourceVideos``."""
        key = key_hash(record.root, record.path, record.segment)
        position, failure = self._cached.get(key, -1), self._failures.get(key)
        if record.error is not None and (position < 0 or self._cache[position].sidecar.source != record.identity):
            return _UNREADABLE
        if position < 0 and failure is None and self._has_whole_files and record.segment is not None:
            position = self._cached.get(key_hash(record.root, record.path), -1)
        if position < 0 or self._lacks[position]:
            reads_source = self._on_miss in ("source", "build")
            if failure is not None:
                is_another_file = record.identity is not None and failure.source != record.identity
                if not reads_source or not (is_another_file or (failure.fingerprints and self._has_frames_only)):
                    return failure  # the source would fail too, if it is read at all
            if position < 0 and self._on_miss == "skip":
                return _NOT_CACHED
            if reads_source:  # else ``settle_absences`` decides about what it lacks
                position = -1
        self.positions.append(position)
        return None
