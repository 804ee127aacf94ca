"""Files made to harm each store, and disks that are full: never a crash, never another error than ours."""

from __future__ import annotations

import io
import itertools
import os
import re
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import h5py
import lmdb
import numpy as np
import pytest
import test_store_contract as contract
from helpers import small_disks

from chordcache.digests import digest64
from chordcache.errors import DamageError
from chordcache.storage.artefacts import lmdb_writer, open_files
from chordcache.storage.artefacts.open_files import check_artefact, create_artefact, open_artefact

pytestmark = pytest.mark.timeout(120)

# Hostile LMDB


def change_lmdb(path: Path, **changes: bytes | None) -> None:
    open_files.forget(path)
    with (
        lmdb.open(str(path), subdir=False, lock=False, map_size=1 << 24) as environment,
        environment.begin(write=True) as transaction,
    ):
        for name, value in changes.items():
            key = bytes.fromhex(name[1:]) if name.startswith("_") else name.replace("__", ".").encode()
            transaction.put(key, value) if value is not None else transaction.delete(key)
    with lmdb.open(str(path), subdir=False, lock=False, readonly=True) as environment:
        pages = lmdb_writer._pages(environment)
    lmdb_writer._append_tree(path, *pages)


def sealed(data: bytes) -> bytes:
    return digest64(data).to_bytes(8, "little") + data


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"_00000002": None}, "got 19 rows of 'frames', expected 20 rows"),
        ({"_00000014": b"x"}, "got 21 rows of 'frames', expected 20 rows"),
        ({"frames__xxh3_64": None}, "digests of rows are missing"),
        ({"frames__xxh3_64": b""}, "its array 'frames.xxh3_64' is not what was written"),
        ({"frames__xxh3_64": sealed(b"x" * 99)}, "its array 'frames.xxh3_64' is not an npy file"),
        ({"more": sealed(b"")}, "got a whole array of 'more', expected nothing"),
        ({"_00000003": b"short"}, "record 3 is not what was written"),
    ],
)
def test_hostile_lmdb(tmp_path: Path, changes: dict[str, bytes | None], match: str) -> None:
    store = contract.TestLmdbRecords()
    path = store.write(tmp_path / "a.lmdb")
    change_lmdb(path, **changes)
    with pytest.raises(DamageError, match=match):
        store.check(path)


def test_raw_rows_of_another_size_than_stated(tmp_path: Path) -> None:
    store = contract.TestLmdbRows()
    path = store.write(tmp_path / "a.lmdb")
    for record in (b"x", b"x" * 10000):
        change_lmdb(path, _00000003=record)
        with pytest.raises(DamageError, match=r"its rows do not have the shape \(12, 16, 3\)"):
            store.read(path, [3])


# Hostile NPZ


def npy(header: str, values: bytes = b"", magic: bytes = b"\x93NUMPY\x01\x00") -> bytes:
    text = header.encode() + b"\n"
    return magic + struct.pack("<H", len(text)) + text + values


def plain(descr: str, shape: str, values: bytes = b"") -> bytes:
    return npy(f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}", values)


GOOD = plain("<f4", "(2, 3)", bytes(24))
DIGESTS = plain("<u8", "(2,)", struct.pack("<2Q", *[digest64(bytes(12))] * 2))


def write_zip(path: Path, members: Sequence[tuple[str, bytes]], compression: int = zipfile.ZIP_STORED) -> Path:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, data in members:
            archive.writestr(name, data)
    contract.replace_file(path, buffer.getvalue())
    return path


def read_zip(path: Path) -> np.ndarray:
    with open_artefact(path, contract.size_of(path)) as artefact:
        return artefact.rows("flow", range(artefact.num_rows("flow")))


