"""The statements of a sidecar bound what its files can make a reader allocate, and what reaches a decoder."""

from __future__ import annotations

import struct
import tracemalloc
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chordcache.errors import DamageError, StorageError
from chordcache.storage.artefacts import artefact as artefact_module
from chordcache.storage.artefacts import lmdb_pages
from chordcache.storage.artefacts.lmdb_pages import find_values
from chordcache.storage.artefacts.lmdb_reader import LmdbArtefact
from chordcache.storage.artefacts.open_files import open_artefact
from chordcache.storage.artefacts.writer import create_artefact
from chordcache.storage.feature_info import FeatureInfo, StoredFile
from chordcache.storage.feature_rules import Claims

HEIGHT, WIDTH = 32, 48
NUM = 4


def _file(path: Path) -> StoredFile:
    return StoredFile(f"x/ab/{path.name}", 0, "0" * 32)


def _frames(path: Path, **changes: Any) -> Claims:
    rows: Any = {"num_rows": {"frames": NUM}, "shape": (NUM, HEIGHT, WIDTH, 3), "dtype": "uint8"}
    info = FeatureInfo("frames", path.suffix[1:], "0" * 16, {"codec": "jpeg"}, _file(path), **(rows | changes))
    return Claims(NUM, (info,))


def _times(num_frames: int = NUM, **others: np.ndarray) -> dict[str, np.ndarray]:
    numbers = np.arange(num_frames)
    return {"pts_seconds": numbers / 25, "source_frames": numbers, "keyframes": numbers[:1], **others}


def _write(path: Path, rows: Any, arrays: dict[str, np.ndarray] | None = None, name: str = "frames") -> Path:
    with create_artefact(path) as writer:
        writer.append(name, rows)
        writer.finish(arrays or _times(), {})
    return path


@pytest.mark.parametrize("suffix", [".lmdb", ".h5"])
def test_a_record_is_as_large_as_its_picture_allows(tmp_path: Path, suffix: str) -> None:
    """One read of a forged record could ask for the size of the file."""
    most = 3 * (HEIGHT + 64) * (WIDTH + 64) + (64 << 10)
    for number, (size, is_right) in enumerate([(most, True), (most + 1, False)]):
        path = _write(tmp_path / f"{number}{suffix}", [b"a", bytes(size), b"b", b"c"])
        if is_right:
            artefact = open_artefact(path, path.stat().st_size, _frames(path))
            assert [len(record) for record in artefact.records("frames", range(NUM))] == [1, size, 1, 1]
            continue
        with pytest.raises(DamageError, match="a record"):
            list(open_artefact(path, path.stat().st_size, _frames(path)).records("frames", range(NUM)))


def test_a_chain_is_as_large_as_its_pictures(tmp_path: Path) -> None:
    claims = _frames(tmp_path / "a.lmdb")
    (info,) = claims.features
    chained = Claims(NUM, (info.replace(params={"codec": "h264", "gop": 8, "stride": 1}),))
    assert claims.records("frames")[1] == 1
    assert chained.records("frames") == (claims.records("frames")[0], 8)


@pytest.mark.parametrize("suffix", [".lmdb", ".npz", ".h5"])
@pytest.mark.parametrize(
    ("arrays", "match"),
    [
        (_times(pts_seconds=np.zeros(9000)), "has 7.* bytes, for 4 rows"),
        (_times(pts_seconds=np.zeros(NUM + 1)), "its 'pts_seconds' is float64"),
        (_times(pts_seconds=np.zeros((NUM, 1))), "its 'pts_seconds' is float64"),
        (_times(pts_seconds=np.arange(NUM)), "its 'pts_seconds' is int64"),
        (_times(pts_seconds=np.array([0, 1, np.nan, 3])), "its times are not finite"),
        (_times(source_frames=np.zeros(NUM)), "its 'source_frames' is float64"),
        (_times(keyframes=np.array([0, NUM])), "its keyframes are not"),
        (_times(keyframes=np.array([-1, 1])), "its keyframes are not"),
    ],
    ids=["large", "long", "two axes", "integers", "nan", "floats", "keyframe behind", "keyframe before"],
)
def test_whole_arrays_are_those_of_the_frames(
    tmp_path: Path, suffix: str, arrays: dict[str, np.ndarray], match: str
) -> None:
    rows = np.zeros((NUM, HEIGHT, WIDTH, 3), np.uint8)
    path = _write(tmp_path / f"a{suffix}", rows, arrays)
    artefact = open_artefact(path, path.stat().st_size, _frames(path))
    with pytest.raises(DamageError, match=match):
        [artefact.array(name) for name in arrays]
    assert len(artefact.rows("frames", range(NUM))) == NUM


