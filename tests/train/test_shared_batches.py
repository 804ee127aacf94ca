"""Memory that workers fill again: batches are the same, and no batch, view or array of one ever changes."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, get_worker_info

import chordcache as cc
from chordcache.train import shared_batches
from chordcache.train.samplers.budget_batches import BudgetBatchSampler

CLIPS = cc.RandomClipSampler(num_frames=4, stride=2)


def dataset_of(five_videos: Path) -> cc.ChordVideoDataset:
    return cc.ChordVideoDataset(five_videos, clip_sampler=CLIPS, clips_per_video=4, seed=3, size=(48, 48))


@contextmanager
def loader_of(dataset: Any, batch_size: int | None = 2, num_workers: int = 2, **options: Any) -> Iterator[Any]:
    loader = cc.make_loader(dataset, batch_size, num_workers, **options)
    try:
        yield loader
    finally:
        if loader._iterator is not None:
            loader._iterator._shutdown_workers()


def frames_of(loader: Any, num_epochs: int = 3) -> list[Any]:
    return [batch["frames"] for _ in range(num_epochs) for batch in loader]


def assert_same(got: list[Any], expected: list[Any]) -> None:
    assert len(got) == len(expected) > 0
    assert all(torch.equal(one, other) for one, other in zip(got, expected, strict=True))


@pytest.fixture
def in_a_worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Any], Any]]:
    """Let this process be a worker and its trainer. The function sends an object from one to the other."""
    monkeypatch.setattr(shared_batches, "_blocks", [])
    reducers = dict(ForkingPickler._extra_reducers)
    yield lambda sent: ForkingPickler.loads(ForkingPickler.dumps(sent))
    ForkingPickler._extra_reducers.clear()
    ForkingPickler._extra_reducers.update(reducers)


VIEWS: dict[str, Callable[[Any], Any]] = {
    "tensor": lambda frames: frames,
    "part": lambda frames: frames[1, 2:],
    "one of unbind": lambda frames: frames.unbind()[1],
    "permuted": lambda frames: frames.movedim(-1, 0),
    "of another type": lambda frames: frames.view(torch.int8),
    "detached": lambda frames: frames.detach(),
    "storage": lambda frames: frames.untyped_storage(),
    "array": lambda frames: frames.numpy(),
    "part of an array": lambda frames: frames.numpy()[0, :, 1],
    "memoryview": lambda frames: memoryview(frames.numpy()),
    "tensor of an array": lambda frames: torch.from_numpy(frames.numpy()[1]),
    "DLPack": lambda frames: np.from_dlpack(frames),
    "DLPack capsule": lambda frames: torch.utils.dlpack.to_dlpack(frames),
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_block_is_lent_until_the_last_view_is_gone(in_a_worker: Callable[[Any], Any], name: str) -> None:
    shape = (2, 3, 5, 7)
    frames = shared_batches.allocate_shared(shape)
    (block,) = shared_batches._blocks
    assert not block.is_free()  # being filled
    frames.copy_(torch.arange(210, dtype=torch.uint8).view(shape))
    expected = frames.clone()
    received = in_a_worker({"frames": frames.movedim(-1, 1)})["frames"].movedim(1, -1)
    assert torch.equal(received, expected)
    del frames
    view = VIEWS[name](received)
    del received
    gc.collect()
    assert not block.is_free()
    other = shared_batches.allocate_shared(shape).fill_(0)
    assert len(shared_batches._blocks) == 2
    if not isinstance(view, torch.UntypedStorage) and "capsule" not in name:
        assert np.array_equal(np.asarray(view), np.asarray(VIEWS[name](expected)))
    del view, other
    assert all(block.is_free() for block in shared_batches._blocks)
    again = shared_batches.allocate_shared(shape)
    assert again.data_ptr() in [block.storage.data_ptr() for block in shared_batches._blocks]


def test_a_block_is_not_used_again_after_a_fork(in_a_worker: Callable[[Any], Any]) -> None:
    received = in_a_worker(shared_batches.allocate_shared((4, 4)).fill_(7))
    (block,) = shared_batches._blocks
    pid = os.fork()
    if not pid:
        del received  # decides nothing for its parent
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert not block.is_free()
    del received
    shared_batches.allocate_shared((4, 4))
    assert shared_batches._blocks != [block]


@pytest.mark.parametrize(
    ("start_method", "sharing"),
    [("fork", "file_descriptor"), ("forkserver", "file_system"), ("spawn", "file_descriptor")],
)
def test_three_epochs_are_the_same_and_kept_batches_stay_whole(
    five_videos: Path, start_method: str, sharing: str
) -> None:
    dataset = dataset_of(five_videos)
    before = torch.multiprocessing.get_sharing_strategy()
    torch.multiprocessing.set_sharing_strategy(sharing)
    try:
        with loader_of(dataset, num_workers=0) as loader:
            expected = frames_of(loader)
        with loader_of(dataset, start_method=start_method) as loader:
            copies = [batch["frames"].clone() for _ in range(3) for batch in loader]
            again = frames_of(loader)
        assert_same(copies, expected)
        with loader_of(dataset, num_workers=0) as loader:
            loader.set_epoch(3)
            assert_same(again, frames_of(loader))
    finally:
        torch.multiprocessing.set_sharing_strategy(before)


class Placed:
    """Collate function that adds the place of the frames in the worker's memory."""

    def __call__(self, samples: Any) -> Any:
        batch = cc.collate(samples)
        return {**batch, "place": (get_worker_info().id, batch["frames"].untyped_storage().data_ptr())}


