"""Crops, flips and padding: drawn for each sample, the same in any process, and the same for all features of a clip."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from helpers.antialiased import antialiased
from helpers.ffmpeg import copy_start
from helpers.ffmpeg_reference import psnr_db
from helpers.inline import HERE
from hypothesis import given
from hypothesis import strategies as st

import chordcache as cc
from chordcache.config.config import config_from_json
from chordcache.errors import UsageError
from chordcache.features import built_in
from chordcache.features.flow import cut_flow
from chordcache.features.pose import cut_pose
from chordcache.media import jpeg, turbojpeg
from chordcache.media.cropping import CropBox, Rectangle
from chordcache.read.crops import Pad, SpatialTransform
from chordcache.train.samplers.clip_request import ClipRequest, RandomStream

REAL = {"bunny.mp4": "animation/bigbuckbunny.mp4", "bikes.mp4": "street/bikes.mp4"}
"""Clip of 1280x720, and of 640x272"""

SIZE = (96, 128)
RANDOM_CROP = cc.crops.RandomResizedCrop(SIZE, scale=(0.2, 0.8), ratio=(0.7, 2))
CROPS = {
    "center": cc.crops.CenterCrop(SIZE),
    "crop": RANDOM_CROP,
    "resize": cc.crops.Resize(SIZE),
    "short": cc.crops.Resize(short_side=100),
    "pad": Pad((150, 170)),
    "flip": cc.crops.HorizontalFlip(1),
    "flipped-crop": cc.crops.HorizontalFlip(1, RANDOM_CROP),
    "flipped-pad": cc.crops.HorizontalFlip(1, Pad((150, 170))),
    "flipped-odd": cc.crops.HorizontalFlip(1, cc.crops.CenterCrop((77, 91))),
}
every_framing = pytest.mark.parametrize("name", CROPS)
either_clip = pytest.mark.parametrize("path", REAL)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory, clips: Path) -> cc.Cache:
    """A second and a half of two real clips; flow at half the size."""
    folder = tmp_path_factory.mktemp("crops")
    for name, source in REAL.items():
        copy_start(clips / source, 1.5, folder / "videos" / name)
    config = config_from_json(
        {"features": {"flow": {"method": "dis", "preset": "medium", "short_side": 128}, "mel": None}}
    )
    summary = cc.build(
        cc.scan([folder / "videos"], jobs=HERE), folder / "cache", tiers=["lmdb", "npz"], config=config, jobs=HERE
    )
    assert summary.num_done == 2
    return cc.open_cache(folder / "cache")


def video_of(cache: cc.Cache, path: str) -> cc.Video:
    (video,) = (video for video in cache if video.path == path)
    return video


def sample_of(cache: cc.Cache, path: str, index: int = 0, **settings: Any) -> dict[str, Any]:
    settings = {"clip_sampler": cc.RegularClipSampler(num_frames=4, stride=3), "clips_per_video": 8, **settings}
    return cc.ChordVideoDataset(cache, videos=[video_of(cache, path).key], **settings)[0, index]


def drawn(
    spatial_transform: SpatialTransform, video: cc.Video, index: int = 0, epoch: int = 0, seed: int = 0
) -> CropBox:
    """The crop of a sample, drawn beside the dataset."""
    random = ClipRequest(seed=seed, epoch=epoch, index=index).generator(RandomStream.CROP)
    return spatial_transform.choose(video.height, video.width, random)


def seen(frames: np.ndarray, crop: CropBox) -> np.ndarray:
    """Frames through a crop, by OpenCV's borders and the antialiased bilinear filter of Pillow and torch."""
    height, width = frames.shape[1:3]
    margins = (
        max(0, -crop.top),
        max(0, crop.top + crop.height - height),
        max(0, -crop.left),
        max(0, crop.left + crop.width - width),
    )
    out = []
    for frame in frames:
        padded = cv2.copyMakeBorder(frame, *margins, cv2.BORDER_CONSTANT, value=(0, 0, 0))
        top, left = crop.top + margins[0], crop.left + margins[2]
        scaled = antialiased(padded[top : top + crop.height, left : left + crop.width], crop.size)
        out.append(scaled[:, ::-1] if crop.flip else scaled)
    return np.stack(out)


