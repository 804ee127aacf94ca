"""The read side of NPZ and HDF5: files of arrays in one piece each, whose last line is a table of the arrays.

Only the table and the values are read, by offset. The rest of the file is there for ``np.load`` and HDF5's own readers.
A library that parses a file of a stranger may be ended by it, and nothing of the sort is loaded here. Nothing is shared
with other readers of the file, in this process or after a fork.

The table is a sealed line of JSON, after a newline. ``tail -n 1`` shows it::

    {"arrays": {"flow": {"offset": 128, "shape": [19, 48, 64, 2], "dtype": "<f2"},
                "pts_seconds": {"offset": 233600, "shape": [20], "dtype": "<f8", "digest": 3244421341483603138}, ...},
     "xxh3_128": "..."}

``offset`` is that of the first value, and ``digest`` the xxh3-64 of all values of an array that no other digests cover.
The records of a streamed array are a single array of bytes, one record after the other::

    frames            uint8 [shape=(num_bytes,)]
    frames.offsets    int64 [shape=(num_records + 1,)]: record i is frames[offsets[i]:offsets[i + 1]]
    frames.xxh3_64    uint64 [shape=(num_records,)]: digest of each record
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import numpy as np

from chordcache.digests import digest64, sealed_body
from chordcache.json_records import Limit, Record, parse_json
from chordcache.storage.artefacts.artefact import Artefact
from chordcache.storage.artefacts.tiers import DIGESTS, OFFSETS
from chordcache.storage.feature_rules import Layout

MAX_TABLE_BYTES = 0xFFFF
"""Largest size of a table with its newlines [bytes], which is that of the comment of a zip"""

_TAIL_BYTES = 4096
"""Size of the end of a file that is read first [bytes]. A longer table is rare"""

_MAX_ARRAY_BYTES = 1 << 60

_Size = Annotated[int, Limit(ge=0, lt=1 << 62)]


class StoredArray(Record, frozen=True):
    """The place of an array in a file, and its layout."""

    offset: _Size
    """[bytes] of the first value"""
    shape: Annotated[tuple[_Size, ...], Limit(min_length=1, max_length=32)]
    dtype: Annotated[str, Limit(pattern=r"^(<[iufc]\d\d?|\|[biu]1|\|S[1-9]\d{0,8})\Z")]
    """Name of the little-endian dtype, as NumPy writes it"""
    digest: Annotated[int, Limit(ge=0)] | None = None
    """xxh3-64 of the values, or None if those of the rows cover them"""

    @property
    def num_bytes(self) -> int:
        """Size of the values [bytes]. Raises ``ValueError`` for a dtype or a shape that no array has."""
        try:
            row_bytes = np.dtype(self.dtype).itemsize
        except TypeError as error:
            raise ValueError(error) from None
        if math.prod(size or 1 for size in self.shape) * row_bytes > _MAX_ARRAY_BYTES:
            raise ValueError(f"the impossible shape {self.shape}")
        return math.prod(self.shape) * row_bytes


class ArrayTable(Record, frozen=True):
    """The last line of a file, without its seal."""

    arrays: dict[Annotated[str, Limit(pattern=r"^[A-Za-z][A-Za-z0-9_.-]{0,250}\Z")], StoredArray]


class ArrayFile(Artefact):
    """An open ``.npz`` or ``.h5``."""

    def _read_contents(self) -> None:
        self._offsets: dict[str, np.ndarray] = {}
        """Places of the records of each array that was read, in the file instead of in the array"""
        self._stored = self._read_table()
        for key in self._stored:
            name = key.removesuffix(OFFSETS)
            if name == key:
                continue
            records = self._stored.get(name)
            if records is None or name + DIGESTS not in self._stored:
                raise self._damage(f"'{key}' belongs to no array of records")
            if records.dtype != "|u1" or len(records.shape) != 1:
                raise self._damage(f"'{name}' holds records in a way that is not used here")

    def _read_table(self) -> dict[str, StoredArray]:
        """Return the arrays of the file. None overlaps another one or the table, which all lie in the file."""
        newline = b""
        for size in (_TAIL_BYTES, MAX_TABLE_BYTES):
            size = min(size, self._num_bytes)
            _, newline, line = self._read(self._num_bytes - size, size).removesuffix(b"\n").rpartition(b"\n")
            if newline:
                break
        body = sealed_body(line) if newline else None
        if body is None:
            raise self._damage("its last line is not a table of its arrays")
        end, table = 0, self._num_bytes - len(line) - 1
        with self._errors():
            try:
                arrays = parse_json(body, ArrayTable).arrays
            except RecursionError as error:
                raise ValueError(error) from None
            for array in sorted(arrays.values(), key=lambda array: array.offset):
                if num_bytes := array.num_bytes:
                    if array.offset < end or array.offset + num_bytes > table:
                        raise ValueError(f"an array at {array.offset}, where something else is")
                    end = array.offset + num_bytes
        return arrays

    def _names(self) -> frozenset[str]:
        return frozenset(name for name in self._stored if not name.endswith(OFFSETS))

    def _layout(self, name: str) -> Layout:
        if name + OFFSETS in self._stored:
            return Layout(len(self._offsets_of(name)) - 1)
        stored = self._stored[name]
        return Layout(stored.shape[0], stored.shape[1:], np.dtype(stored.dtype))

    def _read_array(self, name: str) -> np.ndarray:
        stored = self._stored[name]
        self._check_size(name, stored.num_bytes)
        data = self._read(stored.offset, stored.num_bytes)
        if digest64(data) != stored.digest:
            raise self._damage(f"its array '{name}' is not what was written")
        return np.ndarray(stored.shape, stored.dtype, data)

    def _read_rows(self, name: str, start: int, stop: int, out: np.ndarray) -> None:
        offset = self._stored[name].offset + start * self.layout(name).row_bytes
        self._read_into(offset, out.reshape(-1).view(np.uint8).data)

    def _offsets_of(self, name: str) -> np.ndarray:
        """Return where in the file each record begins and the last one ends."""
        if name not in self._offsets:
            values, stored = self._read_array(name + OFFSETS), self._stored[name]
            if values.dtype != np.int64 or values.ndim != 1 or not values.size:
                raise self._damage(f"the offsets of '{name}' are of {values.dtype} {values.shape}")
            if values[0] != 0 or values[-1] != stored.num_bytes or (values[1:] < values[:-1]).any():
                raise self._damage(f"the offsets of '{name}' do not ascend from 0 to {stored.num_bytes}")
            stated = self._claims and self._claims.records(name)
            if stated and (np.diff(values) > stated[0]).any():
                raise self._damage(f"got a record above {stated[0]} bytes, which is more than its picture")
            self._offsets[name] = values + stored.offset
        return self._offsets[name]

    def _iter_records(self, name: str, numbers: Sequence[int]) -> Iterator[Any]:
        offsets, wanted = self._offsets_of(name), np.asarray(numbers, np.int64)
        return self._iter_pieces(offsets[wanted], offsets[wanted + 1] - offsets[wanted])
