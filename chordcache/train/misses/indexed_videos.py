"""The videos of an index, read from a cache, and the handling of videos that the cache does not have."""

from __future__ import annotations

import os
import warnings
from array import array
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from chordcache.amounts import counted
from chordcache.building.build import build
from chordcache.building.build_options import BuildOptions
from chordcache.config.config import Config, config_from_json, trusted_names
from chordcache.config.yaml_files import load_config
from chordcache.errors import (
    DamageError,
    FeatureAbsentError,
    FormatVersionError,
    MediaError,
    NotFoundError,
    UsageError,
    printable,
)
from chordcache.index.index_files import Index, read_index, temporary_index
from chordcache.media.source_file import identity_or_none, real_folder
from chordcache.read.cache import Cache
from chordcache.read.cached_videos import VideoSet, sample_of, stereo_of
from chordcache.read.clips import HOW_TO_ADD, FeatureReader
from chordcache.read.segment_of import SegmentOfFile
from chordcache.read.selection import OtherSettings
from chordcache.read.video import Video
from chordcache.records import VideoRecord
from chordcache.storage.annotation_names import AnnotationNames
from chordcache.storage.artefacts.tiers import TIERS
from chordcache.storage.cache_header import Header, read_header
from chordcache.storage.catalog_columns import FeatureState
from chordcache.storage.feature_info import FeatureInfo
from chordcache.storage.layout import key_hash, video_key
from chordcache.storage.opener import check_still_there
from chordcache.storage.quarantine import Failure, read_quarantined
from chordcache.storage.sidecar import Sidecar, read_sidecar
from chordcache.temporary import keep_with, temporary_folder
from chordcache.train.misses.background import background_of, prepare
from chordcache.train.misses.from_source import SourceVideo, first_tiers, read_source
from chordcache.train.misses.index_records import IndexRecords
from chordcache.train.misses.source_videos import check_on_disk

_FROM_CACHE = ("error", "skip")
"""Values of ``on_miss`` with which no source is read"""

Sample = TypeVar("Sample")


