"""The common part of the tiers: an artefact is a file of named arrays, whose first axis is called rows.

A *streamed* array is appended to row by row, each row with its xxh3-64 digest. A *whole* array is small, such as
``pts_seconds``. It is written at once and checked as a whole. A row is an array of one shape and dtype, or a record:
bytes of any length. The digests of a streamed array are the whole array ``<name>.xxh3_64`` [shape=(num_rows,),
dtype=uint64]. Numbers are stored little-endian and in C order. The digest of a row is computed over these bytes.
"""

from __future__ import annotations

import math
import os
import struct
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from chordcache.digests import digest64
from chordcache.errors import DamageError, StorageError, UsageError, printable
from chordcache.storage import opener
from chordcache.storage.artefacts.tiers import DIGESTS
from chordcache.storage.feature_info import Packed
from chordcache.storage.feature_rules import Claims, Layout
from chordcache.storage.layout import pack_file

_MAX_SECONDS = 1e12
"""[seconds] Largest time of a frame"""

RECORDS_AT_ONCE = 16
"""Records that are found and checked together, before the caller decodes them. Finding or checking a single record
between two decodings of pictures takes several times as long."""

BYTES_AT_ONCE = 64 << 20
"""Size of records above which fewer are found together [bytes]"""

_BLOCK_BYTES = 4 << 20
"""Largest size of neighboring pieces of a file that are read at once [bytes]"""

_HEADER_BYTES = 4096
"""Size of the header of a whole array, at most [bytes]"""

_FRAME_DTYPES = {
    "pts_seconds": np.dtype(np.float64),
    "source_frames": np.dtype(np.int64),
    "keyframes": np.dtype(np.int64),
}
"""Whole arrays about frames. Each has an axis, and the first two a value for each frame"""


class _Stream(NamedTuple):
    """A streamed array that was read."""

    layout: Layout
    digests: np.ndarray
    """Digest of each row"""
    checked: np.ndarray
    """True for rows that were compared with their digest since the file was opened"""


