"""Samplers choose frames by their arguments alone. Transforms move no pixel further than they must."""

from __future__ import annotations

import math
import pickle
import subprocess
import sys
import warnings
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chordcache.errors import UsageError
from chordcache.features.frames import cut_frames
from chordcache.media.cropping import CropBox
from chordcache.read.crops import CenterCrop
from chordcache.train.instantiate import instantiate
from chordcache.train.samplers.clip_request import ClipRequest
from chordcache.train.samplers.clip_samplers import (
    KeyframeSampler,
    RandomClipSampler,
    RegularClipSampler,
    SamplerSchedule,
    UniformFrameSampler,
)
from chordcache.train.samplers.content_samplers import AdaptiveSampler, AudioPeakSampler

pytestmark = pytest.mark.usefixtures("inline")


def video(num_frames: int) -> Any:
    """All that these samplers look at."""
    return SimpleNamespace(num_frames=num_frames)


SAMPLERS = [RegularClipSampler, RandomClipSampler]


@pytest.mark.parametrize("sampler", SAMPLERS)
@given(
    num_frames_of_video=st.integers(1, 200),
    num_frames=st.integers(1, 20),
    stride=st.integers(1, 12),
    index=st.integers(0, 2**63),
    clip=st.integers(0, 4),
)
def test_frames_are_in_range_and_a_stride_apart(
    sampler: Any, num_frames_of_video: int, num_frames: int, stride: int, index: int, clip: int
) -> None:
    request = ClipRequest(seed=1, epoch=2, index=index, clip=clip, num_clips=5)
    numbers = sampler(num_frames=num_frames, stride=stride).frame_numbers(video(num_frames_of_video), request)
    assert numbers.shape == (num_frames,)
    assert numbers.dtype == np.int64
    assert numbers.min() >= 0
    if num_frames_of_video > (num_frames - 1) * stride:
        assert (np.diff(numbers) == stride).all()
        assert numbers.max() < num_frames_of_video
    else:  # too short: from the first frame on, the last one repeated
        assert numbers.tolist() == [min(i * stride, num_frames_of_video - 1) for i in range(num_frames)]


def starts(seed: int, epoch: int, indices: range, num_frames_of_video: int = 1001) -> list[int]:
    sampler = RandomClipSampler(num_frames=1, stride=1)
    requests = (ClipRequest(seed=seed, epoch=epoch, index=index) for index in indices)
    return [int(sampler.frame_numbers(video(num_frames_of_video), request)[0]) for request in requests]


def test_random_clips_are_pure() -> None:
    forwards = starts(3, 5, range(50))
    np.random.seed(0)
    np.random.random(10)
    assert starts(3, 5, range(49, -1, -1)) == forwards[::-1]
    state = np.random.get_state()[2]
    starts(3, 5, range(5))
    assert np.random.get_state()[2] == state  # the global generator is left alone


def test_random_clips_are_the_same_in_every_process_and_release() -> None:
    # These values are part of what a seed promises; a change is a change of everybody's training runs
    assert starts(0, 0, range(6)) == [34, 723, 953, 998, 121, 729]


def test_random_starts_are_uniform_over_all_that_leave_room() -> None:
    sampler = RandomClipSampler(num_frames=4, stride=3)  # spans 10 of 14: starts 0 to 4
    first_frames = [sampler.frame_numbers(video(14), ClipRequest(index=index))[0] for index in range(5000)]
    counts = np.bincount(first_frames)
    assert len(counts) == 5
    assert abs(counts - 1000).max() < 130  # 4.6 standard deviations


