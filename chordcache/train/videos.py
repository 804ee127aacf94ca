"""The sets of videos that a dataset reads: those of a cache, those of an index, and those of files without a cache."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, cast

from chordcache.arguments import did_you_mean
from chordcache.config.config import Config
from chordcache.errors import UsageError, printable
from chordcache.object_stores.client import is_in_store
from chordcache.read.cache import Cache
from chordcache.read.cached_videos import CachedVideos, VideoSet
from chordcache.read.selection import Videos
from chordcache.sources.video_source import CachedSource, VideoSource
from chordcache.storage.layout import cache_folder

if TYPE_CHECKING:  # a dataset of a cache reads no index
    from chordcache.index.index_files import Index

Files: TypeAlias = "str | Path | Iterable[str | Path]"
"""A folder, a file, or several of them"""

_FROM_CACHE = ("error", "skip")
_FROM_SOURCE = ("source", "build")


@dataclass(frozen=True)
class VideosToRead:
    """A set of videos for ``ChordVideoDataset``. Each dataset opens the videos itself, when it is made."""

    open: Callable[[tuple[str, ...]], VideoSet]
    """Function of the features that will be read. It returns the videos"""
    tries_first: bool = False
    """True if a dataset opens its first video when it is made. A source may lack what the sampler needs"""


def cached(
    cache: str | Path | Cache,
    videos: Videos | None = None,
    *,
    on_miss: str = "error",
    where: Mapping[str, str] | None = None,
) -> VideosToRead:
    """Return the videos of a cache, or some of them.

    ``ChordVideoDataset(cache, videos=videos)`` is short for this with ``on_miss="error"``.

    Parameters
    ----------
    cache : str, Path or Cache
        The cache. Each process opens it itself.
    videos : iterable of str, callable, str or Path, optional
        The videos to read. By default all, in the order of their keys. Give keys or paths as in ``Video.path``, which
        are read in the order given, or a predicate that takes a ``Video``, or a split file: text with a key or a path
        on each line, see ``docs/which-videos.md``. Videos in quarantine are left out, with one warning.
    on_miss : {"error", "skip"}
        Policy for a name in ``videos`` that no cached video has. "error" raises ``NotFoundError`` when the dataset is
        made. "skip" leaves it out, with a warning.
    where : mapping of str to str, optional
        Column of a split file to the value of the rows to read, such as ``{"split": "train"}``. A column of splits
        without a header, as in the files of HMDB51, is called "split".

    Raises
    ------
    UsageError
        If ``cache``, ``on_miss`` or ``where`` is something else.
    """
    if on_miss in _FROM_SOURCE:
        raise UsageError(
            f"on_miss: got {on_miss!r} without an index, expected one of {', '.join(_FROM_CACHE)}. Take "
            "chordcache.videos.indexed, whose index names the sources."
        )
    _check_on_miss(on_miss, _FROM_CACHE)
    if not isinstance(cache, (str, Path, Cache)):
        raise UsageError(
            f"cache: got {cache!r}, expected a folder or a Cache. Make the videos of an index or of a source with "
            "chordcache.videos.indexed or from_files."
        )
    folder = cache if isinstance(cache, Cache) else cache_folder(cache)  # the working folder may change meanwhile

    def open_videos(features: tuple[str, ...]) -> VideoSet:
        # The dataset closes its own cache. Other threads may still be reading from the one that was given
        own = copy(folder) if isinstance(folder, Cache) else Cache(folder)
        return CachedVideos(own, videos, on_miss, features, where)

    return VideosToRead(open_videos)


def indexed(
    index: Index | str | Path,
    cache: str | Path | Cache | None = None,
    *,
    on_miss: str = "error",
    config: Config | str | Path | None = None,
) -> VideosToRead:
    """Return the videos of an index, cached or not, in its order and with its labels and captions.

    A segment that is not cached is read from its file, if the file is cached whole. Videos in quarantine, and videos
    that the scan could not read, are left out, with one warning.

    Parameters
    ----------
    index : Index, str or Path
        The output of ``scan``, or a hand-written list.
    cache : str, Path or Cache, optional
        The cache. It can only be left out with ``on_miss="source"``. Each process opens it itself.
    on_miss : {"error", "skip", "source", "build"}
        Policy for a video that is not cached. "error" raises ``NotFoundError`` when the dataset is made. "skip" leaves
        it out, with a warning. "source" reads frames and features of sound from the source, with the same result as
        from the cache. "build" does the same, and a child of this process builds the video for the next time. What a
        source cannot give, such as flow, waits for the build. With "source" and "build", a video that was cached from
        another file than the index names counts as not cached. A video that turns out to be damaged is read from its
        source, with a warning. "build" also repairs it.
    config : Config, str or Path, optional
        The config of a cache that does not exist yet: with ``on_miss="build"`` it is made, and with
        ``on_miss="source"`` and no ``cache`` all videos are read as if it were empty. By default the packaged defaults.

    Raises
    ------
    UsageError
        If ``on_miss`` is something else, needs a cache, or is "source" for what takes a build.
    """
    _check_on_miss(on_miss, (*_FROM_CACHE, *_FROM_SOURCE))
    if cache is None and on_miss != "source":
        raise UsageError(f"cache: got None with on_miss='{on_miss}', expected a cache, or on_miss='source'")

    def open_videos(features: tuple[str, ...]) -> VideoSet:
        from chordcache.config.yaml_files import load_config  # not before: these load YAML and a decoder
        from chordcache.sources.uncached_video import StoredSource
        from chordcache.train.misses.indexed_videos import IndexedVideos, SourceVideos

        opened = _index(index, on_disk=on_miss in _FROM_SOURCE)
        if cache is not None:
            return IndexedVideos(opened, cache, features, on_miss, config)
        settings = load_config(config)
        return SourceVideos(StoredSource(settings, features), opened, features, settings)

    return VideosToRead(open_videos)


def from_files(
    source: VideoSource,
    files: Files | None = None,
    *,
    index: Index | str | Path | None = None,
    config: Config | str | Path | None = None,
) -> VideosToRead:
    """Return videos whose frames a source reads from files, without a cache.

    A sample has the same values as from a cache of the same pictures in ``codec: raw``. The dataset opens the first
    video when it is made, and each sample opens its file. ``MP4Source`` and ``MappedMP4Source`` also give mel, waveform
    and librosa, for which each sample decodes the whole sound, and what samplers of keyframes and content need, which
    decodes the whole file. Other sources, and classes that are derived from these, give frames alone.

    Parameters
    ----------
    source : VideoSource
        A closed source of files, such as ``MP4Source()``. Live sources are refused. ``CachedSource(cache)`` means
        ``cached(cache, files)``.
    files : str, Path, or iterable of them, optional
        Folders and files. A folder has the videos that ``scan`` would find. Give these or an index.
    index : Index, str or Path, optional
        The output of ``scan``, or a hand-written list, with labels and captions.
    config : Config, str or Path, optional
        How features of sound are made. By default the packaged defaults.

    Raises
    ------
    UsageError
        If ``source`` is something else, or not one of ``files`` and ``index`` is given.
    """
    if not isinstance(source, VideoSource):
        raise UsageError(f"source: got {source!r}, expected a VideoSource such as MP4Source()")
    kind = type(source).__name__
    if isinstance(source, CachedSource):
        for name, value in (("index", index), ("config", config)):
            if value is not None:
                raise UsageError(f"{name}: got one with a {kind}, expected None. Take chordcache.videos.indexed.")
        return cached(source.cache, cast(Videos, files))
    if source.is_live:
        raise UsageError(
            f"source: got a {kind}, expected a source of files. A live source does not have a length, and cannot "
            f"be read again. Loop over {kind}(...).open(...).get_frame(n), or record it and read the file."
        )
    if (index is None) == (files is None):
        given = "none" if files is None else "both"
        raise UsageError(f"index and files: got {given} with a {kind}, expected one of them")

    def open_videos(features: tuple[str, ...]) -> VideoSet:
        from chordcache.config.yaml_files import load_config  # not before: these load YAML and a decoder
        from chordcache.index.scan import index_of_files
        from chordcache.train.misses.indexed_videos import SourceVideos

        opened = _index(index_of_files(files) if index is None else index, on_disk=True)
        return SourceVideos(source, opened, features, load_config(config))

    return VideosToRead(open_videos, tries_first=True)


def _check_on_miss(on_miss: str, valid: Sequence[str]) -> None:
    if on_miss not in valid:
        raise UsageError(f"on_miss: got {on_miss!r}, expected one of {', '.join(valid)}{did_you_mean(on_miss, valid)}")


def _index(index: Index | str | Path, *, on_disk: bool) -> Index:
    """Open an index. Raise ``UsageError`` if a root must be ``on_disk`` and is in an object store.

    What reads from there does not survive the fork of a DataLoader.
    """
    from chordcache.index.index_files import Index, read_index

    opened = index if isinstance(index, Index) else read_index(index)
    for label, folder in opened.roots.items() if on_disk else ():
        if is_in_store(folder):
            raise UsageError(
                f"index: got root '{printable(label)}' in the object store '{printable(folder)}', expected a folder of "
                "this machine. Build a cache, and read it with on_miss='error' or 'skip'."
            )
    return opened
