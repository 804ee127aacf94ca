"""Ranges of artefacts in buckets. No test_*.py, since they need the environment of `make test-formats`."""

from __future__ import annotations

import os
import pickle
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import buckets, small_disks
from helpers.buckets import NUM_VIDEOS, assert_equal

import chordcache as cc
from chordcache.bucket import Bucket
from chordcache.formats.push import push
from chordcache.read.video import open_feature
from chordcache.storage.remote import ranges
from chordcache.storage.remote.fetching import files_of
from chordcache.storage.remote.local_store import LocalStore
from chordcache.storage.remote.mark import Mark

pytest_plugins = ["helpers.bucket_fixtures"]
pytestmark = pytest.mark.usefixtures("environment", "artefacts_of_any_size")


@pytest.fixture
def artefacts_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fetch ranges of all artefacts, also of small ones."""
    monkeypatch.setattr(ranges, "LEAST_BYTES", 1)


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path]) -> Path:
    """A cache of two videos of 200 frames, with flow."""
    folder = tmp_path_factory.mktemp("films")
    for number in range(2):
        make_video(folder / "videos" / f"{number}.mp4", num_frames=200, size=(320, 240))
    (folder / "config.yaml").write_text("frames: {short_side: 240}\nfeatures: {flow: {preset: ultrafast}, mel: null}\n")
    index = cc.scan([folder / "videos"], output=folder / "index.json", jobs=1)
    cc.build(index, folder / "cache", config=folder / "config.yaml", tiers=("lmdb", "npz"), jobs=2)
    return folder / "cache"


def num_bytes_of(requests: list[tuple[str, str, str | None]]) -> int:
    """Return the bytes that requests of ranges ask for."""
    limits = [re.fullmatch(r"bytes=(\d+)-(\d+)", span or "") for _, _, span in requests]
    return sum(int(match[2]) - int(match[1]) + 1 for match in limits if match)


INDEX_BYTES = 80 << 10
"""More than what is read when an artefact of 200 frames is opened"""


def num_bytes_of_frames(cache: cc.Cache, numbers: Sequence[int]) -> int:
    """Return the size of the pages that frames take. Each begins with a header of 16 bytes."""
    return sum(-(-(16 + len(jpeg)) // 4096) * 4096 for jpeg in cache.read_encoded(0, numbers))


def ranged(local: Path) -> set[str]:
    return {path.name for path in (local / "ranges").glob("*/*")}


def test_a_cache_reads_as_its_folder(cache: Path, url: str, tmp_path: Path) -> None:
    push(cache, url)
    reader = cc.open_cache(url, local=tmp_path / "local")
    assert_equal(cc.open_cache(cache), reader)
    files = {Path(info.file.name).name for video in reader for info in video.sidecar.features}
    assert ranged(tmp_path / "local") == files
    assert_equal(reader, pickle.loads(pickle.dumps(reader)))


@pytest.mark.parametrize("codec", ["mpeg4", "h264", "raw", "yuv420"])
def test_other_codecs(work: Path, url: str, tmp_path: Path, codec: str) -> None:
    (tmp_path / "config.yaml").write_text(f"frames: {{short_side: 64, codec: {codec}}}\n")
    cc.build(work / "index.json", tmp_path / "cache", config=tmp_path / "config.yaml", features=("frames",), jobs=1)
    push(tmp_path / "cache", url)
    plain, reader = cc.open_cache(tmp_path / "cache"), cc.open_cache(url, local=tmp_path / "local")
    for indices in ([17, 3, 3, 4], range(0, 20, 3), [5]):
        np.testing.assert_array_equal(reader.read(1, indices=indices), plain.read(1, indices=indices))
    assert_equal(plain, reader)


@pytest.mark.parametrize("stride", [1, 4])
def test_only_what_a_clip_needs_is_fetched(
    films: Path, url: str, proxy: buckets.Proxy, tmp_path: Path, stride: int
) -> None:
    push(films, url)
    plain, reader = cc.open_cache(films), cc.open_cache(url, local=tmp_path / "local")
    proxy.reset()
    numbers = range(70, 70 + 16 * stride, stride)
    needed = num_bytes_of_frames(plain, numbers)
    np.testing.assert_array_equal(reader.read(0, indices=numbers), plain.read(0, indices=numbers))
    first = num_bytes_of(proxy.gets("/lmdb/"))
    assert needed < first < needed + INDEX_BYTES
    others = [number + 16 * stride for number in numbers]
    np.testing.assert_array_equal(reader.read(0, indices=others), plain.read(0, indices=others))
    second = num_bytes_of(proxy.gets("/lmdb/")) - first
    assert 0 < second <= num_bytes_of_frames(plain, others)
    reader.read(0, indices=numbers)
    assert num_bytes_of(proxy.gets("/lmdb/")) == first + second
    flow = plain.read(0, "flow", 70, 86)
    np.testing.assert_array_equal(reader.read(0, "flow", 70, 86), flow)
    assert num_bytes_of(proxy.gets("/npz/")) < flow.size + INDEX_BYTES  # a byte a value


READER = """
import hashlib, sys, chordcache as cc
from chordcache.storage.remote import ranges
ranges.LEAST_BYTES = 1
cache = cc.open_cache(sys.argv[1], local=sys.argv[2], limit=int(sys.argv[3]))
digest = hashlib.sha256()
for _ in range(int(sys.argv[4])):
    for video in cache:
        for start in (8, 2, 12):
            digest.update(cache.read(video, "frames", start, start + 8).tobytes())
            digest.update(cache.read(video, "flow", start, start + 6).tobytes())
