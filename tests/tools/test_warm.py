"""``warm``: files are in the page cache afterwards, as the kernel says and as ``vmtouch`` would."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import chordcache as cc
from chordcache.building.pack import pack
from chordcache.tools.warm import num_resident, warm

pytestmark = pytest.mark.usefixtures("inline")

Cli = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path]) -> Path:
    work = tmp_path_factory.mktemp("warm")
    for number, name in enumerate("abc"):
        make_video(work / "videos" / f"{name}.mp4", num_frames=40 + number, size=(320, 240), audio=True)
    (work / "config.yaml").write_text("features: {mel: {}}\n")
    cc.build(cc.scan([work / "videos"], jobs=1), work / "cache", config=work / "config.yaml", jobs=1)
    return work / "cache"


@pytest.fixture
def cache(built: Path, tmp_path: Path) -> Path:
    shutil.copytree(built, tmp_path / "cache")
    return tmp_path / "cache"


def files_of(cache: Path) -> list[Path]:
    return [path for top in ("lmdb", "npz", "packs") for path in sorted((cache / top).rglob("*")) if path.is_file()]


def evict(cache: Path) -> None:
    """Drop the pages of all files from the page cache."""
    os.sync()
    for path in files_of(cache):
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def resident(path: Path) -> float:
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        return num_resident(file.fileno(), 0, size) / size


@pytest.mark.parametrize("is_packed", [False, True])
def test_all_files_are_in_memory(cache: Path, is_packed: bool) -> None:
    if is_packed:
        pack(cache)
        cc.collect_garbage(cache)
    evict(cache)
    assert all(resident(path) < 0.5 for path in files_of(cache))
    result = warm(cache, memory=1 << 30)
    sizes = sum(video.sidecar.num_bytes() for video in cc.open_cache(cache))
    assert (result.num_videos, result.num_left_out, result.num_bytes) == (3, 0, sizes)
    assert result.resident_share == 1
    assert all(resident(path) > 0.9 for path in files_of(cache))


def test_only_what_will_be_read(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "split.txt").write_text("b.mp4\n")
    evict(cache)
    result = warm(cache, memory=1 << 30, videos=tmp_path / "split.txt", features=["mel"])
    assert result.num_videos == 1
    assert [path.name[0] for path in files_of(cache) if resident(path) > 0.5] == ["b"]
    assert result.num_bytes == next((cache / "npz").rglob("b-*")).stat().st_size


def test_memory_for_some_videos(cache: Path, run_cli: Cli) -> None:
    first, *_ = cc.open_cache(cache)
    evict(cache)
    done = run_cli("warm", cache, "--memory", f"{first.sidecar.num_bytes() + 1000}B")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("read 1 video, ")
    assert done.stdout.endswith("100% is in memory; 2 videos do not fit\n")
    assert {path.name[0] for path in files_of(cache) if resident(path) > 0.5} == {"a"}


def test_a_missing_and_a_short_file(cache: Path) -> None:
    path = next((cache / "lmdb").rglob("a-*"))
    path.chmod(0o644)
    os.truncate(path, 100)
    with pytest.raises(cc.DamageError, match="it is cut off; run 'chordcache verify --repair"):
        warm(cache, memory=1 << 30)
    path.unlink()
    with pytest.raises(cc.DamageError, match="it is missing"):
        warm(cache, memory=1 << 30)


@pytest.mark.parametrize("features", [["pose"], ["mel", "pose"]], ids=str)
def test_features_that_are_not_cached(cache: Path, features: list[str]) -> None:
    with pytest.raises(cc.FeatureAbsentError, match="features: got pose"):
        warm(cache, memory=1 << 30, features=features)


def test_features_as_a_dataset_takes_them(cache: Path) -> None:
    assert warm(cache, memory=1 << 30, features="mel") == warm(cache, memory=1 << 30, features=["mel"])
    with pytest.raises(cc.UsageError, match="features: got none"):
        warm(cache, memory=1 << 30, features=[])


def test_a_video_that_is_named_twice(cache: Path) -> None:
    first, second, _ = cc.open_cache(cache)
    memory = first.sidecar.num_bytes() + second.sidecar.num_bytes()
    result = warm(cache, memory=memory, videos=[first.key, first.key, second.key])
    assert (result.num_videos, result.num_left_out, result.num_bytes) == (2, 0, memory)
