"""Time transforms change which frames a clip has, as a pure function of the request, and never leave the video."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.clip_samplers import Numbers
from hypothesis import given
from hypothesis import strategies as st

import chordcache as cc
from chordcache.errors import UsageError
from chordcache.train.samplers.clip_request import ClipRequest
from chordcache.train.samplers.time_transforms import FrameDrop, TemporalCrop, TimeWarp

REQUESTS = [ClipRequest(seed=2, epoch=epoch, index=index) for epoch in range(3) for index in range(200)]


def video(num_frames: int) -> SimpleNamespace:
    return SimpleNamespace(num_frames=num_frames, key="short-0123456789abcdef")


CLIPS = cc.RandomClipSampler(num_frames=8, stride=3)
TRANSFORMS = {
    "warp": TimeWarp(CLIPS),
    "drop": FrameDrop(CLIPS, p=0.4),
    "crop": TemporalCrop(CLIPS, 5),
    "all": FrameDrop(TimeWarp(TemporalCrop(CLIPS, 5), speed=(0.8, 1.3)), p=0.3),
}
every_transform = pytest.mark.parametrize("name", TRANSFORMS)


@every_transform
@pytest.mark.parametrize("num_frames", [1, 3, 22, 100, 5000])
def test_frames_stay_in_the_video_and_in_order(name: str, num_frames: int) -> None:
    for request in REQUESTS:
        numbers = TRANSFORMS[name].frame_numbers(video(num_frames), request)
        assert numbers.dtype == np.int64
        assert len(numbers) == (5 if name in ("crop", "all") else 8)
        assert numbers[0] >= 0
        assert numbers[-1] < num_frames
        assert (np.diff(numbers) >= 0).all()


def test_transforms_draw_apart_from_the_sampler() -> None:
    """The frames that FrameDrop shows are those of the clip that the sampler gives alone, its first among them."""
    for request in REQUESTS:
        clip = CLIPS.frame_numbers(video(5000), request)
        kept = TRANSFORMS["drop"].frame_numbers(video(5000), request)
        assert kept[0] == clip[0]
        assert set(kept) <= set(clip)
        cropped = TRANSFORMS["crop"].frame_numbers(video(5000), request).tolist()
        assert any(cropped == clip[start : start + 5].tolist() for start in range(4))


@given(
    speed=st.floats(0.1, 10),
    num_frames=st.integers(1, 400),
    clip=st.lists(st.integers(0, 399), min_size=1, max_size=12),
)
def test_warp_plays_at_its_speed(speed: float, num_frames: int, clip: list[int]) -> None:
    clip = [number % num_frames for number in clip]
    warped = TimeWarp(Numbers(tuple(clip)), speed=(speed, speed)).frame_numbers(video(num_frames), ClipRequest())
    length, room = max(clip) - min(clip), num_frames - 1
    fits = min(speed, room / length) if length else speed
    assert warped.max() - warped.min() == pytest.approx(fits * length, abs=1)
    for i in range(len(clip)):
        for j in range(len(clip)):
            assert warped[i] - warped[j] == pytest.approx(fits * (clip[i] - clip[j]), abs=1.001)
    middle = (max(clip) + min(clip)) / 2
    if fits * length / 2 <= min(middle, room - middle):
        assert (warped.max() + warped.min()) / 2 == pytest.approx(middle, abs=1)
    assert 0 <= warped.min() <= warped.max() <= room


def test_speeds_are_even_on_a_logarithmic_scale() -> None:
    warp = TimeWarp(Numbers((0, 1000)), speed=(0.25, 4))
    lengths = [np.ptp(warp.frame_numbers(video(100_000), request)) for request in REQUESTS]
    logarithms = np.log2(np.array(lengths) / 1000)
    assert min(logarithms) < -1.9
    assert max(logarithms) > 1.9
    assert np.histogram(logarithms, 4, (-2, 2))[0] == pytest.approx(len(REQUESTS) / 4, rel=0.25)


def test_a_lost_frame_is_the_one_before() -> None:
    """Each of the frames 10, 20 .. shows itself or what the one before it shows."""
    clip = tuple(range(10, 90, 10))
    drop = FrameDrop(Numbers(clip), p=0.3)
    num_lost = 0
    for request in REQUESTS:
        shown = drop.frame_numbers(video(100), request)
        assert shown[0] == 10
        for place in range(1, len(clip)):
            assert shown[place] in (clip[place], shown[place - 1])
            num_lost += shown[place] != clip[place]
    assert num_lost / (len(REQUESTS) * 7) == pytest.approx(0.3, rel=0.05)


@pytest.mark.parametrize(("p", "expected"), [(0, [9, 4, 6]), (1, [9, 9, 9])])
def test_all_frames_or_none_are_lost(p: float, expected: list[int]) -> None:
    drop = FrameDrop(Numbers((9, 4, 6)), p=p)
    assert drop.frame_numbers(video(10), REQUESTS[0]).tolist() == expected


def test_crop_begins_anywhere() -> None:
    starts = [TemporalCrop(Numbers(tuple(range(10))), 4).frame_numbers(video(10), request)[0] for request in REQUESTS]
    counts = np.bincount(starts)
    assert len(counts) == 7
    assert counts == pytest.approx(len(REQUESTS) / 7, rel=0.4)


def test_a_crop_larger_than_the_picture() -> None:
    match = "^num_frames: got 4, expected at most 3, as the sampler gives for video 'short-0123456789abcdef'$"
    with pytest.raises(UsageError, match=match):
        TemporalCrop(Numbers((3, 1, 4)), 4).frame_numbers(video(10), REQUESTS[0])


@pytest.fixture(scope="module")
def cache(five_videos: Path) -> cc.Cache:
    return cc.open_cache(five_videos)


@every_transform
def test_pictures_are_those_of_the_numbers(cache: cc.Cache, name: str) -> None:
    dataset = cc.ChordVideoDataset(
        cache, clip_sampler=TRANSFORMS[name], features=["frames", "flow"], size=None, clips_per_video=4, seed=6
    )
    for index in range(4):
        request = ClipRequest(seed=6, index=index, clip=index, num_clips=4)
        numbers = TRANSFORMS[name].frame_numbers(cache[0], request)
        sample = dataset[0, index]
        expected = cache.read(0, indices=numbers)
        np.testing.assert_array_equal(sample["frames"].permute(0, 2, 3, 1).numpy(), expected)
        np.testing.assert_array_equal(sample["pts_seconds"].numpy(), cache[0].pts_seconds[numbers])
        still = np.diff(numbers) == 0
        assert (sample["flows"].abs().amax((1, 2, 3)) == 0).tolist() == still.tolist()


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: TimeWarp(CLIPS, (2, 1)), r"^speed: got \(2, 1\), expected \(least, most\), above 0$"),
        (lambda: TimeWarp(CLIPS, ("a", "b")), r"^speed: got \('a', 'b'\), expected"),
        (lambda: TimeWarp(CLIPS, (1, math.inf)), "^speed: got"),
        (lambda: FrameDrop(CLIPS, p=-0.1), r"^p: got -0.1, expected a number in \[0, 1\]$"),
        (lambda: TemporalCrop(CLIPS, 0), "^num_frames: got 0, expected an integer of at least 1$"),
    ],
)
def test_wrong_arguments(make: Callable[[], object], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        make()
