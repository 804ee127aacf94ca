"""The feature "motion": the codec's own motion vectors, on a grid of 16x16 blocks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from chordcache.content import MOTION_VECTOR_CODECS, motion_vectors
from chordcache.extractors.base import Extractor, Rows, VideoInfo
from chordcache.geometry import Orientation
from chordcache.picture import Frame

BLOCK_PX = 16
"""Side of a cell, in stored pixels: the macroblock of every codec that exports vectors."""

PICTURE_TYPES = {1: b"I", 2: b"P", 3: b"B"}
"""By AVPictureType; others, such as the sprites of MPEG-4, are b"?"."""

MAX_FLOAT16 = float(np.finfo(np.float16).max)


class MotionExtractor(Extractor):
    """Motion vectors that the decoder exports, of each kept frame, with a reference in the past.

    Arrays
    ------
    ``name`` [shape=(T, ceil(H / 16), ceil(W / 16), 2), dtype=float16, source pixels per frame, (dx, dy)]
        H x W is the shown part of the stored picture. As libavcodec has it, ``motion / motion_scale``: where in the
        reference the block was taken from, relative to where it is now. Flow from the past to now is the negative.
        libavcodec tells that the reference is in the past, not how far: after B frames it is several frames away.
        0 where nothing covers the cell.
    ``name.covered`` [shape=(T, ceil(H / 16), ceil(W / 16)), dtype=bool]
        Whether such a vector covers any of the cell. Not in intra blocks, in blocks predicted from the future alone,
        and in frames whose side data PyAV cannot list.
    ``name.types`` [shape=(T,), dtype="S1", b"I", b"P", b"B" or b"?"]

    ``facts`` hold ``width`` and ``height`` [source pixels] of the upright picture that the grid lies on.

    Partitions smaller than a cell are averaged, weighted by the area that they cover; larger ones, and those that lie
    across cells, count in every cell that they touch; what sticks out of the picture does not count.

    The grid and the vectors are turned like the picture. Cells are cut in the stored picture, from its left top: if
    its size is no multiple of 16, the partial cells of a turned or mirrored picture may be the first of a row or
    column instead of the last. If the stored size changes midway, positions and vectors are scaled to the size that
    the first frame had.

    Facts: ``width`` and ``height``, of the shown part of the stored picture, turned [pixels].

    Parameters
    ----------
    name : str
        Of the feature.

    Notes
    -----
    Source: AVMotionVector, libavutil/motion_vector.h.
    """

    needs_motion_vectors: ClassVar[bool] = True
    is_local: ClassVar[bool] = True
    units: ClassVar[Mapping[str, str]] = {"": "source pixels per frame, (dx, dy), from now to the reference"}

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._size: tuple[int, int] | None = None

    def begin(self, video: VideoInfo) -> str | None:
        """Absent where libavcodec exports no vectors."""
        return None if video.codec in MOTION_VECTOR_CODECS else f"codec '{video.codec}' exports no motion vectors"

    def add_frame(self, frame: Frame) -> Rows:
        """Return the frame's row."""
        left, top, width, height = frame.region
        if self._size is None:
            self._size = (width, height)
            upright = (height, width) if frame.orientation.transpose else (width, height)
            self.facts["width"], self.facts["height"] = upright
        vectors = motion_vectors(frame.picture)
        motion, covered = motion_grid(vectors, (left, top, width, height), self._size)
        orientation = frame.orientation
        return {
            self.name: turned(motion, orientation)[None],
            f"{self.name}.covered": np.ascontiguousarray(orientation.apply(covered))[None],
            f"{self.name}.types": np.array([PICTURE_TYPES.get(int(frame.picture.pict_type), b"?")], "S1"),
        }


