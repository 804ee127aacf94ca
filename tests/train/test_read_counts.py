"""New clips in each pass, without ``set_epoch``: plain loaders with any sampler, and the loaders of the package."""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.inline import HERE
from helpers.ranks import run_ranks
from torch.utils.data import ConcatDataset, DataLoader, RandomSampler, Subset, WeightedRandomSampler

import chordcache as cc
from chordcache.errors import UsageError
from chordcache.train.read_counts import ReadCounts

WORKERS = [
    (0, None, False),
    (2, "fork", False),
    (4, "fork", True),
    (2, "forkserver", False),
    (2, "forkserver", True),
]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path]) -> Path:
    folder = tmp_path_factory.mktemp("passes")
    for number in range(5):
        make_video(folder / f"videos/{number}.mp4", num_frames=40, size=(32, 32))
    cc.build(cc.scan([folder / "videos"], jobs=HERE), folder / "cache", features=["frames"], jobs=HERE)
    return folder / "cache"


def dataset_of(cache: Path, **options: Any) -> cc.ChordVideoDataset:
    sampler = cc.RandomClipSampler(1)
    return cc.ChordVideoDataset(cache, clip_sampler=sampler, size=(16, 16), clips_per_video=2, **options)


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


# Plain indices


@pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker processes")
@pytest.mark.parametrize(("workers", "method", "persistent"), WORKERS)
def test_each_pass_of_a_plain_loader_is_a_new_epoch(
    cache: Path, workers: int, method: str | None, persistent: bool
) -> None:
    dataset = dataset_of(cache)
    loader = DataLoader(
        dataset, 3, shuffle=True, num_workers=workers, multiprocessing_context=method, persistent_workers=persistent
    )
    expected = [sorted(epoch_of(dataset, epoch)) for epoch in range(3)]
    assert expected[0] != expected[1] != expected[2]
    assert [sorted(clips_of(loader)) for _ in range(3)] == expected


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_set_epoch_fixes_the_clips_in_every_worker(cache: Path, workers: int, persistent: bool) -> None:
    dataset = dataset_of(cache)
    loader = DataLoader(dataset, 3, num_workers=workers, persistent_workers=persistent)
    first = clips_of(loader)
    for epoch in (4, 4, 1, 0):
        dataset.set_epoch(epoch)
        assert clips_of(loader) == epoch_of(dataset, epoch)
    assert clips_of(loader) == first


def test_a_sampler_that_repeats_samples(cache: Path) -> None:
    dataset = dataset_of(cache)
    sampler = WeightedRandomSampler([1, 0, 0, 0, 0, 0, 0, 0, 0, 0], 30)
    clips = clips_of(DataLoader(dataset, 4, sampler=sampler, num_workers=2))
    expected = [dataset[epoch, 0]["pts_seconds"].item() for epoch in range(30)]
    assert sorted(seconds for _, seconds in clips) == sorted(expected)


def test_datasets_inside_others(cache: Path) -> None:
    one, two = dataset_of(cache, seed=1), dataset_of(cache, seed=2)
    both = ConcatDataset([Subset(one, range(5)), two])
    loader = DataLoader(both, 3, sampler=RandomSampler(both), num_workers=2, persistent_workers=True)
    for epoch in range(3):
        assert sorted(clips_of(loader)) == sorted(epoch_of(one, epoch)[:5] + epoch_of(two, epoch))


def test_a_pass_that_ends_early_repeats_nothing(cache: Path) -> None:
    dataset = dataset_of(cache)
    loader = DataLoader(dataset, 2)
    next(iter(loader))
    whole = [epoch_of(dataset, epoch) for epoch in range(2)]
    assert clips_of(loader) == whole[1][:2] + whole[0][2:]


def test_copies_count_on_their_own(cache: Path) -> None:
    dataset = dataset_of(cache)
    _ = dataset[0]
    for other in (copy.deepcopy(dataset), pickle.loads(pickle.dumps(dataset))):
        assert other[0]["pts_seconds"] == dataset[1, 0]["pts_seconds"]
    assert dataset[0]["pts_seconds"] == dataset[1, 0]["pts_seconds"]


RANK = """
import sys
from torch import distributed
from torch.utils.data import DataLoader
from chordcache.train.read_counts import ReadCounts

class Numbers:
    def __init__(self):
        self.counts = ReadCounts(4)
    def __len__(self):
        return 4
    def __getitem__(self, index):
        return self.counts.epoch_of(index)

if __name__ == "__main__":
    distributed.init_process_group("gloo")
    numbers = Numbers()
    epochs = [numbers[1]]
    for method in ("fork", "spawn"):
        epochs += [batch.tolist() for batch in DataLoader(numbers, 4, num_workers=1, multiprocessing_context=method)]
    print(epochs)
    distributed.destroy_process_group()
"""


def test_ranks_do_not_share_epochs(tmp_path: Path) -> None:
    printed = [rank.stdout.strip() for rank in run_ranks(RANK, tmp_path, 2)]
    assert printed == ["[0, [0, 2, 0, 0], [2, 4, 2, 2]]", "[1, [1, 3, 1, 1], [3, 5, 3, 3]]"]