def covered_part(crop: CropBox, height: int, width: int) -> tuple[slice, slice]:
    """Rows and columns of a crop's result in which the picture is, in part at least."""
    spans = []
    for start, length, side, size in zip(
        (crop.top, crop.left), (crop.height, crop.width), (height, width), crop.size, strict=True
    ):
        inside = [i for i in range(size) if (i + 1) * length > -start * size and i * length < (side - start) * size]
        spans.append(slice(inside[0], inside[-1] + 1))
    rows, columns = spans
    return rows, slice(crop.size[1] - columns.stop, crop.size[1] - columns.start) if crop.flip else columns


def assert_shows(clip: torch.Tensor, frames: np.ndarray, crop: CropBox) -> None:
    """The picture as the reference scales it, to 40 dB, and to a level where nothing shrinks; black beside it."""
    rows, columns = covered_part(crop, *frames.shape[1:3])
    scaled = clip.permute(0, 2, 3, 1).numpy()
    expected = seen(frames, crop)
    part, of_expected = scaled[:, rows, columns], expected[:, rows, columns]
    assert psnr_db(part, of_expected) > 40
    if crop.size[0] >= crop.height and crop.size[1] >= crop.width:
        assert np.abs(part - of_expected).max() <= 1
    assert scaled.sum(dtype=int) == part.sum(dtype=int)


def test_frames_a_few_at_a_time(cache: cc.Cache) -> None:
    video = video_of(cache, "bunny.mp4")
    numbers = [5, 0, 0, 30, 31, 2, 7, 7]
    blocks = []
    for frames in cache.iter_frames(video, numbers):
        assert frames.nbytes <= 1 << 20
        blocks.append(frames.copy())
        frames[:] = 0  # nothing of them is read again
    assert len(blocks) > 2
    np.testing.assert_array_equal(np.concatenate(blocks), cache.read(video.key, indices=numbers))
    assert list(cache.iter_frames(video, [])) == []
    with pytest.raises(IndexError, match=str(video.num_frames)):
        next(cache.iter_frames(video, [0, video.num_frames]))


PARTS = [Rectangle(0, 0, 256, 456), Rectangle(0, 0, 1, 1), Rectangle(255, 455, 1, 1), Rectangle(13, 101, 200, 224)]
"""Parts of a frame of 456x256"""


@pytest.mark.parametrize(("codec", "tier"), [("jpeg", "lmdb"), ("raw", "hdf5")])
def test_parts_of_frames_a_few_at_a_time(clips: Path, tmp_path: Path, codec: str, tier: str) -> None:
    copy_start(clips / REAL["bunny.mp4"], 0.5, tmp_path / "videos" / "bunny.mp4")
    config = config_from_json({"frames": {"codec": codec}})
    cc.build(cc.scan([tmp_path / "videos"], jobs=HERE), tmp_path / "cache", tiers=[tier], config=config, jobs=HERE)
    numbers = [5, 0, 0, 10, 11, 2, 7, 7]
    with cc.open_cache(tmp_path / "cache") as cache:
        for part in PARTS:
            blocks = []
            for frames in cache.iter_frames(0, numbers, part=part):
                assert frames.shape[1:3] == (part.height, part.width)
                blocks.append(frames.copy())
                frames[:] = 0
            np.testing.assert_array_equal(np.concatenate(blocks), part.of(cache.read(0, indices=numbers)))
        assert list(cache.iter_frames(0, [], part=PARTS[-1])) == []


