"""The cache as one object: its videos, and their features as arrays."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from chordcache.amounts import counted
from chordcache.arguments import check_at_least, did_you_mean, names_arguments, parsed_bytes
from chordcache.errors import AbsentFeatureError, NotFoundError, UsageError, printable
from chordcache.features.built_in import read_side
from chordcache.features.frames import FramesReadSide
from chordcache.features.read_side import Numbers
from chordcache.media.cropping import Rectangle
from chordcache.object_stores.local_folder import let_fetch, local_folder, open_local_folder
from chordcache.read.near_keys import hint_for, keys_at_path
from chordcache.read.video import Video, checked_numbers, open_feature, row_numbers
from chordcache.storage.catalog import Catalog
from chordcache.storage.layout import cache_folder
from chordcache.storage.opener import check_still_there
from chordcache.storage.origin import check_holds_all
from chordcache.storage.row_clock import has_times

_MAX_RECENT = 256
"""Number of videos that a cache keeps in memory. When it is reached, all of them are dropped."""

_MAX_MATCHES = 10
"""Number of matching keys in a message"""

_FRAMES = FramesReadSide("frames")


class _Opened(NamedTuple):
    """The catalog of a cache, and recent videos with their times. One object: threads open and close concurrently."""

    catalog: Catalog
    recent: dict[int | str, Video]


@names_arguments
class Cache:
    """A cache opened for reading. Picklable, thread-safe and fork-safe.

    Parameters
    ----------
    path : str or Path
        A folder that ``build`` made.

    Raises
    ------
    NotFoundError
        If the folder is not a cache.
    DamageError
        If the cache cannot be read.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = cache_folder(path, "path")
        if local_folder(self.path) is None:
            check_holds_all(self.path)
        self._opened: _Opened | None = _Opened(Catalog(self.path), {})  # raises now rather than in a worker
        self.num_pinned: int | None = None
        """Number of videos that the catalog must have when it is opened again, where their positions must not move"""

    @classmethod
    def without_catalog(cls, path: Path) -> Cache:
        """Return a cache whose catalog is opened only when it is needed. ``read`` of a ``Video`` does not need it."""
        cache = cls.__new__(cls)
        cache.__setstate__({"path": path})
        return cache

    def __getstate__(self) -> dict[str, Any]:
        folder = local_folder(self.path)
        return {"path": self.path, "origin": folder and folder.origin, "num_pinned": self.num_pinned}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.path = state["path"]
        let_fetch(self.path, state.get("origin"))
        self._opened = None
        self.num_pinned = state.get("num_pinned")

    def __enter__(self) -> Cache:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the catalog. Reading opens it again."""
        self._opened = None  # the catalog closes when the last thread stops reading from it

    @property
    def _here(self) -> _Opened:
        opened = self._opened
        if opened is None:
            check_still_there(self.path)
            opened = _Opened(Catalog(self.path), {})
            if self.num_pinned not in (None, len(opened.catalog)):
                raise UsageError(
                    f"<Cache '{printable(self.path)}': {counted(len(opened.catalog), 'video')}> had "
                    f"{counted(self.num_pinned or 0, 'video')} when the dataset was made. Recreate the dataset, or "
                    "pass videos=cache.keys() to pin today's videos."
                )
            self._opened = opened
        return opened

    @property
    def catalog(self) -> Catalog:
        """List of the videos, opened when it is needed."""
        return self._here.catalog

    def __repr__(self) -> str:
        return f"<Cache '{printable(self.path)}': {counted(len(self), 'video')}>"

    def __len__(self) -> int:
        return len(self.catalog)

    def __iter__(self) -> Iterator[Video]:
        return (self[position] for position in range(len(self)))

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self.catalog.find(key) is not None

    def __getitem__(self, video: int | str) -> Video:
        """Return a video by its key, or by its position in key order.

        Raises ``NotFoundError`` if no video has this key, ``IndexError`` if the position is out of range, and
        ``UsageError`` if ``video`` is neither.
        """
        if not isinstance(video, (str, int, np.integer)):  # before the look-up, in which 1.0 is 1
            raise UsageError(
                f"video: got {video!r}, expected a key, or a position in [0, {len(self)}). For several videos, write "
                "[cache[i] for i in range(...)]."
            )
        opened = self._here
        cached = opened.recent.get(video)
        if cached is None:
            catalog = opened.catalog
            if isinstance(video, str):
                sidecar = catalog.find(video)
                if sidecar is None:
                    what = f"video '{printable(video)}' is not in cache '{printable(self.path)}'"
                    raise NotFoundError(f"{what}. {hint_for(catalog, video)}")
            else:
                position = operator.index(video)
                sidecar = catalog.at(position + len(catalog) if position < 0 else position)
            cached = Video(self.path, sidecar)
            if len(opened.recent) >= _MAX_RECENT:
                opened.recent.clear()
            opened.recent[video] = cached
        return cached

    def keys(self) -> list[str]:
        """Return all keys, sorted, which is the order of iteration."""
        return self.catalog.keys()

    def labels(self) -> list[str]:
        """Return the distinct labels, sorted."""
        return list(self.catalog.labels)

    @property
    def num_frames(self) -> np.ndarray:
        """Number of frames of every video [shape=(len(self),), dtype=int32], in the order of iteration."""
        return self.catalog.num_frames

    @property
    def label_ids(self) -> np.ndarray:
        """Position of every video's label in ``labels()`` [shape=(len(self),), dtype=int32], -1 without a label."""
        return self.catalog.label_ids

    def read(
        self,
        video: Video | str | int,
        feature: str = "frames",
        start: int | None = None,
        stop: int | None = None,
        *,
        indices: Numbers | None = None,
        out: np.ndarray | None = None,
        tier: str | None = None,
    ) -> np.ndarray:
        """Read a feature of one video, for some of its frames.

        ====================  ========================================================================
        ``frames``            [shape=(T, H, W, 3), dtype=uint8, 0 to 255, RGB]
        ``flow``              [shape=(T, H, W, 2), pixels per frame step, (dx, dy)], float16 or float32; row i goes
                              from frame i to frame i + 1. The last frame does not have a row
        ``motion``            [shape=(T, H/16, W/16, 2), dtype=float16, source pixels], as libavcodec exports it;
                              ``motion.covered`` [shape=(T, H/16, W/16), dtype=bool] says which blocks have a vector,
                              ``motion.types`` [shape=(T,), dtype=S1] is I, P or B
        ``motion.as_flow``    [shape=(T - 1, H/16, W/16, 2), dtype=float32, source pixels per frame step, (dx, dy)],
                              motion in the direction and the rows of ``flow``; NaN where it is not known, see
                              ``MotionReadSide``
        ``mel``               [shape=(n_mels, t), dtype=float32, dB], or (C, n_mels, t): the seconds from the first
                              frame to the end of the last, silence where the sound does not reach
        ``waveform``          [shape=(t,), dtype=float32 or int16], or (C, t): the samples of the same seconds
        ``librosa``           [shape=(..., t), dtype=float32 or float64], of the same seconds
        ``text``              [shape=(L, D), dtype=float32 or float16]: the tokens of the caption, for any frames;
                              (N, L, D) of N captions with ``captions: all`` or a padding
        ``embed``             [shape=(T, D) or (T, N, D), dtype=float32 or float16]
        ``latents``           [shape=(t, C, h, w), dtype=float32 or float16] the rows that cover these frames
        ``pose``              [shape=(T, 33, 4), dtype=float32] x, y, z in pixels of the cached frame, visibility
        ``series``            [shape=(n,), dtype=float64, seconds on the source's clock]: the times of its rows in the
                              seconds of these frames, and of the row before and the row after them;
                              ``series.COLUMN`` [shape=(n, ...)] their values, with the dtype of the table
        ====================  ========================================================================

        Parameters
        ----------
        video : Video, str or int
            The video, its key, or its position.
        feature : str
            A feature, or an array that belongs to one, such as "motion.covered".
        start, stop : int, optional
            Frame numbers, half open, as in slices. By default all frames.
        indices : sequence of int, optional
            Frame numbers in any order instead, repeats allowed. Not for mel, waveform, librosa and series.
        out : np.ndarray, optional
            C-contiguous memory for the result, of its shape and dtype, which is then returned.
        tier : str, optional
            Tier to read from. By default the first that has the feature, of LMDB, NPZ and HDF5.

        Raises
        ------
        NotFoundError
            If the cache does not have the video, or the feature was not cached for it, with the reason.
        DamageError
            If a record is not as written.
        IndexError
            If a frame number is out of range.
        UsageError
            If arguments contradict each other, ``indices`` are not frame numbers, or ``out`` does not fit.
        """
        if not isinstance(video, Video):
            video = self[video]
        if indices is not None and (start is not None or stop is not None):
            raise UsageError("indices: got them with start or stop, expected one or the other")
        return self.rows(video, feature, slice(start, stop) if indices is None else indices, out, tier)

    def rows(
        self,
        video: Video,
        feature: str,
        numbers: Numbers | slice,
        out: np.ndarray | None = None,
        tier: str | None = None,
    ) -> np.ndarray:
        """Read the rows of a feature for some frames of a video. Arguments and errors are those of ``read``.

        ``numbers`` are frame numbers, or a slice of all frames, from which frames at the end that do not have a row are
        left out. A feature with a clock of its own takes a slice, and has the rows of the seconds of these frames, or
        with floats the rows of these seconds on the source's clock.
        """
        info = video.feature(feature.partition(".")[0], tier)
        side = read_side(info.feature)
        arrays = side.num_rows(info)
        if feature not in arrays:
            raise AbsentFeatureError(
                f"'{feature}' of video '{video.key}' is not cached; cached: {', '.join(info.num_rows)}"
                f"{did_you_mean(feature, arrays)}"
            )
        with open_feature(video, info) as artefact:
            if has_times(info.facts):
                if not isinstance(numbers, slice):
                    raise UsageError(
                        f"indices: got them for '{feature}', which has times of its own, expected start and stop"
                    )
                if isinstance(numbers.start, float):
                    return side.rows_in(artefact, info, feature, (numbers.start, numbers.stop), out)
                span = range(video.num_frames)[numbers]
                return side.rows_in(artefact, info, feature, video.seconds_of(span.start, span.stop), out)
            return side.rows(artefact, info, feature, row_numbers(video, info, feature, numbers), out)

    def iter_frames(
        self, video: Video | str | int, indices: Numbers, *, part: Rectangle | None = None
    ) -> Iterator[np.ndarray]:
        """Read frames of one video, a few at a time. Memory use does not grow with the number of frames.

        Yields arrays [shape=(t, H, W, 3), dtype=uint8, 0 to 255, RGB] of the next frames, or of the ``part`` inside of
        them. Their memory is overwritten with the frames after them. Raises as ``read``.
        """
        if not isinstance(video, Video):
            video = self[video]
        info = video.feature("frames")
        with open_feature(video, info) as artefact:
            numbers = checked_numbers(video, info, "frames", indices)
            yield from _FRAMES.iter_rows(artefact, info, numbers, part)

    def read_encoded(self, video: Video | str | int, indices: Numbers) -> list[bytes] | np.ndarray:
        """Read frames of one video as they are stored, each of which was checked.

        Returns
        -------
        list of bytes, or np.ndarray [shape=(T, H * 3 / 2, W), dtype=uint8, 0 to 255]
            The JPEG of each frame, or with ``codec: yuv420`` its planes Y, U and V, one after the other.

        Raises
        ------
        UsageError
            If the frames have another codec. Further errors are those of ``read``.
        """
        if not isinstance(video, Video):
            video = self[video]
        info = video.feature("frames")
        codec = info.params["codec"]
        if codec not in ("jpeg", "yuv420"):
            what = f"video '{video.key}': got codec {codec}, expected jpeg or yuv420."
            raise UsageError(f"{what} Decode the frames on the CPU.")
        with open_feature(video, info) as artefact:
            numbers = checked_numbers(video, info, "frames", indices)
            if codec == "jpeg":
                return list(map(bytes, artefact.records("frames", numbers)))
            return artefact.rows("frames", numbers)


