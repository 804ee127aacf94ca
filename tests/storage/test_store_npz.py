"""What NPZ has of its own beside the contract of all stores: deflated arrays, read from front to back."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from helpers import processes

from chordcache.digests import digest64
from chordcache.errors import DamageError
from chordcache.storage.artefacts.open_files import check_artefact, create_artefact, open_artefact

pytestmark = pytest.mark.timeout(120)

NUM_ROWS = 600


def some_rows(seed: int, num_rows: int = NUM_ROWS) -> np.ndarray:
    """Rows of 8 KiB, no two of them alike, that can be packed."""
    rows = np.random.default_rng(seed).integers(0, 4, (num_rows, 64, 64), np.int16)
    rows[:, 0, 0] = np.arange(num_rows)
    return rows


def write(path: Path, **arrays: np.ndarray) -> int:
    """Write deflated arrays, and return the file's size."""
    with create_artefact(path, compression="deflate") as writer:
        for name, rows in arrays.items():
            writer.append(name, rows)
        writer.finish({"pts_seconds": np.arange(NUM_ROWS) / 25}, {})
    return path.stat().st_size


def replace_member(path: Path, name: str, data: bytes) -> int:
    """Put other content into a member, with a CRC that is right, and return the file's size."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as new:
        for member in old.namelist():
            new.writestr(member, data if member == name else old.read(member))
    path.unlink()
    path.write_bytes(buffer.getvalue())
    return len(buffer.getvalue())


def slices() -> dict[str, list[range]]:
    random = processes.Rng(5)
    starts = [random.below(NUM_ROWS) for _ in range(25)]
    return {
        "ascending": [range(start, start + 50) for start in range(0, NUM_ROWS, 50)],
        "with gaps": [range(start, start + 3) for start in range(0, NUM_ROWS, 40)],
        "descending": [range(start, start + 50) for start in range(NUM_ROWS - 50, -1, -50)],
        "overlapping": [range(start, start + 100) for start in range(0, NUM_ROWS - 100, 90)],
        "random": [range(start, min(start + 1 + random.below(60), NUM_ROWS)) for start in starts],
        "all, twice": [range(NUM_ROWS), range(NUM_ROWS)],
    }


@pytest.mark.parametrize("order", slices())
def test_slices_of_deflated_arrays(tmp_path: Path, order: str) -> None:
    flow, mel = some_rows(0), some_rows(1)
    num_bytes = write(tmp_path / "a.npz", flow=flow, mel=mel)
    assert num_bytes < (flow.nbytes + mel.nbytes) / 2
    with open_artefact(tmp_path / "a.npz", num_bytes) as artefact:
        for span in slices()[order]:
            assert np.array_equal(artefact.rows("flow", span), flow[span.start : span.stop])
            assert np.array_equal(artefact.rows("mel", span), mel[span.start : span.stop])


def test_rows_of_a_deflated_array_are_checked_one_by_one(tmp_path: Path) -> None:
    path, rows = tmp_path / "a.npz", some_rows(0)
    write(path, flow=rows)
    changed = io.BytesIO()
    np.save(changed, np.where(rows == 300, 0, rows))
    num_bytes = replace_member(path, "flow.npy", changed.getvalue())
    with open_artefact(path, num_bytes) as artefact:
        assert np.array_equal(artefact.rows("flow", range(250, 300)), rows[250:300])
        for numbers in (range(290, 310), [300]):
            with pytest.raises(DamageError, match="row 300 of 'flow' is not what was written"):
                artefact.rows("flow", numbers)
        assert np.array_equal(artefact.rows("flow", range(301, NUM_ROWS)), rows[301:])
    with pytest.raises(DamageError, match="row 300 of 'flow' is not what was written"):
        check_artefact(path, num_bytes, {"flow": NUM_ROWS}, whole=["pts_seconds"])


def test_a_deflated_array_that_ends_too_early(tmp_path: Path) -> None:
    """Rows before the place are read, the others are damage however often they are asked for."""
    path, rows = tmp_path / "a.npz", some_rows(0)
    num_bytes = write(path, flow=rows)
    data = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        middle = archive.getinfo("flow.npy").compress_size // 2
    data[middle : middle + 2000] = bytes(2000)
    path.unlink()
    path.write_bytes(data)
    with open_artefact(path, num_bytes) as artefact:
        assert np.array_equal(artefact.rows("flow", range(200)), rows[:200])
        for numbers in (range(400, 410), range(400, 410), range(200, NUM_ROWS)):
            with pytest.raises(DamageError, match=r"a\.npz' is damaged"):
                artefact.rows("flow", numbers)
        assert np.array_equal(artefact.rows("flow", [7]), rows[7:8])


def test_empty_deflated_arrays(tmp_path: Path) -> None:
    num_bytes = write(tmp_path / "a.npz", flow=some_rows(0, 0))
    with open_artefact(tmp_path / "a.npz", num_bytes) as artefact:
        assert artefact.rows("flow", []).shape == (0, 64, 64)
    check_artefact(tmp_path / "a.npz", num_bytes, {"flow": 0}, whole=["pts_seconds"])


def test_a_deflated_file_made_by_numpy(tmp_path: Path) -> None:
    path, rows = tmp_path / "a.npz", some_rows(0, 30)
    digests = np.array([digest64(row.tobytes()) for row in rows], np.uint64)
    np.savez_compressed(path, **{"flow": rows, "flow.xxh3_64": digests})
    with open_artefact(path, path.stat().st_size) as artefact:
        assert np.array_equal(artefact.rows("flow", [29, 3, 4]), rows[[29, 3, 4]])


PEAK = """
import resource, sys
import numpy as np
from pathlib import Path
from chordcache.storage.artefacts.open_files import create_artefact, open_artefact

num_rows = int(sys.argv[2])
for name in ("a.npz", "b.npz"):
    path = Path(sys.argv[1]) / name
    random = np.random.default_rng(0)
    with create_artefact(path, compression="deflate") as writer:
        for _ in range(num_rows):
            writer.append("flow", np.repeat(random.integers(0, 250, (1, 1 << 16), np.uint8), 16, axis=1))
        writer.finish({}, {})
    with open_artefact(path, path.stat().st_size) as artefact:
        artefact.rows("flow", range(num_rows - 4, num_rows))
        artefact.rows("flow", [0])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
"""Peak memory [KiB] of writing, checking and reading two files of so many rows of 1 MiB; both stay open."""


def test_memory_does_not_grow_with_the_length_of_a_deflated_array(tmp_path: Path) -> None:
    peaks = []
    for num_rows in (40, 160):
        done = subprocess.run(
            [sys.executable, "-c", PEAK, tmp_path, str(num_rows)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert done.stderr == ""
        peaks.append(int(done.stdout) << 10)
    assert peaks[1] - peaks[0] < 20 << 20  # the long ones unpack to 160 MiB each
