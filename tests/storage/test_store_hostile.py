"""Files made to harm each store, and disks that are full: never a crash, never another error than ours."""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import lmdb
import numpy as np
import pytest
import test_store_contract as contract
from helpers import small_disks

from chordcache.digests import digest64
from chordcache.errors import DamageError
from chordcache.storage.artefacts import lmdb_writer, open_files
from chordcache.storage.artefacts import npy as npy_format
from chordcache.storage.artefacts.writer import create_artefact

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
        page_bytes, num_pages = environment.stat()["psize"], environment.info()["last_pgno"] + 1
    lmdb_writer._append_tree(path, page_bytes, num_pages)


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


# Hostile arrays of LMDB


def npy(header: str, values: bytes = b"", magic: bytes = b"\x93NUMPY\x01\x00") -> bytes:
    text = header.encode() + b"\n"
    return magic + struct.pack("<H", len(text)) + text + values


def plain(descr: str, shape: str, values: bytes = b"") -> bytes:
    return npy(f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}", values)


GOOD = plain("<f4", "(2, 3)", bytes(24))


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


@pytest.mark.parametrize("kind", HOSTILE_NPY)
def test_hostile_npy(kind: str) -> None:
    assert np.array_equal(npy_format.loads(GOOD), np.zeros((2, 3), np.float32))
    with pytest.raises(ValueError, match="npy|array|data type"):
        npy_format.loads(HOSTILE_NPY[kind])


# A full disk


FULL = """
import sys
import numpy as np
from pathlib import Path
from chordcache.errors import StorageError
from chordcache.storage.artefacts.writer import create_artefact

path, row_bytes, num_rows = Path(sys.argv[1]), *map(int, sys.argv[2:4])
row = np.random.default_rng(0).integers(0, 255, (1, row_bytes), np.uint8)
row = [row.tobytes()] if sys.argv[4] == "records" else row
try:
    with create_artefact(path) as writer:
        for _ in range(num_rows):
            writer.append("frames", row)
        writer.finish({"pts_seconds": np.arange(float(num_rows))}, {})
except StorageError as error:
    print(error)
"""


def fill(path: Path, row_bytes: int, num_rows: int, kind: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-c", FULL, path, *map(str, (row_bytes, num_rows, kind))],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    return done.returncode, done.stdout, done.stderr


_FREE = r"\d+\.\d of \d+\.\d MiB are free"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB."""
    if not small_disks.can_mount(small_disks.tmpfs):
        pytest.skip("no right to mount a tmpfs")
    with small_disks.tmpfs(tmp_path / "disk", "4m") as folder:
        yield folder


@pytest.mark.parametrize(("row_bytes", "num_rows"), [(5000, 1000), (3 << 20, 3)])
@pytest.mark.parametrize(("suffix", "kind"), [(".npz", "rows"), (".h5", "rows"), (".h5", "records"), (".lmdb", "rows")])
def test_a_full_disk(small_disk: Path, suffix: str, kind: str, row_bytes: int, num_rows: int) -> None:
    code, out, error = fill(small_disk / f"a{suffix}", row_bytes, num_rows, kind)
    assert (code, error) == (0, "")
    assert re.fullmatch(rf"no space left writing '{small_disk}' \({_FREE}\); make room and run the same command\n", out)


@pytest.mark.parametrize("suffix", [".npz", ".h5", ".lmdb"])
def test_a_folder_that_was_deleted(tmp_path: Path, suffix: str) -> None:
    with pytest.raises(FileNotFoundError), create_artefact(tmp_path / "no" / f"a{suffix}") as writer:
        writer.append("frames", np.zeros((1, 3), np.uint8))
