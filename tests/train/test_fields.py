"""Fields put the annotations of the index into samples, and boxes lie on what the pictures show."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.inline import HERE

import chordcache as cc
from chordcache.errors import UsageError
from chordcache.index.index_files import IndexWriter
from chordcache.records import VideoRecord

COLUMNS = {
    "score": "float",
    "count": "int",
    "rare": "int",
    "is_day": "bool",
    "times": "list[float]",
    "ids": "list[int]",
    "words": "list[str]",
}

ITEMS: dict[str, dict[str, Any]] = {
    "a.mp4": {
        "label": "run",
        "labels": ("run", "sing"),
        "caption": "one",
        "captions": ("two", "three"),
        "extra": {
            "score": 0.5,
            "count": 2**53 + 1,
            "rare": 1,
            "is_day": True,
            "times": [0.25, 1.5],
            "ids": [3],
            "words": ["x", "y"],
            "place": "indoors",
        },
    },
    "b.mp4": {"labels": ("jump",), "extra": {"count": 0, "is_day": False, "score": None}},
    "c.mp4": {"label": "walk", "caption": "only", "extra": {"count": -1, "is_day": False, "words": []}},
}


def write_index(folder: Path, items: dict[str, dict[str, Any]], columns: dict[str, str]) -> Path:
    path = folder / "index.json"
    with IndexWriter(path, roots={"root": str(folder)}, level=None, columns=columns) as writer:
        for name, item in items.items():
            writer.write(VideoRecord(root="root", path=name, **item))
    return path


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path]) -> Path:
    folder = tmp_path_factory.mktemp("fields")
    for name in ITEMS:
        make_video(folder / name)
    summary = cc.build(write_index(folder, ITEMS, COLUMNS), folder / "cache", jobs=HERE)
    assert (summary.num_done, summary.num_failed) == (3, 0)
    return folder / "cache"


def dataset_of(cache: Any, *fields: str, **settings: Any) -> cc.ChordVideoDataset:
    sampler = cc.RegularClipSampler(num_frames=2, stride=1)
    return cc.ChordVideoDataset(cache, **{"clip_sampler": sampler, "size": (8, 8), "fields": fields, **settings})


def samples_by_path(dataset: Any, cache: Path) -> dict[str, dict[str, Any]]:
    paths = {video.key: video.path for video in cc.open_cache(cache)}
    return {paths[sample["video"]]: sample for sample in map(dataset.__getitem__, range(len(dataset)))}


def test_video_has_the_annotations(cache: Path) -> None:
    video = next(video for video in cc.open_cache(cache) if video.path == "a.mp4")
    assert (video.label, video.labels) == ("run", ("run", "sing"))
    assert (video.caption, video.captions) == ("one", ("two", "three"))
    assert video.segment is None
    assert video.extra == ITEMS["a.mp4"]["extra"]


def test_values_and_types(cache: Path) -> None:
    samples = samples_by_path(dataset_of(cache, "score", "count", "is_day", "times", "ids", "words", "place"), cache)
    sample = samples["a.mp4"]
    values = {
        name: (sample[name].dtype, sample[name].tolist()) for name in ("score", "count", "is_day", "times", "ids")
    }
    assert values == {
        "score": (torch.float32, 0.5),
        "count": (torch.int64, 2**53 + 1),
        "is_day": (torch.bool, True),
        "times": (torch.float32, [0.25, 1.5]),
        "ids": (torch.int64, [3]),
    }
    assert (sample["words"], sample["place"]) == (["x", "y"], "indoors")


def test_missing_values(cache: Path) -> None:
    samples = samples_by_path(dataset_of(cache, "score", "times", "ids", "words", "place", "captions"), cache)
    for name in ("b.mp4", "c.mp4"):  # None is a missing value too
        assert math.isnan(samples[name]["score"])
        assert (samples[name]["words"], samples[name]["place"]) == ([], "")
        assert samples[name]["times"].shape == samples[name]["ids"].shape == (0,)
    assert samples["b.mp4"]["captions"] == []


def test_an_int_that_is_missing_is_an_error(cache: Path) -> None:
    with pytest.raises(UsageError, match=r"'rare' \(int\), which is missing in 2 of 3 items, .*\. Select items"):
        dataset_of(cache, "rare")
    assert len(dataset_of(cache, "rare", videos=lambda video: video.extra.get("rare") is not None)) == 1
    with pytest.raises(UsageError, match=r"'rare' \(int\), which video '\w+-\w+' does not have"):
        dataset_of(cache, "rare", videos=lambda video: True)[1]


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        (("scores",), "got 'scores', expected one of label, labels, caption, captions, .*place.*score"),
        (("video",), "got 'video', expected one of label"),
        (("score", "score"), "expected a sequence of distinct"),
    ],
)
def test_wrong_fields(cache: Path, fields: Any, match: str) -> None:
    with pytest.raises(UsageError, match=match):
        dataset_of(cache, fields=fields)


@pytest.mark.parametrize("name", ["frames", "flows", "video", "lengths", "motion_covered"])
def test_a_column_of_a_taken_name_is_refused(tmp_path: Path, make_video: Callable[..., Path], name: str) -> None:
    make_video(tmp_path / "a.mp4", num_frames=2)
    cc.build(write_index(tmp_path, {"a.mp4": {"extra": {name: "text"}}}, {}), tmp_path / "cache", jobs=HERE)
    with pytest.raises(UsageError, match=f"got '{name}', expected a name that a sample does not have yet"):
        dataset_of(tmp_path / "cache", name)


@pytest.mark.parametrize("loader", ["collate", "processes"])
def test_batches(cache: Path, loader: str) -> None:
    dataset = dataset_of(cache, "score", "times", "words", "captions", "labels")
    order = cc.ChordSampler(dataset, shuffle=False, batch_size=3)
    if loader == "collate":
        batch = cc.collate(dataset.__getitems__([0, 1, 2]))
    else:
        (batch,) = cc.make_loader(dataset, batch_size=3, sampler=order, num_workers=1)
    samples = [dataset[0, i] for i in range(3)]
    assert batch["words"] == [sample["words"] for sample in samples]
    assert batch["captions"] == [sample["captions"] for sample in samples]
    assert batch["times"].shape == (3, 2)
    assert batch["lengths"]["times"][:, 0].tolist() == [len(sample["times"]) for sample in samples]
    assert batch["score"].isnan().tolist() == [bool(sample["score"].isnan()) for sample in samples]
    torch.testing.assert_close(batch["labels"], torch.stack([sample["labels"] for sample in samples]))


def test_an_index_gives_its_own_annotations(cache: Path, tmp_path: Path) -> None:
    items = {"a.mp4": {"labels": ("new",), "extra": {"level": 3}}}
    with IndexWriter(tmp_path / "i.json", roots={"root": str(cache.parent)}, level=None, columns={"level": "int"}) as w:
        for name, item in items.items():
            w.write(VideoRecord(root="root", path=name, **item))
    for on_miss in ("error", "source"):
        videos = cc.videos.indexed(tmp_path / "i.json", cache, on_miss=on_miss)
        dataset = dataset_of(videos, "level", "labels")
        assert (dataset.classes, dataset[0]["level"].item(), dataset[0]["labels"].tolist()) == (["new"], 3, [1])
        with pytest.raises(UsageError, match="got 'score', expected one of label, labels, caption, captions, level$"):
            dataset_of(videos, "score")


def test_one_of_the_captions_is_drawn(cache: Path) -> None:
    dataset = dataset_of(cache, "caption", "captions")
    key = next(video.key for video in cc.open_cache(cache) if video.path == "a.mp4")
    place = next(i for i in range(3) if dataset[0, i]["video"] == key)
    drawn = [dataset[epoch, place]["caption"] for epoch in range(60)]
    assert dataset[0, place]["captions"] == ["one", "two", "three"]
    assert {*drawn} == {"one", "two", "three"}
    assert min(map(drawn.count, {*drawn})) > 8  # 20 on average
    again = pickle.loads(pickle.dumps(dataset))
    assert [again[epoch, place]["caption"] for epoch in range(60)] == drawn
    again.set_epoch(7)
    assert again[place]["caption"] == drawn[7]
    assert [dataset_of(cache, "caption", seed=1)[epoch, place]["caption"] for epoch in range(60)] != drawn
    # Another stream than clips and crops: these are as without the field
    sampler = cc.RandomClipSampler(num_frames=3, stride=2)
    pair = [dataset_of(cache, *fields, clip_sampler=sampler)[5, place] for fields in ((), ("caption",))]
    assert pair[0]["pts_seconds"].tolist() == pair[1]["pts_seconds"].tolist()
    assert {name: sample["caption"] for name, sample in samples_by_path(dataset, cache).items() if name != "a.mp4"} == {
        "b.mp4": "",
        "c.mp4": "only",
    }


def test_multi_hot_labels(cache: Path) -> None:
    dataset = dataset_of(cache, "labels")
    assert dataset.classes == ["jump", "run", "sing", "walk"]
    samples = samples_by_path(dataset, cache)
    assert samples["a.mp4"]["labels"].dtype == torch.float32
    assert {name: sample["labels"].tolist() for name, sample in samples.items()} == {
        "a.mp4": [0, 1, 1, 0],
        "b.mp4": [1, 0, 0, 0],
        "c.mp4": [0, 0, 0, 1],  # its only label
    }
    assert {name: sample["label"].item() for name, sample in samples.items()} == {"a.mp4": 1, "b.mp4": -1, "c.mp4": 3}


def test_labels_that_are_not_in_classes(cache: Path) -> None:
    with pytest.raises(UsageError, match="classes: got .*, expected also 'sing', the label of video"):
        dataset_of(cache, "labels", classes=["jump", "run", "walk"])
    only_b = dataset_of(cache, "labels", classes=["jump"], videos=lambda video: video.path == "b.mp4")
    assert only_b[0]["labels"].tolist() == [1]
    assert dataset_of(cache, classes=["run", "walk"]).classes == ["run", "walk"]  # as before


def test_concat_and_subset(cache: Path) -> None:
    classes = ["jump", "run", "sing", "walk", "zoo"]
    first = dataset_of(cache, "labels", "score", classes=classes)
    only_b = dataset_of(cache, "labels", "score", classes=classes, videos=lambda video: video.path == "b.mp4")
    both = cc.concat([first, only_b])
    assert both.classes == classes
    assert both.fields == {"labels": "multi_hot", "score": "float"}
    for i in range(3):
        assert both[0, i]["labels"].tolist() == first[0, i]["labels"].tolist()
    assert both[0, 3]["labels"].tolist() == [1, 0, 0, 0, 0]
    assert cc.subset(both, [3])[0]["labels"].tolist() == [1, 0, 0, 0, 0]
    with pytest.raises(UsageError, match=r"fields: got \{\} in dataset 1, expected .*'labels'.* as in dataset 0"):
        cc.concat([first, dataset_of(cache)])


def test_balanced_weights_are_refused(cache: Path) -> None:
    dataset = dataset_of(cache, "labels")
    for variant in (dataset, cc.concat([dataset]), cc.subset(dataset, [0])):
        with pytest.raises(UsageError, match="weights: got 'balanced' for a dataset with the field 'labels'"):
            cc.ChordSampler(variant, weights="balanced", batch_size=1)


@pytest.mark.parametrize("mix", ["mixup", "cutmix"])
def test_labels_are_mixed_as_the_label_is(cache: Path, mix: str) -> None:
    batch = {
        "frames": torch.zeros(3, 2, 3, 8, 8, dtype=torch.uint8),
        "label": torch.tensor([0, 1, 2]),
        "labels": torch.eye(3),
        "times": torch.ones(3, 4),
        "sample_id": ["0:0", "0:1", "0:2"],
    }
    dataset = dataset_of(cache, "labels", "times")
    out = cc.BatchAugment(mix=mix, num_classes=3, fields=dataset.fields)(batch)
    assert 0 < out["labels"].max() < 1
    torch.testing.assert_close(out["labels"], out["label"])
    assert out["times"] is batch["times"]
    with pytest.raises(UsageError, match="got 'times' with mix"):
        cc.BatchAugment(mix=mix, num_classes=3)(batch)
