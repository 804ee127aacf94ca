"""Batches within a budget: every sample once, over ranks, kills and changes of the world's size."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.clip_samplers import ShapedWholeVideos, WholeVideos
from helpers.inline import HERE
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import chordcache as cc
from chordcache.errors import UsageError
from chordcache.read.crops import Pad
from chordcache.train.samplers.budget_batches import BudgetBatchSampler
from chordcache.train.samplers.clip_request import ClipRequest
from chordcache.train.samplers.clip_samplers import SamplerSchedule
from chordcache.train.samplers.formed_batches import form_batches
from chordcache.train.samplers.time_transforms import FrameDrop, TemporalCrop, TimeWarp

NUM_FRAMES = [4, 5, 6, 9, 12, 13, 25, 26, 40]
SIZES = [(64, 48), (48, 64), (96, 48)]
"""(width, height) of videos 0, 3, 6 ..., of 1, 4, 7 ..., of 2, 5, 8 ..."""


def batches_one_by_one(order: Any, axes: Any, budget: int, kinds: Any = None) -> list[list[int]]:
    """Form batches sample by sample, as ``form_batches`` says."""
    batches: list[list[int]] = []
    open_batches: dict[Any, tuple[list[int], Any]] = {}
    for number in order:
        alike = kinds[number] if kinds else None, *((length * length).bit_length() for length in axes[number])
        batch, longest = open_batches.get(alike, ([], ()))
        grown = tuple(map(max, longest, axes[number]))
        if not batch or (len(batch) + 1) * math.prod(grown) > budget:
            batch, grown = [], axes[number]
            batches.append(batch)
        batch.append(number)
        open_batches[alike] = batch, grown
    return batches


def described_batches(dataset: Any, epoch: int, unit: str, budget: int) -> list[tuple[int, ...]]:
    """Form the batches of an epoch from the description of each sample."""
    order = cc.ChordSampler(dataset)
    order.set_epoch(epoch)
    samples = list(order)
    described = [dataset.describe(sample) for sample in samples]
    axes = [shape[:-3] if unit == "max_frames" else shape[:-1] for _, shape in described]
    kinds = [video.bucket and (video.bucket, shape) for video, shape in described]
    batches = batches_one_by_one(range(len(samples)), axes, budget, kinds)
    return [tuple(samples[place][1] for place in batch) for batch in batches]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path]) -> cc.Cache:
    """Nine videos of other lengths, in three sizes, with longer and longer captions."""
    folder = tmp_path_factory.mktemp("budget")
    rows = []
    for number, num_frames in enumerate(NUM_FRAMES):
        make_video(folder / f"{number}.mp4", num_frames=num_frames, size=SIZES[number % 3])
        rows.append(f"{number}.mp4,{'word ' * number}\n")
    (folder / "index.csv").write_text("path,caption\n" + "".join(rows))
    cc.build(folder / "index.csv", folder / "cache", tiers=("lmdb",), jobs=HERE)
    return cc.open_cache(folder / "cache")


def whole_videos(cache: cc.Cache, **options: Any) -> cc.ChordVideoDataset:
    if "crop" not in options:
        options = {"size": (32, 32), **options}
    return cc.ChordVideoDataset(cache, **{"clip_sampler": WholeVideos(), "clips_per_video": 7, **options})


def ranks(
    dataset: cc.ChordVideoDataset, world_size: int, *, max_frames: int = 60, **options: Any
) -> list[BudgetBatchSampler]:
    samplers = [cc.ChordSampler(dataset, rank=rank, world_size=world_size, **options) for rank in range(world_size)]
    return [BudgetBatchSampler(dataset, sampler, max_frames=max_frames) for sampler in samplers]


def batches_of(sampler: BudgetBatchSampler) -> list[tuple[int, ...]]:
    batches = list(sampler)
    assert {epoch for batch in batches for epoch, _ in batch} <= {sampler.epoch}
    return [tuple(index for _, index in batch) for batch in batches]


def formed(axes: list[tuple[int, ...]], budget: int, kinds: np.ndarray | None = None) -> list[list[int]]:
    places, stops = form_batches(np.array(axes), budget, np.zeros(len(axes), np.int64) if kinds is None else kinds)
    return [batch.tolist() for batch in np.split(places, stops[:-1])]


@given(
    samples=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40), st.integers(0, 2)), min_size=1, max_size=80),
    budget=st.integers(1600, 20000),
)
def test_batches_are_those_that_are_formed_one_by_one(samples: list[tuple[int, int, int]], budget: int) -> None:
    axes, kinds = [sample[:2] for sample in samples], [sample[2] for sample in samples]
    assert formed(axes, budget, np.array(kinds)) == batches_one_by_one(range(len(axes)), axes, budget, kinds)
    assert formed(axes, budget) == batches_one_by_one(range(len(axes)), axes, budget)


def test_little_is_padding() -> None:
    generator = np.random.default_rng(5)
    lengths = np.exp(generator.uniform(math.log(20), math.log(2000), 5000)).astype(int)
    lengths = lengths[generator.permutation(5000)]
    batches = formed([(int(n),) for n in lengths], 8000)
    padded = sum(len(batch) * lengths[batch].max() for batch in batches)
    assert lengths.sum() > 0.8 * padded
    fixed = [lengths[i : i + 4].max() * 4 for i in range(0, 5000, 4)]  # as many as always fit
    assert lengths.sum() < 0.6 * sum(fixed)
    assert len(batches) < len(fixed) / 3


@pytest.mark.parametrize("options", [{"size": None}, {"crop": cc.crops.Resize(short_side=32)}, {"size": (32, 40)}])
def test_pixels(cache: cc.Cache, options: dict[str, Any]) -> None:
    dataset = whole_videos(cache, **options)
    budget = 40 * 96 * 48
    costs = []
    for batch in BudgetBatchSampler(dataset, max_pixels=budget):
        frames = cc.collate(dataset.__getitems__(batch))["frames"]
        costs.append(frames.numel() // 3)
        assert frames.shape[0] == len(batch)
    assert max(costs) <= budget
    assert len(costs) < len(dataset) / 2  # and it is made use of


def test_tokens_of_a_tokenizer_file(cache: cc.Cache, tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"word": 0, "[UNK]": 1}, unk_token="[UNK]"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.save(str(tmp_path / "words.json"))
    tokenizer = cc.CaptionTokenizer(tmp_path / "words.json")
    dataset = whole_videos(cache)
    batches = BudgetBatchSampler(dataset, max_tokens=20, tokenizer=tokenizer)
    loader = cc.ClipLoader(dataset, None, sampler=batches, collate=partial(cc.collate, tokenizer=tokenizer))
    assert max(batch["caption_ids"].numel() for batch in loader) <= 20
    batches.set_epoch(0)
    assert list(batches) == list(BudgetBatchSampler(dataset, max_tokens=20, tokenizer=str.split))
    padded = cc.CaptionTokenizer(tmp_path / "words.json", length=10)  # collate pads each caption to it
    batches = BudgetBatchSampler(dataset, max_tokens=20, tokenizer=padded)
    loader = cc.ClipLoader(dataset, None, sampler=batches, collate=partial(cc.collate, tokenizer=padded))
    assert max(batch["caption_ids"].numel() for batch in loader) == 20


@pytest.mark.parametrize(("unit", "budget"), [("max_frames", 41), ("max_pixels", 42 * 96 * 48)])
@pytest.mark.parametrize(
    "options",
    [
        {"clip_sampler": ShapedWholeVideos()},
        {"clip_sampler": ShapedWholeVideos(), "size": None},
        {"clip_sampler": ShapedWholeVideos(), "videos": lambda video: video.num_frames % 2 == 1},
        {"clip_sampler": TimeWarp(ShapedWholeVideos()), "crop": cc.crops.Resize(short_side=32)},
        {"clip_sampler": FrameDrop(ShapedWholeVideos()), "crop": cc.crops.HorizontalFlip()},
        {"clip_sampler": TemporalCrop(ShapedWholeVideos(), 4), "crop": Pad((32, 32))},
        {"clip_sampler": "random", "crop": cc.crops.RandomResizedCrop((24, 24))},
        {"clip_sampler": cc.RandomClipSampler(8, fps=10), "size": None},
        {"clip_sampler": cc.RandomClipSampler(4, 1, pad="error"), "size": None},
        {"clip_sampler": cc.samplers.uniform(7), "size": None},
        {"clip_sampler": cc.samplers.keyframe(5), "size": None},
        {"clip_sampler": SamplerSchedule({0: ShapedWholeVideos(), 1: cc.RegularClipSampler(5)}), "size": None},
    ],
)
def test_batches_of_columns_are_those_of_described_samples(
    cache: cc.Cache, options: dict[str, Any], unit: str, budget: int
) -> None:
    dataset = whole_videos(cache, **options)
    for whole in (dataset, cc.concat([cc.subset(dataset, slice(3, None, 2)), dataset])):
        assert whole.measure(0, np.arange(len(whole))) is not None
        sampler = BudgetBatchSampler(whole, **{unit: budget})
        for epoch in (0, 1):
            sampler.set_epoch(epoch)
            assert batches_of(sampler) == described_batches(whole, epoch, unit, budget)


def test_clips_whose_length_is_random(cache: cc.Cache) -> None:
    class DrawsLength:
        def frame_numbers(self, video: cc.Video, request: ClipRequest) -> np.ndarray:
            return np.arange(request.generator().integers(1, video.num_frames + 1))

    drawn, schedule = DrawsLength(), SamplerSchedule({0: cc.RegularClipSampler(4, 1), 2: WholeVideos()})
    for clip_sampler in (drawn, TimeWarp(schedule)):
        dataset = whole_videos(cache, clip_sampler=clip_sampler)
        sampler = BudgetBatchSampler(dataset, max_frames=50)
        for epoch in (0, 2, 1):
            sampler.set_epoch(epoch)
            for batch in sampler:
                assert len(batch) * max(len(dataset[pair]["pts_seconds"]) for pair in batch) <= 50
    sampler.set_epoch(1)
    assert {len(batch) for batch in sampler} == {12, 63 - 5 * 12}  # of 4 frames each


@pytest.mark.parametrize("world_size", [1, 3, 7])
@pytest.mark.parametrize("on_remainder", ["pad", "drop"])
def test_ranks_get_every_batch_once_and_as_many_each(cache: cc.Cache, world_size: int, on_remainder: str) -> None:
    dataset = whole_videos(cache)
    samplers = ranks(dataset, world_size, on_remainder=on_remainder)
    (whole,) = ranks(dataset, 1)
    for epoch in (0, 3):
        for sampler in (*samplers, whole):
            sampler.set_epoch(epoch)
        split = [batches_of(sampler) for sampler in samplers]
        assert {len(batches) for batches in split} == {len(sampler) for sampler in samplers}
        in_turn = [batch for round_ in zip(*split, strict=True) for batch in round_]
        all_batches = batches_of(whole)
        assert sorted(index for batch in all_batches for index in batch) == list(range(63))
        if on_remainder == "pad":
            spare = len(in_turn) - len(all_batches)
            assert in_turn == all_batches + all_batches[:spare]
            assert spare < world_size
        else:
            assert in_turn == all_batches[: len(in_turn)]
            assert len(in_turn) > len(all_batches) - world_size


@pytest.mark.parametrize(("world_size", "later_world_size"), [(1, 1), (2, 2), (4, 2), (2, 3)])
@pytest.mark.parametrize("num_batches", [0, 1, 3, 1000])
def test_every_sample_once_when_the_world_changes(
    cache: cc.Cache, world_size: int, later_world_size: int, num_batches: int
) -> None:
    dataset = whole_videos(cache)
    before = ranks(dataset, world_size)
    used = []
    for sampler in before:
        sampler.set_epoch(2)
        used += batches_of(sampler)[:num_batches]
    (state,) = {json.dumps(sampler.state_dict(num_batches_consumed=num_batches)) for sampler in before}
    rest = []
    for sampler in ranks(dataset, later_world_size):
        sampler.load_state_dict(json.loads(state))
        assert sampler.epoch == 2
        sampler.set_epoch(2)
        assert sampler.state_dict(0) == json.loads(state)
        mine = list(sampler)
        rest.append(len(mine))
        used += [tuple(index for _, index in batch) for batch in mine]
        assert sampler.state_dict()["num_consumed"] >= json.loads(state)["num_consumed"]
        sampler.set_epoch(3)
        assert sampler.state_dict(0)["num_consumed"] == 0
    assert len(set(rest)) == 1
    counts = Counter(used)
    assert sorted(index for batch in counts for index in batch) == list(range(63))
    assert sum(counts.values()) - len(counts) < world_size + later_world_size - 1


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"seed": 1}, "^state: got seed=1, expected 0 as in the sampler, since another one gives another order"),
        ({"batches": 5}, "^state: got one of other batches, expected max_frames=60 and the same samples"),
        ({"batches": 5, "epoch": 3}, "^state: got one of other batches"),
        ({"more": 1}, "^state: got keys .*, expected the state of a ChordSampler$"),
    ],
)
def test_states_that_do_not_fit(cache: cc.Cache, change: dict[str, Any], match: str) -> None:
    (sampler,) = ranks(whole_videos(cache), 1)
    state = sampler.state_dict(2)
    sampler.load_state_dict(state)
    with pytest.raises(UsageError, match=match):
        sampler.load_state_dict({**state, **change})
    assert sampler.state_dict(0) == state


def test_state_of_another_budget_or_another_sampler(cache: cc.Cache) -> None:
    dataset = whole_videos(cache)
    (sampler,) = ranks(dataset, 1)
    with pytest.raises(UsageError, match="other batches"):
        sampler.load_state_dict(BudgetBatchSampler(dataset, max_frames=100).state_dict(1))
    with pytest.raises(
        UsageError, match="^state: got keys seed, shuffle, .*, expected the state of a BudgetBatchSampler$"
    ):
        sampler.load_state_dict(cc.ChordSampler(dataset).state_dict(1))
    with pytest.raises(UsageError, match="^state: got keys seed, .*batches, expected the state of a ChordSampler$"):
        cc.ChordSampler(dataset).load_state_dict(sampler.state_dict(1))


def contents(loader: Any) -> list[Any]:
    return [(batch["video"], batch["frames"].contiguous().numpy().tobytes()) for batch in loader]


def expected(dataset: cc.ChordVideoDataset, sampler: BudgetBatchSampler) -> list[Any]:
    return contents(cc.collate([dataset[pair] for pair in batch]) for batch in sampler)


def test_all_loaders_yield_the_same(cache: cc.Cache) -> None:
    dataset = whole_videos(cache)
    clips = cc.ClipLoader(dataset, None, sampler=BudgetBatchSampler(dataset, max_frames=60), num_threads=2)
    loader = cc.make_loader(dataset, None, 2, sampler=BudgetBatchSampler(dataset, max_frames=60))
    plain = DataLoader(
        dataset, batch_sampler=BudgetBatchSampler(dataset, max_frames=60), collate_fn=cc.collate, num_workers=0
    )
    sampler = BudgetBatchSampler(dataset, max_frames=60)
    for epoch in (0, 1):
        for order in (clips, loader.batch_sampler, plain.batch_sampler, sampler):
            order.set_epoch(epoch)
        assert contents(loader) == contents(clips) == contents(plain) == expected(dataset, sampler)
        assert len(clips) == len(loader) == len(plain) == len(sampler)
    if loader._iterator is not None:
        loader._iterator._shutdown_workers()  # left to the garbage collector, torch waits for them at a time of its own


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({}, "^max_frames, max_pixels, max_tokens, max_latent_tokens: got none, expected one of them$"),
        ({"max_frames": 9, "max_pixels": 9}, "^max_frames, .*: got max_frames, max_pixels, expected one of them$"),
        ({"max_frames": 0}, "^max_frames: got 0, expected an integer of at least 1$"),
        ({"max_tokens": 5}, "^max_tokens and tokenizer: got one, expected both .* or none$"),
        ({"max_frames": 99, "tokenizer": str.split}, "^max_tokens and tokenizer: got one"),
        (
            {"max_frames": 39},
            r"^max_frames: got 39, expected at least 40 for sample 56 of video '8-\w+'. Raise max_frames, or leave",
        ),
        (
            {"max_pixels": 40 * 32 * 32 - 1},
            r"^max_pixels: .*, expected at least 40960 for sample 56 of video '8-\w+'\.",
        ),
        (
            {"max_frames": 60, "sampler": cc.ChordSampler(5)},
            "^sampler: got one for 5 samples, expected 63 as in the dataset$",
        ),
    ],
)
def test_wrong_arguments(cache: cc.Cache, arguments: dict[str, Any], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        BudgetBatchSampler(whole_videos(cache), **arguments)


def test_a_batch_size_and_a_budget(cache: cc.Cache) -> None:
    dataset = whole_videos(cache)
    batches = BudgetBatchSampler(dataset, max_frames=60)
    for make in (cc.ClipLoader, partial(cc.make_loader, num_workers=0)):
        for batch_size, sampler in ((4, batches), (None, None), (None, cc.ChordSampler(dataset))):
            with pytest.raises(UsageError, match="^batch_size: got .*, expected None with a BudgetBatchSampler"):
                make(dataset, batch_size, sampler=sampler)
    with pytest.raises(UsageError, match="^sampler: got one for 63 samples, expected 9 as in the dataset$"):
        cc.ClipLoader(whole_videos(cache, clips_per_video=1), None, sampler=batches)


# The budget that a GPU takes. ``step`` raises the error that torch raises when the memory of a GPU ends


@pytest.mark.parametrize(("capacity", "expected"), [(120, 120), (10**9, 364)])
def test_fit(cache: cc.Cache, monkeypatch: pytest.MonkeyPatch, capacity: int, expected: int) -> None:
    steps: list[int] = []

    def step(batch: dict[str, Any]) -> None:
        num_frames = math.prod(batch["frames"].shape[:2])
        steps.append(num_frames)
        if num_frames > capacity:
            raise torch.cuda.OutOfMemoryError

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    sampler = BudgetBatchSampler(whole_videos(cache), max_frames=60)
    before = batches_of(sampler)
    assert sampler.fit(step) == expected == max(num_frames for num_frames in steps if num_frames <= capacity)
    sampler.set_epoch(0)
    assert batches_of(sampler) == before


def test_fit_of_a_model_that_is_too_large(cache: cc.Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    def step(batch: dict[str, Any]) -> None:
        raise torch.cuda.OutOfMemoryError

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(
        UsageError, match="^step: got one that runs out of GPU memory with the largest sample alone, of 40"
    ):
        BudgetBatchSampler(whole_videos(cache), max_frames=60).fit(step)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a machine without a GPU")
def test_fit_needs_a_gpu(cache: cc.Cache) -> None:
    with pytest.raises(UsageError, match=r"^step: got no GPU, expected CUDA, .*\. Give max_frames instead of fit"):
        BudgetBatchSampler(whole_videos(cache), max_frames=60).fit(lambda batch: None)
