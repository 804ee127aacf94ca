"""Facts about pictures that hold in copies of a video: a digest of all, a hash of each second, and the hard cuts."""

from __future__ import annotations

import hashlib
import itertools
import math
from array import array
from collections import deque

import numpy as np

_ROUNDING_SECONDS = 0.0011
"""[seconds] Largest change of a duration in a container that stores milliseconds, such as Matroska"""

_GRIDS = (6, 2)
"""Rows, and columns, of the two grids of blocks. They have 60 and 4 pairs of neighbors"""

_FLAT_LEVELS = 2.0
"""[gray levels] Standard deviation of the blocks of a second below which it is black, or of one gray"""

_SHORTEST_SECONDS = 0.3
"""[seconds] Shortest rest of a second at the end that gets a hash"""

_SMALLEST_CUT = 15.0
"""[gray levels, 0 to 255] Smallest mean difference of the pictures before and after a cut"""

_CUT_RATIO = 1.5
"""Smallest ratio of that difference to the largest beside it. In a pan, and where frames repeat, several are large"""

_BESIDE = 4
"""Number of differences on each side that are compared"""

_FLASH = 3
"""[frames] Longest flash that is not two cuts"""

_RETURN_RATIO = 0.6
"""Ratio to the difference at the cut below which a picture after it is like one before: the end of a flash"""


