"""Which frames of which video: a pure function of the video, the seed, the epoch and the sample's index."""

from __future__ import annotations

import numbers
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from chordcache.cache import Video
from chordcache.errors import UsageError


def check_at_least(least: int, **values: object) -> None:
    """Raise ``UsageError`` for the first value that is no integer, or too small."""
    for name, value in values.items():
        if not isinstance(value, numbers.Integral) or value < least:
            raise UsageError(f"{name}: got {value!r}, must be an integer of at least {least}")


@dataclass(frozen=True)
class ClipRequest:
    """Which sample a dataset asks a sampler for.

    Raises
    ------
    UsageError
        If a number is negative, or ``clip`` is not below ``num_clips``.
    """

    seed: int = 0
    """The dataset's"""
    epoch: int = 0
    index: int = 0
    """Of the sample in its dataset"""
    clip: int = 0
    """Of this video, in [0, num_clips)"""
    num_clips: int = 1
    """That the dataset takes of each video"""

    def __post_init__(self) -> None:
        check_at_least(0, seed=self.seed, epoch=self.epoch, index=self.index, clip=self.clip)
        check_at_least(self.clip + 1, num_clips=self.num_clips)

    def generator(self) -> np.random.Generator:
        """Random numbers of this sample alone: the same ones in any process, worker and order.

        Philox is counter based: (seed, epoch) are the key and the index is the high word of the counter, so no two
        samples share a stream, and nothing is hashed or drawn on the way.
        """
        key = np.array([self.seed, self.epoch], np.uint64)
        counter = np.array([0, 0, 0, self.index], np.uint64)
        return np.random.Generator(np.random.Philox(key=key, counter=counter))


class ClipSampler(Protocol):
    """What a dataset needs of a sampler. Any picklable object with this method will do."""

    def frame_numbers(self, video: Video, request: ClipRequest) -> np.ndarray:
        """Choose the frames of one sample.

        The answer may depend on the arguments only: no state, no global random numbers.

        Parameters
        ----------
        video : Video
            Where to choose from.
        request : ClipRequest
            Which sample it is.

        Returns
        -------
        np.ndarray [shape=(T,), dtype=int64, frame numbers in [0, video.num_frames)]
            In the order in which they are handed out; repeats are allowed.
        """
        ...


@dataclass(frozen=True)
class _EvenClip:
    """What clips of ``num_frames`` frames, ``stride`` apart, have in common."""

    num_frames: int = 16
    """[frames] that a clip has, T"""
    stride: int = 4
    """[frames] from one frame of a clip to the next"""

    def __post_init__(self) -> None:
        check_at_least(1, num_frames=self.num_frames, stride=self.stride)

    def _last_start(self, video: Video) -> int:
        """The last frame number at which a whole clip can start; 0 if the video is shorter than a clip."""
        return max(0, video.num_frames - 1 - (self.num_frames - 1) * self.stride)

    def _clip(self, video: Video, start: int) -> np.ndarray:
        clip = start + self.stride * np.arange(self.num_frames, dtype=np.int64)
        return np.minimum(clip, video.num_frames - 1)


@dataclass(frozen=True)
class UniformSampler(_EvenClip):
    """Clips at fixed places: the same ones in every epoch, for validation and tests.

    One clip of a video is taken from its middle. Of several, the first starts at the first frame, the last ends at
    the last frame, and the others are spread evenly between them. In a video that is shorter than the clip, the last
    frame is repeated.

    Parameters
    ----------
    num_frames : int
        Frames that a clip has.
    stride : int
        Step from one to the next: 4 takes every fourth cached frame.

    Raises
    ------
    UsageError
        If either is not an integer of at least 1.

    Notes
    -----
    Clip k of n starts at ``last_start * k // (n - 1)``, one clip at ``last_start // 2``, where ``last_start`` is
    ``num_frames_of_video - 1 - (num_frames - 1) * stride``, at least 0.

    Examples
    --------
    A video of 30 frames; 3 frames, 5 apart, span 11, so that clips start in [0, 20):

    >>> from types import SimpleNamespace
    >>> video, sampler = SimpleNamespace(num_frames=30), UniformSampler(num_frames=3, stride=5)
    >>> sampler.frame_numbers(video, ClipRequest()).tolist()
    [9, 14, 19]
    >>> [sampler.frame_numbers(video, ClipRequest(clip=k, num_clips=3)).tolist() for k in range(3)]
    [[0, 5, 10], [9, 14, 19], [19, 24, 29]]
    """

    def frame_numbers(self, video: Video, request: ClipRequest) -> np.ndarray:
        """Choose the frames of one sample. See ``ClipSampler``."""
        last_start = self._last_start(video)
        if request.num_clips == 1:
            return self._clip(video, last_start // 2)
        return self._clip(video, last_start * request.clip // (request.num_clips - 1))


@dataclass(frozen=True)
class RandomClipSampler(_EvenClip):
    """Clips that start anywhere: another place in each epoch, for training.

    Every start that leaves room for a whole clip is equally likely; several clips of one video are drawn
    independently. In a video that is shorter than the clip, the last frame is repeated.

    Parameters
    ----------
    num_frames : int
        Frames that a clip has.
    stride : int
        Step from one to the next: 4 takes every fourth cached frame.

    Raises
    ------
    UsageError
        If either is not an integer of at least 1.
    """

    def frame_numbers(self, video: Video, request: ClipRequest) -> np.ndarray:
        """Choose the frames of one sample. See ``ClipSampler``."""
        return self._clip(video, int(request.generator().integers(self._last_start(video) + 1)))
