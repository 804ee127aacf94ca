"""Epochs that are complete and disjoint under Lightning, Fabric, accelerate, the transformers Trainer and torch."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from helpers.ranks import run_ranks, run_steps

import chordcache as cc

PROGRAM = Path(__file__).parents[1] / "helpers/framework_ranks.py"
EXAMPLE_RANKS = Path(__file__).parents[1] / "helpers/example_ranks.py"
FOLDER_OF_EXAMPLES = Path(__file__).parents[2] / "examples"
BATCH_SIZE = 4
MODULES = (
    *("torch._dynamo", "torch.distributed.checkpoint", "chordcache.train.loader"),
    *("lightning", "accelerate", "transformers"),
)
"""Modules that ranks import sooner or later"""
NEEDS_TRANSFORMERS = pytest.mark.skipif(
    find_spec("transformers") is None, reason="no transformers: pip install 'chordcache[models]'"
)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path]) -> Path:
    folder = tmp_path_factory.mktemp("frameworks")
    make_video(folder / "videos/a.mp4", num_frames=40, size=(32, 32))
    cc.build(cc.scan([folder / "videos"], jobs=1), folder / "cache", features=["frames"], jobs=1)
    return folder / "cache"


def dataset_of(cache: Path) -> cc.ChordVideoDataset:
    return cc.ChordVideoDataset(cache, clip_sampler=cc.RandomClipSampler(1), size=(16, 16), clips_per_video=23)


def expected_epoch(cache: Path, case: str, epoch: int) -> Counter[str]:
    """Count the samples of an epoch of one rank."""
    dataset: Any = dataset_of(cache)
    if case.endswith("weights"):
        dataset = cc.concat([dataset, cc.subset(dataset, range(6))], weights=[0.7, 0.3])
    sampler = cc.ChordSampler(dataset)
    sampler.set_epoch(epoch)
    return Counter(f"{drawn}:{index}" for drawn, index in sampler)


@pytest.mark.slow
@NEEDS_TRANSFORMERS
def test_each_epoch_of_all_ranks_is_complete_and_disjoint(cache: Path, tmp_path: Path) -> None:
    world_size = 3
    (tmp_path / "cache").symlink_to(cache)
    run_ranks(PROGRAM.read_text(), tmp_path, world_size, modules=MODULES)
    ranks = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(world_size)]
    refusals = {name: text for name, text in ranks[0].items() if isinstance(text, str)}
    epochs = {name: len(ranks[0][name]) for name in ranks[0].keys() - refusals.keys()}
    for name, epoch in ((name, epoch) for name, num_epochs in epochs.items() for epoch in range(num_epochs)):
        split = [rank[name][epoch] for rank in ranks]
        samples = Counter(sample for of_rank in split for sample in of_rank)
        whole = expected_epoch(cache, name, epoch)
        assert not whole - samples, (name, epoch)
        deals_batches = "budget" in name or "batch_sampler" in name
        is_split_by_accelerate = name.startswith(("accelerate", "trainer")) and "ClipLoader" not in name
        num_repeated = world_size * (BATCH_SIZE if deals_batches or is_split_by_accelerate else 1)
        assert sum((samples - whole).values()) < num_repeated, (name, epoch)
        assert deals_batches or len({len(of_rank) for of_rank in split}) == 1, (name, epoch)
    per_framework = Counter(name.partition(":")[0] for name in epochs)
    assert per_framework == {"torch": 10, "fabric": 9, "lightning": 22, "accelerate": 13, "trainer": 4}
    assert "use_distributed_sampler=False" in refusals["lightning refuses"]
    assert "use_distributed_sampler=False" in refusals["fabric refuses"]
    assert "epoch: got 0 after load_state_dict of a state of epoch 3" in refusals["fabric refuses a state"]
    assert f"world_size: got {world_size} in a loader that accelerate prepared" in refusals["accelerate refuses"]
    assert len(refusals) == 4


@pytest.fixture(scope="module")
def small_cache(tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path]) -> Path:
    """Seven videos: 21 clips, of which two ranks cannot have as many each, in three batches of each rank."""
    folder = tmp_path_factory.mktemp("examples")
    for number in range(7):
        make_video(folder / f"videos/{number}.mp4", num_frames=8, size=(32, 32))
    cc.build(cc.scan([folder / "videos"], jobs=1), folder / "cache", features=["frames"], jobs=1)
    return folder / "cache"


EXAMPLES = {
    "ddp": (2, 3), "fsdp": (3, 1), "fabric": (3, 1), "accelerate": (2, 3), "torchdata": (2, 1), "lightning": (2, 1),
    "trainer": (2, 1),
}  # fmt: skip
"""Name of each example to its numbers of ranks before and after a stop"""


@pytest.fixture(scope="module")
def example_ranks(small_cache: Path) -> Path:
    """The folder with what the ranks of all examples printed. They are forks of one process, which imports once."""
    steps: list[tuple[object, ...]] = []
    for name, (before, after) in EXAMPLES.items():
        path = FOLDER_OF_EXAMPLES / f"with_{name}.py"
        (small_cache.parent / path.stem).mkdir()
        steps += [(2, path), (before, path, 1), (after, path, 0)]
    run_steps(EXAMPLE_RANKS.read_text(), small_cache.parent, steps, modules=(*MODULES, "torchdata"))
    return small_cache.parent


@pytest.mark.slow
@pytest.mark.timeout(900)
@NEEDS_TRANSFORMERS
@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_train_on_all_samples_and_resume(example_ranks: Path, name: str) -> None:
    """With two ranks, and with another number of them, which some refuse."""
    folder, (before, after) = example_ranks / f"with_{name}", EXAMPLES[name]
    check_two_ranks(name, [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(2)])
    first, second = (
        [line for rank in range(num_ranks) for line in json.loads((folder / f"moved-{steps}-{rank}.json").read_text())]
        for steps, num_ranks in ((1, before), (0, after))
    )
    begun = [samples_of(first, epoch) for epoch in (0, 1)]
    assert [samples.total() for samples in begun] == [4 * before, 0]
    if name in ("torchdata", "lightning", "trainer"):
        assert [line.endswith("Resume with 2 ranks.") for line in second] == [True]
        return
    for epoch, samples in enumerate(begun):
        samples += samples_of(second, epoch)
        assert samples.keys() == {f"{epoch}:{index}" for index in range(21)}
        assert samples.total() - 21 < after * (4 if name == "accelerate" else 1)


def check_two_ranks(name: str, ranks: list[dict[str, list[str]]]) -> None:
    num_alike = 5 if name == "accelerate" else 6  # it fills the last batch with the first samples of the pass
    for runs in ranks:
        assert len(runs["whole"]) == 6
        for stop in (3, 4):
            assert len(runs[f"stopped after {stop}"]) == stop
            both = runs[f"stopped after {stop}"] + runs[f"resumed after {stop}"]
            assert both[:num_alike] == runs["whole"][:num_alike]
            assert len(both) == 6
    # The last batch is filled, or is not, or a rank is
    num_repeated = {"accelerate": 3, "torchdata": 0}.get(name, 1)
    for epoch in (0, 1):
        samples = samples_of([line for runs in ranks for line in runs["whole"]], epoch)
        assert samples.keys() == {f"{epoch}:{index}" for index in range(21)}
        assert samples.total() == 21 + num_repeated
        assert max(samples.values()) <= 2


def samples_of(lines: list[str], epoch: int) -> Counter[str]:
    """Count the samples of an epoch that the lines of ranks name."""
    of_epoch = (line for line in lines if line.startswith(f"epoch {epoch} "))
    return Counter(sample for line in of_epoch for sample in line.partition(" samples ")[2].split())
