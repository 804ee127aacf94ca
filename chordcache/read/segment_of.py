"""A segment of a file that is cached whole: a range of its frames, and the seconds of these."""

from __future__ import annotations

import numpy as np

from chordcache.errors import AbsentFeatureError, MediaError, NotFoundError
from chordcache.media.segments import end_of, span_of
from chordcache.read.video import Video
from chordcache.records import VideoRecord
from chordcache.storage.feature_info import FeatureInfo
from chordcache.storage.layout import key_of
from chordcache.storage.row_clock import is_of_video


class SegmentOfFile(Video):
    """The segment that a record names of a file, with the key, the label and the columns of the record.

    Its artefacts have more frames than it has. Raises ``MediaError`` ``segment`` as ``media.segments.span_of`` does,
    ``DamageError`` and ``NotFoundError`` if the times of the frames cannot be read.
    """

    def __init__(self, whole: Video, record: VideoRecord) -> None:
        sidecar, times = whole.sidecar, whole.pts_seconds
        assert record.segment is not None
        frame_seconds = round(sidecar.duration_seconds - float(np.ptp(times)), 9)
        try:
            span = span_of(record.segment, times, frame_seconds, whole.source_frames)
        except MediaError as error:
            raise MediaError(error.stage, error.cause, f"video '{whole.key}': {error.message}") from None
        start_seconds = float(times[span.start])
        ranged = sidecar.replace(
            key=key_of(record),
            num_frames=len(span),
            start_seconds=start_seconds,
            duration_seconds=end_of(record.segment, span, times, frame_seconds) - start_seconds,
            content=None,  # the facts of whole seconds of the file do not fit the seconds of the segment
        )
        super().__init__(whole.cache_path, ranged.described(record))
        self._whole = whole
        self.claims = whole.claims  # the artefacts are of the whole file
        self.first_row = span.start

    def feature(self, name: str, tier: str | None = None) -> FeatureInfo:
        """Return the record of a feature. See ``Video``. Rows of the whole file are not those of the segment."""
        info = super().feature(name, tier)
        if is_of_video(info.facts) and not info.uses:
            raise self._has_no_rows(name)
        return info

    def num_rows(self, info: FeatureInfo, array: str) -> int:
        """Return the number of rows that belong to the segment. See ``Video``."""
        num_missing = self._whole.num_frames - self._whole.num_rows(info, array)
        if num_missing not in (0, 1):  # flow has none for the last frame
            raise self._has_no_rows(array)
        return self.num_frames - num_missing

    def _has_no_rows(self, array: str) -> NotFoundError:
        return AbsentFeatureError(
            f"'{array}' of video '{self.key}' is cached for the whole file, without a row for each frame. Build the "
            "segments, by 'chordcache build' with their index."
        )

    def _array(self, name: str) -> np.ndarray:
        array: np.ndarray = getattr(self._whole, name)
        first, stop = self.first_row, self.first_row + self.num_frames
        if name not in ("keyframes", "cuts"):
            return array[first:stop]
        return array[(array >= first + (name == "cuts")) & (array < stop)] - first