def test_requests_share_no_stream() -> None:
    words = {
        ClipRequest(seed=seed, epoch=epoch, index=index).generator().bit_generator.random_raw()
        for seed in (0, 1, 2**32, 2**64 - 1)
        for epoch in (0, 1, 2**32)
        for index in (0, 1, 2**32, 2**63)
    }
    assert len(words) == 4 * 3 * 4


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"num_frames": 0}, r"^num_frames: got 0, expected an integer of at least 1$"),
        ({"num_frames": 16.0}, r"^num_frames: got 16\.0,"),
        ({"stride": 0}, r"^stride: got 0,"),
    ],
)
def test_wrong_arguments(sampler: Any, arguments: dict[str, Any], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        sampler(**arguments)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_samplers_are_values(sampler: Any) -> None:
    one = sampler(num_frames=8, stride=2)
    assert pickle.loads(pickle.dumps(one)) == one == sampler(num_frames=np.int64(8), stride=2)
    with pytest.raises(AttributeError, match="cannot assign"):
        one.stride = 3


def crop_of(frames: np.ndarray, size: tuple[int, int]) -> CropBox:
    return CenterCrop(size).choose(*frames.shape[1:3], np.random.default_rng())


def gradient(height: int, width: int, num_frames: int = 2) -> np.ndarray:
    """Red grows to the right, green downwards, blue with the frame's number."""
    frames = np.empty((num_frames, height, width, 3), np.uint8)
    frames[..., 0] = np.linspace(0, 255, width).round()
    frames[..., 1] = np.linspace(0, 255, height).round()[:, None]
    frames[..., 2] = np.arange(num_frames)[:, None, None] * 40
    return frames


@given(height=st.integers(1, 600), width=st.integers(1, 600), size=st.tuples(st.integers(1, 600), st.integers(1, 600)))
def test_window_is_centered_as_large_as_can_be_and_in_proportion(
    height: int, width: int, size: tuple[int, int]
) -> None:
    crop = CenterCrop(size).choose(height, width, np.random.default_rng())
    top, left, crop_height, crop_width = crop.top, crop.left, crop.height, crop.width
    assert 0 <= height - crop_height - 2 * top <= 1
    assert 0 <= width - crop_width - 2 * left <= 1
    assert (crop_height, crop_width)[height > crop_height] > 0
    assert crop_height == height or crop_width == width
    # Within half a pixel of the exact proportion, if that is half a pixel at all
    if size[0] * width >= size[1] * height:  # the picture is the wider one
        assert abs(crop_width - max(1, height * size[1] / size[0])) <= 0.5
    else:
        assert abs(crop_height - max(1, width * size[0] / size[1])) <= 0.5


def test_exact_crop_moves_no_pixel() -> None:
    frames = gradient(256, 456)
    cropped = cut_frames(frames, crop_of(frames, (256, 256)))
    assert (cropped == frames[:, :, 100:356]).all()
    assert cropped.flags.c_contiguous
    assert np.shares_memory(cut_frames(frames, crop_of(frames, (256, 456))), frames)
    assert cut_frames(frames[:0], crop_of(frames, (224, 224))).shape == (0, 224, 224, 3)


FORKED = """
import os, signal
import cv2, numpy as np
from chordcache.features.frames import cut_frames
from chordcache.media.cropping import CropBox

frames = np.full((2, 2160, 3840, 3), 7, np.uint8)
cv2.setNumThreads(4)
crop = CropBox(0, 840, 2160, 2160, size=(1080, 1080))
for _ in range(3):
    cut_frames(frames, crop)  # large enough for OpenCV to start its threads
assert cv2.getNumThreads() == 4  # a caller's setting is left alone
child = os.fork()
if not child:
    signal.alarm(30)
    assert (cut_frames(frames, crop, one_thread=True) == 7).all()
    os._exit(cv2.getNumThreads())
status = os.waitpid(child, 0)[1]
assert os.waitstatus_to_exitcode(status) == 1, status  # threads
"""


def test_resize_in_a_forked_worker_whose_parent_used_threads() -> None:
    # cv2.setNumThreads(1) hangs or crashes here: it joins threads that did not come along through the fork
    result = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr


SHORT = {
    "repeat": [0, 3, 6, 6, 6, 6],
    "loop": [0, 3, 6, 2, 5, 1],  # 9, 12 and 15 in a video of 7
}


@pytest.mark.parametrize("kind", [RegularClipSampler, RandomClipSampler, AdaptiveSampler])
@pytest.mark.parametrize("pad", SHORT)
@pytest.mark.filterwarnings("ignore:AdaptiveSampler")
def test_pad(kind: Any, pad: str) -> None:
    short = SimpleNamespace(num_frames=7, content=None, key="a")
    numbers = kind(num_frames=6, stride=3, pad=pad).frame_numbers(short, ClipRequest())
    assert numbers.tolist() == SHORT[pad]


def test_pad_error() -> None:
    sampler = RandomClipSampler(num_frames=6, stride=3, pad="error")
    assert len(sampler.frame_numbers(video(16), ClipRequest())) == 6
    with pytest.raises(
        UsageError, match="^video 'a': got 15 frames, expected 16 for a clip of 6 that are 3 apart. Choose pad="
    ):
        sampler.frame_numbers(SimpleNamespace(num_frames=15, key="a"), ClipRequest())
    with pytest.raises(UsageError, match="^pad: got 'zeros', expected one of repeat, loop, error$"):
        RegularClipSampler(pad="zeros")


@given(num_frames_of_video=st.integers(1, 5000), num_frames=st.integers(1, 64))
def test_uniform_frames(num_frames_of_video: int, num_frames: int) -> None:
    def frames(position: str) -> list[int]:
        sampler = UniformFrameSampler(num_frames, position=position)
        return sampler.frame_numbers(video(num_frames_of_video), ClipRequest()).tolist()

    # By fractions: numpy.linspace may round a whole number down to the one before
    step = Fraction(num_frames_of_video - 1, max(1, num_frames - 1))
    assert frames("ends") == [math.floor(step * i) for i in range(num_frames)]
    part = Fraction(num_frames_of_video, num_frames)
    assert frames("middle") == [math.floor(part * (i + Fraction(1, 2))) for i in range(num_frames)]
    for i, number in enumerate(frames("random")):
        start, stop = math.floor(part * i), math.floor(part * (i + 1))
        assert start <= number < max(stop, start + 1)


def test_wrong_uniform_frames() -> None:
    with pytest.raises(UsageError, match="^position: got 'start', expected one of ends, middle, random$"):
        UniformFrameSampler(position="start")
    with pytest.raises(UsageError, match="^num_frames: got 0"):
        UniformFrameSampler(0)


def sounding(peaks: list[float], num_frames: int = 100, fps: int = 10) -> Any:
    """A video with peaks at these seconds; its clock does not start at 0."""
    return SimpleNamespace(
        num_frames=num_frames,
        content=SimpleNamespace(audio_peaks_seconds=tuple(peaks)),
        pts_seconds=7.5 + np.arange(num_frames) / fps,
        duration_seconds=num_frames / fps,
        key="a",
    )


@pytest.mark.parametrize("step", [{"stride": 2}, {"fps": 5}], ids=str)
def test_audio_peaks_are_in_the_middle(step: dict[str, int]) -> None:
    source = sounding([0.12, 3.04, 6.2, 9.96, 12.5])  # the last one is behind the last frame
    clips = [AudioPeakSampler(5, **step).frame_numbers(source, ClipRequest(index=i)).tolist() for i in range(400)]
    starts = [clip[0] for clip in clips]
    assert all(clip == list(range(clip[0], clip[0] + 10, 2)) for clip in clips)
    assert set(starts) == {0, 26, 58, 91}  # around 30 and 62, and moved inside at the ends
    assert min(starts.count(start) for start in set(starts)) > 70  # 100, with a standard deviation of 9
    again = [AudioPeakSampler(5, **step).frame_numbers(source, ClipRequest(index=i)).tolist() for i in range(400)]
    assert again == clips


def test_audio_peaks_with_a_clock_that_is_set_back() -> None:
    source = sounding([3.04, 6.2])
    source.pts_seconds[50:] -= 1  # the second peak is now at frame 72
    clips = [AudioPeakSampler(5, 2).frame_numbers(source, ClipRequest(index=i)).tolist() for i in range(20)]
    assert {clip[2] for clip in clips} == {30, 72}


@pytest.mark.parametrize("source", [sounding([]), sounding([10.0, 11.0])], ids=["none", "behind the end"])
def test_no_audio_peaks_are_random(source: Any) -> None:
    for index in range(20):
        request = ClipRequest(index=index)
        numbers = AudioPeakSampler(3, 2).frame_numbers(source, request)
        assert numbers.tolist() == RandomClipSampler(3, 2).frame_numbers(source, request).tolist()


def test_unknown_audio_peaks_are_random() -> None:
    source = sounding([])
    source.content = None
    requests = [ClipRequest(index=i) for i in range(20)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.resetwarnings()
        numbers = [AudioPeakSampler(3, fps=8).frame_numbers(source, request).tolist() for request in requests]
    assert numbers == [RandomClipSampler(3, fps=8).frame_numbers(source, request).tolist() for request in requests]
    (warning,) = caught  # once, not for each sample
    assert "AudioPeakSampler: the sound of a video is not known, its clips are drawn evenly" in str(warning.message)


def moving(per_second: list[float], fps: int = 10) -> Any:
    """A video of so much motion in each second; its clock does not start at 0."""
    num_frames = len(per_second) * fps
    content = SimpleNamespace(motion_per_second=tuple(per_second))
    return SimpleNamespace(
        num_frames=num_frames, content=content, pts_seconds=7.5 + np.arange(num_frames) / fps, key="a"
    )


def seconds_drawn(sampler: AdaptiveSampler, source: Any, num_draws: int = 3000) -> np.ndarray:
    """Share of the clips that start in each second."""
    starts = [sampler.frame_numbers(source, ClipRequest(index=i))[0] for i in range(num_draws)]
    return np.bincount(np.array(starts) // 10, minlength=len(source.content.motion_per_second)) / num_draws


@pytest.mark.parametrize("temperature", [0.01, 1.0, 2.0, 1000.0])
def test_adaptive_draws_in_proportion_to_motion(temperature: float) -> None:
    drawn = seconds_drawn(AdaptiveSampler(num_frames=1, temperature=temperature), moving([1, 4, 0, 2]))
    weights = np.array([1, 4, 0, 2]) ** (1 / temperature)
    assert drawn == pytest.approx(weights / weights.sum(), abs=0.04)  # a standard deviation is at most 0.009
    assert drawn[2] == 0


def test_adaptive_looks_at_whole_clips() -> None:
    source = moving([0] * 5 + [9] + [0] * 4)  # frames 50 to 59 move
    clips = [AdaptiveSampler(5, 4).frame_numbers(source, ClipRequest(index=i)) for i in range(500)]
    assert all(clip[0] <= 59 and clip[-1] >= 50 for clip in clips)
    assert len({int(clip[0]) for clip in clips}) > 15  # of the 26 that reach into it
    requests = [ClipRequest(seed=1, epoch=2, index=i) for i in range(20)]
    once, again = ([AdaptiveSampler().frame_numbers(source, r).tolist() for r in requests] for _ in range(2))
    assert once == again


def test_adaptive_with_a_clock_that_is_set_back() -> None:
    source = moving([0, 0, 3])
    source.pts_seconds[20:] -= 100
    clips = [AdaptiveSampler(2).frame_numbers(source, ClipRequest(index=i)) for i in range(20)]
    assert all(0 <= clip[0] < clip[-1] < 30 for clip in clips)


def test_adaptive_lengths_follow_the_motion() -> None:
    """A clip with more than the mean motion is shorter, one with less is longer."""
    source = moving([1.0] * 20 + [8.0] * 3 + [1.0] * 20)
    sampler = AdaptiveSampler(8, 1, lengths=(2, 12), temperature=1000.0)
    clips = [sampler.frame_numbers(source, ClipRequest(index=i)) for i in range(400)]
    mean = np.mean(source.content.motion_per_second)
    for clip in clips:
        motion = np.array(source.content.motion_per_second)[clip[0] // 10]
        is_inside = (clip[0] + 8) // 10 == clip[0] // 10  # all of it in one second
        assert 2 <= len(clip) <= 12
        assert not is_inside or len(clip) == pytest.approx(np.clip(8 * mean / motion, 2, 12), abs=1)
        assert clip.tolist() == list(range(clip[0], clip[0] + len(clip))) or clip[-1] == 429
    assert {2, 12} <= {len(clip) for clip in clips}


@pytest.mark.parametrize("pad", ["repeat", "loop", "error"])
@pytest.mark.parametrize("rate", [{"stride": 1}, {"fps": 10}], ids=str)
def test_adaptive_lengths_near_the_end_of_a_video(pad: str, rate: dict[str, int]) -> None:
    """A clip that is longer than ``num_frames`` is moved inside, since the video has all of its frames."""
    source = moving([8.0] * 3 + [1.0] * 10)
    source.duration_seconds = 13.0
    sampler = AdaptiveSampler(16, pad=pad, lengths=(4, 64), temperature=1000.0, **rate)
    clips = [sampler.frame_numbers(source, ClipRequest(index=i)) for i in range(200)]
    assert all((np.diff(clip) == 1).all() for clip in clips)
    assert {len(clip) for clip in clips if clip[-1] == 129} >= {38}


@pytest.mark.parametrize("lengths", [(0, 4), (4, 2), (4,), 3, (1.5, 2)], ids=str)
def test_adaptive_lengths_that_are_wrong(lengths: Any) -> None:
    with pytest.raises(UsageError, match="lengths: got"):
        AdaptiveSampler(lengths=lengths)


@pytest.mark.parametrize("per_second", [[], [0.0, 0.0, 0.0]])
def test_adaptive_without_motion_is_random(per_second: list[float]) -> None:
    source = SimpleNamespace(num_frames=30, content=SimpleNamespace(motion_per_second=tuple(per_second)))
    source.pts_seconds = np.arange(30) / 10
    requests = [ClipRequest(index=i) for i in range(20)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.resetwarnings()
        numbers = [AdaptiveSampler(3, 2).frame_numbers(source, request).tolist() for request in requests]
    assert numbers == [RandomClipSampler(3, 2).frame_numbers(source, request).tolist() for request in requests]
    messages = [str(warning.message) for warning in caught]
    assert len(messages) == (0 if per_second else 1)  # once, not for each sample
    assert all("its clips are drawn evenly; scan with --level content" in message for message in messages)


@pytest.mark.parametrize("temperature", [0, -1.0, float("inf"), float("nan"), "1"])
def test_wrong_temperatures(temperature: Any) -> None:
    with pytest.raises(UsageError, match="^temperature: got .*, expected a number above 0$"):
        AdaptiveSampler(temperature=temperature)


def test_samplers_by_name() -> None:
    assert instantiate("clip_sampler", {"name": "regular"}) == RegularClipSampler()
    assert instantiate("clip_sampler", {"name": "uniform", "position": "middle"}) == UniformFrameSampler(
        position="middle"
    )
    assert instantiate("clip_sampler", {"name": "audio_peak", "fps": 8}) == AudioPeakSampler(fps=8)
    assert instantiate("clip_sampler", {"name": "keyframe", "num_frames": 2}) == KeyframeSampler(2)
    stages = {0: {"name": "random"}, 2: {"name": "adaptive", "temperature": 0.5}}
    schedule = instantiate("clip_sampler", {"name": "schedule", "stages": stages})
    assert schedule == SamplerSchedule({0: RandomClipSampler(), 2: AdaptiveSampler(temperature=0.5)})


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ({}, "^clip_sampler: got the name None, expected one of adaptive, audio_peak, keyframe, latent_clips, random"),
        ({"name": "schedule", "stages": {}}, "^clip_sampler: stages: got epochs none, expected one that is"),
        ({"name": "schedule", "stages": [1]}, r"^clip_sampler.stages: got \[1\], expected a mapping of"),
        ({"name": "schedule", "stages": {0: {"name": "random", "fps": 0}}}, "^clip_sampler.stages.0: fps: got 0, expe"),
        ({"name": "schedule", "stages": {1: {"name": "random"}}}, "^clip_sampler: stages: got epochs 1, expected one"),
    ],
)
def test_wrong_configs(config: dict[str, Any], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        instantiate("clip_sampler", config, "clip_sampler")


def test_schedule_follows_the_epoch_of_the_request() -> None:
    early, late = RegularClipSampler(3, 2), RegularClipSampler(2, 3)
    schedule = pickle.loads(pickle.dumps(SamplerSchedule({0: early, 4: late})))
    for epoch, expected in {0: early, 3: early, 4: late, 50: late}.items():
        request = ClipRequest(epoch=epoch)
        assert (schedule.frame_numbers(video(40), request) == expected.frame_numbers(video(40), request)).all()
