"""Properties of LMDB beside the contract of all stores: its layout, full maps, many open; the cache above it."""

from __future__ import annotations

import io
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from helpers import processes

import chordcache as cc
from chordcache.digests import digest64
from chordcache.errors import DamageError
from chordcache.storage.artefacts import npy
from chordcache.storage.artefacts.open_files import open_artefact
from chordcache.storage.artefacts.writer import create_artefact


def arrays(num_records: int) -> dict[str, np.ndarray]:
    return {"pts_seconds": np.arange(num_records) / 25, "source_frames": np.arange(num_records)}


def write(path: Path, records: list[bytes]) -> int:
    """Write an environment and return its size."""
    with create_artefact(path) as writer:
        for record in records:
            writer.append("frames", [record])
        writer.finish(arrays(len(records)), {})
    return path.stat().st_size


def some_records(num_records: int, size: int = 3000) -> list[bytes]:
    return [os.urandom(size + 13 * number) for number in range(num_records)]


def read_all(path: Path, num_bytes: int, numbers: list[int]) -> list[bytes]:
    artefact = open_artefact(path, num_bytes)
    return [bytes(record) for record in artefact.records("frames", numbers)]


# The file


def test_the_layout_is_the_one_that_the_module_draws(tmp_path: Path) -> None:
    wanted = some_records(3)
    write(tmp_path / "a.lmdb", wanted)
    entries = processes.entries(tmp_path / "a.lmdb")
    assert entries.keys() == {
        *(b"\0\0\0\0", b"\0\0\0\1", b"\0\0\0\2"),
        *(b"frames.xxh3_64", b"pts_seconds", b"source_frames"),
    }
    assert [entries[number.to_bytes(4, "big")] for number in range(3)] == wanted
    value = entries[b"frames.xxh3_64"]
    assert value[:8] == digest64(value[8:]).to_bytes(8, "little")
    digests = np.load(io.BytesIO(value[8:]))
    assert digests.dtype == np.dtype("<u8")
    assert digests.tolist() == [digest64(record) for record in wanted]
    assert np.load(io.BytesIO(entries[b"pts_seconds"][8:])).tolist() == [0, 0.04, 0.08]


@pytest.mark.parametrize("values", [np.zeros(3), np.zeros((2, 0), "u1"), np.arange(6, dtype="<i2").reshape(1, 6, 1)])
def test_npy_is_that_of_numpy(values: np.ndarray) -> None:
    data = npy.dumps(values)
    for array in (np.load(io.BytesIO(data)), npy.loads(data)):
        assert (array.dtype, array.shape) == (values.dtype, values.shape)
        assert np.array_equal(array, values)


# Damage


def test_a_longer_file_reads_where_the_sidecar_agrees(tmp_path: Path) -> None:
    path = tmp_path / "a.lmdb"
    wanted = some_records(20)
    num_bytes = write(path, wanted)
    path.write_bytes(path.read_bytes() + bytes(4096))
    with pytest.raises(DamageError, match=f"got {num_bytes + 4096} bytes, expected {num_bytes}"):
        read_all(path, num_bytes, [0])
    with pytest.raises(DamageError, match="the pages of its tree are not what was written"):
        read_all(path, num_bytes + 4096, [0])


def test_a_damaged_page_of_the_tree_reaches_no_reader_of_lmdb(tmp_path: Path) -> None:
    """Most of these end the process, or the search, inside LMDB."""
    path = tmp_path / "a.lmdb"
    num_bytes = write(path, some_records(400, size=5000))
    data = path.read_bytes()
    page_bytes, num_pages = struct.unpack("<2Q", data[-16:])
    numbers = struct.unpack(f"<{num_pages}Q", data[-24 - 8 * num_pages : -24])
    assert 5 < num_pages < 20  # of 800 pages and more
    assert {0, 1} < set(numbers)
    for number in numbers:
        for at in (10, 12, 14, 16, 100, page_bytes - 20):
            at += number * page_bytes
            path.write_bytes(data[:at] + bytes([data[at] ^ 0x41]) + data[at + 1 :])
            with pytest.raises(DamageError, match="the pages of its tree are not what was written"):
                read_all(path, num_bytes, [0])
    (digest,) = struct.unpack("<Q", data[-24:-16])
    most = 2**64 - 1
    for footer in [(digest ^ 1, page_bytes, num_pages), (digest, 0, num_pages), (digest, most, num_pages)] + [
        (digest, page_bytes, num) for num in (0, num_pages - 1, num_pages + 1, most)
    ]:
        path.write_bytes(data[:-24] + struct.pack("<3Q", *footer))
        with pytest.raises(DamageError, match="the pages of its tree are not what was written"):
            read_all(path, num_bytes, [0])
    path.write_bytes(data)
    assert len(read_all(path, num_bytes, [0, 399])) == 2


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_writer_that_cannot_write_raises(tmp_path: Path) -> None:
    (tmp_path / "full.lmdb").symlink_to("/dev/full")
    with pytest.raises(cc.StorageError, match=f"no space left on device writing '{tmp_path}'"):
        write(tmp_path / "full.lmdb", some_records(3))
    (tmp_path / "folder.lmdb").mkdir()
    with pytest.raises(cc.StorageError, match="cannot write '.*folder.lmdb'.*directory; run the same command"):
        write(tmp_path / "folder.lmdb", some_records(3))


# The cache above it


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path]) -> Path:
    """Five small videos, one of which has the same frame size and length as another."""
    folder = tmp_path_factory.mktemp("store")
    for number in range(5):
        make_video(folder / "videos" / f"{number}.mp4", num_frames=10 + 5 * number)
    cc.build(cc.scan([folder / "videos"], jobs=2), folder / "cache", jobs=2)
    return folder / "cache"


def first_frames(opened: cc.Cache) -> list[bytes]:
    return [opened.read(video, "frames", 0, 1).tobytes() for video in opened]


@pytest.mark.parametrize("was_read", [False, True])
def test_a_cache_pickles_small_and_works(cache: Path, was_read: bool) -> None:
    opened = cc.open_cache(cache)
    frames = first_frames(opened) if was_read else None
    data = pickle.dumps(opened)
    assert len(data) < 500
    again = pickle.loads(data)
    assert len(again) == 5
    assert again.keys() == opened.keys()
    assert frames is None or first_frames(again) == frames
