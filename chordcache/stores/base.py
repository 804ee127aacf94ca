"""What the tiers have in common: an artefact is a file of named arrays, whose first axis is called rows.

An array is *streamed* (appended to row by row, each row with its xxh3-64 digest) or *whole* (written at once, small,
such as ``pts_seconds``, checked as a whole). A row is an array of one shape and dtype, or a record: bytes of any
length. The digests of a streamed array are the whole array ``<name>.xxh3_64`` [shape=(num_rows,), dtype=uint64].
Numbers are stored little-endian and in C order; a row's digest is that of these bytes.
"""

from __future__ import annotations

import math
import os
import re
import stat
from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from chordcache.errors import CacheWriteError, DamageError, NoSpaceError, UsageError
from chordcache.manifest import NO_SPACE, digest64, free_space, printable

Block: TypeAlias = "np.ndarray | Sequence[bytes]"
"""Some rows: [shape=(n, ...)], or n records."""

DIGESTS = ".xxh3_64"
"""Ends the name of the whole array that holds a streamed array's digests."""

KINDS = "biufcS"
"""Kinds of dtype that are stored: booleans, numbers, and bytes of one length."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,199}")
"""A legal member of a zip, link of HDF5 and key of LMDB, where it sorts behind the frame numbers."""

_RECORDS_AT_ONCE = 16
"""Records found and checked before they are handed out: between decodings of pictures each costs several times that."""

_MIN_FREE_BYTES = 32 << 20
"""A disk with less room than this is full when a library fails without saying why."""


# Writing


@dataclass
class Stream:
    """A streamed array while it is written."""

    row_shape: tuple[int, ...]
    dtype: np.dtype[Any] | None
    """None: the rows are records"""
    digests: array[int] = field(default_factory=lambda: array("Q"))


class ArtefactWriter(ABC):
    """Writes one artefact. A context manager; leaving it without ``finish`` abandons the file.

    Parameters
    ----------
    path : Path
        In a folder of its own: a writer may put more files beside it until it is left.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._streams: dict[str, Stream] = {}

    def __enter__(self) -> ArtefactWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self._close()

    def append(self, name: str, rows: Block) -> None:
        """Add rows to a streamed array; the first ones settle its row shape and dtype, also if there are none.

        Raises
        ------
        UsageError
            If the dtype is no number, boolean or bytes, or the rows differ from the first ones in shape or dtype.
        NoSpaceError, CacheWriteError
            If the disk takes no more.
        """
        block = _as_rows(name, rows)
        shape, dtype = (block.shape[1:], block.dtype) if isinstance(block, np.ndarray) else ((), None)
        stream = self._streams.get(name)
        if stream is None:
            _check_name(name)
            stream = Stream(shape, dtype)
            self._begin(name, stream)
            self._streams[name] = stream
        elif (stream.dtype is None, stream.dtype, stream.row_shape) != (dtype is None, dtype, shape):
            found, first = f"{dtype or 'records'} {shape}", f"{stream.dtype or 'records'} {stream.row_shape}"
            raise UsageError(f"rows of '{name}' are {found}, but the first ones were {first}")
        self._write(name, block)
        stream.digests.extend(_digests_of(block))

    def finish(self, arrays: Mapping[str, np.ndarray], attributes: Mapping[str, Mapping[str, Any]]) -> None:
        """Add the whole arrays, write everything to the disk, close, read back and compare.

        ``attributes`` (array name, or "" for the file, to plain data) are stored where the format has a place for them.

        Raises
        ------
        UsageError
            If an array's dtype is no number or boolean, it has no axis, or its name is taken.
        NoSpaceError, CacheWriteError
            As ``append``.
        DamageError
            If what is read back is not what was written.
        """
        for name in arrays:
            _check_name(name)
            if name in self._streams:
                raise UsageError(f"'{name}' is written row by row; give its whole array another name")
        self._finish({name: _as_whole(name, values) for name, values in arrays.items()}, attributes)

    def _lengths(self) -> dict[str, int]:
        return {name: len(stream.digests) for name, stream in self._streams.items()}

    def _digests(self) -> dict[str, np.ndarray]:
        return {name + DIGESTS: np.asarray(stream.digests, "<u8") for name, stream in self._streams.items()}

    @abstractmethod
    def _begin(self, name: str, stream: Stream) -> None:
        """Make room for a streamed array. Raise ``UsageError`` if the format has none for it."""

    @abstractmethod
    def _write(self, name: str, block: np.ndarray | list[bytes]) -> None:
        """Write rows that are what ``_begin`` was told; the caller may use their memory again."""

    @abstractmethod
    def _finish(self, arrays: Mapping[str, np.ndarray], attributes: Mapping[str, Mapping[str, Any]]) -> None:
        """Write the whole arrays and the digests; close; check what was written."""

    @abstractmethod
    def _close(self) -> None:
        """Let go of the file, finished or not."""


def row_bytes(shape: tuple[int, ...], dtype: np.dtype[Any] | None) -> int:
    """Size of a row; 0 for records, which differ in it."""
    return 0 if dtype is None else dtype.itemsize * math.prod(shape)


