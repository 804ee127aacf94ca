"""Catalogs whose sections or rows are forged under right digests: damage that is named, and in bounded memory."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from helpers.catalogs import forge, rows_of, sections_of
from helpers.inline import HERE

import chordcache as cc
from chordcache.storage import catalog_file, sealed_json
from chordcache.storage.catalog import Catalog
from chordcache.storage.catalog_file import CATALOG, HEAD_BYTES
from chordcache.storage.find_sidecars import Sidecars


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path]) -> Path:
    folder = tmp_path_factory.mktemp("built")
    for name in ("a", "b"):
        make_video(folder / f"videos/{name}.mp4", num_frames=4)
    index = cc.scan([folder / "videos"], output=folder / "index.json", jobs=HERE)
    cc.build(index, folder / "cache", features=["frames"], jobs=HERE)
    return folder / "cache"


@pytest.fixture
def cache(built: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built, tmp_path / "cache"))


@pytest.mark.parametrize("number", [2**31 - 1, 0, -2])
def test_ids_of_labels_that_do_not_exist(cache: Path, number: int) -> None:
    """A sampler counts videos by these numbers: it took memory for two thousand million labels."""
    forge(cache, sections={"label_ids": np.array([-1, number], "<i4").tobytes()})
    with pytest.raises(cc.DamageError, match="its section 'label_ids' has numbers that no video has"):
        _ = cc.open_cache(cache).label_ids


@pytest.mark.parametrize("number", [0, -1, -(2**31)])
def test_numbers_of_frames_that_no_video_has(cache: Path, number: int) -> None:
    forge(cache, sections={"num_frames": np.array([4, number], "<i4").tobytes()})
    with pytest.raises(cc.DamageError, match="its section 'num_frames' has numbers that no video has"):
        _ = cc.open_cache(cache).num_frames


@pytest.mark.parametrize("side", [0, -1, 16385, 2**63, 2**64 - 1])
def test_sides_of_pictures_that_no_video_has(cache: Path, side: int) -> None:
    data = sealed_json.unseal(rows_of(cache)[1], "")
    forge(cache, rows={1: sealed_json.seal({**data, "height": side})})
    with pytest.raises(cc.DamageError, match="is damaged"):
        _ = Catalog(cache).pictures


@pytest.mark.parametrize("name", ["offsets", "hashes", "order", "mtimes", "num_frames", "label_ids"])
def test_sections_of_more_videos_than_there_are(cache: Path, name: str) -> None:
    """The keys of 24 million videos were read by a command that did not read the other sections."""
    forge(cache, sections={name: sections_of(cache)[name] + bytes(8)})
    with pytest.raises(cc.DamageError, match=f"its section '{name}' has .* bytes, expected those of 2 videos"):
        Catalog(cache)


def test_as_many_videos_as_the_file_has_sidecars(cache: Path) -> None:
    num_videos = (cache / CATALOG).stat().st_size // 300
    with open(cache / CATALOG, "r+b") as file:
        head = sealed_json.unseal(file.read(HEAD_BYTES).decode().rstrip(), "")
        file.seek(0)
        file.write(sealed_json.seal({**head, "num_videos": num_videos}).encode().ljust(HEAD_BYTES - 1) + b"\n")
    with pytest.raises(cc.DamageError, match=f"got {num_videos} videos in"):
        Catalog(cache)


def test_rows_that_are_one_row(cache: Path) -> None:
    """Each row could be the largest one, and a list of paths would read it again for each video."""
    first, second, _ = np.frombuffer(sections_of(cache)["offsets"], "<i8")
    forge(cache, sections={"offsets": np.array([first, second, first], "<i8").tobytes()})
    with pytest.raises(cc.DamageError, match="its section 'offsets' has rows over each other"):
        list(Catalog(cache).paths())


def test_a_row_of_another_video(cache: Path) -> None:
    """gc removed the files of a video at whose place the catalog has another one."""
    first, second = cc.open_cache(cache).keys()
    forge(cache, rows={0: rows_of(cache)[1]}, sections={"hashes": sections_of(cache)["hashes"][8:] * 2})
    sidecars = Sidecars(cache)
    assert sidecars.read(first).key == first
    assert second not in str(sidecars.read(first).files)
    assert cc.collect_garbage(cache) == []


@pytest.mark.parametrize(("num_videos", "words"), [(10**9, "bytes of sections"), (10**6, "bytes of 'labels'")])
def test_a_sparse_catalog(cache: Path, num_videos: int, words: str) -> None:
    """A file of zeros takes no space, and may claim any number of videos."""
    size = HEAD_BYTES + 100 * num_videos
    head = json.loads((cache / CATALOG).read_bytes()[:HEAD_BYTES])
    del head["xxh3_128"]
    head |= {"num_videos": num_videos, "num_bytes": size}
    for name in sections_of(cache):
        head["sections"][name] = [
            HEAD_BYTES,
            8 * num_videos if num_videos > 10**8 or name != "labels" else 90 << 20,
            "",
        ]
    with open(cache / CATALOG, "wb") as file:
        file.write(sealed_json.sealed(json.dumps(head)).encode().ljust(HEAD_BYTES - 1) + b"\n")
        file.truncate(size)
    with pytest.raises(cc.DamageError, match=words):
        cc.open_cache(cache)


def test_a_catalog_that_no_reader_would_take_is_not_written(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (cache / CATALOG).read_bytes()
    monkeypatch.setattr(catalog_file, "_MAX_SECTIONS_BYTES", 100)
    with pytest.raises(cc.UsageError, match="catalog of 2 videos: got .* bytes of sections, expected at most 100"):
        cc.repair(cache, cc.verify(cache, jobs=HERE).damage, jobs=HERE)
    assert (cache / CATALOG).read_bytes() == before
