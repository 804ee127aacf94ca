"""The feature "motion": libavcodec's vectors on a grid, against a plain loop over PyAV's own objects."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from av.sidedata.sidedata import Type as SideDataType
from helpers.ffmpeg import ffprobe_column

from chordcache.config.picture import PictureConfig
from chordcache.features.base import VideoInfo
from chordcache.features.motion import MotionExtractor, motion_grid, resampled, turned
from chordcache.media.decoding import decode_frames
from chordcache.media.demux import open_media
from chordcache.media.frame import FrameMaker
from chordcache.media.geometry import Orientation
from chordcache.media.picture_data import MOTION_VECTOR, MOTION_VECTOR_CODECS, motion_vectors

ORIENTATIONS = [Orientation(t, c, r) for t in (False, True) for c in (False, True) for r in (False, True)]


def extract(path: Path, *, stop: int | None = None, **maker: Any) -> tuple[dict[str, np.ndarray], MotionExtractor]:
    """Arrays of a video, and the extractor."""
    extractor = MotionExtractor("motion")
    collected: dict[str, list[np.ndarray]] = {}
    with open_media(str(path)) as media:
        frames = FrameMaker(PictureConfig(short_side=None, **maker), None)
        for decoded in islice(decode_frames(media, motion_vectors=True), stop):
            for name, block in extractor.add_frame(frames.frame(decoded)).items():
                collected.setdefault(name, []).append(block)
    for name, block in extractor.finish().items():
        collected.setdefault(name, []).append(block)
    assert dict(extractor.finish()) == {}
    return {name: np.concatenate(blocks) for name, blocks in collected.items()}, extractor


def pictures(path: Path, stop: int) -> Iterator[av.VideoFrame]:
    """By PyAV alone."""
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        stream.codec_context.flags2 |= av.codec.context.Flags2.export_mvs
        yield from islice(container.decode(stream), stop)


def slow_grid(picture: av.VideoFrame) -> tuple[np.ndarray, np.ndarray]:
    """Vector by vector and pixel by pixel, with the names of AVMotionVector."""
    width, height = picture.width, picture.height
    total = np.zeros((height, width, 2))
    count = np.zeros((height, width))
    for vector in picture.side_data.get(SideDataType.MOTION_VECTORS) or ():
        if vector.source < 0:
            left, top = vector.dst_x - vector.w // 2, vector.dst_y - vector.h // 2
            here = np.s_[max(top, 0) : max(top + vector.h, 0), max(left, 0) : max(left + vector.w, 0)]
            total[here] += (vector.motion_x / vector.motion_scale, vector.motion_y / vector.motion_scale)
            count[here] += 1
    rows, columns = -(-height // 16), -(-width // 16)
    motion, covered = np.zeros((rows, columns, 2)), np.zeros((rows, columns), bool)
    for row in range(rows):
        for column in range(columns):
            cell = np.s_[16 * row : 16 * row + 16, 16 * column : 16 * column + 16]
            covered[row, column] = count[cell].any()
            motion[row, column] = total[cell].sum(axis=(0, 1)) / max(count[cell].sum(), 1)
    return motion, covered


def check(path: Path, stop: int, codec: str) -> dict[str, np.ndarray]:
    arrays, _ = extract(path, stop=stop)
    expected = [slow_grid(picture) for picture in pictures(path, stop)]
    with open_media(str(path)) as media:
        assert media.require_video().codec_context.codec.canonical_name == codec
    assert arrays["motion"].dtype == np.float16
    np.testing.assert_array_equal(arrays["motion.covered"], np.stack([covered for _, covered in expected]))
    np.testing.assert_allclose(arrays["motion"], np.stack([motion for motion, _ in expected]), rtol=1e-3, atol=1e-3)
    assert arrays["motion.covered"].any()
    assert np.abs(arrays["motion"]).max() >= 1
    assert not arrays["motion"][~arrays["motion.covered"]].any()
    return arrays


@pytest.mark.parametrize("clip", ["animation/bigbuckbunny.mp4", "people/carphone_pristine.mp4", "street/bikes.mp4"])
def test_h264_clips(clips, clip):
    check(clips / clip, 12, "h264")


@pytest.mark.parametrize(
    ("name", "codec", "shape"),
    [
        ("odd/negative_start/360p30_h264_48k_160_aac_ts-0000000028.ts", "h264", (23, 40)),  # 22.5 rows of cells
        ("real/video-retalking/1.mp4", "h264", (44, 44)),
        ("odd/interlaced/CVFI2_SVA_C.264", "h264", (30, 45)),
        ("real/rerender_a_video/real2sculpture.mp4", "mpeg4", (32, 48)),
        ("real/c3d/v_BaseballPitch_g01_c01.avi", "mpeg4", (15, 20)),
        ("real/lipnet/brbk7n.mpg", "mpeg1video", (18, 23)),
        ("odd/legacy_codec/bbb_176x144_128kbps_15fps_h263.3gp", "h263", (9, 11)),
    ],
)
def test_corpus_clips(corpus, name, codec, shape):
    arrays = check(corpus / name, 12, codec)
    assert arrays["motion"].shape == (12, *shape, 2)
    assert arrays["motion.covered"].shape == (12, *shape)


def panning(number: int, width: int, height: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Smooth noise that moves 4 pixels to the right and 2 down per frame."""
    y, x = np.mgrid[:height, :width]
    y, x = y - 2 * number, x - 4 * number
    luma = 125 + 40 * np.sin(x / 5 + np.cos(y / 9)) + 40 * np.sin(y / 6 + np.sin(x / 13))
    gray = np.full((height // 2, width // 2), 128, np.uint8)
    return luma.astype(np.uint8), gray, gray


@pytest.mark.parametrize(
    ("codec", "options"),
    [("libx264", {"bf": "0"}), ("libx264", {"bf": "3"}), ("mpeg2video", {}), ("mpeg4", {"flags": "+qpel+mv4"})],
    ids=str,
)
def test_made_videos(tmp_path, make_video, codec, options):
    video = make_video(
        tmp_path / "a.mkv", codec=codec, options=options, size=(200, 120), planes=panning, num_frames=16, gop=50
    )
    with open_media(str(video)) as media:
        name = media.require_video().codec_context.codec.canonical_name
    check(video, 16, name)


@pytest.mark.parametrize(
    ("rotation", "flow"), [(0, (4, 2)), (90, (-2, 4)), (180, (-4, -2)), (270, (2, -4))]
)  # right becomes down, down becomes left
def test_the_negative_is_how_the_shown_picture_flows(tmp_path, make_video, rotation, flow):
    video = make_video(
        tmp_path / "a.mp4",
        size=(192, 128),
        planes=panning,
        num_frames=6,
        gop=50,
        rotation=rotation,
        options={"bf": "0", "refs": "1", "crf": "10"},
    )
    arrays, extractor = extract(video)
    rows, columns = (8, 12) if rotation % 180 == 0 else (12, 8)
    assert arrays["motion"].shape == (6, rows, columns, 2)
    assert extractor.facts == {"width": 16 * columns, "height": 16 * rows}
    for motion, covered in zip(arrays["motion"][1:], arrays["motion.covered"][1:], strict=True):
        inner = motion[2:-2, 2:-2][covered[2:-2, 2:-2]]
        assert len(inner) > 10
        assert np.median(-inner, axis=0) == pytest.approx(flow, abs=0.25)


@pytest.mark.parametrize("orientation", ORIENTATIONS, ids=str)
def test_vectors_turn_with_the_points_that_they_join(orientation):
    rng = np.random.default_rng(0)
    height, width = 5, 7
    for _ in range(20):
        (x, y), (to_x, to_y) = rng.integers((0, 0), (width, height), (2, 2))
        motion = np.zeros((height, width, 2))
        motion[y, x] = to_x - x, to_y - y
        numbers = orientation.apply(np.arange(height * width).reshape(height, width))
        (new_y,), (new_x,) = np.nonzero(numbers == y * width + x)
        (new_to_y,), (new_to_x,) = np.nonzero(numbers == to_y * width + to_x)
        vectors = turned(motion, orientation)
        assert vectors[new_y, new_x].tolist() == [new_to_x - new_x, new_to_y - new_y]
        assert np.count_nonzero(vectors.any(axis=-1)) == ((to_x, to_y) != (x, y))


def vectors_of(*rows: tuple[int, tuple[int, int], tuple[int, int], tuple[int, int]], scale: int = 4) -> np.ndarray:
    """(source, (w, h), (dst_x, dst_y), (motion_x, motion_y)) each."""
    return np.array([(*row, scale) for row in rows], MOTION_VECTOR)


def test_partitions_are_averaged_by_the_area_that_they_cover():
    vectors = vectors_of(
        (-1, (8, 16), (4, 8), (8, 0)),
        (-1, (8, 8), (12, 4), (4, 4)),
        (1, (8, 8), (12, 12), (400, 400)),
        (1, (16, 16), (24, 8), (400, 400)),
    )
    motion, covered = motion_grid(vectors, (0, 0, 48, 16))
    assert covered.tolist() == [[True, False, False]]
    assert motion[0, 0].tolist() == pytest.approx([(2 * 128 + 1 * 64) / 192, 64 / 192], rel=1e-3)
    assert not motion[0, 1:].any()


def test_vectors_outside_the_picture_do_not_count():
    vectors = vectors_of(
        (-1, (16, 16), (-8, 8), (4, 4)),
        (-1, (16, 16), (40, 8), (4, 4)),
        (-1, (16, 16), (8, 16), (8, 8)),
        (-1, (16, 8), (24, 20), (16, 0)),
        (-1, (16, 8), (24, 28), (400, 0)),
    )
    motion, covered = motion_grid(vectors, (0, 0, 32, 18))
    assert covered.tolist() == [[True, False], [False, True]]  # a corner at row 8 is in the first row of cells
    assert motion.tolist() == [[[2, 2], [0, 0]], [[0, 0], [4, 0]]]


def test_one_eye_of_a_video(tmp_path, make_video):
    video = make_video(tmp_path / "a.mp4", size=(128, 64), planes=panning, num_frames=4, gop=50, options={"bf": "0"})
    whole, _ = extract(video)
    right, _ = extract(video, stereo="right", stereo_layout="side_by_side")
    assert right["motion"].shape == (4, 4, 4, 2)
    assert whole["motion.covered"].any()
    np.testing.assert_array_equal(right["motion"], whole["motion"][:, :, 4:])
    np.testing.assert_array_equal(right["motion.covered"], whole["motion.covered"][:, :, 4:])


def test_another_picture_size_is_scaled_to_the_first():
    motion, covered = motion_grid(vectors_of((-1, (16, 16), (24, 8), (4, 8))), (0, 0, 32, 32))
    motion, covered = resampled(motion, covered, (32, 32), (64, 96))
    assert motion.shape == (6, 4, 2)
    assert np.argwhere(covered).tolist() == [[row, column] for row in range(3) for column in (2, 3)]
    assert (motion[covered] == [2, 6]).all()


def test_rows_keep_one_shape_when_the_pictures_change_size(corpus):
    path = corpus / "odd/made_dev/resolution_change.ts"
    sizes = {(picture.width, picture.height) for picture in pictures(path, 240)}
    arrays, _ = extract(path)
    assert len(sizes) == 2
    assert arrays["motion"].shape == (240, 45, 80, 2)
    assert arrays["motion.covered"].any(axis=(1, 2)).sum() > 200


@pytest.mark.parametrize(
    ("codec", "options", "types"), [("libx264", {"bf": "3"}, b"IPB"), ("mpeg4", {"bf": "2"}, b"IPB")]
)
def test_picture_types(tmp_path, make_video, codec, options, types):
    video = make_video(tmp_path / "a.mp4", codec=codec, options=options, size=(96, 64), planes=panning, gop=12)
    arrays, _ = extract(video)
    assert arrays["motion.types"].dtype == np.dtype("S1")
    assert arrays["motion.types"].tolist() == [kind.encode() for kind in ffprobe_column(video, "frame=pict_type")]
    assert set(arrays["motion.types"].tolist()) == {types[i : i + 1] for i in range(3)}
    intra = arrays["motion.types"] == b"I"
    assert not arrays["motion.covered"][intra].any()


@pytest.mark.parametrize(
    ("encoder", "codec"), [("libx265", "hevc"), ("libvpx-vp9", "vp9"), ("libsvtav1", "av1"), ("mjpeg", "mjpeg")]
)
def test_codecs_that_export_none(tmp_path, make_video, encoder, codec):
    pixel_format = "yuvj420p" if encoder == "mjpeg" else "yuv420p"
    video = make_video(
        tmp_path / "a.mkv", codec=encoder, pixel_format=pixel_format, size=(128, 96), planes=panning, num_frames=6
    )
    with open_media(str(video)) as media:
        name = media.require_video().codec_context.codec.canonical_name
        vectors = [motion_vectors(decoded.picture) for decoded in decode_frames(media, motion_vectors=True)]
    assert name == codec
    assert name not in MOTION_VECTOR_CODECS
    assert vectors == [None] * 6
    reason = MotionExtractor("motion").begin(VideoInfo(name, 128, 96, has_sound=False))
    assert reason == f"codec '{codec}' exports no motion vectors"


def test_looking_at_vectors_keeps_no_picture_in_memory(clips):
    def num_pictures() -> int:
        return sum(type(thing) is av.VideoFrame for thing in gc.get_objects())

    gc.collect()
    num_before = num_pictures()  # other tests of this process may have kept some
    gc.disable()
    try:
        extract(clips / "people/carphone_pristine.mp4", stop=30)
        num_kept = num_pictures() - num_before
    finally:
        gc.enable()
    assert num_kept <= 2  # the first one, which shows how it is turned