def write_error(path: Path, error: Exception) -> CacheWriteError:
    """What to raise where a library could not write; not every one says that the disk is full."""
    why = ""
    status = os.statvfs(path.parent)
    if status.f_bavail * status.f_frsize < _MIN_FREE_BYTES:
        why = "no space left"
    elif isinstance(error, OSError) and error.errno in NO_SPACE:
        why = os.strerror(error.errno).lower()
    if why:
        return NoSpaceError(
            f"{why} writing '{printable(path.parent)}' ({free_space(path)}); make room and run the same command"
        )
    what = getattr(error, "strerror", None) or error
    return CacheWriteError(f"cannot write '{printable(path)}': {what}; run the same command")


def check_choice(what: str, value: str, choices: Sequence[str]) -> None:
    """Raise ``UsageError`` if an option of a store is none of its choices."""
    if value not in choices:
        raise UsageError(f"unknown {what} '{value}'; valid ones are {', '.join(choices)}")


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name) or name.endswith(DIGESTS):
        raise UsageError(f"'{name}' is no name of an array: use letters, digits, '_', '-' and '.', not '{DIGESTS}'")


def _check_kind(name: str, values: np.ndarray) -> None:
    if values.dtype.kind not in KINDS or not values.dtype.itemsize:
        what = "numbers, booleans, bytes of one length and records can be stored"
        raise UsageError(f"array '{name}' has dtype {values.dtype}; {what}")


def _as_rows(name: str, rows: Block) -> np.ndarray | list[bytes]:
    if isinstance(rows, np.ndarray):
        values = _as_whole(name, rows)
        if 0 in values.shape[1:]:
            raise UsageError(f"rows of '{name}' are empty: their shape is {values.shape[1:]}")
        return values
    records = list(rows)
    if not all(isinstance(record, bytes) for record in records):
        raise UsageError(f"rows of '{name}' are neither an array nor records of bytes")
    return records


def _as_whole(name: str, values: np.ndarray) -> np.ndarray:
    _check_kind(name, values)
    if not values.ndim:
        raise UsageError(f"array '{name}' has no axis; give it one of length 1")
    return np.ascontiguousarray(values, values.dtype.newbyteorder("<"))


def _digests_of(block: np.ndarray | list[bytes]) -> list[int]:
    if isinstance(block, np.ndarray):
        return [digest64(block[i : i + 1]) for i in range(len(block))]
    return [digest64(record) for record in block]


# Reading


@dataclass(frozen=True)
class Layout:
    """What a streamed array looks like in the file."""

    num_rows: int
    row_shape: tuple[int, ...] = ()
    dtype: np.dtype[Any] | None = None
    """None: the rows are records"""


