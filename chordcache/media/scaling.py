"""Conversion of a decoded picture to the size, orientation and colors of the cache, in one swscale pass."""

from __future__ import annotations

from fractions import Fraction

import av
import numpy as np
from av.sidedata.sidedata import Type as SideDataType

from chordcache.config.picture import Bucket, PictureConfig
from chordcache.errors import MediaError
from chordcache.json_records import MAX_PIXELS, MAX_SIDE
from chordcache.media.geometry import (
    Orientation,
    centered,
    covering_shares,
    display_size,
    orientation_of_matrix,
    scaled_size,
)
from chordcache.media.picture_data import plane_array, side_data
from chordcache.media.resample import PictureFilter, Planes, Resampler
from chordcache.media.stereo3d import Region, View, view_of
from chordcache.media.tonemap import DEFAULT_PEAK, TRANSFERS, signal_peak, tone_map

_MULTIVIEW_KINDS = (29, 30)
"""AV_FRAME_DATA_VIEW_ID and AV_FRAME_DATA_3D_REFERENCE_DISPLAYS, found on MV-HEVC pictures and not in PyAV 18's enum"""


def orientation_of(picture: av.VideoFrame) -> Orientation:
    """Return the orientation that the container or the codec asks for."""
    try:
        matrix = side_data(picture, SideDataType.DISPLAYMATRIX)
    except ValueError:  # the rotation is known even so, the mirroring is not
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
"""Orientation by ``VideoFrame.rotation``, in degrees counterclockwise"""


def _view_of(picture: av.VideoFrame, eye: str, layout: str) -> View:
    """Return where an eye's picture lies in this one, see ``stereo3d.view_of``."""
    multiview = False
    try:
        data = side_data(picture, SideDataType.STEREO3D)
    except ValueError:
        known = PictureFilter().apply(picture, *(("sidedata", f"delete:{kind}") for kind in _MULTIVIEW_KINDS))
        try:
            data = side_data(known, SideDataType.STEREO3D)
            multiview = True
        except ValueError:  # side data of an even newer kind, which is unrelated to stereo
            data = None
    return view_of(eye, layout, data, multiview=multiview)


def _peak_of(picture: av.VideoFrame) -> float:
    """Return the highest brightness that the picture's metadata allow, see ``tonemap.signal_peak``."""
    try:
        light_level = side_data(picture, SideDataType.CONTENT_LIGHT_LEVEL)
        mastering = side_data(picture, SideDataType.MASTERING_DISPLAY_METADATA)
    except ValueError:
        return DEFAULT_PEAK
    return signal_peak(light_level, mastering)


