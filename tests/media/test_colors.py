"""Scaled pictures against a float64 mean of the decoder's own samples, see ``box_average``."""

from __future__ import annotations

import resource
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from helpers import box_average, ffmpeg_reference, scaled

from chordcache.config.picture import Bucket, PictureConfig
from chordcache.errors import MediaError
from chordcache.media.ffmpeg_log import capture
from chordcache.media.probe import probe
from chordcache.media.resample import Resampler
from chordcache.media.scaling import PictureScaler

MIN_PSNR_DB = 54.0
"""Lowest PSNR of RGB; rounding alone gives 58.9"""

Planes = tuple[np.ndarray, np.ndarray, np.ndarray]


# Media


def clouds(number: int, width: int, height: int) -> np.ndarray:
    """Soft spots of some 12 pixels in every color, none of them out of gamut [shape=(H, W, 3), float64, 0 to 255]."""
    cells = np.random.default_rng(number).uniform(40, 215, (3, height // 12 + 3, width // 12 + 3))
    rows, columns = np.linspace(0.5, cells.shape[1] - 2.5, height), np.linspace(0.5, cells.shape[2] - 2.5, width)
    top, left = rows.astype(int), columns.astype(int)
    down, right = rows - top, columns - left
    down, right = (3 - 2 * down[:, None]) * down[:, None] ** 2, (3 - 2 * right) * right**2
    corners = [cells[:, top + i][:, :, left + j] for i in (0, 1) for j in (0, 1)]
    upper = corners[0] * (1 - right) + corners[1] * right
    lower = corners[2] * (1 - right) + corners[3] * right
    return np.moveaxis(upper * (1 - down) + lower * down, 0, -1)


def stored(rgb: np.ndarray, pixel_format: str, matrix: int, is_full: bool) -> list[np.ndarray]:
    """The planes of a picture, chroma in the middle: a file may lie about the place, and so is as good as any other."""
    described = av.VideoFormat(pixel_format)
    bits = described.components[0].bits
    top, unit = 2**bits - 1, 2 ** (bits - 8)
    red, green, blue = np.moveaxis(rgb / 255, -1, 0)
    red_share, blue_share = box_average.SHARES[matrix]
    y = red_share * red + (1 - red_share - blue_share) * green + blue_share * blue
    planes = [y * top if is_full else (16 + 219 * y) * unit]
    if len(described.components) > 1:
        shape = described.chroma_height(y.shape[0]), described.chroma_width(y.shape[1])
        for difference in ((blue - y) / (2 - 2 * blue_share), (red - y) / (2 - 2 * red_share)):
            small = box_average.box(difference, shape, [a / b for a, b in zip(y.shape, shape, strict=True)])
            planes.append(small * top + 128 * unit if is_full else (128 + 224 * small) * unit)
    dtype = np.uint8 if bits == 8 else np.uint16
    return [np.rint(plane).astype(dtype) for plane in planes]


def write(
    path: Path,
    codec: str = "libx264",
    pixel_format: str = "yuv420p",
    size: tuple[int, int] = (320, 180),
    *,
    location: str | None = None,
    matrix: int = 2,
    is_full: bool = False,
    pictures: Callable[[int, int, int], np.ndarray] = clouds,
    num_frames: int = 2,
    **options: str,
) -> Path:
    """Encode pictures, whose samples are computed by the definition of the matrix."""
    if location is not None:
        options["chroma_sample_location"] = location
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream(codec, rate=25, options=options)
        stream.width, stream.height = size
        stream.pix_fmt = pixel_format
        stream.codec_context.colorspace, stream.codec_context.color_range = matrix, 1 + is_full
        stream.codec_context.thread_count = 1
        for number in range(num_frames):
            frame = av.VideoFrame(*size, pixel_format)
            frame.colorspace, frame.color_range, frame.pts, frame.time_base = (
                matrix,
                1 + is_full,
                number,
                Fraction(1, 25),
            )
            planes = stored(pictures(number, *size), pixel_format, matrix, is_full)
            for plane, samples in zip(frame.planes, planes, strict=True):
                plane_samples(plane, samples.dtype)[:] = samples
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def plane_samples(plane: Any, dtype: Any) -> np.ndarray:
    """Samples of a plane, writable."""
    rows = np.frombuffer(plane, dtype).reshape(-1, plane.line_size // np.dtype(dtype).itemsize)
    return rows[: plane.height, : plane.width]


X264 = partial(dict, codec="libx264", crf="4")
LOSSLESS = partial(dict, codec="ffv1")
FILES: dict[str, dict[str, Any]] = {
    # the location, in every codec that states or implies one
    **{f"h264_{place}.mp4": X264(location=place) for place in box_average.QUARTERS},
    "h264_unstated.mp4": X264(),
    "h264.ts": X264(),
    "h264.mkv": X264(location="topleft"),
    "h264.h264": X264(location="center"),
    "hevc.mkv": dict(codec="libx265", **{"x265-params": "log-level=none:qp=4"}),
    "hevc_topleft.mkv": dict(codec="libx265", **{"x265-params": "log-level=none:qp=4:chromaloc=2"}),
    "mpeg2.mpg": {"codec": "mpeg2video", "qscale": "2", "flags": "+qscale"},
    "mpeg1.mpg": {"codec": "mpeg1video", "qscale": "2", "flags": "+qscale"},
    "mpeg4.avi": {"codec": "mpeg4", "qscale": "2", "flags": "+qscale"},
    "mpeg4.mp4": {"codec": "mpeg4", "qscale": "2", "flags": "+qscale"},
    "vp8.webm": {"codec": "libvpx", "b": "4M", "deadline": "realtime"},
    "vp9.webm": {"codec": "libvpx-vp9", "crf": "4", "b": "0", "deadline": "realtime"},
    "mjpeg.avi": {"codec": "mjpeg", "pixel_format": "yuvj420p", "is_full": True, "qscale": "2", "flags": "+qscale"},
    "mjpeg_422.avi": {"codec": "mjpeg", "pixel_format": "yuvj422p", "is_full": True, "qscale": "2", "flags": "+qscale"},
    "prores.mov": {"codec": "prores_ks", "pixel_format": "yuv422p10le"},
    **{f"ffv1_{place}.mkv": LOSSLESS(location=place) for place in ("left", "center", "topleft")},
    # matrices and ranges
    "bt709.mp4": X264(matrix=1),
    "bt709_full.mp4": X264(matrix=1, is_full=True),
    "bt709_422.mp4": X264(matrix=1, pixel_format="yuv422p"),
    "bt709_444.mp4": X264(matrix=1, pixel_format="yuv444p"),
    "bt601_full.mp4": X264(matrix=6, is_full=True),
    "bt601_full_10.mp4": X264(matrix=6, is_full=True, pixel_format="yuv420p10le"),
    "bt470bg_10.mp4": X264(matrix=5, pixel_format="yuv420p10le"),
    "fcc.mp4": X264(matrix=4),
    "smpte240m.mp4": X264(matrix=7),
    "bt2020.mp4": X264(matrix=9),
    "bt2020_10.mp4": X264(matrix=9, pixel_format="yuv420p10le", location="topleft"),
    "bt2020_10_full.mp4": X264(matrix=9, pixel_format="yuv420p10le", is_full=True),
    "bt709_12_full.mkv": LOSSLESS(matrix=1, pixel_format="yuv420p12le", is_full=True),
    # subsampling and depth
    "422.mp4": X264(pixel_format="yuv422p"),
    "444.mp4": X264(pixel_format="yuv444p"),
    "440.mkv": LOSSLESS(pixel_format="yuv440p"),
    "411.mkv": LOSSLESS(pixel_format="yuv411p"),
    "410.mkv": LOSSLESS(pixel_format="yuv410p"),
    "422_10.mp4": X264(pixel_format="yuv422p10le"),
    "444_12.mkv": LOSSLESS(pixel_format="yuv444p12le"),
    "420_16.mkv": LOSSLESS(pixel_format="yuv420p16le"),
    # sizes
    "odd.mkv": LOSSLESS(size=(175, 143), location="left"),
    "odd_709.mkv": LOSSLESS(size=(321, 181), matrix=1),
    "upright.mp4": X264(size=(180, 320)),
    "hd.mp4": X264(size=(1280, 720), location="left", num_frames=1),
    "hd_709.mp4": X264(size=(1920, 1080), matrix=1, location="left", num_frames=1),
}
SHORT_SIDES = [None, 96, 64]
"""As it is, a little smaller, much smaller"""


@pytest.fixture(scope="module")
def media(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("media")
    for name, spec in FILES.items():
        write(folder / name, **spec)
    return folder


# Against the mean


def errors_of(planes: Planes, source: box_average.Source | box_average.RgbSource) -> str:
    """Describe the errors of scaled planes; an empty text means none."""
    height, width = planes[0].shape
    wrong = []
    for name, plane, mean in zip("YUV", planes, source.jpeg(width, height), strict=True):
        allowed = source.tolerance(name, width, height)
        # at the source's own size many means lie halfway between two levels, and those are rounded up
        expected = np.floor(mean + 0.5) if source.shape == planes[0].shape else mean
        mean_error = np.mean(plane - np.clip(expected, 0, 255))
        psnr = 10 * np.log10(255**2 / max(np.mean((plane - np.clip(mean, 0, 255)) ** 2), 1e-9))
        moved = box_average.shift_px(plane, mean)
        if psnr < allowed.min_psnr_db:
            wrong.append(f"{name}: {psnr:.1f} dB")
        if abs(mean_error) > allowed.max_mean_error:
            wrong.append(f"{name}: mean error {mean_error:+.3f}")
        if moved is not None and max(map(abs, moved)) > allowed.max_shift_px:
            wrong.append(f"{name}: shifted by {moved[0]:+.3f}, {moved[1]:+.3f}")
    return "; ".join(wrong)


def location_of(path: Path) -> str:
    """Where chroma lies in ffprobe's words; the middle where it has none, as ffmpeg's scaler has it."""
    location: str = (ffmpeg_reference.probe(path).video or {}).get("chroma_location", "unspecified")
    return "center" if location == "unspecified" else location


def decoded(path: Path, num_frames: int) -> list[box_average.Source]:
    """The decoder's own samples, and what ffprobe says that they mean."""
    location = location_of(path)
    with av.open(str(path)) as container:
        return [source_of(frame, location) for frame in islice(container.decode(video=0), num_frames)]


def source_of(frame: av.VideoFrame, location: str) -> box_average.Source:
    bits = frame.format.components[0].bits
    dtype = np.uint8 if bits == 8 else np.uint16
    y, u, v = (plane_samples(plane, dtype).astype(np.float64) for plane in frame.planes[:3])
    is_full = frame.color_range == 2 or frame.format.name.startswith("yuvj")
    return box_average.Source((y, u, v), bits, is_full, frame.colorspace, location)


@pytest.mark.parametrize("short_side", SHORT_SIDES)
@pytest.mark.parametrize("name", FILES)
def test_planes_are_means(media: Path, name: str, short_side: int | None) -> None:
    sources = decoded(media / name, 2)
    with capture() as complaints:
        frames = scaled.frames(media / name, 2, short_side=short_side)
        planes = [frame.planes() for frame in frames]
        assert [errors_of(*pair) for pair in zip(planes, sources, strict=True)] == [""] * len(frames)
    assert complaints == []


STATED = {1: "bt709", 4: "fcc", 5: "bt470bg", 6: "smpte170m", 7: "smpte240m", 9: "bt2020nc"}
"""Matrix to its name in an index (ITU-T H.273, table 4)"""


@pytest.mark.parametrize("name", [name for name in FILES if FILES[name].get("matrix") and name.endswith(".mp4")])
def test_the_index_says_how_colors_are_stored(media: Path, name: str) -> None:
    spec, header = FILES[name], probe(str(media / name), root="r", relative_path=name).header
    assert header is not None
    assert header.color_space == STATED[spec["matrix"]]
    assert header.color_range == ("full" if spec.get("is_full") else "limited")
    assert header.bit_depth == (10 if "10le" in spec.get("pixel_format", "") else 8)


@pytest.mark.parametrize("name", FILES)
def test_decoded_pictures_stay_as_they_are(media: Path, name: str) -> None:
    """Those after them refer to them, and at its own size a picture may come through swscale as it is."""
    with av.open(str(media / name)) as container:
        picture = next(container.decode(video=0))
        before = [bytes(plane) for plane in picture.planes]
        resampler = Resampler()
        for width, height in ((picture.width & ~1, picture.height & ~1), (picture.width // 4 * 2, 32)):
            resampler.jpeg(picture, width, height)
            resampler.rgb(picture, width, height)
        assert [bytes(plane) for plane in picture.planes] == before


@pytest.mark.parametrize("short_side", [96, 64])
@pytest.mark.parametrize("name", [name for name in FILES if not name.startswith(("odd", "41"))])
def test_rgb_is_the_mean(media: Path, name: str, short_side: int) -> None:
    """Where chroma is enlarged, it is by swscale's bilinear filter, which is smoother than squares are."""
    (source,), (frame,) = decoded(media / name, 1), scaled.frames(media / name, 1, short_side=short_side)
    height, width, _ = frame.rgb().shape
    error = frame.rgb() - np.clip(source.rgb(width, height), 0, 255)
    assert np.abs(error.mean((0, 1))).max() < box_average.MAX_MEAN_ERROR
    assert 10 * np.log10(255**2 / np.mean(error**2)) > MIN_PSNR_DB
    moved = box_average.shift_px((frame.rgb() @ [1.0, -1, 0]), source.rgb(width, height) @ [1.0, -1, 0])
    assert moved is not None
    assert max(map(abs, moved)) < box_average.MAX_SHIFT_PX


@pytest.mark.parametrize("short_side", SHORT_SIDES)
@pytest.mark.parametrize("pixel_format", ["gbrp", "bgr0", "gray", "gray10le"])
def test_pictures_without_chroma_planes(pixel_format: str, short_side: int | None) -> None:
    rgb = np.rint(clouds(0, 320, 180))
    picture, scaler = (
        picture_without_chroma(rgb, pixel_format),
        PictureScaler(PictureConfig(short_side=short_side), None),
    )
    if pixel_format.startswith("gray"):
        rgb = np.repeat(rgb[..., 1:2], 3, 2)
    assert errors_of(scaler.planes(picture), box_average.RgbSource(rgb)) == ""
    pixels = scaler.rgb(picture)
    error = pixels - box_average.RgbSource(rgb).rgb(pixels.shape[1], pixels.shape[0])
    assert np.abs(error.mean((0, 1))).max() < box_average.MAX_MEAN_ERROR
    assert np.abs(error).max() < 1.1


def picture_without_chroma(rgb: np.ndarray, pixel_format: str) -> av.VideoFrame:
    """Full range; gray is the green of it."""
    frame = av.VideoFrame(rgb.shape[1], rgb.shape[0], pixel_format)
    factor, dtype = (1023 / 255, np.uint16) if "10" in pixel_format else (1, np.uint8)
    if pixel_format == "bgr0":
        rows = np.frombuffer(frame.planes[0], np.uint8).reshape(-1, frame.planes[0].line_size)
        rows[: rgb.shape[0], : 4 * rgb.shape[1]].reshape(*rgb.shape[:2], 4)[..., :3] = rgb[..., ::-1]
        return frame
    for plane, channel in zip(frame.planes, (1, 2, 0), strict=False):
        plane_samples(plane, dtype)[:] = np.rint(rgb[..., channel] * factor)
    return frame


@pytest.mark.parametrize("bucket", [None, Bucket(180, 180, 1)])
@pytest.mark.parametrize("short_side", SHORT_SIDES)
@pytest.mark.parametrize("pixel_format", ["gray", "gray10le", "gray10be", "gray16le", "ya8", "ya16be"])
def test_gray_of_limited_range_is_stretched(pixel_format: str, short_side: int | None, bucket: Bucket | None) -> None:
    """swscale and libavfilter's scale take gray as full range, so that black would be 16."""
    picture = av.VideoFrame(320, 180, pixel_format)
    picture.color_range = 1
    bits = picture.format.components[0].bits
    codes = np.rint(16 + clouds(0, 320, 180)[..., 1] * 219 / 255)
    dtype = np.dtype(np.uint8 if bits == 8 else ">u2" if pixel_format.endswith("be") else "<u2")
    rows = np.frombuffer(picture.planes[0], dtype).reshape(180, -1)
    step = len(picture.format.components)  # luma and alpha alternate
    rows[:, : 320 * step : step] = codes * 2 ** (bits - 8)
    rgb = np.repeat(((codes - 16) / 219 * 255)[..., None], 3, 2)
    rgb = rgb if bucket is None else rgb[:, 70:250]
    scaler = PictureScaler(PictureConfig(short_side=short_side), None, bucket)
    assert errors_of(scaler.planes(picture), box_average.RgbSource(rgb)) == ""
    pixels = scaler.rgb(picture)
    assert np.abs(pixels - box_average.RgbSource(rgb).rgb(pixels.shape[1], pixels.shape[0])).max() < 1.1


# Flat colors

LAYOUTS = [
    ("yuv420p", 2, False),
    ("yuv420p", 1, False),
    ("yuv420p", 6, True),
    ("yuv420p", 9, True),
    ("yuv422p", 1, False),
    ("yuv444p", 4, True),
    ("yuv420p10le", 9, False),
    ("yuv420p10le", 1, True),
    ("yuv444p10le", 6, True),
    ("yuv420p12le", 7, True),
]
LEVELS = [0, 1, 16, 128, 200, 235, 254, 255]


def flat(*levels: int) -> Callable[[int, int, int], np.ndarray]:
    return lambda number, width, height: np.full((height, width, 3), float(levels[number % len(levels)]))


@pytest.mark.parametrize("size", [(64, 48), (320, 240)])
@pytest.mark.parametrize(("pixel_format", "matrix", "is_full"), LAYOUTS)
def test_flat_gray_is_exact(
    tmp_path: Path, pixel_format: str, matrix: int, is_full: bool, size: tuple[int, int]
) -> None:
    """As near as the samples of the file are: in limited range 254 is stored as 234, which means 253.8."""
    encoding = {"matrix": matrix, "is_full": is_full, "pictures": flat(*LEVELS), "num_frames": len(LEVELS)}
    path = write(tmp_path / "a.mkv", "ffv1", pixel_format, size, **encoding)
    sources, frames = decoded(path, len(LEVELS)), scaled.frames(path, short_side=48)
    for level, source, frame in zip(LEVELS, sources, frames, strict=True):
        expected = round(float(source.rgb(2, 2)[0, 0, 0]))
        assert abs(expected - level) <= 1
        assert level not in (0, 128, 255) or expected == level
        y, u, v = (np.unique(plane).tolist() for plane in frame.planes())
        assert (y, u, v, np.unique(frame.rgb()).tolist()) == ([expected], [128], [128], [expected])


# From one picture to the next


def test_layouts_may_change_midway(tmp_path: Path) -> None:
    """Size, matrix, range and chroma location of each picture are its own."""
    specs = [
        {"size": (320, 180), "location": "left", "matrix": 6},
        {"size": (480, 270), "location": "topleft", "matrix": 1},
        {"size": (320, 180), "location": "center", "matrix": 9, "is_full": True},
        {"size": (320, 180), "location": "topleft", "matrix": 5, "pixel_format": "yuv420p10le"},
    ]
    parts = [write(tmp_path / f"{n}.h264", num_frames=1, **X264(), **spec) for n, spec in enumerate(specs)]
    joined = tmp_path / "joined.h264"
    joined.write_bytes(b"".join(part.read_bytes() for part in parts))
    sources = [decoded(part, 1)[0] for part in parts]
    frames = scaled.frames(joined, short_side=96)
    assert [errors_of(*pair) for pair in zip((f.planes() for f in frames), sources, strict=True)] == [""] * 4


def test_a_size_that_changes_all_the_time_takes_no_more_memory() -> None:
    """10,000 pictures, some of which come in another size, and so with another graph of filters."""
    pictures = [av.VideoFrame(width, 48, "yuv420p") for width in (64, 80)]
    for picture in pictures:
        for plane in picture.planes:
            plane_samples(plane, np.uint8)[:] = 100
    scaler = PictureScaler(PictureConfig(short_side=24), None)
    used = []
    for number in range(10_000):
        picture = pictures[number % 20 == 0]
        scaler.planes(picture)
        scaler.rgb(picture)
        if number % 2_500 == 2_499:
            used.append(int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20)
    assert used[-1] - used[0] < 3, used


@pytest.mark.parametrize("matrix", [3, 8, 10, 14])
def test_unknown_matrix_is_refused(matrix: int) -> None:
    picture = av.VideoFrame(64, 48, "yuv420p")
    picture.colorspace = matrix
    scaler = PictureScaler(PictureConfig(short_side=24), None)
    for convert in (scaler.planes, scaler.rgb):
        with pytest.raises(MediaError, match=f"^cannot convert yuv420p pictures with matrix {matrix}: "):
            convert(picture)
