"""The feature "flow": OpenCV's own numbers, known motion, the ways to store it, and pictures that are odd."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
import pytest
from conftest import make_planes

from chordcache.config.picture import PictureConfig
from chordcache.features.flow import FlowExtractor
from chordcache.media.decoding import decode_frames
from chordcache.media.demux import open_media
from chordcache.media.frame import FrameMaker
from chordcache.storage.flow_int8 import dequantize, quantize

METHODS = [("farneback", "fast"), ("dis", "ultrafast"), ("dis", "fast"), ("dis", "medium")]


@pytest.fixture(autouse=True)
def one_opencv_thread() -> Iterator[None]:
    """As in a worker."""
    before = cv2.getNumThreads()
    cv2.setNumThreads(1)
    yield
    cv2.setNumThreads(before)


def extract(path: Path, *, stop: int | None = None, **params: Any) -> tuple[dict[str, np.ndarray], FlowExtractor, int]:
    """Arrays of a video, the extractor, and the number of frames that it got."""
    extractor = FlowExtractor("flow", **params)
    collected: dict[str, list[np.ndarray]] = {}
    num_frames = 0
    with open_media(str(path)) as media:
        video = media.require_video()
        maker = FrameMaker(PictureConfig(short_side=params.get("short_side")), video.sample_aspect_ratio)
        for decoded in decode_frames(media):
            if num_frames == stop:
                break
            collect(collected, extractor.add_frame(maker.frame(decoded)))
            num_frames += 1
    collect(collected, extractor.finish())
    return {name: np.concatenate(blocks) for name, blocks in collected.items()}, extractor, num_frames


def collect(collected: dict[str, list[np.ndarray]], rows: Any) -> None:
    for name, block in rows.items():
        collected.setdefault(name, []).append(block)


def lumas(path: Path, num_frames: int, size: tuple[int, int]) -> list[np.ndarray]:
    """By libavfilter, called as its documentation says, without the package."""
    luma = "ispace=smpte170m:irange=tv:space=smpte170m:range=pc:format=yuv420p:fast=1"
    light = "iprimaries=bt709:itrc=bt709:primaries=bt709:trc=bt709"
    planes = []
    with av.open(str(path)) as container:
        graph = av.filter.Graph()
        source = graph.add_buffer(template=container.streams.video[0])
        filters = [
            graph.add("scale", f"{size[0]}:{size[1]}:flags=area:in_range=limited:out_range=limited"),
            graph.add("format", "yuv420p10le"),
            graph.add("colorspace", f"{luma}:{light}"),
        ]
        graph.link_nodes(source, *filters, graph.add("buffersink")).configure()
        for picture in islice(container.decode(video=0), num_frames):
            graph.vpush(picture)
            plane = graph.vpull().planes[0]
            rows = np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)
            planes.append(rows[: plane.height, : plane.width].copy())
    return planes


def opencv_flow(first: np.ndarray, second: np.ndarray, method: str, preset: str) -> np.ndarray:
    """OpenCV called directly, with a new estimator for each pair."""
    if method == "farneback":
        return cv2.calcOpticalFlowFarneback(
            first,
            second,
            None,
            pyr_scale=0.5,
            levels=3,
            winsize=15,
            iterations=3,
            poly_n=5,
            poly_sigma=1.2,
            flags=0,
        )
    return cv2.DISOpticalFlow.create(["ultrafast", "fast", "medium"].index(preset)).calc(first, second, None)


@pytest.mark.parametrize(("method", "preset"), METHODS)
@pytest.mark.parametrize("clip", ["people/carphone_pristine.mp4", "street/bikes.mp4"])
def test_float32_is_what_opencv_gives(clips, clip, method, preset):
    arrays, _, num_frames = extract(clips / clip, stop=6, method=method, preset=preset, short_side=128, dtype="float32")
    height, width = arrays["flow"].shape[1:3]
    planes = lumas(clips / clip, 6, (width, height))
    expected = np.stack([opencv_flow(a, b, method, preset) for a, b in pairwise(planes)])
    assert list(arrays) == ["flow"]
    assert num_frames == 6
    assert expected.shape[0] == 5
    assert arrays["flow"].dtype == np.float32
    assert np.array_equal(arrays["flow"], expected)


@pytest.fixture(scope="module")
def meadow(clips) -> np.ndarray:
    """The luma of a real frame [shape=(256, 456), dtype=uint8]; it has texture all over, so that motion shows."""
    with open_media(str(clips / "animation/bigbuckbunny.mp4")) as media:
        frames = list(islice(decode_frames(media), 21))
        return FrameMaker(PictureConfig(short_side=256), None).frame(frames[-1]).luma(256).copy()


@pytest.mark.parametrize("shift", [(3, 0), (2, -3)], ids=str)
@pytest.mark.parametrize(("method", "preset"), METHODS)
def test_flow_of_a_moved_picture_is_its_motion(tmp_path, make_video, meadow, method, preset, shift: tuple[int, int]):
    dx, dy = shift

    def planes(number: int, width: int, height: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        moved = np.roll(meadow, (dy * number, dx * number), axis=(0, 1))
        gray = np.full((height // 2, width // 2), 128, np.uint8)
        return np.ascontiguousarray(moved[92 : 92 + height, 60 : 60 + width]), gray, gray

    video = make_video(tmp_path / "moved.mkv", codec="ffv1", size=(192, 144), num_frames=4, planes=planes)
    arrays, _, _ = extract(video, method=method, preset=preset, dtype="float32")
    assert arrays["flow"].shape == (3, 144, 192, 2)
    for flow in arrays["flow"]:
        inner = flow[20:-20, 20:-20]  # what leaves the picture cannot be found
        assert np.median(inner.reshape(-1, 2), axis=0) == pytest.approx([dx, dy], abs=0.1)


@pytest.mark.parametrize("method", ["farneback", "dis"])
def test_float16_is_rounded_float32(clips, method):
    clip = clips / "street/bikes.mp4"
    exact = extract(clip, stop=4, method=method, short_side=128, dtype="float32")[0]["flow"]
    rounded = extract(clip, stop=4, method=method, short_side=128, dtype="float16")[0]["flow"]
    assert rounded.dtype == np.float16
    assert np.array_equal(rounded, exact.astype(np.float16))
    assert np.abs(exact).max() > 1


def test_float16_does_not_become_infinite(tmp_path, make_video, monkeypatch):
    monkeypatch.setattr(cv2, "calcOpticalFlowFarneback", lambda a, *_: np.full((*a.shape, 2), [1e6, -1e6], np.float32))
    arrays, _, _ = extract(make_video(tmp_path / "a.mp4", num_frames=2), method="farneback", dtype="float16")
    assert arrays["flow"][0, 0, 0].tolist() == [65504, -65504]


@pytest.mark.parametrize("method", ["farneback", "dis"])
@pytest.mark.parametrize("clip", ["animation/bigbuckbunny.mp4", "people/carphone_pristine.mp4"])
def test_int8_is_near(clips, clip, method):
    exact = extract(clips / clip, stop=8, method=method, short_side=128, dtype="float32")[0]["flow"]
    arrays, extractor, _ = extract(clips / clip, stop=8, method=method, short_side=128, dtype="int8")
    assert arrays["flow"].dtype == np.int8
    assert arrays["flow"].shape == exact.shape
    assert arrays["flow.scale"].dtype == np.float32
    assert arrays["flow.scale"].shape == (7,)
    flow = dequantize(arrays["flow"], arrays["flow.scale"])
    clipped = (np.abs(exact) > 127.5 * arrays["flow.scale"][:, None, None, None]).any(axis=-1)
    assert extractor.facts == {"clipped_share": pytest.approx(clipped.mean(), abs=1e-9)}
    assert np.abs(flow - exact)[~clipped].max() <= arrays["flow.scale"].max() * 0.501
    assert np.abs(flow - exact).mean() < 0.1


def test_flow_that_fits_is_not_clipped():
    flow = np.random.default_rng(1).normal(0, 10, (30, 40, 2)).astype(np.float32)
    codes, scale, num_clipped = quantize(flow)
    assert num_clipped == 0
    assert np.abs(codes).max() == 127
    assert scale == pytest.approx(np.abs(flow).max() / 127)
    assert np.abs(dequantize(codes[None], np.array([scale]))[0] - flow).max() <= scale * 0.501


def test_flow_beyond_127_pixels_is_clipped_and_counted():
    flow = np.zeros((10, 10, 2), np.float32)
    flow[0, 0], flow[0, 1], flow[0, 2], flow[0, 3] = (300, -300), (-128, 5), (127.4, 0), (3.2, 0)
    codes, scale, num_clipped = quantize(flow)
    assert scale == 1
    assert num_clipped == 2
    assert codes[0, :4].tolist() == [[127, -127], [-127, 5], [127, 0], [3, 0]]


@pytest.mark.parametrize("rotation", [90, 180, 270])
def test_the_first_picture_of_another_size_than_frames_is_turned(tmp_path, make_video, rotation):
    still = make_planes(0, 96, 64)
    path = make_video(
        tmp_path / "a.mp4", num_frames=3, size=(96, 64), rotation=rotation, planes=lambda *_: still, options={"qp": "0"}
    )
    with open_media(str(path)) as media:
        maker = FrameMaker(PictureConfig(short_side=64), None)
        first, *others = (maker.frame(decoded).luma(32) for decoded in decode_frames(media))
    assert first.shape == ((48, 32) if rotation % 180 else (32, 48))
    assert first.any()
    assert all(np.array_equal(first, other) for other in others)


def test_no_motion_is_zero():
    codes, scale, num_clipped = quantize(np.zeros((4, 4, 2), np.float32))
    assert not codes.any()
    assert scale == 1
    assert num_clipped == 0


def test_dequantized_pairs_have_a_scale_each():
    codes = np.array([[[[1, -2]]], [[[3, 127]]]], np.int8)
    flow = dequantize(codes, np.array([0.5, 2], np.float32))
    assert flow.dtype == np.float32
    assert flow.tolist() == [[[[0.5, -1]]], [[[6, 254]]]]


@pytest.mark.parametrize(("dtype", "names"), [("float16", ["flow"]), ("int8", ["flow", "flow.scale"])])
@pytest.mark.parametrize(("num_frames", "num_rows"), [(1, 0), (2, 1), (5, 4)])
def test_one_row_less_than_frames(tmp_path, make_video, dtype, names, num_frames, num_rows):
    arrays, extractor, num_decoded = extract(make_video(tmp_path / "a.mp4", num_frames=num_frames), dtype=dtype)
    assert num_decoded == num_frames
    assert extractor.num_rows(num_frames) == num_rows
    assert extractor.absent is None
    assert list(arrays) == names
    assert arrays["flow"].shape == (num_rows, 48, 64, 2)
    assert arrays["flow"].dtype == dtype
    assert all(len(rows) == num_rows for rows in arrays.values())
    assert extractor.facts == ({"clipped_share": 0.0} if dtype == "int8" else {})


@pytest.mark.parametrize("size", [(4, 40), (40, 4), (8, 8)], ids=str)
def test_a_picture_too_small_for_dis(tmp_path, make_video, size: tuple[int, int]):
    video = make_video(tmp_path / "a.mkv", codec="ffv1", num_frames=3, size=size)
    arrays, extractor, _ = extract(video, method="dis")
    assert arrays == {}
    assert extractor.facts == {}
    assert extractor.absent == f"a picture of {size[0]}x{size[1]} pixels is too small for DIS, which needs 8x12"
    with pytest.raises(cv2.error, match="The input image must have either width or height"):
        opencv_flow(*(np.zeros(size[::-1], np.uint8),) * 2, "dis", "fast")


@pytest.mark.parametrize(("method", "size"), [("dis", (8, 12)), ("dis", (12, 8)), ("farneback", (4, 4))], ids=str)
def test_the_smallest_pictures(tmp_path, make_video, method, size: tuple[int, int]):
    video = make_video(tmp_path / "a.mkv", codec="ffv1", num_frames=3, size=size)
    arrays, extractor, _ = extract(video, method=method)
    assert extractor.absent is None
    assert arrays["flow"].shape == (2, size[1], size[0], 2)
