"""LMDB tier: one sealed environment per video, with one record or one raw picture per frame.

Layout of an environment (a single file)::

    key                                 value
    4-byte big-endian frame number      one row of "frames": JPEG bytes, or raw RGB24, HWC.
                                        With chains, all packets of a chain, under the number of its first frame
    b"frames.shape"                     only with raw rows: a whole array, int64, the shape of a row
    b"frames.sizes"                     only with chains: a whole array, uint32 [T], the size of each packet
    b"frames.starts"                    only with chains: a whole array, uint32 [T], the first frame of its chain
    b"frames.xxh3_64"                   a whole array, uint64 [T]: digest of each row
    b"pts_seconds" ...                  the other whole arrays

The value of a whole array is the 8-byte little-endian xxh3-64 of the rest, then a ``.npy`` file.

Behind the last page, where LMDB does not look, stand uint64s: the numbers of all pages that do not hold values, the
xxh3-64 of these pages and numbers, the size of a page, and the count of these pages. Readers check them before LMDB
opens the file, because LMDB aborts the process if a page of its tree is not as expected.

Sealed means: published, and never written again. Readers open the file without locks, also on a read-only or full disk.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lmdb
import numpy as np

from chordcache import progress
from chordcache.digests import digest64
from chordcache.errors import UsageError
from chordcache.storage.artefacts import npy, open_files
from chordcache.storage.artefacts.artefact import DIGESTS, Artefact, Layout
from chordcache.storage.artefacts.chains import ChainIndex, ChainWriter
from chordcache.storage.artefacts.writer import ArtefactWriter, StreamedArray, write_error

STREAM = "frames"
"""Name of the only streamed array."""

_SHAPE = f"{STREAM}.shape"
_SIZES = f"{STREAM}.sizes"
_STARTS = f"{STREAM}.starts"

_FIRST_MAP_BYTES = 1 << 28
"""Address space that is reserved first, not disk space [bytes]. It is doubled when a batch does not fit."""

_BATCH_BYTES = 4 << 20
"""Size of the rows that are written in one transaction [bytes]. A larger batch is not faster, and stays in the heap."""

_FIRST_NAME = b"A"
"""Key that sorts before every name, and behind the numbers of the first 1e9 frames."""

_DIGEST_BYTES = 8

_FOOTER_BYTES = 24
"""Size of the digest, the size of a page, and the number of pages [bytes]."""

_PAGE_HEADER = struct.Struct("<10xHI")
"""Flags of a page and, for a page that holds a value, the number of pages that the value takes."""

_HOLDS_VALUE = 4
"""Flag of a page that holds a value, LMDB's P_OVERFLOW."""


def _key(number: int) -> bytes:
    return number.to_bytes(4, "big")


class LmdbArtefactWriter(ArtefactWriter):
    """A writer of one environment.

    Parameters
    ----------
    path : Path
        As in ``ArtefactWriter``.
    gop : int
        Number of records that are stored as one value. Values begin at a page, and the rest of the last page is empty.
    stride : int
        Distance of the records in a value.
    """

    def __init__(self, path: Path, *, gop: int = 1, stride: int = 1) -> None:
        super().__init__(path)
        self._chains = ChainWriter(gop, stride) if gop > 1 else None
        self._batch: list[tuple[bytes, bytes]] = []
        self._batch_bytes = 0
        self._num_rows = 0
        self._map_bytes = _FIRST_MAP_BYTES
        self._environment = self._open()

    def _begin(self, name: str, stream: StreamedArray) -> None:
        if name != STREAM:
            raise UsageError(f"LMDB holds the rows of '{STREAM}' only, not of '{name}': put it into npz or hdf5")
        if stream.dtype is not None and stream.dtype != np.uint8:
            raise UsageError(f"LMDB holds records and rows of uint8, not of {stream.dtype}: use npz or hdf5")

    def _write(self, name: str, block: np.ndarray | list[bytes]) -> None:
        for row in block:
            value = row if isinstance(row, bytes) else row.tobytes()
            self._put_all({self._num_rows: value} if self._chains is None else self._chains.add(value))
            self._num_rows += 1

    def _finish(self, arrays: Mapping[str, np.ndarray], attributes: Mapping[str, Mapping[str, Any]]) -> None:
        values = {**arrays, **self._digests()}
        stream = self._streams.get(STREAM)
        if self._chains is not None:
            self._put_all(self._chains.finish())
            values |= {_SIZES: self._chains.sizes, _STARTS: self._chains.starts}
        if stream is not None and stream.dtype is not None:
            values[_SHAPE] = np.array(stream.row_shape, "<i8")
        for name in sorted(values):  # LMDB appends in the order of keys only
            data = npy.dumps(values[name])
            self._put(name.encode(), digest64(data).to_bytes(_DIGEST_BYTES, "little") + data)
        self._write_batch()
        page_bytes, num_pages = _pages(self._environment)
        self._close()
        with self._errors():
            _append_tree(self.path, page_bytes, num_pages)
        open_files.check_artefact(self.path, os.path.getsize(self.path), self._lengths(), whole=arrays)

    def _close(self) -> None:
        self._environment.close()

    def _open(self) -> Any:
        with self._errors():
            return lmdb.open(str(self.path), subdir=False, lock=False, sync=False, map_size=self._map_bytes)

    def _put_all(self, values: Mapping[int, bytes]) -> None:
        for number, value in values.items():
            self._put(_key(number), value)

    def _put(self, key: bytes, value: bytes) -> None:
        self._batch.append((key, value))
        self._batch_bytes += len(value)
        if self._batch_bytes >= _BATCH_BYTES:
            self._flush()

    def _flush(self) -> None:
        self._write_batch()
        self._environment.close()  # unmaps the file: memory use does not grow with the video
        self._environment = self._open()

    def _write_batch(self) -> None:
        while True:
            try:
                with progress.paused(), self._errors(), self._environment.begin(write=True) as transaction:
                    for key, value in self._batch:
                        transaction.put(key, value, append=True)
                break
            except lmdb.MapFullError:
                self._map_bytes *= 2
                self._environment.set_mapsize(self._map_bytes)
        self._batch.clear()
        self._batch_bytes = 0

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except lmdb.MapFullError:
            raise
        except (lmdb.Error, OSError) as error:
            raise write_error(self.path, _refusal(self.path) or error) from None


