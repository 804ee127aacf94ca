"""Frames that are cached as planes: what is stored, how it is shown, and what damage does to it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chordcache as cc
from chordcache.config.config import config_from_json
from chordcache.errors import DamageError
from chordcache.media.cropping import Rectangle
from chordcache.media.planes import around, cut, joined, split
from chordcache.storage.feature_rules import feature_problem

pytestmark = pytest.mark.usefixtures("inline")

WIDTH, HEIGHT, NUM_FRAMES = 100, 54, 20


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A video of full-range BT.601, which is cached without a conversion."""
    folder = tmp_path_factory.mktemp("videos")
    command = f"ffmpeg -v error -f lavfi -i testsrc2=s={WIDTH}x{HEIGHT}:r=25 -frames:v {NUM_FRAMES}"
    colors = "-vf scale=out_color_matrix=bt601:out_range=pc -pix_fmt yuvj420p -colorspace smpte170m -color_range pc"
    siting = "-chroma_sample_location center"  # as in JPEG: others are moved there
    subprocess.run([*f"{command} {colors} {siting} -c:v libx264 -crf 8".split(), folder / "a.mp4"], check=True)
    return folder


@pytest.fixture(scope="module", params=["lmdb", "hdf5"])
def cache(videos: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> cc.Cache:
    return build(videos, tmp_path_factory.mktemp("cache") / "cache", request.param)


def build(videos: Path, folder: Path, tier: str = "lmdb") -> cc.Cache:
    frames = {"codec": "yuv420", "short_side": None}
    without = dict.fromkeys(("flow", "motion", "mel"))
    config = config_from_json({"frames": frames, "features": without, "hdf5": {"features": ["frames"]}})
    assert cc.build(cc.scan([videos], jobs=1), folder, tiers=tier, config=config, jobs=1).num_failed == 0
    return cc.open_cache(folder)


def shown_by_ffmpeg(path: Path) -> np.ndarray:
    """The planes of all frames [shape=(T, H * 3 / 2, W)]."""
    command = ["ffmpeg", "-v", "error", "-i", path, "-f", "rawvideo", "-pix_fmt", "yuvj420p", "-"]
    planes = subprocess.run(command, capture_output=True, check=True).stdout
    return np.frombuffer(planes, np.uint8).reshape(-1, HEIGHT * 3 // 2, WIDTH)


def test_stored_planes_are_those_of_ffmpeg(cache: cc.Cache, videos: Path) -> None:
    stored = cache.read_encoded(0, range(NUM_FRAMES))
    np.testing.assert_array_equal(stored, shown_by_ffmpeg(videos / "a.mp4"))


def test_frames_are_those_of_the_standard(cache: cc.Cache) -> None:
    """BT.601 in floating point, with the chroma of each 2x2 pixels. The conversion may be two levels off."""
    y, u, v = (plane.astype(np.float64) for plane in split(np.asarray(cache.read_encoded(0, range(NUM_FRAMES)))))
    blue, red = (plane.repeat(2, axis=1).repeat(2, axis=2) - 128 for plane in (u, v))
    exact = np.stack((y + 1.402 * red, y - 0.344136 * blue - 0.714136 * red, y + 1.772 * blue), -1)
    frames = cache.read(0)
    assert frames.shape == (NUM_FRAMES, HEIGHT, WIDTH, 3)
    assert np.abs(frames - exact.clip(0, 255)).max() <= 3
    assert np.abs(frames - exact.clip(0, 255)).mean() < 1


@pytest.mark.parametrize("part", [Rectangle(0, 0, 54, 100), Rectangle(3, 7, 21, 30), Rectangle(52, 98, 2, 2)])
def test_parts_are_those_of_whole_frames(cache: cc.Cache, part: Rectangle) -> None:
    numbers = [7, 0, 19, 19, 3]
    whole = cache.read(0, indices=numbers)
    parts = [frame.copy() for block in cache.iter_frames(0, numbers, part=part) for frame in block]
    np.testing.assert_array_equal(parts, part.of(whole))


def test_frames_are_read_a_few_at_a_time(cache: cc.Cache) -> None:
    blocks = list(cache.iter_frames(0, [*range(NUM_FRAMES)] * 20))
    assert sum(map(len, blocks)) == 20 * NUM_FRAMES
    assert all(np.shares_memory(block, blocks[0]) for block in blocks)
    memory: Any = blocks[0]
    while isinstance(memory.base, np.ndarray):
        memory = memory.base
    assert memory.nbytes <= 3 << 20  # of 6.5 MB that all frames have


def test_planes_are_cut_at_whole_samples_of_chroma() -> None:
    picture = np.arange(54 * 3 // 2 * 100, dtype=np.int64).reshape(-1, 100).astype(np.uint8)
    planes = split(picture)
    np.testing.assert_array_equal(joined(planes), picture)
    part = around(Rectangle(3, 7, 20, 30))
    assert part == Rectangle(2, 6, 22, 32)
    y, u, _ = cut(planes, part)
    np.testing.assert_array_equal(y, planes[0][2:24, 6:38])
    np.testing.assert_array_equal(u, planes[1][1:12, 3:19])


def test_verify_finds_nothing(cache: cc.Cache) -> None:
    assert cc.verify(cache.path, level="deep", source=True, jobs=1).damage == []


def test_missed_videos_are_read_from_the_source_alike(videos: Path, cache: cc.Cache, tmp_path: Path) -> None:
    index = cc.scan([videos], jobs=1)
    empty = build(videos, tmp_path / "cache")
    cc.build(index, tmp_path / "cache", jobs=1)
    sampler: Any = cc.RegularClipSampler(num_frames=8, stride=2)
    for path in (empty.path / "sidecars").rglob("*.json"):
        path.unlink()
    missing = cc.videos.indexed(index, tmp_path / "cache", on_miss="source")
    datasets = [cc.ChordVideoDataset(source, clip_sampler=sampler, size=None) for source in (cache.path, missing)]
    first, second = (dataset[(0, 0)]["frames"] for dataset in datasets)
    assert (first == second).all()


def test_damage_of_one_frame(videos: Path, tmp_path: Path) -> None:
    cache = build(videos, tmp_path / "cache")
    (path,) = (tmp_path / "cache/lmdb").rglob("*.lmdb")
    data = bytearray(path.read_bytes())
    frame = np.asarray(cache.read_encoded(0, [5]))[0].tobytes()
    data[data.index(frame) + len(frame) // 3] ^= 1
    (tmp_path / "damaged").write_bytes(data)
    (tmp_path / "damaged").replace(path)
    cache = cc.open_cache(tmp_path / "cache")
    assert cache.read(0, indices=[4, 6]).shape[0] == 2
    for read in (cache.read, cache.read_encoded):
        with pytest.raises(DamageError, match="row 5 of 'frames' is not what was written"):
            read(0, indices=[4, 5])
    assert len(cc.verify(tmp_path / "cache", jobs=1).damage) == 1


@pytest.mark.parametrize("size", [(53, 100), (54, 99)])
def test_a_sidecar_of_half_samples_is_refused(cache: cc.Cache, size: tuple[int, int]) -> None:
    sidecar = cache[0].sidecar
    frames = cache[0].feature("frames")
    assert feature_problem(frames, sidecar) is None
    assert feature_problem(frames.replace(shape=(NUM_FRAMES, *size, 3)), sidecar) is not None
