"""Reference for scaled pictures: each sample is the mean of the source over its area, in float64.

Nothing here uses swscale. Chroma samples are squares about the place where the stream says that they lie; matrices and
ranges are those of ITU-T H.273, and of JFIF for what comes out. Beyond its edge a plane is what it is at the edge.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

SHARES = {  # of red and of blue in luma, by AVColorSpace
    1: (0.2126, 0.0722),
    2: (0.299, 0.114),
    4: (0.30, 0.11),
    5: (0.299, 0.114),
    6: (0.299, 0.114),
    7: (0.212, 0.087),
    9: (0.2627, 0.0593),
}
QUARTERS = {  # of a chroma sample that it lies (left of, above) the middle, where it is halved in that direction
    "center": (0, 0),
    "left": (1, 0),
    "topleft": (1, 1),
    "top": (0, 1),
    "bottomleft": (1, -1),
    "bottom": (0, -1),
}

ENOUGH_SLOPE = 8000.0
"""Sum of squared slopes: rounding has a variance of 1/12, and so moves the result by 0.003 px at most"""


MAX_MEAN_ERROR = 0.05
"""[levels] over a picture"""

MAX_SHIFT_PX = 0.02
"""[samples] of the scaled picture"""


@dataclass(frozen=True)
class Tolerance:
    """Tolerances of a scaled plane."""

    min_psnr_db: float = 55
    """58.9 would be perfect but for the rounding"""
    max_mean_error: float = MAX_MEAN_ERROR
    max_shift_px: float = MAX_SHIFT_PX


@dataclass(frozen=True)
class Source:
    """Planes of a picture with chroma, and what they mean."""

    planes: tuple[np.ndarray, np.ndarray, np.ndarray]
    num_bits: int
    is_full: bool
    matrix: int
    """AVColorSpace"""
    location: str
    """As ffprobe names it"""

    @property
    def shape(self) -> tuple[int, ...]:
        """(height, width) of luma."""
        return self.planes[0].shape

    def tolerance(self, plane: str, width: int, height: int) -> Tolerance:
        """Return the tolerances of a plane scaled to this size."""
        is_halved = self.planes[1].shape != self.shape
        if is_halved and any(length % 2 for length in self.shape):
            # swscale stretches chroma of an odd number of columns over the picture, half a sample too wide
            return Tolerance(min_psnr_db=39, max_mean_error=0.1, max_shift_px=0.5)
        shape = (height // 2, width // 2) if plane in "UV" else (height, width)
        is_enlarged = any(a < b for a, b in zip(self.planes[1].shape, shape, strict=True))
        own = self.planes["YUV".index(plane)]
        if any(a < b for a, b in zip(own.shape, shape, strict=True)):
            # it is enlarged by swscale's bilinear filter, which is smoother than squares are
            return Tolerance(min_psnr_db=34, max_mean_error=0.1, max_shift_px=0.1)
        min_psnr_db = 51 if is_enlarged and self.matrix not in (2, 5, 6) else 55
        if (height, width) != self.shape:
            return Tolerance(min_psnr_db)
        # ten bits hold quarters of levels, of which eighths are rounded up; eight bits hold none
        is_coarse = self.is_full and self.num_bits == 8 and self.matrix not in (2, 5, 6)
        return Tolerance(min_psnr_db, max_mean_error=0.15 if is_coarse else 0.08)

    def rgb(self, width: int, height: int) -> np.ndarray:
        """Mean RGB [shape=(H, W, 3), dtype=float64, 0 to 255 and beyond]."""
        y, u, v = (self._mean(number, width, height) for number in range(3))
        red_share, blue_share = SHARES[self.matrix]
        red, blue = y + (2 - 2 * red_share) * v, y + (2 - 2 * blue_share) * u
        green = (y - red_share * red - blue_share * blue) / (1 - red_share - blue_share)
        return 255 * np.stack([red, green, blue], -1)

    def jpeg(self, width: int, height: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The planes that a JPEG with halved chroma stores [dtype=float64]."""
        return _jpeg(self, width, height)

    def _mean(self, number: int, width: int, height: int) -> np.ndarray:
        """Mean of a plane, luma 0 to 1, chroma -0.5 to 0.5."""
        plane, luma = self.planes[number].astype(np.float64), self.planes[0]
        steps, shifts = [], []
        for axis, length in enumerate((height, width)):
            halvings = round(np.log2(luma.shape[axis] / plane.shape[axis]))
            # the sample that should lie in the middle of 2^n pixels lies in the middle of the first
            shifts.append(QUARTERS[self.location][1 - axis] * (2**halvings - 1) / 2 ** (halvings + 1))
            steps.append(luma.shape[axis] / 2**halvings / length)
        mean = box(plane, (height, width), steps, shifts)
        top, unit = 2**self.num_bits - 1, 2 ** (self.num_bits - 8)
        if number:
            return (mean - 128 * unit) / (top if self.is_full else 224 * unit)
        return mean / top if self.is_full else (mean - 16 * unit) / (219 * unit)


