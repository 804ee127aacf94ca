"""Rectangles of decoded pictures, cut out and scaled. OpenCV is imported only to scale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from chordcache.errors import UsageError


@dataclass(frozen=True)
class CropBox:
    """A rectangle of the cached picture. It is cut out, then scaled, then mirrored.

    Raises
    ------
    UsageError
        If the rectangle or the result does not have a pixel.
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


def cut(pictures: np.ndarray, crop: CropBox) -> np.ndarray:
    """Return the part of pictures [shape=(n, H, W, ...)] in a crop, zero beyond their border. A view if possible."""
    top, left = max(0, crop.top), max(0, crop.left)
    part = pictures[:, top : max(0, crop.top + crop.height), left : max(0, crop.left + crop.width)]
    if part.shape[1:3] == (crop.height, crop.width):
        return part
    padded = np.zeros((len(pictures), crop.height, crop.width, *pictures.shape[3:]), pictures.dtype)
    padded[:, top - crop.top :, left - crop.left :][:, : part.shape[1], : part.shape[2]] = part
    return padded


def resized(picture: np.ndarray, size: tuple[int, int], one_thread: bool) -> np.ndarray:
    """Return a picture [shape=(H, W, ...)] at another size [(height, width)]. The same picture if it has this size."""
    if picture.shape[:2] == size:
        return picture
    out = np.empty((*size, *picture.shape[2:]), picture.dtype)
    resize(picture[None], out[None], one_thread)
    return out


def resize(frames: np.ndarray, out: np.ndarray, one_thread: bool) -> None:
    """Scale frames [shape=(n, H, W, ...)] into ``out`` [shape=(n, h, w, ...)].

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


def load_opencv(one_thread: bool = False) -> Any:
    """Import OpenCV and return it. ``one_thread`` switches its own threads off, for the whole process."""
    from chordcache.media.opencv import cv2  # not at the top: a cache that already has this size does not need it

    if one_thread and cv2.getNumThreads() > 1:
        # Not 1: that joins the pool's threads. A forked child does not have them, and hangs or crashes (OpenCV 5.0)
        cv2.setNumThreads(0)
    return cv2
