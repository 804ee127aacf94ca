"""The frames and the sound of segments of one file."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from chordcache.errors import MediaError
from chordcache.media.audio import parts_of_sound
from chordcache.media.audio_track import Sound
from chordcache.media.decoding import DecodedFrame
from chordcache.media.demux import Media
from chordcache.media.exact_frames import ExactFrames
from chordcache.media.last_frame import LONG_STEPS
from chordcache.records import Segment


def span_of(
    segment: Segment, pts_seconds: np.ndarray, frame_seconds: float, numbers: np.ndarray | None = None
) -> range:
    """Return the positions of the frames of a segment among the frames of its file.

    Parameters
    ----------
    segment : Segment
        The segment.
    pts_seconds : np.ndarray [shape=(T,), dtype=float64, seconds]
        Times of all frames of the file.
    frame_seconds : float
        [seconds] Duration of the last frame. An end that is less than this past the end of the file, as times in lists
        are rounded, is the end of the file.
    numbers : np.ndarray, optional [shape=(T,), dtype=int64]
        Numbers of the frames, if these are not all frames of the file.

    Raises
    ------
    MediaError
        ``segment`` if the segment ends before it starts, has no frame, or is past the end of the file. Also if it names
        times of a file whose clock is set back.
    """
    numbers = np.arange(len(pts_seconds)) if numbers is None else numbers
    if segment.start_frame is not None or segment.end_frame is not None:
        num_frames = int(numbers[-1] + np.max(np.diff(numbers), initial=1))
        is_past = (segment.start_frame or 0) >= num_frames or (segment.end_frame or 0) > num_frames
        last = num_frames if segment.end_frame is None else segment.end_frame
        start, end = (int(number) for number in np.searchsorted(numbers, (segment.start_frame or 0, last)))
        length = f"{num_frames} frames"
    else:
        seconds = pts_seconds - pts_seconds[0]
        if np.any(np.diff(seconds) < 0):
            raise _problem(segment, "is ambiguous, because the clock of the file is set back. Name frames, not times.")
        file_end = float(seconds[-1]) + frame_seconds
        is_past = (segment.start_seconds or 0) >= file_end or (segment.end_seconds or 0) >= file_end + frame_seconds
        start = int(np.searchsorted(seconds, (segment.start_seconds or 0) - _ROUNDING_SECONDS))
        end_seconds = float("inf") if segment.end_seconds is None else segment.end_seconds
        end = int(np.searchsorted(seconds, end_seconds - _ROUNDING_SECONDS))
        length = f"{file_end:.3f} s"
    if is_past:
        raise _problem(segment, f"is past the end of the file of {length}. Correct the list.")
    if end <= start:
        raise _problem(segment, f"has no frame. The file has {length}. Correct the list.")
    return range(start, end)


def end_of(segment: Segment | None, span: range, pts_seconds: np.ndarray, frame_seconds: float) -> float:
    """Return the time at which the last frame of a segment ends [seconds], on the clock of ``pts_seconds``.

    It ends with the next frame of the file. A frame that stands for longer than others ends with the segment, if that
    is earlier.

    Parameters
    ----------
    segment : Segment or None
        The segment, or None for the whole file.
    span : range
        Positions of its frames in ``pts_seconds``.
    pts_seconds : np.ndarray [shape=(T,), dtype=float64, seconds]
        Times of all frames of the file.
    frame_seconds : float
        [seconds] Duration of the last frame of the file.
    """
    last = float(pts_seconds[span.stop - 1])
    end = float(pts_seconds[span.stop]) if span.stop < len(pts_seconds) else last + frame_seconds
    step = float(np.median(np.diff(pts_seconds))) if len(pts_seconds) > 1 else frame_seconds
    if segment is None or segment.end_seconds is None or end - last <= LONG_STEPS * step:
        return end
    return min(end, max(float(pts_seconds[0]) + segment.end_seconds, last + step))


_ROUNDING_SECONDS = 0.0005
"""[seconds] Timestamps and times in lists are rounded to 1 ms"""


def _problem(segment: Segment, what: str) -> MediaError:
    return MediaError("segment", "segment", f"segment {segment} {what}")


class SegmentReader:
    """Reader of the frames and the sound of segments of one file. It seeks past the frames that no segment needs.

    Parameters
    ----------
    path : str
        The file.

    Raises
    ------
    MediaError
        As ``ExactFrames``.
    """

    def __init__(self, path: str) -> None:
        self._frames = ExactFrames(path)

    def __enter__(self) -> SegmentReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._frames.close()

    @property
    def media(self) -> Media:
        """The open file."""
        return self._frames.media

    @property
    def pts_seconds(self) -> np.ndarray:
        """Times of all frames of the file [shape=(T,), dtype=float64, seconds]."""
        return self._frames.frame_index.pts_seconds

    def span_of(self, segment: Segment) -> range:
        """Return the numbers of the frames of a segment. Raises as the function ``span_of``."""
        index = self._frames.frame_index
        return span_of(segment, index.pts_seconds, float(index.frame_seconds))

    def frame(self, number: int, *, motion_vectors: bool) -> DecodedFrame:
        """Decode a frame. Ascending numbers take one decode. See ``ExactFrames.frame``."""
        return self._frames.frame(number, motion_vectors=motion_vectors)

    def end_of(self, segment: Segment | None, span: range) -> float:
        """Return the time at which some frames of a segment end [seconds]. See the function ``end_of``."""
        index = self._frames.frame_index
        return end_of(segment, span, index.pts_seconds, float(index.frame_seconds))

    def sounds(self, span: range, end_seconds: float) -> Iterator[Sound]:
        """Decode the parts of the audio track that overlap with some frames, of which the last one ends at a time."""
        return parts_of_sound(self.media, float(self.pts_seconds[span.start]), end_seconds)