print(digest.hexdigest())
"""


def start_reader(url: str, local: Path, limit: int = 1 << 40, times: int = 1) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", READER, url, str(local), str(limit), str(times)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_processes_fetch_each_range_once(packed: Path, url: str, proxy: buckets.Proxy, tmp_path: Path) -> None:
    push(packed, url)
    (expected,) = {reader.communicate(timeout=60)[0] for reader in [start_reader(url, tmp_path / "alone")]}
    proxy.reset()
    proxy.fault = lambda _handler, _method, _path, answer: (time.sleep(0.05), answer)[1]
    readers = [start_reader(url, tmp_path / "local") for _ in range(4)]
    assert {reader.communicate(timeout=60)[0] for reader in readers} == {expected}
    assert len(expected) == 65
    gets = proxy.gets("/packs/")
    assert len(gets) == len(set(gets)) > NUM_VIDEOS


def test_a_small_folder_is_emptied_while_it_is_read(packed: Path, url: str, tmp_path: Path) -> None:
    """Each process removes files that the others read."""
    push(packed, url)
    expected = start_reader(url, tmp_path / "alone", times=6).communicate(timeout=60)[0]
    limit = 200 << 10
    readers = [start_reader(url, tmp_path / "local", limit, times=6) for _ in range(3)]
    assert {reader.communicate(timeout=120)[0] for reader in readers} == {expected}
    used = sum(512 * path.stat().st_blocks for path in (tmp_path / "local" / "ranges").glob("*/*"))
    assert used < 2 * limit


def test_a_file_is_removed_while_it_is_open(loose: Path, url: str, tmp_path: Path) -> None:
    push(loose, url)
    plain, reader = cc.open_cache(loose), cc.open_cache(url, local=tmp_path / "local")
    video = reader[0]
    with open_feature(video, video.feature("frames")) as artefact:
        before = list(map(bytes, artefact.records("frames", range(3))))
        shutil.rmtree(tmp_path / "local" / "ranges")
        after = list(map(bytes, artefact.records("frames", range(10, 13))))
    assert before + after == list(plain.read_encoded(0, [*range(3), *range(10, 13)]))
    assert_equal(plain, reader)
    with pytest.raises(cc.UsageError, match=r"limit: got 1000 bytes, expected at least the \d+ that are read of"):
        cc.open_cache(url, local=tmp_path / "small", limit="1kB").read(0, "frames")


def test_killed_processes_leave_no_wrong_bytes(packed: Path, url: str, proxy: buckets.Proxy, tmp_path: Path) -> None:
    push(packed, url)
    for seed in range(8):
        chance = random.Random(seed)
        proxy.fault = lambda _handler, _method, _path, answer: (time.sleep(0.01), answer)[1]
        reader = start_reader(url, tmp_path / "local")
        end = time.monotonic() + 60
        while not ranged(tmp_path / "local"):
            assert time.monotonic() < end
            time.sleep(0.01)
        time.sleep(chance.random() / 4)
        reader.kill()
        reader.communicate()
        proxy.reset()
        with cc.open_cache(url, local=tmp_path / "local") as again:
            assert_equal(cc.open_cache(packed), again)
        shutil.rmtree(tmp_path / "local" / "ranges")


def test_a_range_counts_when_the_disk_has_it(
    loose: Path, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(loose, url)
    piece = cc.open_cache(loose)[0].feature("frames").file
    local = tmp_path / "local"
    local.mkdir()
    store = LocalStore(local, Mark(url, 1 << 30))

    def fail(_fd: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail)
        with pytest.raises(OSError, match="Input/output error"):
            store.fetch_ranges(piece, [(0, 5000)])
    path = local / ranges.file_of(piece.name)
    with path.open("rb") as file:
        assert ranges.missing(file.fileno(), piece.num_bytes, [(0, 5000)])
        store.fetch_ranges(piece, [(0, 5000)])
        assert not ranges.missing(file.fileno(), piece.num_bytes, [(0, 5000)])
        assert path.read_bytes()[:5000] == (loose / piece.name).read_bytes()[:5000]
        store.fetch_ranges(piece, [(0, piece.num_bytes)])
    assert path.read_bytes()[: piece.num_bytes] == (loose / piece.name).read_bytes()


def test_missing_ranges(tmp_path: Path) -> None:
    """Random states and wanted ranges, against a set of blocks."""
    chance = random.Random(0)
    for _ in range(200):
        num_bytes = chance.randrange(1, 40_000)
        num_blocks = -(-num_bytes // 1024)
        there = {block for block in range(num_blocks) if chance.random() < 0.5}
        path = tmp_path / "file"
        path.write_bytes(bytes(num_bytes) + bytes(block in there for block in range(num_blocks)))
        assert path.stat().st_size == ranges.size_of(num_bytes)
        spans = [tuple(sorted(chance.choices(range(num_bytes + 1), k=2))) for _ in range(chance.randrange(4))]
        wanted = {block for start, stop in spans if start < stop for block in range(start // 1024, -(-stop // 1024))}
        with path.open("r+b") as file:
            gaps = ranges.missing(file.fileno(), num_bytes, [(start, stop) for start, stop in spans])
            fetched = {block for start, stop in gaps for block in range(start // 1024, -(-stop // 1024))}
            assert fetched >= wanted - there
            assert all(b[0] - a[1] > 8 * 1024 for a, b in pairwise(gaps))
            assert all(stop % 1024 == 0 or stop == num_bytes for _, stop in gaps)
            assert len(fetched) <= 9 * len(wanted - there)
            for span in gaps:
                ranges.note_arrival(file.fileno(), num_bytes, span)
            assert not ranges.missing(file.fileno(), num_bytes, [(start, stop) for start, stop in spans])
        assert path.stat().st_size == ranges.size_of(num_bytes)


# Loaders


def test_loaders(films: Path, url: str, tmp_path: Path) -> None:
    sampler = cc.RegularClipSampler(num_frames=8, stride=2)
    push(films, url)

    def dataset_of(cache: Any) -> cc.ChordVideoDataset:
        return cc.ChordVideoDataset(
            cache, clip_sampler=sampler, features=("frames", "flow"), size=(64, 64), clips_per_video=3
        )

    expected = [dataset_of(films)[number] for number in range(6)]
    reader = cc.open_cache(url, local=tmp_path / "local")
    dataset = dataset_of(reader)
    dataset[0]  # by the parent of the workers
    joined = cc.subset(cc.concat([dataset]), range(6))
    loaders = (
        cc.ClipLoader(joined, batch_size=2, num_threads=2, shuffle=False),
        cc.make_loader(dataset, batch_size=3, num_workers=2, start_method="fork", shuffle=False),
    )
    for loader in loaders:
        shutil.rmtree(tmp_path / "local" / "ranges")
        samples = [(batch, i) for batch in loader for i in range(len(batch["video"]))]
        assert len(samples) == len(expected)
        for (batch, i), sample in zip(samples, expected, strict=True):
            assert batch["video"][i] == sample["video"]
            for name in ("frames", "flows", "pts_seconds"):
                np.testing.assert_array_equal(batch[name][i], sample[name])


def test_a_clip_loader_fetches_ahead(films: Path, url: str, proxy: buckets.Proxy, tmp_path: Path) -> None:
    """The ranges of later batches arrive before these are asked for, and then nothing is fetched."""
    push(films, url)
    cache = cc.open_cache(url, local=tmp_path / "local")
    dataset = cc.ChordVideoDataset(cache, clip_sampler=cc.RandomClipSampler(8, stride=2), clips_per_video=8)
    batches = iter(cc.ClipLoader(dataset, batch_size=2, num_threads=1, prefetch=0))
    next(batches)
    end, num_gets = time.monotonic() + 60, 0
    while num_gets != len(proxy.requests) or not num_gets:
        num_gets = len(proxy.requests)
        assert time.monotonic() < end
        time.sleep(3)
    assert len(list(batches)) == 7
    assert len(proxy.requests) == num_gets


# Faults


def test_503_twice_and_cuts_are_tried_again(cache: Path, url: str, proxy: buckets.Proxy, tmp_path: Path) -> None:
    push(cache, url)
    reader = cc.open_cache(url, local=tmp_path / "local")
    proxy.fault = buckets.fail_first(2)
    reader.read(0, "frames", 0, 4)
    proxy.fault = buckets.of_objects("/cache/", buckets.cut, times=2)
    assert_equal(cc.open_cache(cache), reader)


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize(("feature", "tier"), [("frames", "lmdb"), ("flow", "npz")])
def test_wrong_bytes_are_an_error(
    films: Path, url: str, proxy: buckets.Proxy, tmp_path: Path, feature: str, tier: str, number: int
) -> None:
    """All bits of one answer: of the first or last bytes of the file, or of rows. The same call then reads right."""
    push(films, url)
    reader, num_answers = cc.open_cache(url, local=tmp_path / "local"), 0

    def change(_handler: Any, answer: buckets.Answer) -> buckets.Answer:
        nonlocal num_answers
        num_answers += 1
        return (*answer[:2], bytes(255 - byte for byte in answer[2])) if num_answers == number + 1 else answer

    proxy.fault = buckets.of_objects(f"/{tier}/", change)
    with pytest.raises(cc.DamageError, match=r"is damaged: .*\. Run the same command again\. If the object is damaged"):
        reader.read(0, feature)
    expected = cc.open_cache(films).read(0, feature)
    np.testing.assert_array_equal(reader.read(0, feature), expected)


def test_an_object_that_is_cut_short_or_missing(loose: Path, url: str, proxy: buckets.Proxy, tmp_path: Path) -> None:
    push(loose, url)
    reader = cc.open_cache(url, local=tmp_path / "local")
    infos = [reader[number].feature("frames") for number in range(2)]
    bucket = Bucket(url)
    bucket.write(infos[0].file.name, [(loose / infos[0].file.name).read_bytes()[:5000]])
    bucket.remove([infos[1].file.name])
    for number, text in enumerate(("got Requested range not satisfiable|got other bytes", "got no object")):
        with pytest.raises((cc.DamageError, cc.UnreadableError), match=text):
            reader.read(number, "frames")
    push(loose, url)
    assert_equal(cc.open_cache(loose), reader)


@pytest.mark.parametrize("num_bytes", [1 << 45, 1 << 63])
def test_a_sidecar_that_claims_an_absurd_size(loose: Path, url: str, tmp_path: Path, num_bytes: int) -> None:
    push(loose, url)
    reader = cc.open_cache(url, local=tmp_path / "local", limit=1 << 40)
    video = reader[0]
    info = video.feature("frames")
    forged = info.replace(file=info.file.replace(num_bytes=num_bytes))
    with (
        pytest.raises((cc.NoSpaceError, cc.UsageError), match="file too large at|limit: got"),
        open_feature(video, forged),
    ):
        pass


def test_a_server_that_stalls(loose: Path, url: str, proxy: buckets.Proxy, tmp_path: Path) -> None:
    """All ways to read give up after the same 22 seconds."""
    push(loose, url)
    reader = cc.open_cache(url, local=tmp_path / "local")
    dataset = cc.ChordVideoDataset(reader, clip_sampler=cc.RegularClipSampler(num_frames=8))
    proxy.fault = buckets.of_objects("/lmdb/", buckets.stall)
    calls: list[Callable[[], object]] = [
        lambda: reader.read(0, "frames"),
        lambda: next(iter(cc.ClipLoader(dataset, batch_size=2, num_threads=1))),
        lambda: dataset.__getitems__([0, 1]),
    ]
    with ThreadPoolExecutor() as pool:
        for future in [pool.submit(call) for call in calls]:
            with pytest.raises(cc.UnreadableError, match="expected its content"):
                future.result(timeout=40)
    files = files_of(tmp_path / "local")
    assert files is not None
    files.close()
    proxy.reset()
    assert_equal(cc.open_cache(loose), reader)


@pytest.mark.parametrize("disk", [small_disks.tmpfs, small_disks.ext4], ids=["tmpfs", "ext4"])
def test_a_full_disk(films: Path, url: str, tmp_path: Path, disk: small_disks.Disk) -> None:
    push(films, url)
    plain = cc.open_cache(films)
    with disk(tmp_path / "disk", "16m") as folder:
        reader = cc.open_cache(url, local=folder / "local")
        filler = folder / "filler"
        with filler.open("wb") as file:
            file.write(bytes(os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize - (300 << 10)))
        with pytest.raises(cc.NoSpaceError, match="make room"):
            reader.read(0, "frames")
        filler.unlink()
        np.testing.assert_array_equal(reader.read(0, "frames"), plain.read(0, "frames"))
        reader.close()
        files = files_of(folder / "local")
        assert files is not None
        files.close()
        from chordcache.storage.artefacts import open_files

        open_files._kept.clear()
