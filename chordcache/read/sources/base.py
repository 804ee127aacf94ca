"""One small interface to the frames of a video, wherever they are, and the frames of a cache behind it."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, TypeVar

import numpy as np

from chordcache.errors import FeatureAbsentError, UsageError
from chordcache.read.cache import Cache, Video, open_cache
from chordcache.storage.layout import printable

Source = TypeVar("Source", bound="VideoSource")


class VideoSource(ABC):
    """Frames of one video at a time, by their number.

    Made once with its settings, then opened on one video after another. It may be pickled while it is closed; an
    open one belongs to one thread.

    Examples
    --------
    >>> from chordcache import MP4Source
    >>> with MP4Source().open("clip.mp4") as source:  # doctest: +SKIP
    ...     source.get_frame(12).shape
    (720, 1280, 3)
    """

    def __init__(self) -> None:
        self._name = ""
        """Of what is open, "" if nothing is"""

    def open(self: Source, path: str | os.PathLike[str]) -> Source:
        """Open a video; what was open before is closed.

        Raises
        ------
        ChordcacheError
            If it cannot be read.
        """
        self.close()
        name = os.fspath(path)
        try:
            self._open(name)
        except BaseException:  # cleanup boundary
            self._close()
            raise
        self._name = name
        return self

    def close(self) -> None:
        """Close what is open, if anything is."""
        self._name = ""
        self._close()

    def __enter__(self: Source) -> Source:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        if self._name:
            raise UsageError(f"an open source cannot be pickled: close '{printable(self._name)}' first")
        return self.__dict__.copy()

    @property
    @abstractmethod
    def num_frames(self) -> int:
        """Frames that can be shown."""

    @property
    @abstractmethod
    def fps(self) -> float:
        """Frames per second on average."""

    @property
    @abstractmethod
    def pts_seconds(self) -> np.ndarray:
        """Presentation times [shape=(num_frames,), dtype=float64, seconds], on the clock that sound shares."""

    def get_frame(self, index: int) -> np.ndarray:
        """One frame [shape=(H, W, 3), dtype=uint8, 0 to 255, RGB]. See ``get_frames``."""
        frame: np.ndarray = self.get_frames([index])[0]
        return frame

    def get_frames(self, indices: Sequence[int] | np.ndarray) -> np.ndarray:
        """Frames by their numbers, in any order, repeats allowed; each is decoded once.

        Returns
        -------
        np.ndarray [shape=(len(indices), H, W, 3), dtype=uint8, 0 to 255, RGB]

        Raises
        ------
        IndexError
            If a number is not in [0, num_frames).
        MediaError
            If one cannot be decoded.
        UsageError
            If ``indices`` are no numbers of frames, or nothing is open.
        """
        numbers = self._checked(indices)
        if not numbers:
            return np.empty((0, 0, 0, 3), np.uint8)
        wanted = sorted(set(numbers))
        places: dict[int, list[int]] = {number: [] for number in wanted}
        for place, number in enumerate(numbers):
            places[number].append(place)
        out: np.ndarray | None = None
        for number, frame in zip(wanted, self._read(wanted), strict=True):
            if out is None:
                out = np.empty((len(numbers), *frame.shape), np.uint8)
            out[places[number]] = frame
        assert out is not None
        return out

    @abstractmethod
    def get_audio_chunk(self, start_seconds: float, duration_seconds: float) -> np.ndarray:
        """Sound from a time on.

        Parameters
        ----------
        start_seconds : float
            [seconds] on the clock of ``pts_seconds``.
        duration_seconds : float
            [seconds]

        Returns
        -------
        np.ndarray [shape=(num_samples, channels), dtype=float32, -1 to 1]
            ``round(duration_seconds * sample_rate)`` samples; silence where there is no sound.

        Raises
        ------
        FeatureAbsentError
            If there is none to be had at all.
        """

    @property
    @abstractmethod
    def sample_rate(self) -> int:
        """[Hz] of ``get_audio_chunk``. Raises ``FeatureAbsentError`` as it does."""

    @abstractmethod
    def _open(self, name: str) -> None: ...

    @abstractmethod
    def _close(self) -> None: ...

    @abstractmethod
    def _read(self, wanted: list[int]) -> Iterator[np.ndarray]:
        """The frames of these numbers, which ascend and are in range."""

    def _check_open(self) -> None:
        if not self._name:
            raise UsageError(f"nothing is open: call {type(self).__name__}.open(path) first")

    def _checked(self, indices: Sequence[int] | np.ndarray) -> list[int]:
        self._check_open()
        chosen = np.asarray(indices)
        if chosen.ndim != 1 or (chosen.size and chosen.dtype.kind not in "iu"):
            raise UsageError(f"indices must be frame numbers, got {chosen.dtype} {chosen.shape}")
        numbers: list[int] = chosen.tolist()
        for number in numbers:
            self._check_number(number)
        return numbers

    def _check_number(self, number: int) -> None:
        if not 0 <= number < self.num_frames:
            raise IndexError(
                f"frame {number} is out of range for '{printable(self._name)}' of {self.num_frames} frames"
            )


class CachedSource(VideoSource):
    """The frames of a cached video; ``open`` takes its key.

    Frame numbers are the cache's, see ``Video.source_frames``.

    Parameters
    ----------
    cache : Cache, str or Path
        Or its folder.
    """

    def __init__(self, cache: Cache | str | os.PathLike[str]) -> None:
        super().__init__()
        self._cache = cache if isinstance(cache, Cache) else open_cache(os.fspath(cache))
        self._video: Video | None = None

    def _open(self, name: str) -> None:
        self._video = self._cache[name]

    def _close(self) -> None:
        self._video = None

    @property
    def _opened(self) -> Video:
        self._check_open()
        assert self._video is not None
        return self._video

    @property
    def num_frames(self) -> int:
        """Cached frames."""
        return self._opened.num_frames

    @property
    def fps(self) -> float:
        """Cached frames per second on average."""
        times, num_frames = self.pts_seconds, self.num_frames
        span = float(times[-1] - times[0])
        return (num_frames - 1) / span if span > 0 else num_frames / self._opened.duration_seconds

    @property
    def pts_seconds(self) -> np.ndarray:
        """Presentation times [shape=(num_frames,), dtype=float64, seconds], on the source's clock."""
        return self._opened.pts_seconds

    def get_audio_chunk(self, start_seconds: float, duration_seconds: float) -> np.ndarray:
        """Raise ``FeatureAbsentError``: a cache holds spectrograms, no samples."""
        raise self._no_sound()

    @property
    def sample_rate(self) -> int:
        """Raises ``FeatureAbsentError``."""
        raise self._no_sound()

    def _no_sound(self) -> FeatureAbsentError:
        return FeatureAbsentError(
            f"a cache holds no samples of sound: open the source of '{self._opened.key}' with MP4Source, or read the "
            "feature 'mel'"
        )

    def _read(self, wanted: list[int]) -> Iterator[np.ndarray]:
        yield from self._cache.read(self._opened, indices=wanted)