@names_arguments
def open_cache(path: str | Path, *, local: str | Path | None = None, limit: int | str = "100GB") -> Cache:
    """Open a cache for reading.

    Parameters
    ----------
    path : str or Path
        Folder of a cache, or the URL of a cache in an object store, to which ``chordcache push`` copied it.
    local : str or Path, optional
        For a URL, a folder on a local disk. It gets the lists of the cache now, and each file when it is first read.
        Processes may share it. Only this function, and the processes that get its cache, open it: a folder from
        someone else does not make a process connect to an object store.
    limit : int or str
        Size of the files in ``local`` at most [bytes], such as "500GB". Those that were read least lately go first.

    Returns
    -------
    Cache
        The cache.

    Raises
    ------
    NotFoundError
        If the cache or the object store does not exist.
    DamageError
        If the cache cannot be read, or its lists arrive with other bytes than were written.
    UsageError
        If ``local`` is missing or holds something else, obstore is not installed, or credentials are missing.
    StorageError
        If the object store does not answer. This takes half a minute at most.
    """
    if "://" not in os.fspath(path):
        if local is not None:
            raise UsageError(f"local: got '{printable(local)}' with the folder '{printable(path)}', expected a URL")
        return Cache(path)
    if local is None:
        raise UsageError(f"local: got None with '{printable(path)}', expected a folder on a local disk")
    folder = cache_folder(local, "local")
    num_bytes = int(parsed_bytes(limit, "limit")) if isinstance(limit, str) else limit
    check_at_least(1, limit=num_bytes)
    open_local_folder(folder, str(path), num_bytes)
    return Cache(folder)


def find_video(cache: Cache, video: str | os.PathLike[str]) -> Video:
    """Find a video by a key, a path as in the index (relative to its root), a path on the disk, or how a key begins.

    They are tried in this order. Raises ``NotFoundError`` if no video matches, or several do, with near or matching
    keys, and ``DamageError`` if the catalog is damaged.
    """
    name = os.fspath(video)
    if name in cache:
        return cache[name]
    keys = keys_at_path(cache.catalog, name)
    if not keys and name:
        keys = cache.catalog.keys_from(name, _MAX_MATCHES + 1)
    if len(keys) == 1:
        return cache[keys[0]]
    where = f"video: got '{printable(name)}', expected"
    if keys:
        more = " and more" if len(keys) > _MAX_MATCHES else ""
        raise NotFoundError(f"{where} the name of one video. Matching keys: {', '.join(keys[:_MAX_MATCHES])}{more}.")
    raise NotFoundError(
        f"{where} a key, the beginning of a key, or the path of a video of {cache!r}. {hint_for(cache.catalog, name)}"
    )
