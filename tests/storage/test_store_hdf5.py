"""What HDF5 has of its own beside the contract of all stores: its locks."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest

from chordcache.errors import DamageError
from chordcache.storage.artefacts import open_files
from chordcache.storage.artefacts.open_files import create_artefact, open_artefact

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


def test_a_plain_reader_in_this_process_opens_what_is_open(path: Path) -> None:
    assert np.array_equal(read(path), VALUES)
    assert path in open_files._registry._open
    with h5py.File(path) as file:
        assert np.array_equal(file["mel"][...], VALUES)
        assert np.array_equal(read(path), VALUES)


@pytest.mark.parametrize("options", [{}, {"locking": False}, {"locking": "best-effort"}], ids=str)
def test_what_another_reader_in_this_process_has_open_is_opened(path: Path, options: dict[str, object]) -> None:
    with h5py.File(path, "r", **options):
        assert np.array_equal(read(path), VALUES)
        open_files.forget(path)


def test_another_process_opens_what_is_open(path: Path) -> None:
    assert np.array_equal(read(path), VALUES)
    code = "import h5py, sys; print(h5py.File(sys.argv[1])['mel'].shape)"
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, timeout=50)
    assert (done.stdout, done.stderr) == ("(20, 3)\n", "")


def test_a_lock_of_somebody_else_is_no_matter(path: Path) -> None:
    with open(path, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(OSError, match="unable to lock file"):
            h5py.File(path, "r")
        assert np.array_equal(read(path), VALUES)
        open_files.forget(path)


@pytest.fixture
def read_only_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with an artefact, mounted read-only."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", folder], capture_output=True).returncode:
        pytest.skip("no right to mount a tmpfs")
    write(folder / "a.h5")
    open_files.forget(folder / "a.h5")
    subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
    yield folder
    open_files.forget(folder / "a.h5")
    subprocess.run(["umount", folder], check=True)


def test_a_read_only_disk(read_only_disk: Path) -> None:
    with pytest.raises(OSError, match="Read-only file system"):
        (read_only_disk / "b").touch()
    assert np.array_equal(read(read_only_disk / "a.h5"), VALUES)


def test_a_damaged_heap_of_records_is_damage(tmp_path: Path) -> None:
    """HDF5 itself does not come back from some of these."""
    path = tmp_path / "a.h5"
    rows = [bytes([65 + number]) * (700 + 900 * number) for number in range(8)]
    with create_artefact(path) as writer:
        writer.append("frames", rows)
        writer.finish({}, {})
    data = path.read_bytes()
    with open_artefact(path, len(data)) as artefact:
        assert list(map(bytes, artefact.records("frames", range(8)))) == rows
    for row in (rows[0], rows[7]):
        start = data.index(row)
        for at in range(start - 16, start):
            for value in (0, 1, 0x7F, 0xF0, 0xFF):
                changed = bytearray(data)
                changed[at] = value
                path.write_bytes(changed)
                open_files.forget(path)
                with open_artefact(path, len(data)) as artefact:
                    try:
                        assert list(map(bytes, artefact.records("frames", range(8)))) == rows
                    except DamageError as error:
                        assert str(path) in str(error)  # noqa: PT017 -- some bytes have no meaning
