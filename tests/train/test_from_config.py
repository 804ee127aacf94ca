"""Datasets and loaders that a config names are those that are made by hand."""

from __future__ import annotations

import contextlib
import copy
import importlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from helpers.training import assert_same, make_dataset
from torch.utils.data import DataLoader

import chordcache as cc
from chordcache.config.config import Config, config_from_json, config_to_json
from chordcache.config.yaml_files import load_config
from chordcache.errors import UsageError
from chordcache.train.instantiate import NAMED
from chordcache.train.samplers.budget_batches import BudgetBatchSampler
from chordcache.train.samplers.time_transforms import FrameDrop, TimeWarp

pytestmark = pytest.mark.usefixtures("inline")

REPOSITORY = Path(__file__).resolve().parent.parent.parent
PRESET = REPOSITORY / "examples" / "train.yaml"


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path]) -> Path:
    folder = tmp_path_factory.mktemp("videos")
    for number in range(4):
        make_video(folder / f"{number}.mp4", num_frames=20 + number, size=(96, 64), audio=True)
    rows = "".join(f"{n}.mp4,{'run' if n % 2 else 'walk'},video {n}\n" for n in range(4))
    (folder / "index.csv").write_text("path,label,caption\n" + rows)
    return folder


@pytest.fixture(scope="module")
def cache(videos: Path) -> Path:
    cc.build(videos / "index.csv", videos / "cache", tiers=["lmdb"], config=PRESET, jobs=1)
    return videos / "cache"


@pytest.fixture
def train(cache: Path) -> dict[str, Any]:
    """The section of the preset, with this cache."""
    section: dict[str, Any] = yaml.safe_load(PRESET.read_text())["train"]
    section["source"]["path"] = str(cache)
    return section


def by_hand(cache: Path) -> cc.ChordVideoDataset:
    """The dataset of the preset."""
    return cc.ChordVideoDataset(
        cache,
        clips_per_video=4,
        clip_sampler=FrameDrop(TimeWarp(cc.RandomClipSampler(16, stride=2), speed=(0.8, 1.25)), p=0.05),
        crop=cc.crops.HorizontalFlip(0.5, cc.crops.RandomResizedCrop((112, 112), scale=(0.3, 1.0))),
    )


def test_dataset_is_the_one_made_by_hand(train: dict[str, Any], cache: Path, tmp_path: Path) -> None:
    path = tmp_path / "chordcache.yaml"
    path.write_text(yaml.safe_dump({"train": train}))
    expected = by_hand(cache)
    for config in ({"train": train}, path, str(path), load_config(path)):
        dataset: Any = cc.from_config(config)[0]
        assert dataset._sampler == expected._sampler
        assert dataset._clips == expected._clips
        assert len(dataset) == len(expected) == 16
    for epoch in (0, 3):
        for position in (0, 7, 15):
            assert_same(dataset[epoch, position], expected[epoch, position])


def test_arguments_replace_those_of_the_config(train: dict[str, Any], cache: Path) -> None:
    train["source"]["path"] = "elsewhere"
    dataset = make_dataset(
        {"train": train}, cache=cache, clip_sampler={"name": "regular"}, size=(16, 16), clips_per_video=1
    )
    assert dataset._sampler == cc.RegularClipSampler()
    assert dataset._clips.spatial_transform == cc.crops.CenterCrop((16, 16))
    assert len(dataset) == 4


def test_a_missing_cache_is_built_with_the_same_config(train: dict[str, Any], videos: Path, tmp_path: Path) -> None:
    train["source"] = {"name": "index", "path": str(videos / "index.csv"), "on_miss": "source"}
    dataset = make_dataset({"frames": {"short_side": 32}, "train": train}, crop=None, size=None)
    assert dataset[0]["frames"].shape == (16, 3, 32, 48)


def test_videos_of_an_index_as_a_config_names_them(train: dict[str, Any], videos: Path, cache: Path) -> None:
    (videos / "more.csv").write_text((videos / "index.csv").read_text() + "new.mp4,run,video 4\n")
    shutil.copy(videos / "0.mp4", videos / "new.mp4")
    options: dict[str, Any] = {"clip_sampler": cc.RegularClipSampler(4), "size": (16, 16), "clips_per_video": 1}
    for on_miss, number in (("skip", 4), ("source", 5)):
        train["source"] = {"name": "index", "path": str(videos / "more.csv"), "cache": str(cache), "on_miss": on_miss}
        of_index = cc.videos.indexed(videos / "more.csv", cache, on_miss=on_miss)
        with contextlib.nullcontext() if on_miss == "source" else pytest.warns(UserWarning, match="1 not cached"):
            by_hand = cc.ChordVideoDataset(of_index, **options)
            of_config = make_dataset({"train": train}, **options)
            of_set = make_dataset({"train": {**train, "source": {"name": "none"}}}, cache=of_index, **options)
        for dataset in (of_config, of_set):
            assert len(dataset) == len(by_hand) == number
            assert_same(dataset[0, number - 1], by_hand[0, number - 1])


