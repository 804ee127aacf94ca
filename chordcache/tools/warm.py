"""``warm``: read the files of a cache into the memory of this machine, before a training job reads them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from chordcache.arguments import check_at_least, checked_names
from chordcache.engine import terminal
from chordcache.engine.signals import stop_signals
from chordcache.errors import FeatureAbsentError, UsageError
from chordcache.read.cache import Cache
from chordcache.read.clips import cached_features
from chordcache.read.selection import Videos, select_keys
from chordcache.storage import opener
from chordcache.storage.catalog_columns import FeatureState
from chordcache.storage.feature_files import damaged
from chordcache.storage.layout import place_of
from chordcache.storage.remote.mark import check_holds_all
from chordcache.storage.sidecar import Sidecar, files_of
from chordcache.tools.page_cache import num_resident

_BLOCK_BYTES = 4 << 20


@dataclass(frozen=True)
class WarmResult:
    """The result of ``warm``."""

    num_videos: int
    """Number of videos whose files were read"""
    num_left_out: int
    """Number of videos that did not fit into the rest of the memory"""
    num_bytes: int
    """[bytes] that were read"""
    resident_share: float
    """Share [0 to 1] of these bytes that are in the page cache at the end. The kernel drops pages if memory is short"""


def warm(
    cache: str | Path,
    *,
    memory: int,
    videos: Videos | None = None,
    features: str | Iterable[str] | None = None,
    progress: bool = False,
) -> WarmResult:
    """Read the files of a cache in the order of its videos, so that the kernel has them in its page cache.

    Parameters
    ----------
    cache : str or Path
        The cache.
    memory : int
        [bytes] to read at most. The files of a video are read as a whole or not at all.
    videos : str, Path, callable or iterable of str, optional
        Split file, predicate or keys, as for ``ChordVideoDataset``. By default all videos.
    features : str or iterable of str, optional
        Features that will be read, as those of ``ChordVideoDataset``. By default all.
    progress : bool
        True to show a progress bar on standard error, if that is a terminal.

    Returns
    -------
    WarmResult
        Counts, and the share that is in memory.

    Raises
    ------
    UsageError, FeatureAbsentError
        If an argument is wrong, or no video has one of the features.
    NotFoundError, DamageError, FormatVersionError, UnreadableError
        If the cache cannot be read.
    StoppedError
        If a signal stopped it.
    """
    check_at_least(1, memory=memory)
    wanted = None if features is None else cached_features(checked_names("features", features, "features"))[0]
    if wanted == ():
        raise UsageError("features: got none, expected at least one")
    num_videos = num_bytes = 0
    files: list[tuple[str, int, int]] = []
    with Cache(cache) as opened, stop_signals():
        check_holds_all(opened.path)
        keys = opened.keys() if videos is None else list(dict.fromkeys(select_keys(opened, videos)))
        for name in wanted or ():
            if len(opened) and not np.any(opened.catalog.feature_states(name) == FeatureState.CACHED):
                raise FeatureAbsentError(f"features: got {name}, expected features that are cached")
        with terminal.progress_bar(len(keys), "video", shown=progress) as bar:
            for key in keys:
                of_video = list(_files(opened[key].sidecar, wanted))
                size = sum(length for _, _, length in of_video)
                if num_bytes + size > memory:
                    break
                for name, start, length in of_video:
                    _read(opened.path, name, start, length)
                num_videos, num_bytes = num_videos + 1, num_bytes + size
                files += of_video
                bar.update()
        resident = sum(_resident(opened.path, *file) for file in files)
    return WarmResult(num_videos, len(keys) - num_videos, num_bytes, resident / num_bytes if num_bytes else 1.0)


def _files(sidecar: Sidecar, wanted: Sequence[str] | None) -> Iterator[tuple[str, int, int]]:
    """Yield name, first byte and number of bytes of each file, or of its part of a pack, once."""
    for file in files_of(info for info in sidecar.features if wanted is None or info.feature in wanted):
        yield *place_of(file), file.num_bytes


def _read(cache: Path, name: str, start: int, num_bytes: int) -> None:
    with _opened(cache, name) as fd:
        place = start
        while place < start + num_bytes:
            num_read = len(os.pread(fd, min(_BLOCK_BYTES, start + num_bytes - place), place))
            if not num_read:
                raise damaged(cache, name, "it is cut off")
            place += num_read


def _resident(cache: Path, name: str, start: int, num_bytes: int) -> int:
    with _opened(cache, name) as fd:
        return num_resident(fd, start, num_bytes)


@contextmanager
def _opened(cache: Path, name: str) -> Iterator[int]:
    with opener.readable(cache / name):
        try:
            fd = opener.open_file(cache, name)
        except FileNotFoundError:
            raise damaged(cache, name, "it is missing") from None
        try:
            yield fd
        finally:
            os.close(fd)
