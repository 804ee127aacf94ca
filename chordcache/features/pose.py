"""The feature "pose": 33 body landmarks of one person per kept frame, found by MediaPipe."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np

from chordcache.features.base import NO_ROWS, Extractor, Rows, VideoInfo
from chordcache.media.scaling import Frame

NUM_LANDMARKS = 33
"""In MediaPipe's order: 0 is the nose, 11 and 12 are the shoulders, 31 and 32 the toes."""


class PoseExtractor(Extractor):
    """Body landmarks of the most prominent person, tracked from frame to frame.

    Arrays
    ------
    ``name`` [shape=(T, 33, 4), dtype=float32, pixels of the cached frame, (x, y, z) and visibility, 0 to 1]
        x and y may lie outside of the frame; z is the depth, 0 at the middle of the hips, smaller towards the camera.
        NaN where nobody is seen, and in frames that are passed over.

    Parameters
    ----------
    name : str
        Of the feature.
    stride : int
        Every how many kept frames somebody is looked for.

    Notes
    -----
    Source: MediaPipe 0.10.21, ``solutions.pose.Pose(static_image_mode=False)``, fed with the frames that are not
    passed over. Its x and y are shares of the picture's width and height, its z is one of the width.
    """

    version: ClassVar[int] = 2
    units: ClassVar[Mapping[str, str]] = {"": "pixels (x, y, z), visibility 0 to 1"}

    def __init__(self, name: str, *, stride: int = 1) -> None:
        super().__init__(name)
        self._stride = stride
        self._make_tracker: Any = None
        self._tracker: Any = None

    @classmethod
    def missing_requirement(cls) -> str | None:
        """MediaPipe is an extra of its own: it wants NumPy 1, and brings a gigabyte."""
        if importlib.util.find_spec("mediapipe") is None:
            return "needs the package mediapipe; run: pip install 'chordcache[pose]'"
        return None

    def begin(self, video: VideoInfo) -> str | None:
        """Never absent: every video may show somebody."""
        from mediapipe.python.solutions.pose import Pose  # takes half a second, and most builds do without

        self._make_tracker = Pose
        return None

    def add_frame(self, frame: Frame) -> Rows:
        """Return the row of this frame."""
        row = np.full((1, NUM_LANDMARKS, 4), np.nan, np.float32)
        if frame.number % self._stride == 0:
            rgb = frame.rgb()
            height, width = rgb.shape[:2]
            for number, point in enumerate(self._landmarks(rgb)):
                row[0, number] = point.x * width, point.y * height, point.z * width, point.visibility
        return {self.name: row}

    def finish(self) -> Rows:
        """Release the tracker and its threads."""
        if self._tracker is not None:
            self._tracker.close()
        return NO_ROWS

    def _landmarks(self, rgb: np.ndarray) -> list[Any]:
        """MediaPipe's landmarks, none if nobody is seen."""
        with _native_stderr_to_null():
            if self._tracker is None:  # its threads grumble until the first picture is through, so it is made here
                self._tracker = self._make_tracker(static_image_mode=False)
            found = self._tracker.process(rgb).pose_landmarks
        return [] if found is None else list(found.landmark)


@contextmanager
def _native_stderr_to_null() -> Iterator[None]:
    """Drop what is written to file descriptor 2 meanwhile.

    MediaPipe's C++ logs to it for every video (which delegate it made, which of its own models has no signature), and
    neither Python's logging nor an environment variable reaches that.
    """
    stderr = os.dup(2)
    try:
        with open(os.devnull, "wb") as null:
            os.dup2(null.fileno(), 2)
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
