"""The videos of an index, read from a cache, and the handling of videos that the cache does not have."""

from __future__ import annotations

import os
import warnings
from array import array
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from chordcache.amounts import counted
from chordcache.building.build import build
from chordcache.building.build_options import BuildOptions
from chordcache.config.config import Config, config_from_json, trusted_names
from chordcache.config.yaml_files import load_config
from chordcache.errors import (
    OTHER_FORMAT,
    AbsentFeatureError,
    ChordcacheError,
    DamageError,
    LockedError,
    MediaError,
    NotFoundError,
    StorageError,
    UsageError,
    printable,
)
from chordcache.features.packet_frames import PACKET_CODECS
from chordcache.features.read_side import RowReader
from chordcache.index.index_files import Index, temporary_index
from chordcache.media.source_file import identity_or_none
from chordcache.read.cache import Cache
from chordcache.read.cached_videos import sample_of, stereo_of
from chordcache.read.clips import HOW_TO_ADD
from chordcache.read.segment_of import SegmentOfFile
from chordcache.read.selection import OtherSettings
from chordcache.read.video import Video
from chordcache.records import VideoRecord
from chordcache.storage.artefacts.tiers import TIERS
from chordcache.storage.cache_header import Header, read_header
from chordcache.storage.catalog_columns import FeatureState
from chordcache.storage.feature_info import FeatureInfo
from chordcache.storage.layout import key_hash, key_of, video_key
from chordcache.storage.lock import locked_key
from chordcache.storage.opener import check_still_there
from chordcache.storage.quarantine import Failure, read_quarantined
from chordcache.storage.sidecar import Sidecar, read_sidecar
from chordcache.train.misses.builds import Miss, builds
from chordcache.train.misses.source_videos import GIVEN, SourceVideos, StoredSource, check_on_disk

_FROM_CACHE = ("error", "skip")
"""Values of ``on_miss`` with which no source is read"""

Sample = TypeVar("Sample")


