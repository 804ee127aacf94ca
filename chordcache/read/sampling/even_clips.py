"""Clips of one video whose frames are evenly spaced, by frame number or by presentation time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from chordcache.arguments import check_at_least, check_positive
from chordcache.errors import UsageError
from chordcache.read.video import Video

PADS = ("repeat", "loop", "error")

DEFAULT_STRIDE = 4
"""[frames] Step from one frame of a clip to the next, if neither ``stride`` nor ``fps`` is given"""

_TOLERANCE_SECONDS = 0.001
"""Precision of presentation times: Matroska, for example, rounds them to the millisecond. At 25 to 10 frames per second
every second target lies in the middle between two frames. Rounding must not decide which of them is taken."""


class FrameTimes:
    """Times at which a video shows its frames, in seconds from its first frame on.

    A clock that is set back continues one frame later, so that times always ascend. A frame's duration is taken from
    the last frame, the only one whose end is recorded.
    """

    def __init__(self, video: Video) -> None:
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


class EvenClips(ABC):
    """All clips of one video that have as many frames, evenly spaced.

    A position is a frame number, or seconds from the first frame on.
    """

    def __init__(self, video: Video, offsets: np.ndarray, last: float, end: float, pad: str) -> None:
        self._video = video
        self._offsets = offsets
        """Positions of the frames of a clip that starts at 0"""
        self.end = end
        """Position of the end of the video, which no frame of a clip reaches without padding"""
        self._pad = pad
        self.last_start: float = max(0, last - offsets[-1])
        """Last position at which a whole clip can start, 0 if the video is shorter than a clip"""

    @property
    @abstractmethod
    def positions(self) -> np.ndarray:
        """Position of each frame of the video [shape=(num_frames,)]."""

    @abstractmethod
    def random_start(self, random: np.random.Generator) -> float:
        """Draw a start. All are equally likely."""

    @abstractmethod
    def starts_every(self, seconds: float) -> np.ndarray:
        """Return the starts of clips at regular times, from the first frame on. There is at least one."""

    @abstractmethod
    def _frames_at(self, positions: np.ndarray) -> np.ndarray:
        """Return the frame at each position [dtype=int64]. The last one stands for positions behind it."""

    @abstractmethod
    def _needs(self) -> str:
        """Describe the length of the video and the length of a clip for an error message."""

    def clip(self, start: float) -> np.ndarray:
        """Return the frames of the clip at a position [shape=(T,), dtype=int64]."""
        positions = start + self._offsets
        if self._pad == "loop":
            positions = positions - (positions + _TOLERANCE_SECONDS) // self.end * self.end
        elif self._pad == "error" and positions[-1] >= self.end - _TOLERANCE_SECONDS:
            raise UsageError(
                f"video '{self._video.key}': {self._needs()}. Choose pad='repeat' or 'loop', or leave the video out of "
                "videos= or of the index."
            )
        return self._frames_at(positions)

    @property
    @abstractmethod
    def room(self) -> float:
        """Number of starts of whole clips, or the time from the first to the last of them [seconds]."""

    @property
    def fits(self) -> bool:
        """True if the video is at least as long as a clip."""
        return bool(self._offsets[-1] < self.end - _TOLERANCE_SECONDS)

    def even_clip(self, number: int, num_clips: int) -> np.ndarray:
        """Return one of several clips that are spread evenly over the video."""
        return self.clip(self.last_start * number / (num_clips - 1) if num_clips > 1 else self.last_start / 2)

    def clip_around(self, frame: int) -> np.ndarray:
        """Return the clip with a frame in its middle. Near the ends of the video, the clip is moved inside."""
        start = self.positions[frame] - self._offsets[len(self._offsets) // 2]
        return self.clip(min(max(start, 0), self.last_start))

    def clip_from(self, frame: int) -> np.ndarray:
        """Return the clip that starts at a frame."""
        return self.clip(self.positions[frame])

    def start_frames(self) -> np.ndarray:
        """Return all frames at which a clip can start [dtype=int64, ascending]."""
        return np.arange(len(self.stops()))

    def stops(self) -> np.ndarray:
        """Return the number behind the last frame of each clip that starts at ``start_frames`` [dtype=int64]."""
        positions = self.positions
        starts = positions[positions <= self.last_start + _TOLERANCE_SECONDS]
        return self._frames_at(starts + self._offsets[-1]) + 1


class ClipsByNumber(EvenClips):
    """Clips whose frames are ``stride`` frame numbers apart."""

    def __init__(self, video: Video, num_frames: int, stride: int, pad: str) -> None:
        offsets = stride * np.arange(num_frames, dtype=np.int64)
        super().__init__(video, offsets, video.num_frames - 1, video.num_frames, pad)
        self._stride = stride

    @property
    def positions(self) -> np.ndarray:
        """Frame numbers."""
        return np.arange(self._video.num_frames)

    @property
    def room(self) -> float:
        """Number of frames at which a whole clip can start."""
        return self.last_start + 1

    def random_start(self, random: np.random.Generator) -> float:
        """Draw a frame number."""
        return int(random.integers(int(self.last_start) + 1))

    def starts_every(self, seconds: float) -> np.ndarray:
        """Return the frames nearest to regular times."""
        times = FrameTimes(self._video)
        return times.nearest(np.arange(0, times.starts[int(self.last_start)] + _TOLERANCE_SECONDS, seconds))

    def _frames_at(self, positions: np.ndarray) -> np.ndarray:
        frames: np.ndarray = np.minimum(positions, self._video.num_frames - 1).astype(np.int64)  # rounded down
        return frames

    def _needs(self) -> str:
        return (
            f"got {self._video.num_frames} frames, expected {self._offsets[-1] + 1} for a clip of "
            f"{len(self._offsets)} that are {self._stride} apart"
        )


class ClipsByTime(EvenClips):
    """Clips of the frames nearest to times that are ``1 / fps`` seconds apart."""

    def __init__(self, video: Video, num_frames: int, fps: float, pad: str) -> None:
        self._times = FrameTimes(video)
        self._fps = fps
        offsets = np.arange(num_frames) / fps
        super().__init__(video, offsets, float(self._times.starts[-1]), self._times.end, pad)

    @property
    def positions(self) -> np.ndarray:
        """Times of the frames."""
        return self._times.starts

    @property
    def room(self) -> float:
        """Time from the first to the last start [seconds]."""
        return self.last_start

    def random_start(self, random: np.random.Generator) -> float:
        """Draw a time, which need not be that of a frame."""
        return random.random() * self.last_start

    def starts_every(self, seconds: float) -> np.ndarray:
        """Return regular times. Every time of their clips is before the end of the video."""
        stop = self.end - _TOLERANCE_SECONDS - self._offsets[-1]
        return np.arange(0, max(stop, _TOLERANCE_SECONDS), seconds)

    def _frames_at(self, positions: np.ndarray) -> np.ndarray:
        return self._times.nearest(positions)

    def _needs(self) -> str:
        return (
            f"got {self.end:g} seconds, expected more than {self._offsets[-1]:g} for a clip of "
            f"{len(self._offsets)} frames at {self._fps:g} per second"
        )


class _Run(NamedTuple):
    """Consecutive frames of a video with gaps: all that clips look at, as of a video."""

    key: str
    first: int
    """Number of the first of them"""
    num_frames: int
    pts_seconds: np.ndarray
    duration_seconds: float


def _runs(video: Video) -> list[_Run]:
    """Return the runs of frames between the gaps of a video."""
    pts = video.pts_seconds
    frame_seconds = video.duration_seconds - np.ptp(pts)
    return [
        _Run(video.key, start, stop - start, pts[start:stop], float(np.ptp(pts[start:stop]) + frame_seconds))
        for start, stop in pairwise([0, *video.gaps.tolist(), video.num_frames])
    ]


class ClipsOfRuns:
    """Clips of a video with gaps. A clip has frames of one run, which are the frames between two gaps.

    Runs that are shorter than a clip are not used, unless all are: then the longest one is padded. The positions are
    those of all runs that are used, one behind the other.
    """

    def __init__(self, runs: list[_Run], make: Callable[[Any], EvenClips]) -> None:
        made = [(run.first, run.num_frames, make(run)) for run in runs]
        used = [each for each in made if each[2].fits] or [max(made, key=lambda each: each[2].end)]
        self._clips = [clips for _, _, clips in used]
        self._first: list[int] = [first for first, _, _ in used]
        self._last: list[int] = [first + num_frames - 1 for first, num_frames, _ in used]
        self._room = np.array([clips.room for clips in self._clips])
        # One more, so that the last start of a run is not the first of the next one
        self._base = np.cumsum([0, *(clips.last_start + 1 for clips in self._clips[:-1])])

    def clip(self, start: float) -> np.ndarray:
        """Return the frames of the clip at a position [shape=(T,), dtype=int64]."""
        run = int(np.searchsorted(self._base, start, side="right")) - 1
        return self._clips[run].clip(start - self._base[run]) + self._first[run]

    def random_start(self, random: np.random.Generator) -> float:
        """Draw a start. All are equally likely."""
        total = self._room.sum()
        run = int(random.choice(len(self._room), p=self._room / total)) if total else 0
        return float(self._base[run] + self._clips[run].random_start(random))

    def starts_every(self, seconds: float) -> np.ndarray:
        """Return the starts of clips at regular times, from the first frame of each run on."""
        found = [base + clips.starts_every(seconds) for base, clips in zip(self._base, self._clips, strict=True)]
        return np.concatenate(found)

    def even_clip(self, number: int, num_clips: int) -> np.ndarray:
        """Return one of several clips that are spread evenly over the starts of all runs."""
        up_to = np.cumsum(self._room)
        last = up_to[-1] - (self._room[-1] - self._clips[-1].last_start)
        place = last * number / (num_clips - 1) if num_clips > 1 else last / 2
        run = min(int(np.searchsorted(up_to, place, side="right")), len(up_to) - 1)
        start = min(place - (up_to[run] - self._room[run]), self._clips[run].last_start)
        return self._clips[run].clip(start) + self._first[run]

    def clip_around(self, frame: int) -> np.ndarray:
        """Return the clip with a frame in its middle, moved inside its run, or inside the nearest run that is used."""
        run = self._run_near(frame)
        inside = min(max(frame, self._first[run]), self._last[run]) - self._first[run]
        return self._clips[run].clip_around(inside) + self._first[run]

    def clip_from(self, frame: int) -> np.ndarray:
        """Return the clip that starts at a frame."""
        run = self._run_near(frame)
        return self._clips[run].clip_from(frame - self._first[run]) + self._first[run]

    def start_frames(self) -> np.ndarray:
        """Return all frames at which a clip can start [dtype=int64, ascending]."""
        found = [first + clips.start_frames() for first, clips in zip(self._first, self._clips, strict=True)]
        return np.concatenate(found)

    def stops(self) -> np.ndarray:
        """Return the number behind the last frame of each clip that starts at ``start_frames`` [dtype=int64]."""
        return np.concatenate([first + clips.stops() for first, clips in zip(self._first, self._clips, strict=True)])

    def _run_near(self, frame: int) -> int:
        return int(np.argmin([max(a - frame, frame - b) for a, b in zip(self._first, self._last, strict=True)]))


@dataclass(frozen=True)
class EvenClipSampler:
    """Base of samplers whose clips have ``num_frames`` frames, ``stride`` apart or at ``fps``."""

    num_frames: int = 16
    """Length T of a clip, [frames]"""
    stride: int | None = None
    """Step from one frame of a clip to the next, [frames], or None with ``fps``"""
    pad: str = "repeat"
    """One of ``PADS``: a video that is shorter than a clip continues with its last frame, or from its start"""
    fps: float | None = field(default=None, kw_only=True)
    """Rate at which frames are chosen by their presentation times, [frames per second], or None with ``stride``"""
    across_gaps: bool = field(default=False, kw_only=True)
    """True to let a clip contain frames from both sides of a gap. See ``Video.gaps``"""

    def __post_init__(self) -> None:
        if self.fps is None and self.stride is None:
            object.__setattr__(self, "stride", DEFAULT_STRIDE)
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
        if self.pad not in PADS:
            raise UsageError(f"pad: got {self.pad!r}, expected one of {', '.join(PADS)}")

    def clips(self, video: Video) -> EvenClips | ClipsOfRuns:
        """Return the clips of a video."""
        if len(video.gaps) and not self.across_gaps:
            return ClipsOfRuns(_runs(video), self._clips_of)
        return self._clips_of(video)

    def _clips_of(self, video: Video) -> EvenClips:
        if self.fps is not None:
            return ClipsByTime(video, self.num_frames, self.fps, self.pad)
        assert self.stride is not None
        return ClipsByNumber(video, self.num_frames, self.stride, self.pad)
