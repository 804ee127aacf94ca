"""Sizes and turns of pictures, in numbers only."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np


@dataclass(frozen=True)
class Orientation:
    """How stored rows and columns become the picture that a player shows: transpose first, then flip."""

    transpose: bool = False
    flip_columns: bool = False
    flip_rows: bool = False

    @property
    def mirrored(self) -> bool:
        """Whether no turn alone does it: the picture is flipped left to right before it is turned."""
        return self.transpose ^ self.flip_columns ^ self.flip_rows

    @property
    def rotation(self) -> int:
        """Clockwise turn in degrees, after the flip."""
        if self.transpose:
            return 90 if self.flip_columns else 270
        return 180 if self.flip_rows else 0

    def apply(self, plane: np.ndarray) -> np.ndarray:
        """Turn an array [shape=(H, W, ...)]; returns a view."""
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
        no multiple of 90 degrees are taken as none, as ffmpeg's players do.

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
    """Size in square pixels of a stored picture, not yet turned: the width is stretched, as ffmpeg does."""
    return (width * float(aspect), height) if aspect else (width, height)


def scaled_size(width: float, height: float, short_side: int | None) -> tuple[int, int]:
    """Even size with the short side at ``short_side``, aspect kept, never enlarged.

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