@pytest.mark.parametrize("suffix", [".lmdb", ".npz", ".h5"])
@pytest.mark.parametrize(
    "changes",
    [
        {"num_rows": {"frames": NUM - 1}},
        {"num_rows": {"frames": NUM + 1}},
        {"shape": (NUM, HEIGHT, WIDTH, 2)},
        {"shape": (NUM, WIDTH, HEIGHT, 3)},
        {"dtype": "int8"},
    ],
    ids=str,
)
def test_rows_are_those_that_the_sidecar_states(tmp_path: Path, suffix: str, changes: dict[str, Any]) -> None:
    path = _write(tmp_path / f"a{suffix}", np.zeros((NUM, HEIGHT, WIDTH, 3), np.uint8))
    artefact = open_artefact(path, path.stat().st_size, _frames(path, **changes))
    with pytest.raises(DamageError, match="rows of 'frames'"):
        artefact.rows("frames", [0])


@pytest.mark.parametrize(
    ("name", "rows", "is_right"),
    [
        ("motion.covered", np.zeros((NUM, 2, 3), bool), True),
        ("motion.covered", np.zeros((NUM, 2, 2), bool), False),
        ("motion.covered", np.zeros((NUM, 2, 3), np.uint8), False),
        ("motion.types", np.zeros(NUM, "S1"), True),
        ("motion.types", np.zeros(NUM, "S9"), False),
    ],
)
def test_other_arrays_of_a_feature_fit_its_rows(tmp_path: Path, name: str, rows: np.ndarray, is_right: bool) -> None:
    path = _write(tmp_path / "a.npz", rows, name=name)
    info = FeatureInfo("motion", "npz", "0" * 16, {}, _file(path), (NUM, 2, 3, 2), "float16", num_rows={name: NUM})
    artefact = open_artefact(path, path.stat().st_size, Claims(NUM, (info,)))
    if is_right:
        assert np.array_equal(artefact.rows(name, range(NUM)), rows)
        return
    with pytest.raises(DamageError, match=f"got rows of '{name}'"):
        artefact.rows(name, [0])


