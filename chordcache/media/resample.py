"""Decoded pictures at another size, as the planes of a JPEG or as RGB.

Every output sample is the mean of the area that it covers in the source, which is swscale's "area" filter.
Both ways avoid what swscale does not do well (measured on FFmpeg 8.1). It converts limited chroma to 0 to 255 instead
of 1 to 255, so that gray is 127.5. It converts one matrix to another by way of 8-bit RGB. Its packed RGB is up to two
levels too dark.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import Any, NamedTuple, TypeAlias

import av
import av.filter
import numpy as np
from av.video.reformatter import ColorRange, Colorspace, Interpolation, VideoReformatter

from chordcache.errors import MediaError
from chordcache.media.picture_data import plane_array

__all__ = ["PictureFilter", "Planes", "Resampler"]

Planes: TypeAlias = "tuple[np.ndarray, np.ndarray, np.ndarray]"
Filters: TypeAlias = "tuple[tuple[str, str], ...]"
"""Names of libavfilter's filters and their arguments"""

_UNSTATED_MATRIX = "smpte170m"
"""BT.601, as in ffmpeg"""

_MATRICES = {
    0: _UNSTATED_MATRIX,
    1: "bt709",
    2: _UNSTATED_MATRIX,
    4: "fcc",
    5: "bt470bg",
    6: "smpte170m",
    7: "smpte240m",
    9: "bt2020ncl",
}
"""Names of matrices in ``colorspace``, by AVColorSpace. 0 is RGB, which is not possible for a picture with chroma."""

_GRAY = ("gray", "ya")
"""Begin of the names of formats without chroma"""

_LOCATIONS = {
    (0, 0): "center",
    (1, 0): "left",
    (1, 1): "topleft",
    (0, 1): "top",
    (1, -1): "bottomleft",
    (0, -1): "bottom",
}
"""ffmpeg's names, by quarters of a sample by which chroma is (left of, above) the middle of its 2x2 pixels"""

_BT601 = ("smpte170m", "bt470bg")
"""Matrices whose luma is that of JPEG, so that each plane can be scaled separately"""

_FLAGS = "area+accurate_rnd+full_chroma_inp"
"""Flags of swscale. The second makes 8-bit samples rounded instead of cut off. The third matters to RGB sources."""

_INTERPOLATION = Interpolation.AREA | Interpolation.ACCURATE_RND | Interpolation.FULL_CHR_H_INP
"""The same flags for PyAV"""

_NO_TRANSFER = "in_primaries=bt709:out_primaries=bt709:in_transfer=bt709:out_transfer=bt709"
"""Arguments that keep transfer and primaries. swscale refuses pictures with values that it does not know."""


class PictureFilter:
    """Chain of libavfilter's filters for pictures of any size and format."""

    def __init__(self) -> None:
        self._graph: av.filter.Graph | None = None
        self._made_for: tuple[object, ...] = ()

    def apply(self, picture: av.VideoFrame, *filters: tuple[str, str]) -> av.VideoFrame:
        """Apply filters, each a name and its arguments, in this order."""
        made_for = (picture.width, picture.height, picture.format.name, filters)
        if self._graph is None or self._made_for != made_for:
            graph = av.filter.Graph()
            graph.threads = 1
            source = graph.add_buffer(
                width=picture.width, height=picture.height, format=picture.format, time_base=Fraction(1)
            )
            chain = [graph.add(*one) for one in filters]
            graph.link_nodes(source, *chain, graph.add("buffersink")).configure()
            self._graph, self._made_for = graph, made_for
        self._graph.vpush(picture)
        return self._graph.vpull()


