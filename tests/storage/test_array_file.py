"""Files of arrays beside the contract of all stores: other programs that open them, their records, hostile tables."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from helpers.array_tables import Arrays, change_table, put_array, table_of

from chordcache.digests import digest64, sealed
from chordcache.errors import DamageError, UsageError
from chordcache.storage.artefacts import open_files
from chordcache.storage.artefacts.open_files import check_artefact, open_artefact
from chordcache.storage.artefacts.writer import create_artefact

FLOW = np.arange(60, dtype=np.float16).reshape(20, 3)
EVERY_DTYPE: dict[str, np.ndarray] = {
    "bools": np.array([True, False]),
    "bytes": np.array([b"ab", b"c", b""]),
    "complex": np.array([1 + 2j], np.complex64),
    "empty": np.zeros((0, 3)),
    "doubles": np.arange(6.0).reshape(2, 3),
    "unsigned": np.array([2**64 - 1], np.uint64),
}


@pytest.fixture(params=[".npz", ".h5"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A file of rows and of whole arrays of every dtype."""
    path = tmp_path / f"a{request.param}"
    with create_artefact(path) as writer:
        writer.append("flow", FLOW)
        writer.finish(EVERY_DTYPE, {"": {"made": "here"}, "flow": {"units": "px", "params": {"a": [1]}}})
    return path


def read(path: Path) -> np.ndarray:
    return open_artefact(path, path.stat().st_size).rows("flow", range(20))


# Other programs


def test_the_table_states_where_the_values_are(path: Path) -> None:
    data, table = path.read_bytes(), table_of(path)
    wanted = {"flow": FLOW, "flow.xxh3_64": np.array([digest64(row) for row in FLOW], np.uint64), **EVERY_DTYPE}
    assert table.keys() == wanted.keys()
    for name, values in wanted.items():
        entry = table[name]
        assert np.array_equal(np.ndarray(entry["shape"], entry["dtype"], data, entry["offset"]), values), name
        assert entry.get("digest") == (None if name == "flow" else digest64(values)), name


def test_numpy_and_h5py_read_every_array(path: Path) -> None:
    whole: Any = np.load(path) if path.suffix == ".npz" else h5py.File(path)
    with whole as file:
        for name, values in {"flow": FLOW, **EVERY_DTYPE}.items():
            assert (file[name].dtype, file[name].shape) == (values.dtype, values.shape)
            assert np.array_equal(file[name][...], values)
        if path.suffix == ".h5":
            assert [name for name in file if file[name].chunks or file[name].compression] == []
            assert {name: file[name].id.get_offset() or 0 for name in file} == {
                name: entry["offset"] for name, entry in table_of(path).items()
            }
            assert (file.attrs["made"], file["flow"].attrs["units"], file["flow"].attrs["params"]) == (
                *("here", "px"),
                '{"a": [1]}',
            )


def test_h5dump_reads_every_array(tmp_path: Path) -> None:
    assert shutil.which("h5dump"), "make tools installs it"
    path = write_records(tmp_path / "a.h5", RECORDS)
    done = subprocess.run(["h5dump", "-d", "/frames.offsets", "-d", "/pts_seconds", "-y", path], capture_output=True)
    words = "".join(done.stdout.decode().split())
    assert (done.returncode, done.stderr) == (0, b"")
    assert f"DATA{{{','.join(map(str, OFFSETS))}}}" in words
    assert "DATA{0,1,2,3,4,5,6,7}" in words
    done = subprocess.run(["h5dump", "-d", "/frames", "-b", "-o", tmp_path / "bytes", path], capture_output=True)
    assert (done.returncode, (tmp_path / "bytes").read_bytes()) == (0, b"".join(RECORDS))


def test_a_file_that_another_program_has_open_to_write(path: Path) -> None:
    if path.suffix == ".h5":
        with h5py.File(path, "r+"):  # which locks it
            assert np.array_equal(read(path), FLOW)


def test_an_attribute_of_any_size(tmp_path: Path) -> None:
    tokens = list(range(20_000))
    with create_artefact(tmp_path / "a.h5") as writer:
        writer.append("text", FLOW)
        writer.finish({}, {"text": {"facts": {"num_tokens": tokens}}})
    with h5py.File(tmp_path / "a.h5") as file:
        assert len(file["text"].attrs["facts"]) > 100_000


def test_reading_loads_no_library_that_parses_the_file(path: Path) -> None:
    """Also where these libraries are not installed."""
    code = """
import sys
sys.modules |= dict.fromkeys(("h5py", "lmdb", "zipfile"))
from pathlib import Path
from chordcache.storage.artefacts.open_files import check_artefact
check_artefact(Path(sys.argv[1]), int(sys.argv[2]), {"flow": 20}, whole=sys.argv[3:])
assert not any(sys.modules[name] for name in ("h5py", "lmdb", "zipfile"))
"""
    command = [sys.executable, "-c", code, path, str(path.stat().st_size), *EVERY_DTYPE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stderr) == (0, "")


