"""The three sets of videos, and the short forms of the README."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import chordcache as cc
from chordcache.config.config import config_from_json
from chordcache.sources.video_source import CachedSource

CLIP = cc.RegularClipSampler(num_frames=3, stride=2)
NAMES = ("a.mp4", "b.mp4", "c.mp4")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path]) -> Path:
    """Two of three videos in a cache, as they are decoded."""
    folder = tmp_path_factory.mktemp("videos")
    for number, name in enumerate(NAMES):
        make_video(folder / "videos" / name, num_frames=10 + number, size=(64, 48))
    cached = folder / "videos" / "cached.csv"
    cached.write_text("path,label\na.mp4,run\nb.mp4,jump\n")
    config = config_from_json({"frames": {"codec": "raw", "short_side": None}})
    cc.build(cached, folder / "cache", tiers=["lmdb"], config=config, jobs=1)
    return folder


SETS: dict[str, Callable[[Path], Any]] = {
    "folder": lambda folder: folder / "cache",
    "cached": lambda folder: cc.videos.cached(folder / "cache", NAMES[:2]),
    "of a cached source": lambda folder: cc.videos.from_files(CachedSource(folder / "cache")),
    "indexed": lambda folder: cc.videos.indexed(folder / "videos" / "cached.csv", folder / "cache"),
    "from their sources": lambda folder: cc.videos.indexed(
        folder / "videos" / "cached.csv", on_miss="source", config=config_from_json({"frames": {"codec": "raw"}})
    ),
    "from files": lambda folder: cc.videos.from_files(cc.MP4Source(), [folder / "videos" / name for name in NAMES[:2]]),
    "files of an index": lambda folder: cc.videos.from_files(cc.MP4Source(), index=folder / "videos" / "cached.csv"),
}


@pytest.mark.parametrize("name", SETS)
def test_all_sets_have_the_same_frames_also_in_a_worker(folder: Path, name: str) -> None:
    expected = cc.ChordVideoDataset(folder / "cache", clip_sampler=CLIP, size=None)
    dataset = cc.ChordVideoDataset(SETS[name](folder), clip_sampler=CLIP, size=None)
    loader = DataLoader(dataset, None, num_workers=1, multiprocessing_context="forkserver")
    for i, sample in enumerate(loader):
        for key in ("frames", "pts_seconds"):
            assert torch.equal(sample[key], expected[0, i][key]), key
    assert i == 1


def test_the_short_forms(folder: Path) -> None:
    (folder / "split.txt").write_text("b.mp4\n")
    for cache in (folder / "cache", str(folder / "cache"), cc.open_cache(folder / "cache")):
        assert len(cc.ChordVideoDataset(cache, size=None)) == 2
        for videos in (str(folder / "split.txt"), folder / "split.txt", ["b.mp4"], lambda video: video.label == "jump"):
            short = cc.ChordVideoDataset(cache, videos=videos, clip_sampler="random", size=(32, 32), clips_per_video=4)
            assert len(short) == 4
            long = cc.ChordVideoDataset(cc.videos.cached(cache, videos), clip_sampler="random", size=(32, 32))
            assert short[0, 0]["video"] == long[0, 0]["video"]


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: cc.videos.cached("cache", on_miss="skp"), "^on_miss: got 'skp', expected one of error, skip. Did you"),
        (
            lambda: cc.videos.cached("cache", on_miss="build"),
            "^on_miss: got 'build' without an index, expected one of error, skip. Take chordcache.videos.indexed",
        ),
        (lambda: cc.videos.cached(cc.MP4Source()), "^cache: got <.*MP4Source.*, expected a folder or a Cache. Make"),
        (lambda: cc.ChordVideoDataset(None), "^cache: got None, expected a folder or a Cache"),
        (
            lambda: cc.videos.indexed("i.csv", "cache", on_miss="skp"),
            "^on_miss: got 'skp', expected one of error, skip, source, build. Did you mean 'skip'?",
        ),
        *(
            (
                partial(cc.videos.indexed, "i.csv", on_miss=on_miss),
                f"^cache: got None with on_miss='{on_miss}', expected",
            )
            for on_miss in ("error", "skip", "build")
        ),
    ],
)
def test_wrong_combinations_are_errors_before_a_dataset_is_made(make: Callable[[], Any], match: str) -> None:
    with pytest.raises(cc.UsageError, match=match):
        make()


def test_an_index_with_a_cached_source(folder: Path) -> None:
    with pytest.raises(cc.UsageError, match="^index: got one with a CachedSource, expected None. Take chordcache.vid"):
        cc.videos.from_files(CachedSource(folder / "cache"), index="i.csv")
