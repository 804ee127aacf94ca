"""HDR to SDR: PQ and HLG pictures against ffmpeg's own chain, all others untouched."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import ffmpeg_reference, scaled
from helpers.ffmpeg import ffmpeg

from chordcache.media.tonemap import DEFAULT_PEAK, signal_peak, tone_map

LINEAR = "zscale=t=linear:npl=100,format=gbrpf32le,zscale=p=bt709"
ENCODED = "zscale=t=bt709:m=gbr:r=full,format=gbrp"
HABLE = f"{LINEAR},tonemap=hable:desat=0,{ENCODED}"
"""Made for whole pictures by ffmpeg 5.1 with zimg 3.0"""

TRANSFERS = {"smpte2084": 16, "arib-std-b67": 18}
PRIMARIES = {"bt2020": 9, "bt709": 1, "smpte432": 12, "smpte170m": 6}

MAX_CURVE_MEAN_DIFFERENCE = 0.06
"""[of 255] 0.015 where zimg has AVX2, 0.051 where it has SSE2 only (seen with ``qemu-x86_64 -cpu Nehalem ffmpeg``)"""

MIN_PSNR_DB = 46.0
MAX_MEAN_DIFFERENCE = 0.3
"""[of 255] Against ffmpeg, scaled first as we do. The two versions of swscale make up chroma in different ways."""

MIN_SCALED_LAST_PSNR_DB = 44.0
MAX_SCALED_LAST_MEAN_DIFFERENCE = 0.9
"""[of 255] Against ffmpeg, mapped at full size by zimg, which also makes up chroma by another filter."""

HDR_FILES = {
    "odd/hdr/0.ts": "HLG",
    "odd/hdr/hlg10-color-test.mp4": "HLG",
    "odd/hdr/no-correct-videoframe-format.mov": "HLG",
    "odd/hdr/sample_with_color_info.mp4": "HLG",
    "odd/hdr/video_colr_nclx_hdr10_full_range.mp4": "PQ",
    "odd/odd_size/video_colr_nclx_hlg.mp4": "HLG",
    "odd/edit_list/sample_edit_list_no_sync_frame_before_edit.mp4": "HLG",
}


def scaled_first(width: int, height: int) -> str:
    return f"scale={width}:{height}:flags=area,format=gbrp16le,setparams=colorspace=gbr:range=pc,{HABLE}"


def mean_difference(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.abs(np.subtract(a, b, dtype=np.int16)).mean())


# The curve alone


def ramps() -> np.ndarray:
    """Every 64th code in gray and in each primary, then 2048 colors [shape=(3, 5, 1024), dtype=uint16, R G B]."""
    ramp = np.linspace(0, 65535, 1024).round().astype("<u2")
    gray, colors = np.stack([ramp] * 3), np.random.default_rng(0).integers(0, 65536, (3, 1024), np.uint16)
    primaries = [np.where(np.arange(3)[:, None] == n, ramp, 0).astype("<u2") for n in range(3)]
    return np.stack([gray, *primaries, colors], axis=1)


def by_ffmpeg(codes: np.ndarray, transfer: str, primaries: str, peak: float) -> np.ndarray:
    """The same for codes [shape=(3, H, W), dtype=uint16, R G B]; a peak of 0 leaves ffmpeg its own."""
    params = f"setparams=color_trc={transfer}:color_primaries={primaries}:colorspace=gbr:range=pc"
    # fmt: off
    data = ffmpeg(
        "-f", "rawvideo", "-pix_fmt", "gbrp16le", "-s", f"{codes.shape[2]}x{codes.shape[1]}", "-i", "-",
        "-vf", f"{params},{LINEAR},tonemap=hable:desat=0:peak={peak},{ENCODED}", "-f", "rawvideo", "-",
        stdin=codes[[1, 2, 0]].tobytes(),
    )
    # fmt: on
    return np.frombuffer(data, np.uint8).reshape(codes.shape)[[2, 0, 1]]


@pytest.mark.parametrize(
    ("primaries", "peak"), [*((primaries, 0) for primaries in PRIMARIES), ("bt2020", 4.0), ("bt2020", 40.0)]
)
@pytest.mark.parametrize("transfer", TRANSFERS)
def test_curve_is_that_of_ffmpeg(transfer: str, primaries: str, peak: float) -> None:
    codes = ramps()
    mapped = tone_map(
        codes, transfer=TRANSFERS[transfer], primaries=PRIMARIES[primaries], peak=peak or DEFAULT_PEAK
    ).astype(int)
    expected = by_ffmpeg(codes, transfer, primaries, peak)
    assert np.abs(mapped - expected).max() <= 1
    assert mean_difference(mapped, expected) < MAX_CURVE_MEAN_DIFFERENCE
    assert mapped.min() == 0
    assert (mapped.max() == 255) == (transfer == "smpte2084" or peak < 40)  # HLG ends at 10 times the reference white


def test_gray_stays_gray_and_grows() -> None:
    codes = np.broadcast_to(np.arange(65536, dtype=np.uint16)[None, None], (3, 1, 65536))
    for transfer in TRANSFERS.values():
        red, green, blue = tone_map(codes, transfer=transfer, primaries=9, peak=DEFAULT_PEAK)
        assert np.abs(np.subtract(red, green, dtype=int)).max() <= 1  # what a matrix of rounded numbers may do
        assert np.abs(np.subtract(red, blue, dtype=int)).max() <= 1
        assert (np.diff(green.astype(int)) >= 0).all()
        assert set(green.ravel().tolist()) >= set(range(2, 256)), "levels left out"


def test_unstated_primaries_are_those_of_bt2020() -> None:
    codes = ramps()
    stated, unstated = (tone_map(codes, transfer=16, primaries=p, peak=DEFAULT_PEAK) for p in (9, 2))
    assert np.array_equal(stated, unstated)


# What the metadata say of the brightest light

NO_LUMINANCE = struct.pack("22i", *[0, 1] * 8, 50, 10000, 40000000, 10000, 1, 0)
MASTERED_AT_4000 = struct.pack("22i", *[0, 1] * 8, 50, 10000, 40000000, 10000, 1, 1)
BY_ZERO = struct.pack("22i", *[0, 1] * 8, 50, 10000, 40000000, 0, 1, 1)


@pytest.mark.parametrize(
    ("light_level", "mastering", "peak"),
    [
        (None, None, 10.0),
        (struct.pack("2I", 600, 200), None, 6.0),
        (struct.pack("2I", 600, 200), MASTERED_AT_4000, 6.0),
        (struct.pack("2I", 0, 0), MASTERED_AT_4000, 40.0),
        (struct.pack("2I", 0, 0), None, 10.0),
        (None, MASTERED_AT_4000, 40.0),
        (None, NO_LUMINANCE, 10.0),
        (None, BY_ZERO, 10.0),
    ],
)
def test_peak(light_level: bytes | None, mastering: bytes | None, peak: float) -> None:
    assert signal_peak(light_level, mastering) == peak


# Files that are made


def sky(number: int, width: int, height: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Codes from black to white, in soft colors, and a brighter square that moves."""
    y = np.tile(np.linspace(16, 235, width), (height, 1))
    y[height // 4 : height // 2, 8 * number : 8 * number + width // 4] = 200
    u = np.tile(np.linspace(118, 138, height // 2)[:, None], (1, width // 2))
    v = np.tile(np.linspace(138, 118, width // 2), (height // 2, 1))
    return tuple(np.ascontiguousarray(plane.round().astype(np.uint8)) for plane in (y, u, v))  # type: ignore[return-value]


def write_hdr(make_video: Any, path: Path, *params: str, transfer: str = "smpte2084", **spec: Any) -> Path:
    """An HDR10 or HLG file, HEVC in 10 bits."""
    x265 = f"log-level=none:colorprim=bt2020:transfer={transfer}:colormatrix=bt2020nc:range=limited"
    options = {"x265-params": ":".join([x265, "crf=10", *params])}
    defaults: dict[str, Any] = {"codec": "libx265", "pixel_format": "yuv420p10le", "num_frames": 3, "size": (192, 128)}
    written: Path = make_video(path, planes=sky, options=options, **{**defaults, **spec})
    return written


MASTER_DISPLAY = "master-display=G(13250,34500)B(7500,3000)R(34000,16000)WP(15635,16450)L({},50)"

HDR10 = {
    "no metadata": (),
    "MaxCLL 400": ("max-cll=400,100",),
    "mastered at 4000": (MASTER_DISPLAY.format(40000000),),
    "both": (MASTER_DISPLAY.format(40000000), "max-cll=400,100"),
}


@pytest.mark.parametrize("params", HDR10.values(), ids=HDR10)
def test_peak_of_a_file(make_video: Any, tmp_path: Path, params: tuple[str, ...]) -> None:
    path = write_hdr(make_video, tmp_path / "a.mp4", *params)
    pictures = np.stack([frame.rgb() for frame in scaled.frames(path, hdr="tonemap")])
    expected = scaled.filtered(path, scaled_first(192, 128), (192, 128), 3)
    assert min(map(ffmpeg_reference.psnr_db, pictures, expected)) > 48
    assert mean_difference(pictures, expected) < MAX_MEAN_DIFFERENCE


SHAPES: dict[str, tuple[dict[str, Any], int | None, str, tuple[int, int]]] = {
    "small": ({}, 64, "", (96, 64)),
    "turned": ({"rotation": 90}, 64, "", (64, 96)),
    "wide pixels": ({"sample_aspect_ratio": 2}, 64, "", (192, 64)),
    "HLG": ({"transfer": "arib-std-b67"}, 64, "", (96, 64)),
    "interlaced": ({"codec": "libx264", "interlaced": True}, 64, "setfield=prog,", (96, 64)),
}


@pytest.mark.parametrize(("spec", "short_side", "filters", "size"), SHAPES.values(), ids=SHAPES)
def test_shapes(
    make_video: Any,
    tmp_path: Path,
    spec: dict[str, Any],
    short_side: int | None,
    filters: str,
    size: tuple[int, int],
) -> None:
    path = tmp_path / "a.mp4"
    if "interlaced" in spec:
        make_video(path, **X264_PQ, options={**X264_PQ_OPTIONS, "flags": "+ildct+ilme", "x264-params": "tff=1"})
    else:
        write_hdr(make_video, path, **spec)
    frames = scaled.frames(path, short_side=short_side, hdr="tonemap")
    assert frames[0].picture.interlaced_frame == ("interlaced" in spec)
    pictures = np.stack([frame.rgb() for frame in frames])
    expected = scaled.filtered(path, filters + scaled_first(*size), size, 3)
    assert len(pictures) == 3
    assert min(map(ffmpeg_reference.psnr_db, pictures, expected)) > MIN_PSNR_DB


X264_PQ = {"planes": sky, "num_frames": 3, "size": (192, 128)}
X264_PQ_OPTIONS = {"crf": "10", "color_primaries": "bt2020", "color_trc": "smpte2084", "colorspace": "bt2020nc"}


def joined(make_video: Any, folder: Path, *specs: dict[str, Any]) -> Path:
    """Streams after each other, as a broadcaster would send them."""
    parts = [make_video(folder / f"{n}.h264", **{**X264_PQ, **spec}) for n, spec in enumerate(specs)]
    path = folder / "joined.h264"
    path.write_bytes(b"".join(part.read_bytes() for part in parts))
    return path


SDR_OPTIONS = {"crf": "10", "color_primaries": "bt709", "color_trc": "bt709", "colorspace": "bt709"}


def test_each_picture_says_whether_it_is_hdr(make_video: Any, tmp_path: Path) -> None:
    path = joined(make_video, tmp_path, {"options": SDR_OPTIONS}, {"options": X264_PQ_OPTIONS})
    as_is, mapped = (scaled.frames(path, hdr=hdr) for hdr in ("as_is", "tonemap"))
    assert [frame.picture.color_trc for frame in as_is] == [1, 1, 1, 16, 16, 16]
    assert [np.array_equal(a.rgb(), b.rgb()) for a, b in zip(as_is, mapped, strict=True)] == [True] * 3 + [False] * 3
    alone = scaled.frames(tmp_path / "1.h264", hdr="tonemap")
    assert [np.array_equal(a.rgb(), b.rgb()) for a, b in zip(alone, mapped[3:], strict=True)] == [True] * 3
    assert scaled.notes(path, hdr="tonemap") == ("tone-mapped from PQ to BT.709",)


def test_size_changes_midway(make_video: Any, tmp_path: Path) -> None:
    hdr = {"options": X264_PQ_OPTIONS}
    path = joined(make_video, tmp_path, hdr, {**hdr, "size": (384, 256)})
    pictures = np.stack([frame.rgb() for frame in scaled.frames(path, hdr="tonemap")])
    assert pictures.shape == (6, 128, 192, 3)
    expected = scaled.filtered(tmp_path / "1.h264", scaled_first(192, 128), (192, 128), 3)
    assert min(map(ffmpeg_reference.psnr_db, pictures[3:], expected)) > MIN_PSNR_DB


def test_as_is_does_not_look_at_the_transfer(make_video: Any, tmp_path: Path) -> None:
    tagged, untagged = (
        make_video(tmp_path / f"{trc}.mp4", **X264_PQ, options={**X264_PQ_OPTIONS, "color_trc": trc})
        for trc in ("smpte2084", "bt709")
    )
    for a, b in zip(scaled.frames(tagged), scaled.frames(untagged), strict=True):
        assert a.picture.color_trc == 16
        assert np.array_equal(a.rgb(), b.rgb())
        assert np.array_equal(scaled.flat(a.planes()), scaled.flat(b.planes()))
    assert scaled.notes(tagged) == ()


@pytest.mark.parametrize("transfer", ["bt709", "bt2020-10", "iec61966-2-1", "linear", "unknown"])
def test_sdr_is_untouched(make_video: Any, tmp_path: Path, transfer: str) -> None:
    path = make_video(tmp_path / "a.mp4", **X264_PQ, options={**X264_PQ_OPTIONS, "color_trc": transfer})
    as_is, mapped = (scaled.frames(path, 1, hdr=hdr)[0] for hdr in ("as_is", "tonemap"))
    assert np.array_equal(as_is.rgb(), mapped.rgb())
    assert np.array_equal(scaled.flat(as_is.planes()), scaled.flat(mapped.planes()))
    assert scaled.notes(path, hdr="tonemap") == ()


def test_planes_are_those_of_the_mapped_picture(make_video: Any, tmp_path: Path) -> None:
    (frame,) = scaled.frames(write_hdr(make_video, tmp_path / "a.mp4"), 1, hdr="tonemap")
    red, green, blue = np.moveaxis(frame.rgb().astype(float), -1, 0)
    y, u, v = frame.planes()
    luma = 0.299 * red + 0.587 * green + 0.114 * blue
    assert np.abs(y - luma).max() < 1.5
    for plane, difference in ((u, (blue - luma) / 1.772), (v, (red - luma) / 1.402)):
        halved = difference.reshape(64, 2, 96, 2).mean(axis=(1, 3))
        assert np.abs(plane - 128.0 - halved).mean() < 0.7  # swscale rounds down
    assert np.array_equal(frame.luma(None), y)


# Real files


@pytest.mark.parametrize("short_side", [None, 256])
@pytest.mark.parametrize("name", HDR_FILES)
def test_real_hdr(corpus: Path, name: str, short_side: int | None) -> None:
    pictures = np.stack([f.rgb() for f in scaled.frames(corpus / name, 2, short_side=short_side, hdr="tonemap")])
    height, width = pictures.shape[1:3]
    first = scaled.filtered(corpus / name, scaled_first(width, height), (width, height), 2)
    last = scaled.filtered(corpus / name, f"{HABLE},scale={width}:{height}:flags=area", (width, height), 2)
    assert len(pictures) == len(first) == 2
    assert min(map(ffmpeg_reference.psnr_db, pictures, first)) > MIN_PSNR_DB
    assert mean_difference(pictures, first) < MAX_MEAN_DIFFERENCE
    assert min(map(ffmpeg_reference.psnr_db, pictures, last)) > MIN_SCALED_LAST_PSNR_DB
    assert mean_difference(pictures, last) < MAX_SCALED_LAST_MEAN_DIFFERENCE
