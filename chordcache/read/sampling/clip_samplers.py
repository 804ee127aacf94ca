"""Samplers that choose the frames of a clip, as a pure function of video, seed, epoch and sample index."""

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
    """Users of a sample's random numbers. Each has a separate stream, so that a new one does not change the others."""

    SAMPLER = 0
    CROP = 1
    TIME_WARP = 2
    FRAME_DROP = 3
    TEMPORAL_CROP = 4
    ORDER = 5
    """Stream for the order of all samples of an epoch"""


@dataclass(frozen=True)
class ClipRequest:
    """A dataset's request to a clip sampler for one sample.

    Raises
    ------
    UsageError
        If a number is negative, or ``clip`` is not below ``num_clips``.
    """

    seed: int = 0
    """Seed of the dataset"""
    epoch: int = 0
    index: int = 0
    """Index of the sample in its dataset"""
    clip: int = 0
    """Number of the clip of this video, in [0, num_clips)"""
    num_clips: int = 1
    """Number of clips that the dataset takes from each video"""

    def __post_init__(self) -> None:
        check_at_least(0, seed=self.seed, epoch=self.epoch, index=self.index, clip=self.clip)
        check_at_least(self.clip + 1, num_clips=self.num_clips)

    def generator(self, stream: RandomStream = RandomStream.SAMPLER) -> np.random.Generator:
        """Return the random generator of this sample. It gives the same numbers in any process, worker and order.

        Philox is counter based. (seed, epoch) are the key. Index and stream are the two high words of the counter. No
        two samples therefore share numbers, without any hashing or drawing.
        """
        key = np.array([self.seed, self.epoch], np.uint64)
        counter = np.array([0, 0, stream, self.index], np.uint64)
        return np.random.Generator(np.random.Philox(key=key, counter=counter))


class ClipSampler(Protocol):
    """The interface of a clip sampler. Any picklable object with this method can be used."""

    def frame_numbers(self, video: Video, request: ClipRequest) -> np.ndarray:
        """Choose the frames of one sample.

        The result may depend on the arguments only, not on state or global random numbers.

        Parameters
        ----------
        video : Video
            The video of the sample.
        request : ClipRequest
            The number of the sample, its epoch and seed.

        Returns
        -------
        np.ndarray [shape=(T,), dtype=int64, frame numbers in [0, video.num_frames)]
            The frames in the order of the sample. Repeats are allowed.
        """
        ...


PADS = ("repeat", "loop", "error")