def test_a_selection_as_a_config_names_it(train: dict[str, Any], videos: Path, cache: Path) -> None:
    (videos / "split.txt").write_text("3.mp4\nnone.mp4\n1.mp4\n")
    train["dataset"] = {}
    train["source"] |= {"videos": str(videos / "split.txt"), "on_miss": "skip"}
    with pytest.warns(UserWarning, match="left out 1 of 3 videos: 1 not cached"):
        dataset = make_dataset({"train": train})
    assert [dataset[0, i]["caption"] for i in range(2)] == ["video 3", "video 1"]
    dataset = make_dataset({"train": train}, videos=["2.mp4"])
    assert [sample["caption"] for sample in dataset] == ["video 2"]


def test_every_name_is_documented() -> None:
    text = "".join((REPOSITORY / "docs" / name).read_text() for name in ("training-config.md", "sampling.md"))
    for kind, names in NAMED.items():
        assert [name for name in names if f"`{name}`" not in text] == [], kind


@pytest.mark.parametrize("path", [path for names in NAMED.values() for path in names.values()])
def test_every_name_has_a_class_or_function(path: str) -> None:
    module, _, attribute = path.rpartition(".")
    assert callable(getattr(importlib.import_module(module), attribute))


def passes(loader: Any, num: int = 2) -> list[list[dict[str, Any]]]:
    return [list(loader) for _ in range(num)]


def augment_by_hand() -> cc.BatchAugment:
    return cc.BatchAugment(mix="mixup", num_classes=2, features=("frames",))


def test_threads(train: dict[str, Any], cache: Path) -> None:
    dataset, loader = cc.from_config({"train": train})
    assert type(loader) is cc.ClipLoader
    assert loader.dataset is dataset
    augment = augment_by_hand()
    expected = [[augment(b) for b in batches] for batches in passes(cc.ClipLoader(by_hand(cache), 2, num_threads=2))]
    assert_same(passes(loader), expected)
    assert expected[0][0]["label"].shape == (2, 2)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_workers(train: dict[str, Any], cache: Path, num_workers: int) -> None:
    train["loader"] = {"name": "workers", "batch_size": 4, "num_workers": num_workers}
    loader = cc.from_config({"train": train})[1]
    assert isinstance(loader, DataLoader)
    assert (loader.num_workers, loader.batch_size) == (num_workers, 4)
    augment = augment_by_hand()
    expected = [[augment(b) for b in batches] for batches in passes(cc.ClipLoader(by_hand(cache), 4))]
    assert_same(passes(loader), expected)


def test_loader_of_another_dataset(train: dict[str, Any], cache: Path) -> None:
    del train["augment"]
    dataset = cc.subset(by_hand(cache), [3, 1])
    loader = cc.from_config({"train": train}, dataset)[1]
    assert_same(list(loader), list(cc.ClipLoader(dataset, 2)))


def test_a_validation_set_of_the_config_of_training(train: dict[str, Any], cache: Path) -> None:
    train["sampler"] = {"name": "distributed", "seed": 5}
    arguments = {"videos": ["1.mp4", "2.mp4", "3.mp4"], "augment": None, "sampler": None}
    _, loader = cc.from_config({"train": train}, loader={"shuffle": False}, clips_per_video=1, **arguments)
    assert (type(loader), loader.batch_size) == (cc.ClipLoader, 2)
    [first, second] = loader
    assert [*first["caption"], *second["caption"]] == ["video 1", "video 2", "video 3"]
    assert first["label"].dtype == torch.int64, "not mixed"
    assert "augment" in train


def test_order(train: dict[str, Any], cache: Path) -> None:
    del train["augment"]
    dataset = by_hand(cache)
    train["sampler"] = {"name": "distributed", "shuffle": False, "rank": 1, "world_size": 2}
    order = cc.ChordSampler(dataset, shuffle=False, rank=1, world_size=2, batch_size=2)
    assert_same(list(cc.from_config({"train": train})[1]), list(cc.ClipLoader(dataset, 2, sampler=order)))
    train["sampler"] = {"name": "budget", "max_frames": 48, "sampler": {"name": "distributed", "seed": 5}}
    batches = BudgetBatchSampler(dataset, cc.ChordSampler(dataset, seed=5), max_frames=48)
    for loader in ({"name": "threads"}, {"name": "workers", "num_workers": 0}):
        loaded = list(cc.from_config({"train": {**train, "loader": loader}})[1])
        assert [len(batch["label"]) for batch in loaded] == [3, 3, 3, 3, 3, 1]
        assert_same(loaded, list(cc.ClipLoader(dataset, None, sampler=copy.deepcopy(batches))))


def test_a_config_without_a_loader_and_a_config_as_dataset(train: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="^train.loader: got none, expected a section"):
        cc.from_config({"train": {**train, "loader": None}})
    for make in (cc.make_loader, cc.ClipLoader):
        with pytest.raises(UsageError, match="^dataset: got a str, expected .* Use chordcache.from_config for"):
            make("train.yaml", batch_size=2)


