"""Motion vectors as flow, against the known motion of made videos, and against OpenCV's flow of the same frames."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

import chordcache as cc
from chordcache.config.config import config_from_json
from chordcache.engine.choice import Engine
from chordcache.features.read_side import MOTION_AS_FLOW
from chordcache.media.cropping import CropBox

SPEED = np.array([3.0, 1.0])
"""(dx, dy) of the object [pixels per frame]"""

NUM_FRAMES = 24
GOP = 10
ENCODERS: dict[str, tuple[str, dict[str, str]]] = {
    "x264": ("libx264", {"bf": "0", "refs": "1"}),
    "x264-refs": ("libx264", {"bf": "0", "refs": "4"}),
    "x264-b": ("libx264", {"bf": "3", "b-pyramid": "normal", "refs": "1"}),
    "mpeg4-b": ("mpeg4", {"bf": "2", "qscale": "3"}),
}


def _texture(seed: int) -> np.ndarray:
    noise = cv2.GaussianBlur(np.random.default_rng(seed).integers(0, 256, (160, 240), np.uint8), (0, 0), 2)
    return cv2.normalize(noise, None, 16, 235, cv2.NORM_MINMAX)


BACKGROUND, OBJECT = _texture(1), _texture(2)[:96, :112]


def place(number: int) -> tuple[int, int]:
    """Left and top of the object in a frame [pixels]."""
    left, top = 16 + SPEED.astype(int) * number
    return int(left), int(top)


def moving(number: int, width: int, height: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """An object that moves over a background that does not."""
    left, top = place(number)
    luma = BACKGROUND.copy()
    luma[top : top + OBJECT.shape[0], left : left + OBJECT.shape[1]] = OBJECT
    u, v = np.full((2, height // 2, width // 2), 128, np.uint8)
    return luma, u, v


def in_object(number: int) -> np.ndarray:
    """Return which cells lie in the object in a frame and in the next four [shape=(10, 15), dtype=bool]."""
    y, x = np.mgrid[:10, :15] * 16
    (left, top), (last_left, last_top) = place(number), place(min(number + 4, NUM_FRAMES - 1))
    height, width = OBJECT.shape
    inside = (x >= last_left) & (x + 16 <= left + width) & (y >= last_top) & (y + 16 <= top + height)
    assert inside.sum() >= 12
    return np.asarray(inside)


@dataclass(frozen=True)
class Numbers:
    """A sampler that gives the same numbers for each video."""

    numbers: tuple[int, ...]

    def frame_numbers(self, video: object, request: object) -> np.ndarray:
        return np.array(self.numbers)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path]) -> Path:
    folder = tmp_path_factory.mktemp("motion")
    for name, (codec, options) in ENCODERS.items():
        quality = {"crf": "12"} if codec == "libx264" else {}
        make_video(
            folder / f"videos/{name}.mkv", num_frames=NUM_FRAMES, size=(240, 160), planes=moving, codec=codec, gop=GOP,
            options={**quality, **options},
        )  # fmt: skip
    cc.scan([folder / "videos"], output=folder / "index.json", jobs=1)
    return folder / "index.json"


def build(index: Path, cache: Path, **frames: Any) -> cc.Cache:
    config = config_from_json({"frames": {"codec": "raw", "short_side": None, **frames}})
    cc.build(
        index, cache, tiers=["lmdb", "npz"], features=["frames", "motion"], config=config, jobs=Engine("inline")
    )  # fmt: skip
    return cc.open_cache(cache)


@pytest.fixture(scope="module")
def cache(index: Path, tmp_path_factory: pytest.TempPathFactory) -> cc.Cache:
    return build(index, tmp_path_factory.mktemp("cache") / "cache")


def video_of(cache: cc.Cache, name: str) -> Any:
    return next(video for video in cache if Path(video.path).stem == name)


def expected_flow(cache: cc.Cache, video: Any) -> np.ndarray:
    """Return the flow that the docs state, frame by frame."""
    types = cache.read(video, "motion.types").tolist()
    motion, covered = cache.read(video, "motion").astype(np.float32), cache.read(video, "motion.covered")
    flow = np.full((video.num_frames - 1, *motion.shape[1:]), np.nan, np.float32)
    last = 0
    for number in range(1, video.num_frames):
        if types[number] == b"P":
            flow[last:number] = np.where(covered[number][..., None], -motion[number] / (number - last), np.nan)
        if types[number] != b"B":
            last = number
    return flow


@pytest.mark.parametrize("name", ENCODERS)
def test_flow_is_the_known_motion_and_that_of_opencv(cache: cc.Cache, name: str) -> None:
    video = video_of(cache, name)
    types = cache.read(video, "motion.types").tolist()
    assert (b"B" in types) == name.endswith("-b")
    flow = cache.read(video, MOTION_AS_FLOW)
    assert flow.shape == (NUM_FRAMES - 1, 10, 15, 2)
    assert flow.dtype == np.float32
    np.testing.assert_array_equal(flow, expected_flow(cache, video))
    grays = [cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY) for frame in cache.read(video)]
    search = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_MEDIUM)
    num_rows = 0
    for row, field in enumerate(flow):
        cells = in_object(row) & np.isfinite(field[..., 0])
        if not cells.any():  # before an I frame, or of intra blocks
            continue
        num_rows += 1
        median = np.median(field[cells], axis=0)
        np.testing.assert_allclose(median, SPEED, atol=0.25)
        farneback = cv2.calcOpticalFlowFarneback(grays[row], grays[row + 1], None, 0.5, 3, 15, 3, 5, 1.2, 0)
        for dense in (farneback, search.calc(grays[row], grays[row + 1], None)):
            means = dense.reshape(10, 16, 15, 16, 2).mean((1, 3))
            np.testing.assert_allclose(median, np.median(means[cells], axis=0), atol=0.3)
    assert num_rows >= NUM_FRAMES // 2


@pytest.mark.parametrize("name", ENCODERS)
def test_rows_are_those_of_the_whole_video(cache: cc.Cache, name: str) -> None:
    video = video_of(cache, name)
    whole = cache.read(video, MOTION_AS_FLOW)
    for numbers in ([5], [22, 3, 3, 11], []):
        np.testing.assert_array_equal(cache.read(video, MOTION_AS_FLOW, indices=numbers), whole[numbers])
    out = np.empty((4, 10, 15, 2), np.float32)
    assert cache.read(video, MOTION_AS_FLOW, 7, 11, out=out) is out
    np.testing.assert_array_equal(out, whole[7:11])
    assert len(cache.read(video, MOTION_AS_FLOW, 20, NUM_FRAMES)) == NUM_FRAMES - 1 - 20
    with pytest.raises(IndexError, match=r"indices: .*23"):
        cache.read(video, MOTION_AS_FLOW, indices=[NUM_FRAMES - 1])
    with pytest.raises(cc.NotFoundError, match=r"'motion\.as_flw' .* Did you mean 'motion\.as_flow'"):
        cache.read(video, "motion.as_flw")


def test_frames_that_were_left_out(index: Path, tmp_path: Path) -> None:
    """The reference of a P frame is then between the frames that are cached."""
    with build(index, tmp_path / "cache", fps=12.5) as cache:
        video = video_of(cache, "x264")
        assert np.diff(video.source_frames).tolist() == [2] * 11
        assert cache.read(video, "motion.covered").any()
        assert np.isnan(cache.read(video, MOTION_AS_FLOW)).all()


def sample_of(cache: cc.Cache, name: str, numbers: tuple[int, ...], **settings: Any) -> dict[str, Any]:
    arguments: dict[str, Any] = {"features": [MOTION_AS_FLOW], "size": None, **settings}
    return cc.ChordVideoDataset(cache, videos=[video_of(cache, name).key], clip_sampler=Numbers(numbers), **arguments)[
        0
    ]


@pytest.mark.parametrize("name", ["x264", "x264-b"])
def test_clips_have_the_sum_from_each_frame_to_the_next(cache: cc.Cache, name: str) -> None:
    whole = cache.read(video_of(cache, name), MOTION_AS_FLOW)
    sample = sample_of(cache, name, (1, 2, 2, 5, 11))
    assert sample["motion"].shape == (4, 2, 10, 15)
    assert sample["motion_covered"].shape == (4, 10, 15)
    for row, (start, stop) in enumerate(((1, 2), (2, 2), (2, 5), (5, 11))):
        total = whole[start:stop].sum(0)
        is_known = np.isfinite(total[..., 0])
        np.testing.assert_array_equal(sample["motion_covered"][row], is_known)
        expected = np.where(is_known[..., None], total, 0).transpose(2, 0, 1)
        np.testing.assert_allclose(sample["motion"][row], expected, rtol=1e-6)
    assert not sample["motion_covered"][3].any()  # frame 10 is an I frame
    assert sample_of(cache, name, (4,))["motion"].shape == (0, 2, 10, 15)
    with pytest.raises(cc.UsageError, match=r"^features: got 'motion\.as_flow' for frame 3 of video .* after frame 5"):
        sample_of(cache, name, (5, 3))
    with pytest.raises(cc.UsageError, match=r"^features: got 'motion' and 'motion\.as_flow', expected one of them$"):
        sample_of(cache, name, (3, 5), features=["motion", MOTION_AS_FLOW])


def test_crops_scale_and_mirror_it(cache: cc.Cache) -> None:
    class Mirrored:
        def choose(self, height: int, width: int, random: np.random.Generator) -> CropBox:
            return CropBox(0, 0, height, width, size=(2 * height, width // 2), flip=True)

    sample = sample_of(cache, "x264", (2, 3), size="default", crop=Mirrored())
    assert sample["motion"].shape == (1, 2, 20, 8)
    moves = sample["motion"][0].flatten(1)[:, sample["motion"][0, 1].flatten() > 1]
    np.testing.assert_allclose(np.median(moves, axis=1), SPEED * [-0.5, 2], atol=0.4)


def test_absent_motion_is_zero(tmp_path: Path, make_video: Callable[..., Path]) -> None:
    make_video(tmp_path / "videos/a.webm", num_frames=4, size=(64, 48), codec="libvpx-vp9")
    cc.scan([tmp_path / "videos"], output=tmp_path / "index.json", jobs=1)
    with build(tmp_path / "index.json", tmp_path / "cache") as cache:
        sample = sample_of(cache, "a", (0, 2, 3), size=(32, 32), missing="zeros")
    assert sample["motion"].shape == (2, 2, 2, 2)
    assert not sample["motion"].any()
    assert not sample["motion_covered"].any()
