"""The cache as one object: its videos, and their features as arrays."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import numpy as np

from chordcache.errors import DamageError, FeatureAbsentError, NotFoundError, UsageError, printable
from chordcache.features.frames import FramesReadSide
from chordcache.features.registry import read_side
from chordcache.media.frame_numbers import frame_numbers
from chordcache.records import ContentFacts, FeatureInfo
from chordcache.storage.artefacts.base import Artefact
from chordcache.storage.artefacts.open_files import open_artefact
from chordcache.storage.catalog import Catalog
from chordcache.storage.sidecar import Sidecar

_MAX_RECENT = 256
"""Number of videos that a cache keeps in memory. When it is reached, all of them are dropped."""


class Video:
    """One cached video: the facts of its sidecar, and the times of its frames."""

    def __init__(self, cache: Path, sidecar: Sidecar) -> None:
        self._cache = cache
        self._arrays: dict[str, np.ndarray] = {}
        self.sidecar = sidecar
        self.key = sidecar.key
        self.root = sidecar.root
        self.path = sidecar.path
        """Path relative to the root"""
        self.num_frames = sidecar.num_frames
        self.width = sidecar.width
        """Width of the cached frames, [pixels]"""
        self.height = sidecar.height
        """Height of the cached frames, [pixels]"""
        self.start_seconds = sidecar.start_seconds
        self.duration_seconds = sidecar.duration_seconds
        self.label = sidecar.label
        self.caption = sidecar.caption
        self.extra = sidecar.extra

    @property
    def content(self) -> ContentFacts | None:
        """Motion of the picture and loudness of the sound, second by second."""
        return self.sidecar.content

    def __repr__(self) -> str:
        return f"<Video {self.key}: {self.num_frames} frames {self.width}x{self.height}, {self.duration_seconds:.2f} s>"

    def feature(self, name: str, tier: str | None = None) -> FeatureInfo:
        """Return the record of a feature, which names its artefact.

        Raises
        ------
        FeatureAbsentError
            If the feature was not cached, with the reason.
        """
        info = self.sidecar.feature(name, tier)
        where = f" in tier '{tier}'" if tier else ""
        if info is None:
            have = ", ".join(f"{f.feature} ({f.tier})" for f in self.sidecar.features) or "nothing"
            raise FeatureAbsentError(f"'{name}' of video '{self.key}' is not cached{where}; cached: {have}")
        if info.absent is not None:
            raise FeatureAbsentError(f"'{name}' of video '{self.key}' is absent{where}: {info.absent}")
        return info

    @property
    def pts_seconds(self) -> np.ndarray:
        """Presentation times [shape=(num_frames,), dtype=float64, seconds], on the source's clock."""
        return self._kept("pts_seconds")

    @property
    def source_frames(self) -> np.ndarray:
        """Frame numbers in the source [shape=(num_frames,), dtype=int64]."""
        return self._kept("source_frames")

    @property
    def keyframes(self) -> np.ndarray:
        """Frame numbers of the keyframes [shape=(K,), dtype=int64], ascending.

        A keyframe is a frame that the decoder marks as one, in any codec. If ``frames.fps`` left out a keyframe of the
        source, the first cached frame after it takes its place. The array may be empty.
        """
        return self._kept("keyframes")

    def _kept(self, name: str) -> np.ndarray:
        # Not a cached_property: before Python 3.12 it has one lock for all videos. A reader in another thread may hold
        # that lock while a DataLoader forks, and the worker then waits for it without end
        if name not in self._arrays:
            self._arrays[name] = self._array(name)
        return self._arrays[name]

    @property
    def picture_types(self) -> np.ndarray:
        """Type of each frame in the source, I, P or B [shape=(num_frames,), dtype=S1].

        Raises
        ------
        FeatureAbsentError
            If the feature ``motion``, which contains the types, was not cached.
        """
        info = self.feature("motion")
        with _open_feature(self._cache, info) as artefact:
            return artefact.rows("motion.types", range(self.num_frames))

    def _array(self, name: str) -> np.ndarray:
        for info in self.sidecar.features:
            if info.file is not None:
                with _open_feature(self._cache, info) as artefact:
                    return artefact.array(name)
        raise FeatureAbsentError(f"video '{self.key}' has no cached features, so its frame times are unknown")

    def seconds_of(self, start: int, stop: int) -> tuple[float, float]:
        """Return the time of frame ``start`` and of the end of frame ``stop - 1``, half open, on the source's clock."""
        if start >= stop:
            return 0.0, 0.0
        if stop < self.num_frames:
            return float(self.pts_seconds[start]), float(self.pts_seconds[stop])
        return float(self.pts_seconds[start]), float(np.min(self.pts_seconds)) + self.duration_seconds


