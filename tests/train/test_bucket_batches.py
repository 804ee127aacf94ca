"""Samples and batches of a cache with buckets: one shape in a batch, boxes in place, sources as the cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.clip_samplers import ShapedWholeVideos, WholeVideos
from helpers.inline import HERE

import chordcache as cc
from chordcache.config.config import Config
from chordcache.config.features import FlowConfig, MelConfig, MotionConfig, WaveformConfig
from chordcache.config.picture import Bucket, FramesConfig
from chordcache.train.samplers.budget_batches import BudgetBatchSampler
from chordcache.train.samplers.clip_request import ClipRequest

BUCKETS = (Bucket(48, 80, 9), Bucket(80, 48, 9), Bucket(64, 64, 9), Bucket(48, 80, 10), Bucket(50, 80, 13))

NUM_FRAMES = [9, 9, 9, 10, 12, 13, 15, 10, 20, 9, 11, 14]
SIZES = [(160, 96), (96, 160), (128, 128), (320, 192), (160, 100), (320, 200)]
"""(width, height) of videos 0, 6 ..., of 1, 7 ..."""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path]) -> cc.Cache:
    folder = tmp_path_factory.mktemp("buckets")
    rows = []
    for number, num_frames in enumerate(NUM_FRAMES):
        make_video(folder / f"{number:02}.mp4", num_frames=num_frames, size=SIZES[number % 6], audio=True)
        rows.append(f"{number:02}.mp4,{'word ' * number}\n")
    (folder / "index.csv").write_text("path,caption\n" + "".join(rows))
    features = {"flow": FlowConfig(method="dis"), "motion": MotionConfig(), "mel": MelConfig(),
                "waveform": WaveformConfig()}  # fmt: skip
    config = Config(frames=FramesConfig(buckets=BUCKETS), features=features)
    summary = cc.build(folder / "index.csv", folder / "cache", tiers=("lmdb", "npz"), config=config, jobs=HERE)
    assert summary.num_done == len(NUM_FRAMES)
    opened = cc.open_cache(folder / "cache")
    assert {video.bucket for video in opened} == set(BUCKETS)
    return opened


def dataset_of(cache: Any, **options: Any) -> cc.ChordVideoDataset:
    return cc.ChordVideoDataset(cache, **{"clip_sampler": WholeVideos(), "size": None, "clips_per_video": 5, **options})


def ranks(dataset: cc.ChordVideoDataset, world_size: int, **budget: Any) -> list[BudgetBatchSampler]:
    return [
        BudgetBatchSampler(dataset, cc.ChordSampler(dataset, seed=3, rank=rank, world_size=world_size), **budget)
        for rank in range(world_size)
    ]


@pytest.mark.parametrize(
    "budget", [{"max_frames": 40}, {"max_pixels": 48 * 80 * 40}, {"max_tokens": 30, "tokenizer": str.split}]
)
@pytest.mark.parametrize("world_size", [1, 3])
def test_a_batch_has_one_bucket_on_every_rank(cache: cc.Cache, budget: dict[str, Any], world_size: int) -> None:
    dataset = dataset_of(cache)
    seen: Counter[int] = Counter()
    sizes = []
    for sampler in ranks(dataset, world_size, **budget):
        for batch in sampler:
            described = [dataset.describe(sample) for sample in batch]
            assert len({video.bucket for video, _ in described}) == 1
            assert len({shape for _, shape in described}) == 1
            seen.update(index for _, index in batch)
            sizes.append(len(batch))
    assert set(seen) == set(range(len(dataset)))
    assert max(sizes) > 1
    if world_size == 1:
        assert set(seen.values()) == {1}


@pytest.mark.parametrize("make", ["clip loader", "data loader"])
def test_nothing_is_padded(cache: cc.Cache, make: str) -> None:
    dataset = dataset_of(cache, features=("frames", "flow"))
    (sampler,) = ranks(dataset, 1, max_frames=40)
    if make == "clip loader":
        loader: Any = cc.ClipLoader(dataset, None, sampler=sampler, num_threads=2)
    else:
        loader = cc.make_loader(dataset, None, 0, sampler=sampler)
    num_samples = 0
    for batch in loader:
        frames = batch["frames"]
        videos = [cache[key] for key in batch["video"]]
        assert {video.bucket for video in videos} == {(*frames.shape[-2:], frames.shape[1])}
        for video, clip, flow in zip(videos, frames, batch["flows"], strict=True):
            assert np.array_equal(clip.permute(0, 2, 3, 1).numpy(), cache.read(video, "frames"))
            assert flow.shape[0] == video.num_frames - 1
        num_samples += len(videos)
    assert num_samples == len(dataset)


def test_clips_of_other_lengths_do_not_mix(cache: cc.Cache) -> None:
    class RandomLength:
        def frame_numbers(self, video: cc.Video, request: ClipRequest) -> np.ndarray:
            return np.arange(4 + request.index % 3)

    dataset = dataset_of(cache, clip_sampler=RandomLength())
    (sampler,) = ranks(dataset, 1, max_frames=40)
    for batch in sampler:
        assert len({dataset.describe(sample)[1] for sample in batch}) == 1


def test_a_cache_without_buckets_beside_it(cache: cc.Cache, tmp_path: Path) -> None:
    index = Path(cache.path).parent / "index.csv"
    cc.build(index, tmp_path / "plain", jobs=HERE, config=Config(frames=FramesConfig(short_side=48), features={}))
    both = cc.concat([dataset_of(cache), dataset_of(cc.open_cache(tmp_path / "plain"))])
    sampler = BudgetBatchSampler(both, max_frames=60)
    kinds = set()
    for batch in sampler:
        buckets = {both.describe(sample)[0].bucket for sample in batch}
        assert len(buckets) == 1
        kinds |= buckets
    assert kinds == {*BUCKETS, None}


@pytest.mark.parametrize("budget", [{"max_frames": 40}, {"max_pixels": 48 * 80 * 40}])
@pytest.mark.parametrize("options", [{}, {"size": (32, 32)}, {"videos": lambda video: video.num_frames > 9}])
def test_batches_of_columns_are_those_of_described_samples(
    cache: cc.Cache, budget: dict[str, int], options: dict[str, Any]
) -> None:
    by_columns, described = dataset_of(cache, clip_sampler=ShapedWholeVideos(), **options), dataset_of(cache, **options)
    assert by_columns.measure(0, np.arange(5)) is not None
    assert described.measure(0, np.arange(5)) is None
    (batches,), (expected,) = ranks(by_columns, 1, **budget), ranks(described, 1, **budget)
    assert list(batches) == list(expected)