def _refusal(path: Path) -> OSError | None:
    """Return the disk's error if no more can be written, else None. LMDB reports a short write as an I/O error."""
    try:
        with open(path, "ab", buffering=0) as file:
            file.write(b"\0")
    except OSError as error:
        return error
    return None


def _pages(environment: Any) -> tuple[int, int]:
    """Return the size of a page [bytes] and the number of pages."""
    return environment.stat()["psize"], environment.info()["last_pgno"] + 1


def _append_tree(path: Path, page_bytes: int, num_pages: int) -> None:
    """Write the footer that readers check behind the pages. Raises ``OSError``."""
    with open(path, "r+b") as file:
        numbers = np.array(_tree_pages(file.fileno(), page_bytes, num_pages), "<u8")
        digest = _digest_of_pages(file.fileno(), numbers, page_bytes)
        file.seek(page_bytes * num_pages)
        file.truncate()
        file.write(numbers.tobytes() + np.array([digest, page_bytes, len(numbers)], "<u8").tobytes())
        file.flush()
        os.fsync(file.fileno())


def _tree_pages(fd: int, page_bytes: int, num_pages: int) -> list[int]:
    """Return the numbers of the pages that do not hold values. The first page of a value states how many it takes."""
    pages = []
    number = 0
    while number < num_pages:
        header = os.pread(fd, _PAGE_HEADER.size, number * page_bytes)
        flags, num_of_value = _PAGE_HEADER.unpack(header)
        if flags & _HOLDS_VALUE:
            number += num_of_value
        else:
            pages.append(number)
            number += 1
    return pages


def _digest_of_pages(fd: int, numbers: np.ndarray, page_bytes: int) -> int:
    pages = [os.pread(fd, page_bytes, number * page_bytes) for number in numbers.tolist()]
    return digest64(b"".join([*pages, numbers.tobytes()]))


