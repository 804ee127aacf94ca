"""Contract of every store: round trips, slices, names, damage, forks, threads."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import h5py
import numpy as np
import pytest
from helpers import processes

from chordcache.digests import digest64
from chordcache.errors import DamageError, UsageError
from chordcache.storage.artefacts import open_files
from chordcache.storage.artefacts.artefact import Artefact
from chordcache.storage.artefacts.open_files import check_artefact, open_artefact
from chordcache.storage.artefacts.writer import Block, create_artefact

TREE = "the pages of its tree are not what was written"
ENDS = ("xxh3_64", "offsets")
"""Ends of names that a store keeps for itself"""

WHOLE = {"pts_seconds": np.arange(20) / 25, "source_frames": np.arange(20), "matrix": np.eye(3, 4, dtype=np.float32)}


def in_child(body: Callable[[], bool]) -> int:
    """Fork, run ``body`` in the child, return 0 if it was true, 5 if it raised ``DamageError``."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(30)
        try:
            os._exit(0 if body() else 3)
        except DamageError:
            os._exit(5)
        except BaseException as error:
            os.write(2, f"{error!r}\n".encode())
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def size_of(path: Path) -> int:
    return path.stat().st_size


def replace_file(path: Path, data: bytes) -> None:
    """Put other bytes under a name, as a publish does: a process that mapped the old ones keeps them."""
    aside = path.with_name("aside")
    aside.write_bytes(data)
    os.replace(aside, path)


def kept_open(suffix: str) -> set[Path]:
    """Artefacts of a tier that this process keeps open."""
    return {path for path, _ in open_files._kept if path.suffix == suffix}


