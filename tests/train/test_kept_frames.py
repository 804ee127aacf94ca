"""Frames that a ClipLoader keeps in memory: the batches are the same, and the budget is not exceeded."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.inline import HERE

import chordcache as cc
from chordcache.config.picture import PictureConfig
from chordcache.train.kept_frames import KeptFrames

SAMPLER = cc.RandomClipSampler(num_frames=4, stride=2)
FRAME_BYTES = 64 * 96 * 3
NUM_FRAMES = 20


def make_cache(
    folder: Path, make_video: Callable[..., Path], codec: str = "jpeg", size: tuple[int, int] = (96, 64)
) -> Path:
    for number in range(5):
        make_video(folder / "videos" / f"{number}.mp4", num_frames=NUM_FRAMES + number, size=size)
    (folder / "config.yaml").write_text(f"frames: {{codec: {codec}, short_side: null}}\nfeatures: {{flow: {{}}}}\n")
    cc.scan([folder / "videos"], output=folder / "index.json", jobs=HERE)
    cc.build(folder / "index.json", folder / "cache", config=folder / "config.yaml", jobs=HERE)
    return folder / "cache"


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path]) -> Path:
    """Five videos of 20 to 24 frames."""
    return make_cache(tmp_path_factory.mktemp("kept"), make_video)


def dataset_of(videos: Any, **options: Any) -> cc.ChordVideoDataset:
    return cc.ChordVideoDataset(videos, **{"clip_sampler": SAMPLER, "clips_per_video": 3, "size": None, **options})


def frames_of(loader: cc.ClipLoader, num_epochs: int = 3) -> list[torch.Tensor]:
    return [batch["frames"].clone() for _ in range(num_epochs) for batch in loader]


def assert_same(dataset: Any, **options: Any) -> KeptFrames:
    """Compare the batches of a loader that keeps frames with those of one that does not."""
    loader = cc.ClipLoader(dataset, 4, **options)
    frames, plain = frames_of(loader), frames_of(cc.ClipLoader(dataset, 4))
    assert len(frames) == len(plain) > 0
    assert all(torch.equal(one, other) for one, other in zip(frames, plain, strict=True))
    assert loader.kept_frames is not None
    return loader.kept_frames


@pytest.mark.parametrize("keep", ["1GB", 7 * FRAME_BYTES, 1])
@pytest.mark.parametrize("size", [None, (80, 64)])
def test_batches_are_the_same(cache: Path, size: tuple[int, int] | None, keep: str | int) -> None:
    kept = assert_same(dataset_of(cache, size=size, features=("frames", "flow")), keep=keep, num_threads=3)
    assert kept.num_hits + kept.num_misses > 0
    assert (kept.num_hits > 0) == (keep != 1)


@pytest.mark.parametrize(("codec", "size"), [("raw", (96, 64)), ("h264", (96, 64)), ("jpeg", (320, 240))])
def test_every_codec_gives_the_same(
    tmp_path: Path, make_video: Callable[..., Path], codec: str, size: tuple[int, int]
) -> None:
    """Only parts of large JPEGs are decoded without keep."""
    kept = assert_same(dataset_of(make_cache(tmp_path, make_video, codec, size), size=(48, 48)), keep="1GB")
    assert kept.num_hits > 0


def test_sources_segments_and_several_caches(tmp_path: Path, cache: Path, make_video: Callable[..., Path]) -> None:
    other = make_cache(tmp_path, make_video, "raw")
    (tmp_path / "list.csv").write_text(
        "path,start_frame,end_frame\n" + "".join(f"videos/{n}.mp4,{s},{s + 9}\n" for n in range(5) for s in (0, 5, 11))
    )
    indexed = cc.videos.indexed(tmp_path / "list.csv", other, on_miss="source")
    for dataset in (
        dataset_of(cc.videos.indexed(cache.parent / "index.json", on_miss="source")),
        dataset_of(indexed),
        cc.concat([dataset_of(cache), dataset_of(other)]),
    ):
        assert assert_same(dataset, keep="1GB").num_hits > 0


def test_all_frames_are_decoded_once_if_they_fit(cache: Path) -> None:
    dataset = dataset_of(cache, clip_sampler=cc.RegularClipSampler(num_frames=4))
    loader = cc.ClipLoader(dataset, 5, num_threads=1, keep="1GB")  # two threads may decode one frame at once
    kept = loader.kept_frames
    assert kept is not None
    frames_of(loader, 1)
    num_decoded = kept.num_misses
    assert kept.num_bytes == num_decoded * FRAME_BYTES
    frames_of(loader, 2)
    assert kept.num_misses == num_decoded
    assert f"{num_decoded} missed" in repr(kept)


def test_the_budget_is_not_exceeded(cache: Path) -> None:
    loader = cc.ClipLoader(dataset_of(cache, clips_per_video=20), 4, keep=33 * FRAME_BYTES - 1, num_threads=4)
    sizes = [loader.kept_frames.num_bytes for _ in range(2) for _ in loader if loader.kept_frames is not None]
    assert max(sizes) == 32 * FRAME_BYTES


def test_batches_may_be_written_to(cache: Path) -> None:
    dataset = dataset_of(cache)
    loader = cc.ClipLoader(dataset, 4, keep="1GB")
    for batch in loader:
        batch["frames"].zero_()
    plain = cc.ClipLoader(dataset, 4)
    plain.set_epoch(1)
    for batch, expected in zip(loader, plain, strict=True):
        assert torch.equal(batch["frames"], expected["frames"])


class Inverted(cc.MP4Source):
    """A source of negatives, of which chordcache knows nothing."""

    def _read(self, wanted: list[int]) -> Iterator[np.ndarray]:
        yield from (255 - frame for frame in super()._read(wanted))


def of_files(folder: Path, source: cc.MP4Source | None = None, **settings: Any) -> Any:
    return cc.videos.from_files(source or cc.MP4Source(PictureConfig(**settings)), folder)


def of_index(folder: Path, **settings: Any) -> Any:
    """Read the files of a folder as builds with these settings would."""
    index = cc.scan([f"clips={folder}"], output=folder.parent / f"{folder.name}.json", jobs=HERE)
    (config := folder.parent / f"{len(list(folder.parent.iterdir()))}.yaml").write_text(
        json.dumps({"frames": settings})
    )
    return cc.videos.indexed(index, on_miss="source", config=config)


@pytest.fixture(scope="module")
def alike(tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path]) -> tuple[Path, Path]:
    """Two folders with other files of the same names, sizes and times."""
    folders = (tmp_path_factory.mktemp("alike") / "sun", tmp_path_factory.mktemp("alike") / "moon")
    for folder, crf in zip(folders, ("10", "48"), strict=True):
        for number in range(2):
            path = make_video(folder / f"take {number}.mp4", num_frames=12 + number, options={"crf": crf})
            with path.open("ab") as file:  # a box that readers skip
                room = 60_000 - path.stat().st_size
                file.write(room.to_bytes(4, "big") + b"free" + bytes(room - 8))
            os.utime(path, ns=(0, 10**18))
    return folders


@pytest.mark.parametrize(
    "make",
    [
        lambda sun, moon: (of_files(sun), of_files(sun, fps=12.5)),
        lambda sun, moon: (of_files(sun), of_files(sun, short_side=32)),
        lambda sun, moon: (of_files(sun), of_files(moon)),
        lambda sun, moon: (of_files(sun), of_files(sun, Inverted(PictureConfig(short_side=None)))),
        lambda sun, moon: (of_index(sun, codec="raw"), of_index(sun, codec="raw", fps=12.5)),
        lambda sun, moon: (of_index(sun, codec="raw"), of_index(sun, codec="jpeg", quality=20)),
        lambda sun, moon: (of_index(sun), of_index(moon)),
        lambda sun, moon: (of_index(sun, codec="raw"), of_files(sun, short_side=None)),
    ],
    ids=["fps", "short_side", "folder", "class", "index fps", "codec", "index folder", "index and files"],
)
def test_two_datasets_of_files_do_not_share_frames(alike: tuple[Path, Path], make: Callable[..., Any]) -> None:
    clips = cc.RandomClipSampler(num_frames=3, stride=1)
    both = cc.concat([dataset_of(videos, size=(48, 48), clip_sampler=clips) for videos in make(*alike)])
    assert assert_same(both, keep="1GB", num_threads=2).num_hits > 0


def test_two_caches_of_the_same_videos_do_not_share_anything(alike: tuple[Path, Path], tmp_path: Path) -> None:
    """Open files, videos and catalogs: the keys are the same, the pictures and times are not."""
    index = cc.scan([alike[0]], output=tmp_path / "index.json", jobs=HERE)
    frames: list[dict[str, Any]] = [{"codec": "raw"}, {"codec": "raw", "short_side": 32}, {"fps": 12.5}]
    for number, settings in enumerate(frames):
        (config := tmp_path / f"{number}.json").write_text(json.dumps({"frames": settings}))
        cc.build(index, tmp_path / f"cache {number}", config=config, jobs=HERE)
    clips = cc.RandomClipSampler(num_frames=3, stride=1)
    parts = [dataset_of(tmp_path / f"cache {number}", size=(32, 32), clip_sampler=clips) for number in range(3)]
    alone = [[part[0, place] for place in range(len(part))] for part in parts]
    both = cc.concat(parts)
    for place in torch.randperm(len(both)).tolist():
        expected, got = alone[place // 6][place % 6], both[0, place]
        assert torch.equal(got["frames"], expected["frames"])
        assert torch.equal(got["pts_seconds"], expected["pts_seconds"])
    assert not torch.equal(alone[0][0]["frames"], alone[1][0]["frames"])
    assert assert_same(both, keep="1GB").num_hits > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep": 0}, "keep: got 0, expected"),
        (
            {"keep": "1GB", "decode": "cuda", "device": "cpu"},
            "keep: got '1GB' with decode='cuda', which decodes all frames",
        ),
    ],
)
def test_wrong_arguments(cache: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(cc.UsageError, match=message):
        cc.ClipLoader(dataset_of(cache), 4, **options)