def test_npz_of_other_writers(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "a.npz", [("flow.npy", GOOD), ("flow.xxh3_64.npy", DIGESTS)])
    assert np.array_equal(read_zip(path), np.zeros((2, 3), np.float32))
    np.savez(tmp_path / "b.npz", **{"flow": np.zeros((2, 3), "f4"), "flow.xxh3_64": np.full(2, digest64(bytes(12)))})
    assert read_zip(tmp_path / "b.npz").shape == (2, 3)


HOSTILE_NPY = {
    "huge": plain("<f4", f"({2**60}, 3)", bytes(24)),
    "huge and empty": plain("<f4", f"(0, {2**59}, {2**59})"),
    "overflow": plain("<f4", f"({2**62}, 4)"),
    "longer": plain("<f4", "(3, 3)", bytes(24)),
    "shorter": plain("<f4", "(1, 3)", bytes(24)),
    "negative": plain("<f4", "(-2, 3)", bytes(24)),
    "many digits": plain("<f4", f"({'9' * 5000}, 3)", bytes(24)),
    "many axes": plain("<f4", f"({'1, ' * 100})", bytes(4)),
    "object": plain("|O", "(2, 3)", bytes(48)),
    "big endian": plain(">f4", "(2, 3)", bytes(24)),
    "text": plain("<U4", "(2, 3)", bytes(96)),
    "no dtype": plain("<f99", "(2, 3)", bytes(24)),
    "fortran": npy("{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3), }", bytes(24)),
    "record": npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2, 3), }", bytes(24)),
    "code": npy("__import__('os').abort()", bytes(24)),
    "nested": npy("(" * 3000, bytes(24)),
    "half": GOOD[:9],
    "empty": b"",
    "other magic": b"x" + GOOD[1:],
    "version 9": npy("{}", magic=b"\x93NUMPY\x09\x00"),
    "scalar": plain("<f4", "()", bytes(4)),
}


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("kind", HOSTILE_NPY)
@pytest.mark.parametrize("member", ["flow", "flow.xxh3_64", "pts_seconds"])
def test_hostile_npy(tmp_path: Path, kind: str, compression: int, member: str) -> None:
    members = {"flow": GOOD, "flow.xxh3_64": DIGESTS, "pts_seconds": plain("<f8", "(2,)", bytes(16))}
    members[member] = HOSTILE_NPY[kind]
    path = write_zip(tmp_path / "a.npz", [(f"{name}.npy", data) for name, data in members.items()], compression)
    with pytest.raises(DamageError, match=r"a\.npz' is damaged"):
        check_artefact(path, contract.size_of(path), {"flow": 2}, whole=["pts_seconds"])


def test_an_npz_with_other_digests(tmp_path: Path) -> None:
    for digests, match in (
        (plain("<u8", "(2,)", bytes(16)), "row 0 of 'flow' is not what was written"),
        (plain("<u8", "(3,)", bytes(24)), "got 3 digests of 'flow', expected 2 as rows"),
        (plain("<i8", "(2,)", DIGESTS[-16:]), "got 2 digests of 'flow', expected 2 as rows"),
    ):
        with pytest.raises(DamageError, match=match):
            read_zip(write_zip(tmp_path / "a.npz", [("flow.npy", GOOD), ("flow.xxh3_64.npy", digests)]))


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(
    ("members", "compression", "match"),
    [
        ([("flow.npy", GOOD), ("flow.npy", GOOD)], zipfile.ZIP_STORED, "'flow.npy' is not an array, or occurs twice"),
        ([("flow.txt", GOOD)], zipfile.ZIP_STORED, "'flow.txt' is not an array"),
        ([("flow.npy", GOOD)], zipfile.ZIP_DEFLATED, "'flow.npy' is compressed or encrypted"),
        ([("flow.npy", GOOD)], zipfile.ZIP_BZIP2, "'flow.npy' is compressed or encrypted"),
        ([], zipfile.ZIP_STORED, "array 'flow' of rows is missing"),
    ],
)
def test_hostile_members(tmp_path: Path, members: list[tuple[str, bytes]], compression: int, match: str) -> None:
    with pytest.raises(DamageError, match=match):
        read_zip(write_zip(tmp_path / "a.npz", members, compression))


