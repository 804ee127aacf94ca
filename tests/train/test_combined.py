"""Datasets together: joined, in part, and drawn by weights, in every loader, over ranks and after kills."""

from __future__ import annotations

import copy
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.inline import HERE
from helpers.shares import bound, shares_of
from torch.utils.data import (
    ConcatDataset,
    DistributedSampler,
    Subset,
    WeightedRandomSampler,
    random_split,
)

import chordcache as cc
from chordcache.errors import UsageError
from chordcache.train.clip_dataset import ClipDataset
from chordcache.train.samplers.budget_batches import BudgetBatchSampler
from chordcache.train.samplers.clip_request import ClipRequest
from chordcache.train.samplers.clip_samplers import SamplerSchedule

LABELS = {
    "a": ["run", "jump", "run", "run"],
    "b": ["swim", "run", "swim", "swim", "swim", "swim"],
    "c": ["run", "", "jump"],
}
"""Label of each video of each cache, in the order of the keys"""

CLASSES = ["jump", "run", "swim"]


@pytest.fixture(scope="module")
def caches(tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path]) -> dict[str, Path]:
    """Three small caches of videos of one size."""
    folder = tmp_path_factory.mktemp("combined")
    for name, labels in LABELS.items():
        rows = []
        for number, label in enumerate(labels):
            make_video(folder / name / f"{name}{number}.mp4", num_frames=40, size=(32, 32))
            rows.append(f"{name}{number}.mp4,{label}\n")
        (folder / name / "index.csv").write_text("path,label\n" + "".join(rows))
        config = folder / "config.yaml"
        config.write_text("features: {motion: null, flow: null, mel: null}\n")
        summary = cc.build(folder / name / "index.csv", folder / f"cache-{name}", config=config, jobs=HERE)
        assert summary.num_done == len(labels)
    return {name: folder / f"cache-{name}" for name in LABELS}


def dataset_of(cache: Any, **options: Any) -> cc.ChordVideoDataset:
    options = {
        "clip_sampler": cc.RandomClipSampler(2, stride=3),
        "size": (16, 16),
        "seed": 3,
        "classes": CLASSES,
        **options,
    }
    return cc.ChordVideoDataset(cache, **options)


@pytest.fixture
def a(caches: dict[str, Path]) -> cc.ChordVideoDataset:
    return dataset_of(caches["a"])


@pytest.fixture
def b(caches: dict[str, Path]) -> cc.ChordVideoDataset:
    return dataset_of(caches["b"], seed=4, clips_per_video=2)


def parts_of(sample: dict[str, Any], *left_out: str) -> dict[str, Any]:
    return {
        name: v.tolist() if isinstance(v, torch.Tensor) else v for name, v in sample.items() if name not in left_out
    }


def names_of(dataset: ClipDataset) -> list[str | None]:
    """The label of each sample by ``label_ids``."""
    return [dataset.classes[number] if number >= 0 else None for number in dataset.label_ids]


def order_of(sampler: Any, epoch: int | None = None) -> list[tuple[int, int]]:
    if epoch is not None:
        sampler.set_epoch(epoch)
    return list(sampler)


def test_label_ids_are_those_of_the_samples(caches: dict[str, Path]) -> None:
    with cc.open_cache(caches["c"]) as cache:
        keys = cache.keys()
    index = caches["c"].parent / "c" / "index.csv"
    options: dict[str, Any]
    for options in (
        {},
        {"clips_per_video": 3},
        {"videos": keys[::-1]},
        {"videos": lambda video: video.label != "run", "classes": ["walk", "jump"]},
        {"classes": ["walk", "run", "jump"]},
        {"cache": cc.videos.indexed(index, caches["c"])},
        {"cache": cc.videos.indexed(index, caches["c"], on_miss="source"), "classes": ["walk", "run", "jump"]},
    ):
        dataset = dataset_of(**{"cache": caches["c"], **options})
        label_ids = dataset.label_ids
        assert label_ids.dtype == np.int64
        assert label_ids.tolist() == [int(dataset[0, i]["label"]) for i in range(len(dataset))]
    assert names_of(dataset_of(caches["c"])) == ["run", None, "jump"]


