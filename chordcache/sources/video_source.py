"""Interface to the frames of a video in any place, and its implementation for the frames of a cache."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np

from chordcache.errors import AbsentFeatureError, NotFoundError, UsageError, printable
from chordcache.media.frame_numbers import frame_numbers
from chordcache.read.cache import Cache, open_cache
from chordcache.read.video import Video

Source = TypeVar("Source", bound="VideoSource")


class VideoSource(ABC):
    """Base class of the sources that read frames of one video at a time, by frame number.

    A source is made once with its settings, then opened on one video after another. A closed source can be pickled. An
    open source belongs to one thread.

    Examples
    --------
    >>> from chordcache import MP4Source
    >>> with MP4Source().open("clip.mp4") as source:  # doctest: +SKIP
    ...     source.get_frame(12).shape
    (720, 1280, 3)
    """

    is_live: ClassVar[bool] = False
    """True if frames arrive at the sender's pace, and cannot be read again"""

    stereo: str = "as_is"
    """Eye of stereo pictures that the frames show, as ``frames.stereo`` of a config"""

    inside: str | None = None
    """Real folder that links must not lead the path out of. None if they may"""

    max_fps: float | None = None
    """[frames per second] Rate of the frames that a dataset takes from the source, at most. None takes all"""

    def __init__(self) -> None:
        self._name = ""
        """Name of the open video, "" if none is open"""

    def open(self: Source, path: str | os.PathLike[str]) -> Source:
        """Open a video, and close the one before. Raises ``ChordcacheError`` if the video cannot be read."""
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
        """Close the open video, if there is one."""
        self._name = ""
        self._close()

    def __enter__(self: Source) -> Source:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        if self._name:
            raise UsageError(f"an open source cannot be pickled: close '{printable(self._name)}' first")
        return self.__dict__.copy()

    @property
    @abstractmethod
    def num_frames(self) -> int:
        """Number of frames."""

    @property
    @abstractmethod
    def fps(self) -> float:
        """Average frames per second."""

    @property
    @abstractmethod
    def pts_seconds(self) -> np.ndarray:
        """Presentation times [shape=(num_frames,), dtype=float64, seconds], on the clock of the sound."""

    def get_frame(self, index: int) -> np.ndarray:
        """Return one frame [shape=(H, W, 3), dtype=uint8, 0 to 255, RGB]. See ``get_frames``."""
        frame: np.ndarray = self.get_frames([index])[0]
        return frame

    def get_frames(self, indices: Sequence[int] | np.ndarray) -> np.ndarray:
        """Return frames by their numbers, in any order, repeats allowed. Each frame is decoded once.

        Returns
        -------
        np.ndarray [shape=(len(indices), H, W, 3), dtype=uint8, 0 to 255, RGB]

        Raises
        ------
        IndexError
            If a number is not in [0, num_frames).
        MediaError
            If a frame cannot be decoded.
        UsageError
            If ``indices`` are not frame numbers, or no video is open.
        """
        numbers = self._checked(indices)
        if not numbers:
            return np.empty((0, 0, 0, 3), np.uint8)
        wanted, places = np.unique(numbers, return_inverse=True)
        out: np.ndarray | None = None
        for place, frame in zip(range(len(wanted)), self._read(wanted.tolist()), strict=True):
            if out is None:
                out = np.empty((len(numbers), *frame.shape), np.uint8)
            out[places == place] = frame
        assert out is not None
        return out

    @abstractmethod
    def get_audio_chunk(self, start_seconds: float, duration_seconds: float) -> np.ndarray:
        """Return sound that begins at a time.

        Parameters
        ----------
        start_seconds : float
            Begin of the sound, [seconds] on the clock of ``pts_seconds``.
        duration_seconds : float
            Length of the sound, [seconds].

        Returns
        -------
        np.ndarray [shape=(num_samples, channels), dtype=float32, -1 to 1]
            ``round(duration_seconds * sample_rate)`` samples, with silence where sound is missing.

        Raises
        ------
        NotFoundError
            If the source does not provide sound.
        """

    @property
    @abstractmethod
    def sample_rate(self) -> int:
        """Sample rate [Hz] of ``get_audio_chunk``. Raises ``NotFoundError`` as that method does."""

    @abstractmethod
    def _open(self, name: str) -> None: ...

    @abstractmethod
    def _close(self) -> None: ...

    @abstractmethod
    def _read(self, wanted: list[int]) -> Iterator[np.ndarray]:
        """Yield the frames of these numbers, which ascend and are in range."""

    def _check_open(self) -> None:
        if not self._name:
            raise UsageError(f"nothing is open: call {type(self).__name__}.open(path) first")

    def _checked(self, indices: Sequence[int] | np.ndarray) -> list[int]:
        self._check_open()
        num_readable = None if self.is_live else self.num_frames  # of a live source, more are to come
        return frame_numbers(indices, num_readable, f"'{printable(self._name)}'")


class CachedSource(VideoSource):
    """The frames of a cached video. ``open`` takes its key.

    Frame numbers are the cache's, not the source's. See ``Video.source_frames``.

    Parameters
    ----------
    cache : Cache, str or Path
        The cache, or its folder.
    """

    def __init__(self, cache: Cache | str | os.PathLike[str]) -> None:
        super().__init__()
        self.cache = cache if isinstance(cache, Cache) else open_cache(os.fspath(cache))
        self._video: Video | None = None

    def _open(self, name: str) -> None:
        self._video = self.cache[name]

    def _close(self) -> None:
        self._video = None

    @property
    def _opened(self) -> Video:
        self._check_open()
        assert self._video is not None
        return self._video

    @property
    def num_frames(self) -> int:
        """Number of cached frames."""
        return self._opened.num_frames

    @property
    def fps(self) -> float:
        """Average cached frames per second."""
        times, num_frames = self.pts_seconds, self.num_frames
        span = float(times[-1] - times[0])
        return (num_frames - 1) / span if span > 0 else num_frames / self._opened.duration_seconds

    @property
    def pts_seconds(self) -> np.ndarray:
        """Presentation times [shape=(num_frames,), dtype=float64, seconds], on the source's clock."""
        return self._opened.pts_seconds

    def get_audio_chunk(self, start_seconds: float, duration_seconds: float) -> np.ndarray:
        """Raise ``NotFoundError``. A cache holds spectrograms, not sound samples."""
        raise self._no_sound()

    @property
    def sample_rate(self) -> int:
        """Sample rate, which is not available. Raises ``NotFoundError``."""
        raise self._no_sound()

    def _no_sound(self) -> NotFoundError:
        return AbsentFeatureError(
            f"a cache holds no samples of sound: open the source of '{self._opened.key}' with MP4Source, or read the "
            "feature 'mel'"
        )

    def _read(self, wanted: list[int]) -> Iterator[np.ndarray]:
        yield from self.cache.read(self._opened, indices=wanted)
