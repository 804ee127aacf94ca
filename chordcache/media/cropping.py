"""Rectangles of decoded pictures, cut out and scaled. OpenCV is imported only to scale."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from chordcache.errors import UsageError

_LINEAR_SHRINK = 1.15
"""Largest shrink for which linear interpolation of two pixels is close enough: 40.4 dB, see ``resize_pictures``"""

_MAX_SHRINK = 4
"""Largest shrink that five taps can prepare. Before them, more is shrunk by area"""

_TAPS = {
    1.0: (0.0, 0.0),
    1.25: (0.0831, 0.0),
    1.5: (0.1501, 0.0),
    1.75: (0.2050, 0.0),
    2.0: (0.2500, 0.0),
    2.5: (0.2476, 0.0546),
    3.0: (0.2222, 0.1111),
    3.5: (0.1931, 0.1613),
    4.0: (0.1650, 0.2043),
}
"""Weights of the neighbors at one and two pixels, by shrink. Least squares: the taps, then linear interpolation, are
nearest to a triangle as wide as the shrink, for a picture whose neighboring pixels correlate by 0.95"""


class Rectangle(NamedTuple):
    """Some of the pixels of a picture."""

    top: int
    left: int
    height: int
    width: int

    def of(self, pictures: np.ndarray) -> np.ndarray:
        """Return a view of these pixels of pictures [shape=(n, H, W, ...)]."""
        return pictures[:, self.top : self.top + self.height, self.left : self.left + self.width]

    def within(self, outer: Rectangle) -> Rectangle:
        """Return the same pixels, counted from the first of a rectangle around them."""
        return self._replace(top=self.top - outer.top, left=self.left - outer.left)


def check_pixels(out: np.ndarray, size: tuple[int, ...]) -> None:
    """Raise ``UsageError`` unless memory takes a picture of a size (height, width) from a decoder, row after row."""
    is_right = out.shape == (*size, 3) and out.dtype == np.uint8 and out.flags.c_contiguous and out.flags.writeable
    if not is_right or not out.size:
        expected = "x".join(map(str, size))
        raise UsageError(
            f"out: got {out.dtype} of shape {out.shape} and strides {out.strides}, expected contiguous uint8 of "
            f"{expected} pixels of 3 channels"
        )


@dataclass(frozen=True)
class CropBox:
    """A rectangle of the cached picture. It is cut out, then scaled, then mirrored.

    Raise ``UsageError`` if the rectangle or the result does not have a pixel.
    """

    top: int
    """[pixels] First row. If negative, that many empty rows lie above the picture"""
    left: int
    """[pixels] First column"""
    height: int
    """[pixels] The rectangle may end below the picture"""
    width: int
    """[pixels]"""
    size: tuple[int, int]
    """(height, width) [pixels] of the result"""
    flip: bool = False
    """True if left and right are swapped"""

    def __post_init__(self) -> None:
        if min(self.height, self.width, *self.size) < 1:
            raise UsageError(f"crop: got {self}, expected at least one pixel, before and after")

    def visible(self, picture: tuple[int, int]) -> Rectangle | None:
        """Return the pixels of a picture [(height, width)] that the crop shows. None if it shows all, or nothing."""
        top, left = max(0, self.top), max(0, self.left)
        height = min(picture[0], self.top + self.height) - top
        width = min(picture[1], self.left + self.width) - left
        return Rectangle(top, left, height, width) if height > 0 and width > 0 and (height, width) != picture else None

    def within(self, part: Rectangle) -> CropBox:
        """Return the same crop of pictures of which only a part is there."""
        return CropBox(self.top - part.top, self.left - part.left, self.height, self.width, self.size, self.flip)


def cut(pictures: np.ndarray, crop: CropBox) -> np.ndarray:
    """Return the part of pictures [shape=(n, H, W, ...)] in a crop, zero beyond their border. A view if possible."""
    top, left = max(0, crop.top), max(0, crop.left)
    part = pictures[:, top : max(0, crop.top + crop.height), left : max(0, crop.left + crop.width)]
    if part.shape[1:3] == (crop.height, crop.width):
        return part
    padded = np.zeros((len(pictures), crop.height, crop.width, *pictures.shape[3:]), pictures.dtype)
    padded[:, top - crop.top :, left - crop.left :][:, : part.shape[1], : part.shape[2]] = part
    return padded


def blacken_padding(out: np.ndarray, crop: CropBox, picture: tuple[int, int]) -> None:
    """Set rows and columns of ``out`` [shape=(n, h, w, ...)] outside of the picture [(height, width)] to zero.

    An antialiased filter sees beyond the pixels that it makes, and would let the picture shine into the padding.
    """
    rows = _seen(crop.top, crop.height, picture[0], crop.size[0])
    columns = _seen(crop.left, crop.width, picture[1], crop.size[1])
    for rest in (out[:, : rows[0]], out[:, rows[1] :], out[:, :, : columns[0]], out[:, :, columns[1] :]):
        if rest.size:
            rest[...] = 0


def _seen(start: int, length: int, side: int, target: int) -> tuple[int, int]:
    """Return the first and the end of the pixels in which a picture of ``side`` is, after a crop along one side."""
    return max(0, -start * target // length), max(0, -((start - side) * target // length))


def resized(picture: np.ndarray, size: tuple[int, int], one_thread: bool) -> np.ndarray:
    """Return an array [shape=(H, W, ...)] at another size [(height, width)], or itself if it has this size."""
    if picture.shape[:2] == size:
        return picture
    out = np.empty((*size, *picture.shape[2:]), picture.dtype)
    resize(picture[None], out[None], one_thread)
    return out


def resize(frames: np.ndarray, out: np.ndarray, one_thread: bool) -> None:
    """Scale arrays of values, such as flow [shape=(n, H, W, ...)], into ``out`` [shape=(n, h, w, ...)].

    Shrink by area, enlarge linearly. If one side shrinks and the other grows, first shrink, then enlarge.
    OpenCV's INTER_AREA shifts contents by up to half a pixel along a side that grows.
    """
    cv2 = load_opencv(one_thread)
    size = out.shape[1:3]
    shrunk = min(frames.shape[1], size[0]), min(frames.shape[2], size[1])
    for frame, target in zip(frames, out, strict=True):
        if shrunk == size:
            cv2.resize(frame, size[::-1], dst=target, interpolation=cv2.INTER_AREA)
            continue
        if shrunk != frame.shape[:2]:
            frame = cv2.resize(frame, shrunk[::-1], interpolation=cv2.INTER_AREA)
        cv2.resize(frame, size[::-1], dst=target, interpolation=cv2.INTER_LINEAR)


def resize_pictures(pictures: np.ndarray, out: np.ndarray, one_thread: bool) -> None:
    """Scale pictures with a filter that is antialiased at every shrink, and fast.

    A side that grows, or shrinks by at most 1.15, is interpolated linearly. One that shrinks more is smoothed first,
    with three taps, or five above 2, so that both steps are nearly a triangle as wide as the shrink. Above 4, pictures
    are first shrunk by area to between 2 and 4 times the size.

    ``pictures`` [shape=(n, H, W, C), dtype=uint8] may have strided rows, so that a crop need not be copied. ``out``
    [shape=(n, h, w, C), dtype=uint8] is C-contiguous memory that is filled.

    Notes
    -----
    Source: the filter of Pillow's ``Image.resize(size, Image.BILINEAR)``, and of torch's ``interpolate`` with
    ``antialias=True``. Of 38 natural frames, at shrinks from 1.02 to 8, the worst is 40.4 dB from Pillow (PSNR), and
    the medians are 46 dB or more. INTER_AREA: 31.5 dB and 37.5 dB.
    """
    cv2 = load_opencv(one_thread)
    height, width = pictures.shape[1:3]
    size = out.shape[1:3]
    first = _before_taps(height, size[0]), _before_taps(width, size[1])
    taps_y, taps_x = _taps(first[0] / size[0]), _taps(first[1] / size[1])
    is_smoothed = max(taps_y.size, taps_x.size) > 1
    if is_smoothed:  # OpenCV takes twice the time for a single tap beside three
        taps_y, taps_x = (np.pad(taps, 1) if taps.size == 1 else taps for taps in (taps_y, taps_x))
    smoothed = np.empty((*first, *pictures.shape[3:]), np.uint8) if is_smoothed else None
    for picture, target in zip(pictures, out, strict=True):
        if first != (height, width):
            picture = cv2.resize(picture, first[::-1], interpolation=cv2.INTER_AREA)
        if smoothed is not None:
            picture = cv2.sepFilter2D(picture, -1, taps_x, taps_y, dst=smoothed, borderType=cv2.BORDER_REPLICATE)
        cv2.resize(picture, size[::-1], dst=target, interpolation=cv2.INTER_LINEAR)


def _before_taps(length: int, target: int) -> int:
    """Return the length of a side before the taps. A whole divisor where possible, which OpenCV shrinks by faster."""
    return length if length <= _MAX_SHRINK * target else round(length / math.ceil(length / target / _MAX_SHRINK))


@lru_cache(maxsize=1024)
def _taps(shrink: float) -> np.ndarray:
    """Return the taps that smooth a side before it shrinks [shape=(1,), (3,) or (5,), sum=1]."""
    if shrink <= _LINEAR_SHRINK:
        return np.ones(1)
    # In 256ths, as OpenCV computes: rounded there, they would not add up to 1, and make the picture darker
    near, far = (round(256 * np.interp(shrink, list(_TAPS), column)) for column in zip(*_TAPS.values(), strict=True))
    taps = [far, near, 256 - 2 * (near + far), near, far] if far else [near, 256 - 2 * near, near]
    return np.array(taps) / 256


def load_opencv(one_thread: bool = False) -> Any:
    """Import OpenCV and return it. ``one_thread`` switches its own threads off, for the whole process."""
    from chordcache.media.opencv import cv2  # not at the top: a cache that already has this size does not need it

    if one_thread and cv2.getNumThreads() > 1:
        # Not 1: that joins the pool's threads. A forked child does not have them, and hangs or crashes (OpenCV 5.0)
        cv2.setNumThreads(0)
    return cv2
