"""Names by which people find a video: keys, beginnings of keys, paths of the index and of the disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from helpers.inline import HERE

import chordcache as cc
from chordcache.errors import NotFoundError
from chordcache.read.cache import find_video
from chordcache.read.near_keys import near_keys

PATHS = ("a/talk.mp4", "b/talk.mp4", "b/talking.mp4", "b/x y\u05d0.mp4", "b/\udcff.mp4")


@pytest.fixture(scope="module")
def folder(tmp_path_factory, make_video) -> Path:
    folder = tmp_path_factory.mktemp("find")
    video = make_video(folder / "one.mp4", num_frames=2)
    for path in PATHS:
        place = folder / "videos" / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(video.read_bytes())
    summary = cc.build(cc.scan([folder / "videos"]), folder / "cache", tiers=["lmdb"], jobs=HERE)
    assert summary.num_done == len(PATHS)
    return folder


@pytest.fixture
def cache(folder) -> cc.Cache:
    return cc.open_cache(folder / "cache")


def test_each_key_path_and_file_finds_its_video(cache, folder, monkeypatch):
    monkeypatch.chdir(folder)
    for video in cache:
        on_disk = folder / "videos" / video.path
        for name in (
            video.key,
            video.path,
            os.fspath(on_disk),
            on_disk,
            f"videos/{video.path}",
            f"./videos/{video.path}",
        ):
            assert find_video(cache, name).key == video.key


def test_the_shortest_unique_beginning_of_each_key_finds_its_video(cache):
    keys = cache.keys()
    for key in keys:
        length = next(n for n in range(1, len(key) + 1) if sum(other.startswith(key[:n]) for other in keys) == 1)
        assert find_video(cache, key[:length]).key == key
        if length > 1:
            matching = ", ".join(other for other in keys if other.startswith(key[: length - 1]))
            with pytest.raises(NotFoundError, match=f"expected the name of one video. Matching keys: {matching}"):
                find_video(cache, key[: length - 1])


def test_a_link_to_a_source_finds_its_video(cache, folder, tmp_path):
    (tmp_path / "link.mp4").symlink_to(folder / "videos" / "a" / "talk.mp4")
    assert find_video(cache, tmp_path / "link.mp4").path == "a/talk.mp4"


@pytest.mark.parametrize("name", ["tlak", "tallking", "b/tolk.mp4", "taLk"])
def test_a_miss_lists_near_keys(cache, name):
    with pytest.raises(NotFoundError, match=r"expected a key, the beginning of a key.*Near keys: .*talk"):
        find_video(cache, name)


@pytest.mark.parametrize("name", ["", "/", "zzzzzzzz", "\0", "\udcfe", "x" * 5000, "a/", "'; --", "%", "\u05d0"])
def test_names_that_match_nothing(cache, name):
    with pytest.raises(NotFoundError, match="video: got"):
        find_video(cache, name)


def test_a_cut_key_is_near_to_its_own(cache):
    key = cache.keys()[0]
    assert near_keys(cache.catalog, key[:-3] + "zzz")[0] == key


def test_segments_of_a_file_are_listed(tmp_path, make_video):
    make_video(tmp_path / "a.mp4", num_frames=50)
    (tmp_path / "list.csv").write_text("path,start_seconds,end_seconds\na.mp4,0,1\na.mp4,1,2\n")
    cc.build(cc.read_index(tmp_path / "list.csv"), tmp_path / "cache", tiers=["lmdb"], jobs=HERE)
    with cc.open_cache(tmp_path / "cache") as cache:
        first, second = cache.keys()
        with pytest.raises(NotFoundError, match=f"Matching keys: {first}, {second}"):
            find_video(cache, "a.mp4")
        assert find_video(cache, second).segment is not None


def test_an_empty_cache(tmp_path):
    (tmp_path / "videos").mkdir()
    (tmp_path / "list.csv").write_text("path\n")
    cc.build(cc.read_index(tmp_path / "list.csv"), tmp_path / "cache", tiers=["lmdb"])
    with cc.open_cache(tmp_path / "cache") as cache, pytest.raises(NotFoundError, match="0 videos>. List them with"):
        find_video(cache, "a.mp4")