# Hostile tables


def entry(name: str, **changes: Any) -> Callable[[Arrays], None]:
    return lambda arrays: arrays[name].update(changes)


ELSEWHERE = "an array at .*, where something else is"
INVALID = r"is damaged: .*`\$\.arrays|is damaged: .*shape|is damaged: .*data type"
HOSTILE: dict[str, tuple[Callable[[Arrays], object], str]] = {
    "behind the end": (entry("doubles", offset=1 << 40), ELSEWHERE),
    "in the table": (lambda arrays: arrays["doubles"].update(offset=10**6), ELSEWHERE),
    "in another array": (lambda arrays: arrays["doubles"].update(offset=arrays["flow"]["offset"] + 8), ELSEWHERE),
    "twice": (lambda arrays: arrays.update(more=arrays["doubles"]), ELSEWHERE),
    "negative": (entry("doubles", offset=-1), INVALID),
    "far away": (entry("doubles", offset=1 << 63), INVALID),
    "huge": (entry("doubles", shape=[1 << 61, 3]), INVALID),
    "huge and empty": (entry("doubles", shape=[0, 1 << 59, 1 << 59]), INVALID),
    "overflow": (entry("doubles", shape=[1 << 32, 1 << 32]), INVALID),
    "longer": (entry("doubles", shape=[1 << 20, 3]), ELSEWHERE),
    "of a negative length": (entry("doubles", shape=[-2, -3]), INVALID),
    "of many axes": (entry("doubles", shape=[1] * 40), INVALID),
    "without an axis": (entry("doubles", shape=[]), INVALID),
    "of a shape of text": (entry("doubles", shape="23"), INVALID),
    "of a shape of floats": (entry("doubles", shape=[2.5, 3]), INVALID),
    "objects": (entry("doubles", dtype="|O"), INVALID),
    "big-endian": (entry("doubles", dtype=">f8"), INVALID),
    "structured": (entry("doubles", dtype="<f4,<f4"), INVALID),
    "text": (entry("doubles", dtype="<U4"), INVALID),
    "times": (entry("doubles", dtype="<M8[s]"), INVALID),
    "no dtype": (entry("doubles", dtype="<f99"), INVALID),
    "another dtype": (entry("doubles", dtype="<i8", digest=0), "its array 'doubles' is not what was written"),
    "long bytes": (entry("bytes", dtype="|S999999999"), ELSEWHERE),
    "without a digest": (lambda arrays: arrays["doubles"].pop("digest"), "its array 'doubles' is not what was written"),
    "another digest": (entry("doubles", digest=2**64), "its array 'doubles' is not what was written"),
    "a digest of text": (entry("doubles", digest="0"), INVALID),
    "another field": (entry("doubles", code="os.abort()"), INVALID),
    "a name of a path": (lambda arrays: arrays.update({"../x": arrays.pop("doubles")}), INVALID),
    "a name that controls": (lambda arrays: arrays.update({"x\x1b[2J": arrays.pop("doubles")}), INVALID),
    "no such array": (lambda arrays: arrays.pop("doubles"), "got nothing of 'doubles'"),
    "more arrays": (lambda arrays: arrays.update(more={"offset": 0, "shape": [0], "dtype": "<f8"}), "'more'"),
    "other rows": (lambda arrays: arrays["flow"].update(offset=arrays["flow"]["offset"] + 2, shape=[19, 3]), "19 rows"),
    "rows moved": (
        lambda arrays: arrays["flow"].update(offset=arrays["flow"]["offset"] - 2),
        "row 0 of 'flow' is not what was written",
    ),
    "rows without a size": (entry("flow", shape=[1 << 59, 0]), "got [0-9]+ rows of 'flow'|digests of 'flow'"),
    "fewer digests": (entry("flow.xxh3_64", shape=[19]), "its array 'flow.xxh3_64' is not what was written"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_tables(path: Path, kind: str) -> None:
    change, match = HOSTILE[kind]
    change_table(path, change)
    tracemalloc.start()
    try:
        with pytest.raises(DamageError, match=rf"{path.name}' is damaged: ") as caught:
            check_artefact(path, path.stat().st_size, {"flow": 20}, whole=EVERY_DTYPE)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    assert re.search(match, str(caught.value)), str(caught.value)


@pytest.mark.parametrize(
    "end",
    [b"", b"\n", b"\n{}\n", b"\nnull", b"\n" + b"[" * 50_000, b"x" * 70_000, b'\n{"arrays": {}}\n', b"\n\xff\xfe\n"],
    ids=lambda end: f"{len(end)} {end[:9]!r}",
)
def test_files_without_a_table(path: Path, end: bytes) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: data[:-1].rindex(b"\n")] + end)
    open_files.forget(path)
    with pytest.raises(DamageError, match="its last line is not a table of its arrays"):
        read(path)