class IndexedVideos(VideoSet):
    """The videos of an index, cached or not. No video is opened before it is read. See ``chordcache.videos.indexed``.

    Raises
    ------
    NotFoundError
        If the index or the cache does not exist, or ``on_miss`` is "error" and a video is neither cached nor in
        quarantine.
    FeatureAbsentError
        If the cache is not built for one of the features.
    UsageError
        If another argument is wrong, or index and cache have different folders for one root name.
    """

    def __init__(
        self,
        index: Index | str | Path,
        cache: Cache | str | Path | None,
        features: Sequence[str],
        on_miss: str,
        config: Config | str | Path | None = None,
    ) -> None:
        self._index = index if isinstance(index, Index) else read_index(index)
        if on_miss not in _FROM_CACHE:
            check_on_disk(self._index.roots)
        self._features = tuple(features)
        self._on_miss = on_miss
        given = load_config(config)
        self._trusted = trusted_names(given)
        """Classes of plug-ins and models that the user has named, see ``config_from_json``"""
        self.cache = self._cache_for(cache, config, given)
        header = read_header(self.cache.path)
        self._check(header)
        self._fingerprints = header.fingerprints
        others = OtherSettings(self.cache, self._features)
        misses = _Misses(self.cache, self._features, on_miss, others)
        self._records = IndexRecords(self._index, misses.cause_of, self.cache.path)
        misses.check(self._index)
        self._positions = np.asarray(misses.positions)
        """Position of each video in the catalog when the dataset was made, -1 if its source is read"""
        if others.keys:
            keys = self.cache.keys()
            others.left([keys[position] for position in self._positions if position >= 0])
        self.labels, self.columns = self._records.labels, self._index.columns
        if on_miss == "build":
            prepare(self.cache.path, self._index, self._trusted)

    def __len__(self) -> int:
        return len(self._records)

    def __repr__(self) -> str:
        return repr(self.cache)

    def numbered_labels(self) -> tuple[list[str], np.ndarray]:
        """Return the labels of the index, and the position there of every video's. See ``VideoSet``."""
        return self.labels, self._records.label_ids

    def annotation_names(self) -> AnnotationNames:
        """Return the names in the annotations of all videos. See ``VideoSet``."""
        return self._records.annotation_names

    @property
    def num_named(self) -> int | None:
        """Number of videos that ``annotation_names`` counts. See ``VideoSet``."""
        return self._records.num_named

    def feature_states(self, feature: str) -> np.ndarray:
        """Return the state of a feature in every video. See ``VideoSet``."""
        states = self.cache.catalog.feature_states(feature)
        chosen: np.ndarray = np.append(states, np.uint8(FeatureState.CACHED))[self._positions]  # the last is for -1
        return chosen

    def keep(self, mask: np.ndarray) -> None:
        """Leave out the videos where the mask is False. See ``VideoSet``."""
        self._records.keep(mask)
        self._positions = self._positions[mask]

    @property
    def stereo(self) -> str:
        """Eye of stereo pictures that the cache has. See ``VideoSet``."""
        return stereo_of(self.cache)

    def close(self) -> None:
        """Close the cache in this process. See ``VideoSet``."""
        self.cache.close()

    def _cache_for(self, cache: Cache | str | Path | None, config: Config | str | Path | None, given: Config) -> Cache:
        """Open the cache. If it need not exist and does not, make it without a video."""
        if cache is None:
            with ExitStack() as stack:
                opened = self._new_cache(stack.enter_context(temporary_folder()) / "cache", given)
                keep_with(self, stack)
            return opened
        try:
            opened = Cache(cache.path if isinstance(cache, Cache) else cache)
        except NotFoundError:
            if self._on_miss != "build" or isinstance(cache, Cache):
                raise
            return self._new_cache(cache, given)
        own = config_from_json(read_header(opened.path).config, trusted=())
        if own != load_config(config, own):
            raise UsageError(
                f"config: got one that is not that of cache '{printable(opened.path)}', expected None for a cache that "
                "exists. Leave config out, or build the cache with it."
            )
        return opened

    def _new_cache(self, cache: str | Path, config: Config) -> Cache:
        index = self._index
        flat = [tier for tier in TIERS if not TIERS[tier].one_file]  # these take any feature
        tiers = first_tiers({tier: config.in_tier(tier) for tier in flat}, self._features)
        with temporary_index(
            (), roots=index.roots, level=index.level, follow_symlinks=index.follow_symlinks
        ) as nothing:
            options = BuildOptions(wait=True)
            build(nothing, cache, tiers=list(tiers), features=self._features, config=config, options=options)
        return Cache(cache)

    def _check(self, header: Header) -> None:
        path = printable(self.cache.path)
        for name in self._features:
            if not any(name in names for names in header.features.values()):
                have = ", ".join(dict.fromkeys(name for names in header.features.values() for name in names))
                raise FeatureAbsentError(
                    f"features: got '{name}', expected one of {have or 'none'}, which cache '{path}' is built for. "
                    f"{HOW_TO_ADD}"
                )
        if self._on_miss in _FROM_CACHE:
            return
        for label, folder in self._index.roots.items():
            there = header.roots.get(label, folder)
            if there != folder:
                raise UsageError(
                    f"index: got root '{printable(label)}' in '{printable(folder)}', expected '{printable(there)}' as "
                    f"in cache '{path}'. Scan with another NAME=PATH."
                )
        if self._index.path.resolve() == (self.cache.path / "index.jsonl").resolve():
            raise UsageError(
                f"index: got '{path}/index.jsonl', expected the index that 'chordcache scan' wrote. Builds rewrite the "
                "index inside a cache."
            )

    def read(self, position: int, sample: Callable[[FeatureReader, Video], Sample]) -> Sample:
        """Return the result of ``sample`` for a reader and a video.

        If the cached video turns out to be damaged, ``sample`` is called a second time, for the source.

        Raises
        ------
        NotFoundError
            If the video is not cached any more, or its source does not exist.
        MediaError
            If the source cannot be read.
        DamageError
            If the cached video is damaged, with ``on_miss`` "error" or "skip".
        """
        record = self._records[position]
        origin = SourceVideo(record, os.path.join(self._index.roots[record.root], record.path), None)
        if self._on_miss in _FROM_CACHE:
            return sample_of(self.cache, partial(self._named, origin.key, record), sample)
        try:
            video = self._cached(origin)
            if video is not None:
                return sample(self.cache, video)
        except DamageError as error:
            warnings.warn(f"{error}; its source is read instead", stacklevel=2)
        if self._on_miss == "build" and (video := self._built(origin)) is not None:
            return sample(self.cache, video)
        check_still_there(self.cache.path)
        header = read_header(self.cache.path)
        if not (self._index.follow_symlinks or header.follow_symlinks):
            origin = replace(origin, inside=real_folder(self._index.roots[record.root]))
        with read_source(origin, header, self._features, trusted=self._trusted) as (reader, source):
            return sample(reader, source)

    def _named(self, key: str, record: VideoRecord) -> Video:
        """Return the cached video of an item, or the segment of the file that is cached whole."""
        video = self.cache[key if key in self.cache else video_key(record.root, record.path)]
        return self._described(video, record)

    def _cached(self, origin: SourceVideo) -> Video | None:
        """Return the video if it is cached with all features, and from the file that is at its path now. Else None.

        The sidecar is read instead of the catalog. The catalog does not have videos published after it was opened, but
        it has those in packs.
        """
        record = origin.record
        for key in dict.fromkeys((origin.key, video_key(record.root, record.path))):
            sidecar = self._sidecar_or_none(key)
            if sidecar is None or not all(self._is_current(sidecar.feature(name)) for name in self._features):
                continue
            if key != origin.key and sidecar.display_crop is not None:  # its bucket does not have all frames
                continue
            if sidecar.source != record.identity:  # another file may now be at the path
                identity = identity_or_none(origin.path)
                if identity not in (None, sidecar.source):
                    continue
            return self._described(Video(self.cache.path, sidecar), record)
        return None

    def _is_current(self, info: FeatureInfo | None) -> bool:
        """Return whether a build of the cache would keep a feature."""
        return info is not None and info.fingerprint == self._fingerprints.get(info.feature, info.fingerprint)

    def _sidecar_or_none(self, key: str) -> Sidecar | None:
        try:
            return read_sidecar(self.cache.path, key)
        except NotFoundError:
            with suppress(NotFoundError, FormatVersionError):  # a cache without a catalog has no packs
                sidecar = self.cache.catalog.find(key)
                return sidecar if sidecar is not None and sidecar.packs else None
            return None

    def _described(self, video: Video, record: VideoRecord) -> Video:
        """Return the item with the label, the caption and the extra columns of the index."""
        if video.segment == record.segment:
            return Video(self.cache.path, video.sidecar.described(record))
        video.read_features = self._features
        return SegmentOfFile(video, record)

    def _built(self, origin: SourceVideo) -> Video | None:
        """Let the video be built in the background. Wait for it, and return it, if its source takes a whole decode."""
        is_decoded_once = set(self._features) != {"frames"}
        background = background_of(self.cache.path, self._index, self._trusted)
        problem = background.ask(origin.record, waits=is_decoded_once)
        if problem:
            cache = printable(self.cache.path)
            warnings.warn(f"background builds of cache '{cache}' have stopped for now: {problem}", stacklevel=3)
        return self._cached(origin) if is_decoded_once else None


