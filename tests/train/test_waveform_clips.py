"""Clips of the feature "waveform", against the samples that were written, in every tier and beyond the sound."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.ffmpeg import ffmpeg, ffprobe_column
from helpers.inline import HERE
from helpers.sound import noise, write_sound

import chordcache as cc
from chordcache.config.config import config_from_json
from chordcache.errors import NotFoundError, UsageError
from chordcache.train.samplers.clip_samplers import RegularClipSampler

RATE = 48_000
NUM_FRAMES = 60
"""2.4 s at 25 fps"""

STARTS = {"whole": 0.0, "late": 0.7, "early": 0.0}
"""Time of the first sample of each video [seconds]"""


OWN: dict[str, Any] = {"sample_rate": None, "channels": "all"}
"""The track as it is: nothing is resampled or mixed"""


def samples_of(name: str) -> np.ndarray:
    """Samples of each track [shape=(n, 2)]; that of "early" ends 1.3 s before the pictures."""
    num_samples = {"whole": 120_000, "late": 100_000, "early": 52_801}[name]
    return np.stack([noise(num_samples, 2 * len(name)), noise(num_samples, 2 * len(name) + 1)], axis=1)


def config_of(**params: Any) -> Any:
    features = {"flow": None, "motion": None, "mel": None, "waveform": params}
    return config_from_json({"frames": None, "features": features, "hdf5": {"features": ["waveform"]}})


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path]) -> Path:
    folder = tmp_path_factory.mktemp("waveform") / "videos"
    folder.mkdir()
    for name, start in STARTS.items():
        pieces = [(start, samples_of(name))]
        write_sound(folder / f"{name}.mkv", pieces, rate=RATE, layout="stereo", num_frames=NUM_FRAMES)
    make_video(folder / "silent.mp4", num_frames=12)
    return folder


def built(videos: Path, name: str, **params: Any) -> cc.Cache:
    index = cc.scan([videos], jobs=HERE)
    summary = cc.build(index, videos.parent / name, tiers=["npz", "hdf5"], config=config_of(**params), jobs=HERE)
    assert (summary.num_done, summary.num_failed) == (4, 0)
    return cc.open_cache(videos.parent / name)


@pytest.fixture(scope="module")
def stereo(videos: Path) -> cc.Cache:
    """The tracks as they are. Do not write into it."""
    return built(videos, "stereo", **OWN)


@pytest.fixture(scope="module")
def mono(videos: Path) -> cc.Cache:
    """int16 at 16 kHz, as a model takes it. Do not write into it."""
    return built(videos, "mono", dtype="int16")


def named(cache: cc.Cache, name: str) -> Any:
    (video,) = (video for video in cache if Path(video.path).stem == name)
    return video


def expected_of(name: str, begin: float, end: float) -> np.ndarray:
    """The samples of [begin, end) seconds, one by one, from what was written [shape=(2, t)]."""
    samples = samples_of(name)
    first = math.ceil((begin - STARTS[name]) * RATE - 1e-6)
    numbers = range(first, first + round((end - begin) * RATE))
    silence = np.zeros(2, np.float32)
    return np.array([samples[i] if 0 <= i < len(samples) else silence for i in numbers], np.float32).reshape(-1, 2).T


@pytest.mark.parametrize("name", STARTS)
@pytest.mark.parametrize("tier", ["npz", "hdf5"])
def test_clips_are_the_samples_of_their_seconds(stereo: cc.Cache, name: str, tier: str) -> None:
    video = named(stereo, name)
    spans = [(0, 1), (0, 9), (10, 26), (15, 20), (17, 18), (33, 52), (59, 60), (0, NUM_FRAMES), (7, 7)]
    for start, stop in spans:
        waveform = stereo.read(video, "waveform", start, stop, tier=tier)
        assert waveform.dtype == np.float32
        assert waveform.flags.c_contiguous
        np.testing.assert_array_equal(waveform, expected_of(name, *video.seconds_of(start, stop)))


@pytest.mark.parametrize(("fps", "rate", "num_samples"), [("30000/1001", 16_000, 4805), ("24000/1001", 44_100, 16_554)])
def test_equal_clips_have_equally_many_samples(
    tmp_path: Path, make_video: Callable[..., Path], fps: str, rate: int, num_samples: int
) -> None:
    """Nine frames: 4804.8 or 16554.04 samples."""
    from fractions import Fraction

    make_video(tmp_path / "videos" / "tone.mp4", num_frames=60, fps=Fraction(fps), audio=True)
    index = cc.scan([tmp_path / "videos"], jobs=HERE)
    cc.build(index, tmp_path / "cache", tiers=["npz"], config=config_of(sample_rate=rate), jobs=HERE)
    with cc.open_cache(tmp_path / "cache") as cache:
        assert {cache.read(0, "waveform", start, start + 9).shape for start in range(52)} == {(num_samples,)}
        video = cache[0]
        whole = cache.read(video, "waveform")
        for start in range(0, 52, 3):  # the first sample at or after the frame
            waveform = cache.read(video, "waveform", start, start + 9)
            seconds = video.pts_seconds[start] - video.pts_seconds[0]
            first = next(i for i in range(len(whole)) if i / rate >= seconds - 1e-9)
            np.testing.assert_array_equal(waveform[: len(whole) - first], whole[first : first + num_samples])


def test_memory_of_the_caller(stereo: cc.Cache, mono: cc.Cache) -> None:
    video = named(stereo, "late")
    out = np.full((2, 10 * 1920), 7, np.float32)
    assert stereo.read(video, "waveform", 15, 25, out=out) is out
    np.testing.assert_array_equal(out, stereo.read(video, "waveform", 15, 25))
    for wrong in (np.empty((2, 10), np.float32), np.empty((2, 10 * 1920), np.int16)):
        with pytest.raises(UsageError, match="^out for 'waveform': got .*, expected a contiguous float32 array"):
            stereo.read(video, "waveform", 15, 25, out=wrong)
    with pytest.raises(UsageError, match="indices: got them for 'waveform', which has times of its own"):
        mono.read(named(mono, "whole"), "waveform", indices=[3])


# Real videos, against ffmpeg and the times that ffprobe finds


def check_clips(source: Path, folder: Path) -> None:
    """Clips at the times of ffprobe, cut from the samples that ffmpeg decodes."""
    (folder / "videos").mkdir()
    shutil.copy(source, folder / "videos")
    index = cc.scan([folder / "videos"], jobs=HERE)
    cc.build(index, folder / "cache", tiers=["npz"], config=config_of(), jobs=HERE)
    options = ("-vn", "-ac", "1", "-ar", "16000", "-f", "f32le", "-")
    samples = np.frombuffer(ffmpeg("-i", source, *options), np.float32)
    start = float(ffprobe_column(source, "frame=pts_time", "-select_streams", "a:0")[0])
    times = sorted(map(float, ffprobe_column(source, "frame=pts_time")))
    padded = np.concatenate([np.zeros(160_000), samples, np.zeros(160_000)])
    with cc.open_cache(folder / "cache") as cache:
        video = cache[0]
        assert len(times) == video.num_frames > 20
        for first in range(0, len(times) - 9, 5):
            waveform = cache.read(video, "waveform", first, first + 8)
            assert waveform.any() or times[first] < start + 0.1
            begin = (times[first] - start) * 16_000 + 160_000
            ways = [padded[i : i + len(waveform)] for i in (math.ceil(begin - 0.1), math.ceil(begin + 0.1))]  # of 1 us
            assert len(waveform) == pytest.approx((times[first + 8] - times[first]) * 16_000, abs=1)
            assert min(np.abs(waveform - way).max() for way in ways) < 1e-6


def test_real_clips(clips: Path, tmp_path: Path) -> None:
    check_clips(clips / "animation" / "bigbuckbunny.mp4", tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        "odd/hls_text_offset/video-0000000069.ts",  # pictures at 140 s, sound 19 ms later
        "odd/negative_start/360p30_h264_48k_160_aac_ts-0000000028.ts",
        "odd/hls_ts_h265/0.ts",  # the sound begins 46 ms before the pictures
        "odd/mpegts/seg-4-v1-a1.ts",
        "real/human-action-recognition/fun_theory.mp4",  # pictures at 0.74 s, sound at 0.02 s
        "real/video-retalking/1.mp4",
        "real/learning-area/elf.webm",
    ],
)
def test_corpus_clips(name: str, corpus: Path, tmp_path: Path) -> None:
    check_clips(corpus / name, tmp_path)


CLIP = RegularClipSampler(num_frames=8, stride=1)


def test_zeros_in_place_of_sound(videos: Path, tmp_path: Path) -> None:
    index = cc.scan([videos], jobs=HERE)
    for name, params in (("known", {"dtype": "int16"}), ("rate", {"sample_rate": None}), ("all", {"channels": "all"})):
        features = {"flow": None, "motion": None, "mel": None, "waveform": params}
        config = config_from_json({"frames": {"codec": "raw", "short_side": 32}, "features": features})
        cc.build(index, tmp_path / name, tiers=["lmdb", "npz"], config=config, jobs=HERE)
        cache = cc.open_cache(tmp_path / name)
        settings: dict[str, Any] = {"missing": "zeros", "clip_sampler": CLIP, "videos": [named(cache, "silent").key]}
        if name == "known":
            dataset = cc.ChordVideoDataset(cache, features=["waveform"], **settings)
            sample = dataset[0]
            seconds = cache[dataset[0]["video"]].seconds_of(0, 8)
            assert sample["waveform"].shape == (round(16_000 * (seconds[1] - seconds[0])),)
            assert sample["waveform"].dtype == torch.int16
            assert not sample["waveform"].any()
            assert sample["present"].tolist() == [False]
        else:
            match = r"^missing: got 'zeros' for 'waveform' of video 'silent-.*', which is absent \(no audio track\)"
            with pytest.raises(NotFoundError, match=match):
                cc.ChordVideoDataset(cache, features=["waveform"], **settings)


@pytest.mark.parametrize(
    ("section", "match"),
    [
        ({"sample_rate": 999}, "features.waveform.sample_rate: got 999, expected a number from 1000 to 192000"),
        ({"sample_rate": 16e3}, "features.waveform.sample_rate: got 16000.0, expected a number from"),
        ({"dtype": "int8"}, "features.waveform.dtype: got 'int8', expected one of float32, int16"),
        ({"channels": "stereo"}, "features.waveform.channels: got 'stereo', expected one of mono, all"),
        ({"rate": 8000}, "features.waveform.rate: got an unknown key, expected one of sample_rate, dtype, channels"),
    ],
)
def test_wrong_settings(section: dict[str, Any], match: str) -> None:
    with pytest.raises(cc.UsageError, match=match):
        config_from_json({"features": {"waveform": section}})