def test_samples_do_not_depend_on_the_library_that_decodes_parts(
    cache: cc.Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def samples() -> list[torch.Tensor]:
        jpeg.part_decoder.cache_clear()
        return [sample_of(cache, path, 1, crop=crop)["frames"] for path in REAL for crop in CROPS.values()]

    installed = samples()
    monkeypatch.setattr(turbojpeg, "candidates", list)
    without = samples()
    jpeg.part_decoder.cache_clear()
    assert all(torch.equal(one, other) for one, other in zip(installed, without, strict=True))


@either_clip
@every_framing
def test_frames_are_the_window_that_was_drawn(cache: cc.Cache, path: str, name: str) -> None:
    video = video_of(cache, path)
    for index in range(2):
        sample = sample_of(cache, path, index, crop=CROPS[name], seed=5)
        numbers = np.searchsorted(video.pts_seconds, sample["pts_seconds"].numpy())
        crop = drawn(CROPS[name], video, index, seed=5)
        assert_shows(sample["frames"], cache.read(video, indices=numbers), crop)
        assert sample["frames"].is_contiguous()
        assert crop.flip == name.startswith("flip")


@either_clip
@pytest.mark.parametrize("inner", ["center", "crop", "pad"])
def test_flow_of_a_mirrored_clip_is_the_mirrored_flow(cache: cc.Cache, path: str, inner: str) -> None:
    settings = {"features": ["frames", "flow", "motion"]}
    plain = sample_of(cache, path, crop=CROPS[inner], **settings)
    mirrored = sample_of(cache, path, crop=cc.crops.HorizontalFlip(1, CROPS[inner]), **settings)
    signs = torch.tensor([-1.0, 1.0])[:, None, None]
    assert plain["flows"].abs().max() > 0.5
    torch.testing.assert_close(mirrored["frames"], plain["frames"].flip(-1), rtol=0, atol=0)
    torch.testing.assert_close(mirrored["flows"], plain["flows"].flip(-1) * signs, rtol=0, atol=0)
    if plain["frames"].shape[-1] % 16 == 0:  # otherwise the narrow cells change sides
        torch.testing.assert_close(mirrored["motion"], plain["motion"].flip(-1) * signs, rtol=0, atol=0)
        torch.testing.assert_close(mirrored["motion_covered"], plain["motion_covered"].flip(-1), rtol=0, atol=0)


def turning(places: np.ndarray) -> np.ndarray:
    """Flow of a picture of 90x140 that turns by five degrees about its middle, at places [shape=(..., 2), (x, y)]."""
    x, y = places[..., 0] - 69.5, places[..., 1] - 44.5
    cos, sin = math.cos(math.radians(5)), math.sin(math.radians(5))
    return np.stack([cos * x - sin * y - x, sin * x + cos * y - y], axis=-1)


@given(
    top=st.integers(0, 40),
    left=st.integers(0, 60),
    height=st.integers(20, 50),
    width=st.integers(20, 80),
    size=st.tuples(st.integers(16, 120), st.integers(16, 120)),
    flip=st.booleans(),
)
def test_flow_in_closed_form(top: int, left: int, height: int, width: int, size: tuple[int, int], flip: bool) -> None:
    crop = CropBox(top, left, height, width, size, flip)
    y, x = np.mgrid[: size[0], : size[1]].astype(np.float64)
    x = size[1] - 1 - x if flip else x
    down, across = size[0] / height, size[1] / width
    places = np.stack([(x + 0.5) / across + left - 0.5, (y + 0.5) / down + top - 0.5], axis=-1)
    expected = turning(places) * [-across if flip else across, down]
    whole = turning(np.stack(np.meshgrid(np.arange(140), np.arange(90)), axis=-1)).astype(np.float32)
    flow = cut_flow(whole, crop, picture=(90, 140))
    margin = math.ceil(max(down, across))  # where scaling sees beyond the border
    inner = np.s_[margin:-margin, margin:-margin]
    assert flow.shape == (*size, 2)
    np.testing.assert_allclose(flow[inner], expected[inner], atol=0.01 * max(down, across))


def test_nothing_moves_beyond_the_border(cache: cc.Cache) -> None:
    sample = sample_of(cache, "bunny.mp4", crop=Pad((128, 128)), features=["frames", "flow", "motion"])
    height = 128 * 256 / 456  # of the picture
    margin = math.floor((128 - height) / 2)
    for rows in (np.s_[:margin], np.s_[-margin:]):
        assert not sample["frames"][:, :, rows].any()
        assert not sample["flows"][:, :, rows].any()
    assert sample["frames"][:, :, margin + 1 : -margin - 1].float().mean() > 10
    inside = (np.abs(np.arange(8, 128, 16) - 64) < height / 2).tolist()
    assert inside == [False, False, True, True, True, True, False, False]
    assert sample["motion_covered"].any((0, 2)).tolist() == inside
    assert sample["motion"].abs().amax((0, 1, 3)).bool().tolist() == inside


@either_clip
@every_framing
def test_motion_of_a_window(cache: cc.Cache, path: str, name: str) -> None:
    video = video_of(cache, path)
    facts = video.feature("motion").facts
    source = facts["height"], facts["width"]
    sample = sample_of(cache, path, crop=CROPS[name], features=["motion"])
    numbers = np.searchsorted(video.pts_seconds, sample["pts_seconds"].numpy())
    motion, covered = (cache.read(video, what, indices=numbers) for what in ("motion", "motion.covered"))
    assert np.abs(motion).max() > 1
    crop = drawn(CROPS[name], video)
    height, width = crop.size
    assert sample["motion"].shape == (4, 2, -(-height // 16), -(-width // 16))
    for row, column in np.ndindex(*sample["motion"].shape[2:]):
        y, x = (16 * row + min(16 * row + 16, height)) / 2, (16 * column + min(16 * column + 16, width)) / 2
        x = width - x if crop.flip else x
        y, x = y * crop.height / height + crop.top, x * crop.width / width + crop.left
        vectors = sample["motion"][:, :, row, column].numpy()
        if not (0 <= y < video.height and 0 <= x < video.width):
            assert not vectors.any()
            assert not sample["motion_covered"][:, row, column].any()
            continue
        places = np.array([y * source[0] / video.height, x * source[1] / video.width]) / 16
        if np.abs(places - places.round()).min() < 1e-6:  # on the border of two cells, of which each will do
            continue
        cell = tuple(places.astype(int))
        across = video.width / source[1] * width / crop.width * (-1 if crop.flip else 1)
        down = video.height / source[0] * height / crop.height
        np.testing.assert_allclose(vectors, motion[:, cell[0], cell[1]] * np.array([across, down]), rtol=1e-3)
        assert sample["motion_covered"][:, row, column].tolist() == covered[:, cell[0], cell[1]].tolist()


LANDMARKS = """nose left_eye_inner left_eye left_eye_outer right_eye_inner right_eye right_eye_outer left_ear right_ear
mouth_left mouth_right left_shoulder right_shoulder left_elbow right_elbow left_wrist right_wrist left_pinky
right_pinky left_index right_index left_thumb right_thumb left_hip right_hip left_knee right_knee left_ankle
right_ankle left_heel right_heel left_foot_index right_foot_index""".split()
"""Pairs of landmarks of MediaPipe, in its order"""


def test_left_and_right_change_places() -> None:
    assert len(LANDMARKS) == 33
    pose = np.zeros((2, 33, 4), np.float32)
    pose[..., 0] = np.arange(33)
    pose[..., 3] = np.arange(33) / 33
    mirrored = cut_pose(pose, CropBox(0, 0, 40, 100, size=(40, 100), flip=True))
    for number, name in enumerate(LANDMARKS):
        other = name.replace("left", "?").replace("right", "left").replace("?", "right")
        assert (mirrored[:, LANDMARKS.index(other), 0] == 100 - number).all()
        assert (mirrored[:, LANDMARKS.index(other), 3] == pose[:, number, 3]).all()


def two_dots(number: int, width: int, height: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A bright square that comes down left of the middle, and a gray one that comes down right of it."""
    y = np.full((height, width), 16, np.uint8)
    y[30 + 3 * number : 38 + 3 * number, 56:64] = 235
    y[40 + 2 * number : 48 + 2 * number, 96:104] = 120
    u, v = np.full((2, height // 2, width // 2), 128, np.uint8)
    return y, u, v


PLUG_IN = '''
import numpy as np
from chordcache.features.base import Extractor


class Dots(Extractor):
    """The left shoulder on what is bright, all other landmarks on what is gray."""

    def __init__(self, name, stride):
        super().__init__(name)

    def add_frame(self, frame):
        luma = frame.luma(None).astype(int)
        pose = np.full((1, 33, 4), [0, 0, 10, 0.5], np.float32)
        for where, dot in (((luma > 60) & (luma < 180), slice(None)), (luma > 180, 11)):
            y, x = np.nonzero(where)
            pose[0, dot, :2] = np.median(x) + 0.5, np.median(y) + 0.5
        return {self.name: pose}
'''


@pytest.fixture(scope="module")
def dots(tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path]) -> cc.Cache:
    """A cache with the feature "pose", made by something that finds landmarks without MediaPipe."""
    folder = tmp_path_factory.mktemp("dots")
    make_video(folder / "videos" / "a.mp4", num_frames=12, size=(160, 112), planes=two_dots, options={"crf": "4"})
    (folder / "two_dots.py").write_text(PLUG_IN)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.setitem(built_in.BUILT_IN, "pose", built_in.BUILT_IN["pose"]._replace(extractor="two_dots:Dots"))
        patch.setattr("chordcache.engine.pool.run", lambda build, tasks, **_: ((task, build(task)) for task in tasks))
        config = config_from_json({"features": {"flow": None, "mel": None, "motion": None, "pose": {"stride": 1}}})
        cc.build(
            cc.scan([folder / "videos"], jobs=HERE), folder / "cache", tiers=["lmdb", "npz"], config=config, jobs=HERE
        )
    return cc.open_cache(folder / "cache")


@pytest.mark.parametrize(
    "inner",
    [
        cc.crops.CenterCrop((96, 128)),
        cc.crops.RandomResizedCrop((120, 140), scale=(0.6, 1), ratio=(1, 1.5)),
        cc.crops.Resize((200, 100)),
        cc.crops.Resize(short_side=80),
        Pad((150, 130)),
    ],
)
@pytest.mark.parametrize("flip", [False, True])
def test_landmarks_stay_on_their_pixels(dots: cc.Cache, inner: SpatialTransform, flip: bool) -> None:
    spatial_transform = cc.crops.HorizontalFlip(1, inner) if flip else inner
    num_seen = 0
    for index in range(6):
        sample = sample_of(dots, "a.mp4", index, crop=spatial_transform, features=["frames", "pose"])
        crop = drawn(spatial_transform, dots[0], index)
        scale = crop.size[1] / crop.width
        for picture, landmarks in zip(sample["frames"].float().mean(1).numpy(), sample["pose"].numpy(), strict=True):
            bright, gray = (12, 11) if flip else (11, 12)  # shoulders
            for name, there in ((bright, picture > 200), (gray, (picture > 90) & (picture < 150))):
                y, x = np.nonzero(cv2.erode(there.astype(np.uint8), np.ones((3, 3))))
                inside = 0 < landmarks[name, 0] < crop.size[1] - 8 and 8 < landmarks[name, 1] < crop.size[0] - 8
                if inside and landmarks[name, 0] > 8 and len(x):
                    assert landmarks[name, 0] == pytest.approx(np.median(x) + 0.5, abs=1.1 * max(1, scale))
                    assert landmarks[name, 1] == pytest.approx(np.median(y) + 0.5, abs=1.1 * max(1, scale))
                    num_seen += 1
            assert landmarks[:, 2] == pytest.approx(10 * scale)
            assert (landmarks[:, 3] == 0.5).all()
    assert num_seen > 30


SHAPES = st.tuples(st.integers(1, 500), st.integers(1, 500))


@given(picture=SHAPES, seed=st.integers(0, 2**32))
def test_random_crop_lies_inside_and_within_its_ranges(picture: tuple[int, int], seed: int) -> None:
    height, width = picture
    spatial_transform = cc.crops.RandomResizedCrop((8, 8), scale=(0.25, 0.75), ratio=(0.5, 2))
    crop = spatial_transform.choose(height, width, np.random.default_rng(seed))
    assert 0 <= crop.top <= crop.top + crop.height <= height
    assert 0 <= crop.left <= crop.left + crop.width <= width
    assert min(crop.height, crop.width) >= 1
    if 0.5 <= width / height <= 2 and min(picture) > 20:
        # Rounding moves each side by half a pixel at most
        slack = 1 / min(crop.height, crop.width)
        assert 0.25 * (1 - 2 * slack) <= crop.height * crop.width / (height * width) <= 0.75 * (1 + 2 * slack)
        assert 0.5 * (1 - 2 * slack) <= crop.width / crop.height <= 2 * (1 + 2 * slack)


def test_random_crop_goes_everywhere() -> None:
    random = np.random.default_rng(1)
    crops = [RANDOM_CROP.choose(256, 456, random) for _ in range(2000)]
    shares = np.array([crop.height * crop.width / (256 * 456) for crop in crops])
    assert shares.min() < 0.21
    assert shares.max() > 0.75
    small = cc.crops.RandomResizedCrop((8, 8), scale=(0.05, 0.1), ratio=(0.7, 2))  # of which every one fits
    ratios = [crop.width / crop.height for crop in (small.choose(400, 400, random) for _ in range(2000))]
    assert np.median(ratios) == pytest.approx(math.sqrt(0.7 * 2), rel=0.05)
    covered = np.zeros((256, 456), int)
    for crop in crops:
        covered[crop.top : crop.top + crop.height, crop.left : crop.left + crop.width] += 1
    assert covered[4:-4, 4:-4].min() > 0  # a corner takes luck


def test_a_picture_that_no_random_crop_fits_is_cut_in_the_middle() -> None:
    spatial_transform = cc.crops.RandomResizedCrop((8, 8), scale=(1, 1), ratio=(0.9, 1.1))
    assert spatial_transform.choose(100, 500, np.random.default_rng()) == CropBox(0, 195, 100, 110, (8, 8))
    assert spatial_transform.choose(500, 90, np.random.default_rng()) == CropBox(200, 0, 100, 90, (8, 8))


@given(picture=SHAPES, size=SHAPES)
def test_padding_shows_all_of_the_picture(picture: tuple[int, int], size: tuple[int, int]) -> None:
    crop = Pad(size).choose(*picture, np.random.default_rng())
    for start, length, side in zip((crop.top, crop.left), (crop.height, crop.width), picture, strict=True):
        assert start <= 0
        assert start + length >= side
        assert abs((length - side) + 2 * start) <= 1  # in the middle
    assert crop.height == picture[0] or crop.width == picture[1]
    if min(picture) > 100:
        assert crop.width / crop.height == pytest.approx(size[1] / size[0], rel=0.01)


@given(picture=SHAPES, short_side=st.integers(1, 300))
def test_resize_to_a_short_side_keeps_the_aspect(picture: tuple[int, int], short_side: int) -> None:
    size = cc.crops.Resize(short_side=short_side).choose(*picture, np.random.default_rng()).size
    assert min(size) == short_side
    assert max(size) == pytest.approx(short_side * max(picture) / min(picture), abs=0.5)
    assert (size[0] > size[1]) == (picture[0] > picture[1]) or size[0] == size[1]


def test_streams_are_apart() -> None:
    """Neither stream, index nor epoch shares numbers with another."""
    requests = [ClipRequest(seed=1, epoch=epoch, index=index) for epoch in (0, 1) for index in (0, 1)]
    numbers = [request.generator(stream).integers(2**62, size=50) for request in requests for stream in RandomStream]
    assert len(np.unique(numbers)) == 4 * len(RandomStream) * 50


@dataclasses.dataclass(frozen=True)
class UpperLeft:
    """A crop that a user might write."""

    def choose(self, height: int, width: int, random: np.random.Generator) -> CropBox:
        return CropBox(0, 0, height // 2, width // 2, (height // 2, width // 2))


def test_a_custom_crop(cache: cc.Cache) -> None:
    video = video_of(cache, "bikes.mp4")
    frames = sample_of(cache, "bikes.mp4", crop=UpperLeft())["frames"]
    numbers = cc.RegularClipSampler(num_frames=4, stride=3).frame_numbers(video, ClipRequest(num_clips=8))
    stored = cache.read(video, indices=numbers)[:, : video.height // 2, : video.width // 2]
    np.testing.assert_array_equal(frames.permute(0, 2, 3, 1).numpy(), stored)


@pytest.mark.parametrize("crop", [(-300, 0, 100, 100), (0, 456, 8, 8), (900, -900, 50, 60), (-9, -9, 9, 500)])
def test_a_crop_outside_the_picture_is_empty(cache: cc.Cache, crop: tuple[int, int, int, int]) -> None:
    @dataclasses.dataclass(frozen=True)
    class Beside:
        def choose(self, height: int, width: int, random: np.random.Generator) -> CropBox:
            return CropBox(*crop, size=(40, 40), flip=True)

    sample = sample_of(cache, "bunny.mp4", crop=Beside(), features=["frames", "flow", "motion"])
    assert sample["frames"].shape == (4, 3, 40, 40)
    for name in ("frames", "flows", "motion", "motion_covered"):
        assert not sample[name].any()


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: CropBox(0, 0, 0, 5, (4, 4)), r"^crop: got CropBox\(.*\), expected at least one pixel"),
        (lambda: Pad((0, 4)), r"^size: got \(0, 4\), expected"),
        (lambda: cc.crops.RandomResizedCrop((4, 4), scale=(0.5, 1.5)), r"^scale: got \(0.5, 1.5\), expected .* at"),
        (lambda: cc.crops.RandomResizedCrop((4, 4), ratio=(2, 1)), r"^ratio: got \(2, 1\), expected \(least, most"),
        (lambda: cc.crops.Resize(), "^size and short_side: got None and None, expected one of them$"),
        (lambda: cc.crops.Resize((4, 4), 4), r"^size and short_side: got \(4, 4\) and 4, expected one of them$"),
        (lambda: cc.crops.Resize(short_side=0), "^short_side: got 0, expected an integer of at least 1$"),
        (lambda: cc.crops.HorizontalFlip(1.5), r"^p: got 1.5, expected a number in \[0, 1\]$"),
    ],
)
def test_wrong_windows(make: Callable[[], object], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        make()


def test_window_and_size_contradict(cache: cc.Cache) -> None:
    for size in (None, (112, 112)):
        with pytest.raises(UsageError, match="^size: got .* and a crop, expected one of them"):
            cc.ChordVideoDataset(cache, size=size, crop=cc.crops.CenterCrop((64, 64)))
    with pytest.raises(UsageError, match=r"^crop: got \(64, 64\), expected a crop such as RandomResizedCrop"):
        cc.ChordVideoDataset(cache, crop=(64, 64))


@pytest.mark.parametrize("p", [0, 0.2, 1])
def test_share_of_flips(p: float) -> None:
    random = np.random.default_rng(1)
    flips = [cc.crops.HorizontalFlip(p, cc.crops.CenterCrop((4, 4))).choose(9, 9, random).flip for _ in range(4000)]
    assert np.mean(flips) == pytest.approx(p, abs=0.02 if 0 < p < 1 else 0)


def test_twice_mirrored_is_not_mirrored() -> None:
    spatial_transform = cc.crops.HorizontalFlip(1, cc.crops.HorizontalFlip(1, cc.crops.CenterCrop((4, 4))))
    assert not spatial_transform.choose(9, 9, np.random.default_rng()).flip


def test_flow_of_another_size_is_in_pixels_of_the_picture() -> None:
    flow = np.ones((100, 50, 2), np.float32)
    scaled = cut_flow(flow, CropBox(0, 0, 100, 200, size=(50, 100)), picture=(100, 200))
    np.testing.assert_allclose(scaled, np.broadcast_to([2, 0.5], (50, 100, 2)))