class _Misses:
    """The records of an index that are not cached, in the order of the index."""

    def __init__(self, cache: Cache, features: tuple[str, ...], on_miss: str, others: OtherSettings) -> None:
        self._cache = cache
        self._on_miss = on_miss
        self._has_frames_only = features == ("frames",)
        self._cached = {key[-16:]: position for position, key in enumerate(cache.keys())}
        """Hash at the end of each key to its position in the catalog"""
        states = [cache.catalog.feature_states(name) for name in features]
        self._lacks = np.any(np.equal(states, FeatureState.NOT_BUILT), axis=0)
        if others.keys:
            self._lacks |= np.isin(cache.keys(), list(others.keys))
        self._has_whole_files = config_from_json(read_header(cache.path).config, trusted=()).picture.buckets is None
        """True if the item of a file has all of its frames, so that it serves the segments of the file"""
        self._num_uncached = 0
        self._first_uncached = ""
        self.positions = array("q")
        """Position in the catalog of each record that is kept, -1 if its source is read"""

    @cached_property
    def _failures(self) -> dict[str, Failure]:
        return {key[-16:]: failure for key, failure in read_quarantined(self._cache.path).items()}

    def cause_of(self, record: VideoRecord) -> str | None:
        """Return the cause for which a record is in quarantine, "" if it is skipped, or None if it is kept."""
        key = key_hash(record.root, record.path, record.segment)
        position = self._cached.get(key, -1)
        if record.error is not None and (position < 0 or self._cache[position].sidecar.source != record.identity):
            return ""  # the scan could not read the file, and no build has kept the frames before its damage
        if position < 0 and self._has_whole_files and record.segment is not None:
            position = self._cached.get(key_hash(record.root, record.path), -1)
            if position >= 0 and key in self._failures and not self._serves(position, record):
                position = -1
        if position >= 0 and not self._lacks[position]:
            self.positions.append(position)
            return None
        failure = self._failures.get(key)
        if failure is not None and self._still_holds(failure, record):
            return failure.cause
        if position >= 0 and self._on_miss in _FROM_CACHE:  # see ``settle_absences``
            self.positions.append(position)
            return None
        if self._on_miss == "skip":
            return ""
        self._num_uncached += 1
        self._first_uncached = self._first_uncached or f"'{printable(record.path)}' of root '{printable(record.root)}'"
        self.positions.append(-1)
        return None

    def _serves(self, position: int, record: VideoRecord) -> bool:
        """Return whether a file that is cached whole has all frames of a segment, whose own build failed."""
        try:
            with suppress(DamageError, FeatureAbsentError):  # reading it says so
                SegmentOfFile(self._cache[position], record)
        except MediaError:
            return False
        return True

    def _still_holds(self, failure: Failure, record: VideoRecord) -> bool:
        """Return whether the source would fail too, if it is read at all."""
        if self._on_miss in _FROM_CACHE:
            return True
        is_another_file = record.identity is not None and failure.source != record.identity
        return not is_another_file and not (failure.fingerprints and self._has_frames_only)

    def check(self, index: Index) -> None:
        """Raise ``NotFoundError`` if a record must be cached and is not."""
        if self._num_uncached and self._on_miss == "error":
            raise NotFoundError(
                f"index '{printable(index.path)}': got {self._num_uncached} of "
                f"{counted(len(self.positions), 'video')} not in {self._cache!r}, such as "
                f"{self._first_uncached}, expected all of them. Build them, or leave them out "
                "with on_miss='skip', or read their files with on_miss='source'."
            )
