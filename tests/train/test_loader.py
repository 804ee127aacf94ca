"""Loaders yield every sample of the dataset, in order, ahead of the consumer; and end when they are left."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import processes
from helpers.inline import HERE
from helpers.training import assert_same
from torch.utils.data import DataLoader

from chordcache.building.build import build
from chordcache.errors import DamageError, UsageError
from chordcache.read.cache import Cache
from chordcache.read.video import Video
from chordcache.train.collate import collate
from chordcache.train.dataset import ChordVideoDataset
from chordcache.train.loader import ClipLoader, make_loader
from chordcache.train.samplers.clip_request import ClipRequest
from chordcache.train.samplers.clip_samplers import RandomClipSampler, RegularClipSampler
from chordcache.train.samplers.distributed import ChordSampler

SAMPLER = RandomClipSampler(num_frames=4, stride=2)


@pytest.fixture(scope="module")
def cache(five_videos: Path) -> Cache:
    return Cache(five_videos)


def dataset_of(cache: Cache, **options: Any) -> ChordVideoDataset:
    return ChordVideoDataset(
        cache, **{"clip_sampler": SAMPLER, "clips_per_video": 5, "seed": 3, "size": None, **options}
    )


def expected_batches(dataset: ChordVideoDataset, batch_size: int, epoch: int = 0, **order: Any) -> list[dict[str, Any]]:
    """By single samples and torch.stack alone."""
    sampler = ChordSampler(dataset, **order)
    sampler.set_epoch(epoch)
    samples = [dataset[pair] for pair in sampler]
    return [stacked(samples[i : i + batch_size]) for i in range(0, len(samples), batch_size)]


def stacked(samples: list[dict[str, Any]]) -> dict[str, Any]:
    columns = {name: [sample[name] for sample in samples] for name in samples[0]}
    batch = {n: torch.stack(v) if isinstance(v[0], torch.Tensor) else v for n, v in columns.items()}
    shaped = {name: value for name, value in columns.items() if isinstance(value[0], torch.Tensor) and value[0].ndim}
    return {
        **batch,
        "lengths": {name: torch.tensor([tensor.shape for tensor in value]) for name, value in shaped.items()},
    }


def our_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("chordcache-clips")]


def assert_threads_end() -> None:
    assert processes.wait_until(lambda: not our_threads(), 30), our_threads()


FEATURES = ("frames", "flow", "mel")


@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("size", [None, (64, 96), (48, 48), (80, 64)])  # as cached, the same by name, smaller, larger
def test_batches_are_those_of_the_dataset(cache: Cache, size: tuple[int, int] | None, num_threads: int) -> None:
    dataset = dataset_of(cache, size=size, features=FEATURES)
    loader = ClipLoader(dataset, 4, num_threads=num_threads)
    assert len(loader) == 7
    for epoch in (0, 1):
        loader.set_epoch(epoch)
        assert_same(list(loader), expected_batches(dataset, 4, epoch))
    assert_threads_end()


def shut_down(loader: Any) -> None:
    """Left to the garbage collector, torch waits for its workers at a time of its own."""
    if getattr(loader, "_iterator", None) is not None:
        loader._iterator._shutdown_workers()


def test_workers_use_one_thread(cache: Cache) -> None:
    class CountsThreads(ChordVideoDataset):
        def read_samples(self, *args: Any) -> list[dict[str, Any]]:
            import cv2

            samples = super().read_samples(*args)
            threads = [torch.get_num_threads(), cv2.getNumThreads()]
            return [{**sample, "threads": torch.tensor(threads)} for sample in samples]

    loader = make_loader(CountsThreads(cache, size=(80, 64)), 5, 1, start_method="fork")
    (batch,) = loader
    assert batch["threads"].tolist() == [[1, 1]] * 5
    shut_down(loader)


@pytest.mark.parametrize("size", [None, (48, 48)])
def test_frames_of_a_batch_are_one_tensor_with_the_channels_last(cache: Cache, size: tuple[int, int] | None) -> None:
    dataset = dataset_of(cache, size=size)
    for batch in (next(iter(ClipLoader(dataset, 4))), collate(dataset.__getitems__([0, 7, 7, 3]))):
        assert batch["frames"].shape == (4, 4, 3, *(size or (64, 96)))
        assert batch["frames"].permute(0, 1, 3, 4, 2).is_contiguous()
    samples = dataset.__getitems__([0, 7, 7, 3])
    assert collate(samples)["frames"].data_ptr() == samples[0]["frames"].data_ptr()  # not copied
    assert collate(samples[::-1])["frames"].data_ptr() != samples[3]["frames"].data_ptr()  # not as it lies there
    assert torch.equal(collate(samples[::-1])["frames"], collate(samples)["frames"].flip(0))
    assert torch.equal(collate(samples[:2])["frames"], collate(samples)["frames"][:2])


def test_batches_are_not_written_over(cache: Cache) -> None:
    dataset = dataset_of(cache)
    kept = list(ClipLoader(dataset, 5, num_threads=2))
    parts = [batch["frames"][1].numpy()[2:] for batch in ClipLoader(dataset, 5, num_threads=2)]  # the whole is gone
    assert_same(kept, expected_batches(dataset, 5))
    assert all((part == batch["frames"][1].numpy()[2:]).all() for part, batch in zip(parts, kept, strict=True))


def test_memory_of_batches_is_used_again_when_it_is_free(cache: Cache) -> None:
    loader = ClipLoader(dataset_of(cache), 5, num_threads=2, prefetch=1)
    kept = next(iter(loader))["frames"][0, :, 0].numpy()  # a part of a part
    expected = kept.copy()
    places = {batch["frames"].data_ptr() for _ in range(5) for batch in loader}  # 25 batches, of which few are alive
    assert len(places) < 10
    assert torch.from_numpy(kept).data_ptr() not in places
    assert (kept == expected).all()


def test_device(cache: Cache) -> None:
    dataset = dataset_of(cache)
    batches = list(ClipLoader(dataset, 4, device="meta"))
    assert [batch["frames"].device.type for batch in batches] == ["meta"] * 7
    assert batches[0]["frames"].stride() == expected_strides(batches[0]["frames"].shape)


def expected_strides(shape: Any) -> tuple[int, ...]:
    batch, frames, _, height, width = shape
    return torch.empty(batch, frames, height, width, 3).permute(0, 1, 4, 2, 3).stride()


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("batch_size", [8, 25, 40])
@pytest.mark.parametrize("prefetch", [0, 5])
def test_sizes_of_batches(cache: Cache, batch_size: int, drop_last: bool, prefetch: int) -> None:
    loader = ClipLoader(dataset_of(cache), batch_size, drop_last=drop_last, prefetch=prefetch)
    sizes = [len(batch["frames"]) for batch in loader]
    whole, rest = divmod(25, batch_size)
    assert sizes == [batch_size] * whole + [rest] * (rest > 0 and not drop_last)
    assert len(loader) == len(sizes)


def test_a_bounded_number_of_batches_ahead(cache: Cache) -> None:
    asked: list[int] = []

    class Records(RegularClipSampler):
        def frame_numbers(self, video: Video, request: ClipRequest) -> np.ndarray:
            asked.append(request.index)
            return super().frame_numbers(video, request)

    loader = ClipLoader(dataset_of(cache, clip_sampler=Records(2, 1)), 2, num_threads=3, prefetch=2)
    batches = iter(loader)
    for number in range(1, 4):
        next(batches)
        assert processes.wait_until(lambda number=number: len(asked) == 2 * (number + 2), 30)
    assert not processes.wait_until(lambda: len(asked) > 10, 0.3)
    batches.close()
    assert_threads_end()


def test_break_and_begin_again(cache: Cache) -> None:
    dataset = dataset_of(cache)
    loader = ClipLoader(dataset, 4, num_threads=2)
    for epoch in range(5):
        for batch in loader:
            assert_same([batch], expected_batches(dataset, 4, epoch)[:1])
            break
        assert_threads_end()
    assert_same(list(loader), expected_batches(dataset, 4, 5))


def test_iterator_that_is_dropped(cache: Cache) -> None:
    batches = iter(ClipLoader(dataset_of(cache), 4))
    next(batches)
    del batches
    gc.collect()
    assert_threads_end()


LEFT = """
import os, sys
from chordcache import ChordVideoDataset, ClipLoader
for end in sys.argv[2:]:
    if child := os.fork():
        assert os.waitpid(child, 0)[1] == 0, end
        continue
    batches = iter(ClipLoader(ChordVideoDataset(sys.argv[1], clips_per_video=50), 8, num_threads=3))
    print(len(next(batches)["frames"]))
    exec(end)
    break
