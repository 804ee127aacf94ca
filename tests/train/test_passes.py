"""New clips in each pass, without ``set_epoch``: plain loaders with any sampler, and the loaders of the package."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, RandomSampler, Subset, WeightedRandomSampler

import chordcache as cc
from chordcache.train.samplers.budget_batches import BudgetBatchSampler

WORKERS = [
    (0, None, False),
    (2, "fork", False),
    (2, "forkserver", True),
]


def dataset_of(five_videos: Path, **options: Any) -> cc.ChordVideoDataset:
    sampler = cc.RandomClipSampler(1)
    return cc.ChordVideoDataset(five_videos, clip_sampler=sampler, size=(16, 16), clips_per_video=2, **options)


def clips_of(batches: Iterable[dict[str, Any]]) -> list[tuple[str, float]]:
    """Video and time of each clip."""
    return [
        (video, seconds)
        for batch in batches
        for video, seconds in zip(batch["video"], batch["pts_seconds"][:, 0].tolist(), strict=True)
    ]


def epoch_of(dataset: cc.ChordVideoDataset, epoch: int) -> list[tuple[str, float]]:
    """The clips of an epoch, in the order of the dataset."""
    samples = [dataset[epoch, i] for i in range(len(dataset))]
    return [(sample["video"], float(sample["pts_seconds"][0])) for sample in samples]


@pytest.mark.parametrize(("workers", "method", "persistent"), WORKERS)
def test_each_pass_of_a_plain_loader_draws_new_clips(
    five_videos: Path, workers: int, method: str | None, persistent: bool
) -> None:
    dataset = dataset_of(five_videos)
    loader = DataLoader(
        dataset, 3, shuffle=True, num_workers=workers, multiprocessing_context=method, persistent_workers=persistent
    )
    passes = []
    for _ in range(3):
        batches = list(loader)
        passes.append(sorted(clips_of(batches)))
        ids = [sample_id for batch in batches for sample_id in batch["sample_id"]]
        again = [dataset[tuple(map(int, sample_id.split(":")))] for sample_id in ids]
        assert [(sample["video"], float(sample["pts_seconds"][0])) for sample in again] == clips_of(batches)
        assert sorted(int(sample_id.split(":")[1]) for sample_id in ids) == list(range(10))
    assert passes[0] != passes[1] != passes[2]


@pytest.mark.parametrize("workers", [0, 2])
def test_plain_indices_follow_torchs_seed(five_videos: Path, workers: int) -> None:
    passes = []
    for seed in (7, 7, 8):
        torch.manual_seed(seed)
        passes.append(clips_of(DataLoader(dataset_of(five_videos), 3, num_workers=workers)))
    assert passes[0] == passes[1] != passes[2]


@pytest.mark.parametrize(("workers", "method", "persistent"), WORKERS)
def test_set_epoch_fixes_the_clips_in_every_worker(
    five_videos: Path, workers: int, method: str | None, persistent: bool
) -> None:
    dataset = dataset_of(five_videos)
    loader = DataLoader(dataset, 3, num_workers=workers, multiprocessing_context=method, persistent_workers=persistent)
    clips_of(loader)  # workers that persist are there before the first set_epoch
    for epoch in (4, 4, 1, 0):
        dataset.set_epoch(epoch)
        assert clips_of(loader) == epoch_of(dataset, epoch)


def test_a_sampler_that_repeats_samples(five_videos: Path) -> None:
    sampler = WeightedRandomSampler([1, 0, 0, 0, 0, 0, 0, 0, 0, 0], 30)
    clips = clips_of(DataLoader(dataset_of(five_videos), 4, sampler=sampler, num_workers=2))
    assert len({seconds for _, seconds in clips}) > 10


def test_datasets_inside_others(five_videos: Path) -> None:
    one, two = dataset_of(five_videos, seed=1), dataset_of(five_videos, seed=2)
    both = ConcatDataset([Subset(one, range(5)), two])
    loader = DataLoader(both, 3, sampler=RandomSampler(both), num_workers=2, persistent_workers=True)
    passes = [sorted(clips_of(loader)) for _ in range(2)]
    assert passes[0] != passes[1]
    for epoch in range(2):
        one.set_epoch(epoch)
        two.set_epoch(epoch)
        assert sorted(clips_of(loader)) == sorted(epoch_of(one, epoch)[:5] + epoch_of(two, epoch))


def loaders(dataset: cc.ChordVideoDataset) -> dict[str, Any]:
    budget = BudgetBatchSampler(dataset, max_frames=3)
    return {
        "threads": cc.ClipLoader(dataset, 3),
        "threads, budget": cc.ClipLoader(dataset, None, sampler=BudgetBatchSampler(dataset, max_frames=3)),
        "no workers": cc.make_loader(dataset, 3, 0),
        "workers": cc.make_loader(dataset, 3, 2),
        "workers, budget": cc.make_loader(dataset, None, 2, sampler=budget),
    }


@pytest.mark.parametrize("kind", ["threads", "threads, budget", "no workers", "workers", "workers, budget"])
def test_each_pass_of_a_loader_is_a_new_epoch(five_videos: Path, kind: str) -> None:
    dataset = dataset_of(five_videos)
    loader = loaders(dataset)[kind]
    passes = [clips_of(loader) for _ in range(3)]
    assert [sorted(clips) for clips in passes] == [sorted(epoch_of(dataset, epoch)) for epoch in range(3)]
    order = [[video for video, _ in clips] for clips in passes]
    assert order[0] != order[1] != order[2]
    sampler = loader if hasattr(loader, "set_epoch") else getattr(loader, "sampler", None)
    sampler = sampler if hasattr(sampler, "set_epoch") else loader.batch_sampler
    sampler.set_epoch(1)
    assert clips_of(loader) == passes[1]
    assert clips_of(loader) == passes[2]
    sampler.set_epoch(2)
    assert clips_of(loader) == passes[2]


@pytest.mark.parametrize("num_batches", [0, 1, 3, 4])
@pytest.mark.parametrize("kind", ["threads", "threads, budget"])
def test_a_run_without_set_epoch_resumes(five_videos: Path, kind: str, num_batches: int) -> None:
    whole = loaders(dataset_of(five_videos))[kind]
    expected, state = [], {}
    for number in range(3):
        for place, batch in enumerate(whole, start=1):
            if number > 1 or (number == 1 and place > num_batches):
                expected += clips_of([batch])
            if (number, place) == (1, num_batches) or (number, num_batches) == (0, 0):
                state = whole.state_dict()
    assert len(whole) == 4
    resumed = loaders(dataset_of(five_videos))[kind]
    resumed.load_state_dict(state)
    clips = [clip for _ in range(1 + (num_batches < 4)) for clip in clips_of(resumed)]
    assert clips == expected


def test_lists_made_of_a_sampler_are_epochs() -> None:
    sampler = cc.ChordSampler(4, shuffle=False)
    iter(sampler)  # DataLoader makes iterators that it does not use
    assert [next(iter(sampler)) for _ in range(3)] == [(0, 0), (1, 0), (2, 0)]
    sampler.set_epoch(2)
    sampler.set_epoch(2)
    assert (sampler.epoch, sampler.next_epoch) == (2, 2)
    assert torch.equal(torch.tensor(list(sampler)), torch.tensor([(2, i) for i in range(4)]))


@pytest.mark.parametrize("make", [cc.ClipLoader, cc.make_loader])
def test_a_run_that_stopped_between_epochs_goes_on_with_the_next(five_videos: Path, make: Any) -> None:
    dataset = dataset_of(five_videos)
    whole = make(dataset, batch_size=4)
    epochs = [clips_of(whole) for _ in range(3)]
    first = make(dataset, batch_size=4)
    list(first)
    for num_done in (1, 2):
        resumed = make(dataset, batch_size=4)
        resumed.load_state_dict(first.state_dict())
        assert (resumed.epoch, resumed.num_batches_left) == (num_done, 3)
        for epoch in range(resumed.epoch, 3):
            resumed.set_epoch(epoch)
            assert clips_of(resumed) == epochs[epoch]
        list(first)
    resumed = make(dataset, batch_size=4)
    resumed.load_state_dict(first.state_dict())
    assert list(range(resumed.epoch, 3)) == []
