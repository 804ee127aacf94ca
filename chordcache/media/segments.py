"""The frames of segments of one file, and where these end."""

from __future__ import annotations

import numpy as np

from chordcache.amounts import counted
from chordcache.errors import MediaError
from chordcache.media.demux import LONG_STEPS
from chordcache.records import Segment


def span_of(
    segment: Segment, pts_seconds: np.ndarray, frame_seconds: float, numbers: np.ndarray | None = None
) -> range:
    """Return the positions of the frames of a segment among the frames of its file.

    ``pts_seconds`` [shape=(T,), dtype=float64, seconds] are the times of all frames of the file, and ``frame_seconds``
    is the duration of the last one. An end that is less than this past the end of the file, as times in lists are
    rounded, is the end of the file. ``numbers`` [shape=(T,), dtype=int64] are the numbers of the frames, if these are
    not all frames of the file.

    Raise ``MediaError``, ``segment``, if the segment ends before it starts, has no frame, or is past the end of the
    file. Also if it names times of a file whose clock is set back.
    """
    numbers = np.arange(len(pts_seconds)) if numbers is None else numbers
    if segment.start_frame is not None or segment.end_frame is not None:
        num_frames = int(numbers[-1] + np.max(np.diff(numbers), initial=1))
        is_past = (segment.start_frame or 0) >= num_frames or (segment.end_frame or 0) > num_frames
        last = num_frames if segment.end_frame is None else segment.end_frame
        start, end = (int(number) for number in np.searchsorted(numbers, (segment.start_frame or 0, last)))
        length = counted(num_frames, "frame")
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
    is earlier. ``segment`` is None for the whole file. ``span`` has the positions of its frames in ``pts_seconds``, the
    times of all frames of the file. ``frame_seconds`` is the duration of the last one.
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
