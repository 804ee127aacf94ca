"""Properties of HDF5 beside the contract of all stores: its locks, and its records."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from helpers import small_disks

from chordcache.digests import digest64
from chordcache.errors import DamageError
from chordcache.storage.artefacts import open_files
from chordcache.storage.artefacts.open_files import check_artefact, create_artefact, open_artefact

pytestmark = pytest.mark.timeout(60)

VALUES = np.arange(60, dtype=np.float32).reshape(20, 3)


def write(path: Path) -> None:
    with create_artefact(path) as writer:
        writer.append("mel", VALUES)
        writer.finish({}, {})


def read(path: Path) -> np.ndarray:
    with open_artefact(path, path.stat().st_size) as artefact:
        return artefact.rows("mel", range(20))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write(tmp_path / "a.h5")
    return tmp_path / "a.h5"


def test_a_plain_reader_in_this_process_opens_an_open_file(path: Path) -> None:
    assert np.array_equal(read(path), VALUES)
    assert (path, None) in open_files._kept
    with h5py.File(path) as file:
        assert np.array_equal(file["mel"][...], VALUES)
        assert np.array_equal(read(path), VALUES)


@pytest.mark.parametrize("options", [{}, {"locking": False}, {"locking": "best-effort"}], ids=str)
def test_a_file_that_another_reader_has_open_is_opened(path: Path, options: dict[str, object]) -> None:
    with h5py.File(path, "r", **options):
        assert np.array_equal(read(path), VALUES)
        open_files.forget(path)


def test_another_process_opens_an_open_file(path: Path) -> None:
    assert np.array_equal(read(path), VALUES)
    code = "import h5py, sys; print(h5py.File(sys.argv[1])['mel'].shape)"
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, timeout=50)
    assert (done.stdout, done.stderr) == ("(20, 3)\n", "")


def test_a_lock_of_another_reader_is_ignored(path: Path) -> None:
    with open(path, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(OSError, match="unable to lock file"):
            h5py.File(path, "r")
        assert np.array_equal(read(path), VALUES)
        open_files.forget(path)


@pytest.fixture
def read_only_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with an artefact, mounted read-only."""
    if not small_disks.can_mount(small_disks.tmpfs):
        pytest.skip("no right to mount a tmpfs")
    with small_disks.tmpfs(tmp_path / "disk", "4m") as folder:
        write(folder / "a.h5")
        open_files.forget(folder / "a.h5")
        small_disks.make_read_only(folder)
        yield folder
        open_files.forget(folder / "a.h5")


def test_a_read_only_disk(read_only_disk: Path) -> None:
    with pytest.raises(OSError, match="Read-only file system"):
        (read_only_disk / "b").touch()
    assert np.array_equal(read(read_only_disk / "a.h5"), VALUES)


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
    with open_artefact(path, path.stat().st_size) as artefact:
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
        assert offsets.attrs["xxh3_64"] == digest64(offsets[...])
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
    with open_artefact(path, path.stat().st_size) as artefact:
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


def put(name: str, values: Any, **options: Any) -> Callable[[h5py.File], None]:
    """Replace an array. Its own digest is right."""

    def change(file: h5py.File) -> None:
        del file[name]
        dataset = file.create_dataset(name, data=values, **options)
        dataset.attrs["xxh3_64"] = np.uint64(digest64(np.ascontiguousarray(dataset[...])))

    return change


def compact(file: h5py.File) -> None:
    del file["frames"]
    plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plan.set_layout(h5py.h5d.COMPACT)
    space = h5py.h5s.create_simple((300,))
    h5py.h5d.create(file.id, b"frames", h5py.h5t.STD_U8LE, space, plan)


def external(file: h5py.File) -> None:
    del file["frames"]
    file.create_dataset("frames", (4,), np.uint8, external=[("/etc/passwd", 0, 4)])


def moved(index: int, value: int) -> np.ndarray:
    offsets = OFFSETS.copy()
    offsets[index] = value
    return offsets


FRAMES = np.frombuffer(b"".join(RECORDS), np.uint8)
LAYOUT = "'frames' holds records in a way that is not used here"
ORDER = f"the offsets of 'frames' do not ascend from 0 to {len(FRAMES)}"

