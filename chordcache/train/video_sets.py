"""The place of a dataset's videos: a cache, an index with a cache or without one, or the files themselves."""

from __future__ import annotations

from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING

from chordcache.arguments import did_you_mean
from chordcache.errors import UsageError
from chordcache.read.cache import Cache
from chordcache.read.cached_videos import CachedVideos, VideoSet
from chordcache.read.selection import Videos
from chordcache.sources.video_source import CachedSource, VideoSource

if TYPE_CHECKING:
    from chordcache.config.config import Config
    from chordcache.index.index_files import Index

ON_MISS = ("error", "skip", "source", "build")


def open_videos(
    cache: str | Path | Cache | None,
    videos: Videos | None,
    *,
    index: Index | str | Path | None,
    on_miss: str,
    config: Config | str | Path | None,
    source: object,
    features: tuple[str, ...],
) -> VideoSet:
    """Open the videos that these arguments of ``ChordVideoDataset`` name.

    Raises
    ------
    UsageError
        If the arguments contradict each other.
    """
    if on_miss not in ON_MISS:
        raise UsageError(
            f"on_miss: got {on_miss!r}, expected one of {', '.join(ON_MISS)}{did_you_mean(on_miss, ON_MISS)}"
        )
    if isinstance(source, CachedSource):
        _check_alone(source, cache=cache)
        cache, source = source.cache, None
    if source is not None:
        _check_alone(source, cache=cache, config=config, on_miss=None if on_miss == "error" else on_miss)
        if not isinstance(source, VideoSource):
            what = f"got {source!r}, expected a VideoSource such as MP4Source()"
            raise UsageError(f"source: {what}. Give a cache as cache=.")
        from chordcache.train.misses.source_videos import SourceVideos  # not before: it loads a decoder

        return SourceVideos(source, index, videos, features)
    if index is not None or on_miss in ("source", "build"):
        from chordcache.train.misses.indexed_videos import IndexedVideos  # a cache alone needs no decoder

        return IndexedVideos(index, cache, features, on_miss, config=config, videos=videos)
    if cache is None or config is not None:
        raise UsageError("cache and config: got no index, expected a cache and no config. Give cache=.")
    # The dataset closes its own cache. Other threads may still be reading from the one that was given
    return CachedVideos(copy(cache) if isinstance(cache, Cache) else Cache(cache), videos, on_miss, features)


def _check_alone(source: object, **others: object) -> None:
    """Raise ``UsageError`` if another argument is given that also says where videos are."""
    given = [name for name, value in others.items() if value is not None]
    if given:
        raise UsageError(f"{given[0]}: got a value and source={type(source).__name__}, expected one of them")