"""


ENDS = {
    "by itself": "",
    "in a circle": "loop = [batches]; loop.append(loop); del batches",
    "in a module that outlives others": "import builtins; builtins.batches = batches; del batches",
    "in a daemon": "import threading, time; threading.Thread(target=lambda: time.sleep(99), daemon=True).start()",
}


@pytest.mark.slow
def test_process_that_ends_in_the_middle_ends(cache: Cache) -> None:
    command = [sys.executable, "-W", "ignore:label", "-c", LEFT, cache.path, *ENDS.values()]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (result.returncode, result.stdout, result.stderr) == (0, "8\n" * len(ENDS), "")


@pytest.mark.parametrize(
    "options", [{}, {"drop_last": True}, {"augment": lambda batch: {"frames": batch["frames"] // 2}}]
)
def test_accelerate_skips_batches(cache: Cache, options: dict[str, Any]) -> None:
    accelerate = pytest.importorskip("accelerate")
    dataset = dataset_of(cache)
    whole, skipped = (ClipLoader(dataset, 4, **options) for _ in range(2))
    assert skipped.dataset is dataset
    rest = accelerate.skip_first_batches(skipped, 2)
    for epoch in (0, 3):
        whole.set_epoch(epoch)
        skipped.set_epoch(epoch)
        assert_same(list(rest), list(whole)[2:])


SHARED = """
import sys
import chordcache as cc
cache = cc.open_cache(sys.argv[1])
dataset = cc.ChordVideoDataset(cache, clip_sampler=cc.RandomClipSampler(4, 2), clips_per_video=5, size=None)
for _ in range(100):
    for number, batch in enumerate(cc.ClipLoader(dataset, 2, num_threads=2)):
        if number == 2:
            break
    cc.ChordVideoDataset(cache)
    cache.close()
