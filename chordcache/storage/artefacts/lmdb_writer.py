"""The writer of the LMDB tier: one sealed environment per video, with one record or one raw picture per frame.

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
xxh3-64 of these pages and numbers, the size of a page, and the count of these pages. ``lmdb_reader`` checks them.

Sealed means: published, and never written again. Readers need neither locks nor LMDB, whose tools open the file too.
"""

from __future__ import annotations

import os
import struct
from array import array
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lmdb
import numpy as np

from chordcache import progress
from chordcache.digests import digest64
from chordcache.errors import UsageError
from chordcache.storage.artefacts import npy
from chordcache.storage.artefacts.lmdb_pages import FOOTER
from chordcache.storage.artefacts.lmdb_reader import DIGEST_BYTES, SHAPE, SIZES, STARTS, STREAM
from chordcache.storage.artefacts.writer import ArtefactWriter, StreamedArray, write_error
from chordcache.storage.feature_rules import first_of_chain

_FIRST_MAP_BYTES = 1 << 28
"""Address space that is reserved first, not disk space [bytes]. It is doubled when a batch does not fit."""

_BATCH_BYTES = 4 << 20
"""Size of the rows that are written in one transaction [bytes]. A larger batch is not faster, and stays in the heap."""

_PAGE_HEADER = struct.Struct("<10xHI")
"""Flags of a page and, for a page that holds a value, the number of pages that the value takes."""

_HOLDS_VALUE = 4
"""Flag of a page that holds a value, LMDB's P_OVERFLOW."""


class LmdbArtefactWriter(ArtefactWriter):
    """A writer of one environment.

    ``gop`` records at a distance of ``stride`` are stored as one value. Values begin at a page, and the rest of the
    last page is empty.
    """

    def __init__(self, path: Path, *, gop: int = 1, stride: int = 1) -> None:
        super().__init__(path)
        self._gop, self._stride = gop, stride
        self._chains: dict[int, list[bytes]] = {}
        """Records of the chains that are not complete, by the first one. Without chains, each record is one"""
        self._sizes, self._starts = array("L"), array("L")
        self._batch: list[tuple[bytes, bytes]] = []
        self._batch_bytes = 0
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
            start = first_of_chain(len(self._sizes), self._gop, self._stride)
            self._chains.setdefault(start, []).append(value)
            self._sizes.append(len(value))
            self._starts.append(start)
            if len(self._sizes) % (self._gop * self._stride) == 0:
                self._add_chains()

    def _finish(self, arrays: Mapping[str, np.ndarray], attributes: Mapping[str, Mapping[str, Any]]) -> None:
        values = {**arrays, **self._digests()}
        stream = self._streams.get(STREAM)
        self._add_chains()
        if self._gop > 1:
            values |= {SIZES: np.array(self._sizes, "<u4"), STARTS: np.array(self._starts, "<u4")}
        if stream is not None and stream.dtype is not None:
            values[SHAPE] = np.array(stream.row_shape, "<i8")
        for name in sorted(values):  # LMDB appends in the order of keys only
            data = npy.dumps(values[name])
            self._add_value(name.encode(), digest64(data).to_bytes(DIGEST_BYTES, "little") + data)
        self._write_batch()
        page_bytes, num_pages = self._environment.stat()["psize"], self._environment.info()["last_pgno"] + 1
        self._close()
        with self._errors():
            _append_tree(self.path, page_bytes, num_pages)

    def _close(self) -> None:
        self._environment.close()

    def _open(self) -> Any:
        with self._errors():
            return lmdb.open(str(self.path), subdir=False, lock=False, sync=False, map_size=self._map_bytes)

    def _add_chains(self) -> None:
        for start, records in self._chains.items():
            self._add_value(start.to_bytes(4, "big"), b"".join(records))
        self._chains.clear()

    def _add_value(self, key: bytes, value: bytes) -> None:
        self._batch.append((key, value))
        self._batch_bytes += len(value)
        if self._batch_bytes >= _BATCH_BYTES:
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


def _append_tree(path: Path, page_bytes: int, num_pages: int) -> None:
    """Write the footer that readers check behind the pages. Raises ``OSError``."""
    with open(path, "r+b") as file:
        listed, pages, number = array("Q"), [], 0
        while number < num_pages:
            page = os.pread(file.fileno(), page_bytes, number * page_bytes)
            flags, num_of_value = _PAGE_HEADER.unpack_from(page)
            if flags & _HOLDS_VALUE:
                number += num_of_value
            else:
                listed.append(number)
                pages.append(page)
                number += 1
        numbers = np.asarray(listed, "<u8").tobytes()
        digest = digest64(b"".join([*pages, numbers]))
        file.seek(page_bytes * num_pages)
        file.truncate()
        file.write(numbers + FOOTER.pack(digest, page_bytes, len(pages)))
        file.flush()
        os.fsync(file.fileno())