def test_label_ids_of_a_cache_that_changed(
    tmp_path: Path, make_video: Callable[..., Path], caches: dict[str, Path]
) -> None:
    make_video(tmp_path / "1.mp4", num_frames=10, size=(32, 32))
    index = tmp_path / "index.csv"
    index.write_text("path,label\n1.mp4,run\n")
    cc.build(index, tmp_path / "cache", features=["frames"], jobs=HERE)
    dataset = dataset_of(tmp_path / "cache", classes=None)
    with cc.open_cache(tmp_path / "cache") as cache:
        pinned = dataset_of(tmp_path / "cache", videos=cache.keys(), classes=None)
    make_video(tmp_path / "0.mp4", num_frames=10, size=(32, 32))
    index.write_text("path,label\n0.mp4,jump\n1.mp4,run\n")
    cc.build(index, tmp_path / "cache", features=["frames"], jobs=HERE)
    with pytest.raises(UsageError, match="had 1 video when the dataset was made"):
        _ = dataset.label_ids
    assert names_of(pinned) == ["run"]
    index.write_text("path,label\n0.mp4,jump\n1.mp4,fly\n")
    cc.build(index, tmp_path / "cache", features=["frames"], jobs=HERE)
    with pytest.raises(UsageError, match=r"^classes: got \['run'\], expected also 'fly', the label of a video$"):
        _ = pinned.label_ids


def test_samples_of_joined_datasets_are_those_of_the_parts(a: cc.ChordVideoDataset, b: cc.ChordVideoDataset) -> None:
    both = cc.concat([a, b])
    assert (len(both), both.classes) == (4 + 12, ["jump", "run", "swim"])
    assert names_of(both) == LABELS["a"] + [label for label in LABELS["b"] for _ in range(2)]
    for epoch in (0, 5):
        expected = [a[epoch, i] for i in range(4)] + [b[epoch, i] for i in range(12)]
        for index, other in enumerate(expected):
            sample = both[epoch, index]
            assert parts_of(sample, "sample_id", "label") == parts_of(other, "sample_id", "label")
            assert sample["sample_id"] == f"{epoch}:{index}"
            assert sample["label"].dtype == torch.int64
            assert both.classes[sample["label"]] == names_of(both)[index]
            video, shape = both.describe((epoch, index))
            assert (video.key, shape) == (sample["video"], (2, 16, 16, 3))
    assert parts_of(both[2, -1]) == parts_of(both[2, 15])
    for index in (16, -17, (0, 16)):
        with pytest.raises(IndexError, match="is out of range for a dataset of 16 samples"):
            _ = both[index]


def test_plain_reads_of_joined_datasets(a: cc.ChordVideoDataset, b: cc.ChordVideoDataset) -> None:
    both = cc.concat([a, b])
    ids = [both[5]["sample_id"] for _ in range(3)]
    epochs = [int(sample_id.split(":")[0]) for sample_id in ids]
    assert len(set(epochs)) == 3
    assert [both[epoch, 5]["pts_seconds"].tolist() for epoch in epochs] == [
        b[epoch, 1]["pts_seconds"].tolist() for epoch in epochs
    ]
    both.set_epoch(7)
    assert [both[5]["sample_id"], both[0]["sample_id"], b[1]["sample_id"]] == ["7:5", "7:0", "7:1"]
    with pytest.raises(UsageError, match="^epoch: got -1"):
        _ = both[-1, 0]