def test_memory_is_used_again(five_videos: Path) -> None:
    with loader_of(dataset_of(five_videos), collate=Placed()) as loader:
        places = [batch["place"] for _ in range(5) for batch in loader]
    assert len(places) == 50
    assert len(set(places)) <= 16


def test_budget_batches_two_loaders_and_a_pass_that_is_left(five_videos: Path) -> None:
    dataset = dataset_of(five_videos)
    order = partial(BudgetBatchSampler, dataset, max_frames=12)
    with loader_of(dataset, None, 0, sampler=order()) as loader:
        budget = frames_of(loader)
    with loader_of(dataset, 3, 0) as loader:
        plain = frames_of(loader)
    with loader_of(dataset, None, sampler=order()) as one, loader_of(dataset, 3) as other:
        got: tuple[list[Any], list[Any]] = ([], [])
        for _ in range(3):
            begun = iter(one), iter(other)
            for left, right in zip(*begun, strict=False):
                got[0].append(left["frames"])
                got[1].append(right["frames"].clone())
            for kept, rest in zip(got, begun, strict=True):
                kept.extend(batch["frames"] for batch in rest)
        assert sorted(map(len, got[0])) == sorted(map(len, budget))
    with loader_of(dataset, 3) as loader:
        held = [next(iter(loader))["frames"] for _ in range(3)]  # the rest of each pass is left
        loader.set_epoch(0)
        assert_same(frames_of(loader), plain)
    assert torch.equal(held[0], plain[0])


def with_parts(samples: Any) -> Any:
    frames = cc.collate(samples)["frames"]
    return frames, frames[0], frames.to(torch.float32), [{"deep": frames[:, 1]}]


def test_other_collate_functions(five_videos: Path) -> None:
    dataset = dataset_of(five_videos)
    for batch_size in (2, 3):
        with loader_of(dataset, batch_size, collate=with_parts) as loader:
            for frames, first, floats, ((deep,),) in [
                (a, b, c, (tuple(d[0].values()),)) for _ in range(3) for a, b, c, d in loader
            ]:
                assert torch.equal(frames[0], first)
                assert torch.equal(frames, floats.to(torch.uint8))
                assert torch.equal(frames[:, 1], deep)
    dataset.set_epoch(0)
    plain = DataLoader(dataset, 4, num_workers=2)
    assert_same(frames_of(plain, 1), frames_of(DataLoader(dataset, 4), 1))


def test_a_killed_worker_leaves_batches_whole(five_videos: Path) -> None:
    dataset = dataset_of(five_videos)
    with loader_of(dataset, 1, num_workers=0) as loader:
        expected = frames_of(loader, 1)
    with loader_of(dataset, 1) as loader:
        batches = iter(loader)
        kept = [next(batches)["frames"] for _ in range(4)]
        pid = loader._iterator._workers[1].pid
        with pytest.raises(RuntimeError, match="worker"):
            os.kill(pid, signal.SIGKILL)
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # torch sees its end before the end of its connections
            list(batches)
    assert_same(kept, expected[:4])


def test_a_child_of_the_trainer_reads_its_batch(five_videos: Path) -> None:
    """As a process that writes pictures of a batch: its parent goes on meanwhile."""
    with loader_of(dataset_of(five_videos)) as loader:
        batches = iter(loader)
        frames = next(batches)["frames"].numpy()  # torch's threads do not exist in the child
        read, write = os.pipe()
        pid = os.fork()
        if not pid:
            signal.alarm(60)
            copy = frames.copy()
            os.read(read, 1)  # until the parent has gone through an epoch
            os._exit(0 if np.array_equal(copy, frames) else 1)
        del frames
        num_seen = len([*batches, *loader])
        os.write(write, b".")
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert num_seen == 19
        os.close(read)
        os.close(write)
