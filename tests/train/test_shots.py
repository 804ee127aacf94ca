"""Shots: the cuts of cached, partly cached and uncached videos, clips within shots, and an index of shots."""

from __future__ import annotations

import itertools
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.inline import HERE
from helpers.scenes import planes_of, scene

import chordcache as cc
from chordcache.config.config import config_from_json
from chordcache.errors import UsageError
from chordcache.train.samplers.clip_request import ClipRequest
from chordcache.train.samplers.clip_samplers import KeyframeSampler
from chordcache.train.samplers.content_samplers import AdaptiveSampler, AudioPeakSampler
from chordcache.train.samplers.even_clips import EvenClipSampler

pytestmark = pytest.mark.usefixtures("inline")

Cli = Callable[..., subprocess.CompletedProcess[str]]

CUTS = [20, 26, 60]
"""The second shot has 6 frames"""
NUM_FRAMES = 100
SAMPLERS = {"num_frames": 8, "stride": 2}


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path]) -> Path:
    """A folder with a list of a video of four shots and one of a single shot, and caches of it, whole and at 10 fps."""
    folder = tmp_path_factory.mktemp("shots")
    lengths = np.diff([0, *CUTS, NUM_FRAMES]).tolist()
    four = [picture for seed, length in enumerate(lengths) for picture in scene(seed, length, speed=1 + seed)]
    for name, pictures in (("four", four), ("one", scene(9, 30))):
        planes = planes_of(pictures)
        make_video(
            folder / f"videos/{name}.mp4", num_frames=len(pictures), size=(96, 64), gop=25, audio=True, planes=planes
        )
    (folder / "list.csv").write_text("path,label,camera\nvideos/four.mp4,run,left\nvideos/one.mp4,walk,right\n")
    for name, fps in (("whole", None), ("slow", 10)):
        config = config_from_json({"frames": {"codec": "raw", "short_side": None, "fps": fps}})
        cc.build(folder / "list.csv", folder / name, config=config, jobs=HERE)
    return folder


def cuts_of(videos: Any) -> list[list[int]]:
    opened = videos.open(())
    return [opened.read(place, lambda reader, video: video.cuts).tolist() for place in range(len(opened))]


def four_of(cache: Path) -> cc.Video:
    with cc.open_cache(cache) as videos:
        return next(video for video in videos if video.path.endswith("four.mp4"))


# Video.cuts


def test_cuts_of_a_cached_video_and_of_a_video_that_is_read_from_its_source(work: Path) -> None:
    assert four_of(work / "whole").cuts.dtype == np.int64
    expected = [CUTS, []]
    assert cuts_of(cc.videos.cached(work / "whole", ["videos/four.mp4", "videos/one.mp4"])) == expected
    assert cuts_of(cc.videos.indexed(work / "list.csv", on_miss="source")) == expected


def test_a_cut_whose_frame_is_left_out_is_the_first_cached_frame_after_it(work: Path) -> None:
    video = four_of(work / "slow")
    assert not set(CUTS) <= set(video.source_frames.tolist())
    after = [next(place for place, frame in enumerate(video.source_frames) if frame >= cut) for cut in CUTS]
    assert video.cuts.tolist() == after


def test_cuts_of_segments_of_a_file_that_is_cached_whole(work: Path) -> None:
    spans = [(10, 70), (20, 26), (25, 61), (26, 100), (0, 20)]
    rows = "".join(f"videos/four.mp4,{start},{end}\n" for start, end in spans)
    (work / "spans.csv").write_text("path,start_frame,end_frame\n" + rows)
    expected = [[cut - start for cut in CUTS if start < cut < end] for start, end in spans]
    assert cuts_of(cc.videos.indexed(work / "spans.csv", work / "whole")) == expected
    assert expected[0] == [10, 16, 50]


# Clips within shots


CLASSES = (AdaptiveSampler, AudioPeakSampler, KeyframeSampler, cc.RandomClipSampler, cc.RegularClipSampler)


def test_all_even_clips_are_tried() -> None:
    of_package = {
        sampler for sampler in EvenClipSampler.__subclasses__() if sampler.__module__.startswith("chordcache.")
    }
    assert of_package == {*CLASSES}


def clips_of(sampler: Any, video: cc.Video) -> list[np.ndarray]:
    requests = [ClipRequest(clip=number, num_clips=60, index=number) for number in range(60)]
    return [sampler.frame_numbers(video, request) for request in requests]


def num_with_cut(clips: list[np.ndarray], video: cc.Video) -> int:
    return sum(any(min(clip) < cut <= max(clip) for cut in video.cuts) for clip in clips)


@pytest.mark.parametrize("cache", ["whole", "slow"])
@pytest.mark.parametrize(
    "options", [{"stride": 2}, {"stride": 5, "pad": "loop"}, {"fps": 12}, {"fps": 5, "pad": "loop"}]
)
@pytest.mark.parametrize("sampler", CLASSES)
def test_no_clip_contains_a_cut(work: Path, sampler: Any, options: dict[str, Any], cache: str) -> None:
    video = four_of(work / cache)
    clips = clips_of(sampler(num_frames=8, within_shots=True, **options), video)
    assert num_with_cut(clips_of(sampler(num_frames=8, **options), video), video) > 0
    assert num_with_cut(clips, video) == 0
    assert all(len(clip) == 8 and clip.min() >= 0 and clip.max() < video.num_frames for clip in clips)
    places = {int(np.searchsorted(video.cuts, clip[0], side="right")) for clip in clips}
    assert len(places) > 1  # of several shots


