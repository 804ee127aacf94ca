"""The feature "pose": 33 body landmarks of one person per kept frame, found by MediaPipe."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np

from chordcache.features.base import NO_ROWS, Extractor, Rows, VideoInfo, missing_package
from chordcache.features.read_side import Arrays, Clip, ReadSide
from chordcache.media.cropping import CropBox
from chordcache.media.frame import Frame
from chordcache.storage.feature_info import FeatureInfo

NUM_LANDMARKS = 33
"""Number of landmarks, in MediaPipe's order: 0 is the nose, 11 and 12 the shoulders, 31 and 32 the toes."""

MIRRORED_LANDMARKS = (0, 4, 5, 6, 1, 2, 3, 8, 7, 10, 9, *(n + 1 if n % 2 else n - 1 for n in range(11, 33)))
"""Opposite landmark of each of MediaPipe's 33. 1 to 3 and 4 to 6 are the eyes. From 7 on left and right alternate."""


class PoseExtractor(Extractor):
    """Body landmarks of the most prominent person, tracked from frame to frame.

    Arrays
    ------
    ``name`` [shape=(T, 33, 4), dtype=float32, pixels of the cached frame, (x, y, z) and visibility, 0 to 1]
        x and y may lie outside the frame. z is the depth: 0 at the middle of the hips, smaller towards the camera.
        Values are NaN if no person is found, and in skipped frames.

    ``stride`` is the number of kept frames from one search for a person to the next.

    Notes
    -----
    Source: MediaPipe 0.10.21, ``solutions.pose.Pose(static_image_mode=False)``, fed with the frames that are not
    skipped. MediaPipe gives x and y as shares of the picture's width and height, and z as a share of the width.
    """

    version: ClassVar[int] = 2
    units: ClassVar[Mapping[str, str]] = {"": "pixels (x, y, z), visibility 0 to 1"}

    def __init__(self, name: str, *, stride: int = 1) -> None:
        super().__init__(name)
        self._stride = stride
        self._make_tracker: Any = None
        self._tracker: Any = None

    @classmethod
    def missing_requirement(cls, arguments: Mapping[str, Any]) -> str | None:
        """Return the command that installs MediaPipe. It is an extra because it needs NumPy 1 and adds a gigabyte."""
        return missing_package("pose", "mediapipe")

    def begin(self, video: VideoInfo) -> str | None:
        """Return None: the feature is never absent, because every video may show a person."""
        from mediapipe.python.solutions.pose import Pose  # the import takes half a second, and few builds need it

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
        """Return MediaPipe's landmarks, or an empty list if no person is found."""
        with _native_stderr_to_null():
            if self._tracker is None:  # its threads write to stderr until the first picture is done
                self._tracker = self._make_tracker(static_image_mode=False)
            landmarks = self._tracker.process(rgb).pose_landmarks
        return [] if landmarks is None else list(landmarks.landmark)


@contextmanager
def _native_stderr_to_null() -> Iterator[None]:
    """Discard everything that is written to file descriptor 2 inside the ``with`` block.

    MediaPipe's C++ code logs there for every video (the delegate it made, its models without a signature). Neither
    Python's logging nor an environment variable can switch that off.
    """
    stderr = os.dup(2)
    try:
        with open(os.devnull, "wb") as null:
            os.dup2(null.fileno(), 2)
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)


class PoseReadSide(ReadSide):
    """The read side of landmarks: in pixels of the crop. Mirroring swaps left and right landmarks."""

    padding: ClassVar[Mapping[str, float]] = {"pose": math.nan}  # no person seen
    is_spatial: ClassVar[bool] = True

    def read_clip(self, clip: Clip) -> Arrays:
        """Return ``pose`` [shape=(T, 33, 4), dtype=float32]."""
        pose = clip.rows(self.name)
        return {"pose": pose if clip.crop is None else cut_pose(pose, clip.crop)}

    def zeros(self, clip: Clip, info: FeatureInfo) -> Arrays:
        """Return NaN: no person is seen."""
        return {"pose": np.full((len(clip.numbers), NUM_LANDMARKS, 4), np.nan, np.float32)}


def cut_pose(pose: np.ndarray, crop: CropBox) -> np.ndarray:
    """Apply the crop of ``cut_frames`` to landmarks [shape=(T, 33, 4), dtype=float32, x, y, z in pixels, visibility].

    The upper left corner of the picture is (0, 0), and z is in the unit of x. NaN stays NaN. Landmarks may lie outside
    of the result. If mirrored, left and right landmarks change places: a person's left hand is then the right hand.

    Examples
    --------
    >>> pose = np.full((1, 33, 4), [228, 128, 10, 0.5], np.float32)
    >>> cut_pose(pose, CropBox(0, 100, 256, 256, size=(128, 128)))[0, 0].tolist()
    [64.0, 64.0, 5.0, 0.5]
    """
    across, down = crop.size[1] / crop.width, crop.size[0] / crop.height
    corner = np.array([crop.left, crop.top, 0, 0], np.float32)
    moved: np.ndarray = (pose - corner) * np.array([across, down, across, 1], np.float32)
    if not crop.flip:
        return moved
    moved[..., 0] = crop.size[1] - moved[..., 0]
    return moved[:, MIRRORED_LANDMARKS]