@dataclass(frozen=True)
class RgbSource:
    """A picture in full-range RGB [shape=(H, W, 3), 0 to 255]."""

    picture: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        """(height, width)."""
        return self.picture.shape[:2]

    def tolerance(self, plane: str, width: int, height: int) -> Tolerance:
        """Return the tolerances of a plane scaled to this size."""
        return Tolerance()

    def rgb(self, width: int, height: int) -> np.ndarray:
        """Mean RGB [shape=(H, W, 3), dtype=float64, 0 to 255]."""
        steps = self.shape[0] / height, self.shape[1] / width
        return np.stack([box(channel, (height, width), steps) for channel in np.moveaxis(self.picture, -1, 0)], -1)

    def jpeg(self, width: int, height: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The planes that a JPEG with halved chroma stores [dtype=float64]."""
        return _jpeg(self, width, height)


def _jpeg(source: Source | RgbSource, width: int, height: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    y, _, _ = jpeg_of_rgb(source.rgb(width, height))
    _, u, v = jpeg_of_rgb(source.rgb(width // 2, height // 2))
    return y, u, v


def jpeg_of_rgb(rgb: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Y, U and V as JFIF defines them, 0 to 255, not rounded."""
    red, green, blue = np.moveaxis(rgb, -1, 0)
    y = 0.299 * red + 0.587 * green + 0.114 * blue
    return y, (blue - y) / 1.772 + 128, (red - y) / 1.402 + 128


def box(plane: np.ndarray, shape: tuple[int, int], steps: Any, shifts: Any = (0, 0)) -> np.ndarray:
    """Means over boxes: row i of the result covers the rows [i, i + 1) * step + shift, columns likewise."""
    return _box_rows(_box_rows(plane, shape[0], steps[0], shifts[0]).T, shape[1], steps[1], shifts[1]).T


def _box_rows(plane: np.ndarray, num_out: int, step: float, shift: float) -> np.ndarray:
    """Means over boxes of rows: differences of the integral, in which the first and the last row go on outside."""
    num_in = len(plane)
    integral = np.concatenate([np.zeros((1, plane.shape[1])), np.cumsum(plane, axis=0, dtype=np.float64)])
    edges = np.arange(num_out + 1) * step + shift
    whole = np.clip(np.floor(edges).astype(int), 0, num_in - 1)
    return np.diff(integral[whole] + (edges - whole)[:, None] * plane[whole], axis=0) / step


def shift_px(actual: np.ndarray, expected: np.ndarray) -> tuple[float, float] | None:
    """Return how far a plane is moved to the right and down: least squares over its slopes.

    None if the picture has too few slopes for the rounding not to matter.
    """
    if min(expected.shape) < 8:
        return None
    inside = slice(3, -3), slice(3, -3)
    down, right = (slope[inside].ravel() for slope in np.gradient(expected))
    terms = np.stack([right, down, np.ones_like(right)], 1)
    if min(np.sum(right**2), np.sum(down**2)) < ENOUGH_SLOPE:
        return None
    moved = np.linalg.lstsq(terms, (actual - expected)[inside].ravel(), rcond=None)[0]
    return -float(moved[0]), -float(moved[1])
