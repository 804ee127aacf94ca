"""When each frame of a video is shown, and from which packet on it can be decoded: what exact random access needs."""

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
    """The frames of a video in the order in which they are shown."""

    pts: np.ndarray
    """[shape=(T,), dtype=int64, ticks] ascending"""
    time_base: Fraction
    """[seconds] of one tick"""
    entries: np.ndarray
    """[shape=(T,), dtype=int64] the frame that decoding has to begin at, so that this one comes out right; -1 for the
    start of the file, which may lie before the first frame that is shown"""
    frame_seconds: Fraction
    """[seconds] that the last frame lasts, as the headers have it"""
    num_frames_skipped: int = 0
    """Before the first one: the stream begins in the middle of a group of pictures"""

    def __len__(self) -> int:
        return len(self.pts)

    @property
    def pts_seconds(self) -> np.ndarray:
        """Presentation times [shape=(T,), dtype=float64, seconds]."""
        return self.pts * self.time_base.numerator / self.time_base.denominator

    @property
    def fps(self) -> float:
        """Frames per second on average: for one frame, that of the headers."""
        span = int(self.pts[-1] - self.pts[0]) * self.time_base if len(self) > 1 else 0
        return float((len(self) - 1) / span if span > 0 else 1 / self.frame_seconds)

    def find(self, pts: int | None) -> int | None:
        """The frame that is shown at a time [ticks], None if there is none."""
        if pts is None:
            return None
        frame = int(np.searchsorted(self.pts, pts))
        return frame if frame < len(self) and self.pts[frame] == pts else None


def seek_frames_of(pts: ArrayLike, keys: ArrayLike) -> np.ndarray:
    """For each frame, where decoding has to begin.

    Parameters
    ----------
    pts : array_like of int
        Of all frames, ascending.
    keys : array_like of int
        Presentation times of the keyframes that start afresh, in decode order. One counts only for frames that are
        shown at its time or later: those shown before it, although stored after it, may need what is older.

    Returns
    -------
    np.ndarray [shape=(T,), dtype=int64]

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
    """Demux a file from where it stands to its end, without decoding.

    Raises
    ------
    MediaError
        ``clock`` if frames cannot be told apart by their time; otherwise as ``Media.shown_packets``.
    """
    video = media.require_video()
    shown: list[int] = []
    keys: list[int] = []
    problem = None
    for packet, check in media.shown_packets(is_thorough=True):
        if media.clock != "pts" or packet.pts is None:
            problem = "its packets carry no presentation times"
            continue
        shown.append(packet.pts)
        if packet.is_keyframe and check.reader.is_entry(memoryview(packet)):
            keys.append(packet.pts)
        if not check.has_clean_start and not check.reader.knows_leading:
            problem = "it begins in the middle of a group of pictures"
    pts = sorted(shown)
    if problem is None:
        problem = _clock_problem(pts, keys)
    if problem is not None:
        raise MediaError("open", "clock", problem)
    return FrameIndex(
        np.array(pts, np.int64),
        video.time_base or Fraction(1),
        seek_frames_of(pts, keys),
        media.frame_seconds,
        media.num_skipped,
    )


def _clock_problem(pts: list[int], keys: list[int]) -> str | None:
    """Why frames cannot be told apart by their time; None if they can."""
    if not pts:
        return "it has no frame to show"
    if any(later == earlier for earlier, later in pairwise(pts)):
        return "two of its frames have the same time"
    if any(later < earlier for earlier, later in pairwise(keys)):
        return "its clock is set back on the way"
    return None
