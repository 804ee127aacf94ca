"""Frames that a ClipLoader keeps in memory: the batches are the same, and the budget is not exceeded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.inline import HERE

torch = pytest.importorskip("torch")

import chordcache as cc  # noqa: E402
from chordcache.train.kept_frames import KeptFrames  # noqa: E402

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
@pytest.mark.parametrize("size", [None, (48, 48), (80, 64)])
def test_batches_are_the_same(cache: Path, size: tuple[int, int] | None, keep: str | int) -> None:
    kept = assert_same(dataset_of(cache, size=size, features=("frames", "flow")), keep=keep, num_threads=3)
    assert kept.num_hits + kept.num_misses > 0
    assert (kept.num_hits > 0) == (keep != 1)


@pytest.mark.parametrize("codec", ["raw", "yuv420", "h264"])
def test_every_codec_gives_the_same(tmp_path: Path, make_video: Callable[..., Path], codec: str) -> None:
    kept = assert_same(dataset_of(make_cache(tmp_path, make_video, codec), size=(48, 48)), keep="1GB")
    assert kept.num_hits > 0


def test_crops_of_large_pictures_are_the_same(tmp_path: Path, make_video: Callable[..., Path]) -> None:
    """Only parts of large pictures are decoded without keep."""
    assert assert_same(
        dataset_of(make_cache(tmp_path, make_video, size=(320, 240)), size=(112, 112)), keep="1GB"
    ).num_hits


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


def test_videos_that_are_read_more_often_take_the_place_of_others() -> None:
    kept = KeptFrames(10 * 100)

    def read(video: str) -> int:
        """Read ten frames of a video, and return the number of those that were in memory."""
        frames = kept.find(video, range(10), 100)
        for number in () if frames is None else set(range(10)) - frames.keys():
            kept.add(video, number, np.zeros(100, np.uint8))
        return len(frames or ())

    assert [read(video) for video in "aabbbb"] == [0, 10, 0, 0, 0, 0]  # b was read twice as often as a: a stays
    assert [read(video) for video in "bb"] == [0, 10]
    assert [read(video) for video in "aab"] == [0, 0, 10]
    assert kept.num_bytes == 1000


def test_videos_in_memory_are_those_that_the_rule_names() -> None:
    """Compare random reads of frames of three sizes with the rule, applied to all videos each time."""
    rng = np.random.default_rng(0)
    kept = KeptFrames(1000)
    num_reads: Counter[int] = Counter()
    in_memory: dict[int, int] = {}  # video to bytes
    for video in np.minimum(rng.geometric(0.1, 3000), 40).tolist():
        size = (100, 200, 700)[video % 3]
        frames = kept.find(video, [0], size)
        if frames is not None and not frames:
            kept.add(video, 0, np.zeros(size, np.uint8))
        num_reads[video] += 1
        assert bool(frames) == (video in in_memory)
        if video not in in_memory:
            while in_memory and sum(in_memory.values()) + size > 1000:
                least = min(in_memory, key=num_reads.__getitem__)
                if 2 * num_reads[least] >= num_reads[video]:
                    break
                del in_memory[least]
            if sum(in_memory.values()) + size <= 1000:
                in_memory[video] = size
        assert kept.num_bytes == sum(in_memory.values()) <= 1000


def test_frames_in_memory_cannot_be_written_to() -> None:
    kept = KeptFrames(100)
    assert kept.find("a", [0], 100) == {}
    kept.add("a", 0, np.zeros(100, np.uint8))
    frames = kept.find("a", [0], 100)
    assert frames is not None
    with pytest.raises(ValueError, match="read-only"):
        frames[0][:] = 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep": "8"}, "keep: got '8', expected a size with a unit"),
        ({"keep": 0}, "keep: got 0, expected"),
        ({"keep": "1GB", "decode": "cuda", "device": "cpu"}, "keep: got '1GB' with decode='cuda', expected None"),
    ],
)
def test_wrong_arguments(cache: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(cc.UsageError, match=message):
        cc.ClipLoader(dataset_of(cache), 4, **options)