class Artefact(ABC):
    """A published artefact opened for reading. ``storage.artefacts.open_files.open_artefact`` makes it.

    ``num_bytes`` is its size according to the sidecar, and ``claims`` has the other statements of the sidecar, or is
    None for a file that this process has just written. ``packed`` is its place in a pack, or None for a file of its
    own. Raises ``DamageError`` if the file is missing, has another size or is not such an artefact.
    """

    def __init__(
        self,
        path: Path,
        num_bytes: int,
        claims: Claims | None = None,
        packed: Packed | None = None,
    ) -> None:
        self.path = path
        self._num_bytes = num_bytes
        self._claims = claims and claims.of_file(path)
        self._layouts: dict[str, Layout] = {}
        self._arrays: dict[str, np.ndarray] = {}
        self._streams: dict[str, _Stream] = {}
        self._streamed: frozenset[str] | None = None
        self._start = 0 if packed is None else packed.offset
        """Place of its first byte in the open file"""
        self._fd = _open(path, packed)
        # Not by a ``close`` of the last user: another thread may still read
        self._close = weakref.finalize(self, os.close, self._fd)
        size = os.fstat(self._fd).st_size - self._start
        if size < num_bytes or (size > num_bytes and packed is None):
            self._close()
            raise self._damage(f"got {max(0, size)} bytes, expected {num_bytes}")
        self._read_contents()

    @property
    def streamed(self) -> frozenset[str]:
        """Names of the streamed arrays."""
        if self._streamed is None:  # not cached_property: its lock may be held where a process forks, see cache.Video
            names = self._names()
            self._streamed = frozenset(name for name in names if name + DIGESTS in names)
        return self._streamed

    @property
    def whole(self) -> frozenset[str]:
        """Names of the whole arrays, without the arrays of digests."""
        return self._names() - self.streamed - {name + DIGESTS for name in self.streamed}

    def layout(self, name: str) -> Layout:
        """Return the shape and dtype of a streamed array. Raises ``DamageError``."""
        if name not in self._layouts:
            if name not in self.streamed:
                raise self._damage(f"array '{name}' of rows is missing")
            layout = self._layout(name)
            if self._claims and (problem := self._claims.layout_problem(name, layout)):
                raise self._damage(problem)
            self._layouts[name] = layout
        return self._layouts[name]

    def num_rows(self, name: str) -> int:
        """Return the number of rows of a streamed array."""
        return self.layout(name).num_rows

    def array(self, name: str) -> np.ndarray:
        """Return a whole array, read-only and checked. Raises ``DamageError``."""
        if name not in self._arrays:
            if name not in self._names() - self.streamed:
                raise self._damage(f"whole array '{name}' is missing")
            values = self._read_array(name)
            if self._claims and name in _FRAME_DTYPES:
                self._check_of_frames(name, values, self._claims.num_frames)
            self._arrays[name] = values
        return self._arrays[name]

    def _check_of_frames(self, name: str, values: np.ndarray, num_frames: int) -> None:
        """Raise ``DamageError`` for a whole array that cannot be the one about the frames of a video."""
        is_one = values.ndim == 1 and values.dtype == _FRAME_DTYPES[name]
        if name == "keyframes":
            if not is_one or np.any(np.diff(values, prepend=-1, append=num_frames) <= 0):
                raise self._damage(f"its keyframes are not ascending frame numbers below {num_frames}")
        elif not is_one or len(values) != num_frames:
            raise self._damage(f"its '{name}' is {values.dtype} {values.shape}, expected those of {num_frames} frames")
        elif values.dtype == np.float64 and not (np.abs(values) <= _MAX_SECONDS).all():
            raise self._damage("its times are not finite")

    def _check_size(self, name: str, num_bytes: int) -> None:
        """Raise ``DamageError`` if a whole array has more bytes than the rows of the sidecar need."""
        if self._claims and num_bytes > 8 * (self._claims.max_rows + 1) + _HEADER_BYTES:
            raise self._damage(f"its array '{name}' has {num_bytes} bytes, for {self._claims.max_rows} rows")

    def rows(self, name: str, numbers: Sequence[int], out: np.ndarray | None = None) -> np.ndarray:
        """Return a copy of rows of a streamed array, in the order of ``numbers``. The array must not hold records.

        The numbers are in [0, num_rows), with repeats or not. A ``range`` of step 1 is the fast case. Each row is
        checked against its digest the first time it is read since the artefact was opened. ``out``
        [shape=(len(numbers), ...)] is an array to fill, C-contiguous and of the array's dtype. Raises ``UsageError`` if
        the array holds records, or ``out`` does not fit, and ``DamageError`` if a row is missing or is not what was
        written.
        """
        stream = self._streams.get(name) or self._checked_stream(name)
        layout = stream.layout
        if layout.dtype is None:
            raise UsageError(f"'{name}' of '{printable(self.path)}' holds records: read them as such")
        out = self.memory_for(name, (len(numbers), *layout.row_shape), layout.dtype, out)
        self._check_numbers("row", numbers, layout.num_rows)
        pieces = list(_pieces(numbers, out))
        for run, target in pieces:
            self._read_rows(name, run.start, run.stop, target)
        if not stream.checked[list(numbers)].all():
            for run, target in pieces:
                self._check_rows(name, run, target, stream)
        return out

    def memory_for(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any], out: np.ndarray | None) -> np.ndarray:
        """Return ``out``, or a new array for what is read. Raises as ``checked_out`` and ``check_answer`` do."""
        if out is None and (num_bytes := math.prod(shape) * dtype.itemsize) > self._num_bytes * opener.MAX_GROWTH:
            opener.check_answer(f"'{name}' of '{printable(self.path)}'", num_bytes)
        return checked_out(name, shape, dtype, out)

    def records(self, name: str, numbers: Sequence[int]) -> Iterator[Any]:
        """Yield records (bytes-like, valid until the next one). Each is checked against its digest every time.

        Raises ``UsageError`` if the array does not hold records, and ``DamageError`` as ``rows`` does.
        """
        stream = self._streams.get(name) or self._checked_stream(name)
        if stream.layout.dtype is not None:
            raise UsageError(f"'{name}' of '{printable(self.path)}' holds rows, no records: read them as such")
        self._check_numbers("record", numbers, stream.layout.num_rows)
        wanted = zip(numbers, stream.digests[list(numbers)].tolist(), strict=True)
        pairs = zip(wanted, self._iter_records(name, numbers), strict=True)
        while few := list(_first_few(pairs)):
            for (number, digest), record in few:
                if digest64(record) != digest:
                    raise self._damage(f"record {number} is not what was written")
            for _, record in few:
                yield record

    def _check_numbers(self, what: str, numbers: Sequence[int], num_rows: int) -> None:
        if len(numbers) and not (min(numbers) >= 0 and max(numbers) < num_rows):
            number = next(number for number in numbers if not 0 <= number < num_rows)
            raise self._damage(f"{what} {number} is missing: got {num_rows} {what}s, expected more")

    def _checked_stream(self, name: str) -> _Stream:
        layout, digests = self.layout(name), self.array(name + DIGESTS)
        if digests.dtype != np.uint64 or digests.shape != (layout.num_rows,):
            raise self._damage(f"got {digests.size} digests of '{name}', expected {layout.num_rows} as rows")
        return self._streams.setdefault(name, _Stream(layout, digests, np.zeros(layout.num_rows, bool)))

    def _check_rows(self, name: str, run: range, values: np.ndarray, stream: _Stream) -> None:
        for i in np.flatnonzero(~stream.checked[run.start : run.stop]).tolist():
            if digest64(values[i : i + 1]) != stream.digests[run[i]]:
                raise self._damage(f"row {run[i]} of '{name}' is not what was written")
            stream.checked[run[i]] = True

    def _damage(self, what: object) -> DamageError:
        return DamageError(f"'{printable(self.path)}' is damaged: {what}")

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn what a damaged file raises into ``DamageError``."""
        try:
            yield
        except (OSError, ValueError, struct.error) as error:
            raise self._damage(error) from None

    def _read_into(self, start: int, memory: memoryview) -> None:
        """Read bytes from a place of the artefact on, into memory."""
        with self._errors():
            while memory:
                num_read = os.preadv(self._fd, [memory], self._start + start)
                if not num_read:
                    raise self._damage("it was cut short")
                memory, start = memory[num_read:], start + num_read

    def _read(self, start: int, size: int) -> bytes:
        """Return bytes of the file, in memory of their own: readers in other threads keep theirs."""
        if not (start >= 0 and 0 <= size <= self._num_bytes - start):
            raise self._damage(f"bytes {start} to {start + size} lie outside of it")
        try:
            data = os.pread(self._fd, size, self._start + start)
        except OSError as error:
            raise self._damage(error) from None
        if len(data) < size:  # a system call returns at most 2 GiB
            rest = bytearray(size - len(data))
            self._read_into(start + len(data), memoryview(rest))
            data += rest
        return data

    def _iter_pieces(self, all_places: np.ndarray, all_sizes: np.ndarray, max_gap: int = 0) -> Iterator[memoryview]:
        """Yield pieces of the file by their offsets and sizes, both [shape=(n,), dtype=int64, bytes].

        Neighbors are read at once, with the up to ``max_gap`` bytes between them.
        """
        places, sizes = all_places.tolist(), all_sizes.tolist()
        begin = 0
        while begin < len(places):
            start, stop = places[begin], places[begin] + sizes[begin]
            end = begin + 1
            while end < len(places) and 0 <= places[end] - stop <= max_gap:
                if places[end] + sizes[end] - start > _BLOCK_BYTES:
                    break
                stop = places[end] + sizes[end]
                end += 1
            block = memoryview(self._read(start, stop - start))
            for place, size in zip(places[begin:end], sizes[begin:end], strict=True):
                yield block[place - start : place - start + size]
            begin = end

    @abstractmethod
    def _read_contents(self) -> None:
        """Read which arrays the file has. Raise ``DamageError`` if it is not such an artefact."""

    @abstractmethod
    def _names(self) -> frozenset[str]:
        """Return the name of every array in the file: streamed, whole, and of digests."""

    @abstractmethod
    def _layout(self, name: str) -> Layout:
        """Return the layout of a streamed array that exists."""

    @abstractmethod
    def _read_array(self, name: str) -> np.ndarray:
        """Return an existing whole array, read-only, with an axis. Raise ``DamageError`` if its values changed."""

    @abstractmethod
    def _read_rows(self, name: str, start: int, stop: int, out: np.ndarray) -> None:
        """Copy rows [start, stop) without a check. The rows exist."""

    @abstractmethod
    def _iter_records(self, name: str, numbers: Sequence[int]) -> Iterator[Any]:
        """Yield the record of each number in [0, num_rows), unchecked. Raise ``DamageError`` if one is missing."""


def _open(path: Path, packed: Packed | None) -> int:
    """Open an artefact, or its pack. It is in a folder of a folder of its cache, also while it is a partial file."""
    cache, *names = str(path.absolute()).rsplit("/", 3)
    try:
        return opener.open_file(cache or "/", "/".join(names) if packed is None else pack_file(packed.pack))
    except StorageError as error:
        raise DamageError(str(error).rstrip(".")) from None
    except OSError as error:
        opener.check_still_there(cache or "/")
        raise DamageError(f"cannot read '{printable(error.filename or path)}': {error.strerror}") from None


def checked_out(name: str, shape: tuple[int, ...], dtype: np.dtype[Any], out: np.ndarray | None) -> np.ndarray:
    """Return ``out``, or a new array. Raise ``UsageError`` if the rows of array ``name`` do not fit into ``out``."""
    if out is None:
        return np.empty(shape, dtype)
    if out.shape != shape or out.dtype != dtype or not (out.flags.c_contiguous and out.flags.writeable):
        raise UsageError(
            f"out for '{name}': got {out.dtype} {out.shape}, expected a contiguous {dtype} array of shape {shape} "
            "that can be written to"
        )
    return out


def _first_few(pairs: Iterator[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
    """Yield the next pairs with their records, as many as are checked together."""
    num_bytes = 0
    for pair in islice(pairs, RECORDS_AT_ONCE):
        yield pair
        num_bytes += len(pair[1])
        if num_bytes > BYTES_AT_ONCE:
            return


def _pieces(numbers: Sequence[int], out: np.ndarray) -> Iterator[tuple[range, np.ndarray]]:
    """Yield each run of ``numbers`` with its part of ``out``."""
    at = 0
    for run in runs(numbers):
        yield run, out[at : at + len(run)]
        at += len(run)


def runs(numbers: Sequence[int]) -> Iterator[range]:
    """Yield runs of consecutive numbers: [3, 4, 5, 9, 9] gives range(3, 6), range(9, 10), range(9, 10)."""
    if isinstance(numbers, range) and numbers.step == 1:
        if numbers:
            yield numbers
        return
    start = 0
    for i in range(1, len(numbers) + 1):
        if i == len(numbers) or numbers[i] != numbers[i - 1] + 1:
            yield range(int(numbers[start]), int(numbers[i - 1]) + 1)
            start = i