@dataclass(frozen=True)
class _EvenClip:
    """Base of samplers whose clips have ``num_frames`` frames, ``stride`` apart."""

    num_frames: int = 16
    """Length T of a clip, [frames]"""
    stride: int = 4
    """Step from one frame of a clip to the next, [frames]"""
    pad: str = "repeat"
    """One of ``PADS``: a video that is shorter than a clip continues with its last frame, or from its start"""

    def __post_init__(self) -> None:
        check_at_least(1, num_frames=self.num_frames, stride=self.stride)
        if self.pad not in PADS:
            raise UsageError(f"pad: got {self.pad!r}, expected one of {', '.join(PADS)}")

    def _last_start(self, video: Video) -> int:
        """Return the last frame number at which a whole clip can start, 0 if the video is shorter than a clip."""
        return max(0, video.num_frames - 1 - (self.num_frames - 1) * self.stride)

    def _clip(self, video: Video, start: int) -> np.ndarray:
        clip = start + self.stride * np.arange(self.num_frames, dtype=np.int64)
        if clip[-1] < video.num_frames:
            return clip
        if self.pad == "error":
            raise UsageError(
                f"video '{video.key}': got {video.num_frames} frames, expected {clip[-1] + 1} for a clip "
                f"of {self.num_frames} that are {self.stride} apart. Choose pad='repeat' or 'loop', or leave the video "
                "out of videos= or of the index."
            )
        return clip % video.num_frames if self.pad == "loop" else np.minimum(clip, video.num_frames - 1)

    def _even_clip(self, video: Video, number: int, num_clips: int) -> np.ndarray:
        """Return one of several clips that are spread evenly over a video."""
        last_start = self._last_start(video)
        return self._clip(video, last_start * number // (num_clips - 1) if num_clips > 1 else last_start // 2)

    def _random_clip(self, video: Video, request: ClipRequest) -> np.ndarray:
        """Return a clip of which every start is equally likely."""
        return self._clip(video, int(request.generator().integers(self._last_start(video) + 1)))


@dataclass(frozen=True)
class UniformSampler(_EvenClip):
    """Sampler of clips at fixed places, the same in every epoch, for validation and tests.

    A single clip is taken from the middle of the video. Of several clips, the first starts at the first frame, the last
    ends at the last frame, and the others are spread evenly between them.

    Parameters
    ----------
    num_frames : int
        Number of frames of a clip.
    stride : int
        Step from one frame to the next. 4 takes every fourth cached frame.
    pad : {"repeat", "loop", "error"}
        Padding of a video that is shorter than a clip. "repeat" repeats its last frame. "loop" starts the video again.
        "error" raises ``UsageError``.

    Raises
    ------
    UsageError
        If an argument is wrong.

    Notes
    -----
    Clip k of n starts at ``last_start * k // (n - 1)``, a single clip at ``last_start // 2``. ``last_start`` is
    ``num_frames_of_video - 1 - (num_frames - 1) * stride``, at least 0.

    Examples
    --------
    In a video of 30 frames, 3 frames that are 5 apart span 11 frames. Clips therefore start in [0, 20):

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
    """Sampler of clips with a random start, different in each epoch, for training.

    Every start that leaves room for a whole clip is equally likely. Several clips of one video are drawn independently.

    Parameters
    ----------
    num_frames, stride, pad
        As in ``UniformSampler``.

    Raises
    ------
    UsageError
        If an argument is wrong.
    """

    def frame_numbers(self, video: Video, request: ClipRequest) -> np.ndarray:
        """Choose the frames of one sample. See ``ClipSampler``."""
        return self._random_clip(video, request)


@dataclass(frozen=True)
class DenseClips(_EvenClip):
    """Sampler of several clips of a video in one sample, spread evenly over the video, for evaluation.

    A sample's arrays have one more leading dimension: ``frames`` is (num_clips, T, 3, h, w), ``pts_seconds``
    (num_clips, T), and so on. ``label``, ``caption`` and ``video`` are unchanged.

    Parameters
    ----------
    num_frames, stride, pad
        As in ``UniformSampler``.
    num_clips : int
        Number of clips of each sample. They have the positions of the clips of ``UniformSampler``.

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
    """Sampler of clips around keyframes. The middle frame of a clip is an intra picture of the source.

    Every intra picture is equally likely. Near the ends of the video, clips are moved inside. If ``frames.fps`` left
    out frames, the nearest kept frames count. Clips of one frame are the intra pictures.

    Parameters
    ----------
    num_frames, stride, pad
        As in ``UniformSampler``.

    Raises
    ------
    UsageError
        If an argument is wrong.
    FeatureAbsentError
        From ``frame_numbers``, if the video was cached without the feature ``motion``, which contains the picture
        types.
    """

    def frame_numbers(self, video: Video, request: ClipRequest) -> np.ndarray:
        """Choose the frames of one sample. See ``ClipSampler``."""
        keyframes = np.flatnonzero(video.picture_types == b"I")
        middle = self.num_frames // 2 * self.stride
        # The first picture of a video counts as a keyframe, whatever its type: decoding cannot begin before it
        chosen = int(keyframes[request.generator().integers(len(keyframes))]) if len(keyframes) else 0
        return self._clip(video, min(max(chosen - middle, 0), self._last_start(video)))


@dataclass(frozen=True)
class AdaptiveSampler(_EvenClip):
    """Sampler that prefers clips with much motion. A start is drawn in proportion to the motion of its clip.

    The cache holds the motion of each second, see ``ContentFacts``. For a video without these facts or without motion,
    clips are drawn as ``RandomClipSampler`` does. Missing facts also give a warning.

    Parameters
    ----------
    num_frames, stride, pad
        As in ``UniformSampler``.
    temperature : float
        A clip's weight is its mean motion to the power of ``1 / temperature``. Near 0, the clip with the most motion is
        taken every time. At 1, a clip with twice the motion is taken twice as often. At large values, all clips are
        equally likely.

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
            return self._random_clip(video, request)
        weights = (motion / motion.max()) ** (1 / self.temperature)
        up_to = np.cumsum(weights)
        start = np.searchsorted(up_to, request.generator().random() * up_to[-1], side="right")
        return self._clip(video, min(int(start), len(weights) - 1))

    def _motion_of_starts(self, video: Video) -> np.ndarray | None:
        """Return the mean motion of a clip at each start [shape=(last_start + 1,), dtype=float64]. None if unknown."""
        if video.content is None or not video.content.motion_per_second:
            warnings.warn(
                "AdaptiveSampler: the motion of a video is not known, its clips are drawn evenly; scan with --level "
                "content and build again to add it",
                stacklevel=2,
            )
            return None
        per_second = np.array(video.content.motion_per_second)
        seconds = (video.pts_seconds - video.pts_seconds[0]).astype(np.int64)
        up_to = np.concatenate([[0.0], np.cumsum(per_second[np.clip(seconds, 0, len(per_second) - 1)])])
        starts = np.arange(self._last_start(video) + 1)
        stops = np.minimum(starts + (self.num_frames - 1) * self.stride + 1, video.num_frames)
        means: np.ndarray = (up_to[stops] - up_to[starts]) / (stops - starts)
        return means


@dataclass(frozen=True)
class SamplerSchedule:
    """Sampler that switches between samplers at given epochs. Workers follow, since each index has the epoch.

    Parameters
    ----------
    stages : mapping of int to ClipSampler
        Samplers by the first epoch of each. One epoch must be 0.

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
            raise UsageError(f"stages: got epochs {', '.join(map(str, self.stages)) or 'none'}, expected one that is 0")

    def at(self, epoch: int) -> ClipSampler:
        """Return the sampler of an epoch."""
        return self.stages[max(first for first in self.stages if first <= epoch)]

    def frame_numbers(self, video: Video, request: ClipRequest) -> np.ndarray:
        """Choose the frames of one sample. See ``ClipSampler``."""
        return self.at(request.epoch).frame_numbers(video, request)