@pytest.mark.parametrize(
    ("classes", "difference"),
    [
        (["run", "swim"], r"others in dataset 1, without \['jump'\]"),
        (["jump", "run", "swim", "fly"], r"\['fly'\] besides in dataset 1"),
        (["run", "swim", "fly"], r"\['fly'\] besides in dataset 1, without \['jump'\]"),
        (["swim", "run", "jump"], "another order in dataset 1"),
    ],
)
def test_classes_that_differ(
    a: cc.ChordVideoDataset, caches: dict[str, Path], classes: list[str], difference: str
) -> None:
    with pytest.raises(UsageError, match=f"^classes: got {difference}, expected those of dataset 0. Pass one list as"):
        cc.concat([a, dataset_of(caches["b"], classes=classes)])


def test_copies_of_combined_datasets(a: cc.ChordVideoDataset, b: cc.ChordVideoDataset) -> None:
    both = cc.subset(cc.concat([a, b], weights=[1, 3]), range(2, 9))
    for other in (pickle.loads(pickle.dumps(both)), copy.deepcopy(both)):
        assert [parts_of(other[1, i]) for i in range(7)] == [parts_of(both[1, i]) for i in range(7)]
        assert other.sample_weights.tolist() == both.sample_weights.tolist()
        assert repr(other) == repr(both)
    assert repr(both) == "<subset of 7 samples of <concat of 2 datasets: 16 samples, weights 1, 3>>"


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (
            {"clip_sampler": cc.RandomClipSampler(3)},
            "^num_frames: got 3 in dataset 1, expected 2 as in dataset 0. Make the datasets with the same num_frames, ",
        ),
        ({"size": (8, 16)}, r"^size: got \(8, 16\) in dataset 1, expected \(16, 16\) as in dataset 0\."),
        (
            {"size": (224, 224), "crop": cc.crops.HorizontalFlip(0.5, cc.crops.RandomResizedCrop((8, 8)))},
            r"^size: got \(8, 8\) in dataset 1, expected \(16, 16\) as in dataset 0\.",
        ),
        ({"missing": "zeros"}, "^missing: got 'zeros' in dataset 1, expected 'error' as in dataset 0."),
    ],
)
def test_settings_that_differ(
    a: cc.ChordVideoDataset, caches: dict[str, Path], options: dict[str, Any], match: str
) -> None:
    with pytest.raises(UsageError, match=match):
        cc.concat([a, dataset_of(caches["b"], **options)])


def test_settings_that_are_unknown_do_not_differ(a: cc.ChordVideoDataset, caches: dict[str, Path]) -> None:
    schedule = SamplerSchedule({0: cc.RegularClipSampler(2, 3), 2: cc.RandomClipSampler(2, 3)})
    both = cc.concat([dataset_of(caches["b"], clip_sampler=schedule), a])
    assert both.settings["num_frames"] == 2
    with pytest.raises(UsageError, match="^num_frames: got 3 in dataset 1, expected 2 as in dataset 0"):
        cc.concat([both, dataset_of(caches["c"], clip_sampler=cc.RandomClipSampler(3))])


def test_wrong_datasets(a: cc.ChordVideoDataset) -> None:
    with pytest.raises(UsageError, match="^datasets: got none, expected at least one$"):
        cc.concat([])
    with pytest.raises(
        UsageError, match="^datasets: got a list, expected a ChordVideoDataset, or what concat or subset"
    ):
        cc.concat([a, [1, 2]])
    with pytest.raises(UsageError, match="^dataset: got a int, expected a ChordVideoDataset"):
        cc.subset(5, [0])
    with pytest.raises(UsageError, match=r"^weights: got \[1\], expected 2 numbers, one for each dataset$"):
        cc.concat([a, a], weights=[1])