@pytest.fixture
def any_holes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit on sparse files, raised by the user. The other limits still hold."""
    monkeypatch.setenv("CHORDCACHE_READ_LIMIT", "1TiB")


@pytest.mark.parametrize("suffix", [".npz", ".h5"])
def test_one_read_has_a_limit_that_the_user_can_raise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    """Rows that are read again and again, or that compress well, ask for more than the file has."""
    path = _write(tmp_path / f"a{suffix}", np.zeros((NUM, 1 << 16), np.float32), name="mine")
    rows = {"num_rows": {"mine": NUM}, "shape": (NUM, 1 << 16), "dtype": "float32", "feature": "mine"}
    claims = Claims(NUM, (_frames(path).features[0].replace(**rows),))
    numbers = [0] * (64 * path.stat().st_size // (4 << 16) + 1)
    artefact = open_artefact(path, path.stat().st_size, claims)
    assert len(artefact.rows("mine", numbers)) == len(numbers)  # below the limit
    monkeypatch.setenv("CHORDCACHE_READ_LIMIT", "1MiB")
    assert len(artefact.rows("mine", numbers[:-1])) == len(numbers) - 1
    with pytest.raises(StorageError, match=f"'mine' of '{path}': got a read of .*, expected at most 1048576. R"):
        artefact.rows("mine", numbers)
    out = np.empty((len(numbers), 1 << 16), np.float32)
    assert artefact.rows("mine", numbers, out) is out  # the caller has the memory
    monkeypatch.setenv("CHORDCACHE_READ_LIMIT", "1 GB")
    assert len(artefact.rows("mine", numbers)) == len(numbers)


def test_chains_of_more_records_than_the_sidecar_states(tmp_path: Path) -> None:
    """A reader has several arrays of all records, and one chain of 2^24 empty ones took 1.5 GiB."""
    path, num_frames = tmp_path / "a.lmdb", 40
    with create_artefact(path, gop=20) as writer:
        writer.append("frames", [b"packet"] * num_frames)
        writer.finish(_times(num_frames), {})
    changes: Any = {"num_rows": {"frames": num_frames}, "shape": (num_frames, HEIGHT, WIDTH, 3)}
    for gop, is_right in ((20, True), (19, False)):
        (info,) = _frames(path, **changes).features
        claims = Claims(num_frames, (info.replace(params={"codec": "h264", "gop": gop, "stride": 1}),))
        with nullcontext() if is_right else pytest.raises(DamageError, match="got 2 chains for 40 records"):
            assert LmdbArtefact(path, path.stat().st_size, claims).num_rows("frames") == num_frames


@pytest.mark.parametrize("suffix", [".npz", ".h5"])
def test_a_sparse_file_without_a_table(tmp_path: Path, any_holes: None, suffix: str) -> None:
    """A sparse file of any size costs nothing to send, and a reader looks for a table at its end."""
    path = tmp_path / f"a{suffix}"
    with path.open("wb") as file:
        file.truncate(1 << 32)
    tracemalloc.start()
    try:
        with pytest.raises(DamageError, match="its last line is not a table of its arrays"):
            open_artefact(path, 1 << 32)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("num_pages", [1025 + 4 * NUM, 1 << 20])
def test_a_sparse_lmdb_that_is_one_tree(tmp_path: Path, any_holes: None, num_pages: int) -> None:
    """Readers read the tree whole. Its pages follow from the number of records."""
    path = tmp_path / "a.lmdb"
    size = num_pages * (4096 + 8) + 24
    with path.open("wb") as file:
        file.truncate(size - 24)
        file.seek(size - 24)
        file.write(struct.pack("<QQQ", 0, 4096, num_pages))
    with pytest.raises(DamageError, match=f"its tree has {num_pages} pages, for 4 records"):
        open_artefact(path, size, _frames(path))


def _sparse_tree(path: Path, page_bytes: int, num_pages: int) -> int:
    """Write an LMDB of zeros whose tree is of these pages, and return its size."""
    size = num_pages * (page_bytes + 8) + 24
    with path.open("wb") as file:
        file.truncate(size - 24 - 8 * num_pages)
        file.seek(0, 2)
        file.write(np.arange(num_pages, dtype="<u8").tobytes() + struct.pack("<QQQ", 0, page_bytes, num_pages))
    return size


@pytest.mark.parametrize(
    ("page_bytes", "num_pages", "words"),
    [(65536, 1 << 18, "more than is read"), (512, 1 << 22, "more than is read"), (4096, 1 << 16, "what was written")],
)
def test_a_large_tree_is_bounded_and_not_in_memory_at_once(
    tmp_path: Path, any_holes: None, page_bytes: int, num_pages: int, words: str
) -> None:
    """A sidecar may state many rows, and a sparse file has room for them."""
    path = tmp_path / "a.lmdb"
    size = _sparse_tree(path, page_bytes, num_pages)
    claims = _frames(path)._replace(num_frames=1 << 24)
    tracemalloc.start()
    try:
        with pytest.raises(DamageError, match=words):
            open_artefact(path, size, claims)
        assert tracemalloc.get_traced_memory()[1] < 100 << 20
    finally:
        tracemalloc.stop()


def test_a_tree_that_is_not_kept_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = [bytes([n % 251]) * (n % 300 + 1) for n in range(3000)]
    path = _write(tmp_path / "a.lmdb", records, _times(3000))
    expected = find_values(_reader(path), path.stat().st_size)
    monkeypatch.setattr(lmdb_pages, "_MAX_KEPT_BYTES", 0)
    monkeypatch.setattr(lmdb_pages, "_BLOCK_BYTES", 16384)
    values = find_values(_reader(path), path.stat().st_size)
    assert len(values.numbers) == 3000
    for name in ("numbers", "places", "sizes"):
        np.testing.assert_array_equal(getattr(values, name), getattr(expected, name))
    artefact = open_artefact(path, path.stat().st_size)
    assert list(map(bytes, artefact.records("frames", range(3000)))) == records


def _reader(path: Path) -> lmdb_pages.Read:
    data = path.read_bytes()
    return lambda start, size: data[start : start + size]


@pytest.mark.parametrize("suffix", [".lmdb", ".h5"])
def test_large_records_are_found_one_after_the_other(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [bytes([n]) * 1000 for n in range(40)]
    path = _write(tmp_path / f"a{suffix}", records, _times(40))
    for name in ("BYTES_AT_ONCE", "_BLOCK_BYTES"):
        monkeypatch.setattr(artefact_module, name, 2500)
    artefact = open_artefact(path, path.stat().st_size)
    assert list(map(bytes, artefact.records("frames", range(40)))) == records
    assert list(map(bytes, artefact.records("frames", [7, 3, 39]))) == [records[n] for n in (7, 3, 39)]
