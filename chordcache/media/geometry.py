"""Sizes and orientations of pictures, as numbers only."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np


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
    """Read a display matrix.

    Parameters
    ----------
    matrix : tuple of int
        Nine numbers (a, b, u, c, d, v, x, y, w): a point (p, q) is shown at (a p + c q, b p + d q). Angles that are
        not a multiple of 90 degrees count as 0, as in ffmpeg's players.

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

    def even(length: float) -> int:
        return max(2, min(2 * round(length * scale / 2), 2 * int(length / 2)))

    return even(width), even(height)
