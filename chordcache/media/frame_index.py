"""Time of each frame of a video, and the packet from which it can be decoded, for exact random access."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike

from chordcache.errors import MediaError
from chordcache.media.demux import Media


@dataclass(frozen=True)
class FrameIndex:
    """Frames of a video in the order in which they are shown."""

    pts: np.ndarray
    """[shape=(T,), dtype=int64, ticks] Times, ascending"""
    time_base: Fraction
    """[seconds] Length of one tick"""
    seek_frames: np.ndarray
    """[shape=(T,), dtype=int64] Frame at which decoding has to begin, so that this one comes out right; -1 for the
    start of the file, which may be before the first frame that is shown"""
    frame_seconds: Fraction
    """[seconds] Duration of the last frame, see ``Media.last_frame_seconds``"""
    num_frames_skipped: int = 0
    """Number of frames before the first one, if the stream begins in the middle of a group of pictures"""

    def __len__(self) -> int:
        return len(self.pts)

    @property
    def pts_seconds(self) -> np.ndarray:
        """Presentation times [shape=(T,), dtype=float64, seconds]."""
        return self.pts * self.time_base.numerator / self.time_base.denominator

    @property
    def fps(self) -> float:
        """Frames per second on average; for a single frame, the rate in the headers."""
        span = int(self.pts[-1] - self.pts[0]) * self.time_base if len(self) > 1 else 0
        return float((len(self) - 1) / span if span > 0 else 1 / self.frame_seconds)

    def find(self, pts: int | None) -> int | None:
        """Return the frame that is shown at a time [ticks], None if there is none."""
        if pts is None:
            return None
        frame = int(np.searchsorted(self.pts, pts))
        return frame if frame < len(self) and self.pts[frame] == pts else None


def seek_frames_of(pts: ArrayLike, keys: ArrayLike) -> np.ndarray:
    """Return the frame at which decoding has to begin, for each frame [shape=(T,), dtype=int64].

    ``pts`` are the times of all frames, ascending. ``keys`` are the presentation times of the keyframes at which
    decoding can begin, in decode order. A keyframe counts only for frames that are shown at its time or later. Frames
    that are stored after it and shown before it may need older frames.

    Examples
    --------
    >>> seek_frames_of([0, 1, 2, 3, 4, 5], [1, 4]).tolist()
    [-1, 1, 1, 1, 4, 4]
    """
    times = np.asarray(pts, np.int64)
    starts = np.full(len(times), -1, np.int64)
    frames = np.searchsorted(times, np.asarray(keys, np.int64))
    starts[frames] = frames
    return np.maximum.accumulate(starts)


def read_frame_index(media: Media) -> FrameIndex:
    """Demux a file from its current position to its end, without decoding.

    Raise ``MediaError``, ``clock``, if two frames cannot be distinguished by their time; otherwise as
    ``Media.shown_packets``.
    """
    video = media.require_video()
    shown: list[int] = []
    keys: list[int] = []
    problem = None
    for packet, check in media.shown_packets(is_thorough=True):
        if media.timestamp_source != "pts" or packet.pts is None:
            problem = "its packets carry no presentation times"
            continue
        shown.append(packet.pts)
        if packet.is_keyframe and check.reader.is_entry(memoryview(packet)):
            keys.append(packet.pts)
        if not check.has_clean_start and not check.reader.knows_leading:
            problem = "the stream begins in the middle of a group of pictures"
    pts = sorted(shown)
    if any(later == earlier for earlier, later in pairwise(pts)):
        problem = problem or "two of its frames have the same time"
    if any(later < earlier for earlier, later in pairwise(keys)):
        problem = problem or "its clock is set back on the way"
    if problem is not None:
        raise MediaError("open", "clock", problem)
    return FrameIndex(
        np.array(pts, np.int64),
        video.time_base or Fraction(1),
        seek_frames_of(pts, keys),
        media.last_frame_seconds,
        media.num_skipped,
    )