class StoreContract:
    suffix: ClassVar[str]
    options: ClassVar[Mapping[str, Any]] = {}
    name: ClassVar[str]
    """A streamed array that the store takes"""
    is_records: ClassVar[bool] = False

    def values(self, num_rows: int = 20, seed: int = 0) -> Block:
        """Rows that fit ``name``, no two of them alike."""
        raise NotImplementedError

    def write(self, path: Path, values: Block | None = None, *, step: int = 3, **whole: np.ndarray) -> Path:
        rows = self.values() if values is None else values
        with create_artefact(path, **self.options) as writer:
            writer.append(self.name, rows[:0])
            for start in range(0, len(rows), step):
                writer.append(self.name, rows[start : start + step])
            writer.finish(whole or WHOLE, {"": {"made": "here"}, self.name: {"unit": "px", "scale": None}})
        return path

    def get(self, artefact: Artefact, numbers: Sequence[int]) -> list[bytes]:
        if self.is_records:
            return [bytes(record) for record in artefact.records(self.name, numbers)]
        return [row.tobytes() for row in artefact.rows(self.name, numbers)]

    def read(self, path: Path, numbers: Sequence[int], num_bytes: int | None = None) -> list[bytes]:
        artefact = open_artefact(path, num_bytes or size_of(path))
        return self.get(artefact, numbers)

    def wanted(self, values: Block, numbers: Sequence[int]) -> list[bytes]:
        return [bytes(np.ascontiguousarray(values[n])) if not self.is_records else values[n] for n in numbers]

    def check(self, path: Path, num_rows: int = 20, whole: Sequence[str] = tuple(WHOLE), look: Any = None) -> None:
        check_artefact(path, size_of(path), {self.name: num_rows}, whole=whole, look=look)

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return self.write(tmp_path / f"a{self.suffix}")

    @pytest.mark.parametrize("spelling", ["../up/..//a/b", "{}/x/../a/./b/", "a/b", "/{}/a/b"])
    def test_a_path_of_any_spelling(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spelling: str) -> None:
        for folder in ("x", "up", "a/b/c"):
            (tmp_path / folder).mkdir(parents=True)
        monkeypatch.chdir(tmp_path if spelling == "a/b" else tmp_path / "x")
        path = self.write(Path(spelling.format(tmp_path)) / f"c/a{self.suffix}")
        assert self.read(path, range(4)) == self.wanted(self.values(), range(4))
        self.check(path)
        assert (tmp_path / f"a/b/c/a{self.suffix}").exists()

    # Round trip

    @pytest.mark.parametrize(
        "numbers",
        [
            range(0),
            range(20),
            range(3, 9),
            range(19, 20),
            range(1, 20, 4),
            range(10, 2, -3),
            [],
            [7],
            [5, 5, 5],
            [3, 4, 5, 9, 9, 10, 0],
            [19, 18, 17],
        ],
        ids=str,
    )
    def test_rows_come_back(self, path: Path, numbers: Sequence[int]) -> None:
        assert self.read(path, numbers) == self.wanted(self.values(), numbers)

    @pytest.mark.parametrize("num_rows", [0, 1, 2, 700])
    @pytest.mark.parametrize("step", [1, 64])
    def test_any_number_of_rows(self, tmp_path: Path, num_rows: int, step: int) -> None:
        values = self.values(num_rows)
        path = self.write(tmp_path / f"a{self.suffix}", values, step=step)
        artefact = open_artefact(path, size_of(path))
        assert artefact.num_rows(self.name) == num_rows
        assert self.get(artefact, range(num_rows)) == self.wanted(values, range(num_rows))
        if not self.is_records:
            assert artefact.rows(self.name, range(0)).shape == (0, *np.shape(values)[1:])
            assert artefact.rows(self.name, []).dtype == values.dtype  # type: ignore[union-attr]

    def test_whole_arrays_come_back_read_only(self, path: Path) -> None:
        artefact = open_artefact(path, size_of(path))
        assert artefact.streamed == {self.name}
        assert artefact.whole == WHOLE.keys()
        arrays = {name: artefact.array(name) for name in WHOLE}
        for name, values in WHOLE.items():
            assert arrays[name].dtype == values.dtype
            assert np.array_equal(arrays[name], values)
            assert not arrays[name].flags.writeable

    @pytest.mark.parametrize(
        "values",
        [
            *(np.zeros(0), np.zeros((0, 3), np.int16), np.zeros((4, 0), np.uint8)),
            *(np.array([True, False]), np.arange(3.0), np.array([b"ab", b"c"]), np.array([b"x" * 1000])),
        ],
        ids=lambda values: f"{values.dtype}{values.shape}",
    )
    def test_odd_whole_arrays(self, tmp_path: Path, values: np.ndarray) -> None:
        path = self.write(tmp_path / f"a{self.suffix}", odd=values)
        artefact = open_artefact(path, size_of(path))
        array = artefact.array("odd")
        assert (array.dtype, array.shape) == (values.dtype, values.shape)
        assert np.array_equal(array, values)

    def test_big_endian_and_strided_whole_arrays(self, tmp_path: Path) -> None:
        values = np.arange(24, dtype=">i4").reshape(4, 6)[::2, ::-1]
        path = self.write(tmp_path / f"a{self.suffix}", odd=values)
        artefact = open_artefact(path, size_of(path))
        assert np.array_equal(artefact.array("odd"), values)
        assert artefact.array("odd").dtype == np.dtype("<i4")

    def test_the_digests_are_those_of_the_rows(self, path: Path) -> None:
        artefact = open_artefact(path, size_of(path))
        digests = artefact.array(f"{self.name}.xxh3_64")
        assert digests.tolist() == [digest64(row) for row in self.wanted(self.values(), range(20))]

    def test_no_other_file_is_written(self, path: Path) -> None:
        self.read(path, [0])
        assert os.listdir(path.parent) == [path.name]

    def test_an_abandoned_source_leaves_nothing_open(self, tmp_path: Path) -> None:
        with (
            pytest.raises(KeyboardInterrupt),
            create_artefact(tmp_path / f"a{self.suffix}", **self.options) as writer,
        ):
            writer.append(self.name, self.values(3))
            raise KeyboardInterrupt
        open_now = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
        assert not [name for name in open_now if name.startswith(str(tmp_path))]
        assert set(os.listdir(tmp_path)) <= {f"a{self.suffix}"}

    # Usage

    def test_wrong_names(self, path: Path) -> None:
        artefact = open_artefact(path, size_of(path))
        for call in (artefact.num_rows, lambda name: artefact.rows(name, [0])):
            for name in ("nothing", "pts_seconds", *(f"{self.name}.{end}" for end in ENDS), "../a", ""):
                with pytest.raises(DamageError, match=f"array '{name}' of rows is missing"):
                    call(name)
        for name in ("nothing", self.name, f"{self.name}.offsets"):
            with pytest.raises(DamageError, match=f"whole array '{name}' is missing"):
                artefact.array(name)

    @pytest.mark.parametrize("number", [20, -1, 1 << 40])
    def test_rows_that_do_not_exist(self, path: Path, number: int) -> None:
        with pytest.raises(DamageError, match=rf"(row|record) {number} is missing: got 20 \1s, expected more$"):
            self.read(path, [0, number])

    @pytest.mark.parametrize("name", ["", "a/b", "../a", "a\0b", "1", "x.xxh3_64", "x.offsets", "ä", "a" * 300, "."])
    def test_names_that_cannot_be(self, tmp_path: Path, name: str) -> None:
        with create_artefact(tmp_path / f"a{self.suffix}", **self.options) as writer:
            with pytest.raises(UsageError, match="is not a name for an array"):
                writer.append(name, self.values())
            with pytest.raises(UsageError, match="is not a name for an array"):
                writer.finish({name: np.zeros(3)}, {})

    @pytest.mark.parametrize("values", [np.array([None]), np.array(["x"]), np.zeros(2, "V4"), np.zeros(2, "M8[s]")])
    def test_dtypes_that_are_refused(self, tmp_path: Path, values: np.ndarray) -> None:
        with create_artefact(tmp_path / f"a{self.suffix}", **self.options) as writer:
            with pytest.raises(UsageError, match="numbers, booleans, bytes of one length and"):
                writer.append(self.name, values)
            with pytest.raises(UsageError, match="numbers, booleans, bytes of one length and"):
                writer.finish({"odd": values}, {})
            with pytest.raises(UsageError, match="array 'odd' has no axis"):
                writer.finish({"odd": np.array(3)}, {})

    def test_rows_unlike_the_first(self, tmp_path: Path) -> None:
        with create_artefact(tmp_path / f"a{self.suffix}", **self.options) as writer:
            writer.append(self.name, self.values(2))
            other: list[Any] = [np.zeros((2, 9), np.float64), np.zeros((2, 3), np.uint8)]
            other += [np.zeros(2)]  # a dtype of float64 equals None
            other += [self.values(2)[:, :1]] if not self.is_records else []  # type: ignore[call-overload]
            for values in other:
                with pytest.raises(UsageError, match=f"rows of '{self.name}' are .*, but the first ones were"):
                    writer.append(self.name, values)
            with pytest.raises(UsageError, match="neither an array nor records"):
                writer.append(self.name, ["text"])
            with pytest.raises(UsageError, match=f"'{self.name}' is written row by row"):
                writer.finish({self.name: np.zeros(2)}, {})

    def test_rows_are_not_records(self, path: Path) -> None:
        artefact = open_artefact(path, size_of(path))
        with pytest.raises(UsageError, match="read them as such"):
            artefact.rows(self.name, [0]) if self.is_records else next(artefact.records(self.name, [0]))

    # Check

    def test_an_undamaged_artefact_passes_every_check(self, path: Path) -> None:
        seen: list[tuple[str, int, bytes]] = []
        self.check(path, look=lambda name, number, row: seen.append((name, number, bytes(row))))
        assert seen == [(self.name, n, row) for n, row in enumerate(self.wanted(self.values(), range(20)))]

    def test_names_and_counts_are_exact(self, path: Path) -> None:
        with pytest.raises(DamageError, match=rf"got 20 rows of '{self.name}', expected 21 rows"):
            self.check(path, 21)
        with pytest.raises(DamageError, match="got a whole array of 'matrix', expected nothing"):
            self.check(path, whole=["pts_seconds", "source_frames"])
        with pytest.raises(DamageError, match="got nothing of 'more', expected a whole array"):
            self.check(path, whole=[*WHOLE, "more"])
        with pytest.raises(DamageError, match=f"got 20 rows of '{self.name}', expected nothing"):
            check_artefact(path, size_of(path), {}, whole=tuple(WHOLE))
        with pytest.raises(DamageError, match="got nothing of 'other', expected 3 rows"):
            check_artefact(path, size_of(path), {self.name: 20, "other": 3}, whole=tuple(WHOLE))

    # Damage

    @pytest.mark.parametrize("damage", ["missing", "empty", "folder", "fifo", "text", "zeros"])
    def test_a_file_of_another_kind_is_damage(self, path: Path, damage: str) -> None:
        num_bytes = size_of(path)
        path.unlink()
        if damage == "folder":
            path.mkdir()
        elif damage == "fifo":
            os.mkfifo(path)
        elif damage != "missing":
            path.write_bytes({"empty": b"", "text": b"x" * num_bytes, "zeros": bytes(num_bytes)}[damage])
        for size in {num_bytes, path.stat().st_size if path.exists() else 0}:
            with pytest.raises(DamageError, match=rf"a\{self.suffix}'"):
                open_artefact(path, size).num_rows(self.name)

    def test_a_flipped_bit_of_a_row_is_damage(self, path: Path) -> None:
        data = path.read_bytes()
        rows = self.wanted(self.values(), range(20))
        places = [(number, data.find(row)) for number, row in enumerate(rows) if data.find(row) >= 0]
        assert len(places) == 20
        for number, at in places:
            changed = bytearray(data)
            changed[at + len(rows[number]) // 2] ^= 1 << number % 8
            replace_file(path, bytes(changed))
            if self.suffix == ".lmdb":  # rows as small as these lie in the pages of the tree, chains of them do not
                reported = rf"{TREE}|record {number} is not what was written" if "gop" in self.options else TREE
                with pytest.raises(DamageError, match=reported):
                    self.read(path, [number])
                continue
            others = [n for n in range(20) if n != number]
            assert self.read(path, others) == [rows[n] for n in others]
            with pytest.raises(DamageError, match=rf"r(ow|ecord) {number} .*is not what was written"):
                self.read(path, [number])
            with pytest.raises(DamageError, match="is not what was written"):
                self.check(path)

    def test_a_flipped_bit_of_a_whole_array_is_damage(self, path: Path) -> None:
        data = path.read_bytes()
        for name, values in WHOLE.items():
            at = data.find(values.tobytes())
            replace_file(path, data[: at + 9] + bytes([data[at + 9] ^ 4]) + data[at + 10 :])
            reported = TREE if self.suffix == ".lmdb" else f"'{name}.*' is not what was written"
            with pytest.raises(DamageError, match=reported):
                open_artefact(path, len(data)).array(name)
            with pytest.raises(DamageError, match="not what was written"):
                self.check(path)

    # Many, forks, threads

    def test_an_artefact_that_was_replaced(self, path: Path) -> None:
        assert self.read(path, [3]) == self.wanted(self.values(), [3])
        old = open_artefact(path, size_of(path))
        values = self.values(9, seed=1)
        os.replace(self.write(path.with_name(f"b{self.suffix}"), values), path)
        assert self.read(path, [3]) == self.wanted(values, [3])  # also while the old one is in use
        assert self.get(old, [4]) == self.wanted(self.values(), [4])
        assert self.read(path, [8]) == self.wanted(values, [8])

    def test_a_forked_child_reads_what_the_parent_has_open(self, path: Path) -> None:
        wanted = self.wanted(self.values(), range(20))
        assert self.read(path, [1]) == wanted[1:2]
        assert path in kept_open(self.suffix)
        assert in_child(lambda: self.read(path, range(20)) == wanted) == 0
        assert in_child(lambda: in_child(lambda: self.read(path, [4]) == wanted[4:5]) == 0) == 0
        assert self.read(path, [2]) == wanted[2:3]

    def test_threads_and_forks(self, tmp_path: Path) -> None:
        values = self.values()
        paths = [self.write(tmp_path / f"{n}{self.suffix}") for n in range(4)]
        wrong: list[object] = []
        ended = threading.Event()

        def reader(seed: int) -> None:
            random = processes.Rng(seed)
            while not ended.is_set():
                numbers = [random.below(20) for _ in range(8)]
                try:
                    if self.read(paths[random.below(4)], numbers) != self.wanted(values, numbers):
                        wrong.append(numbers)
                except Exception as error:
                    wrong.append(error)

        threads = [threading.Thread(target=reader, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        try:
            codes = [in_child(lambda: self.read(paths[0], [5]) == self.wanted(values, [5])) for _ in range(5)]
        finally:
            ended.set()
            for thread in threads:
                thread.join()
        assert codes == [0] * 5
        assert wrong == []

    def test_more_than_are_kept_open(self, tmp_path: Path) -> None:
        values = self.values(2)
        first = self.write(tmp_path / f"first{self.suffix}", values)
        paths = [tmp_path / f"{n}{self.suffix}" for n in range(134)]
        for path in paths:
            path.write_bytes(first.read_bytes())
        for path in [*paths, *paths]:
            assert self.read(path, [1]) == self.wanted(values, [1])
            assert len(kept_open(self.suffix)) <= 128


class RowsOf:
    """Rows of random numbers."""

    row_shape: ClassVar[tuple[int, ...]]
    dtype: ClassVar[Any]

    def values(self, num_rows: int = 20, seed: int = 0) -> np.ndarray:
        random = np.random.default_rng(seed)
        return (random.random((num_rows, *self.row_shape)) * 250).astype(self.dtype)

    def test_out_is_filled(self: Any, path: Path) -> None:
        values = self.values()
        out = np.empty((2, *values.shape[1:]), values.dtype)
        artefact = open_artefact(path, size_of(path))
        assert artefact.rows(self.name, [4, 1], out) is out
        assert np.array_equal(out, values[[4, 1]])
        for wrong in (out[:1], out.astype(np.complex64), np.asfortranarray(np.zeros_like(out)).T.T[:, ::-1]):
            with pytest.raises(UsageError, match=f"out for '{self.name}': got .*, expected a contiguous"):
                artefact.rows(self.name, [4, 1], wrong)


class RecordsOf:
    """Records of unlike lengths."""

    is_records: ClassVar[bool] = True

    def values(self, num_rows: int = 20, seed: int = 0) -> list[bytes]:
        random = np.random.default_rng(seed)
        return [random.bytes(200 + 13 * number) for number in range(num_rows)]


class TestLmdbRecords(RecordsOf, StoreContract):
    suffix, name = ".lmdb", "frames"


class TestLmdbChains(RecordsOf, StoreContract):
    suffix, name = ".lmdb", "frames"
    options: ClassVar = {"gop": 8}


class TestLmdbInterleavedChains(RecordsOf, StoreContract):
    suffix, name = ".lmdb", "frames"
    options: ClassVar = {"gop": 3, "stride": 4}


class TestLmdbRows(RowsOf, StoreContract):
    suffix, name, row_shape, dtype = ".lmdb", "frames", (12, 16, 3), np.uint8


class TestNpz(RowsOf, StoreContract):
    suffix, name, row_shape, dtype = ".npz", "flow", (6, 8, 2), np.float16


class TestNpzBooleans(RowsOf, StoreContract):
    suffix, name, row_shape, dtype = ".npz", "motion.valid", (40,), "b1"

    def values(self, num_rows: int = 20, seed: int = 0) -> np.ndarray:
        return np.random.default_rng(seed).random((num_rows, 40)) > 0.5


class TestHdf5(RowsOf, StoreContract):
    suffix, name, row_shape, dtype = ".h5", "flow", (32, 40, 2), np.float16

    def test_any_hdf5_reader_opens_it(self, path: Path) -> None:
        with h5py.File(path, "r") as file:
            assert set(file) == {"flow", "flow.xxh3_64", *WHOLE}
            assert np.array_equal(file["flow"][...], self.values())
            assert file["flow"].chunks is None
            assert file.attrs["made"] == "here"
            assert (file["flow"].attrs["unit"], file["flow"].attrs["scale"]) == ("px", "null")
            assert file["flow"].dims[0].keys() == ["pts_seconds"]
            assert np.array_equal(file["flow"].dims[0][0], WHOLE["pts_seconds"])


class TestHdf5SmallRows(RowsOf, StoreContract):
    suffix, name, row_shape, dtype = ".h5", "mel", (80,), np.float32


class TestHdf5Records(RecordsOf, StoreContract):
    suffix, name = ".h5", "frames"


@pytest.mark.parametrize(
    "store",
    [TestNpz(), TestHdf5(), TestHdf5Records(), TestLmdbRows(), TestLmdbRecords()],
    ids=lambda store: type(store).__name__,
)
def test_equal_arrays_make_equal_files(tmp_path: Path, store: StoreContract) -> None:
    a = store.write(tmp_path / f"a{store.suffix}")
    leftovers = [bytes([n % 255 + 1]) * 4096 for n in range(2000)]  # what a page that is not cleared would hold
    del leftovers
    b = store.write(tmp_path / f"b{store.suffix}")
    assert a.read_bytes() == b.read_bytes()


@pytest.mark.parametrize("suffix", [".npz", ".h5"])
def test_rows_of_bytes_of_one_length(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    values = np.array([[b"ab", b"c"], [b"", b"def"]])
    with create_artefact(path) as writer:
        writer.append("words", values)
        writer.finish({}, {})
    artefact = open_artefact(path, size_of(path))
    rows = artefact.rows("words", [1, 0])
    assert rows.dtype == np.dtype("S3")
    assert rows.tolist() == [[b"", b"def"], [b"ab", b"c"]]


def test_records_of_one_length(tmp_path: Path) -> None:
    for suffix in (".lmdb", ".h5"):
        path = tmp_path / f"a{suffix}"
        records = [bytes([n]) * 50 for n in range(200)] + [b""]
        with create_artefact(path) as writer:
            writer.append("frames", records)
            writer.finish({}, {})
        artefact = open_artefact(path, size_of(path))
        assert [bytes(record) for record in artefact.records("frames", range(201))] == records


# The registry


def test_options_and_suffixes_that_do_not_exist(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"got the suffix '.zip', expected one of \.lmdb, \.npz, \.h5"):
        create_artefact(tmp_path / "a.zip")
    with pytest.raises(UsageError, match=r"got the suffix '\.py'"):
        open_artefact(Path(__file__), size_of(Path(__file__)))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("suffix", "name", "values", "match"),
    [
        (".lmdb", "flow", [b"x"], "LMDB holds the rows of 'frames' only, not of 'flow'"),
        (".lmdb", "frames", np.zeros((2, 3)), "LMDB holds records and rows of uint8, not of float64"),
        (".npz", "frames", [b"x"], "NPZ holds arrays, but 'frames' is of records"),
        (".npz", "flow", np.zeros((2, 0, 3)), r"rows of 'flow' are empty: their shape is \(0, 3\)"),
    ],
)
def test_rows_that_a_store_refuses(tmp_path: Path, suffix: str, name: str, values: Block, match: str) -> None:
    with create_artefact(tmp_path / f"a{suffix}") as writer, pytest.raises(UsageError, match=match):
        writer.append(name, values)
