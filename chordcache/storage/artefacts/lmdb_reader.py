"""The read side of the LMDB tier. ``lmdb_writer`` describes the file, and writes it.

The file is read by offset, without a map. A map of a file that is cut short ends the process, and so does liblmdb for
a page that is not as it expects. Nothing is shared with other readers of the file, in this process or after a fork.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from chordcache.digests import digest64
from chordcache.storage.artefacts import npy
from chordcache.storage.artefacts.artefact import BYTES_AT_ONCE, Artefact
from chordcache.storage.artefacts.lmdb_pages import find_values
from chordcache.storage.artefacts.tiers import DIGESTS
from chordcache.storage.feature_rules import Layout

STREAM = "frames"
"""Name of the only streamed array."""

SHAPE = f"{STREAM}.shape"
SIZES = f"{STREAM}.sizes"
STARTS = f"{STREAM}.starts"

DIGEST_BYTES = 8
"""Size of the digest before a whole array [bytes]"""

_GAP_BYTES = 8 << 10
"""Largest gap between neighboring records [bytes]. To read that much takes less time than another call"""

_MAX_CHAINS = 16
"""Number of chains that are kept while records of them are read"""


class LmdbArtefact(Artefact):
    """An environment that was published."""

    def _read_contents(self) -> None:
        self._starts: np.ndarray | None = None
        """First record of the chain of each record, or None if each record is a value of its own"""
        self._stream = Layout(0)
        with self._errors():
            self._values = find_values(self._read, self._num_bytes, self._claims and self._claims.max_rows)
        claims, num_chains = self._claims, len(self._values.numbers)
        record_bytes, gop = (claims and claims.records(STREAM)) or (self._num_bytes, 1)
        if (largest := self._values.sizes.max(initial=0)) > record_bytes * gop:
            raise self._damage(
                f"got a record of {largest} bytes, expected at most {record_bytes * gop} for its picture"
            )
        if claims and STARTS in self._values.named and claims.max_rows > gop * num_chains:
            raise self._damage(f"got {num_chains} chains for {claims.max_rows} records, expected chains of {gop}")
        self._describe_stream()
        stored = self._values.numbers  # ascending
        self._has_all_records = self._starts is None and len(stored) > 0 and int(stored[-1]) == len(stored) - 1
        """True if the number of each record is its position among all"""

    def _describe_stream(self) -> None:
        """Set the layout of the records. There are as many as digests."""
        num_values = len(self._values.numbers)
        digests, shape, sizes, starts = (
            self._read_array(name) if name in self._values.named else None
            for name in (STREAM + DIGESTS, SHAPE, SIZES, STARTS)
        )
        if digests is None:
            if num_values:
                raise self._damage("digests of rows are missing")
            return
        self._arrays[STREAM + DIGESTS] = digests
        num_rows = num_values
        if sizes is not None and starts is not None:
            self._read_chains(sizes, starts)
            num_rows = len(sizes)
        self._stream = Layout(num_rows)
        if shape is not None:
            row_shape = tuple(shape.ravel().tolist())
            if self._starts is not None or (self._values.sizes != math.prod(row_shape)).any() or min(row_shape) < 0:
                raise self._damage(f"its rows do not have the shape {row_shape}")
            self._stream = Layout(num_rows, row_shape, np.dtype(np.uint8))

    def _read_chains(self, sizes: np.ndarray, starts: np.ndarray) -> None:
        """Find the place of each record in its chain. Raise ``DamageError`` if the arrays do not describe chains."""
        numbers = np.arange(len(starts))
        if not (sizes.dtype == starts.dtype == np.uint32 and sizes.shape == starts.shape == (len(starts),)):
            raise self._damage("sizes and starts of records: got other types or lengths than those of one for each row")
        if np.any(starts > numbers) or np.any(starts[starts.astype(np.int64)] != starts):
            raise self._damage("starts of records: got a chain that does not begin with its first record")
        order = np.argsort(starts, kind="stable")
        ends = np.cumsum(sizes[order], dtype=np.int64)
        is_first = starts[order] == order
        if (num_chains := np.count_nonzero(is_first)) != len(self._values.numbers):
            raise self._damage(f"got {len(self._values.numbers)} chains of records, expected {num_chains}")
        base = np.repeat((ends - sizes[order])[is_first], np.diff(np.flatnonzero(np.append(is_first, True))))
        self._starts, self._ends = starts, np.empty(len(starts), np.int64)
        self._ends[order] = ends - base
        self._begins = self._ends - sizes

    def _names(self) -> frozenset[str]:
        stream = {STREAM} if STREAM + DIGESTS in self._values.named else set()
        return frozenset((stream | self._values.named.keys()) - {SHAPE, SIZES, STARTS})

    def _layout(self, name: str) -> Layout:
        return self._stream

    def _read_array(self, name: str) -> np.ndarray:
        self._check_size(name, self._values.named[name][1])
        value = self._read(*self._values.named[name])
        data = value[DIGEST_BYTES:]
        if digest64(data).to_bytes(DIGEST_BYTES, "little") != value[:DIGEST_BYTES]:
            raise self._damage(f"its array '{name}' is not what was written")
        try:
            return npy.loads(data)
        except ValueError as error:
            raise self._damage(f"its array '{name}' is {error}") from None

    def _places(self, numbers: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Return the offset and the size of some records [bytes]."""
        wanted, values = np.asarray(numbers, np.int64), self._values
        if not self._has_all_records:
            positions = np.searchsorted(values.numbers, wanted)
            is_there = values.numbers[np.minimum(positions, len(values.numbers) - 1)] == wanted
            if not is_there.all():
                raise self._damage(f"record {wanted[np.argmin(is_there)]} is missing")
            wanted = positions
        return values.places[wanted], values.sizes[wanted]

    def _read_rows(self, name: str, start: int, stop: int, out: np.ndarray) -> None:
        places, _ = self._places(range(start, stop))
        for row, place in zip(out.reshape(len(out), -1), places.tolist(), strict=True):
            self._read_into(place, row.data)

    def _iter_records(self, name: str, numbers: Sequence[int]) -> Iterator[Any]:
        if self._starts is not None:
            return self._iter_cut(self._starts[list(numbers)].tolist(), numbers)
        return self._iter_pieces(*self._places(numbers), _GAP_BYTES)

    def _iter_cut(self, firsts: Sequence[int], numbers: Sequence[int]) -> Iterator[memoryview]:
        """Yield records of chains, of which ``firsts`` are the first records. Each chain is read once if they follow.

        A record is shorter if its chain is too short.
        """
        read: dict[int, memoryview] = {}
        for first, number in zip(firsts, numbers, strict=True):
            if first not in read:
                if len(read) == _MAX_CHAINS or sum(map(len, read.values())) > BYTES_AT_ONCE:
                    read.clear()
                (read[first],) = self._iter_pieces(*self._places([first]))
            yield read[first][self._begins[number] : self._ends[number]]