def central(data: bytes, offset: int, layout: str, value: int) -> bytes:
    """The zip with a field of its first central directory entry changed."""
    changed = bytearray(data)
    struct.pack_into(layout, changed, data.index(b"PK\x01\x02") + offset, value)
    return bytes(changed)


@pytest.mark.parametrize(
    ("offset", "layout", "value"),
    [
        (8, "<H", 1),  # encrypted
        (6, "<H", 99),  # a version to come
        (10, "<H", 77),  # another method
        (16, "<I", 1),  # CRC
        (20, "<I", 5),
        (20, "<I", 0xFFFFFFF0),  # compressed size
        (24, "<I", 5),
        (24, "<I", 0xFFFFFFF0),  # size
        (28, "<H", 0xFFFF),  # length of the name
        (30, "<H", 0xFFFF),  # length of the extra field
        (42, "<I", 0xFFFFFF00),  # offset
        (42, "<I", 0x10),
    ],
)
@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_hostile_directories(tmp_path: Path, offset: int, layout: str, value: int, compression: int) -> None:
    members = [("flow.xxh3_64.npy", DIGESTS), ("flow.npy", GOOD)]
    path = write_zip(tmp_path / "a.npz", members, compression)
    contract.replace_file(path, central(path.read_bytes(), offset, layout, value))
    with pytest.raises(DamageError, match=r"a\.npz' is damaged"):
        read_zip(path)