@pytest.mark.parametrize(
    ("positions", "expected"),
    [
        ([3, 0, -1, 3], [3, 0, 11, 3]),
        (np.array([1, 2], np.uint8), [1, 2]),
        (slice(None, None, 5), [0, 5, 10]),
        (slice(-2, None), [10, 11]),
        (range(4, 0, -2), [4, 2]),
        (np.arange(12) % 6 == 1, [1, 7]),
        ([True] + 11 * [False], [0]),
    ],
)
def test_positions(b: cc.ChordVideoDataset, positions: Any, expected: list[int]) -> None:
    some = cc.subset(b, positions)
    assert (len(some), some.classes) == (len(expected), b.classes)
    assert some.label_ids.tolist() == b.label_ids[expected].tolist()
    for index, position in enumerate(expected):
        sample = some[2, index]
        assert parts_of(sample, "sample_id") == parts_of(b[2, position], "sample_id")
        assert sample["sample_id"] == f"2:{index}"
        assert some.describe((2, index))[0].key == sample["video"]


@pytest.mark.parametrize(
    ("positions", "match"),
    [
        ([], "^positions: got none, expected at least one of 12 samples$"),
        (np.zeros(12, bool), "^positions: got none"),
        ([0, 12], r"^positions: got 12, expected positions in \[-12, 12\) as the dataset has 12 samples$"),
        (
            [0.5],
            r"^positions: got float64 of shape \(1,\), expected integers of shape \(n,\), a slice, or a mask of 12",
        ),
        ([[0]], r"^positions: got int64 of shape \(1, 1\)"),
        ([True], r"^positions: got bool of shape \(1,\)"),
        (np.array([2**64 - 1], np.uint64), "^positions: got 18446744073709551615, expected"),
    ],
)
def test_wrong_positions(b: cc.ChordVideoDataset, positions: Any, match: str) -> None:
    with pytest.raises(UsageError, match=match):
        cc.subset(b, positions)


@pytest.mark.parametrize("weights", [[7, 3], [1, 0], [0.02, 0.98]])
def test_shares_of_joined_datasets(a: cc.ChordVideoDataset, b: cc.ChordVideoDataset, weights: list[float]) -> None:
    both = cc.concat([a, b], weights=weights)
    sampler = cc.ChordSampler(both, num_samples=20_000, seed=9)
    indices = [index for _, index in order_of(sampler)]
    assert len(indices) == len(sampler) == 20_000
    for place, share in enumerate(np.array(weights) / sum(weights)):
        drawn = shares_of(indices, np.repeat([0, 1], [4, 12]), 2)[place]
        assert abs(drawn - share) <= bound(share, 20_000)
        start, length = ((0, 4), (4, 12))[place]
        for index in range(start, start + length):  # each sample of a part has the same probability
            assert abs(indices.count(index) / 20_000 - share / length) <= bound(share / length, 20_000)


def test_weights_of_nested_datasets(a: cc.ChordVideoDataset, b: cc.ChordVideoDataset) -> None:
    assert cc.concat([a, b]).sample_weights is None
    inner = cc.concat([a, b], weights=[3, 1])
    assert inner.sample_weights.tolist() == [3 / 4] * 4 + [1 / 12] * 12
    outer = cc.concat([a, inner], weights=[1, 4])
    assert outer.sample_weights.tolist() == pytest.approx([1 / 4] * 4 + [3 / 4] * 4 + [1 / 12] * 12)
    by_length = cc.concat([a, inner])
    assert by_length.sample_weights.tolist() == pytest.approx([1] * 4 + [3] * 4 + [1 / 3] * 12)
    assert by_length.sample_weights[4:].sum() == pytest.approx(16)
    assert cc.subset(inner, [3, 4, 3]).sample_weights.tolist() == [3 / 4, 1 / 12, 3 / 4]
    nothing = cc.subset(cc.concat([a, b], weights=[0, 1]), range(4))
    with pytest.raises(UsageError, match="^weights: got a sum of 0.0, expected"):
        cc.ChordSampler(nothing)
    with pytest.raises(UsageError, match="^weights: got a sum of 0 for the samples of <subset of 4 samples"):
        cc.ChordSampler(cc.concat([nothing, b]))