HOSTILE: dict[str, tuple[Callable[[h5py.File], Any], str]] = {
    "chunked": (put("frames", FRAMES, chunks=(1024,)), LAYOUT),
    "compressed": (put("frames", FRAMES, compression="gzip"), "'frames' is packed by filters"),
    "compact": (compact, LAYOUT),
    "of two axes": (put("frames", FRAMES[:300].reshape(3, 100)), LAYOUT),
    "of floats": (put("frames", FRAMES.astype(np.float32)), LAYOUT),
    "signed": (put("frames", FRAMES.astype(np.int8)), LAYOUT),
    "external": (external, "the values of 'frames' are in another file"),
    "without digests": (lambda file: file.__delitem__("frames.xxh3_64"), "'frames.offsets' belongs to no array of"),
    "without bytes": (lambda file: file.__delitem__("frames"), "'frames.offsets' belongs to no array of records"),
    "without offsets": (
        lambda file: file.__delitem__("frames.offsets"),
        f"got {len(FRAMES)} rows of 'frames', expected 8 rows",
    ),
    "shorter": (put("frames", FRAMES[:-1]), f"do not ascend from 0 to {len(FRAMES) - 1}"),
    "longer": (put("frames", np.append(FRAMES, FRAMES[:1])), f"do not ascend from 0 to {len(FRAMES) + 1}"),
    "empty": (put("frames", FRAMES[:0]), "do not ascend from 0 to 0"),
    "offsets that begin later": (put("frames.offsets", moved(0, 1)), ORDER),
    "offsets that begin before": (put("frames.offsets", moved(0, -1)), ORDER),
    "offsets that end before": (put("frames.offsets", moved(8, len(FRAMES) - 1)), ORDER),
    "offsets that end later": (put("frames.offsets", moved(8, 2**62)), ORDER),
    "offsets that descend": (put("frames.offsets", moved(3, 1)), ORDER),
    "offsets far away": (put("frames.offsets", moved(3, 2**62)), ORDER),
    "negative offsets": (put("frames.offsets", moved(3, -(2**62))), ORDER),
    "no offsets": (put("frames.offsets", OFFSETS[:0]), "the offsets of 'frames' are of int64"),
    "offsets of two axes": (put("frames.offsets", OFFSETS.reshape(3, 3)), "the offsets of 'frames' are of int64"),
    "offsets of floats": (put("frames.offsets", OFFSETS.astype(float)), "the offsets of 'frames' are of float64"),
    "unsigned offsets": (put("frames.offsets", OFFSETS.astype("<u8")), "the offsets of 'frames' are of uint64"),
    "fewer records": (put("frames.offsets", np.delete(OFFSETS, 3)), "got 7 rows of 'frames', expected 8 rows"),
    "other records": (put("frames.offsets", moved(3, OFFSETS[3] + 1)), "record 2 is not what was written"),
    "other offsets": (
        lambda file: file["frames.offsets"].__setitem__(3, OFFSETS[3] + 1),
        "its array 'frames.offsets' is not what was written",
    ),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_records(tmp_path: Path, kind: str) -> None:
    path = write_records(tmp_path / "a.h5", RECORDS)
    assert read_records(path) == RECORDS
    open_files.forget(path)
    change, match = HOSTILE[kind]
    with h5py.File(path, "r+") as file:
        change(file)
    with pytest.raises(DamageError, match=rf"a\.h5' is damaged: .*{match}"):
        check_artefact(path, path.stat().st_size, {"frames": 8}, whole=["pts_seconds"])


def test_bytes_beyond_the_end_of_the_file(tmp_path: Path) -> None:
    """The address of the bytes, and its checksum, are changed in the file."""
    path = write_records(tmp_path / "a.h5", RECORDS)
    with h5py.File(path, "r") as file:
        address = file["frames"].id.get_offset()
    open_files.forget(path)
    data = path.read_bytes()
    field = address.to_bytes(8, "little") + len(FRAMES).to_bytes(8, "little")
    at = data.index(field)
    header = data.rindex(b"OHDR", 0, at)
    end = next(end for end in range(at + 16, len(data)) if lookup3(data[header:end]) == data[end : end + 4])
    for start in (len(data) - 100, 2**40, 2**63, 2**64 - 1):
        changed = data[:at] + start.to_bytes(8, "little") + data[at + 8 :]
        path.write_bytes(changed[:end] + lookup3(changed[header:end]) + changed[end + 4 :])
        with pytest.raises(DamageError, match=r"a\.h5' is damaged"):
            read_records(path)


def lookup3(data: bytes) -> bytes:
    """Return the checksum of HDF5's objects: Bob Jenkins's lookup3, little-endian."""

    def rotate(value: int, bits: int) -> int:
        return ((value << bits) | (value >> (32 - bits))) & 0xFFFFFFFF

    a = b = c = (0xDEADBEEF + len(data)) & 0xFFFFFFFF
    padded = data + bytes(-len(data) % 12)
    for at in range(0, len(padded), 12):
        a, b, c = (
            (value + int.from_bytes(padded[at + 4 * i : at + 4 * i + 4], "little")) & 0xFFFFFFFF
            for i, value in enumerate((a, b, c))
        )
        if at + 12 < len(padded):
            for bits in (4, 6, 8, 16, 19, 4):
                a = (a - c) & 0xFFFFFFFF ^ rotate(c, bits)
                c = (c + b) & 0xFFFFFFFF
                a, b, c = b, c, a
    for bits in (14, 11, 25, 16, 4, 14, 24):
        c = ((c ^ b) - rotate(b, bits)) & 0xFFFFFFFF
        a, b, c = b, c, a
    return b.to_bytes(4, "little")