def test_a_directory_with_an_offset_that_no_file_has(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("flow.xxh3_64.npy", DIGESTS)
        archive.writestr("flow.npy", GOOD)
        archive.infolist()[1].header_offset = 2**64 - 5
    with pytest.raises(DamageError, match=r"a\.npz' is damaged"):
        read_zip(tmp_path / "a.npz")


def test_an_npz_past_4_gib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sparse file: a hole of 5 GiB before the zip moves every offset beyond 32 bits."""
    values = np.arange(60, dtype=np.float32).reshape(20, 3)
    with create_artefact(tmp_path / "small.npz") as writer:
        writer.append("flow", values)
        writer.finish({"pts_seconds": np.arange(20.0)}, {})
    hole = 5 << 30
    with open(tmp_path / "a.npz", "wb") as file:
        file.seek(hole)
        with zipfile.ZipFile(tmp_path / "small.npz") as small, zipfile.ZipFile(file, "w") as archive:
            for name in small.namelist():
                archive.writestr(name, small.read(name))
    path = tmp_path / "a.npz"
    assert contract.size_of(path) > hole
    with zipfile.ZipFile(path) as archive:
        assert min(info.header_offset for info in archive.infolist()) >= hole
    monkeypatch.setenv("CHORDCACHE_READ_LIMIT", "6GiB")
    with open_artefact(path, contract.size_of(path)) as artefact:
        assert np.array_equal(artefact.rows("flow", range(5, 9)), values[5:9])


# Hostile HDF5


def write_hdf5(path: Path, change: Callable[[h5py.File], None]) -> Path:
    with h5py.File(path, "w", libver=("v110", "v110")) as file:
        rows = file.create_dataset("flow", data=np.zeros((2, 3), np.float32), chunks=(1, 3))
        assert rows.shape == (2, 3)
        digests = np.array([digest64(bytes(12))] * 2, np.uint64)
        file.create_dataset("flow.xxh3_64", data=digests).attrs["xxh3_64"] = np.uint64(digest64(digests))
        change(file)
    return path


def test_an_hdf5_made_by_others(tmp_path: Path) -> None:
    assert read_zip(write_hdf5(tmp_path / "a.h5", lambda file: None)).shape == (2, 3)


def external_storage(file: h5py.File) -> None:
    file.create_dataset("x", (4,), np.uint8, external=[("/etc/passwd", 0, 4)])


def virtual(file: h5py.File) -> None:
    layout = h5py.VirtualLayout((4,), np.uint8)
    layout[:] = h5py.VirtualSource("/tmp/other.h5", "x", (4,))
    file.create_virtual_dataset("x", layout)


def references(file: h5py.File) -> None:
    file.create_dataset("x", (1,), h5py.ref_dtype)[0] = file.ref


def link(kind: Any, *where: str) -> Callable[[h5py.File], None]:
    return lambda file: file.__setitem__("x", kind(*where))


def dataset(*args: Any, **options: Any) -> Callable[[h5py.File], None]:
    return lambda file: file.create_dataset("x", *args, **options)


def packed_twice(file: h5py.File) -> None:
    """64 MiB of zeros in 4 kB: each filter may make its input a thousand times larger."""
    plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plan.set_chunk((1 << 26,))
    plan.set_deflate(9)
    plan.set_deflate(9)
    space = h5py.h5s.create_simple((1 << 26,))
    dataset = h5py.h5d.create(file.id, b"x", h5py.h5t.NATIVE_UINT8, space, plan)
    dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, np.zeros(1 << 26, np.uint8))


HOSTILE_HDF5: dict[str, tuple[Callable[[h5py.File], Any], str]] = {
    "external storage": (external_storage, "the values of 'x' are in another file"),
    "virtual": (virtual, "the values of 'x' are in another file"),
    "external link": (link(h5py.ExternalLink, "/tmp/other.h5", "x"), "'x' is a link to somewhere else"),
    "soft link": (link(h5py.SoftLink, "/flow"), "'x' is a link to somewhere else"),
    "group": (lambda file: file.create_group("x"), "'x' is not an array"),
    "named type": (link(np.dtype, "f4"), "'x' is not an array"),
    "references": (references, "'x' is of object, which is not written here"),
    "region references": (dataset((1,), h5py.regionref_dtype), "'x' is of object"),
    "strings": (dataset((1,), h5py.string_dtype()), "'x' is of object"),
    "vlen of floats": (dataset((1,), h5py.vlen_dtype(np.float32)), "'x' is of object"),
    "vlen of bytes": (dataset((1,), h5py.vlen_dtype(np.uint8)), "'x' is of object"),
    "compound": (dataset((1,), [("a", "i4")]), "'x' is of"),
    "big endian": (dataset((1,), ">f4"), "'x' is of >f4"),
    "huge": (dataset((2**40,), "f4", chunks=(1024,)), "'x' claims a shape of"),
    "packed": (dataset((2**40,), "f4", chunks=(1024,), compression="gzip"), "'x' is packed by filters"),
    "huge and contiguous": (dataset((2**50,), "f4"), "'x' claims a shape of"),
    "scalar": (dataset((), "f4"), r"'x' claims a shape of \(\)"),
    "null": (lambda file: file.__setitem__("x", h5py.Empty("f4")), "'x' claims a shape of None"),
    "other filter": (dataset((99,), "f4", chunks=(9,), shuffle=True), "'x' is packed by filters"),
    "two filters": (packed_twice, "'x' is packed by filters"),
    "a chunk of 2 GiB": (dataset((1, 2**31), "u1", chunks=(1, 2**31)), "'x' has chunks of"),
}


@pytest.mark.parametrize("kind", HOSTILE_HDF5)
def test_hostile_hdf5(tmp_path: Path, kind: str) -> None:
    change, match = HOSTILE_HDF5[kind]
    path = write_hdf5(tmp_path / "a.h5", change)
    with pytest.raises(DamageError, match=match):
        read_zip(path)


@pytest.mark.parametrize("values", ["text", np.zeros(3), np.float64(1), None, 5])
def test_hdf5_digests_of_any_type(tmp_path: Path, values: Any) -> None:
    def change(file: h5py.File) -> None:
        file["pts_seconds"] = np.zeros(3)
        if values is not None:
            file["pts_seconds"].attrs["xxh3_64"] = values

    path = write_hdf5(tmp_path / "a.h5", change)
    with (
        open_artefact(path, contract.size_of(path)) as artefact,
        pytest.raises(DamageError, match=r"a\.h5' is damaged"),
    ):
        artefact.array("pts_seconds")


# A full disk


FULL = """
import resource, sys
import numpy as np
from pathlib import Path
from chordcache.errors import NoSpaceError
from chordcache.storage.artefacts.open_files import create_artefact

path, limit, row_bytes, num_rows = Path(sys.argv[1]), *map(int, sys.argv[2:5])
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
row = np.random.default_rng(0).integers(0, 255, (1, row_bytes), np.uint8)
row = [row.tobytes()] if sys.argv[5] == "records" else row
try:
    with create_artefact(path) as writer:
        for _ in range(num_rows):
            writer.append("frames", row)
        writer.finish({"pts_seconds": np.arange(float(num_rows))}, {})
except NoSpaceError as error:
    print(error)
"""


def fill(path: Path, limit: int, row_bytes: int, num_rows: int, kind: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-c", FULL, path, *map(str, (limit, row_bytes, num_rows, kind))],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    return done.returncode, done.stdout, done.stderr


KINDS = pytest.mark.parametrize(
    ("suffix", "kind"), [(".npz", "rows"), (".h5", "rows"), (".h5", "records"), (".lmdb", "rows")]
)
_FREE = r"\d+\.\d of \d+\.\d MiB are free"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB."""
    if not small_disks.can_mount(small_disks.tmpfs):
        pytest.skip("no right to mount a tmpfs")
    with small_disks.tmpfs(tmp_path / "disk", "4m") as folder:
        yield folder


@pytest.mark.parametrize(("row_bytes", "num_rows"), [(100, 60_000), (5000, 1000), (3 << 20, 3)])
@KINDS
def test_a_full_disk(small_disk: Path, suffix: str, kind: str, row_bytes: int, num_rows: int) -> None:
    code, out, error = fill(small_disk / f"a{suffix}", 0, row_bytes, num_rows, kind)
    assert (code, error) == (0, "")
    assert re.fullmatch(rf"no space left writing '{small_disk}' \({_FREE}\); make room and run the same command\n", out)


def test_a_disk_that_fills_at_any_byte(small_disk: Path) -> None:
    """HDF5 writes the last bytes of a file when it is closed."""
    kinds = [(".h5", "rows"), (".h5", "records"), (".npz", "rows")]
    for (suffix, kind), used in itertools.product(kinds, range(3_000_000, 3_900_000, 90_000)):
        (small_disk / "filler").write_bytes(bytes(used))
        code, out, error = fill(small_disk / f"a{suffix}", 0, 5000, 110, kind)
        assert (code, error) == (0, ""), (suffix, kind, used)
        assert out == "" or out.startswith("no space left writing"), (suffix, kind, used)
        assert out or contract.size_of(small_disk / f"a{suffix}") > 550_000
        for path in small_disk.iterdir():
            path.unlink()


@pytest.mark.parametrize("limit", [1, 3000, 100_000, 540_000])
@KINDS
def test_a_file_size_limit(tmp_path: Path, suffix: str, kind: str, limit: int) -> None:
    code, out, error = fill(tmp_path / f"a{suffix}", limit, 5000, 110, kind)
    assert (code, error) == (0, "")
    assert re.fullmatch(rf"file too large writing '{tmp_path}' \({_FREE}\); make room and run the same command\n", out)


@pytest.mark.parametrize("suffix", [".npz", ".h5", ".lmdb"])
def test_a_folder_that_was_deleted(tmp_path: Path, suffix: str) -> None:
    with pytest.raises(FileNotFoundError), create_artefact(tmp_path / "no" / f"a{suffix}") as writer:
        writer.append("frames", np.zeros((1, 3), np.uint8))