class IndexedVideos(SourceVideos):
    """The videos of an index, cached or not. No video is opened before it is read. See ``chordcache.videos.indexed``.

    Raises ``NotFoundError`` if the cache does not exist, or ``on_miss`` is "error" and a video is neither cached nor in
    quarantine, ``NotFoundError`` if the cache is not built for one of the features, and ``UsageError`` if another
    argument is wrong, or index and cache have different folders for one root name.
    """

    def __init__(
        self,
        index: Index,
        cache: Cache | str | Path,
        features: Sequence[str],
        on_miss: str,
        config: Config | str | Path | None = None,
    ) -> None:
        self._features, self._on_miss = tuple(features), on_miss
        if on_miss not in _FROM_CACHE:
            check_on_disk(index)
        given = load_config(config)
        self._trusted = trusted_names(given)
        """Classes of plug-ins and models that the user has named, see ``config_from_json``"""
        try:
            self.cache = Cache(cache.path if isinstance(cache, Cache) else cache)
        except NotFoundError:
            if on_miss != "build" or isinstance(cache, Cache):
                raise
            self.cache = _new_cache(index, cache, self._features, given)
        header = read_header(self.cache.path)
        settings = config_from_json(header.config, trusted=self._trusted)
        if config is not None and settings != load_config(config, settings):
            raise UsageError(
                f"config: got one that is not that of cache '{printable(self.cache.path)}', expected None for a cache "
                "that exists. Leave config out, or build the cache with it."
            )
        self._check(index, header)
        self._fingerprints = header.fingerprints
        self._why_not = _why_not_from_source(settings, self._features)
        """Reason why sources cannot be read, or "" """
        reads_sources = on_miss not in _FROM_CACHE and not self._why_not
        others = OtherSettings(self.cache, self._features)
        misses = _Misses(self.cache, self._features, on_miss, others, settings)
        source, links = StoredSource(settings) if reads_sources else None, header.follow_symlinks
        of_cache = misses.cause_of, self.cache.path
        super().__init__(source, index, self._features, settings, *of_cache, follow_symlinks=links)
        misses.check(index, self._why_not)
        self._positions = np.asarray(misses.positions)
        """Position of each video in the catalog when the dataset was made, -1 if its source is read"""
        if others.keys:
            keys = self.cache.keys()
            others.left([keys[position] for position in self._positions if position >= 0])
        if on_miss == "build":
            header.writable(self.cache.path)
            _check_can_build(self.cache.path)

    def __repr__(self) -> str:
        return repr(self.cache)

    def feature_states(self, feature: str) -> np.ndarray:
        """Return the state of a feature in every video. See ``VideoSet``."""
        states = self.cache.catalog.feature_states(feature)
        chosen: np.ndarray = np.append(states, np.uint8(FeatureState.CACHED))[self._positions]  # the last is for -1
        return chosen

    def keep(self, mask: np.ndarray) -> None:
        """Leave out the videos where the mask is False. See ``VideoSet``."""
        super().keep(mask)
        self._positions = self._positions[mask]

    @property
    def stereo(self) -> str:
        """Eye of stereo pictures that the cache has. See ``VideoSet``."""
        return stereo_of(self.cache)

    def close(self) -> None:
        """Close the cache in this process. See ``VideoSet``."""
        self.cache.close()

    def _check(self, index: Index, header: Header) -> None:
        path = printable(self.cache.path)
        have = dict.fromkeys(name for names in header.features.values() for name in names)
        for name in self._features:
            if name not in have:
                raise AbsentFeatureError(
                    f"features: got '{name}', expected one of {', '.join(have) or 'none'}, which cache '{path}' is "
                    f"built for. {HOW_TO_ADD}"
                )
        if self._on_miss in _FROM_CACHE:
            return
        for label, folder in index.roots.items():
            there = header.roots.get(label, folder)
            if there != folder:
                raise UsageError(
                    f"index: got root '{printable(label)}' in '{printable(folder)}', expected '{printable(there)}' as "
                    f"in cache '{path}'. Scan with another NAME=PATH."
                )
        if index.path.resolve() == (self.cache.path / "index.jsonl").resolve():
            raise UsageError(
                f"index: got '{path}/index.jsonl', expected the index that 'chordcache scan' wrote. Builds rewrite the "
                "index inside a cache."
            )

    def read(self, position: int, sample: Callable[[RowReader, Video], Sample]) -> Sample:
        """Return the result of ``sample`` for a reader and a video.

        If the cached video turns out to be damaged, ``sample`` is called a second time, for the source. Raises
        ``NotFoundError`` if the video is not cached any more, or its source does not exist, ``MediaError`` if the
        source cannot be read, ``DamageError`` if the video is damaged and no source is read, and ``LockedError`` if its
        build is to be waited for while another process writes to the cache.
        """
        record = self.record(position)
        if self._on_miss in _FROM_CACHE:
            return sample_of(self.cache, partial(self._named, record), sample)
        try:
            if (video := self._cached(record)) is not None:
                return sample(self.cache, video)
        except DamageError as error:
            instead = "the video is built again" if self._why_not else "its source is read instead"
            warnings.warn(f"{error}; {instead}", stacklevel=2)
        check_still_there(self.cache.path)
        try:
            if self._on_miss == "build":
                small = record.replace(packets=None)
                miss = Miss(self.cache.path, small, self._index.source.header, self._trusted, bool(self._why_not))
                builds().build(miss) if miss.waits else builds().begin(miss)
            if not self._why_not:
                return self.read_source(record, sample)
        except MediaError as error:
            what = f"{error.message}; video '{key_of(record)}' is not cached either. Restore or repair the file, or "
            what += "scan again."
            if (error.stage, error.cause) == ("open", "io"):
                raise NotFoundError(what) from None
            raise MediaError(error.stage, error.cause, what, error.num_frames_ok) from error
        if self._on_miss != "build" or (video := self._cached(record)) is None:
            raise _cannot_read(f"video '{key_of(record)}', which is not cached, with {self._why_not}")
        return sample(self.cache, video)

    def _named(self, record: VideoRecord) -> Video:
        """Return the cached video of an item, or the segment of the file that is cached whole."""
        key = key_of(record)
        return self._described(self.cache[key if key in self.cache else video_key(record.root, record.path)], record)

    def _cached(self, record: VideoRecord) -> Video | None:
        """Return the video if it is cached with all features, and from the file that is at its path now. Else None.

        The sidecar is read instead of the catalog. The catalog does not have videos published after it was opened, but
        it has those in packs.
        """
        for key in dict.fromkeys((key_of(record), video_key(record.root, record.path))):
            sidecar = self._sidecar_or_none(key)
            infos = [sidecar.feature(name) for name in self._features] if sidecar else []
            if sidecar is None or not all(map(self._is_current, infos)):
                continue
            if sidecar.about.segment != record.segment and sidecar.display_crop is not None:
                continue  # its bucket does not have all frames
            if sidecar.source != record.identity:  # another file may now be at the path
                identity = identity_or_none(os.path.join(self._index.roots[record.root], record.path))
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
            try:
                sidecar = self.cache.catalog.find(key)
            except ChordcacheError as error:  # a cache without a catalog has no packs
                if error.exit_code not in (NotFoundError.exit_code, OTHER_FORMAT):
                    raise
                return None
            return sidecar if sidecar is not None and sidecar.packs else None

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