"""


@pytest.mark.slow
def test_a_cache_that_is_shared_and_closed_while_threads_read(cache: Cache) -> None:
    result = subprocess.run(
        [sys.executable, "-W", "ignore:label", "-c", SHARED, cache.path], capture_output=True, text=True, timeout=120
    )
    assert (result.returncode, result.stderr) == (0, "")


def test_forked_workers_while_threads_read(cache: Cache) -> None:
    dataset = dataset_of(cache)
    expected = expected_batches(dataset, 4)
    batches = iter(ClipLoader(dataset, 4, num_threads=2))
    first = next(batches)
    loader = make_loader(dataset, 4, 2, start_method="fork")
    assert_same(list(loader), expected)
    shut_down(loader)
    assert_same([first, *batches], expected)


class Fails:
    """A sampler that fails at one sample."""

    def __init__(self, index: int, error: Exception) -> None:
        self.index, self.error = index, error

    def frame_numbers(self, video: Video, request: ClipRequest) -> np.ndarray:
        if request.index == self.index:
            raise self.error
        return np.arange(3)


@pytest.mark.parametrize("error", [DamageError("gone"), KeyError("x"), IndexError("far"), StopIteration("end")])
def test_an_error_is_raised_in_place_of_its_batch(cache: Cache, error: Exception) -> None:
    dataset = dataset_of(cache, clip_sampler=Fails(9, error))
    loader = ClipLoader(dataset, 2, sampler=ChordSampler(dataset, shuffle=False, batch_size=2), num_threads=3)
    batches = iter(loader)
    assert [len(next(batches)["frames"]) for _ in range(4)] == [2] * 4  # samples 0 to 7
    with pytest.raises(type(error)) as raised:
        if isinstance(error, StopIteration):
            with pytest.raises(RuntimeError, match="StopIteration"):
                next(batches)
            raise error
        next(batches)
    assert raised.value is error
    assert loader.state_dict()["num_consumed"] == 8
    assert_threads_end()


def test_videos_of_several_sizes_want_a_size(cache: Cache, tmp_path: Path, make_video: Callable[..., Path]) -> None:
    make_video(tmp_path / "a.mp4", size=(64, 48), num_frames=9)
    make_video(tmp_path / "b.mp4", size=(48, 64), num_frames=9)
    (tmp_path / "index.csv").write_text("path\na.mp4\nb.mp4\n")
    build(tmp_path / "index.csv", tmp_path / "cache", jobs=HERE)
    dataset = ChordVideoDataset(tmp_path / "cache", clip_sampler=SAMPLER, size=None)
    samples = dataset.__getitems__([(0, 0), (0, 1)])
    assert [torch.equal(sample["frames"], dataset[0, i]["frames"]) for i, sample in enumerate(samples)] == [True, True]
    dataset = ChordVideoDataset(tmp_path / "cache", clip_sampler=SAMPLER, size=(32, 32))
    assert_same(list(ClipLoader(dataset, 2)), expected_batches(dataset, 2))


LOADERS: dict[str, Callable[..., Any]] = {
    "threads": lambda dataset: ClipLoader(dataset, 4, num_threads=2),
    "workers": lambda dataset: make_loader(dataset, 4, 2),
    "no workers": lambda dataset: make_loader(dataset, batch_size=4),
}


@pytest.mark.parametrize("num_used", [0, 3, 7])
@pytest.mark.parametrize("kind", LOADERS)
def test_resume(cache: Cache, kind: str, num_used: int) -> None:
    """Another kind of loader goes on, with other workers or threads."""
    dataset = dataset_of(cache)
    first = LOADERS[kind](dataset)
    first.set_epoch(2)
    expected = expected_batches(dataset, 4, epoch=2)
    batches = iter(first)
    used = [next(batches) for _ in range(num_used)]
    state = first.state_dict()
    batches.close()
    second = ClipLoader(dataset, 4, num_threads=1, prefetch=1) if kind == "workers" else make_loader(dataset, 4, 1)
    second.load_state_dict(state)
    assert second.state_dict() == state
    assert second.epoch == (3 if num_used == 7 else 2), "that of the next pass"
    second.set_epoch(2)
    assert (len(second), second.num_batches_left) == (7, 7 - num_used)
    assert_same([*used, *second], expected)
    second.set_epoch(3)
    assert second.state_dict()["num_consumed"] == 0
    assert_same(list(second), expected_batches(dataset, 4, epoch=3))
    for loader in (first, second):
        shut_down(loader)


def test_a_loader_that_another_one_reads_from_has_no_state(cache: Cache) -> None:
    """accelerate makes another DataLoader of a loader that it prepares, and of one whose first batches it skips."""
    for loader in (make(dataset_of(cache)) for make in (LOADERS["threads"], LOADERS["no workers"])):
        assert loader.state_dict()["num_consumed"] == 0
        other = DataLoader(loader.dataset, batch_sampler=loader.batch_sampler, collate_fn=collate)
        next(iter(other))
        with pytest.raises(UsageError, match=r"loader.sampler.state_dict\(num_batches_consumed=n\)"):
            loader.state_dict()
        assert loader.sampler.state_dict(num_batches_consumed=1)["num_consumed"] == 4


def test_the_epoch_may_be_chosen_after_the_iterator_is_made(cache: Cache) -> None:
    """Lightning does so."""
    dataset = dataset_of(cache)
    for loader in (make(dataset) for make in LOADERS.values()):
        batches = iter(loader)
        loader.set_epoch(5)
        assert_same(list(batches), expected_batches(dataset, 4, epoch=5))
        shut_down(loader)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"num_threads": 0}, "^num_threads: got 0"),
        ({"prefetch": -1}, "^prefetch: got -1"),
        (
            {"sampler": ChordSampler(25)},
            r"^sampler: got one with batch_size=1, expected 4\. .* ChordSampler\(\.\.\., batch_size=4\)\.$",
        ),
        ({"sampler": ChordSampler(24)}, "^sampler: got one for 24 samples, expected 25 as in the dataset$"),
    ],
)
def test_wrong_arguments(cache: Cache, arguments: dict[str, Any], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        ClipLoader(dataset_of(cache), **{"batch_size": 4, **arguments})


def test_wrong_arguments_of_make_loader(cache: Cache) -> None:
    with pytest.raises(UsageError, match="^prefetch_factor: got 0"):
        make_loader(dataset_of(cache), 4, 1, prefetch_factor=0)
    assert len(make_loader(dataset_of(cache))) == 25
