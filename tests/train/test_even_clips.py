"""Clips by time: the frames nearest to regular times, at any rate, with any clock."""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chordcache.errors import UsageError
from chordcache.train.samplers.clip_request import ClipRequest
from chordcache.train.samplers.clip_samplers import (
    KeyframeSampler,
    RandomClipSampler,
    RegularClipSampler,
)
from chordcache.train.samplers.content_samplers import AdaptiveSampler, AudioPeakSampler

FIRST_OF_TWO = ClipRequest(clip=0, num_clips=2)
"""A request for which RegularClipSampler starts at the first frame"""


def timed(pts_seconds: Any, frame_seconds: float) -> Any:
    """All that samplers by time look at."""
    pts = np.asarray(pts_seconds, float)
    return SimpleNamespace(
        key="a",
        num_frames=len(pts),
        pts_seconds=pts,
        duration_seconds=float(np.ptp(pts)) + frame_seconds,
    )


def constant(rate: float | Fraction, num_frames: int, *, digits: int = 15) -> Any:
    """A video of constant rate, whose clock does not start at 0 and is rounded to so many digits."""
    pts = [round(7.5 + float(number / Fraction(rate)), digits) for number in range(num_frames)]
    return timed(pts, float(1 / Fraction(rate)))


def nearest_by_fractions(target: Fraction, rate: Fraction) -> int:
    """Round a time to a frame number: a half downwards, and up to 1 ms more."""
    return -((Fraction(1, 2) - (target - Fraction(1, 1000)) * rate) // 1)


def nearest_of_all(times: np.ndarray, targets: np.ndarray) -> list[int]:
    """Compare each target with every frame. If it lies in the middle of two, to within 1 ms, take the earlier one."""
    numbers = []
    for target in targets:
        distances = [abs(time - target) for time in times]
        nearest = distances.index(min(distances))
        is_middle = nearest and abs((times[nearest - 1] + times[nearest]) / 2 - target) <= 0.001
        numbers.append(nearest - 1 if is_middle else nearest)
    return numbers


@pytest.mark.parametrize("digits", [15, 3], ids=["exact", "milliseconds"])
@pytest.mark.parametrize("rate", [24, 25, 30, 60, Fraction(24000, 1001), Fraction(30000, 1001)], ids=str)
@pytest.mark.parametrize("fps", [1, 8, 10, 12, 16, 20])
def test_constant_rates(rate: Fraction, fps: int, digits: int) -> None:
    source = constant(rate, 400, digits=digits)
    numbers = RegularClipSampler(num_frames=6, fps=fps).frame_numbers(source, FIRST_OF_TWO)
    assert numbers.tolist() == [nearest_by_fractions(Fraction(i, fps), rate) for i in range(6)]
    assert numbers.dtype == np.int64


def test_ties_of_videos_with_very_many_frames() -> None:
    source = constant(2000, 1000)  # a frame lasts half as long as the tolerance
    numbers = RegularClipSampler(num_frames=6, fps=500).frame_numbers(source, FIRST_OF_TWO)
    assert numbers.tolist() == [0, 4, 8, 12, 16, 20]


@given(
    steps=st.lists(st.floats(0.0101, 0.7), min_size=1, max_size=40),
    fps=st.floats(1.5, 90),
    num_frames=st.integers(1, 12),
    index=st.integers(0, 2**40),
)
def test_variable_rates(steps: list[float], fps: float, num_frames: int, index: int) -> None:
    times = np.concatenate([[0.0], np.cumsum(steps)])
    source, request = timed(times - 3, 0.05), ClipRequest(seed=1, epoch=2, index=index)
    numbers = RandomClipSampler(num_frames, fps=fps).frame_numbers(source, request)
    start = request.generator().random() * max(0, times[-1] - (num_frames - 1) / fps)
    targets = start + np.arange(num_frames) / fps
    # A target that is exactly 1 ms from the middle of two frames may be rounded to either side
    middles = (times[1:] + times[:-1]) / 2
    is_exact = np.abs(np.abs(targets[:, None] - middles) - 0.001).min(axis=1) > 1e-9
    assert numbers[is_exact].tolist() == nearest_of_all(times, targets[is_exact])
    assert (np.diff(numbers) >= 0).all()


@pytest.mark.parametrize("pad", ["repeat", "loop"])
@pytest.mark.parametrize("kind", [RegularClipSampler, RandomClipSampler, AdaptiveSampler])
@pytest.mark.filterwarnings("ignore:AdaptiveSampler")
def test_one_frame(kind: Any, pad: str) -> None:
    source = constant(25, 1)
    source.content = None
    numbers = kind(num_frames=16, fps=8, pad=pad).frame_numbers(source, ClipRequest(index=3))
    assert numbers.tolist() == [0] * 16


def test_one_frame_fills_its_duration() -> None:
    sampler = RegularClipSampler(num_frames=4, fps=8, pad="error")
    assert sampler.frame_numbers(constant(2, 1), ClipRequest()).tolist() == [0] * 4  # until 0.375 of 0.5 seconds
    with pytest.raises(UsageError, match=r"got 0\.04 seconds"):
        sampler.frame_numbers(constant(25, 1), ClipRequest())


@pytest.mark.parametrize("kind", [RegularClipSampler, RandomClipSampler])
@pytest.mark.parametrize("num_frames", [5, 60])
@pytest.mark.parametrize("pad", ["repeat", "loop"])
def test_clock_that_is_set_back_goes_on(kind: Any, num_frames: int, pad: str) -> None:
    straight, back = constant(10, 60), constant(10, 60)
    back.pts_seconds[20:] -= 100
    back.pts_seconds[40:] -= 3
    back.duration_seconds = float(np.ptp(back.pts_seconds)) + 0.1
    sampler = kind(num_frames=num_frames, fps=8, pad=pad)
    for index in range(5):
        numbers, expected = (sampler.frame_numbers(source, ClipRequest(index=index)) for source in (back, straight))
        assert numbers.tolist() == expected.tolist()


@pytest.mark.parametrize("pts", [[0.0, 0.0, 0.0, 0.1], [3.0, 2.0, 1.0, 0.0], [0.0, 5000.0, 5000.1, -9.0]])
def test_odd_clocks(pts: list[float]) -> None:
    for index in range(20):
        numbers = RandomClipSampler(num_frames=7, fps=8).frame_numbers(timed(pts, 0.1), ClipRequest(index=index))
        assert (np.diff(numbers) >= 0).all()
        assert 0 <= numbers[0] <= numbers[-1] < 4


def test_short_videos() -> None:
    source, arguments = constant(10, 10), {"num_frames": 12, "fps": 8}  # targets 0, 0.125 ... 1.375 in [0, 1)
    inside = [0, 1, 2, 4, 5, 6, 7, 9]  # 1.25, 2.5, 3.75 ...
    for index in range(5):
        numbers = RandomClipSampler(**arguments).frame_numbers(source, ClipRequest(index=index))
        assert numbers.tolist() == [*inside, 9, 9, 9, 9]
    numbers = RandomClipSampler(**arguments, pad="loop").frame_numbers(source, ClipRequest())
    assert numbers.tolist() == [*inside, *inside[:4]]
    with pytest.raises(
        UsageError,
        match=r"^video 'a': got 1 seconds, expected more than 1\.375 for a clip of 12 frames at 8 per second\. Choose",
    ):
        RandomClipSampler(**arguments, pad="error").frame_numbers(source, ClipRequest())


@pytest.mark.parametrize("end", [0.9995, 1, 1.0005])
def test_end_of_a_video_whose_times_are_rounded(end: float) -> None:
    source = timed(np.arange(10) / 10, end - 0.9)
    assert RegularClipSampler(8, fps=8, pad="error").frame_numbers(source, ClipRequest())[-1] == 9
    with pytest.raises(UsageError):
        RegularClipSampler(9, fps=8, pad="error").frame_numbers(source, ClipRequest())
    assert RegularClipSampler(9, fps=8, pad="loop").frame_numbers(source, ClipRequest()).tolist()[-2:] == [9, 0]


def drawn(seed: int, epoch: int) -> list[list[int]]:
    sampler, source = RandomClipSampler(num_frames=4, fps=8), constant(Fraction(24000, 1001), 500)
    requests = [ClipRequest(seed=seed, epoch=epoch, index=index) for index in range(20)]
    return [sampler.frame_numbers(source, request).tolist() for request in requests]


def test_random_clips_by_time_are_pure() -> None:
    before = [drawn(seed, epoch) for seed in range(2) for epoch in range(2)]
    np.random.seed(0)
    assert [drawn(seed, epoch) for seed in range(2) for epoch in range(2)] == before
    assert len({clip[0] for clips in before for clip in clips}) > 60
    assert before[0][:3] == PINNED  # part of what a seed promises


PINNED = [[6, 9, 12, 15], [168, 171, 174, 177], [425, 428, 431, 434]]


def test_random_starts_are_uniform_over_time() -> None:
    # A second of 60 frames, and ten frames that last a second each
    source = timed([*np.arange(60) / 60, *range(1, 11)], 1)
    requests = [ClipRequest(index=index) for index in range(2000)]
    starts = np.array([RandomClipSampler(num_frames=1, fps=8).frame_numbers(source, r)[0] for r in requests])
    shares = np.bincount(starts, minlength=70)[61:] / len(starts)
    assert shares == pytest.approx([*[0.1] * 8, 0.05], abs=0.03)  # half a second is nearest to the last frame


def test_keyframes_by_time() -> None:
    source = constant(30, 300)
    source.keyframes = np.array([50, 150, 250])
    clips = [KeyframeSampler(5, fps=10).frame_numbers(source, ClipRequest(index=i)) for i in range(40)]
    assert {tuple(clip) for clip in clips} == {tuple(range(key - 6, key + 7, 3)) for key in (50, 150, 250)}
    by_number = [KeyframeSampler(5, stride=3).frame_numbers(source, ClipRequest(index=i)) for i in range(40)]
    assert np.array_equal(clips, by_number)
    clips = [KeyframeSampler(5, fps=1).frame_numbers(source, ClipRequest(index=i)) for i in range(40)]
    assert {(clip[0], clip[-1]) for clip in clips} == {(0, 120), (90, 210), (179, 299)}  # moved inside


@pytest.mark.parametrize("step", [{"stride": 4}, {"fps": 5}], ids=str)
def test_adaptive_draws_the_last_start_too(step: dict[str, int]) -> None:
    source = constant(20, 200)
    source.content = SimpleNamespace(motion_per_second=(0,) * 9 + (9,))  # frames 180 to 199 move
    clips = [AdaptiveSampler(2, **step).frame_numbers(source, ClipRequest(index=i)) for i in range(500)]
    assert {clip[0] for clip in clips} == set(range(176, 196))
    short = constant(20, 3)
    short.content = SimpleNamespace(motion_per_second=(9,))
    assert AdaptiveSampler(2, **step).frame_numbers(short, ClipRequest()).tolist() == [0, 2]


BY_TIME = [
    RegularClipSampler,
    RandomClipSampler,
    KeyframeSampler,
    AdaptiveSampler,
    AudioPeakSampler,
]


@pytest.mark.parametrize("kind", BY_TIME)
def test_stride_and_fps_exclude_each_other(kind: Any) -> None:
    with pytest.raises(UsageError, match=r"^stride and fps: got 4 and 8, expected one of them\. Give stride to choose"):
        kind(stride=4, fps=8)
    assert (kind().stride, kind().fps) == (4, None)
    assert (kind(fps=8).stride, kind(fps=8).fps) == (None, 8)


@pytest.mark.parametrize("fps", [0, -8, float("inf"), "8"])
def test_wrong_fps(fps: Any) -> None:
    with pytest.raises(UsageError, match="^fps: got .*, expected a number above 0$"):
        RandomClipSampler(fps=fps)
