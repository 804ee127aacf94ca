"""One eye of a stereo picture: against files that hold that eye alone, and against ffmpeg's stereo3d filter."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from conftest import make_planes
from helpers import ffmpeg_reference, scaled

from chordcache.errors import MediaError
from chordcache.media.stereo3d import View, view_of

WHOLE = View()
LOSSLESS = {"qp": "0"}

Planes = tuple[np.ndarray, np.ndarray, np.ndarray]


def eye(which: str, number: int, width: int, height: int) -> Planes:
    """Picture of one eye: a slope and a moving square, the right eye's brighter and turned upside down."""
    y, u, v = make_planes(number, width, height)
    y = y // 2 + np.linspace(0, 60, width).astype(np.uint8)
    return (y, u, v) if which == "left" else (y[::-1] + np.uint8(50), v, u)


def packed(axis: int, first: str = "left") -> Any:
    """``planes`` of a video with one eye's picture beside (axis 1) or below (axis 0) the other's."""

    def planes(number: int, width: int, height: int) -> Planes:
        size = (width // 2, height) if axis else (width, height // 2)
        eyes = [eye(which, number, *size) for which in ("left", "right")]
        a, b = eyes if first == "left" else eyes[::-1]
        return tuple(np.concatenate(pair, axis) for pair in zip(a, b, strict=True))  # type: ignore[return-value]

    return planes


SIDE_BY_SIDE = {"planes": packed(1), "size": (128, 48), "num_frames": 3}
TOP_BOTTOM = {"planes": packed(0), "size": (64, 96), "num_frames": 3}
STATED = {"side by side": (SIDE_BY_SIDE, 3), "top bottom": (TOP_BOTTOM, 4)}
"""With x264's name for the layout, which goes into a frame packing SEI at each keyframe"""


def write_packed(make_video: Any, path: Path, spec: dict[str, Any], packing: int | None, **other: Any) -> Path:
    """A lossless file, with or without a frame packing SEI."""
    params = {} if packing is None else {"x264-params": f"frame-packing={packing}"}
    options = {**LOSSLESS, **params, **other.pop("options", {})}
    written: Path = make_video(path, **{**spec, **other, "options": options})
    return written


def write_eye(make_video: Any, path: Path, which: str, **other: Any) -> Path:
    """A lossless file of one eye alone."""
    spec = {"size": (64, 48), "num_frames": 3, "options": LOSSLESS, **other}
    written: Path = make_video(path, planes=lambda *args: eye(which, *args), **spec)
    return written


def same_pictures(a: list[Any], b: list[Any]) -> bool:
    """Return whether the frames are equal, planes and RGB."""
    pairs = list(zip(a, b, strict=True))
    return bool(pairs) and all(
        np.array_equal(scaled.flat(x.planes()), scaled.flat(y.planes())) and np.array_equal(x.rgb(), y.rgb())
        for x, y in pairs
    )


# What the file states


@pytest.mark.parametrize("short_side", [None, 32])
@pytest.mark.parametrize("which", ["left", "right"])
@pytest.mark.parametrize(("spec", "packing"), STATED.values(), ids=STATED)
def test_eye_is_as_if_alone(
    make_video: Any, tmp_path: Path, spec: dict[str, Any], packing: int, which: str, short_side: int | None
) -> None:
    frames = scaled.frames(
        write_packed(make_video, tmp_path / "a.mp4", spec, packing), short_side=short_side, stereo=which
    )
    alone = scaled.frames(write_eye(make_video, tmp_path / "b.mp4", which), short_side=short_side)
    assert same_pictures(frames, alone)


def write_tagged(path: Path, mode: str, planes: Any) -> Path:
    """A Matroska file whose track states the layout."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=25, options=LOSSLESS)
        stream.width, stream.height, stream.pix_fmt = 128, 96, "yuv420p"
        stream.metadata["stereo_mode"] = mode
        for number in range(2):
            samples = np.concatenate([plane.reshape(-1, 128) for plane in planes(number, 128, 96)])
            picture = av.VideoFrame.from_ndarray(samples, "yuv420p")
            picture.pts = number
            container.mux(stream.encode(picture))
        container.mux(stream.encode(None))
    return path


@pytest.mark.parametrize("which", ["left", "right"])
@pytest.mark.parametrize(
    ("mode", "axis", "first"),
    [("left_right", 1, "left"), ("right_left", 1, "right"), ("top_bottom", 0, "left"), ("bottom_top", 0, "right")],
)
def test_swapped_eyes(make_video: Any, tmp_path: Path, mode: str, axis: int, first: str, which: str) -> None:
    path = write_tagged(tmp_path / "a.mkv", mode, packed(axis, first))
    size = (64, 96) if axis else (128, 48)
    alone = write_eye(make_video, tmp_path / "b.mkv", which, size=size, num_frames=2)
    assert same_pictures(scaled.frames(path, stereo=which), scaled.frames(alone))


def test_stated_mono_is_left_whole(tmp_path: Path) -> None:
    path = write_tagged(tmp_path / "a.mkv", "mono", make_planes)
    assert scaled.frames(path, stereo="left", stereo_layout="side_by_side")[0].region == (0, 0, 128, 96)


@pytest.mark.parametrize(
    ("packing", "layout"),
    [
        (0, "checkerboard"),
        (1, "columns in turn"),
        (2, "lines in turn"),
        (5, "frames of the two eyes in turn"),
    ],
)
def test_layouts_that_cannot_be_cut(make_video: Any, tmp_path: Path, packing: int, layout: str) -> None:
    path = write_packed(make_video, tmp_path / "a.mp4", SIDE_BY_SIDE, packing)
    message = f"no eye can be cut out of this stereo layout: {layout}; build it with 'frames.stereo: as_is'"
    with pytest.raises(MediaError, match=f"^{message}$") as error:
        scaled.frames(path, stereo="left")
    assert (error.value.stage, error.value.cause) == ("decode", "stereo")
    assert scaled.frames(path)[0].region == (0, 0, 128, 48)


# What the config states


@pytest.mark.parametrize("which", ["left", "right"])
@pytest.mark.parametrize(
    ("spec", "layout"), [(SIDE_BY_SIDE, "side_by_side"), (TOP_BOTTOM, "top_bottom")], ids=["sides", "halves"]
)
def test_layout_by_config(make_video: Any, tmp_path: Path, spec: dict[str, Any], layout: str, which: str) -> None:
    path = write_packed(make_video, tmp_path / "a.mp4", spec, None)
    frames = scaled.frames(path, stereo=which, stereo_layout=layout)
    assert same_pictures(frames, scaled.frames(write_eye(make_video, tmp_path / "b.mp4", which)))


def test_the_file_has_priority_over_the_config(make_video: Any, tmp_path: Path) -> None:
    path = write_packed(make_video, tmp_path / "a.mp4", SIDE_BY_SIDE, 3)
    assert same_pictures(
        scaled.frames(path, stereo="right", stereo_layout="top_bottom"),
        scaled.frames(path, stereo="right"),
    )


def test_unstated_is_mono(make_video: Any, tmp_path: Path) -> None:
    path = write_packed(make_video, tmp_path / "a.mp4", SIDE_BY_SIDE, None)
    assert same_pictures(scaled.frames(path, stereo="left"), scaled.frames(path))
    assert scaled.notes(path, stereo="left") == ()


def test_as_is_keeps_both_eyes(make_video: Any, tmp_path: Path) -> None:
    stated, unstated = (
        write_packed(make_video, tmp_path / f"{n}.mp4", SIDE_BY_SIDE, packing) for n, packing in enumerate((3, None))
    )
    frames = scaled.frames(stated, stereo_layout="side_by_side")
    assert frames[0].region == (0, 0, 128, 48)
    assert same_pictures(frames, scaled.frames(unstated))
    assert scaled.notes(stated) == ()


# Together with all else


@pytest.mark.parametrize(
    ("shape", "spec"), [((64, 48, 3), {"rotation": 90}), ((48, 128, 3), {"sample_aspect_ratio": 2})], ids=str
)
def test_turned_or_widened_after_the_cut(
    make_video: Any, tmp_path: Path, shape: tuple[int, ...], spec: dict[str, Any]
) -> None:
    path = write_packed(make_video, tmp_path / "a.mp4", SIDE_BY_SIDE, 3, **spec)
    alone = write_eye(make_video, tmp_path / "b.mp4", "right", **spec)
    frames = scaled.frames(path, stereo="right")
    assert frames[0].rgb().shape == shape
    assert frames[0].region == (64, 0, 64, 48)
    assert same_pictures(frames, scaled.frames(alone))


@pytest.mark.parametrize("which", ["left", "right"])
def test_interlaced(make_video: Any, tmp_path: Path, which: str) -> None:
    fields = {"flags": "+ildct+ilme"}
    path = write_packed(make_video, tmp_path / "a.mp4", TOP_BOTTOM, 4, options=fields)
    alone = write_eye(make_video, tmp_path / "b.mp4", which, options={**LOSSLESS, **fields})
    frames = scaled.frames(path, short_side=24, stereo=which)
    assert frames[0].picture.interlaced_frame
    assert same_pictures(frames, scaled.frames(alone, short_side=24))


def test_size_changes_midway(make_video: Any, tmp_path: Path) -> None:
    small = write_packed(make_video, tmp_path / "a.h264", SIDE_BY_SIDE, 3)
    large = write_packed(make_video, tmp_path / "b.h264", SIDE_BY_SIDE, 3, size=(256, 96))
    joined = tmp_path / "joined.h264"
    joined.write_bytes(small.read_bytes() + large.read_bytes())
    frames = scaled.frames(joined, stereo="right")
    assert [frame.region for frame in frames] == [(64, 0, 64, 48)] * 3 + [(128, 0, 128, 96)] * 3
    assert same_pictures(frames[:3], scaled.frames(small, stereo="right"))
    halved = scaled.frames(large, short_side=48, stereo="right")
    assert same_pictures(frames[3:], halved)


def test_tone_mapped_eye(make_video: Any, tmp_path: Path) -> None:
    pq = {"color_primaries": "bt2020", "color_trc": "smpte2084", "colorspace": "bt2020nc"}
    path = write_packed(make_video, tmp_path / "a.mp4", SIDE_BY_SIDE, 3, options=pq)
    alone = write_eye(make_video, tmp_path / "b.mp4", "left", options={**LOSSLESS, **pq})
    frames = scaled.frames(path, short_side=32, stereo="left", hdr="tonemap")
    assert same_pictures(frames, scaled.frames(alone, short_side=32, hdr="tonemap"))
    assert not np.array_equal(frames[0].rgb(), scaled.frames(alone, 1, short_side=32)[0].rgb())
    assert scaled.notes(path, stereo="left", hdr="tonemap") == (
        "left eye cut out of side by side",
        "tone-mapped from PQ to BT.709",
    )


@pytest.mark.parametrize("pixel_format", ["yuv422p", "yuv444p", "yuv420p10le", "gray"])
def test_pixel_formats(make_video: Any, tmp_path: Path, pixel_format: str) -> None:
    path = make_video(
        tmp_path / "a.mkv", **{**SIDE_BY_SIDE, "codec": "ffv1", "pixel_format": pixel_format, "options": {}}
    )
    pictures = [frame.rgb() for frame in scaled.frames(path, stereo="right", stereo_layout="side_by_side")]
    expected = scaled.filtered(path, "crop=64:48:64:0,scale=flags=area+accurate_rnd+full_chroma_int", (64, 48), 3)
    assert min(map(ffmpeg_reference.psnr_db, pictures, expected)) > 48


# Regions


@pytest.mark.parametrize(
    ("view", "size", "region"),
    [
        (WHOLE, (641, 359), (0, 0, 641, 359)),
        (View("side_by_side"), (1920, 1080), (0, 0, 960, 1080)),
        (View("side_by_side", second=True), (1920, 1080), (960, 0, 960, 1080)),
        (View("side_by_side"), (642, 480), (0, 0, 320, 480)),
        (View("side_by_side", second=True), (642, 480), (322, 0, 320, 480)),
        (View("side_by_side", second=True), (643, 480), (322, 0, 320, 480)),
        (View("top_bottom"), (640, 361), (0, 0, 640, 180)),
        (View("top_bottom", second=True), (640, 361), (0, 180, 640, 180)),
        (View("top_bottom", second=True), (641, 4), (0, 2, 641, 2)),
    ],
)
def test_regions(view: View, size: tuple[int, int], region: tuple[int, int, int, int]) -> None:
    assert view.region(*size) == region


def test_too_small_to_cut() -> None:
    with pytest.raises(MediaError, match=r"^3 pixels are too few to hold two eyes' pictures$"):
        View("side_by_side").region(3, 100)


@pytest.mark.parametrize("which", ["left", "right"])
def test_halves_that_are_not_even(make_video: Any, tmp_path: Path, which: str) -> None:
    """An eye of 65 columns: chroma is halved, so that the 64 farthest from the seam are taken."""
    path = make_video(tmp_path / "a.mp4", size=(130, 48), num_frames=2, options=LOSSLESS)
    pictures = [f.rgb() for f in scaled.frames(path, stereo=which, stereo_layout="side_by_side")]
    expected = scaled.filtered(
        path, f"crop=64:48:{0 if which == 'left' else 66}:0,scale=flags=area+accurate_rnd+full_chroma_int", (64, 48), 2
    )
    assert min(map(ffmpeg_reference.psnr_db, pictures, expected)) > 48


# Eyes in layers of their own


def test_an_eye_that_the_file_does_not_name() -> None:
    message = "the left eye's picture is in a layer that is not decoded: the base view is an unnamed eye's"
    for said in (None, struct.pack("3i", 3, 0, 0)):
        with pytest.raises(MediaError, match=f"^{message}; build it with 'frames.stereo: as_is'$"):
            view_of("left", "side_by_side", said, multiview=True)


@pytest.mark.parametrize("short_side", [None, 64])
@pytest.mark.parametrize(
    ("name", "base", "other"),
    [
        ("odd/stereo3d/stereo_spatial.mp4", "left", "right"),
        ("odd/stereo3d/water_180_mvhevc_5frames.mov", "right", "left"),
    ],
)
def test_multiview_hevc(corpus: Path, name: str, base: str, other: str, short_side: int | None) -> None:
    """ffmpeg decodes the base view alone; which eye's that is, the container says."""
    frames = scaled.frames(corpus / name, 2, short_side=short_side, stereo=base, stereo_layout="side_by_side")
    assert frames[0].region == (0, 0, frames[0].picture.width, frames[0].picture.height)
    assert same_pictures(frames, scaled.frames(corpus / name, 2, short_side=short_side))
    assert scaled.notes(corpus / name, stereo=base) == (f"{base} eye: the base view of several",)
    message = f"the {other} eye's picture is in a layer that is not decoded: the base view is {base} eye's"
    with pytest.raises(MediaError, match=f"^{message}; build it with 'frames.stereo: as_is'$") as error:
        scaled.frames(corpus / name, 1, stereo=other)
    assert (error.value.stage, error.value.cause, error.value.num_frames_ok) == ("decode", "stereo", 0)
