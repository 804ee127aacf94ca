"""Which frames of which video: a pure function of the video, the seed, the epoch and the sample's index."""

from __future__ import annotations

import enum
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from chordcache.errors import UsageError
from chordcache.read.arguments import check_at_least, check_positive
from chordcache.read.cache import Video


class RandomStream(enum.IntEnum):
    """Who draws the random numbers of a sample: each has a stream of its own, so that adding one moves no other."""

    SAMPLER = 0
    CROP = 1
    TIME_WARP = 2
    FRAME_DROP = 3
    TEMPORAL_CROP = 4
    ORDER = 5
    """Of all samples of an epoch"""


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

    def generator(self, stream: RandomStream = RandomStream.SAMPLER) -> np.random.Generator:
        """Random numbers of this sample alone: the same ones in any process, worker and order.

        Philox is counter based: (seed, epoch) are the key, index and stream the two high words of the counter, so no
        two samples share numbers, and nothing is hashed or drawn on the way.
        """
        key = np.array([self.seed, self.epoch], np.uint64)
        counter = np.array([0, 0, stream, self.index], np.uint64)
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


PADS = ("repeat", "loop", "error")


@dataclass(frozen=True)
class _EvenClip:
    """What clips of ``num_frames`` frames, ``stride`` apart, have in common."""

    num_frames: int = 16
    """[frames] that a clip has, T"""
    stride: int = 4
    """[frames] from one frame of a clip to the next"""
    pad: str = "repeat"
    """Of ``PADS``: what a video that is shorter than a clip goes on with: its last frame, or its first ones again"""

    def __post_init__(self) -> None:
        check_at_least(1, num_frames=self.num_frames, stride=self.stride)
        if self.pad not in PADS:
            raise UsageError(f"pad: got {self.pad!r}, must be one of {', '.join(PADS)}")

    def _last_start(self, video: Video) -> int:
        """The last frame number at which a whole clip can start; 0 if the video is shorter than a clip."""
        return max(0, video.num_frames - 1 - (self.num_frames - 1) * self.stride)

    def _clip(self, video: Video, start: int) -> np.ndarray:
        clip = start + self.stride * np.arange(self.num_frames, dtype=np.int64)
        if clip[-1] < video.num_frames:
            return clip
        if self.pad == "error":
            raise UsageError(
                f"video '{video.key}' has {video.num_frames} frames, but a clip of {self.num_frames}, {self.stride} "
                f"apart, needs {clip[-1] + 1}; choose pad='repeat' or 'loop', or leave the video out, of videos= or of "
                "the index"
            )
        return clip % video.num_frames if self.pad == "loop" else np.minimum(clip, video.num_frames - 1)

    def _even_clip(self, video: Video, number: int, num_clips: int) -> np.ndarray:
        """One of several clips that are spread evenly over a video."""
        last_start = self._last_start(video)
        return self._clip(video, last_start * number // (num_clips - 1) if num_clips > 1 else last_start // 2)


@dataclass(frozen=True)
class UniformSampler(_EvenClip):
    """Clips at fixed places: the same ones in every epoch, for validation and tests.

    One clip of a video is taken from its middle. Of several, the first starts at the first frame, the last ends at
    the last frame, and the others are spread evenly between them.

    Parameters
    ----------
    num_frames : int
        Frames that a clip has.
    stride : int
        Step from one to the next: 4 takes every fourth cached frame.
    pad : {"repeat", "loop", "error"}
        What becomes of a video that is shorter than a clip: its last frame is repeated, it begins again, or
        ``UsageError``.

    Raises
    ------
    UsageError
        If an argument is wrong.

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
        return self._even_clip(video, request.clip, request.num_clips)


@dataclass(frozen=True)
class RandomClipSampler(_EvenClip):
    """Clips that start anywhere: another place in each epoch, for training.

    Every start that leaves room for a whole clip is equally likely; several clips of one video are drawn
    independently.

    Parameters
    ----------
    num_frames : int
        Frames that a clip has.
    stride : int
        Step from one to the next: 4 takes every fourth cached frame.
    pad : {"repeat", "loop", "error"}
        What becomes of a video that is shorter than a clip: its last frame is repeated, it begins again, or
        ``UsageError``.

    Raises
    ------
    UsageError
        If an argument is wrong.
    """

    def frame_numbers(self, video: Video, request: ClipRequest) -> np.ndarray:
        """Choose the frames of one sample. See ``ClipSampler``."""
        return self._clip(video, int(request.generator().integers(self._last_start(video) + 1)))


@dataclass(frozen=True)
class DenseClips(_EvenClip):
    """Several clips of each video in one sample, spread evenly over it, for evaluation.

    A sample's arrays have one more leading dimension: ``frames`` is (num_clips, T, 3, h, w), ``pts_seconds``
    (num_clips, T), and so on; ``label``, ``caption`` and ``video`` are as ever.

    Parameters
    ----------
    num_frames, stride, pad
        As ``UniformSampler`` has them.
    num_clips : int
        Of each sample; they lie as the clips of ``UniformSampler`` do.

    Raises
    ------
    UsageError
        If an argument is wrong.
    """

    num_clips: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(1, num_clips=self.num_clips)

    def frame_numbers(self, video: Video, request: ClipRequest) -> np.ndarray:
        """Choose the frames of one sample [shape=(num_clips, T)]. See ``ClipSampler``."""
        return np.stack([self._even_clip(video, number, self.num_clips) for number in range(self.num_clips)])


@dataclass(frozen=True)
class KeyframeSampler(_EvenClip):
    """Clips around keyframes: the middle frame of a clip is an intra picture of the source.

    Every intra picture is equally likely, but for those near the ends of the video, whose clips are moved inside. Where
    frames were left out by ``frames.fps``, the nearest kept ones count. Clips of one frame are the intra pictures.

    Parameters
    ----------
    num_frames, stride, pad
        As ``UniformSampler`` has them.

    Raises
    ------
    UsageError
        If an argument is wrong.
    FeatureAbsentError
        When it is asked for the frames of a video that was cached without the feature ``motion``, which is what knows
        the types of its pictures.
    """

    def frame_numbers(self, video: Video, request: ClipRequest) -> np.ndarray:
        """Choose the frames of one sample. See ``ClipSampler``."""
        keyframes = np.flatnonzero(video.picture_types == b"I")
        middle = self.num_frames // 2 * self.stride
        # The first picture of a video is a keyframe, whatever it says: nothing before it could be decoded from
        chosen = int(keyframes[request.generator().integers(len(keyframes))]) if len(keyframes) else 0
        return self._clip(video, min(max(chosen - middle, 0), self._last_start(video)))


@dataclass(frozen=True)
class AdaptiveSampler(_EvenClip):
    """Clips where much moves: a start is drawn in proportion to the motion of its clip.

    Motion is what the cache knows of each second, see ``ContentFacts``. A video without such facts, or in which nothing
    moves, gives clips as ``RandomClipSampler`` does; of missing facts a warning says so.

    Parameters
    ----------
    num_frames, stride, pad
        As ``UniformSampler`` has them.
    temperature : float
        A clip's weight is its mean motion to the power of ``1 / temperature``: near 0 the liveliest clip is taken every
        time, at 1 one with twice the motion is taken twice as often, a large one makes all alike.

    Raises
    ------
    UsageError
        If an argument is wrong.
    """

    temperature: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(temperature=self.temperature)

    def frame_numbers(self, video: Video, request: ClipRequest) -> np.ndarray:
        """Choose the frames of one sample. See ``ClipSampler``."""
        motion = self._motion_of_starts(video)
        if motion is None or not motion.max() > 0:
            return self._clip(video, int(request.generator().integers(self._last_start(video) + 1)))
        weights = (motion / motion.max()) ** (1 / self.temperature)
        up_to = np.cumsum(weights)
        start = np.searchsorted(up_to, request.generator().random() * up_to[-1], side="right")
        return self._clip(video, min(int(start), len(weights) - 1))

    def _motion_of_starts(self, video: Video) -> np.ndarray | None:
        """Mean motion of the clip at each start [shape=(last_start + 1,), dtype=float64]; None without facts."""
        if video.content is None or not video.content.motion_per_second:
            warnings.warn(
                "AdaptiveSampler: a video's motion is not known, its clips are drawn evenly; scan with --level content "
                "and build again to know it",
                stacklevel=2,
            )
            return None
        per_second = np.array(video.content.motion_per_second)
        seconds = (video.pts_seconds - video.pts_seconds[0]).astype(np.int64)
        up_to = np.concatenate([[0.0], np.cumsum(per_second[np.minimum(seconds, len(per_second) - 1)])])
        starts = np.arange(self._last_start(video) + 1)
        stops = np.minimum(starts + (self.num_frames - 1) * self.stride + 1, video.num_frames)
        means: np.ndarray = (up_to[stops] - up_to[starts]) / (stops - starts)
        return means


@dataclass(frozen=True)
class SamplerSchedule:
    """Another sampler from certain epochs on. Workers follow it, since the epoch comes with each index.

    Parameters
    ----------
    stages : mapping of int to ClipSampler
        First epoch, of which one is 0, to sampler.

    Raises
    ------
    UsageError
        If there is no sampler for epoch 0.

    Examples
    --------
    >>> schedule = SamplerSchedule({0: UniformSampler(), 10: RandomClipSampler()})
    >>> [type(schedule.at(epoch)).__name__ for epoch in (0, 9, 10, 99)]
    ['UniformSampler', 'UniformSampler', 'RandomClipSampler', 'RandomClipSampler']
    """

    stages: Mapping[int, ClipSampler]

    def __post_init__(self) -> None:
        check_at_least(0, **{f"stages, epoch {epoch!r}": epoch for epoch in self.stages})
        if 0 not in self.stages:
            raise UsageError(f"stages: got epochs {', '.join(map(str, self.stages)) or 'none'}, one must be 0")

    def at(self, epoch: int) -> ClipSampler:
        """The sampler of an epoch."""
        return self.stages[max(first for first in self.stages if first <= epoch)]

    def frame_numbers(self, video: Video, request: ClipRequest) -> np.ndarray:
        """Choose the frames of one sample. See ``ClipSampler``."""
        return self.at(request.epoch).frame_numbers(video, request)