def _epochs(counts: ReadCounts, _: int = 0) -> list[int]:
    return [counts.epoch_of(0) for _ in range(2_000)]


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_reads_at_once_have_different_epochs(method: str) -> None:
    counts = ReadCounts(3)
    context = multiprocessing.get_context(method)
    received: list[Any] = [context.Pipe() for _ in range(4)]
    workers = [context.Process(target=_send_epochs, args=(counts, theirs)) for _, theirs in received]
    for worker in workers:
        worker.start()
    epochs = [epoch for ours, _ in received for epoch in ours.recv()]
    for worker in workers:
        worker.join(60)
    assert sorted(epochs) == list(range(4 * 2_000))


def _send_epochs(counts: ReadCounts, channel: Any) -> None:
    channel.send(_epochs(counts))


def test_reads_of_threads_have_different_epochs() -> None:
    counts = ReadCounts(1)
    with ThreadPoolExecutor(4) as pool:
        drawn = [epoch for epochs in pool.map(partial(_epochs, counts), range(4)) for epoch in epochs]
    assert sorted(drawn) == list(range(4 * 2_000))


def test_a_dataset_leaves_no_descriptor() -> None:
    ReadCounts(1)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        copy.deepcopy(ReadCounts(5)).epoch_of(1)
    assert len(os.listdir("/proc/self/fd")) == before


def test_epochs_of_a_fixed_dataset() -> None:
    counts = ReadCounts(2)
    assert [counts.epoch_of(0), counts.epoch_of(0), counts.epoch_of(1)] == [0, 1, 0]
    counts.fix(0)
    assert [counts.epoch_of(0), counts.epoch_of(0)] == [0, 0]


# Loaders of the package


def loaders(dataset: cc.ChordVideoDataset) -> dict[str, Any]:
    budget = cc.BudgetBatchSampler(dataset, max_frames=3)
    return {
        "threads": cc.ClipLoader(dataset, 3),
        "threads, budget": cc.ClipLoader(dataset, None, sampler=cc.BudgetBatchSampler(dataset, max_frames=3)),
        "no workers": cc.make_loader(dataset, 3, 0),
        "workers": cc.make_loader(dataset, 3, 2),
        "workers, budget": cc.make_loader(dataset, None, 2, sampler=budget),
    }


@pytest.mark.parametrize("kind", ["threads", "threads, budget", "no workers", "workers", "workers, budget"])
def test_each_pass_of_a_loader_is_a_new_epoch(cache: Path, kind: str) -> None:
    dataset = dataset_of(cache)
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
def test_a_run_without_set_epoch_resumes(cache: Path, kind: str, num_batches: int) -> None:
    whole = loaders(dataset_of(cache))[kind]
    expected, state = [], {}
    for number in range(3):
        for place, batch in enumerate(whole, start=1):
            if number > 1 or (number == 1 and place > num_batches):
                expected += clips_of([batch])
            if (number, place) == (1, num_batches) or (number, num_batches) == (0, 0):
                state = whole.state_dict()
    assert len(whole) == 4
    resumed = loaders(dataset_of(cache))[kind]
    resumed.load_state_dict(state)
    clips = [clip for _ in range(1 + (num_batches < 4)) for clip in clips_of(resumed)]
    assert clips == expected


def test_a_pass_that_a_loader_leaves_early_is_an_epoch(cache: Path) -> None:
    dataset = dataset_of(cache)
    loader = cc.ClipLoader(dataset, 3)
    for _ in loader:
        break
    assert loader.epoch == 0
    assert sorted(clips_of(loader)) == sorted(epoch_of(dataset, 1))
    assert loader.epoch == 1


def test_lists_made_of_a_sampler_are_epochs() -> None:
    sampler = cc.ChordSampler(4, shuffle=False)
    iter(sampler)  # DataLoader makes iterators that it does not use
    assert [next(iter(sampler)) for _ in range(3)] == [(0, 0), (1, 0), (2, 0)]
    sampler.set_epoch(2)
    sampler.set_epoch(2)
    assert (sampler.epoch, sampler.next_epoch) == (2, 2)
    assert torch.equal(torch.tensor(list(sampler)), torch.tensor([(2, i) for i in range(4)]))


# Resuming with plain indices


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # torchdata 0.11 with torch 2.13
@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_by_plain_indices_resumes_with_set_epoch_only(cache: Path, workers: int) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader")

    def stopped(dataset: Any, **options: Any) -> tuple[list[Any], dict[str, Any]]:
        loader = stateful.StatefulDataLoader(dataset, 3, num_workers=workers, **options)
        batches = iter(loader)
        return clips_of([next(batches)]), loader.state_dict()

    def resumed(dataset: Any, state: dict[str, Any], **options: Any) -> list[Any]:
        loader = stateful.StatefulDataLoader(dataset, 3, num_workers=workers, **options)
        loader.load_state_dict(state)
        return clips_of(loader)

    _, state = stopped(cc.concat([dataset_of(cache)]))
    with pytest.raises(UsageError, match="state: got one of a run that reads plain indices"):
        resumed(cc.concat([dataset_of(cache)]), state)
    one, other = dataset_of(cache), dataset_of(cache)
    one.set_epoch(4)
    other.set_epoch(4)
    used, state = stopped(one)
    assert used + resumed(other, state) == epoch_of(one, 4)
    one, other = dataset_of(cache), dataset_of(cache)
    _ = one[0]  # a look at a sample before the run does not count
    used, state = stopped(one, sampler=cc.ChordSampler(10, shuffle=False))
    assert used + resumed(other, state, sampler=cc.ChordSampler(10, shuffle=False)) == epoch_of(one, 0)