@pytest.mark.parametrize(
    ("section", "value", "match"),
    [
        ("source", {"name": "tape"}, "^train.source: got the name 'tape', expected one of cache, index, mp4$"),
        ("source", {"name": "cache"}, "^train.source 'cache': got no 'path', expected a value"),
        (
            "clip_sampler",
            {"name": "time_warp", "sampler": {"name": "x"}},
            "^train.clip_sampler.sampler: got the name 'x'",
        ),
        ("crop", {"name": "pad", "p": 1}, "^train.crop 'pad': got 'p', expected one of size$"),
        ("crop", {"name": "horizontal_flip", "of": 3}, "^train.crop.of: got 3, expected a mapping with a name"),
        ("sampler", {"name": "distributed", "dataset": 1}, "^train.sampler 'distributed': got 'dataset', expected one"),
        ("loader", {"name": "x"}, "^train.loader: got the name 'x', expected one of threads, workers$"),
        ("loader", {"name": "threads"}, "^train.loader 'threads': got no 'batch_size'"),
    ],
)
def test_unknown_names_and_arguments(train: dict[str, Any], section: str, value: Any, match: str) -> None:
    with pytest.raises(UsageError, match=match):
        cc.from_config({"train": {**train, section: value}})[1]


@pytest.mark.parametrize(
    ("section", "value", "match"),
    [
        ("crop", {"name": "pad", "size": 3}, r"^train.crop: size: got 3, expected \(height, width\)"),
        ("augment", {"name": "batch", "mix": "x"}, "^train.augment: mix: got 'x', expected one of"),
        ("loader", {"name": "threads", "batch_size": 0}, "batch_size: got 0, expected"),
        ("dataset", {"size": [64, 64]}, r"^train.dataset: size: got \[64, 64\] and a crop, expected one of them"),
        (
            "dataset",
            {"speed": 1},
            "^train.dataset: speed: got an argument that .* does not have, expected one of cache",
        ),
        ("dataset", {"videos": "s.txt"}, "^train.dataset: videos: got a selection and a set of videos, expected one"),
        (
            "source",
            {"name": "cache", "path": "c", "on_miss": "build"},
            "^train.source: on_miss: got 'build' without an",
        ),
        ("source", None, "^train.dataset: cache: got None, expected a folder or a Cache"),
    ],
)
def test_wrong_values(train: dict[str, Any], section: str, value: Any, match: str) -> None:
    with pytest.raises(UsageError, match=match):
        cc.from_config({"train": {**train, section: value}})[1]


def test_videos_that_arguments_do_not_name(train: dict[str, Any], videos: Path, cache: Path) -> None:
    for removed in ({"source": cc.MP4Source()}, {"flow": "adjacent"}):
        with pytest.raises(UsageError, match=f"{next(iter(removed))}: got an argument that ChordVideoDataset does not"):
            make_dataset({"train": train}, **removed)
    with pytest.raises(UsageError, match="^train.dataset: videos: got a selection and a set of videos"):
        make_dataset({"train": train}, cache=cc.videos.cached(cache), videos=["0.mp4"])
    files = {**train, "source": {"name": "mp4", "path": str(videos)}}
    with pytest.raises(UsageError, match="^train.source 'mp4': got 'videos', expected one of path, index, mapped$"):
        make_dataset({"train": files}, videos=["0.mp4"])


@pytest.mark.parametrize(
    ("value", "match"),
    [
        ([1], r"^train: got \[1\], expected a mapping of sections"),
        ({"optimizer": {}}, "^train.optimizer: got an unknown key, expected one of source, dataset, clip_sampler, "),
        ({"crop": {"size": 3}}, r"^train.crop: got {'size': 3}, expected a mapping with a name"),
        ({"loader": "threads"}, "^train.loader: got 'threads', expected a mapping with a name"),
        ({"dataset": 1}, "^train.dataset: got 1, expected a mapping of arguments"),
        ({"crop": {"name": "pad", "size": {1}}}, "^train: got a value other than plain data"),
    ],
)
def test_sections_that_are_not_configs(value: Any, match: str) -> None:
    with pytest.raises(UsageError, match=match):
        config_from_json({"train": value})


def test_builds_do_not_depend_on_the_section(train: dict[str, Any], videos: Path, tmp_path: Path) -> None:
    plain, trained = config_from_json({}), config_from_json({"train": train})
    assert plain == trained
    assert config_to_json(plain) == config_to_json(trained)
    assert config_from_json(config_to_json(trained)).train == {}
    assert trained.train == train
    assert Config(train=train) == Config()
    headers = []
    for num_done, config in ((4, plain), (0, trained), (0, plain)):
        summary = cc.build(videos / "index.csv", tmp_path / "cache", tiers=["lmdb"], config=config, jobs=1)
        assert (summary.num_done, summary.num_up_to_date) == (num_done, 4 - num_done)
        headers.append((tmp_path / "cache" / "chordcache.json").read_bytes())
    assert headers == headers[:1] * 3