def _check_can_build(cache: Path) -> None:
    try:
        with suppress(LockedError), locked_key(cache, "check"):
            pass
    except StorageError as error:
        raise UsageError(
            f"on_miss: got 'build' for cache '{printable(cache)}', which cannot be written to ({error}), expected "
            "'source'. Choose on_miss='source'."
        ) from None


def _why_not_from_source(settings: Config, features: Sequence[str]) -> str:
    """Return why sources do not give features as a cache has them, or "" if they do."""
    if others := [name for name in features if name not in GIVEN]:
        return f"'{others[0]}', which takes a build, where a source gives {', '.join(GIVEN)}"
    if settings.picture.buckets is not None:
        return "frames.buckets, which are chosen for whole videos"
    if "frames" in features and settings.frames is not None and settings.frames.codec in PACKET_CODECS:
        return f"frames.codec {settings.frames.codec}, whose frames depend on those before them"
    return ""


def _cannot_read(what: str) -> UsageError:
    return UsageError(f"on_miss: got {what}, expected a cached video. Take on_miss='build', or build the cache first.")


def videos_without_cache(index: Index, features: Sequence[str], config: Config) -> SourceVideos:
    """Return the videos of an index as a cache of a config would have them."""
    if why_not := _why_not_from_source(config, features):
        raise _cannot_read(f"'source' without a cache, with {why_not}")
    return SourceVideos(StoredSource(config), index, features, config)


class _Misses:
    """The records of an index that are not cached, in the order of the index."""

    def __init__(
        self, cache: Cache, features: tuple[str, ...], on_miss: str, others: OtherSettings, settings: Config
    ) -> None:
        self._cache, self._on_miss, self._has_frames_only = cache, on_miss, features == ("frames",)
        self._cached = {key[-16:]: position for position, key in enumerate(cache.keys())}
        """Hash at the end of each key to its position in the catalog"""
        self._failures = {key[-16:]: failure for key, failure in read_quarantined(cache.path).items()}
        states = [cache.catalog.feature_states(name) for name in features]
        self._lacks = np.any(np.equal(states, FeatureState.NOT_BUILT), axis=0)
        if others.keys:
            self._lacks |= np.isin(cache.keys(), list(others.keys))
        self._has_whole_files = settings.picture.buckets is None
        """True if the item of a file has all of its frames, so that it serves the segments of the file"""
        self._num_uncached, self._first_uncached = 0, ""
        self.positions = array("q")
        """Position in the catalog of each record that is kept, -1 if its source is read"""

    def cause_of(self, record: VideoRecord) -> str | None:
        """Return the cause for which a record is in quarantine, "" if it is skipped, or None if it is kept."""
        key = key_hash(record.root, record.path, record.segment)
        position = self._cached.get(key, -1)
        if record.error is not None and (position < 0 or self._cache[position].sidecar.source != record.identity):
            return ""  # the scan could not read the file, and no build has kept the frames before its damage
        failure = self._failures.get(key)
        if position < 0 and self._has_whole_files and record.segment is not None:
            position = self._cached.get(key_hash(record.root, record.path), -1)
            if position >= 0 and failure is not None and not self._serves(position, record):
                position = -1
        if position < 0 or self._lacks[position]:
            if failure is not None and self._still_holds(failure, record):
                return failure.cause
            if position < 0 or self._on_miss not in _FROM_CACHE:  # see ``settle_absences``
                if self._on_miss == "skip":
                    return ""
                name = f"'{printable(record.path)}' of root '{printable(record.root)}'"
                self._first_uncached = self._first_uncached or name
                self._num_uncached += 1
                position = -1
        self.positions.append(position)
        return None

    def _serves(self, position: int, record: VideoRecord) -> bool:
        """Return whether a file that is cached whole has all frames of a segment, whose own build failed."""
        try:
            with suppress(DamageError, AbsentFeatureError):  # reading it says so
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

    def check(self, index: Index, why_not: str) -> None:
        """Raise ``NotFoundError`` if a record must be cached and is not, ``UsageError`` if no source gives it."""
        if not self._num_uncached or self._on_miss == "build":
            return
        counts = f"{self._num_uncached} of {counted(len(self.positions), 'video')} not in {self._cache!r}"
        if self._on_miss == "error":
            raise NotFoundError(
                f"index '{printable(index.path)}': got {counts}, such as {self._first_uncached}, expected all of them. "
                "Build them, or leave them out with on_miss='skip', or read their files with on_miss='source'."
            )
        if why_not:
            raise _cannot_read(f"'source' for {counts}, with {why_not}")