class Artefact(ABC):
    """An artefact opened for reading. Made by ``stores.registry.open_artefact``.

    Parameters
    ----------
    path : Path
        A published artefact.
    num_bytes : int
        Its size as the sidecar states it.

    Raises
    ------
    DamageError
        If it is missing, has another size or is no such file.
    """

    maps_file: bool = False
    """Whether what was read stays in the process's memory until the file is closed"""

    def __init__(self, path: Path, num_bytes: int) -> None:
        self.path = path
        self._arrays: dict[str, np.ndarray] = {}
        self._checked: dict[str, np.ndarray] = {}
        self._streamed: frozenset[str] | None = None
        try:
            status = os.stat(path)
        except OSError as error:
            raise DamageError(f"cannot read '{printable(path)}': {error.strerror}") from None
        if not stat.S_ISREG(status.st_mode):
            raise self._damage("it is not a file")
        if status.st_size != num_bytes:  # a map of a shorter file is a SIGBUS
            raise self._damage(f"it has {status.st_size} bytes, expected {num_bytes}")

    @abstractmethod
    def close(self) -> None:
        """Release the file."""

    @property
    def streamed(self) -> frozenset[str]:
        """Names of the streamed arrays."""
        if self._streamed is None:  # not a cached_property: its lock may be held where a process forks, see cache.Video
            names = self._names()
            self._streamed = frozenset(name for name in names if name + DIGESTS in names)
        return self._streamed

    @property
    def whole(self) -> frozenset[str]:
        """Names of the whole arrays, without those of digests."""
        return self._names() - self.streamed - {name + DIGESTS for name in self.streamed}

    def layout(self, name: str) -> Layout:
        """What a streamed array looks like. Raises ``DamageError``."""
        if name not in self.streamed:
            raise self._damage(f"it has no array '{name}' of rows")
        return self._layout(name)

    def num_rows(self, name: str) -> int:
        """Rows of a streamed array."""
        return self.layout(name).num_rows

    def array(self, name: str) -> np.ndarray:
        """A whole array, read-only, checked. Raises ``DamageError``."""
        if name not in self._arrays:
            if name not in self._names() - self.streamed:
                raise self._damage(f"it has no whole array '{name}'")
            self._arrays[name] = self._read_array(name)
        return self._arrays[name]

    def rows(self, name: str, numbers: Sequence[int], out: np.ndarray | None = None) -> np.ndarray:
        """Rows of a streamed array that is no array of records, copied, in the order of ``numbers``.

        Each row is checked against its digest the first time it is read since the artefact was opened.

        Parameters
        ----------
        numbers : sequence of int
            Row numbers in [0, num_rows), repeats allowed; a ``range`` of step 1 is the fast case.
        out : np.ndarray [shape=(len(numbers), ...)], optional
            C-contiguous, of the array's dtype; filled.

        Raises
        ------
        UsageError
            If the array is one of records, or ``out`` does not fit.
        DamageError
            If a row is missing or is not what was written.
        """
        layout = self.layout(name)
        if layout.dtype is None:
            raise UsageError(f"'{name}' of '{printable(self.path)}' holds records: read them as such")
        out = checked_out(name, (len(numbers), *layout.row_shape), layout.dtype, out)
        digests = self._digests(name)
        self._check_numbers("row", numbers, len(digests))
        at = 0
        for run in _runs(numbers):
            target = out[at : at + len(run)]
            self._read_rows(name, run.start, run.stop, target)
            self._check_rows(name, run, target, digests)
            at += len(run)
        return out

    def records(self, name: str, numbers: Sequence[int]) -> Iterator[Any]:
        """Records (bytes-like, valid until the next one is drawn), each checked against its digest every time.

        Raises
        ------
        UsageError
            If the array is none of records.
        DamageError
            As ``rows``.
        """
        if self.layout(name).dtype is not None:
            raise UsageError(f"'{name}' of '{printable(self.path)}' holds rows, no records: read them as such")
        digests = self._digests(name)
        self._check_numbers("record", numbers, len(digests))
        pairs = zip(numbers, self._iter_records(name, numbers), strict=True)
        while few := list(islice(pairs, _RECORDS_AT_ONCE)):
            for number, record in few:
                if digest64(record) != digests[number]:
                    raise self._damage(f"record {number} is not what was written")
            for _, record in few:
                yield record

    def _check_numbers(self, what: str, numbers: Sequence[int], num_rows: int) -> None:
        if len(numbers) and not (min(numbers) >= 0 and max(numbers) < num_rows):
            number = next(number for number in numbers if not 0 <= number < num_rows)
            raise self._damage(f"{what} {number} is missing: it holds {num_rows}")

    def _digests(self, name: str) -> np.ndarray:
        digests = self.array(name + DIGESTS)
        if name not in self._checked:
            num_rows = self._layout(name).num_rows
            if digests.dtype != np.uint64 or digests.shape != (num_rows,):
                raise self._damage(f"it holds {num_rows} rows of '{name}', but {digests.size} digests")
            self._checked[name] = np.zeros(num_rows, bool)
        return digests

    def _check_rows(self, name: str, run: range, values: np.ndarray, digests: np.ndarray) -> None:
        checked = self._checked[name]
        for i in np.flatnonzero(~checked[run.start : run.stop]).tolist():
            if digest64(values[i : i + 1]) != digests[run[i]]:
                raise self._damage(f"row {run[i]} of '{name}' is not what was written")
            checked[run[i]] = True

    def _damage(self, what: object) -> DamageError:
        return DamageError(f"'{printable(self.path)}' is damaged: {what}")

    @abstractmethod
    def _names(self) -> frozenset[str]:
        """Every array in the file, streamed, whole and of digests."""

    @abstractmethod
    def _layout(self, name: str) -> Layout:
        """Of a streamed array that is there."""

    @abstractmethod
    def _read_array(self, name: str) -> np.ndarray:
        """A whole array that is there, read-only, with an axis; raise ``DamageError`` if it is not what was written."""

    @abstractmethod
    def _read_rows(self, name: str, start: int, stop: int, out: np.ndarray) -> None:
        """Copy rows [start, stop), which are there, without a check."""

    @abstractmethod
    def _iter_records(self, name: str, numbers: Sequence[int]) -> Iterator[Any]:
        """Yield the record of each number, all in [0, num_rows), without a check; ``DamageError`` if there is none."""


def checked_out(name: str, shape: tuple[int, ...], dtype: np.dtype[Any], out: np.ndarray | None) -> np.ndarray:
    """``out`` if the rows of array ``name`` fit into it, or a new array. Raises ``UsageError`` if they do not."""
    if out is None:
        return np.empty(shape, dtype)
    if out.shape != shape or out.dtype != dtype or not (out.flags.c_contiguous and out.flags.writeable):
        raise UsageError(
            f"out for '{name}' must be a contiguous {dtype} array of shape {shape} that can be written to, "
            f"got {out.dtype} {out.shape}"
        )
    return out


def _runs(numbers: Sequence[int]) -> Iterator[range]:
    """Runs of consecutive numbers: [3, 4, 5, 9, 9] is range(3, 6), range(9, 10), range(9, 10)."""
    if isinstance(numbers, range) and numbers.step == 1:
        if numbers:
            yield numbers
        return
    start = 0
    for i in range(1, len(numbers) + 1):
        if i == len(numbers) or numbers[i] != numbers[i - 1] + 1:
            yield range(int(numbers[start]), int(numbers[i - 1]) + 1)
            start = i
