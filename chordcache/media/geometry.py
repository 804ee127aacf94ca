"""Sizes and orientations of pictures, as numbers only."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from chordcache.config.picture import Bucket, PictureConfig


@dataclass(frozen=True)
class Orientation:
    """Steps that turn stored rows and columns into the picture that a player shows: transpose first, then flip."""

    transpose: bool = False
    flip_columns: bool = False
    flip_rows: bool = False

    @property
    def mirrored(self) -> bool:
        """True if a rotation alone is not enough: the picture is flipped left to right before it is rotated."""
        return self.transpose ^ self.flip_columns ^ self.flip_rows

    @property
    def rotation(self) -> int:
        """Clockwise rotation in degrees, after the flip."""
        if self.transpose:
            return 90 if self.flip_columns else 270
        return 180 if self.flip_rows else 0

    def apply(self, plane: np.ndarray) -> np.ndarray:
        """Orient an array [shape=(H, W, ...)]; return a view."""
        if self.transpose:
            plane = plane.swapaxes(0, 1)
        if self.flip_columns:
            plane = plane[:, ::-1]
        if self.flip_rows:
            plane = plane[::-1]
        return plane


def orientation_of_matrix(matrix: tuple[int, ...]) -> Orientation:
    """Read a display matrix (a, b, u, c, d, v, x, y, w): a point (p, q) is shown at (a p + c q, b p + d q).

    Angles that are not a multiple of 90 degrees count as 0, as in ffmpeg's players.

    Notes
    -----
    Source: ISO/IEC 14496-12, 6.2.2; libavutil/display.h.
    """
    a, b, c, d = matrix[0], matrix[1], matrix[3], matrix[4]
    if a and d and not b and not c:
        return Orientation(False, a < 0, d < 0)
    if b and c and not a and not d:
        return Orientation(True, c < 0, b < 0)
    return Orientation()


def display_size(width: int, height: int, aspect: Fraction | None) -> tuple[float, float]:
    """Return the size in square pixels of a stored picture, not rotated. The width is stretched, as in ffmpeg."""
    return (width * float(aspect), height) if aspect else (width, height)


def scaled_size(width: float, height: float, short_side: int | None) -> tuple[int, int]:
    """Return the even size whose short side is ``short_side``, with the aspect ratio kept and never enlarged.

    Examples
    --------
    >>> scaled_size(1280, 720, 256)
    (456, 256)
    >>> scaled_size(175, 143, 256)
    (174, 142)
    """
    scale = 1.0 if short_side is None else min(1.0, short_side / min(width, height))
    across, down = (max(2, min(2 * round(side * scale / 2), 2 * int(side / 2))) for side in (width, height))
    return across, down


def nearest_bucket(buckets: Iterable[Bucket], width: float, height: float, num_frames: int) -> Bucket | None:
    """Return the nearest bucket, or None if the item is shorter than all buckets.

    Buckets that are longer than the item do not count. The nearest aspect ratio decides, then the nearest area, then
    the largest number of frames. Distances are those of logarithms.

    Examples
    --------
    >>> buckets = [Bucket(480, 720, 49), Bucket(480, 720, 81), Bucket(720, 480, 49), Bucket(240, 360, 49)]
    >>> nearest_bucket(buckets, 1920, 1080, 60)
    Bucket(height=480, width=720, num_frames=49)
    >>> nearest_bucket(buckets, 1080, 1920, 100)
    Bucket(height=720, width=480, num_frames=49)
    """

    def distance(bucket: Bucket) -> tuple[float, float, int, Bucket]:
        aspect = abs(math.log(bucket.width / bucket.height) - math.log(width / height))
        area = abs(math.log(bucket.width * bucket.height / (width * height)))
        return aspect, area, -bucket.num_frames, bucket

    return min((bucket for bucket in buckets if bucket.num_frames <= num_frames), key=distance, default=None)


def covering_shares(width: float, height: float, target: tuple[int, int]) -> tuple[float, float]:
    """Return the shares of width and height of a picture that remain of it, if it covers ``target`` (width, height).

    Examples
    --------
    >>> covering_shares(1920, 1080, (480, 480))
    (0.5625, 1.0)
    """
    ratio = target[0] / target[1] * height / width
    return min(1.0, ratio), min(1.0, 1 / ratio)


def centered(length: int, share: float, step: int) -> tuple[int, int]:
    """Return the start and the length of the middle of a side [pixels]. Both are multiples of ``step`` if it is cut.

    Examples
    --------
    >>> centered(1920, 0.5625, 2)
    (420, 1080)
    >>> centered(175, 1.0, 2)
    (0, 175)
    """
    part = min(length, max(step, step * round(length * share / step)))
    return (length - part) // 2 // step * step, part


def expected_shape(picture: PictureConfig, width: int, height: int, num_frames: float) -> tuple[int, int, float]:
    """Return width, height [pixels] and number of frames of an item in a cache; zeros if it fills no bucket.

    ``width`` and ``height`` are those of the displayed source. ``num_frames`` is the number after ``fps``, which may be
    an estimate.
    """
    if picture.buckets is None:
        return *scaled_size(width, height, picture.short_side), num_frames
    bucket = nearest_bucket(picture.buckets, width, height, round(num_frames))
    return (bucket.width, bucket.height, bucket.num_frames) if bucket else (0, 0, 0)
