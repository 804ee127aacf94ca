"""Boxes lie on what the pictures show: rectangles are painted at known places, and found in the frames of samples."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.inline import HERE

import chordcache as cc
from chordcache.config.config import Config, Hdf5Config
from chordcache.config.picture import Bucket, FramesConfig
from chordcache.errors import UsageError
from chordcache.index.index_files import IndexWriter
from chordcache.read.crops import Pad
from chordcache.records import VideoRecord

SIZE = (320, 240)
"""(width, height) of the displayed source of every clip, [pixels]. Except "turned", which is upright"""

NUM_FRAMES = 24
TICKS = np.cumsum([0, *(700 + 600 * (i % 2) for i in range(NUM_FRAMES - 1))]).tolist()
"""Irregular presentation times, [1 / 25000 seconds]"""


CONFIG = Config(frames=FramesConfig(short_side=150, codec="raw"), features={}, hdf5=Hdf5Config(features=("frames",)))


def painted(number: int) -> tuple[int, int, int, int]:
    """Place (x1, y1, x2, y2) of the rectangle in frame ``number``, in square pixels, before rotation."""
    return 20 + 8 * number, 60 + 2 * number, 84 + 8 * number, 120 + 2 * number


def planes_of(stretch: int) -> Callable[[int, int, int], tuple[np.ndarray, np.ndarray, np.ndarray]]:
    def planes(number: int, width: int, height: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        y, (u, v) = np.full((height, width), 16, np.uint8), np.full((2, height // 2, width // 2), 128, np.uint8)
        x1, y1, x2, y2 = painted(number)
        y[y1:y2, x1 // stretch : x2 // stretch] = 235
        return y, u, v

    return planes


def turned(box: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    x1, y1, x2, y2 = box
    return SIZE[1] - y2, x1, SIZE[1] - y1, x2


VIDEOS: dict[str, dict[str, Any]] = {
    "plain.mp4": {"size": SIZE},
    "uneven.mp4": {"size": SIZE, "pts_ticks": TICKS},
    "wide.mp4": {"size": (SIZE[0] // 2, SIZE[1]), "sample_aspect_ratio": Fraction(2), "planes": planes_of(2)},
    "turned.mp4": {"size": SIZE, "rotation": 90},
}


def tracks_of(name: str) -> dict[str, list[dict[str, Any]]]:
    """A box for each frame in pixels and in fractions, and boxes that no picture shows."""
    ticks = TICKS if name == "uneven.mp4" else range(0, 1000 * NUM_FRAMES, 1000)
    width, height = SIZE[::-1] if name == "turned.mp4" else SIZE
    boxes, relative = [], []
    for number, tick in reversed(list(enumerate(ticks))):  # in any order
        x1, y1, x2, y2 = turned(painted(number)) if name == "turned.mp4" else painted(number)
        base = {"time_seconds": tick / 25000 + 0.004 * (number % 3 - 1) * (number > 0), "track_id": number}
        boxes.append({**base, "x1": x1, "y1": y1, "x2": x2, "y2": y2, "label": f"box {number}"})
        relative.append({**base, "x1": x1 / width, "y1": y1 / height, "x2": x2 / width, "y2": y2 / height})
    place = {"x1": 30, "y1": 80, "x2": 60, "y2": 100}
    unseen = [
        {"time_seconds": 99.0, **place},
        {"time_seconds": -1.0, **place},
        {"time_seconds": 0.0, "x1": -50, "y1": 0, "x2": -1, "y2": 10},
        {"time_seconds": 0.0, **place, "x2": 30},
    ]
    return {"boxes": boxes + unseen, "relative": relative}


@pytest.fixture(scope="module")
def cache(videos: Path) -> Path:
    """The frames at 150 lines, as they are decoded."""
    return built(videos, CONFIG)


@pytest.fixture(scope="module", params=[None, Bucket(128, 160, NUM_FRAMES)], ids=["whole", "bucket"])
def any_cache(cache: Path, videos: Path, request: pytest.FixtureRequest) -> Path:
    """The frames whole, or cropped to a bucket."""
    if request.param is None:
        return cache
    return built(videos, dataclasses.replace(CONFIG, frames=FramesConfig(buckets=(request.param,), codec="raw")))


def built(videos: Path, config: Config) -> Path:
    folder = videos / ("whole" if config == CONFIG else "bucket")
    summary = cc.build(videos / "i.json", folder, jobs=HERE, config=config)
    assert (summary.num_done, summary.num_failed) == (len(VIDEOS), 0)
    return folder


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path]) -> Path:
    folder = tmp_path_factory.mktemp("boxes")
    columns = {"boxes": "boxes", "relative": "relative_boxes"}
    with IndexWriter(folder / "i.json", roots={"root": str(folder)}, level=None, columns=columns) as writer:
        for name, spec in VIDEOS.items():
            options = {"crf": "2", "bf": "2"}
            make_video(folder / name, **{"planes": planes_of(1), "num_frames": NUM_FRAMES, "options": options, **spec})
            writer.write(VideoRecord(root="root", path=name, extra=tracks_of(name)))
    return folder


def dataset_of(cache: Any, **settings: Any) -> cc.ChordVideoDataset:
    sampler = cc.RandomClipSampler(num_frames=5, stride=3)
    return cc.ChordVideoDataset(cache, **{"clip_sampler": sampler, "fields": ("boxes",), **settings})


def extent(frame: torch.Tensor) -> np.ndarray | None:
    """(x1, y1, x2, y2) of the bright part of a frame [shape=(3, h, w)], None if it has none."""
    bright = (frame.float().mean(0) > 127).numpy()
    if not bright.any():
        return None
    columns, rows = np.flatnonzero(bright.any(0)), np.flatnonzero(bright.any(1))
    return np.array([columns[0], rows[0], columns[-1] + 1, rows[-1] + 1])


CROPS: dict[str, dict[str, Any]] = {
    "none": {"size": None},
    "center": {"size": (100, 60)},
    "resize": {"crop": cc.crops.Resize((90, 210))},
    "random": {"crop": cc.crops.RandomResizedCrop((112, 128), scale=(0.2, 0.7))},
    "flip": {"crop": cc.crops.HorizontalFlip(1.0)},
    "flip random": {"crop": cc.crops.HorizontalFlip(0.5, cc.crops.RandomResizedCrop((120, 112), scale=(0.2, 0.7)))},
    "pad": {"crop": cc.crops.HorizontalFlip(0.5, Pad((160, 160)))},
}


@pytest.mark.parametrize("crop", CROPS)
def test_boxes_are_where_the_rectangles_are(any_cache: Path, crop: str) -> None:
    dataset = dataset_of(any_cache, **CROPS[crop])
    num_seen = num_cut = 0
    for epoch in range(4):
        for i in range(len(VIDEOS)):
            sample = dataset[epoch, i]
            annotation, (height, width) = sample["boxes"], sample["frames"].shape[-2:]
            assert (annotation["boxes"] >= 0).all()
            assert (annotation["boxes"] <= torch.tensor([width, height, width, height])).all()
            for number, frame in enumerate(sample["frames"]):
                seen = extent(frame)
                boxes = annotation["boxes"][annotation["frame"] == number].numpy()
                assert len(boxes) <= 1
                if seen is None:
                    assert not len(boxes) or min(boxes[0, 2:] - boxes[0, :2]) < 1.5
                    num_cut += 1
                else:
                    np.testing.assert_allclose(boxes[0], seen, atol=1.01, err_msg=f"{dataset[epoch, i]['video']}")
                    num_seen += 1
    assert num_seen > 20
    assert num_cut or "random" not in crop


def test_form_of_a_sample(cache: Path) -> None:
    dataset = dataset_of(cache, fields=("boxes", "relative"), size=None)
    for i in range(len(VIDEOS)):
        sample = dataset[0, i]
        boxes = sample["boxes"]
        assert sorted(boxes) == ["boxes", "frame", "label", "track_id"]
        assert [boxes[name].dtype for name in ("boxes", "frame", "track_id")] == [torch.float32, *[torch.int64] * 2]
        assert boxes["frame"].tolist() == list(range(5))
        steps = boxes["track_id"].diff()
        assert steps.tolist() == [3] * 4
        assert boxes["label"] == [f"box {number}" for number in boxes["track_id"].tolist()]
        assert sample["relative"]["label"] == [""] * 5
        torch.testing.assert_close(boxes["boxes"], sample["relative"]["boxes"], atol=0.05, rtol=0)


def test_repeated_frames(cache: Path) -> None:
    dataset = dataset_of(cache, clip_sampler=cc.RegularClipSampler(num_frames=30, stride=1), size=None)
    ids = dataset[0]["boxes"]["track_id"].tolist()
    assert dataset[0]["boxes"]["frame"].tolist() == list(range(30))
    assert ids == [*range(NUM_FRAMES), *[NUM_FRAMES - 1] * 6]  # the last frame is repeated


def test_a_box_belongs_to_the_nearest_frame(tmp_path: Path, make_video: Callable[..., Path]) -> None:
    make_video(tmp_path / "a.mp4", num_frames=24)
    times = (-0.0005, -0.002, 0.019, 0.02, 0.0201, 0.06, 0.92, 0.9605, 0.962)
    numbers = (0, None, 0, 0, 1, 1, 23, 23, None)
    boxes = [{"time_seconds": seconds, "x1": 0, "y1": 0, "x2": 9, "y2": 9} for seconds in times]
    boxes = [{**box, "track_id": place} for place, box in enumerate(boxes) if place] + boxes[:1]
    with IndexWriter(
        tmp_path / "i.json", roots={"root": str(tmp_path)}, level=None, columns={"key": "boxes"}
    ) as writer:
        writer.write(VideoRecord(root="root", path="a.mp4", extra={"key": boxes}))
    cc.build(tmp_path / "i.json", tmp_path / "cache", jobs=HERE)
    sampler = cc.RegularClipSampler(num_frames=24, stride=1)
    annotation = dataset_of(tmp_path / "cache", clip_sampler=sampler, fields=("key",))[0]["key"]
    frame_of_track = dict(zip(annotation["track_id"].tolist(), annotation["frame"].tolist(), strict=True))
    assert frame_of_track == {place or -1: number for place, number in enumerate(numbers) if number is not None}
    assert annotation["boxes"].shape == (len(frame_of_track), 4)


def test_batches(cache: Path) -> None:
    dataset = dataset_of(cache, crop=cc.crops.RandomResizedCrop((40, 40), scale=(0.05, 0.2)))
    order = cc.ChordSampler(dataset, shuffle=False, batch_size=4)
    (batch,) = cc.make_loader(dataset, batch_size=4, sampler=order, num_workers=1)

    samples = [dataset[0, i]["boxes"] for i in range(4)]
    assert len({len(sample["label"]) for sample in samples}) > 1
    joined = batch["boxes"]
    for i, sample in enumerate(samples):
        of_sample = joined["sample"] == i
        for name in ("boxes", "frame", "track_id"):
            torch.testing.assert_close(joined[name][of_sample], sample[name])
    assert joined["label"] == [label for sample in samples for label in sample["label"]]


def test_a_batch_without_a_box(cache: Path) -> None:
    samples = dataset_of(cache).__getitems__([0, 1])
    for sample in samples:
        sample["boxes"] = {
            name: value[:0] if isinstance(value, torch.Tensor) else [] for name, value in sample["boxes"].items()
        }
    joined = cc.collate(samples)["boxes"]
    assert (joined["boxes"].shape, joined["sample"].shape, joined["label"]) == ((0, 4), (0,), [])


def test_from_the_source_as_from_the_cache(cache: Path) -> None:
    crop = cc.crops.HorizontalFlip(0.5, cc.crops.RandomResizedCrop((64, 64)))
    index = cache.parent / "i.json"
    cached, source = (
        dataset_of(cc.videos.indexed(index, cache, on_miss=on_miss), crop=crop) for on_miss in ("error", "source")
    )
    uncached = dataset_of(cc.videos.indexed(index, on_miss="source", config=CONFIG), crop=crop)
    for i in range(len(VIDEOS)):
        for other in (source, uncached):
            for name in ("boxes", "frame", "track_id"):
                torch.testing.assert_close(cached[3, i]["boxes"][name], other[3, i]["boxes"][name], rtol=0, atol=0)


def test_one_eye_of_a_stereo_picture(tmp_path: Path, make_video: Callable[..., Path]) -> None:
    make_video(tmp_path / "a.mp4", num_frames=2)
    with IndexWriter(
        tmp_path / "i.json", roots={"root": str(tmp_path)}, level=None, columns={"boxes": "boxes"}
    ) as writer:
        writer.write(VideoRecord(root="root", path="a.mp4"))
    config = Config(frames=FramesConfig(stereo="left", stereo_layout="side_by_side"), features={})
    cc.build(tmp_path / "i.json", tmp_path / "cache", jobs=HERE, config=config)
    with pytest.raises(UsageError, match="got 'boxes', boxes of the whole picture, for a cache of the left eye"):
        dataset_of(tmp_path / "cache")


def test_augmentation(cache: Path) -> None:
    dataset = dataset_of(cache, size=(32, 32))
    batch = cc.collate(dataset.__getitems__([0, 1]))
    for settings, match in (
        ({"policy": torch.Tensor.clone}, "boxes in 'boxes' with a policy that moves pixels"),
        ({"mix": "mixup", "num_classes": 2}, "boxes in 'boxes' with mix='mixup'"),
        ({"mix": "cutmix", "num_classes": 2}, "boxes in 'boxes' with mix='cutmix'"),
    ):
        with pytest.raises(UsageError, match=f"fields: got {match}"):
            cc.BatchAugment(**settings, fields=dataset.fields)
        with pytest.raises(UsageError, match=f"batch: got {match}"):
            cc.BatchAugment(**settings)(batch)
    augmented = cc.BatchAugment(policy=torch.Tensor.clone, geometric=False, fields=dataset.fields)(batch)
    assert augmented["boxes"] is batch["boxes"]