class Resampler:
    """Scaler of pictures that are not interlaced. Matrix, range and format may change from one to the next."""

    def __init__(self) -> None:
        self._samples: _Samples | None = None
        self._one_pass: Filters = ()
        self._made_for: tuple[object, ...] = ()
        self._filter = PictureFilter()
        self._fine_filter = PictureFilter()
        self._fine_scaler, self._coarse_scaler, self._rgb_scaler = (VideoReformatter() for _ in range(3))

    def jpeg(self, picture: av.VideoFrame, width: int, height: int) -> Planes:
        """Scale to full-range BT.601 with chroma in the middle of its four pixels, as JPEG requires.

        The planes [shape=(H, W), (H/2, W/2), (H/2, W/2), dtype=uint8, 0 to 255] may be strided. Raise ``MediaError``,
        ``decode``, if the picture's format or matrix is unknown.
        """
        with _refusing(picture):
            if picture.format.name.startswith("xyz"):  # libavfilter's scale takes it for RGB
                picture = self.rgb(picture, width, height)
            picture = _with_chroma(picture)
            layout = (picture.width, picture.height, picture.format.name, picture.colorspace, picture.color_range)
            if self._made_for != (layout, width, height):  # read a chroma location once, since this takes a while
                self._samples = _samples_of(picture)
                self._one_pass = _one_pass(picture, self._samples, width, height)
                self._made_for = (layout, width, height)
            if self._samples is not None and not self._one_pass:
                return self._two_passes(picture, self._samples, width, height)
            y, u, v = map(plane_array, self._filter.apply(picture, *self._one_pass).planes)
            return y, u, v

    def _two_passes(self, picture: av.VideoFrame, samples: _Samples, width: int, height: int) -> Planes:
        """Scale luma to its size, and chroma as in a picture of half that size, which centers it on 2x2 pixels."""
        matrix, depth, is_full = samples
        is_mixed = matrix not in _BT601  # then the luma of a pixel depends on its chroma
        same_colors = _same_colors(is_full)
        fine_format = f"yuv{444 if is_mixed else 420}{depth}"
        fine = self._fine_scaler.reformat(picture, width, height, fine_format, **same_colors)
        halved = av.VideoFrame(width, height, f"yuv420{depth}")  # not ``fine``, which may be the decoder's own picture
        stored = picture.format
        has_chroma = stored.chroma_width(picture.width) >= width and stored.chroma_height(picture.height) >= height
        # use the mean of means, unless they are rounded to eight bits or there are fewer chroma samples than pixels
        if is_mixed and depth != "p" and has_chroma:
            _halve_chroma(fine, halved)
        else:
            coarse = self._coarse_scaler.reformat(picture, width // 2, height // 2, f"yuv444{depth}", **same_colors)
            for target, source in zip(halved.planes[1:], coarse.planes[1:], strict=True):
                _copy_rows(source, target)
        if is_mixed:  # the luma of ``halved`` is not used
            y = self._fine_filter.apply(fine, _recolored(matrix, is_full, "yuv444p")).planes[0]
            _, u, v = self._filter.apply(halved, _recolored(matrix, is_full, "yuv420p")).planes
        else:
            _copy_rows(fine.planes[0], halved.planes[0])
            y, u, v = self._filter.apply(halved, _recolored(matrix, is_full, "yuv420p")).planes
        return plane_array(y), plane_array(u), plane_array(v)

    def rgb(self, picture: av.VideoFrame, width: int, height: int, pixel_format: str = "gbrp") -> av.VideoFrame:
        """Scale to planes of full-range RGB, in the order green, blue, red. Raises as ``jpeg``."""
        with _refusing(picture):
            picture = _with_chroma(picture)
            samples = _samples_of(picture)
            unstated = samples is not None and samples.matrix == _UNSTATED_MATRIX
            if samples is not None and samples.is_full and samples.depth != "p":
                picture = self._limited(picture, samples, width, height)
            return self._rgb_scaler.reformat(
                picture,
                width,
                height,
                pixel_format,
                src_colorspace=Colorspace.ITU601 if unstated else None,  # must not be set for RGB sources
                dst_colorspace=Colorspace.ITU601,
                dst_color_range=ColorRange.JPEG,
                interpolation=_INTERPOLATION,
                threads=1,
            )

    def _limited(self, picture: av.VideoFrame, samples: _Samples, width: int, height: int) -> av.VideoFrame:
        """Scale a full-range picture of more than eight bits to limited range, since swscale reads 1020 as white."""
        matrix, depth, _ = samples
        scaled = self._fine_scaler.reformat(picture, width, height, f"yuv444{depth}", **_same_colors(is_full=True))
        return self._fine_filter.apply(scaled, _recolored(matrix, True, "yuv444p10", matrix, "tv"))


@contextmanager
def _refusing(picture: av.VideoFrame) -> Iterator[None]:
    """Turn errors of libavfilter and swscale into a MediaError."""
    try:
        yield
    except MemoryError:
        raise
    except (av.error.FFmpegError, ValueError) as error:
        what = f"cannot convert {picture.format.name} pictures with matrix {picture.colorspace}: {error}"
        raise MediaError("decode", "decode", what) from None


def _with_chroma(picture: av.VideoFrame) -> av.VideoFrame:
    """Return gray of limited range as YUV. swscale converts gray as full range, whatever range is stated."""
    if not (picture.format.name.startswith(_GRAY) and picture.color_range == ColorRange.MPEG):
        return picture
    bits = picture.format.components[0].bits
    depth = "" if bits == 8 else f"{bits}le"
    if picture.format.name != f"gray{depth}":  # it has alpha, or the other order of bytes
        picture = VideoReformatter().reformat(picture, format=f"gray{depth}", **_same_colors(is_full=True))
    colored = av.VideoFrame(picture.width, picture.height, f"yuv420p{depth}")
    colored.color_range = ColorRange.MPEG
    _copy_rows(picture.planes[0], colored.planes[0])
    for plane in colored.planes[1:]:
        _rows(plane).view("u1" if bits == 8 else "<u2")[:] = 1 << bits - 1
    return colored


class _Samples(NamedTuple):
    """The kind of samples of luma, and perhaps chroma."""

    matrix: str
    """Name of their matrix, for ``colorspace``"""
    depth: str
    """End of the name of the pixel format to scale to. The format has more than eight bits, to round to eight only
    once. Full range keeps the source's number of bits. In 10 bits, swscale converts 255 to 1020, which is not white"""
    is_full: bool
    """True if samples have the full range"""


def _samples_of(picture: av.VideoFrame) -> _Samples | None:
    """Return the kind of the samples of a picture, None if they are RGB, palettes, bits or XYZ."""
    stored, name = picture.format, picture.format.name
    is_gray = name.startswith(_GRAY)  # gray of limited range was given chroma before
    if not is_gray and (len(stored.components) < 3 or stored.is_rgb or name.startswith("xyz")):
        return None
    if not is_gray and picture.colorspace not in _MATRICES:
        raise ValueError("the matrix is not supported")
    is_full = picture.color_range == ColorRange.JPEG or is_gray or name.startswith("yuvj")
    full_depth = {8: "p", 10: "p10le"}.get(stored.components[0].bits, "p12le")
    matrix = _UNSTATED_MATRIX if is_gray else _MATRICES[picture.colorspace]
    return _Samples(matrix, full_depth if is_full else "p10le", is_full)


def _one_pass(picture: av.VideoFrame, samples: _Samples | None, width: int, height: int) -> Filters:
    """Return filters that scale all planes at once, and round them once; empty if the result would be wrong."""
    scale = f"{width}:{height}:flags={_FLAGS}:{_NO_TRANSFER}:out_chroma_loc=center:out_color_matrix=bt601"
    if samples is None:
        to_jpeg = _recolored(_UNSTATED_MATRIX, False, "yuv420p")
        return ("scale", f"{scale}:out_range=limited"), ("format", "yuv420p10le"), to_jpeg
    (matrix, depth, is_full), location = samples, _chroma_location(picture)
    is_scaled = (picture.width, picture.height) != (width, height)
    if matrix not in _BT601 or not (is_scaled or location == "center"):  # swscale moves chroma only when it scales
        return ()
    color_range = "full" if is_full else "limited"
    scale += f":in_color_matrix=bt601:in_range={color_range}:out_range={color_range}:in_chroma_loc={location}"
    return ("scale", scale), ("format", f"yuv420{depth}"), _recolored(matrix, is_full, "yuv420p")


def _recolored(
    matrix: str, is_full: bool, pixel_format: str, to_matrix: str = "smpte170m", to_range: str = "pc"
) -> tuple[str, str]:
    """Return the filter that changes matrix, range and depth, by default to those of JPEG.

    ``fast`` skips linear light, and with it linear RGB.
    """
    before = f"ispace={matrix}:irange={'pc' if is_full else 'tv'}:iprimaries=bt709:itrc=bt709"
    after = f"space={to_matrix}:range={to_range}:primaries=bt709:trc=bt709:format={pixel_format}:fast=1"
    return "colorspace", f"{before}:{after}"


def _rows(plane: Any) -> np.ndarray:
    """Return the bytes of a plane with their padding [shape=(H, line size), dtype=uint8], writable."""
    return np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)


