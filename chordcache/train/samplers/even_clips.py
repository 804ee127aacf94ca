"""Clips of one video whose frames are evenly spaced, by frame number or by presentation time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import numpy as np

from chordcache.arguments import check_at_least, check_choice, check_positive
from chordcache.errors import UsageError
from chordcache.read.video import Video
from chordcache.train.samplers.clip_request import ClipRequest, ClipShape

_TOLERANCE_SECONDS = 0.001
"""Precision of presentation times: Matroska, for example, rounds them to the millisecond. At 25 to 10 frames per second
every second target lies in the middle between two frames. Rounding must not decide which of them is taken."""


class FrameTimes:
    """Times at which a video shows its frames, in seconds from its first frame on.

    A clock that is set back continues one frame later, so that times always ascend. A frame's duration is taken from
    the last frame, the only one whose end is recorded.
    """

    def __init__(self, video: Video | _Shot) -> None:
        pts = video.pts_seconds
        frame_seconds = max(float(video.duration_seconds - np.ptp(pts)), _TOLERANCE_SECONDS)
        steps = np.diff(pts)
        corrections = np.where(steps < 0, frame_seconds - steps, 0.0)
        self.starts: np.ndarray = pts - pts[0] + np.concatenate([[0.0], np.cumsum(corrections)])
        """Time of each frame [shape=(num_frames,), dtype=float64, seconds, ascending]"""
        self.end = float(self.starts[-1]) + frame_seconds
        """[seconds] End of the last frame"""
        steps = np.diff(self.starts)
        # A quarter of a step, so that the tolerance never reaches the next frame of a video with 1,000 frames a second
        self._limits = self.starts[:-1] + steps / 2 + np.minimum(_TOLERANCE_SECONDS, steps / 4)

    def nearest(self, seconds: np.ndarray) -> np.ndarray:
        """Return the frame nearest to each time [dtype=int64]. In the middle, to within 1 ms, it is the earlier one."""
        return np.searchsorted(self._limits, seconds)


class _Shot:
    """The frames of a video from ``first`` to before ``stop``, as ``EvenClips`` takes a video."""

    key: str
    pts_seconds: np.ndarray
    duration_seconds: float
    cuts = np.empty(0, np.int64)

    def __init__(self, video: Video | _Shot, first: int, stop: int) -> None:
        times = FrameTimes(video)
        edges = np.append(times.starts, times.end)
        self.key, self.num_frames = video.key, stop - first
        self.pts_seconds = times.starts[first:stop]
        self.duration_seconds = float(edges[stop] - edges[first])


class EvenClips:
    """All clips of one video that a sampler may choose: of as many frames, evenly spaced.

    A position is a frame number, or with ``fps`` seconds from the first frame on.
    """

    def __init__(self, video: Video | _Shot, sampler: EvenClipSampler) -> None:
        self._video, self._sampler = video, sampler
        self._times: FrameTimes | None = None
        numbers = np.arange(sampler.num_frames, dtype=np.int64)
        self._offsets: np.ndarray
        """Positions of the frames of a clip that starts at 0"""
        self._end: float
        """Position of the end of the video, which no frame of a clip reaches without padding"""
        if sampler.fps is None:
            assert sampler.stride is not None
            self._offsets, last, self._end = numbers * sampler.stride, video.num_frames - 1, video.num_frames
        else:
            self._times = times = FrameTimes(video)
            self._offsets, last, self._end = numbers / sampler.fps, times.starts[-1].item(), times.end
        self._last_start: float = max(0, last - self._offsets[-1].item())
        """Last position at which a whole clip can start, 0 if the video is shorter than a clip"""

    @property
    def _positions(self) -> np.ndarray:
        """Position of each frame of the video [shape=(num_frames,)]."""
        return np.arange(self._video.num_frames) if self._times is None else self._times.starts

    def _frames_at(self, positions: np.ndarray) -> np.ndarray:
        """Return the frame at each position [dtype=int64]. The last one stands for positions behind it."""
        if self._times is not None:
            return self._times.nearest(positions)
        frames: np.ndarray = np.minimum(positions, self._video.num_frames - 1).astype(np.int64, copy=False)
        return frames  # rounded down

    def clip(self, start: float) -> np.ndarray:
        """Return the frames of the clip at a position [shape=(T,), dtype=int64]."""
        positions = start + self._offsets
        if self._sampler.within_shots and len(cuts := self._video.cuts):
            middle = self._frames_at(positions)[len(positions) // 2]
            number = int(np.searchsorted(cuts, middle, side="right"))
            return self._clip_in_shot(start, *([0, *cuts, self._video.num_frames][number : number + 2]))
        if self._sampler.pad == "loop":
            positions = positions - (positions + _TOLERANCE_SECONDS) // self._end * self._end
        elif self._sampler.pad == "error" and positions[-1] >= self._end - _TOLERANCE_SECONDS:
            raise UsageError(
                f"video '{self._video.key}': {self._needs()}. Choose pad='repeat' or 'loop', or leave the video out of "
                "videos= or of the index."
            )
        return self._frames_at(positions)

    def _clip_in_shot(self, start: float, first: int, stop: int) -> np.ndarray:
        """Return the clip at a position, moved into the shot from frame ``first`` to before frame ``stop``."""
        clips = EvenClips(_Shot(self._video, first, stop), self._sampler)
        return first + clips.clip(min(max(start - self._positions[first], 0), clips._last_start))

    def random_clip(self, random: np.random.Generator) -> np.ndarray:
        """Return a clip at a random position: any frame that leaves room for it, or with ``fps`` any such time."""
        if self._times is None:
            return self.clip(int(random.integers(int(self._last_start) + 1)))
        return self.clip(random.random() * self._last_start)

    def even_clip(self, number: int, num_clips: int) -> np.ndarray:
        """Return one of several clips that are spread evenly over the video."""
        return self.clip(self._last_start * number / (num_clips - 1) if num_clips > 1 else self._last_start / 2)

    def clip_around(self, frame: int) -> np.ndarray:
        """Return the clip with a frame in its middle. Near the ends of the video, the clip is moved inside."""
        start = self._positions[frame] - self._offsets[len(self._offsets) // 2]
        return self.clip(min(max(start, 0), self._last_start))

    def clip_from(self, frame: int) -> np.ndarray:
        """Return the clip that starts at a frame. Near the end of the video, the clip is moved inside."""
        return self.clip(min(self._positions[frame], self._last_start))

    def stops(self) -> np.ndarray:
        """Return the number behind the last frame of each clip, of those that can start at frame 0, 1, 2 ..."""
        positions = self._positions
        starts = positions[positions <= self._last_start + _TOLERANCE_SECONDS]
        return self._frames_at(starts + self._offsets[-1]) + 1

    def _needs(self) -> str:
        """Describe the length of the video and that of a clip for an error message."""
        sampler = self._sampler
        if sampler.fps is None:
            return (
                f"got {self._video.num_frames} frames, expected {self._offsets[-1] + 1} for a clip of "
                f"{sampler.num_frames} that are {sampler.stride} apart"
            )
        return (
            f"got {self._end:g} seconds, expected more than {self._offsets[-1]:g} for a clip of "
            f"{sampler.num_frames} frames at {sampler.fps:g} per second"
        )


@dataclass(frozen=True)
class EvenClipSampler(ABC):
    """Base of samplers whose clips have ``num_frames`` frames, ``stride`` apart or at ``fps``."""

    num_frames: int = 16
    """Length T of a clip, [frames]"""
    stride: int | None = None
    """Step from one frame of a clip to the next, [frames], or None with ``fps``"""
    pad: str = "repeat"
    """"repeat", "loop" or "error": a video shorter than a clip continues with its last frame, or from its start"""
    fps: float | None = field(default=None, kw_only=True)
    """Rate at which frames are chosen by their presentation times, [frames per second], or None with ``stride``"""
    within_shots: bool = field(default=False, kw_only=True)
    """True to move a clip with a cut in it into the shot of its middle frame. A shorter shot is padded as by ``pad``"""

    def __post_init__(self) -> None:
        if self.fps is None and self.stride is None:
            object.__setattr__(self, "stride", 4)
        check_at_least(1, num_frames=self.num_frames)
        if self.fps is None:
            check_at_least(1, stride=self.stride)
        elif self.stride is None:
            check_positive(fps=self.fps)
        else:
            raise UsageError(
                f"stride and fps: got {self.stride!r} and {self.fps!r}, expected one of them. Give stride to choose "
                "frames by number, or fps to choose them by time."
            )
        check_choice(("repeat", "loop", "error"), pad=self.pad)

    def frame_numbers(self, video: Video, request: ClipRequest) -> np.ndarray:
        """Choose the frames of one sample. See ``ClipSampler``."""
        return self._choose_clip(EvenClips(video, self), video, request)

    @abstractmethod
    def _choose_clip(self, clips: EvenClips, video: Video, request: ClipRequest) -> np.ndarray:
        """Return the chosen clip of a video."""

    def clip_shape(self, num_frames: np.ndarray, epoch: int) -> ClipShape | None:
        """Return the length of a clip, or None if a video may be too short for it. See ``ClipSampler``."""
        is_known = self.stride is not None and np.all(num_frames > (self.num_frames - 1) * self.stride)
        return (self.num_frames,) if is_known or self.pad != "error" else None
