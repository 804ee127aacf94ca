"""The feature "motion": the codec's own motion vectors, on a grid of 16x16 blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar

import numpy as np

from chordcache.config.picture import PictureConfig
from chordcache.errors import UsageError
from chordcache.features.base import Extractor, Rows, VideoInfo
from chordcache.features.read_side import MOTION_AS_FLOW, Arrays, Clip, ReadSide, in_memory
from chordcache.media.cropping import CropBox
from chordcache.media.frame import Frame
from chordcache.media.geometry import Orientation
from chordcache.storage.artefacts.artefact import Artefact
from chordcache.storage.feature_info import FeatureInfo

BLOCK_PX = 16
"""Side of a cell [pixels of its picture]. It is the macroblock of every codec that exports vectors. The last cells of a
picture may be narrower."""

PICTURE_TYPES = {1: b"I", 2: b"P", 3: b"B"}
"""AVPictureType to its letter. Others, such as the sprites of MPEG-4, are b"?"."""

MAX_FLOAT16 = float(np.finfo(np.float16).max)

_MAX_B_FRAMES = 16
"""Largest number of B frames in a row over which ``motion.as_flow`` is known. It is the largest of x264"""


class MotionExtractor(Extractor):
    """Motion vectors of each kept frame, exported by the decoder, with a reference in the past.

    Arrays
    ------
    ``name`` [shape=(T, ceil(H / 16), ceil(W / 16), 2), dtype=float16, source pixels, (dx, dy)]
        H x W is the shown part of the stored picture. The vector is libavcodec's ``motion / motion_scale``. It points
        from the block's place now to the place in the reference that the block was copied from. Flow from the past to
        now is the negative. libavcodec states that the reference is in the past, but not how far. After B frames it
        is several frames away. ``MotionReadSide`` makes flow of it. The value is 0 where nothing covers the cell.
    ``name.covered`` [shape=(T, ceil(H / 16), ceil(W / 16)), dtype=bool]
        True if such a vector covers any part of the cell. False in intra blocks, in blocks predicted only from the
        future, and in frames whose side data PyAV cannot list.
    ``name.types`` [shape=(T,), dtype="S1", b"I", b"P", b"B" or b"?"]

    ``facts`` hold ``width`` and ``height`` [source pixels] of the upright picture that the grid covers.

    Partitions are averaged, weighted by their area, in the cell of their top left corner. Macroblocks have the size
    and the places of cells, so no partition lies in two cells. The exceptions are an eye of a stereo picture, and the
    part in a bucket, that are cut out at other places.

    The grid and the vectors are turned like the picture. Cells are cut in the stored picture, from its top left. If
    the picture's size is not a multiple of 16, the partial cells of a turned or mirrored picture may be the first of a
    row or column instead of the last. If the stored size changes midway, the grid is resampled (to the nearest cell),
    and the vectors are scaled to the size of the first frame.

    Notes
    -----
    Source: AVMotionVector, libavutil/motion_vector.h.
    """

    needs_motion_vectors: ClassVar[bool] = True
    is_local: ClassVar[bool] = True
    units: ClassVar[Mapping[str, str]] = {"": "source pixels per frame, (dx, dy), from now to the reference"}

    def __init__(self, name: str) -> None:
        super().__init__(name)
        # Not at the top: it loads PyAV, which readers do without
        from chordcache.media.picture_data import MOTION_VECTOR_CODECS, motion_vectors

        self._codecs, self._motion_vectors = MOTION_VECTOR_CODECS, motion_vectors
        self._size: tuple[int, int] | None = None

    @classmethod
    def picture_used(cls, picture: PictureConfig) -> PictureConfig:
        """Return the frame rate and the eye. Motion vectors do not depend on the size or color of pictures."""
        return replace(picture, short_side=type(picture).short_side, hdr=type(picture).hdr)

    def begin(self, video: VideoInfo) -> str | None:
        """Return the reason why the feature is absent: libavcodec exports no vectors for the codec."""
        return None if video.codec in self._codecs else f"codec '{video.codec}' exports no motion vectors"

    def add_frame(self, frame: Frame) -> Rows:
        """Return the rows of this frame."""
        size = frame.region[2:]
        if self._size is None:
            self._size = size
            self.facts["width"], self.facts["height"] = size[::-1] if frame.orientation.transpose else size
        motion, covered = motion_grid(self._motion_vectors(frame.picture), frame.region)
        if size != self._size:
            motion, covered = resampled(motion, covered, size, self._size)
        return {
            self.name: turned(motion, frame.orientation)[None],
            f"{self.name}.covered": frame.orientation.apply(covered)[None],
            f"{self.name}.types": np.array([PICTURE_TYPES.get(int(frame.picture.pict_type), b"?")], "S1"),
        }


def motion_grid(vectors: np.ndarray | None, region: tuple[int, int, int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Average the vectors of each cell that have a reference in the past, by area.

    ``vectors`` [shape=(n,), dtype=picture_data.MOTION_VECTOR] may be None. ``region`` is the (left, top, width, height)
    [pixels] of the shown part in the stored picture. Return the motion [shape=(ceil(height / 16), ceil(width / 16), 2),
    dtype=float16, pixels, (dx, dy)], and which cells are covered [dtype=bool].
    """
    left, top, width, height = region
    num_rows, num_columns = grid_size(height, width)
    num_cells = num_columns * num_rows
    if vectors is None or not len(vectors):
        return np.zeros((num_rows, num_columns, 2), np.float16), np.zeros((num_rows, num_columns), bool)
    widths, heights = vectors["size"].T.astype(np.int32, order="C")
    corners = x, y = vectors["position"].T.astype(np.int32, order="C")
    x -= (widths >> 1) + left
    y -= (heights >> 1) + top
    areas = widths * heights * (vectors["source"] < 0)
    far_x, far_y = x.view(np.uint32), y.view(np.uint32)  # negative values become large
    if far_x.max() >= width or far_y.max() >= height:
        is_inside = (far_x < width) & (far_y < height)
        areas *= is_inside
        corners *= is_inside
    corners //= BLOCK_PX
    cells = y * num_columns + x
    covering = np.bincount(cells, areas, num_cells)
    covered = covering > 0
    scale = 1 / (np.where(covered, covering, 1) * float(vectors["motion_scale"][0]))
    motion = np.empty((num_cells, 2), np.float16)
    for axis, lengths in enumerate(vectors["motion"].T.astype(np.int32, order="C")):  # 16 bits, and areas have 16
        motion[:, axis] = np.bincount(cells, lengths * areas, num_cells) * scale
    return motion.reshape(num_rows, num_columns, 2), covered.reshape(num_rows, num_columns)