def _copy_rows(source: Any, target: Any) -> None:
    """Copy the samples of a plane into a plane of the same size, whose rows may have another padding."""
    num_bytes = min(target.line_size, source.line_size)
    _rows(target)[:, :num_bytes] = _rows(source)[:, :num_bytes]


def _halve_chroma(source: av.VideoFrame, target: av.VideoFrame) -> None:
    """Write the means of 2x2 chroma samples of a 4:4:4 picture into a 4:2:0 one, both of 10 or of 12 bits.

    This takes half the time of swscale, which also scales luma. It rounds identically.
    """
    for large, small in zip(source.planes[1:], target.planes[1:], strict=True):
        rows = _rows(large).view("<u2")
        sums = rows[::2] + rows[1::2]
        means = (sums[:, ::2] + sums[:, 1::2] + 2) >> 2
        num_samples = min(small.line_size // 2, means.shape[1])
        _rows(small).view("<u2")[:, :num_samples] = means[:, :num_samples]


def _same_colors(is_full: bool) -> dict[str, Any]:
    """Return arguments with which swscale only scales. Any matrix is right if it is the same on both sides."""
    color_range = ColorRange.JPEG if is_full else ColorRange.MPEG
    return {
        "src_colorspace": Colorspace.ITU601,
        "dst_colorspace": Colorspace.ITU601,
        "src_color_range": color_range,
        "dst_color_range": color_range,
        "interpolation": _INTERPOLATION,
        "threads": 1,
    }


def _chroma_location(picture: av.VideoFrame) -> str:
    """Return the location of chroma according to the decoder, by ffmpeg's name; "center" if it is unstated.

    PyAV 18 does not expose this field, and libavfilter's scale does not read it, but swscale does. swscale moves a
    ramp in a small picture with the properties of this one by the distance of chroma from the middle.
    """
    scaler = VideoReformatter()
    side = 8 if picture.width != 8 else 16  # with the same size, the picture itself would be returned
    small = scaler.reformat(picture, side, side, "yuv420p", interpolation=Interpolation.POINT, threads=1)
    ramp = np.arange(side // 2, dtype=np.uint8) * 16
    plane_array(small.planes[1])[:] = ramp
    plane_array(small.planes[2])[:] = ramp[:, None]
    moved = scaler.reformat(small, side // 2, side // 2, "yuv444p", interpolation=Interpolation.AREA, threads=1)
    u, v = (plane_array(moved.planes[i]) for i in (1, 2))
    quarters = round((int(u[1, 1]) - 16) / 4), round((int(v[1, 1]) - 16) / 4)
    return _LOCATIONS[quarters]
