"""The three planes of a picture in 4:2:0: joined in one array, taken apart again, and converted to RGB.

OpenCV is imported only to convert.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from chordcache.errors import UsageError
from chordcache.media.cropping import Rectangle, check_pixels

_MAX_PIXELS = 320 * 240 - 1
"""Number of pixels that OpenCV converts in the thread that calls it. It gives larger pictures to threads of its own,
which do not exist in a forked process (OpenCV 5.0)"""

_LUMA_TO_LIMITED = 219 / 255, 16
_CHROMA_TO_LIMITED = 224 / 255, 128 * (1 - 224 / 255)
"""Factor and offset that convert full range to limited range"""


def joined(planes: Sequence[np.ndarray]) -> np.ndarray:
    """Join the planes Y, U and V of a picture [shape=(H * 3 / 2, W), dtype=uint8]. H and W are even."""
    width = planes[0].shape[-1]
    return np.concatenate([plane.reshape(-1) for plane in planes]).reshape(-1, width)


def split(pictures: np.ndarray) -> list[np.ndarray]:
    """Return views of the planes of ``joined`` pictures [shape=(..., H, W), twice (..., H / 2, W / 2), dtype=uint8].

    ``pictures`` [shape=(..., H * 3 / 2, W)] is C-contiguous.
    """
    *leading, rows, width = pictures.shape
    height = rows * 2 // 3
    chroma = pictures[..., height:, :].reshape(*leading, 2, height // 2, width // 2)
    return [pictures[..., :height, :], chroma[..., 0, :, :], chroma[..., 1, :, :]]


def around(part: Rectangle) -> Rectangle:
    """Return the smallest rectangle around a part whose borders are even, so that it has whole samples of chroma."""
    top, left = part.top // 2 * 2, part.left // 2 * 2
    bottom, right = (part.top + part.height + 1) // 2 * 2, (part.left + part.width + 1) // 2 * 2
    return Rectangle(top, left, bottom - top, right - left)


def cut(planes: Sequence[np.ndarray], part: Rectangle) -> list[np.ndarray]:
    """Return views of a part of planes [shape=(..., H, W), twice (..., H / 2, W / 2)] whose borders are even."""
    top, left, bottom, right = part.top, part.left, part.top + part.height, part.left + part.width
    chroma = [plane[..., top // 2 : bottom // 2, left // 2 : right // 2] for plane in planes[1:]]
    return [planes[0][..., top:bottom, left:right], *chroma]


def to_rgb(planes: Sequence[np.ndarray], top: int, left: int, out: np.ndarray) -> None:
    """Convert a part of pictures of full-range BT.601, from row ``top`` and column ``left`` on.

    Each 2x2 pixels have the chroma that is stored for them, so that a part is equal to the same part of the whole.

    ``planes`` are Y, U and V [shape=(n, H, W), twice (n, H / 2, W / 2), dtype=uint8, 0 to 255], whose rows may be
    padded. ``out`` [shape=(n, h, w, 3), dtype=uint8, 0 to 255, RGB] is C-contiguous memory for the part. Raise
    ``UsageError`` if it is another kind of array, or larger than the pictures below and right of the place.
    """
    from chordcache.media.opencv import cv2

    check_pixels(out, (len(planes[0]), *out.shape[1:3]))
    height, width = out.shape[1:3]
    if top < 0 or left < 0 or top + height > planes[0].shape[1] or left + width > planes[0].shape[2]:
        size = "x".join(map(str, planes[0].shape[:0:-1]))
        raise UsageError(f"out: got {out.shape} at ({top}, {left}) of a picture of {size}, expected a part of it")
    whole = around(Rectangle(top, left, height, width))
    num_rows = max(2, _MAX_PIXELS // whole.width // 2 * 2)
    for first in range(whole.top, whole.top + whole.height, num_rows):
        last = min(first + num_rows, whole.top + whole.height)
        begin, end = max(first, top), min(last, top + height)
        pictures = _limited(cut(planes, whole._replace(top=first, height=last - first)))
        for picture, target in zip(pictures, out[:, begin - top : end - top], strict=True):
            if target.shape[:2] == (last - first, whole.width):
                cv2.cvtColor(picture, cv2.COLOR_YUV2RGB_I420, dst=target)
            else:
                rgb = cv2.cvtColor(picture, cv2.COLOR_YUV2RGB_I420)
                target[:] = rgb[begin - first : end - first, left - whole.left :][:, :width]


def _limited(planes: Sequence[np.ndarray]) -> np.ndarray:
    """Join planes as OpenCV expects them [shape=(n, H * 3 / 2, W)], and convert all pictures at once to limited range.

    Rounding to it costs less than 0.2 dB at 44 dB.
    """
    from chordcache.media.opencv import cv2

    num, height, width = planes[0].shape
    pictures = np.empty((num, height * 3 // 2, width), np.uint8)
    for target, plane in zip(split(pictures), planes, strict=True):
        target[...] = plane
    samples = pictures.reshape(num, -1)
    luma, chroma = samples[:, : height * width], samples[:, height * width :]
    cv2.convertScaleAbs(luma, luma, *_LUMA_TO_LIMITED)
    cv2.convertScaleAbs(chroma, chroma, *_CHROMA_TO_LIMITED)
    return pictures