@pytest.mark.parametrize(
    "body", ['{"arrays": []}', '{"arrays": {"x": 1}}', '{"arrays": {}, "b": 1}', '{"a": {}}', "[0]"]
)
def test_sealed_lines_that_are_not_tables(path: Path, body: str) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: data[:-1].rindex(b"\n") + 1] + sealed(body).encode() + b"\n")
    open_files.forget(path)
    with pytest.raises(DamageError, match=rf"{path.name}' is damaged: "):
        read(path)


def test_arrays_whose_table_is_long(tmp_path: Path, path: Path) -> None:
    names = [f"{'a' * 60}{number}" for number in range(300)]
    other = tmp_path / f"b{path.suffix}"
    with create_artefact(other) as writer:
        writer.append("flow", FLOW)
        writer.finish(dict.fromkeys(names, np.zeros(1)), {})
    assert other.stat().st_size > 40_000
    assert np.array_equal(read(other), FLOW)
    with create_artefact(tmp_path / f"c{path.suffix}") as writer:
        writer.append("flow", FLOW)
        with pytest.raises(UsageError, match="got 602 arrays, whose table has more than 65535 bytes, expected fewer"):
            writer.finish(dict.fromkeys([*names, *(f"b{name}" for name in names)], np.zeros(1)), {})


