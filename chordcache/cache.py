"""The cache as one object: which videos there are, and their features as arrays."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType

import numpy as np

from chordcache import jpeg
from chordcache.catalog import Catalog
from chordcache.errors import DamageError, FeatureAbsent, NotFound, UsageError
from chordcache.manifest import Sidecar, printable
from chordcache.records import FeatureInfo
from chordcache.stores.lmdb_store import LmdbRecords, open_records


class Video:
    """One cached video: what its sidecar says, and its timeline."""

    def __init__(self, cache: Path, sidecar: Sidecar) -> None:
        self._cache = cache
        self.sidecar = sidecar
        self.key = sidecar.key
        self.root = sidecar.root
        self.path = sidecar.path
        """Relative to the root"""
        self.num_frames = sidecar.num_frames
        self.width = sidecar.width
        """[pixels] of the cached frames"""
        self.height = sidecar.height
        """[pixels] of the cached frames"""
        self.start_seconds = sidecar.start_seconds
        self.duration_seconds = sidecar.duration_seconds
        self.label = sidecar.label
        self.caption = sidecar.caption
        self.extra = sidecar.extra

    def __repr__(self) -> str:
        return f"<Video {self.key}: {self.num_frames} frames {self.width}x{self.height}, {self.duration_seconds:.2f} s>"

    def feature(self, name: str, tier: str | None = None) -> FeatureInfo:
        """The artefact that holds a feature.

        Raises
        ------
        FeatureAbsent
            If it was not cached, with the reason.
        """
        info = self.sidecar.feature(name, tier)
        where = f" in tier '{tier}'" if tier else ""
        if info is None:
            have = ", ".join(f"{f.feature} ({f.tier})" for f in self.sidecar.features) or "nothing"
            raise FeatureAbsent(f"'{name}' of video '{self.key}' is not cached{where}; cached: {have}")
        if info.absent is not None:
            raise FeatureAbsent(f"'{name}' of video '{self.key}' is absent{where}: {info.absent}")
        return info

    @cached_property
    def pts_seconds(self) -> np.ndarray:
        """Presentation times [shape=(num_frames,), dtype=float64, seconds], on the source's clock."""
        return self._array("pts_seconds")

    @cached_property
    def source_frames(self) -> np.ndarray:
        """Frame numbers in the source [shape=(num_frames,), dtype=int64]."""
        return self._array("source_frames")

    def _array(self, name: str) -> np.ndarray:
        info = self.feature("frames")
        with open_records(self._cache / str(info.file), info.num_bytes) as records:
            return records.array(name)


class Cache:
    """A cache opened for reading. Picklable, thread-safe and fork-safe: each process opens its own files, lazily.

    Parameters
    ----------
    path : str or Path
        A folder that ``build`` made.

    Raises
    ------
    NotFound
        If it is not a cache.
    DamageError, FormatVersionError
        If it cannot be read.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).absolute()
        self._catalog: Catalog | None = None
        self._pid = 0
        _ = self._videos  # an error now rather than in a worker

    def __getstate__(self) -> dict[str, Path]:
        return {"path": self.path}

    def __setstate__(self, state: dict[str, Path]) -> None:
        self.path = state["path"]
        self._catalog, self._pid = None, 0

    def __enter__(self) -> Cache:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the catalog. Reading opens it again."""
        if self._catalog is not None and self._pid == os.getpid():
            self._catalog.close()
        self._catalog = None

    @property
    def _videos(self) -> Catalog:
        if self._catalog is None or self._pid != os.getpid():
            self._catalog, self._pid = Catalog(self.path), os.getpid()
        return self._catalog

    def __repr__(self) -> str:
        return f"<Cache '{printable(self.path)}': {len(self)} videos>"

    def __len__(self) -> int:
        return len(self._videos)

    def __iter__(self) -> Iterator[Video]:
        return (self[position] for position in range(len(self)))

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self._videos.find(key) is not None

    def __getitem__(self, video: int | str) -> Video:
        """A video by its key, or by its position in key order.

        Raises
        ------
        NotFound
            If no video has this key.
        IndexError
            If the position is out of range.
        """
        if isinstance(video, str):
            sidecar = self._videos.find(video)
            if sidecar is None:
                raise NotFound(f"video '{printable(video)}' is not in cache '{printable(self.path)}'")
            return Video(self.path, sidecar)
        return Video(self.path, self._videos.at(video + len(self) if video < 0 else video))

    def keys(self) -> list[str]:
        """All keys, sorted: the order of iteration."""
        return self._videos.keys()

    def labels(self) -> list[str]:
        """The distinct labels, sorted."""
        return self._videos.labels()

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
        """Read frames of one video.

        Parameters
        ----------
        video : Video, str or int
            Or its key, or its position.
        feature : {"frames"}
            What to read.
        start, stop : int, optional
            Frame numbers, half open, as slices have them; all frames by default.
        indices : sequence of int, optional
            Frame numbers in any order instead, repeats allowed.
        out : np.ndarray [shape=(T, H, W, 3), dtype=uint8], optional
            Contiguous memory to decode into.
        tier : str, optional
            Where to read from, if several tiers hold the feature.

        Returns
        -------
        np.ndarray [shape=(T, H, W, 3), dtype=uint8, 0 to 255, RGB]
            ``out`` if it was given.

        Raises
        ------
        FeatureAbsent
            If the feature was not cached for this video.
        DamageError
            If a record is not what was written.
        IndexError
            If a frame number is out of range.
        """
        if not isinstance(video, Video):
            video = self[video]
        if indices is not None and (start is not None or stop is not None):
            raise UsageError("give start and stop, or indices, not both")
        info = video.feature(feature, tier)
        numbers = _frame_numbers(video, start, stop, indices)
        shape = (len(numbers), *info.shape[1:])
        if out is None:
            out = np.empty(shape, np.uint8)
        elif out.shape != shape or out.dtype != np.uint8 or not out.flags.c_contiguous:
            raise UsageError(f"out must be a contiguous uint8 array of shape {shape}, got {out.dtype} {out.shape}")
        path = self.path / str(info.file)
        try:
            with open_records(path, info.num_bytes) as records:
                _read_frames(records, numbers, info.params["codec"], out)
        except DamageError as error:
            raise DamageError(f"{error}; run 'chordcache verify --repair {printable(self.path)}'") from None
        return out


def _frame_numbers(
    video: Video, start: int | None, stop: int | None, indices: Sequence[int] | np.ndarray | None
) -> Sequence[int]:
    if indices is None:
        return range(video.num_frames)[start:stop]
    numbers: list[int] = np.asarray(indices, np.int64).tolist()
    for number in numbers:
        if not 0 <= number < video.num_frames:
            raise IndexError(f"frame {number} is out of range for video '{video.key}' of {video.num_frames} frames")
    return numbers


def _read_frames(records: LmdbRecords, numbers: Sequence[int], codec: str, out: np.ndarray) -> None:
    if codec == "raw":
        for i, record in enumerate(records.iter_records(numbers, recheck=False)):
            out[i].reshape(-1)[:] = np.frombuffer(record, np.uint8)
        return
    for i, record in enumerate(records.iter_records(numbers)):
        if i and numbers[i] == numbers[i - 1]:  # a short video's last frame, repeated
            out[i] = out[i - 1]
        else:
            jpeg.decode_into(record, out[i])


def open_cache(path: str | Path) -> Cache:
    """Open a cache for reading. See ``Cache``."""
    return Cache(path)
