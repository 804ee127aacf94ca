"""Samplers that change the frame numbers of another sampler: faster or slower, with lost frames, or shorter.

They raise ``UsageError`` for an argument that is out of range.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from chordcache.arguments import check_at_least, check_range, check_share
from chordcache.errors import UsageError
from chordcache.read.video import Video
from chordcache.train.samplers.clip_request import ClipRequest, ClipSampler, ClipShape, RandomStream, clip_shape


@dataclass(frozen=True)
class TimeWarp:
    """Sampler that plays another sampler's clips faster or slower, each clip at its own random speed.

    The middle of the clip keeps its place. A clip that would leave the video is moved inside. If it does not fit at
    all, the speed is the highest at which it does. Mel and waveform cover the same seconds as the clip. Their length
    therefore differs from sample to sample, and ``collate`` pads it.

    Parameters
    ----------
    sampler : ClipSampler
        Sampler of the clips.
    speed : tuple of float
        (least, most) speed, drawn uniformly on a logarithmic scale. 2 takes every second frame of the clip.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> from chordcache.train.samplers.clip_samplers import RegularClipSampler
    >>> video, clips = SimpleNamespace(num_frames=100), RegularClipSampler(num_frames=5, stride=4)
    >>> clips.frame_numbers(video, ClipRequest()).tolist()
    [41, 45, 49, 53, 57]
    >>> TimeWarp(clips, speed=(2, 2)).frame_numbers(video, ClipRequest()).tolist()
    [33, 41, 49, 57, 65]
    """

    sampler: ClipSampler
    speed: tuple[float, float] = (0.5, 2.0)

    def __post_init__(self) -> None:
        check_range("speed", self.speed)

    def frame_numbers(self, video: Video, request: ClipRequest) -> np.ndarray:
        """Choose the frames of one sample. See ``ClipSampler``."""
        clip = self.sampler.frame_numbers(video, request)
        least, most = math.log(self.speed[0]), math.log(self.speed[1])
        speed = math.exp(request.generator(RandomStream.TIME_WARP).uniform(least, most))
        first, last = clip.min(), clip.max()
        room = video.num_frames - 1
        length = np.minimum(speed * (last - first), room)
        start = np.clip((first + last - length) / 2, 0, room - length)
        places = start + length * (clip - first) / np.maximum(last - first, 1)
        warped: np.ndarray = np.rint(places).astype(np.int64)
        return warped

    def clip_shape(self, num_frames: np.ndarray, epoch: int) -> ClipShape | None:
        """Return what the other sampler returns. See ``ClipSampler``."""
        return clip_shape(self.sampler, num_frames, epoch)


@dataclass(frozen=True)
class FrameDrop:
    """Sampler that loses frames of another sampler's clips, like a player on a bad network. The last frame is repeated.

    Clips keep their number of frames. The first frame of a clip is never lost. ``flows`` from a frame to itself is
    zero.

    Parameters
    ----------
    sampler : ClipSampler
        Sampler of the clips.
    p : float
        Probability with which each of the other frames is lost, in [0, 1].
    """

    sampler: ClipSampler
    p: float = 0.1

    def __post_init__(self) -> None:
        check_share(p=self.p)

    def frame_numbers(self, video: Video, request: ClipRequest) -> np.ndarray:
        """Choose the frames of one sample. See ``ClipSampler``."""
        clip = self.sampler.frame_numbers(video, request)
        arrived = request.generator(RandomStream.FRAME_DROP).random(len(clip)) >= self.p
        # Example: 5 frames, of which 1, 2 and 4 are lost, become 0 0 0 3 3
        return clip[np.maximum.accumulate(np.where(arrived, np.arange(len(clip)), 0))]

    def clip_shape(self, num_frames: np.ndarray, epoch: int) -> ClipShape | None:
        """Return what the other sampler returns. See ``ClipSampler``."""
        return clip_shape(self.sampler, num_frames, epoch)


@dataclass(frozen=True)
class TemporalCrop:
    """Sampler that takes some consecutive frames of another sampler's clips, from a random place.

    Parameters
    ----------
    sampler : ClipSampler
        Sampler of the clips.
    num_frames : int
        Number of frames to take, at least 1. ``frame_numbers`` raises ``UsageError`` if the sampler gives fewer.
    """

    sampler: ClipSampler
    num_frames: int

    def __post_init__(self) -> None:
        check_at_least(1, num_frames=self.num_frames)

    def frame_numbers(self, video: Video, request: ClipRequest) -> np.ndarray:
        """Choose the frames of one sample. See ``ClipSampler``."""
        clip = self.sampler.frame_numbers(video, request)
        spare = len(clip) - self.num_frames
        if spare < 0:
            raise UsageError(
                f"num_frames: got {self.num_frames}, expected at most {len(clip)}, as the sampler gives for video "
                f"'{video.key}'"
            )
        start = int(request.generator(RandomStream.TEMPORAL_CROP).integers(spare + 1))
        return clip[start : start + self.num_frames]

    def clip_shape(self, num_frames: np.ndarray, epoch: int) -> ClipShape | None:
        """Return the number of frames that are taken, or None if there may be fewer. See ``ClipSampler``."""
        shape = clip_shape(self.sampler, num_frames, epoch)
        return None if shape is None or np.any(shape[0] < self.num_frames) else (self.num_frames,)