def grid_size(height: int, width: int) -> tuple[int, int]:
    """Return (rows, columns) of the motion of a picture.

    Examples
    --------
    >>> grid_size(1080, 1920)
    (68, 120)
    """
    return _num_cells(height), _num_cells(width)


def _num_cells(length: int) -> int:
    return -(-length // BLOCK_PX)


def resampled(
    motion: np.ndarray, covered: np.ndarray, size: tuple[int, int], new_size: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """Convert a grid and its vectors from one picture size [pixels, (width, height)] to another."""
    columns, rows = (
        ((np.arange(_num_cells(new)) + 0.5) * _num_cells(old) / _num_cells(new)).astype(int)
        for old, new in zip(size, new_size, strict=True)
    )
    cells = np.ix_(rows, columns)
    scale = np.array(new_size, np.float32) / np.array(size, np.float32)
    return np.clip(motion[cells] * scale, -MAX_FLOAT16, MAX_FLOAT16).astype(np.float16), covered[cells]


def turned(motion: np.ndarray, orientation: Orientation) -> np.ndarray:
    """Return a turned copy of a grid of vectors [shape=(H, W, 2), (dx, dy)], whose vectors are turned as well.

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


class MotionReadSide(ReadSide):
    """The read side of motion: vectors in pixels of the crop, on its own grid. Mirroring changes the sign of dx.

    Arrays
    ------
    ``motion.as_flow`` [shape=(T - 1, rows, columns, 2), dtype=float32, source pixels per frame step, (dx, dy)]
        Row i moves frame i onto frame i + 1, as the rows of flow do. It is made of the vectors of a P frame, the first
        frame after frame i that is not a B frame. Their reference is the last frame before them that is not one. The
        motion between the two is taken as uniform: all rows between them have the negative of the vectors, divided by
        their distance in frames. A cell is the block's place in the P frame.

        NaN where the flow is not known: in intra blocks, in the rows from the last P frame to an I frame, where
        ``frames.fps`` left out a frame, over more than 16 B frames, and beyond the first and the last frame that is not
        a B frame. Vectors of B frames are not used, because their reference may be a B frame. With several references,
        a block may use an older one. Its vector is then too long, and libavcodec does not export which blocks these
        are.
    """

    padding: ClassVar[Mapping[str, float]] = {"motion": 0, "motion_covered": 0}
    is_spatial: ClassVar[bool] = True

    def num_rows(self, info: FeatureInfo) -> Mapping[str, int]:
        """Return the stored arrays, and ``motion.as_flow``. See ``ReadSide``."""
        return {**info.num_rows, MOTION_AS_FLOW: max(0, info.num_rows[self.name] - 1)}

    def rows(
        self, artefact: Artefact, info: FeatureInfo, array: str, numbers: Sequence[int], out: np.ndarray | None
    ) -> np.ndarray:
        """Read stored rows, or make flow of them. See ``ReadSide``."""
        if array != MOTION_AS_FLOW:
            return artefact.rows(array, numbers, out)
        flow = np.full((len(numbers), *info.shape[1:]), np.nan, np.float32)
        starts, stops = _references(artefact, np.asarray(numbers, np.int64))
        is_known = stops > starts
        if is_known.any():
            frames, rows = np.unique(stops[is_known], return_inverse=True)
            motion = artefact.rows(self.name, frames.tolist()).astype(np.float32)
            motion[~artefact.rows(f"{self.name}.covered", frames.tolist())] = np.nan
            flow[is_known] = -motion[rows] / (stops - starts)[is_known, None, None, None]
        return in_memory(array, flow, out)

    def read_clip(self, clip: Clip) -> Arrays:
        """Return ``motion`` [shape=(T, 2, gh, gw), dtype=float32] and ``motion_covered`` [shape=(T, gh, gw)].

        With ``motion.as_flow``, there are T - 1 rows, from each frame to the next, and cells are covered where it is
        known over all frames between them.
        """
        if MOTION_AS_FLOW in clip.variants:
            motion = _flow_between(clip)
            covered = np.isfinite(motion[..., 0])
            motion[~covered] = 0
        else:
            motion = clip.rows(self.name)
            covered = clip.rows(f"{self.name}.covered")
        if clip.crop is not None:
            facts = clip.video.feature(self.name).facts
            source = facts["height"], facts["width"]
            motion, covered = cut_motion(motion, covered, clip.crop, source=source, picture=clip.picture)
        channels_first = np.ascontiguousarray(motion.transpose(0, 3, 1, 2), np.float32)
        return {"motion": channels_first, "motion_covered": covered}

    def zeros(self, clip: Clip, info: FeatureInfo) -> Arrays | None:
        """Return zeros, or None without a crop: the size of the source's grid is unknown."""
        if clip.crop is None:
            return None
        num_rows, grid = len(clip.numbers), grid_size(*clip.crop.size)
        if MOTION_AS_FLOW in clip.variants:
            num_rows = max(0, num_rows - 1)
        return {
            "motion": np.zeros((num_rows, 2, *grid), np.float32),
            "motion_covered": np.zeros((num_rows, *grid), np.bool_),
        }


def _references(artefact: Artefact, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the frames that the rows of ``motion.as_flow`` lie between, both [shape=(n,), dtype=int64].

    The second is a P frame, and the first its reference. They are equal if the flow is not known.
    """
    if not len(numbers):
        return numbers, numbers
    first = max(0, int(numbers.min()) - _MAX_B_FRAMES)
    stop = min(artefact.num_rows("motion.types"), int(numbers.max()) + _MAX_B_FRAMES + 2)
    types = artefact.rows("motion.types", range(first, stop))
    others = np.flatnonzero(types != b"B")
    after = np.searchsorted(others, numbers - first, side="right")
    is_between = (after > 0) & (after < len(others))
    starts, stops = numbers.copy(), numbers.copy()
    starts[is_between], stops[is_between] = others[after[is_between] - 1] + first, others[after[is_between]] + first
    sources = artefact.array("source_frames")
    is_known = (types[stops - first] == b"P") & (sources[stops] - sources[starts] == stops - starts)
    is_known &= stops - starts <= _MAX_B_FRAMES + 1
    return starts, np.where(is_known, stops, starts)


def _flow_between(clip: Clip) -> np.ndarray:
    """Return the sum of ``motion.as_flow`` from each frame of a clip to the next [shape=(T - 1, rows, columns, 2)]."""
    numbers = clip.numbers.tolist()
    flow = np.zeros((max(0, len(numbers) - 1), *clip.video.feature("motion").shape[1:]), np.float32)
    for row, (start, stop) in zip(flow, pairwise(numbers), strict=True):
        if stop < start:
            raise UsageError(
                f"features: got '{MOTION_AS_FLOW}' for frame {stop} of video '{clip.video.key}' after frame {start}, "
                "expected frames in ascending order. Take another sampler."
            )
        row[:] = clip.rows(MOTION_AS_FLOW, slice(start, stop)).sum(axis=0)
    return flow


def cut_motion(
    motion: np.ndarray, covered: np.ndarray, crop: CropBox, *, source: tuple[int, int], picture: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """Apply the crop of ``cut_frames`` to motion. Mirroring changes the sign of dx.

    A cell of the result gets the value of the source cell that holds its center. Cells are counted from the top left.
    In a turned picture whose first row or column is partial, see ``MotionExtractor``, they may be off by one. The
    result is zero, and not covered, where the crop lies outside of the picture.

    ``motion`` [shape=(T, rows, columns, 2), float, (dx, dy)] is in pixels of the upright source, whose (height, width)
    is ``source``. ``covered`` has [shape=(T, rows, columns), dtype=bool]. ``picture`` is the (height, width) of the
    picture as it is cached. Return both arrays for the crop of h x w pixels: motion [shape=(T, ceil(h / 16),
    ceil(w / 16), 2), dtype=float32, pixels of the crop, (dx, dy)], and covered.
    """
    down, across = (
        _Axis(source[0], picture[0], crop.top, crop.height, crop.size[0]),
        _Axis(source[1], picture[1], crop.left, crop.width, crop.size[1], crop.flip),
    )
    rows, columns = down.cells(), across.cells()
    there = (rows >= 0)[:, None] & (columns >= 0)
    vectors = motion[:, rows[:, None], columns].astype(np.float32)
    vectors *= np.array([across.scale(), down.scale()], np.float32)
    return np.where(there[..., None], vectors, np.float32(0)), covered[:, rows[:, None], columns] & there


@dataclass(frozen=True)
class _Axis:
    """Rows or columns of motion, mapped from the source to the result.

    Example: 720 rows are cached as 256, of which 256 from 0 on are returned as 224. These are 14 cells. Their centers
    8, 24 .. 216 lie at 25.7, 77.1 .. 694.3 in the source, in cells 1, 4 .. 43. An output pixel is 3.2 source pixels.
    """

    source: int
    picture: int
    start: int
    length: int
    out: int
    flip: bool = False

    def scale(self) -> float:
        """Return the output pixels per source pixel, negative if mirrored."""
        scale = (self.picture / self.source) * (self.out / self.length)
        return -scale if self.flip else scale

    def cells(self) -> np.ndarray:
        """Return the source cell of each cell of the result [dtype=intp], -1 outside of the picture."""
        edges = np.minimum(np.arange(0, self.out + BLOCK_PX, BLOCK_PX), self.out)
        centers = (edges[:-1] + edges[1:]) / 2
        if self.flip:
            centers = self.out - centers
        places = centers / abs(self.scale()) + self.start * self.source / self.picture
        inside = (places >= 0) & (places < self.source)
        return np.where(inside, places // BLOCK_PX, -1).astype(np.intp)