class _Opened(NamedTuple):
    """The open files of a cache in a process, as one object, since threads may open and close them concurrently."""

    pid: int
    catalog: Catalog
    recent: dict[int | str, Video]
    """Recent videos with their times, which are parsed once if clips of a video follow each other"""


class Cache:
    """A cache opened for reading. Picklable, thread-safe and fork-safe: each process opens its own files, lazily.

    Parameters
    ----------
    path : str or Path
        A folder that ``build`` made.

    Raises
    ------
    NotFoundError
        If the folder is not a cache.
    DamageError, FormatVersionError
        If the cache cannot be read.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).absolute()
        self._opened: _Opened | None = None
        _ = self._videos  # raises an error now rather than in a worker

    def __getstate__(self) -> dict[str, Path]:
        return {"path": self.path}

    def __setstate__(self, state: dict[str, Path]) -> None:
        self.path = state["path"]
        self._opened = None

    def __enter__(self) -> Cache:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the catalog. Reading opens it again."""
        self._opened = None  # the catalog closes when the last thread stops reading from it

    @property
    def _here(self) -> _Opened:
        opened = self._opened
        if opened is None or opened.pid != os.getpid():
            opened = self._opened = _Opened(os.getpid(), Catalog(self.path), {})
        return opened

    @property
    def _videos(self) -> Catalog:
        return self._here.catalog

    def __repr__(self) -> str:
        return f"<Cache '{printable(self.path)}': {len(self)} videos>"

    def __len__(self) -> int:
        return len(self._videos)

    def __iter__(self) -> Iterator[Video]:
        return (self[position] for position in range(len(self)))

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self._videos.find(key) is not None

    def __getitem__(self, video: int | str) -> Video:
        """Return a video by its key, or by its position in key order.

        Raises
        ------
        NotFoundError
            If no video has this key.
        IndexError
            If the position is out of range.
        """
        opened = self._here
        found = opened.recent.get(video)
        if found is None:
            found = Video(self.path, self._sidecar(opened.catalog, video))
            if len(opened.recent) >= _MAX_RECENT:
                opened.recent.clear()
            opened.recent[video] = found
        return found

    def _sidecar(self, catalog: Catalog, video: int | str) -> Sidecar:
        if not isinstance(video, str):
            position = operator.index(video)  # SQLite takes numpy's integers for bytes
            return catalog.at(position + len(catalog) if position < 0 else position)
        sidecar = catalog.find(video)
        if sidecar is None:
            raise NotFoundError(f"video '{printable(video)}' is not in cache '{printable(self.path)}'")
        return sidecar

    def keys(self) -> list[str]:
        """Return all keys, sorted, which is the order of iteration."""
        return self._videos.keys()

    def labels(self) -> list[str]:
        """Return the distinct labels, sorted."""
        return list(self._videos.labels)

    @property
    def num_frames(self) -> np.ndarray:
        """Number of frames of every video [shape=(len(self),), dtype=int32], in the order of iteration.

        Nothing else is read.
        """
        return self._videos.num_frames

    @property
    def label_ids(self) -> np.ndarray:
        """Position of every video's label in ``labels()`` [shape=(len(self),), dtype=int32], -1 without a label."""
        return self._videos.label_ids

    def read(
        self,
        video: Video | str | int,
        feature: str = "frames",
        start: int | None = None,
        stop: int | None = None,
        *,
        indices: Sequence[int] | np.ndarray | None = None,
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
        ``mel``               [shape=(n_mels, t), dtype=float32, dB], or (C, n_mels, t): the seconds from the first
                              frame to the end of the last, silence where the sound does not reach
        ``pose``              [shape=(T, 33, 4), dtype=float32] x, y, z in pixels of the cached frame, visibility
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
            Frame numbers in any order instead, repeats allowed. Not for mel.
        out : np.ndarray, optional
            C-contiguous memory for the result, of its shape and dtype.
        tier : str, optional
            Tier to read from. By default the first that has the feature, of LMDB, NPZ and HDF5.

        Returns
        -------
        np.ndarray
            The feature, in ``out`` if it was given.

        Raises
        ------
        FeatureAbsentError
            If the feature was not cached for this video, with the reason.
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
        info = video.feature(feature.partition(".")[0], tier)
        if feature not in info.num_rows:
            raise FeatureAbsentError(
                f"'{feature}' of video '{video.key}' is not cached; cached: {', '.join(info.num_rows)}"
            )
        side = read_side(info.feature)
        with _open_feature(self.path, info) as artefact:
            if "row_seconds" in info.facts:
                if indices is not None:
                    raise UsageError(
                        f"indices: got them for '{feature}', which has times of its own, expected start and stop"
                    )
                numbers = range(video.num_frames)[start:stop]
                return side.rows_in(artefact, info, feature, video.seconds_of(numbers.start, numbers.stop), out)
            chosen = _row_numbers(video, feature, info.num_rows[feature], range(video.num_frames)[start:stop], indices)
            return side.rows(artefact, info, feature, chosen, out)

    def iter_frames(self, video: Video | str | int, indices: Sequence[int] | np.ndarray) -> Iterator[np.ndarray]:
        """Read frames of one video, a few at a time. Memory use does not grow with the number of frames.

        Parameters
        ----------
        video : Video, str or int
            The video, its key, or its position.
        indices : sequence of int
            Frame numbers in any order, repeats allowed.

        Yields
        ------
        np.ndarray [shape=(t, H, W, 3), dtype=uint8, 0 to 255, RGB]
            The next frames. Their memory is overwritten with the frames after them.

        Raises
        ------
        FeatureAbsentError, DamageError, IndexError, UsageError
            As in ``read``.
        """
        if not isinstance(video, Video):
            video = self[video]
        info = video.feature("frames")
        with _open_feature(self.path, info) as artefact:
            numbers = _checked_numbers(video, "frames", info.num_rows["frames"], indices)
            yield from FramesReadSide("frames").iter_rows(artefact, info, numbers)


@contextmanager
def _open_feature(cache: Path, info: FeatureInfo) -> Iterator[Artefact]:
    """Open the file of a feature. If the file is damaged, the error says how to repair it."""
    try:
        with open_artefact(cache / str(info.file), info.num_bytes) as artefact:
            yield artefact
    except DamageError as error:
        raise DamageError(f"{error}; run 'chordcache verify --repair {printable(cache)}'") from None


def _row_numbers(
    video: Video,
    feature: str,
    num_rows: int,
    span: range,
    indices: Sequence[int] | np.ndarray | None,
) -> Sequence[int]:
    if indices is None:
        return range(span.start, max(span.start, min(span.stop, num_rows)))
    return _checked_numbers(video, feature, num_rows, indices)


def _checked_numbers(video: Video, feature: str, num_rows: int, indices: Sequence[int] | np.ndarray) -> list[int]:
    rows = "" if num_rows == video.num_frames else f"'{feature}' of "
    return frame_numbers(indices, num_rows, f"{rows}video '{video.key}'")


def open_cache(path: str | Path) -> Cache:
    """Open a cache for reading. See ``Cache``."""
    return Cache(path)
