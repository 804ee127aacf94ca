"""Flow, sound, motion and pose of a clip belong to its frames: the same crop, the same moments, the same pixels."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from helpers.clip_samplers import Numbers
from helpers.ffmpeg import copy_start

import chordcache as cc
from chordcache.config.config import config_from_json
from chordcache.errors import NotFoundError, UsageError
from chordcache.features.flow import compose_flow
from chordcache.read.video import Video

pytestmark = pytest.mark.usefixtures("inline")

EVERYTHING = ("frames", "flow", "mel", "motion")
REAL = {"bunny.mp4": "animation/bigbuckbunny.mp4", "bikes.mp4": "street/bikes.mp4"}
"""Clip with sound, 1280x720; without, 640x272"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory, clips: Path, make_video: Callable[..., Path]) -> cc.Cache:
    """Two seconds of two real clips, and a short one without sound and motion vectors; flow at half the size."""
    folder = tmp_path_factory.mktemp("clip-features")
    for name, source in REAL.items():
        copy_start(clips / source, 2, folder / "videos" / name)
    make_video(folder / "videos" / "vp9.webm", num_frames=6, size=(320, 240), codec="libvpx-vp9")
    (folder / "pixels.py").write_text(PLUG_INS)
    config = {
        "features": {
            "flow": {"method": "dis", "preset": "medium", "short_side": 128},
            "mean": {"extractor": "pixels:Mean"},
            "beat": {"extractor": "pixels:Beat"},
            "sound": {"extractor": "pixels:Sound"},
        }
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{Path(cc.__file__).parent.parent}")
        index = cc.scan([folder / "videos"])
        summary = cc.build(index, folder / "cache", tiers=["lmdb", "npz"], config=config_from_json(config), jobs=1)
    assert (summary.num_done, summary.num_failed) == (3, 0)
    return cc.open_cache(folder / "cache")


PLUG_INS = '''
import numpy as np
from chordcache.features.base import Extractor


class Mean(Extractor):
    def add_frame(self, frame):
        return {self.name: frame.rgb().mean((0, 1))[None]}


class Beat(Extractor):
    """Row j is j, every 20 ms."""

    def finish(self):
        self.facts.update(start_seconds=0.0, row_seconds=0.02, silence=-1.0)
        return {self.name: np.arange(50.0)[:, None]}

    def num_rows(self, num_frames):
        return None


class Sound(Extractor):
    def begin(self, video):
        return None if video.has_sound else "too quiet"

    def add_frame(self, frame):
        return {self.name: np.ones((1, 2))}
'''


def video_of(cache: cc.Cache, path: str) -> Video:
    (video,) = (video for video in cache if video.path == path)
    return video


def sample_of(cache: cc.Cache, path: str, numbers: tuple[int, ...], **settings: Any) -> dict[str, Any]:
    key = video_of(cache, path).key
    return cc.ChordVideoDataset(cache, videos=[key], clip_sampler=Numbers(numbers), **settings)[0]


def bilinear(field: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """A field [shape=(H, W, 2)] at places, in float64; beyond the border as on it."""
    height, width = field.shape[:2]
    x, y = np.clip(x, 0, width - 1), np.clip(y, 0, height - 1)
    left, top = np.minimum(x.astype(int), width - 2), np.minimum(y.astype(int), height - 2)
    right_share, lower_share = (x - left)[..., None], (y - top)[..., None]
    upper = field[top, left] * (1 - right_share) + field[top, left + 1] * right_share
    lower = field[top + 1, left] * (1 - right_share) + field[top + 1, left + 1] * right_share
    return upper * (1 - lower_share) + lower * lower_share


def composed(steps: np.ndarray) -> np.ndarray:
    total = np.zeros(steps.shape[1:])
    y, x = np.mgrid[: total.shape[0], : total.shape[1]]
    for step in steps.astype(np.float64):
        total += bilinear(step, x + total[..., 0], y + total[..., 1])
    return total


def test_composition_of_real_flow(cache: cc.Cache) -> None:
    for path in REAL:
        steps = cache.read(video_of(cache, path), "flow", 3, 9)
        flow, expected = compose_flow(steps), composed(steps)
        assert flow.dtype == np.float32
        assert np.abs(expected).max() > 2
        # OpenCV rounds places to 1/32 pixel, which shows where fields are rough
        assert np.abs(flow - expected).mean() < 0.01
        assert np.quantile(np.abs(flow - expected), 0.999) < 0.2


TEXTURE = cv2.GaussianBlur(np.random.default_rng(3).integers(0, 256, (240, 480), np.uint8), (0, 0), 3)
TEXTURE = cv2.normalize(TEXTURE, None, 16, 235, cv2.NORM_MINMAX)


def sliding(number: int, width: int, height: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A texture that moves by (3, 1) pixels a frame."""
    left, top = 150 - 3 * number, 50 - number
    u, v = np.full((2, height // 2, width // 2), 128, np.uint8)
    return np.ascontiguousarray(TEXTURE[top : top + height, left : left + width]), u, v


@pytest.fixture(scope="module")
def slide(tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path]) -> Path:
    folder = tmp_path_factory.mktemp("slide")
    make_video(folder / "videos" / "slide.mp4", num_frames=24, size=(240, 160), planes=sliding, options={"crf": "8"})
    config = config_from_json({"features": {"flow": {}, "mel": None, "motion": None}})
    cc.build(cc.scan([folder / "videos"]), folder / "cache", tiers=["lmdb", "npz"], config=config, jobs=1)
    return folder / "cache"


@pytest.mark.parametrize(("feature", "steps"), [("flow", (1, 4, 7)), ("flow.adjacent", (1, 1, 1))])
@pytest.mark.parametrize(("size", "scale"), [(None, 1), ((80, 80), 0.5), ((160, 160), 1), ((240, 120), 1.5)])
def test_flow_of_a_picture_that_slides(
    slide: Path, feature: str, steps: tuple[int, ...], size: tuple[int, int] | None, scale: float
) -> None:
    sampler = Numbers((2, 3, 7, 14))
    dataset = cc.ChordVideoDataset(slide, features=[feature], clip_sampler=sampler, size=size)
    flows = dataset[0]["flows"]
    assert flows.shape == (3, 2, *(size or (160, 240)))
    assert flows.dtype == torch.float32
    assert flows.is_contiguous()
    medians = flows.flatten(2).median(2).values
    expected = scale * torch.tensor(steps)[:, None] * torch.tensor([3.0, 1.0])
    torch.testing.assert_close(medians, expected, rtol=0.01, atol=0.05)


def test_flow_as_it_is_stored(cache: cc.Cache) -> None:
    video = video_of(cache, "bunny.mp4")
    stored = cache.read(video, "flow").astype(np.float32).transpose(0, 3, 1, 2)
    numbers = (5, 9, 12, video.num_frames - 1)
    adjacent = sample_of(cache, "bunny.mp4", numbers, features="flow.adjacent", size=None)
    np.testing.assert_array_equal(adjacent["flows"].numpy(), stored[list(numbers[:-1])])
    neighbors = sample_of(cache, "bunny.mp4", (5, 6, 7), features=["flow"], size=None)
    np.testing.assert_array_equal(neighbors["flows"].numpy(), stored[5:7])


@pytest.mark.parametrize("feature", ["flow", "flow.adjacent"])
def test_a_frame_that_is_repeated_does_not_move(cache: cc.Cache, feature: str) -> None:
    """Six frames, of which the last stands in for ten more."""
    settings = {"features": ["frames", feature], "missing": "zeros", "size": (64, 64)}
    key = video_of(cache, "vp9.webm").key
    sampler = cc.RegularClipSampler(num_frames=5, stride=3)
    sample = cc.ChordVideoDataset(cache, videos=[key], clip_sampler=sampler, **settings)[0]
    moves = sample["flows"].abs().flatten(1).sum(1) > 0
    assert moves.tolist() == [True, True, False, False]  # 0, 3, 5, 5, 5
    assert torch.equal(sample["frames"][2], sample["frames"][4])
    flows = sample_of(cache, "bunny.mp4", (8, 8, 9), features=[feature])["flows"]
    assert [bool(flow.any()) for flow in flows] == [False, True]


def test_flow_of_one_frame(cache: cc.Cache) -> None:
    assert sample_of(cache, "bikes.mp4", (4,), features=["flow"])["flows"].shape == (0, 2, 224, 224)
    assert sample_of(cache, "bikes.mp4", (4,), features=["flow"], size=None)["flows"].shape == (0, 2, 128, 302)


def test_backwards(cache: cc.Cache) -> None:
    key = video_of(cache, "bunny.mp4").key
    match = (
        f"^features: got 'flow' for frame 5 of video '{key}' after frame 9, expected frames in ascending order. "
        "Take 'flow.adjacent' or another sampler.$"
    )
    last = video_of(cache, "bunny.mp4").num_frames - 1
    with pytest.raises(UsageError, match=match):
        sample_of(cache, "bunny.mp4", (9, 5), features=["flow"])
    flows = sample_of(cache, "bunny.mp4", (9, last, 5), features=["flow.adjacent"], size=None)["flows"]
    stored = cache.read(key, "flow", 9, 10).astype(np.float32)
    np.testing.assert_array_equal(flows[0].numpy(), stored[0].transpose(2, 0, 1))
    assert not flows[1].any()  # the last frame has no flow


def test_sound_of_a_clip(cache: cc.Cache) -> None:
    sample = sample_of(cache, "bunny.mp4", (10, 14, 18, 22), features=["mel"])
    expected = cache.read(video_of(cache, "bunny.mp4"), "mel", 10, 23)
    assert expected.shape == (80, 52)  # 13 frames of 40 ms
    assert sample["audio"].dtype == torch.float32
    assert sample["audio"].is_contiguous()
    np.testing.assert_array_equal(sample["audio"].numpy(), expected)
    backwards = sample_of(cache, "bunny.mp4", (22, 10, 18, 18), features=["mel"])
    assert torch.equal(backwards["audio"], sample["audio"])


@pytest.mark.parametrize(("fps", "num_rows"), [(24, 38), ("30000/1001", 30)])
def test_sound_of_equal_clips_is_of_equal_length(
    tmp_path: Path, make_video: Callable[..., Path], fps: int | str, num_rows: int
) -> None:
    make_video(tmp_path / "videos" / "tone.mp4", num_frames=60, fps=Fraction(fps), audio=True)
    config = config_from_json({"features": {"flow": None, "motion": None}})
    cc.build(cc.scan([tmp_path / "videos"]), tmp_path / "cache", tiers=["npz"], config=config, jobs=1)
    with cc.open_cache(tmp_path / "cache") as cache:
        # nine frames at 24 fps are 37.5 rows, give or take what the clock's rounding does
        lengths = {cache.read(0, "mel", start, start + 9).shape[1] for start in range(52)}
        assert lengths == {num_rows}
        video = cache[0]
        info = video.feature("mel")
        with np.load(cache.path / info.file.name) as npz:
            times = info.facts["start_seconds"] + 0.01 * np.arange(len(npz["mel"]))
            first = int(np.flatnonzero(times >= video.pts_seconds[7] - 1e-9)[0])
            np.testing.assert_array_equal(cache.read(0, "mel", 7, 16), npz["mel"][first : first + num_rows].T)


def test_motion_as_it_is_stored(cache: cc.Cache) -> None:
    video = video_of(cache, "bunny.mp4")
    sample = sample_of(cache, "bunny.mp4", (7, 3, 3), features=["motion"], size=None)
    assert sorted(sample) == ["caption", "label", "motion", "motion_covered", "pts_seconds", "sample_id", "video"]
    motion = cache.read(video, "motion", indices=[7, 3, 3]).astype(np.float32).transpose(0, 3, 1, 2)
    np.testing.assert_array_equal(sample["motion"].numpy(), motion)
    np.testing.assert_array_equal(sample["motion_covered"].numpy(), cache.read(video, "motion.covered")[[7, 3, 3]])
    assert sample["motion"].dtype == torch.float32
    assert sample["motion_covered"].dtype == torch.bool
    assert sample["motion"].is_contiguous()


def test_rows_of_a_plug_in(cache: cc.Cache) -> None:
    video = video_of(cache, "bunny.mp4")
    sample = sample_of(cache, "bunny.mp4", (9, 4, 4), features=["mean", "beat"])
    np.testing.assert_array_equal(sample["mean"].numpy(), cache.read(video, "mean")[[9, 4, 4]])
    # frames 4 to 9 of 40 ms each are the rows 8 to 19 of 20 ms
    assert sample["beat"].flatten().tolist() == list(range(8, 20))


def test_present_lists_the_features_of_a_video(cache: cc.Cache) -> None:
    features = ("mel", "frames", "motion", "flow", "mean")
    settings = {"features": features, "missing": "zeros", "size": (100, 90)}
    there = {path: sample_of(cache, path, (0, 2, 4), **settings) for path in (*REAL, "vp9.webm")}
    assert {path: sample["present"].tolist() for path, sample in there.items()} == {
        "bunny.mp4": [True, True, True, True, True],
        "bikes.mp4": [False, True, True, True, True],
        "vp9.webm": [False, True, False, True, True],
    }
    assert there["vp9.webm"]["present"].dtype == torch.bool
    bunny, vp9 = there["bunny.mp4"], there["vp9.webm"]
    for name in ("motion", "motion_covered", "audio"):
        assert vp9[name].shape == bunny[name].shape
        assert vp9[name].dtype == bunny[name].dtype
        assert bunny[name].any()
        assert torch.all(vp9[name] == (-100 if name == "audio" else 0))
    np.testing.assert_array_equal(bunny["audio"].numpy(), cache.read(video_of(cache, "bunny.mp4"), "mel", 0, 5))
    assert "present" not in sample_of(cache, "bunny.mp4", (0, 2), features=features)


@pytest.mark.parametrize(
    ("feature", "why"), [("motion", "codec 'vp9' exports no motion vectors"), ("sound", "too quiet")]
)
def test_zeros_of_unknown_shape(cache: cc.Cache, feature: str, why: str) -> None:
    match = (
        rf"^missing: got 'zeros' for '{feature}' of video 'vp9-.*', which is absent \({why}.*\), expected a feature of"
    )
    with pytest.raises(NotFoundError, match=match):
        sample_of(cache, "vp9.webm", (0, 1), features=[feature, "frames"], missing="zeros", size=None)


@pytest.mark.parametrize(("size", "shape"), [(None, (4, 16)), ((4, 4), (4, 4))])
def test_flow_that_is_missing(
    tmp_path: Path, make_video: Callable[..., Path], size: tuple[int, int] | None, shape: tuple[int, int]
) -> None:
    make_video(tmp_path / "videos" / "tiny.mp4", size=(16, 4), num_frames=4)
    config = config_from_json({"features": {"flow": {"method": "dis"}, "mel": None, "motion": None}})
    cc.build(cc.scan([tmp_path / "videos"]), tmp_path / "cache", tiers=["lmdb", "npz"], config=config, jobs=1)
    settings = {"features": ["flow", "frames"], "clip_sampler": Numbers((0, 1, 3)), "size": size, "missing": "zeros"}
    sample = cc.ChordVideoDataset(tmp_path / "cache", **settings)[0]
    assert sample["frames"].shape == (3, 3, *shape)
    assert sample["flows"].shape == (2, 2, *shape)
    assert sample["present"].tolist() == [False, True]
    with pytest.raises(NotFoundError, match="too small for DIS"):
        cc.ChordVideoDataset(tmp_path / "cache", **{**settings, "missing": "error"})[0]


def test_sound_of_several_channels_that_is_missing(tmp_path: Path, make_video: Callable[..., Path]) -> None:
    make_video(tmp_path / "videos" / "a.mp4", num_frames=10, audio=True)
    make_video(tmp_path / "videos" / "silent.mp4", num_frames=10)
    config = config_from_json({"features": {"flow": None, "motion": None, "mel": {"mono": False, "n_mels": 12}}})
    cc.build(cc.scan([tmp_path / "videos"]), tmp_path / "cache", tiers=["npz"], config=config, jobs=1)
    settings = {"features": ["mel"], "clip_sampler": Numbers((0, 4))}
    assert cc.ChordVideoDataset(tmp_path / "cache", missing="skip", **settings)[0]["audio"].shape == (1, 12, 20)
    with pytest.raises(NotFoundError, match=r"such as 'silent-.*' \(no audio track\). 1 have none of the features"):
        cc.ChordVideoDataset(tmp_path / "cache", missing="zeros", **settings)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"features": ["flow", "mel", "flow"]}, "^features: got .*, expected a sequence of distinct features$"),
        ({"features": [3]}, r"^features: got \[3\], expected"),
        ({"features": []}, "^features: got none, expected at least one$"),
        (
            {"features": ["label"]},
            "^features: got 'label', expected a feature. A sample has something else of this name.$",
        ),
        ({"features": ["flow", "flow.adjacent"]}, "^features: got 'flow' and 'flow.adjacent', expected one of them$"),
        ({"missing": None}, "^missing: got None, expected one of error, zeros, skip$"),
    ],
)
def test_wrong_arguments(cache: cc.Cache, arguments: dict[str, Any], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        cc.ChordVideoDataset(cache, **arguments)


@pytest.mark.parametrize("feature", ["frames", "flow", "mel", "motion", "mean", "beat"])
@pytest.mark.parametrize("numbers", [(0, 1000), (-1, 3)])
def test_frames_that_are_not_there(cache: cc.Cache, feature: str, numbers: tuple[int, ...]) -> None:
    num_frames = video_of(cache, "bunny.mp4").num_frames
    wrong = min(numbers) if min(numbers) < 0 else 1000
    match = rf"^clip_sampler: got {wrong}, expected a frame number in \[0, {num_frames}\) for video 'bunny-.*'\. Choose"
    with pytest.raises(IndexError, match=match):
        sample_of(cache, "bunny.mp4", numbers, features=[feature])


def test_transform_is_for_frames_alone(cache: cc.Cache) -> None:
    settings = {"features": EVERYTHING, "transform": lambda frames: -frames.float()}
    plain = sample_of(cache, "bunny.mp4", (3, 4, 5), features=EVERYTHING)
    turned = sample_of(cache, "bunny.mp4", (3, 4, 5), **settings)
    assert torch.equal(turned["frames"], -plain["frames"].float())
    for name in ("flows", "audio", "motion", "motion_covered"):
        assert torch.equal(turned[name], plain[name])
    assert "frames" not in sample_of(cache, "bunny.mp4", (3, 4), features=["flow"], transform=settings["transform"])


def test_opencv_is_imported_only_where_it_is_needed(cache: cc.Cache) -> None:
    code = """
import json, sys, chordcache as cc
path, key, *reads = map(json.loads, sys.argv[1:])
for features, size, stride in reads:
    print("cv2" in sys.modules)
    sampler = cc.RegularClipSampler(num_frames=3, stride=stride)
    cc.ChordVideoDataset(path, videos=[key], features=features, size=size, clip_sampler=sampler)[0]
assert not {"av", "librosa", "joblib", "click"} & set(sys.modules)
print("cv2" in sys.modules)
"""
    reads = [
        (["frames"], (256, 256), 2),  # a crop of the cached size is only cut out
        (["frames", "flow", "mel", "motion"], None, 1),
        (["flow"], None, 2),
    ]
    arguments = [str(cache.path), video_of(cache, "bunny.mp4").key, *reads]
    command = [sys.executable, "-c", code, *map(json.dumps, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["False", "False", "False", "True"]
