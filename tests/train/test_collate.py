"""A batch of samples that differ in length and size: padded, with the lengths that they had."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.ffmpeg import copy_start
from helpers.inline import HERE
from torch.utils.data import DataLoader, default_collate

import chordcache as cc
from chordcache.config.config import config_from_json
from chordcache.errors import UsageError

ARRAYS = ("frames", "flows", "audio", "motion", "motion_covered", "pts_seconds")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory, clips: Path, make_video: Callable[..., Path]) -> cc.Cache:
    """A second of a wide clip and of a wider one, and a tall made one: 25, 30 and 24 frames a second."""
    folder = tmp_path_factory.mktemp("ragged")
    make_video(folder / "videos" / "tall.mp4", num_frames=24, size=(96, 160), fps=24, audio=True)
    for name, source in (("bunny", "animation/bigbuckbunny"), ("bikes", "street/bikes")):
        copy_start(clips / f"{source}.mp4", 1, folder / "videos" / f"{name}.mp4")
    config = config_from_json({"features": {"flow": {"method": "dis"}}})
    cc.build(cc.scan([folder / "videos"]), folder / "cache", tiers=["lmdb", "npz"], config=config, jobs=HERE)
    return cc.open_cache(folder / "cache")


def dataset_of(cache: cc.Cache, **settings: Any) -> cc.ChordVideoDataset:
    settings = {"clip_sampler": cc.RegularClipSampler(num_frames=4, stride=3), "missing": "zeros", **settings}
    return cc.ChordVideoDataset(cache, features=["frames", "flow", "mel", "motion"], **settings)


def assert_padded(batch: dict[str, Any], samples: list[dict[str, Any]], nothing: dict[str, float]) -> None:
    """Every sample in its corner, and nothing around it."""
    for name in ARRAYS:
        largest = np.max([sample[name].shape for sample in samples], axis=0)
        assert batch[name].shape == (len(samples), *largest)
        assert batch["lengths"][name].tolist() == [list(sample[name].shape) for sample in samples]
        for padded, sample in zip(batch[name], samples, strict=True):
            expected = np.full(tuple(largest), nothing.get(name, 0), sample[name].numpy().dtype)
            expected[tuple(np.s_[:length] for length in sample[name].shape)] = sample[name].numpy()
            np.testing.assert_array_equal(padded.numpy(), expected)


@pytest.mark.parametrize("workers", [0, 2])
def test_pictures_of_different_sizes(cache: cc.Cache, workers: int) -> None:
    dataset = dataset_of(cache, crop=cc.crops.Resize(short_side=64))
    samples = [dataset[i] for i in range(3)]
    assert {tuple(sample["frames"].shape[2:]) for sample in samples} == {(64, 114), (64, 150), (107, 64)}
    (batch,) = DataLoader(dataset, batch_size=3, collate_fn=cc.collate, num_workers=workers)
    assert batch["frames"].shape == (3, 4, 3, 107, 150)
    assert batch["frames"].dtype == torch.uint8
    assert_padded(batch, samples, {"audio": -100})
    assert len({sample["audio"].shape for sample in samples}) > 1


def test_the_value_of_silence_is_that_of_mel(cache: cc.Cache) -> None:
    samples = [dataset_of(cache, videos=[video.key])[0] for video in cache]
    batch = cc.collate(samples)
    silence = {v.feature("mel").facts["silence"] for v in cache if v.sidecar.feature("mel").absent is None}
    lengths = batch["lengths"]["audio"][:, -1]
    padding = torch.cat([audio[..., n:].flatten() for audio, n in zip(batch["audio"], lengths, strict=True)])
    assert len(padding)
    assert set(padding.tolist()) == silence


def test_padding_shows_no_person() -> None:
    poses = [{"pose": torch.ones(num_frames, 33, 4)} for num_frames in (3, 1)]
    batch = cc.collate(poses)
    assert batch["pose"].isnan().flatten(2).all(2).tolist() == [[False, False, False], [False, True, True]]


def test_equal_samples_are_collated_as_by_default(cache: cc.Cache) -> None:
    dataset = cc.ChordVideoDataset(cache, clip_sampler=cc.RegularClipSampler(4, 3), size=(40, 40))
    samples = [dataset[i] for i in range(3)]
    batch, expected = cc.collate(samples), default_collate(samples)
    lengths = batch.pop("lengths")
    assert batch.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(batch[name], value) if isinstance(value, torch.Tensor) else batch[name] == value
    assert {name: shapes.tolist() for name, shapes in lengths.items()} == {
        "frames": [[4, 3, 40, 40]] * 3,
        "pts_seconds": [[4]] * 3,
    }


def test_other_numbers_of_axes() -> None:
    match = r"^batch: got 'audio' of shapes \(2, 80, 9\) and \(80, 9\), expected samples with the same number of dim"
    with pytest.raises(UsageError, match=match):
        cc.collate([{"audio": torch.zeros(80, 9)}, {"audio": torch.zeros(2, 80, 9)}])
