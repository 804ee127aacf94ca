"""The table of docs/sampling.md: samplers against torchcodec's own, and against the rules of mmaction2 1.2."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.inline import HERE
from torchcodec import samplers
from torchcodec.decoders import VideoDecoder

import chordcache as cc
from chordcache.read.video import Video
from chordcache.train.samplers.clip_request import ClipRequest
from chordcache.train.samplers.clip_samplers import (
    RandomClipSampler,
    RegularClipSampler,
    UniformFrameSampler,
)

FPS, LENGTHS = 25, (24, 31, 50)


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path]) -> dict[int, tuple[Path, Video]]:
    """Number of frames to a file and its cached video."""
    folder = tmp_path_factory.mktemp("videos")
    for length in LENGTHS:
        make_video(folder / f"{length}.mp4", num_frames=length, fps=FPS)
    cc.build(cc.scan([folder], jobs=HERE), folder / "cache", features=["frames"], jobs=HERE)
    with cc.open_cache(folder / "cache") as cache:
        return {video.num_frames: (folder / video.path, video) for video in cache}


def torchcodec_frames(path: Path, sampler: Callable[..., Any], **arguments: Any) -> np.ndarray:
    """Frame numbers of the clips of a sampler of torchcodec [shape=(num_clips, T)]."""
    clips = sampler(VideoDecoder(str(path)), **arguments)
    numbers: np.ndarray = np.rint(np.asarray(clips.pts_seconds) * FPS).astype(np.int64)
    return numbers


def mmaction2_test_starts(num_frames: int, clip_len: int, interval: int, num_clips: int) -> np.ndarray:
    """Starts of ``SampleFrames(clip_len, interval, num_clips, test_mode=True)``."""
    last = max(0, num_frames - ((clip_len - 1) * interval + 1))
    return np.round(np.arange(num_clips) * (last / (num_clips - 1))) if num_clips > 1 else np.array([last // 2])


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize(("num_frames", "stride"), [(4, 1), (5, 3), (1, 1)])
def test_clips_spread_by_number(videos: dict[int, Any], length: int, num_frames: int, stride: int) -> None:
    path, video = videos[length]
    for num_clips in (2, 3, 7):
        sampler = RegularClipSampler(num_frames, stride=stride)
        requests = [ClipRequest(clip=clip, num_clips=num_clips) for clip in range(num_clips)]
        clips = np.stack([sampler.frame_numbers(video, request) for request in requests])
        expected = torchcodec_frames(
            path,
            samplers.clips_at_regular_indices,
            num_clips=num_clips,
            num_frames_per_clip=num_frames,
            num_indices_between_frames=stride,
        )
        np.testing.assert_array_equal(clips, expected)
        starts = mmaction2_test_starts(length, num_frames, stride, num_clips)
        assert np.abs(clips[:, 0] - starts).max() <= 1  # mmaction2 rounds to the nearest, this one down
        assert clips[0, 0] == starts[0]
        assert clips[-1, 0] == starts[-1]


@pytest.mark.parametrize("length", LENGTHS)
def test_the_clip_in_the_middle(videos: dict[int, Any], length: int) -> None:
    video = videos[length][1]
    for num_frames, stride in ((4, 1), (5, 3), (2, 6)):
        (start, *_) = RegularClipSampler(num_frames, stride=stride).frame_numbers(video, ClipRequest())
        assert start == mmaction2_test_starts(length, num_frames, stride, 1)[0]


@pytest.mark.parametrize("length", LENGTHS)
def test_frames_from_the_first_to_the_last(videos: dict[int, Any], length: int) -> None:
    path, video = videos[length]
    for num_frames in (2, 5, 8):
        numbers = UniformFrameSampler(num_frames).frame_numbers(video, ClipRequest())
        expected = torchcodec_frames(path, samplers.clips_at_regular_indices, num_clips=num_frames)
        np.testing.assert_array_equal(numbers, expected[:, 0])
        assert np.abs(numbers - mmaction2_test_starts(length, 1, 1, num_frames)).max() <= 1


@pytest.mark.parametrize("length", LENGTHS)
def test_random_frames_of_parts(videos: dict[int, Any], length: int) -> None:
    """Each frame of a part is drawn, and no other: the rule of ``UniformSampleFrames``."""
    video, borders = videos[length][1], np.arange(6) * length // 5
    sampler = UniformFrameSampler(5, position="random")
    draws = np.stack([sampler.frame_numbers(video, ClipRequest(epoch=epoch)) for epoch in range(200)])
    for part, numbers in enumerate(draws.T):
        assert set(numbers.tolist()) == set(range(borders[part], borders[part + 1]))


def test_starts_of_random_clips(videos: dict[int, Any]) -> None:
    """All starts that leave room are drawn, as torchcodec does. mmaction2 leaves out the last ``stride - 1``."""
    path, video = videos[24]
    sampler = RandomClipSampler(4, stride=3)
    starts = {int(sampler.frame_numbers(video, ClipRequest(epoch=epoch))[0]) for epoch in range(500)}
    clips = torchcodec_frames(
        path, samplers.clips_at_random_indices, num_clips=500, num_frames_per_clip=4, num_indices_between_frames=3
    )
    assert starts == set(clips[:, 0].tolist()) == set(range(24 - 3 * 3))