def motion_grid(
    vectors: np.ndarray | None, region: tuple[int, int, int, int], size: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """Average the vectors of each cell that have a reference in the past, by area.

    Parameters
    ----------
    vectors : np.ndarray [shape=(n,), dtype=content.MOTION_VECTOR] or None
    region : tuple of int
        [pixels] (left, top, width, height) in the stored picture of what is shown.
    size : tuple of int
        [pixels] (width, height) that the region is scaled to.

    Returns
    -------
    motion : np.ndarray [shape=(ceil(height / 16), ceil(width / 16), 2), dtype=float16, pixels, (dx, dy)]
    covered : np.ndarray [shape=(ceil(height / 16), ceil(width / 16)), dtype=bool]
    """
    num_columns, num_rows = (-(-length // BLOCK_PX) for length in size)
    if vectors is None or not len(vectors):
        return np.zeros((num_rows, num_columns, 2), np.float16), np.zeros((num_rows, num_columns), bool)
    partitions = _Partitions(vectors, region, size)
    motions = vectors["motion"].T.astype(np.float32, order="C")
    is_past = vectors["source"] < 0
    sums = np.zeros((3, num_rows * num_columns), np.float32)
    for step in np.ndindex(partitions.num_steps):  # one step, unless partitions lie across cells
        (columns, rows), (widths, heights) = partitions.overlap(step)
        cells = (rows * num_columns + columns).astype(np.intp)
        areas = widths * heights * is_past
        for total, weights in zip(sums, (areas, *(areas * motions)), strict=True):
            total += np.bincount(cells, weights, len(total))
    covered = sums[0] > 0
    means = sums[1:] / np.where(covered, sums[0], 1) * (partitions.scale / vectors["motion_scale"][0])
    motion = np.clip(means, -MAX_FLOAT16, MAX_FLOAT16).astype(np.float16)
    return np.ascontiguousarray(motion.T).reshape(num_rows, num_columns, 2), covered.reshape(num_rows, num_columns)


class _Partitions:
    """Where the parts of a picture lie that have a vector each: in which cells, and how much of them they cover."""

    def __init__(self, vectors: np.ndarray, region: tuple[int, int, int, int], size: tuple[int, int]) -> None:
        limit = np.array(size, np.float32)[:, None]
        self.scale = limit / np.array(region[2:], np.float32)[:, None]
        lengths = vectors["size"].T.astype(np.float32, order="C")
        starts = vectors["position"].T.astype(np.float32, order="C")
        starts -= lengths / 2
        starts -= np.array(region[:2], np.float32)[:, None]
        stops = starts + lengths
        self._starts = np.minimum(np.maximum(starts * self.scale, 0), limit)
        self._stops = np.minimum(np.maximum(stops * self.scale, 0), limit)
        self._first = np.floor(self._starts / BLOCK_PX)
        self._last_cell = np.ceil(limit / BLOCK_PX) - 1
        reach = (self._stops - self._first * BLOCK_PX).max(axis=1)
        self.num_steps = (math.ceil(reach[0] / BLOCK_PX), math.ceil(reach[1] / BLOCK_PX))
        """How many cells a partition spans at most, along x and y"""

    def overlap(self, step: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        """The cell so many columns and rows after each partition's first one, and how much of it is covered.

        Returns
        -------
        cells : np.ndarray [shape=(2, n), dtype=float32, whole numbers, (column, row)]
        lengths : np.ndarray [shape=(2, n), dtype=float32, pixels, (x, y)]
            0 if nothing is covered.
        """
        if self.num_steps == (1, 1):  # nearly always: no partition has to be cut, which takes time
            return np.minimum(self._first, self._last_cell), self._stops - self._starts
        cells = self._first + np.array(step, np.float32)[:, None]
        starts = cells * BLOCK_PX
        lengths = np.minimum(self._stops, starts + BLOCK_PX) - np.maximum(self._starts, starts)
        return np.minimum(cells, self._last_cell), np.maximum(lengths, 0)


def turned(motion: np.ndarray, orientation: Orientation) -> np.ndarray:
    """Turn a grid of vectors [shape=(H, W, 2), (dx, dy)], and the vectors with it; returns a copy.

    Examples
    --------
    >>> turned(np.array([[[1, 2], [3, 4]]]), Orientation(transpose=True, flip_columns=True)).tolist()
    [[[-2, 1]], [[-4, 3]]]
    """
    if orientation.transpose:
        motion = motion[..., ::-1]
    motion = orientation.apply(motion).copy()
    if orientation.flip_columns:
        motion[..., 0] *= -1
    if orientation.flip_rows:
        motion[..., 1] *= -1
    return motion