@pytest.mark.parametrize("path", [".npz"], indirect=True)
def test_a_file_past_4_gib(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hole of 5 GiB before the values moves every offset beyond 32 bits."""
    data, hole = path.read_bytes(), 5 << 30

    def move(arrays: Arrays) -> None:
        for array in arrays.values():
            array["offset"] += hole

    change_table(path, move)
    moved = path.read_bytes()
    with path.open("wb") as file:
        file.seek(hole)
        file.write(moved)
    open_files.forget(path)
    monkeypatch.setenv("CHORDCACHE_READ_LIMIT", "6GiB")
    assert path.stat().st_size > hole + len(data)
    assert np.array_equal(read(path), FLOW)


# Records

RECORDS = [bytes([65 + number]) * (700 + 900 * number) for number in range(8)]
OFFSETS = np.cumsum([0, *map(len, RECORDS)])


def write_records(path: Path, records: list[bytes]) -> Path:
    with create_artefact(path) as writer:
        writer.append("frames", records)
        writer.finish({"pts_seconds": np.arange(float(len(records)))}, {"frames": {"unit": "px"}})
    return path


def read_records(path: Path) -> list[bytes]:
    open_files.forget(path)
    artefact = open_artefact(path, path.stat().st_size)
    return list(map(bytes, artefact.records("frames", range(artefact.num_rows("frames")))))


def test_records_are_bytes_and_offsets_to_any_hdf5_reader(tmp_path: Path) -> None:
    path = write_records(tmp_path / "a.h5", RECORDS)
    with h5py.File(path) as file:
        assert set(file) == {"frames", "frames.offsets", "frames.xxh3_64", "pts_seconds"}
        frames, offsets = file["frames"], file["frames.offsets"]
        assert (frames.dtype, frames.shape, frames.chunks) == (np.uint8, (sum(map(len, RECORDS)),), None)
        assert (offsets.dtype, offsets[...].tolist()) == (np.int64, OFFSETS.tolist())
        assert [frames[offsets[i] : offsets[i + 1]].tobytes() for i in range(8)] == RECORDS
        assert file["frames.xxh3_64"][...].tolist() == [digest64(record) for record in RECORDS]
        assert table_of(path)["frames.offsets"]["digest"] == digest64(offsets[...])
        assert frames.attrs["unit"] == "px"
        start = frames.id.get_offset()
        assert path.read_bytes()[start : start + len(frames)] == b"".join(RECORDS)


def test_memory_of_a_writer_of_records_is_bounded(tmp_path: Path) -> None:
    record = os.urandom(64 << 10)
    tracemalloc.start()
    try:
        with create_artefact(tmp_path / "a.h5") as writer:
            for _ in range(640):
                writer.append("frames", [record])
            writer.finish({}, {})
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (tmp_path / "a.h5").stat().st_size > 40 << 20
    assert peak_bytes < 12 << 20


def test_two_arrays_of_records(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with create_artefact(path) as writer:
        for record in RECORDS:
            writer.append("frames", [record])
            writer.append("masks", [record[::2], b""])
            writer.append("mel", np.zeros((1, 3)))
        writer.finish({}, {})
    artefact = open_artefact(path, path.stat().st_size)
    assert artefact.streamed == {"frames", "masks", "mel"}
    assert artefact.whole == frozenset()
    assert list(map(bytes, artefact.records("frames", [7, 0, 0, 1]))) == [RECORDS[i] for i in (7, 0, 0, 1)]
    assert list(map(bytes, artefact.records("masks", range(14, 16)))) == [RECORDS[7][::2], b""]
    assert os.listdir(tmp_path) == ["a.h5"]


@pytest.mark.parametrize("records", [[], [b""], [b"", b"x", b""]], ids=repr)
def test_records_without_bytes(tmp_path: Path, records: list[bytes]) -> None:
    path = write_records(tmp_path / "a.h5", records)
    assert read_records(path) == records
    check_artefact(path, path.stat().st_size, {"frames": len(records)}, whole=["pts_seconds"])


def records(name: str, values: np.ndarray) -> Callable[[Path], None]:
    return lambda path: put_array(path, name, values)


def table(change: Callable[[Arrays], object]) -> Callable[[Path], None]:
    return lambda path: change_table(path, change)


def moved(index: int, value: int) -> np.ndarray:
    offsets = OFFSETS.copy()
    offsets[index] = value
    return offsets


FRAMES = np.frombuffer(b"".join(RECORDS), np.uint8)
LAYOUT = "'frames' holds records in a way that is not used here"
ORDER = f"the offsets of 'frames' do not ascend from 0 to {len(FRAMES)}"
NO_RECORDS = "'frames.offsets' belongs to no array of records"

HOSTILE_RECORDS: dict[str, tuple[Callable[[Path], None], str]] = {
    "of two axes": (table(entry("frames", shape=[1, len(FRAMES)])), LAYOUT),
    "of floats": (table(entry("frames", shape=[len(FRAMES) // 4], dtype="<f4")), LAYOUT),
    "signed": (table(entry("frames", dtype="|i1")), LAYOUT),
    "without digests": (table(lambda arrays: arrays.pop("frames.xxh3_64")), NO_RECORDS),
    "without bytes": (table(lambda arrays: arrays.pop("frames")), NO_RECORDS),
    "without offsets": (table(lambda arrays: arrays.pop("frames.offsets")), f"got {len(FRAMES)} rows of 'frames'"),
    "shorter": (records("frames", FRAMES[:-1]), f"do not ascend from 0 to {len(FRAMES) - 1}"),
    "longer": (records("frames", np.append(FRAMES, FRAMES[:1])), f"do not ascend from 0 to {len(FRAMES) + 1}"),
    "empty": (table(entry("frames", shape=[0])), "do not ascend from 0 to 0"),
    "offsets that begin later": (records("frames.offsets", moved(0, 1)), ORDER),
    "offsets that begin before": (records("frames.offsets", moved(0, -1)), ORDER),
    "offsets that end before": (records("frames.offsets", moved(8, len(FRAMES) - 1)), ORDER),
    "offsets that end later": (records("frames.offsets", moved(8, 2**62)), ORDER),
    "offsets that descend": (records("frames.offsets", moved(3, 1)), ORDER),
    "offsets far away": (records("frames.offsets", moved(3, 2**62)), ORDER),
    "negative offsets": (records("frames.offsets", moved(3, -(2**62))), ORDER),
    "no offsets": (records("frames.offsets", OFFSETS[:0]), "the offsets of 'frames' are of int64"),
    "offsets of two axes": (records("frames.offsets", OFFSETS.reshape(3, 3)), "the offsets of 'frames' are of int64"),
    "offsets of floats": (records("frames.offsets", OFFSETS.astype(float)), "the offsets of 'frames' are of float64"),
    "unsigned offsets": (records("frames.offsets", OFFSETS.astype("<u8")), "the offsets of 'frames' are of uint64"),
    "fewer records": (records("frames.offsets", np.delete(OFFSETS, 3)), "got 7 rows of 'frames', expected 8 rows"),
    "other records": (records("frames.offsets", moved(3, OFFSETS[3] + 1)), "record 2 is not what was written"),
    "other offsets": (
        table(entry("frames.offsets", digest=1)), "its array 'frames.offsets' is not what was written",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", HOSTILE_RECORDS)
def test_hostile_records(tmp_path: Path, kind: str) -> None:
    path = write_records(tmp_path / "a.h5", RECORDS)
    assert read_records(path) == RECORDS
    change, match = HOSTILE_RECORDS[kind]
    change(path)
    with pytest.raises(DamageError, match=rf"a\.h5' is damaged: .*{match}"):
        check_artefact(path, path.stat().st_size, {"frames": 8}, whole=["pts_seconds"])
