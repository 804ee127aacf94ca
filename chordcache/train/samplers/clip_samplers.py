"""Samplers that choose the frames of a clip, as a pure function of video, seed, epoch and sample index."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from chordcache.arguments import check_at_least, check_choice, names_arguments
from chordcache.errors import UsageError
from chordcache.read.video import Video
from chordcache.train.samplers.clip_request import ClipRequest, ClipSampler, ClipShape, clip_shape
from chordcache.train.samplers.even_clips import EvenClips, EvenClipSampler


@names_arguments
@dataclass(frozen=True)
class RegularClipSampler(EvenClipSampler):
    """Sampler of clips at fixed places, the same in every epoch, for validation and tests.

    A single clip is taken from the middle of the video. Of several clips, the first starts at the first frame, the last
    ends at the last frame, and the others are spread evenly between them.

    Parameters
    ----------
    num_frames : int
        Number of frames of a clip.
    stride : int, optional
        Step from one frame to the next. 4 takes every fourth cached frame. By default 4, unless ``fps`` is given.
    pad : {"repeat", "loop", "error"}
        Padding of a video that is shorter than a clip. "repeat" repeats its last frame. "loop" starts the video again.
        "error" raises ``UsageError``.
    fps : float, optional
        Rate [frames per second] of the clip, at any rate of the video. Frames are then chosen by their presentation
        times. Do not give ``stride`` too.
    within_shots : bool
        True to move a clip with a hard cut in it into the shot of its middle frame. A shorter shot is padded.

    Raises
    ------
    UsageError
        If an argument is wrong. From ``frame_numbers``, with ``pad="error"``, if the video is shorter than a clip.

    Notes
    -----
    Clip k of n starts at ``last_start * k // (n - 1)``, a single clip at ``last_start // 2``. ``last_start`` is
    ``num_frames_of_video - 1 - (num_frames - 1) * stride``, at least 0.

    With ``fps``, a start is a time, and ``last_start`` is ``(num_frames - 1) / fps`` seconds before the last frame.
    Frame i of a clip is the cached frame whose presentation time is nearest to the start plus ``i / fps`` seconds.
    In the middle between two frames, to within 1 ms, the earlier one is taken. Frames repeat if ``fps`` is above the
    rate of the video. A clip is padded if one of its times is not before the end of the last frame. Where the clock of
    a video is set back, its times continue one frame later.

    Source: torchcodec's ``clips_at_regular_indices``, which rounds the same way. It takes a single clip from the start.

    Examples
    --------
    In a video of 30 frames, 3 frames that are 5 apart span 11 frames. Clips therefore start in [0, 20):

    >>> from types import SimpleNamespace
    >>> video, sampler = SimpleNamespace(num_frames=30), RegularClipSampler(num_frames=3, stride=5)
    >>> sampler.frame_numbers(video, ClipRequest()).tolist()
    [9, 14, 19]
    >>> [sampler.frame_numbers(video, ClipRequest(clip=k, num_clips=3)).tolist() for k in range(3)]
    [[0, 5, 10], [9, 14, 19], [19, 24, 29]]
    """

    def _choose_clip(self, clips: EvenClips, video: Video, request: ClipRequest) -> np.ndarray:
        return clips.even_clip(request.clip, request.num_clips)


@dataclass(frozen=True)
class UniformFrameSampler:
    """Sampler of frames that are spread evenly over the whole video, for a model that sees each video as a few frames.

    The step from one frame to the next depends on the length of the video. Frames of a video that has fewer than
    ``num_frames`` repeat.

    Parameters
    ----------
    num_frames : int
        Number of frames of a sample.
    position : {"ends", "middle", "random"}
        "ends" takes the first frame, the last frame, and frames at equal steps between them. The other two divide the
        video into ``num_frames`` equal parts. "middle" takes the frame in the middle of each part, "random" a random
        frame of each part, which differs from epoch to epoch. Several clips of one video only differ with "random".

    Raises
    ------
    UsageError
        If an argument is wrong.

    Notes
    -----
    Of N frames, frame i of n is ``i * (N - 1) // (n - 1)`` with "ends", or 0 if n is 1. With "middle" it is
    ``(2 * i + 1) * N // (2 * n)``. With "random" it is drawn from ``[i * N // n, (i + 1) * N // n)``.

    Source: "ends" is ``numpy.linspace(0, N - 1, n, dtype=int)``, as in the recipes of video language models, and
    torchcodec's ``clips_at_regular_indices`` of one frame each. "middle" and "random" are the frames of TSN (Wang et
    al. 2016) in tests and in training.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> video = SimpleNamespace(num_frames=100)
    >>> UniformFrameSampler(5).frame_numbers(video, ClipRequest()).tolist()
    [0, 24, 49, 74, 99]
    >>> UniformFrameSampler(5, position="middle").frame_numbers(video, ClipRequest()).tolist()
    [10, 30, 50, 70, 90]
    """

    num_frames: int = 16
    position: str = "ends"

    def __post_init__(self) -> None:
        check_at_least(1, num_frames=self.num_frames)
        check_choice(("ends", "middle", "random"), position=self.position)

    def frame_numbers(self, video: Video, request: ClipRequest) -> np.ndarray:
        """Choose the frames of one sample. See ``ClipSampler``."""
        numbers = np.arange(self.num_frames, dtype=np.int64)
        if self.position == "ends":
            return numbers * (video.num_frames - 1) // max(1, self.num_frames - 1)
        if self.position == "middle":
            return (2 * numbers + 1) * video.num_frames // (2 * self.num_frames)
        starts, stops = (part * video.num_frames // self.num_frames for part in (numbers, numbers + 1))
        return request.generator().integers(starts, np.maximum(stops, starts + 1))

    def clip_shape(self, num_frames: np.ndarray, epoch: int) -> ClipShape:
        """Return the number of frames of a sample. See ``ClipSampler``."""
        return (self.num_frames,)


@names_arguments
@dataclass(frozen=True)
class RandomClipSampler(EvenClipSampler):
    """Sampler of clips with a random start, different in each epoch, for training.

    Every start that leaves room for a whole clip is equally likely. With ``fps``, a start is any time rather than that
    of a frame. Several clips of one video are drawn independently.

    Arguments and errors are those of ``RegularClipSampler``.

    Notes
    -----
    Source: torchcodec's ``clips_at_random_indices``, and with ``fps`` its ``clips_at_random_timestamps``. It takes the
    frame that is shown at each time. This sampler takes the nearest one, and clips start at most
    ``(num_frames - 1) / fps`` seconds before the last frame instead of its end.

    Examples
    --------
    16 frames that cover 2 seconds, whatever the rate of the video:

    >>> RandomClipSampler(num_frames=16, fps=8)
    RandomClipSampler(num_frames=16, stride=None, pad='repeat', fps=8, within_shots=False)
    """

    def _choose_clip(self, clips: EvenClips, video: Video, request: ClipRequest) -> np.ndarray:
        return clips.random_clip(request.generator())


@dataclass(frozen=True)
class KeyframeSampler(EvenClipSampler):
    """Sampler of clips around keyframes. The middle frame of a clip is a keyframe of the source.

    The cache holds the keyframes of every codec, see ``Video.keyframes``. Every keyframe is equally likely. Near the
    ends of the video, clips are moved inside. If ``frames.fps`` left out a keyframe, the first cached frame after it
    takes its place, because a keyframe often begins a scene. Clips of one frame are the keyframes. In a video without
    keyframes, the first frame counts as one.

    Arguments and errors are those of ``RegularClipSampler``.
    """

    def _choose_clip(self, clips: EvenClips, video: Video, request: ClipRequest) -> np.ndarray:
        keyframes = video.keyframes
        return clips.clip_around(int(keyframes[request.generator().integers(len(keyframes))]) if len(keyframes) else 0)


@dataclass(frozen=True)
class SamplerSchedule:
    """Sampler that switches between samplers at given epochs. Workers follow, since each index has the epoch.

    Plain indices without ``dataset.set_epoch`` are of epoch 0.

    Parameters
    ----------
    stages : mapping of int to ClipSampler
        Samplers by the first epoch of each. One epoch must be 0.

    Raises
    ------
    UsageError
        If epoch 0 does not have a sampler.

    Examples
    --------
    >>> schedule = SamplerSchedule({0: RegularClipSampler(), 10: RandomClipSampler()})
    >>> [type(schedule.at(epoch)).__name__ for epoch in (0, 9, 10, 99)]
    ['RegularClipSampler', 'RegularClipSampler', 'RandomClipSampler', 'RandomClipSampler']
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

    def clip_shape(self, num_frames: np.ndarray, epoch: int) -> ClipShape | None:
        """Return what the sampler of the epoch returns. See ``ClipSampler``."""
        return clip_shape(self.at(epoch), num_frames, epoch)