def test_classes_are_balanced(b: cc.ChordVideoDataset, caches: dict[str, Path]) -> None:
    # The class "fly" has no sample and gets no share
    classes = ["fly", "run", "jump"]
    dataset = cc.concat(
        [dataset_of(caches["a"], classes=classes), cc.subset(dataset_of(caches["c"], classes=classes), [0])]
    )
    sampler = cc.ChordSampler(dataset, weights="balanced", num_samples=20_000)
    indices = [index for _, index in order_of(sampler)]
    labels = np.array([dataset.classes.index(name) for name in [*LABELS["a"], "run"]])
    shares = dict(zip(dataset.classes, shares_of(indices, labels, 3), strict=True))
    assert shares.keys() == {"fly", "jump", "run"}
    assert shares["fly"] == 0
    assert abs(shares["jump"] - 0.5) <= bound(0.5, 20_000)
    for index in np.flatnonzero(labels == dataset.classes.index("run")):
        assert abs(indices.count(index) / 20_000 - 0.5 / 4) <= bound(0.5 / 4, 20_000)


def test_balance_needs_labels(caches: dict[str, Path]) -> None:
    dataset = dataset_of(caches["c"])
    with pytest.raises(UsageError, match="^weights: got 'balanced' for 1 sample without a label, expected a label for"):
        cc.ChordSampler(dataset, weights="balanced")
    labeled = cc.subset(dataset, np.flatnonzero(dataset.label_ids >= 0))  # as the message says
    assert {index for _, index in cc.ChordSampler(labeled, weights="balanced", num_samples=50)} == {0, 1}
    with pytest.raises(UsageError, match="^weights: got 'balanced' for a dataset without label_ids, expected"):
        cc.ChordSampler(5, weights="balanced")


def test_weights_of_a_sampler_replace_those_of_the_dataset(a: cc.ChordVideoDataset, b: cc.ChordVideoDataset) -> None:
    both = cc.concat([a, b], weights=[1, 0])
    assert {index for _, index in cc.ChordSampler(both, num_samples=500)} == set(range(4))
    own = np.arange(16) == 7
    assert {index for _, index in cc.ChordSampler(both, weights=own, num_samples=500)} == {7}
    assert {index for _, index in cc.ChordSampler(both, weights="balanced", num_samples=500)} == set(range(16))


def test_draws_of_one_sample_are_different_clips(caches: dict[str, Path]) -> None:
    dataset = dataset_of(caches["a"], clip_sampler=cc.RandomClipSampler(1))
    sampler = cc.ChordSampler(dataset, weights=[0, 1, 0, 0], num_samples=30)
    pairs = [order_of(sampler, epoch) for epoch in (0, 1)]
    assert len({pair for order in pairs for pair in order}) == 60
    samples = [dataset[pair] for order in pairs for pair in order]
    assert len({float(sample["pts_seconds"][0]) for sample in samples}) > 25  # of 40 frames
    for sample in samples[:5]:
        again = dataset[tuple(map(int, sample["sample_id"].split(":")))]
        assert parts_of(again) == parts_of(sample)
    plain = [dataset[epoch, 1] for epoch in (0, 1)]
    assert [parts_of(sample) for sample in (samples[0], samples[30])] == [parts_of(sample) for sample in plain]


def test_draws_of_one_sample_have_the_epoch_of_their_pass(caches: dict[str, Path]) -> None:
    seen = []

    class Records(cc.RandomClipSampler):
        def frame_numbers(self, video: cc.Video, request: ClipRequest) -> np.ndarray:
            seen.append((request.epoch, request.repeat))
            return super().frame_numbers(video, request)

    dataset = dataset_of(caches["a"], clip_sampler=SamplerSchedule({0: Records(1), 3: cc.RegularClipSampler(1)}))
    for pair in order_of(cc.ChordSampler(dataset, weights=[0, 1, 0, 0]), 2):
        _ = dataset[pair]
    assert seen == [(2, 0), (2, 1), (2, 2), (2, 3)]