class PictureScaler:
    """Scaler of decoded pictures to one size, upright, with square pixels.

    The first picture determines size, orientation and stereo layout. Later pictures of another size are scaled to the
    same size. Each picture states for itself whether it is HDR.

    Of ``config``, ``short_side`` is of the upright picture. ``stereo`` is the eye whose picture is cut out, with the
    coded pixel aspect. Left and right refer to the stored picture, which is rotated afterwards. ``fps`` and ``buckets``
    are ignored. ``aspect`` is that of a pixel, None or 0 if pixels are square. With the ``bucket`` of the item,
    pictures are cut around their center to its aspect ratio, and scaled to its size. ``short_side`` makes them smaller.
    """

    def __init__(self, config: PictureConfig, aspect: Fraction | None, bucket: Bucket | None = None) -> None:
        self._config = config
        self._aspect = aspect
        self._bucket = bucket
        self._shares = (1.0, 1.0)
        """Shares of width and height of the stored picture that remain in a bucket"""
        self._first_view: Region = (0, 0, 0, 0)
        self._first_region: Region = (0, 0, 0, 0)
        """Shown parts of the first picture: before and after the cut to the bucket"""
        self._view = View()
        self._resampler = Resampler()
        self._filter = PictureFilter()
        self._transfers: list[str] = []
        self._first_size: tuple[int, int] | None = None
        self._stored_size = (0, 0)
        self._square_size = (0.0, 0.0)
        self.orientation = Orientation()

    @property
    def size(self) -> tuple[int, int]:
        """Upright (width, height) of the scaled pictures. Known after the first picture."""
        width, height = self._stored_size
        return (height, width) if self.orientation.transpose else (width, height)

    @property
    def display_size(self) -> tuple[int, int]:
        """Upright (width, height) of the whole picture, or of one eye's, with square pixels, before scaling."""
        width, height = (max(1, round(side)) for side in self._square_size)
        return (height, width) if self.orientation.transpose else (width, height)

    @property
    def display_crop(self) -> tuple[float, float, float, float] | None:
        """(left, top, width, height) of the part of ``display_size`` that is in the bucket, None without one."""
        if self._bucket is None:
            return None
        part, whole = self._first_region, self._first_view
        across = (part[0] - whole[0]) / whole[2], part[2] / whole[2]
        down = (part[1] - whole[1]) / whole[3], part[3] / whole[3]
        if self.orientation.transpose:
            across, down = down, across
        x = 1 - sum(across) if self.orientation.flip_columns else across[0]
        y = 1 - sum(down) if self.orientation.flip_rows else down[0]
        columns, rows = self.display_size
        left, top, width, height = (
            round(share * side, 6) for share, side in ((x, columns), (y, rows), (across[1], columns), (down[1], rows))
        )
        return left, top, width, height

    @property
    def enlargement(self) -> float:
        """Factor by which the picture is enlarged to fill the bucket, at most 1 if it is not."""
        factors = (
            length / (share * side)
            for length, share, side in zip(self._stored_size, self._shares, self._square_size, strict=True)
        )
        return max(factors) if self._bucket is not None else 1.0

    def planes(self, picture: av.VideoFrame) -> Planes:
        """Scale to full-range BT.601 YUV 4:2:0, as JPEG stores it.

        The planes [shape=(H, W), (H/2, W/2), (H/2, W/2), dtype=uint8, 0 to 255] are views that may be strided.
        """
        scaled = self._resampler.jpeg(self._shown(picture), *self._stored_size)
        y, u, v = map(self.orientation.apply, scaled)  # the orientation is known after the first picture
        return y, u, v

    def keeps(self, picture: av.VideoFrame) -> bool:
        """Return whether ``planes`` returns the planes of a picture as they are. Call it after the first picture."""
        size = picture.width, picture.height
        return (
            (picture.format.name, size, self.region_of(picture)) == ("yuvj420p", self._stored_size, (0, 0, *size))
            and self.orientation == Orientation()
            and not (self._config.hdr == "tonemap" and picture.color_trc in TRANSFERS)
        )

    def rgb(self, picture: av.VideoFrame) -> np.ndarray:
        """Scale to RGB [shape=(H, W, 3), dtype=uint8, 0 to 255]."""
        scaled = self._resampler.rgb(self._shown(picture), *self._stored_size)
        green, blue, red = (self.orientation.apply(plane_array(plane)) for plane in scaled.planes)
        return np.stack((red, green, blue), axis=-1)

    @property
    def notes(self) -> tuple[str, ...]:
        """Changes made to the content of the pictures so far, as text."""
        tone_mapped = [f"tone-mapped from {transfer} to BT.709" for transfer in self._transfers]
        return (*([self._view.note] if self._view.note else []), *tone_mapped)

    def region_of(self, picture: av.VideoFrame) -> Region:
        """Return (left, top, width, height) in stored pixels of the shown part. Call it after the first picture.

        In a bucket, offsets and lengths along the side that is cut are multiples of what a sample of chroma covers.
        """
        left, top, width, height = self._view.region(picture.width, picture.height)
        across, down = self._shares
        if across < 1:
            start, width = centered(width, across, 16 // picture.format.chroma_width(16))
            left += start
        if down < 1:
            start, height = centered(height, down, 16 // picture.format.chroma_height(16))
            top += start
        return left, top, width, height

    def _shown(self, picture: av.VideoFrame) -> av.VideoFrame:
        """Return the picture to scale: not interlaced, cut, and tone-mapped, which also scales it."""
        self.settle(picture)
        is_hdr = self._config.hdr == "tonemap" and picture.color_trc in TRANSFERS
        peak = _peak_of(picture) if is_hdr else DEFAULT_PEAK
        # swscale scales flagged fields separately and keeps the combs, ffmpeg blends the fields
        left, top, width, height = self.region_of(picture)
        if (width, height) != (picture.width, picture.height):
            crop = ("crop", f"{width}:{height}:{left}:{top}:exact=1")
            picture = self._filter.apply(picture, crop, ("setfield", "prog"))
        elif picture.interlaced_frame:
            picture = self._filter.apply(picture, ("setfield", "prog"))
        return self._tone_mapped(picture, peak) if is_hdr else picture

    def _tone_mapped(self, picture: av.VideoFrame, peak: float) -> av.VideoFrame:
        """Scale, then tone-map, since this order is the fastest."""
        if TRANSFERS[picture.color_trc] not in self._transfers:
            self._transfers.append(TRANSFERS[picture.color_trc])
        scaled = self._resampler.rgb(picture, *self._stored_size, "gbrp16le")
        green, blue, red = (plane_array(plane, "<u2") for plane in scaled.planes)
        codes = np.stack([red, green, blue])
        red, green, blue = tone_map(codes, transfer=picture.color_trc, primaries=picture.color_primaries, peak=peak)
        mapped = av.VideoFrame(scaled.width, scaled.height, "gbrp")
        for plane, samples in zip(mapped.planes, (green, blue, red), strict=True):
            plane_array(plane)[:] = samples
        return mapped

    def settle(self, picture: av.VideoFrame) -> None:
        """Let a picture determine size, orientation and stereo layout, unless one did so before."""
        if self._first_size is not None:
            return
        if self._config.stereo != "as_is":
            self._view = _view_of(picture, self._config.stereo, self._config.stereo_layout)
        self._first_view = self.region_of(picture)
        self._first_size = (picture.width, picture.height)
        self.orientation = orientation_of(picture)
        square = self._square_size = display_size(*self._first_view[2:], self._aspect)
        if self._bucket is None:
            self._stored_size = scaled_size(*square, self._config.short_side)
        else:
            size = scaled_size(self._bucket.width, self._bucket.height, self._config.short_side)
            self._stored_size = (size[1], size[0]) if self.orientation.transpose else size
            self._shares = covering_shares(*square, self._stored_size)
        self._first_region = self.region_of(picture)
        width, height = self._stored_size
        if width * height > MAX_PIXELS or max(width, height) > MAX_SIDE:
            limit = f"at most {MAX_SIDE} on a side and {MAX_PIXELS} in all"
            what = f"its frames would be of {width}x{height} pixels, expected {limit}; set frames.short_side"
            raise MediaError("decode", "refused-size", what)
