"""One decoded picture to the size, orientation and colours of the cache, in one swscale pass."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeAlias

import av
import av.filter
import numpy as np
from av.sidedata.sidedata import Type as SideDataType
from av.video.reformatter import ColorRange, Colorspace, Interpolation, VideoReformatter

from chordcache.decode import MAX_PIXELS, DecodedFrame, plane_array, side_data
from chordcache.errors import MediaError

Planes: TypeAlias = "tuple[np.ndarray, np.ndarray, np.ndarray]"

_UNSPECIFIED_MATRIX = 2
"""AVCOL_SPC_UNSPECIFIED."""


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


def orientation_of(picture: av.VideoFrame) -> Orientation:
    """The orientation that the container or the codec asks for."""
    try:
        matrix = side_data(picture, SideDataType.DISPLAYMATRIX)
    except ValueError:  # the turn is known all the same, the mirroring is not
        return _BY_ROTATION.get(picture.rotation, Orientation())
    if matrix is None:
        return Orientation()
    return orientation_of_matrix(tuple(np.frombuffer(matrix, np.int32, 9).tolist()))


_BY_ROTATION = {
    90: Orientation(transpose=True, flip_rows=True),
    -90: Orientation(transpose=True, flip_columns=True),
    180: Orientation(flip_columns=True, flip_rows=True),
    -180: Orientation(flip_columns=True, flip_rows=True),
}
"""By what ``VideoFrame.rotation`` says, in degrees counterclockwise."""


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


class PictureScaler:
    """Takes decoded pictures to one size, upright, with square pixels.

    The first picture settles size and orientation; one that comes in another size later is scaled to the same.

    Parameters
    ----------
    short_side : int or None
        [pixels] of the upright picture; None keeps the size.
    aspect : Fraction or None
        Sample aspect ratio; None or 0 if the pixels are square.
    """

    def __init__(self, short_side: int | None, aspect: Fraction | None) -> None:
        self._short_side = short_side
        self._aspect = aspect
        self._scaler = VideoReformatter()
        self._deflagger: av.filter.Graph | None = None
        self._deflagger_shape: tuple[int, int, str] | None = None
        self._first_size: tuple[int, int] | None = None
        self._stored_size = (0, 0)
        self.orientation = Orientation()
        self.num_resized = 0
        """Pictures whose coded size differs from the first one's"""

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) of what comes out, upright. Known after the first picture."""
        width, height = self._stored_size
        return (height, width) if self.orientation.transpose else (width, height)

    def planes(self, picture: av.VideoFrame) -> Planes:
        """Full-range BT.601 YUV 4:2:0, which is what JPEG stores.

        Returns
        -------
        tuple of np.ndarray [shape=(H, W), (H/2, W/2), (H/2, W/2), dtype=uint8, 0 to 255]
            Views that may be strided.
        """
        scaled = self._scale(picture, "yuvj420p")
        y, u, v = (self.orientation.apply(plane_array(plane)) for plane in scaled.planes)
        return y, u, v

    def rgb(self, picture: av.VideoFrame) -> np.ndarray:
        """RGB.

        Returns
        -------
        np.ndarray [shape=(H, W, 3), dtype=uint8, 0 to 255, RGB]
        """
        scaled = self._scale(picture, "rgb24")
        plane: Any = scaled.planes[0]
        rows = np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)[: scaled.height, : 3 * scaled.width]
        return np.ascontiguousarray(self.orientation.apply(rows.reshape(scaled.height, scaled.width, 3)))

    def _scale(self, picture: av.VideoFrame, pixel_format: str) -> av.VideoFrame:
        self.settle(picture)
        self.num_resized += (picture.width, picture.height) != self._first_size
        # swscale takes an unstated matrix of YUV for BT.601; said aloud, since RGB sources must not hear it
        unstated = picture.colorspace == _UNSPECIFIED_MATRIX and not picture.format.is_rgb
        if picture.interlaced_frame:
            picture = self._deflag(picture)
        try:
            return self._scaler.reformat(
                picture,
                *self._stored_size,
                pixel_format,
                src_colorspace=Colorspace.ITU601 if unstated else None,
                dst_colorspace=Colorspace.ITU601,
                dst_color_range=ColorRange.JPEG,
                interpolation=Interpolation.AREA,
                threads=1,
            )
        except (av.error.FFmpegError, ValueError) as error:
            what = f"cannot convert {picture.format.name} pictures with matrix {picture.colorspace}: {error}"
            raise MediaError("decode", "decode", what) from None

    def _deflag(self, picture: av.VideoFrame) -> av.VideoFrame:
        """Take the interlaced flag off: swscale scales flagged fields apart and keeps the combs, ffmpeg blends them."""
        shape = (picture.width, picture.height, picture.format.name)
        if self._deflagger is None or self._deflagger_shape != shape:
            graph = av.filter.Graph()
            source = graph.add_buffer(width=shape[0], height=shape[1], format=picture.format, time_base=Fraction(1))
            graph.link_nodes(source, graph.add("setfield", "prog"), graph.add("buffersink")).configure()
            self._deflagger, self._deflagger_shape = graph, shape
        self._deflagger.vpush(picture)
        return self._deflagger.vpull()

    def settle(self, picture: av.VideoFrame) -> None:
        """Let a picture settle size and orientation, if none has yet."""
        if self._first_size is not None:
            return
        self._first_size = (picture.width, picture.height)
        self.orientation = orientation_of(picture)
        width, height = display_size(picture.width, picture.height, self._aspect)
        self._stored_size = scaled_size(width, height, self._short_side)
        if self._stored_size[0] * self._stored_size[1] > MAX_PIXELS:
            raise MediaError("decode", "refused-size", f"the display size would be {width:.0f}x{height:.0f} pixels")


class FrameMaker:
    """Makes ``Frame`` objects of one video's decoded pictures.

    Parameters
    ----------
    short_side : int or None
        [pixels] of the cached frames, see ``PictureScaler``.
    aspect : Fraction or None
        Sample aspect ratio.
    """

    def __init__(self, short_side: int | None, aspect: Fraction | None) -> None:
        self._short_side = short_side
        self._aspect = aspect
        self._scalers: dict[int | None, PictureScaler] = {}
        self._num_frames = 0

    def frame(self, decoded: DecodedFrame) -> Frame:
        """The next kept frame."""
        self.scaler.settle(decoded.picture)
        self._num_frames += 1
        return Frame(self._num_frames - 1, decoded, self)

    @property
    def scaler(self) -> PictureScaler:
        """That of the cached frames."""
        return self.scaler_to(self._short_side)

    def scaler_to(self, short_side: int | None) -> PictureScaler:
        """One scaler for each short side that is asked for."""
        if short_side not in self._scalers:
            self._scalers[short_side] = PictureScaler(short_side, self._aspect)
        return self._scalers[short_side]


class Frame:
    """One kept frame as extractors see it. Its pictures are made when they are asked for, and once."""

    def __init__(self, number: int, decoded: DecodedFrame, maker: FrameMaker) -> None:
        self.number = number
        """In the cache, from 0"""
        self.source_number = decoded.number
        """In the source, from 0"""
        self.pts_seconds = decoded.pts_seconds
        self.picture = decoded.picture
        """As the decoder made it: coded size, not turned, with its side data"""
        self._maker = maker
        self._planes: dict[PictureScaler, Planes] = {}
        self._rgb: np.ndarray | None = None

    @property
    def orientation(self) -> Orientation:
        """How the stored picture is turned."""
        return self._maker.scaler.orientation

    def planes(self) -> Planes:
        """The planes of the cached frame, see ``PictureScaler.planes``."""
        return self._scaled(self._maker.scaler)

    def luma(self, short_side: int | None) -> np.ndarray:
        """The picture in grey, upright [shape=(H, W), dtype=uint8, 0 to 255], C-contiguous, with this short side."""
        return np.ascontiguousarray(self._scaled(self._maker.scaler_to(short_side))[0])

    def rgb(self) -> np.ndarray:
        """The cached frame before JPEG [shape=(H, W, 3), dtype=uint8, 0 to 255, RGB], C-contiguous."""
        if self._rgb is None:
            self._rgb = self._maker.scaler.rgb(self.picture)
        return self._rgb

    def _scaled(self, scaler: PictureScaler) -> Planes:
        if scaler not in self._planes:
            self._planes[scaler] = scaler.planes(self.picture)
        return self._planes[scaler]