def weighted_dataset(a: cc.ChordVideoDataset, b: cc.ChordVideoDataset) -> ClipDataset:
    return cc.subset(cc.concat([a, b], weights=[0.7, 0.3]), range(15, 0, -1))


def test_loaders_take_the_weights_of_the_dataset(a: cc.ChordVideoDataset, b: cc.ChordVideoDataset) -> None:
    dataset = weighted_dataset(a, b)
    expected = [f"{epoch}:{index}" for epoch, index in cc.ChordSampler(dataset)]
    assert len({name.partition(":")[2] for name in expected}) < len(expected)  # drawn, not permuted
    for loader in (cc.ClipLoader(dataset, 4), cc.make_loader(dataset, 4, 0)):
        assert [name for batch in loader for name in batch["sample_id"]] == expected


def test_combinations_of_torch_are_refused(a: cc.ChordVideoDataset, b: cc.ChordVideoDataset) -> None:
    match = (
        r"^dataset: got torch's {}, expected a dataset that is read by \(epoch, index\)\. Use "
        r"chordcache\.concat\(datasets, weights=\.\.\.\) or chordcache\.subset\(dataset, positions\)\.$"
    )
    (split,) = random_split(a, [4])
    for theirs in (ConcatDataset([a, b]), Subset(a, [0, 1]), split):
        for use in (
            cc.ChordSampler,
            lambda dataset: cc.ClipLoader(dataset, 2),
            lambda dataset: cc.ClipLoader(dataset, 2, sampler=cc.ChordSampler(4, batch_size=2)),
            lambda dataset: cc.make_loader(dataset, 2, 0),
            lambda dataset: BudgetBatchSampler(dataset, max_frames=9),
            lambda dataset: cc.concat([a, dataset]),
            lambda dataset: cc.subset(dataset, [0]),
        ):
            with pytest.raises(UsageError, match=match.format(type(theirs).__name__)):
                use(theirs)
    with pytest.raises(
        UsageError, match="^dataset: got a list, expected a ChordVideoDataset, or what chordcache.concat"
    ):
        cc.ClipLoader([1, 2], 2)


def test_samplers_of_torch_are_refused(a: cc.ChordVideoDataset) -> None:
    for sampler in (WeightedRandomSampler([1, 2, 3, 4], 4), DistributedSampler(a, 2, 0)):
        match = (
            f"^sampler: got a {type(sampler).__name__}, expected a ChordSampler, which takes the weights of samples as "
        )
        for use in (
            lambda sampler: cc.ClipLoader(a, 2, sampler=sampler),
            lambda sampler: cc.ClipLoader(a, None, sampler=sampler),
            lambda sampler: cc.make_loader(a, 2, 0, sampler=sampler),
            lambda sampler: BudgetBatchSampler(a, sampler, max_frames=9),
        ):
            with pytest.raises(UsageError, match=match + "weights= and splits samples across ranks"):
                use(sampler)


def test_features_that_differ(a: cc.ChordVideoDataset, tmp_path: Path, make_video: Callable[..., Path]) -> None:
    make_video(tmp_path / "videos" / "0.mp4", num_frames=10, size=(32, 32))
    index, features = cc.scan([tmp_path / "videos"], jobs=HERE), ["frames", "motion"]
    cc.build(index, tmp_path / "cache", tiers=("lmdb", "npz"), features=features, jobs=HERE)
    other = dataset_of(tmp_path / "cache", features=("frames", "motion"), classes=None)
    with pytest.raises(UsageError, match=r"^features: got \('frames', 'motion'\) in dataset 1, expected \('frames',\)"):
        cc.concat([a, other])


# Resumed runs know their data