class PictureDigest:
    """Digest of all pictures and their times. A remux, another name and other metadata do not change it.

    The points of ``LumaPoints`` stand for a picture. Times count in steps of the most common duration of a frame, and
    this one in milliseconds, because some containers round times to them.
    """

    def __init__(self) -> None:
        self._pictures = hashlib.sha256()
        self._times = array("d")

    def add(self, points: np.ndarray | None, pts_seconds: float) -> None:
        """Take the points of the next picture, or None if it has none."""
        if points is not None:
            self._pictures.update(points.data)
        self._times.append(pts_seconds)

    def hexdigest(self) -> str:
        """Return the digest as 32 hex digits, or "" without pictures."""
        if not self._times:
            return ""
        times = np.asarray(self._times) - self._times[0]
        steps = np.diff(times) if len(times) > 1 else np.ones(1)
        middle = np.sort(steps)[len(steps) // 2]
        step = max(1e-6, float(steps[np.abs(steps - middle) <= _ROUNDING_SECONDS].mean()))
        digest = self._pictures.copy()
        digest.update(np.rint([*(times / step), step * 1000]).astype("<i8").tobytes())
        return digest.hexdigest()[:32]


class SecondHashes:
    """Perceptual hash of each second: whether a block of its mean picture is brighter than the one before it.

    Compression, scaling, a logo or a small crop change few of its bits. ``verifying.leaks`` says how few.
    """

    def __init__(self) -> None:
        self._second, self._num_pictures, self._last_seconds = 0, 0, 0.0
        self._sum = np.zeros((0, 0), np.float32)
        """Sum of the pictures of the current second [shape=(H, W)]"""
        self._hashes: list[int] = []

    def add(self, points: np.ndarray, seconds: float) -> None:
        """Take the points of the next picture, ``seconds`` after the first."""
        second = math.floor(seconds)
        if second != self._second:
            self._end()
            self._second = second
        if not self._num_pictures or self._sum.shape != points.shape:
            self._sum, self._num_pictures = np.zeros(points.shape, np.float32), 0
        self._sum += points
        self._num_pictures += 1
        self._last_seconds = seconds

    def _end(self) -> None:
        if self._num_pictures and self._second >= len(self._hashes):  # else the clock went back
            self._hashes += [0] * (self._second - len(self._hashes))
            self._hashes.append(_hash_of(self._sum / self._num_pictures))
        self._num_pictures = 0

    def hexdigits(self) -> str:
        """Return 16 hex digits for each second. They are 0 for a second that is flat or has no pictures."""
        if not self._hashes or self._last_seconds - self._second >= _SHORTEST_SECONDS:
            self._end()
        return "".join(f"{value:016x}" for value in self._hashes)


def _hash_of(picture: np.ndarray) -> int:
    height, width = picture.shape
    grids = [_shares(side, height) @ picture @ _shares(side, width).T for side in _GRIDS]
    if grids[0].std() < _FLAT_LEVELS:
        return 0
    rises = [np.diff(blocks, axis=axis) > 0 for blocks in grids for axis in (1, 0)]
    return int.from_bytes(np.packbits(np.concatenate(rises, axis=None)).tobytes(), "big")


def _shares(num_blocks: int, length: int) -> np.ndarray:
    """Return the share of each row or column in each block [shape=(num_blocks, length), dtype=float32]."""
    edges, starts = np.linspace(0, length, num_blocks + 1)[:, None], np.arange(length)
    overlaps = np.minimum(edges[1:], starts + 1) - np.maximum(edges[:-1], starts)
    shares: np.ndarray = np.maximum(overlaps, 0) * np.float32(num_blocks / length)
    return shares.astype(np.float32)


def mirrored(hashes: np.ndarray) -> np.ndarray:
    """Return the hashes of the mirrored pictures [dtype=uint64]. Left and right change places in each comparison."""
    bits = np.unpackbits(hashes.astype(">u8").view(np.uint8).reshape(-1, 8), axis=1)
    start, columns = 0, []
    for side in _GRIDS:
        for shape, is_horizontal in (((side, side - 1), 1), ((side - 1, side), 0)):
            size = shape[0] * shape[1]
            part = bits[:, start : start + size].reshape(-1, *shape)[:, :, ::-1] ^ is_horizontal
            columns.append(part.reshape(-1, size))
            start += size
    packed = np.packbits(np.concatenate(columns, axis=1).astype(np.uint8), axis=1)
    return np.where(hashes == 0, hashes, packed.view(">u8").reshape(-1).astype(np.uint64))


class CutFinder:
    """Finder of hard cuts: the picture changes much more than just before and after, and does not change back."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        """[seconds after the first picture] Times of the first pictures of new shots"""
        self._window: deque[tuple[float, float, np.ndarray]] = deque(maxlen=2 * _BESIDE + 1)
        """Time, difference from the picture before [gray levels], and points of the last pictures"""

    def add(self, points: np.ndarray, seconds: float, difference: float) -> None:
        """Take the next picture, and its mean difference from the one before [0 to 255], or -1 without one."""
        if self._window and self._window[-1][2].shape != points.shape:
            self._window.clear()
        self._window.append((seconds, difference, points))
        self._check(len(self._window) - 1 - _BESIDE)

    def finish(self) -> None:
        """Take the end of the video."""
        for place in range(max(0, len(self._window) - _BESIDE), len(self._window)):
            self._check(place)

    def _check(self, place: int) -> None:
        """Add the time of the picture at a place of the window, if a shot begins there."""
        window = list(self._window)
        if place < 1 or window[place][1] < _SMALLEST_CUT:
            return
        seconds, difference, points = window[place]
        before, after = window[max(0, place - _BESIDE) : place], window[place + 1 : place + 1 + _BESIDE]
        if difference < _CUT_RATIO * max(row[1] for row in before + after) or before[-1][0] in self.seconds[-1:]:
            return
        returned = _RETURN_RATIO * mean_difference(before[-1][2], points)
        pairs = itertools.product(before[-_FLASH:], after[:_FLASH])
        if all(mean_difference(one[2], other[2]) >= returned for one, other in pairs):
            self.seconds.append(seconds)


def mean_difference(one: np.ndarray, other: np.ndarray) -> float:
    """Return the mean absolute difference of two arrays [dtype=uint8]."""
    difference = np.maximum(one, other) - np.minimum(one, other)
    return float(difference.sum(dtype=np.uint32) / difference.size)