def _is_tree_whole(fd: int, num_bytes: int) -> bool:
    start = num_bytes - _FOOTER_BYTES
    if start < 0:
        return False
    digest, page_bytes, num_pages = np.frombuffer(os.pread(fd, _FOOTER_BYTES, start), "<u8").tolist()
    start -= 8 * num_pages
    if start < page_bytes * num_pages:
        return False
    numbers = np.frombuffer(os.pread(fd, 8 * num_pages, start), "<u8")
    if (numbers > start // max(1, page_bytes)).any():
        return False
    is_same: bool = digest == _digest_of_pages(fd, numbers, page_bytes)
    return is_same


class LmdbArtefact(Artefact):
    """An open environment."""

    maps_file = True

    def __init__(self, path: Path, num_bytes: int) -> None:
        super().__init__(path, num_bytes)
        self._check_tree(num_bytes)
        try:
            self._environment = lmdb.open(
                str(path), subdir=False, readonly=True, lock=False, map_size=num_bytes, max_spare_txns=4
            )
        except lmdb.Error as error:
            raise self._damage(error) from None
        end = math.prod(_pages(self._environment))
        if end > num_bytes:
            self.close()
            raise self._damage(f"its pages end at byte {end}, it has {num_bytes}")
        self._found: frozenset[str] | None = None
        self._stream = Layout(0)
        self._chains: ChainIndex | None = None

    def _check_tree(self, num_bytes: int) -> None:
        """Raise ``DamageError`` if the pages of the tree are not what was written."""
        try:
            with open(self.path, "rb", buffering=0) as file:
                is_whole = _is_tree_whole(file.fileno(), num_bytes)
        except OSError as error:
            raise self._damage(error) from None
        if not is_whole:
            raise self._damage("the pages of its tree are not what was written")

    def close(self) -> None:
        """Release the map."""
        self._environment.close()

    def _names(self) -> frozenset[str]:
        if self._found is None:
            self._found = self._look_around()
        return self._found

    def _look_around(self) -> frozenset[str]:
        """Return every name, that is, every key that is not a frame number. There are as many frames as digests."""
        with self._transaction() as transaction:
            digests = self._unpack(transaction, STREAM + DIGESTS)
            cursor = transaction.cursor()
            cursor.set_range(_FIRST_NAME if digests is None else _key(len(digests)))
            names = {bytes(key).decode("ascii", "replace") for key in cursor.iternext(values=False)}
            num_rows = self._environment.stat()["entries"] - len(names)
            shape, sizes, starts = (self._unpack(transaction, name) for name in (_SHAPE, _SIZES, _STARTS))
        if digests is None:
            if num_rows:
                raise self._damage("digests of rows are missing")
            return frozenset(names)
        self._arrays[STREAM + DIGESTS] = digests
        if sizes is not None and starts is not None:
            self._chains = self._chain_index(sizes, starts, num_rows)
            num_rows = len(sizes)
        self._stream = Layout(num_rows)
        if shape is not None:
            self._stream = Layout(num_rows, tuple(shape.tolist()), np.dtype(np.uint8))
        return frozenset({STREAM, *names} - {_SHAPE, _SIZES, _STARTS})

    def _chain_index(self, sizes: np.ndarray, starts: np.ndarray, num_values: int) -> ChainIndex:
        try:
            chains = ChainIndex(sizes, starts)
        except ValueError as error:
            raise self._damage(error) from None
        if chains.num_chains != num_values:
            raise self._damage(f"got {num_values} chains of records, expected {chains.num_chains}")
        return chains

    def _layout(self, name: str) -> Layout:
        return self._stream

    def _read_array(self, name: str) -> np.ndarray:
        with self._transaction() as transaction:
            values = self._unpack(transaction, name)
        if values is None:
            raise self._damage(f"array '{name}' is missing")
        return values

    def _unpack(self, transaction: Any, name: str) -> np.ndarray | None:
        """Return a whole array, or None if it does not exist. The array stays valid after the transaction."""
        value = transaction.get(name.encode())
        if value is None:
            return None
        data = bytes(value[_DIGEST_BYTES:])
        if digest64(data).to_bytes(_DIGEST_BYTES, "little") != bytes(value[:_DIGEST_BYTES]):
            raise self._damage(f"its array '{name}' is not what was written")
        try:
            return npy.loads(data)
        except ValueError as error:
            raise self._damage(f"its array '{name}' is {error}") from None

    def _read_rows(self, name: str, start: int, stop: int, out: np.ndarray) -> None:
        self._read_runs(name, [(range(start, stop), out)])

    def _read_runs(self, name: str, pieces: Sequence[tuple[range, np.ndarray]]) -> None:
        """Copy all runs in one transaction: to begin one takes as long as to copy a third of a picture."""
        numbers = [number for run, _ in pieces for number in run]
        rows = (row for _, out in pieces for row in out.reshape(len(out), -1))
        for row, record in zip(rows, self._iter_records(name, numbers), strict=True):
            if len(record) != row.nbytes:
                raise self._damage(f"a row of '{name}' has {len(record)} bytes, expected {row.nbytes}")
            row[:] = np.frombuffer(record, np.uint8)

    def _iter_records(self, name: str, numbers: Sequence[int]) -> Iterator[memoryview]:
        with self._transaction() as transaction:
            get, chains = transaction.get, self._chains
            for number in numbers:
                record = get(_key(number if chains is None else chains.start(number)))
                if record is None:
                    raise self._damage(f"record {number} is missing")
                yield record if chains is None else chains.cut(record, number)

    @contextmanager
    def _transaction(self) -> Iterator[Any]:
        """Yield a read transaction. Its views are valid inside the ``with`` block only."""
        try:
            with self._environment.begin(buffers=True) as transaction:
                yield transaction
        except lmdb.Error as error:
            raise self._damage(error) from None