@pytest.mark.parametrize(
    ("change", "names"),
    [("rename", "videos, contents"), ("picture", "contents"), ("label", "labels"), ("feature", "")],
)
def test_a_run_is_resumed_on_its_own_data_only(
    caches: dict[str, Path], tmp_path: Path, make_video: Callable[..., Path], change: str, names: str
) -> None:
    folder = Path(shutil.copytree(caches["a"].parent / "a", tmp_path / "a"))
    rows = (folder / "index.csv").read_text()
    make_video(folder / "a9.mp4", num_frames=41, size=(32, 32))
    if change == "picture":
        (folder / "a9.mp4").rename(folder / "a1.mp4")
    elif change == "rename":
        rows = rows.replace("a1.mp4", "a9.mp4")
    elif change == "label":
        rows = rows.replace("a2.mp4,run", "a2.mp4,jump")
    (folder / "index.csv").write_text(rows)
    features = ["frames", "mel"] if change == "feature" else ["frames"]
    cc.build(folder / "index.csv", tmp_path / "cache", features=features, jobs=HERE)

    def loaders(cache: Path) -> list[cc.ClipLoader]:
        dataset = cc.ChordVideoDataset(cache, size=(32, 32))
        joined = cc.concat([dataset, cc.ChordVideoDataset(caches["c"], size=(32, 32), classes=dataset.classes)])
        return [cc.ClipLoader(one, batch_size=2) for one in (dataset, joined, cc.subset(dataset, [0, 1, 3]))]

    for of_run, resumed in zip(loaders(caches["a"]), loaders(tmp_path / "cache"), strict=True):
        next(iter(of_run))
        if not names:
            resumed.load_state_dict(of_run.state_dict())
            continue
        with pytest.raises(UsageError, match=f"^state: got one of other {names}.*, expected those of the dataset"):
            resumed.load_state_dict(of_run.state_dict())


def test_a_subset_of_other_positions_is_other_data(caches: dict[str, Path]) -> None:
    dataset = cc.ChordVideoDataset(caches["b"], size=(32, 32))
    state = cc.ClipLoader(cc.subset(dataset, [0, 1]), batch_size=1).state_dict()
    with pytest.raises(UsageError, match="^state: got one of other positions, expected"):
        cc.ClipLoader(cc.subset(dataset, [0, 2]), batch_size=1).load_state_dict(state)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (
            lambda a, _: cc.subset(cc.subset(a, [0, 1, 2]), [0, 1]),
            lambda a, _: cc.subset(cc.subset(a, [3, 2, 1]), [0, 1]),
        ),
        (lambda a, b: cc.concat([cc.subset(a, [0, 1]), b]), lambda a, b: cc.concat([cc.subset(a, [1, 2]), b])),
        (lambda a, _: cc.subset(a, range(len(a) - 1, -1, -1)), lambda a, _: a),
        (lambda a, _: a, lambda a, _: cc.subset(a, range(len(a) - 1, -1, -1))),
    ],
    ids=["subset of a subset", "subset in a concat", "from a permutation", "to a permutation"],
)
def test_a_run_on_other_samples_of_the_same_videos_is_not_resumed(
    a: cc.ChordVideoDataset,
    b: cc.ChordVideoDataset,
    one: Callable[..., ClipDataset],
    other: Callable[..., ClipDataset],
) -> None:
    state = cc.ChordSampler(one(a, b)).state_dict(1)
    cc.ChordSampler(one(a, b)).load_state_dict(state)
    with pytest.raises(UsageError, match="^state: got one of other positions, expected those of the dataset"):
        cc.ChordSampler(other(a, b)).load_state_dict(state)


def test_identities_of_other_kinds(a: cc.ChordVideoDataset) -> None:
    class Sized(list[int]):
        identity = 3

    assert "data" not in cc.ChordSampler(Sized([1, 2])).state_dict(0)
    sampler = cc.ChordSampler(a)
    with pytest.raises(UsageError, match="^state: got keys seed, .*data.*, expected the state of a ChordSampler$"):
        sampler.load_state_dict({**sampler.state_dict(0), "data": None})