def test_a_clip_that_fits_into_its_shot_stays(work: Path) -> None:
    video = four_of(work / "whole")
    free, within = (cc.RandomClipSampler(**SAMPLERS, within_shots=flag) for flag in (False, True))
    stayed = 0
    for one, other in zip(clips_of(free, video), clips_of(within, video), strict=True):
        if not num_with_cut([one], video):
            assert np.array_equal(one, other)
            stayed += 1
        elif len({int(np.searchsorted(video.cuts, frame, side="right")) for frame in (one[4], other[0])}) > 1:
            pytest.fail(f"{other} is not in the shot of the middle frame of {one}")
    assert 0 < stayed < 60


def test_a_shot_that_is_shorter_than_a_clip_is_padded(work: Path) -> None:
    video = four_of(work / "whole")
    for pad, expected in (
        ("repeat", [20, 22, 24, 25, 25, 25, 25, 25]),
        ("loop", [20, 22, 24, 20, 22, 24, 20, 22]),
    ):
        clips = clips_of(cc.RandomClipSampler(**SAMPLERS, pad=pad, within_shots=True), video)
        short = [clip.tolist() for clip in clips if 20 <= clip[0] < 26]
        assert short
        assert all(clip == expected for clip in short)
    with pytest.raises(UsageError, match=r"four.*got 6 frames, expected 15"):
        clips_of(cc.RandomClipSampler(**SAMPLERS, pad="error", within_shots=True), video)


# An index of shots


def segments_of(index: Path) -> list[tuple[str, str | None, Any, int | None, int | None]]:
    return [
        (
            record.path.rpartition("/")[2],
            record.label,
            record.extra.get("camera"),
            *((record.segment.start_frame, record.segment.end_frame) if record.segment else (None, None)),
        )
        for record in cc.read_index(index)
    ]


def test_an_index_of_shots_covers_all_frames_once(work: Path, tmp_path: Path, run_cli: Cli) -> None:
    done = run_cli("index", work / "whole", "--shots", "-o", tmp_path / "shots.json", "--json")
    assert {"num_videos": 2, "num_shots": 5}.items() <= json.loads(done.stdout).items()
    assert segments_of(tmp_path / "shots.json") == [
        ("four.mp4", "run", "left", 0, 20),
        ("four.mp4", "run", "left", 20, 26),
        ("four.mp4", "run", "left", 26, 60),
        ("four.mp4", "run", "left", 60, None),
        ("one.mp4", "walk", "right", None, None),
    ]
    done = run_cli("index", work / "whole", "--shots", "-o", tmp_path / "again.json")
    assert done.stdout == f"wrote 5 shots of 2 videos to {tmp_path / 'again.json'}\n"


def test_a_cache_of_the_shots_has_their_frames(work: Path, tmp_path: Path, run_cli: Cli) -> None:
    assert run_cli("index", work / "whole", "--shots", "-o", tmp_path / "shots.json").returncode == 0
    config = config_from_json({"frames": {"codec": "raw", "short_side": None}})
    assert cc.build(tmp_path / "shots.json", tmp_path / "shots", config=config, jobs=HERE).num_done == 5
    with cc.open_cache(work / "whole") as whole, cc.open_cache(tmp_path / "shots") as shots:
        frames = {video.path: whole.read(video) for video in whole}
        covered = []
        for video in shots:
            assert video.cuts.tolist() == []
            assert np.array_equal(shots.read(video), frames[video.path][video.source_frames])
            covered += [(video.path, number) for number in video.source_frames.tolist()]
        assert sorted(covered) == [(video.path, number) for video in whole for number in range(video.num_frames)]
    indexed = cc.videos.indexed(tmp_path / "shots.json", work / "whole")  # the same of files that are cached whole
    dataset = cc.ChordVideoDataset(indexed, clip_sampler=cc.RandomClipSampler(**SAMPLERS), size=None)
    assert [dataset.describe(i)[0].num_frames for i in range(5)] == [20, 6, 34, 40, 30]


@pytest.mark.parametrize(
    ("columns", "span"), [("start_frame,end_frame", "10,70"), ("start_seconds,end_seconds", "0.4,2.8")]
)
def test_shots_of_a_cached_segment_are_frames_of_its_file(
    work: Path, tmp_path: Path, run_cli: Cli, columns: str, span: str
) -> None:
    (work / "part.csv").write_text(f"path,label,{columns}\nvideos/four.mp4,run,{span}\n")
    cc.build(work / "part.csv", tmp_path / "part", jobs=HERE)
    assert run_cli("index", tmp_path / "part", "--shots", "-o", tmp_path / "shots.json").returncode == 0
    bounds = [10, *CUTS, 70]
    assert segments_of(tmp_path / "shots.json") == [
        ("four.mp4", "run", None, start, end) for start, end in itertools.pairwise(bounds)
    ]
