"""HDF5 tier: frames and features of one video in one file that any HDF5 reader opens.

Every array is a dataset of the root group. A streamed array of rows is chunked. A streamed array of records is a
contiguous dataset of all their bytes, one record after the other, beside a whole array of offsets::

    frames            uint8 [shape=(num_bytes,)], contiguous, never compressed
    frames.offsets    int64 [shape=(num_records + 1,)]: record i is frames[offsets[i]:offsets[i + 1]]
    frames.xxh3_64    uint64 [shape=(num_records,)]: digest of each record

Each dataset of a whole array carries the attribute ``xxh3_64``, the digest of its values. The objects themselves use a
version of the format that has checksums. ``pts_seconds`` is the scale of axis 0 of the streamed arrays of rows that
have the same length.

Everything that can point outside the file (external storage, external and soft links, virtual datasets) is never
written. A reader refuses it before it reads anything, and also refuses a dataset that claims more than the file can
hold.
"""

from __future__ import annotations

import io
import json
import math
import os
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from chordcache.digests import digest64
from chordcache.storage.artefacts import open_files
from chordcache.storage.artefacts.artefact import Artefact
from chordcache.storage.artefacts.claims import Layout
from chordcache.storage.artefacts.tiers import DIGESTS, KINDS, OFFSETS
from chordcache.storage.artefacts.writer import ArtefactWriter, StreamedArray, write_error

open_files.guard_forks()

DIGEST = "xxh3_64"
"""Name of the attribute that holds the digest of a whole array."""

TIMES = "pts_seconds"
"""Name of the whole array that is a dimension scale."""

_LIBVER = ("v110", "v110")
"""The first version of the format whose objects and chunk indices carry checksums."""

MAX_CHUNK_BYTES = 1 << 30
"""Largest size of a chunk [bytes]"""

_SMALL_ROW_BYTES = 4 << 10
_SMALL_CHUNK_BYTES = 64 << 10

_ERRORS = (OSError, KeyError, RuntimeError, ValueError, TypeError, OverflowError)
"""Exceptions that h5py raises for errors of HDF5."""


class _Sink(io.FileIO):
    """The file that HDF5 writes through.

    HDF5 must not see that the disk is full. If a write fails, HDF5 prints messages that nothing reads, and crashes when
    the file is closed. So every write reports success to HDF5, and the writer reads ``error`` after each call.
    """

    error: OSError | None = None

    def write(self, data: Any) -> int:
        rest = memoryview(data).cast("B")
        num_bytes = len(rest)
        with self._keep_error():
            while rest and self.error is None:
                rest = rest[super().write(rest) :]
        return num_bytes

    def truncate(self, size: int | None = None) -> int:
        with self._keep_error():
            super().truncate(size)
        return size or 0

    @contextmanager
    def _keep_error(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.error = self.error or error


class Hdf5ArtefactWriter(ArtefactWriter):
    """A writer of one ``.h5``. The records of each array go to a file beside it until their size is known.

    A chunk has ``chunk_frames`` rows. Rows below 4 KiB are gathered into chunks of 64 KiB.
    """

    def __init__(self, path: Path, *, chunk_frames: int = 1) -> None:
        super().__init__(path)
        self._chunk_frames = chunk_frames
        self._datasets: dict[str, Any] = {}
        self._held: dict[str, list[np.ndarray]] = {}
        """Rows of each array that do not fill a chunk yet"""
        self._offsets: dict[str, array[int]] = {}
        try:
            self._sink = _Sink(path, "w+")
        except OSError as error:
            raise write_error(path, error) from None
        self._file = h5py.File(self._sink, "w", libver=_LIBVER)

    def _begin(self, name: str, stream: StreamedArray) -> None:
        if stream.dtype is None:
            with self._errors():
                self._add_spool(name)
            self._offsets[name] = array("q", [0])
            return
        num_rows = self._chunk_frames
        size = stream.dtype.itemsize * math.prod(stream.row_shape)
        if size < _SMALL_ROW_BYTES:
            num_rows = max(num_rows, _SMALL_CHUNK_BYTES // size)
        num_rows = max(1, min(num_rows, MAX_CHUNK_BYTES // max(1, size)))
        with self._errors():
            self._held[name] = []
            self._datasets[name] = self._file.create_dataset(
                name,
                shape=(0, *stream.row_shape),
                maxshape=(None, *stream.row_shape),
                chunks=(num_rows, *stream.row_shape),
                dtype=stream.dtype,
            )

    def _write(self, name: str, block: np.ndarray | list[bytes]) -> None:
        if isinstance(block, np.ndarray):
            held, chunk_rows = self._held[name], self._datasets[name].chunks[0]
            held.extend(row.copy() for row in block)
            self._flush(name, len(held) // chunk_rows * chunk_rows)
            return
        for record in block:
            with self._errors():
                self._spools[name].append(record)
            self._offsets[name].append(self._offsets[name][-1] + len(record))

    def _flush(self, name: str, num_rows: int) -> None:
        """Write the first ``num_rows`` of the rows that are held."""
        if not num_rows:
            return
        values, dataset = np.stack(self._held[name][:num_rows]), self._datasets[name]
        del self._held[name][:num_rows]
        start = len(dataset)
        with self._errors():
            dataset.resize(start + num_rows, axis=0)
            dataset.id.write(*_selection(dataset.id, start, values), values)

    def _finish(self, arrays: Mapping[str, np.ndarray], attributes: Mapping[str, Mapping[str, Any]]) -> None:
        for name, held in self._held.items():
            self._flush(name, len(held))
        for name in self._offsets:
            self._add_records(name)
        offsets = {name + OFFSETS: np.asarray(ends, "<i8") for name, ends in self._offsets.items()}
        with self._errors():
            for name, values in {**arrays, **offsets, **self._digests()}.items():
                dataset = self._file.create_dataset(name, data=values)
                dataset.attrs[DIGEST] = np.uint64(digest64(values))
            if TIMES in self._file and TIMES not in self._streams:
                times = self._file[TIMES]
                times.make_scale(TIMES)
                for dataset in self._datasets.values():
                    if len(dataset) == len(times):
                        dataset.dims[0].attach_scale(times)
            for name, items in attributes.items():
                for key, value in items.items():
                    self._file[name or "/"].attrs[key] = _attribute(value)
            self._file.close()
        self._sink.close()
        open_files.check_artefact(self.path, os.path.getsize(self.path), self._lengths(), whole=arrays)

    def _add_records(self, name: str) -> None:
        """Copy the spool of an array into the file."""
        start, size = 0, self._offsets[name][-1]
        with self._errors():
            dataset = self._file.create_dataset(name, shape=(size,), dtype=np.uint8).id
        for block in self._spools[name].blocks():
            values = np.frombuffer(block, np.uint8)
            with self._errors():
                dataset.write(*_selection(dataset, start, values), values)
            start += len(values)
        self._spools[name].close()

    def _close(self) -> None:
        super()._close()
        with suppress(*_ERRORS):  # the file is abandoned, or already closed
            self._file.close()
        self._sink.close()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except _ERRORS as error:
            raise write_error(self.path, self._sink.error or error) from None
        if self._sink.error is not None:
            raise write_error(self.path, self._sink.error)


def _attribute(value: Any) -> Any:
    """Return plain data as HDF5 stores it: numbers and text as they are, everything else as JSON."""
    if isinstance(value, bool | int | float) or (isinstance(value, str) and value.isprintable()):
        return value
    return json.dumps(value)


class Hdf5Artefact(Artefact):
    """An open ``.h5``.

    Its datasets have h5py's low-level interface: ``h5py.Dataset`` takes several times as long to open and to read.
    """

    _ERRORS = _ERRORS

    def _read_contents(self) -> None:
        self._offsets: dict[str, np.ndarray] = {}
        """Places of the records of each array that was read, in the file instead of in the array"""
        with self._errors():
            self._file = _open_file(self.path)
        try:
            with self._errors():
                # HDF5 takes a name, and follows links
                if not os.path.sameopenfile(self._fd, self._file.id.get_vfd_handle()):
                    raise self._damage("another file took its place while it was opened")
                names = [name.decode() for name in self._file.id]
                self._stored = {name: self._open_array(name) for name in names}
            self._starts = self._find_records()
        except BaseException:  # cleanup boundary
            self.close()
            raise

    def close(self) -> None:
        """Release the file."""
        self._file.close()
        super().close()

    def _open_array(self, name: str) -> Any:
        """Open a dataset without reading it. Raise ``DamageError`` if its description is not safe to read."""
        key = name.encode()
        if self._file.id.links.get_info(key).type != h5py.h5l.TYPE_HARD:
            raise self._damage(f"'{name}' is a link to somewhere else")
        dataset = h5py.h5o.open(self._file.id, key)
        if not isinstance(dataset, h5py.h5d.DatasetID):
            raise self._damage(f"'{name}' is not an array")
        plan = dataset.get_create_plist()
        if plan.get_layout() == h5py.h5d.VIRTUAL or plan.get_external_count():
            raise self._damage(f"the values of '{name}' are in another file")
        dtype = dataset.dtype
        if dtype.kind not in KINDS or dtype != dtype.newbyteorder("<"):
            raise self._damage(f"'{name}' is of {dtype}, which is not written here")
        if plan.get_nfilters():
            raise self._damage(f"'{name}' is packed by filters, which are not used here")
        shape = padded = dataset.shape
        if plan.get_layout() == h5py.h5d.CHUNKED:
            chunk = plan.get_chunk()
            padded = tuple(-(-n // size) * size for n, size in zip(shape, chunk, strict=True))
            if math.prod(chunk) * dtype.itemsize > MAX_CHUNK_BYTES:
                raise self._damage(f"'{name}' has chunks of {chunk}, which are too large")
        stored = dataset.get_storage_size()
        if not shape or stored > self._num_bytes or math.prod(padded) * dtype.itemsize > stored:
            raise self._damage(f"'{name}' claims a shape of {shape}, which the file cannot hold")
        return dataset

    def _find_records(self) -> dict[str, int]:
        """Return where each array of records begins in the file. Raise ``DamageError`` if it is not within the file."""
        starts = {}
        for key in self._stored:
            name = key.removesuffix(OFFSETS)
            if name == key:
                continue
            records = self._stored.get(name)
            if records is None or name + DIGESTS not in self._stored:
                raise self._damage(f"'{key}' belongs to no array of records")
            starts[name] = records.get_offset() or 0  # no offset: of no bytes, or not in one piece
            size = math.prod(records.shape)
            is_plain = records.dtype == np.uint8 and len(records.shape) == 1 and bool(starts[name]) == bool(size)
            if not is_plain or starts[name] + size > self._num_bytes:
                raise self._damage(f"'{name}' holds records in a way that is not used here")
        return starts

    def _names(self) -> frozenset[str]:
        return frozenset(self._stored) - {name + OFFSETS for name in self._starts}

    def _layout(self, name: str) -> Layout:
        if name in self._starts:
            return Layout(len(self._offsets_of(name)) - 1)
        stored = self._stored[name]
        return Layout(stored.shape[0], stored.shape[1:], stored.dtype)

    def _read_array(self, name: str) -> np.ndarray:
        stored = self._stored[name]
        self._check_size(name, math.prod(stored.shape) * stored.dtype.itemsize)
        values = np.empty(stored.shape, stored.dtype)
        digest = np.empty((), np.uint64)
        with self._errors():
            stored.read(h5py.h5s.ALL, h5py.h5s.ALL, values)
            h5py.h5a.open(stored, DIGEST.encode()).read(digest)
        if digest64(values) != digest:
            raise self._damage(f"its array '{name}' is not what was written")
        values.setflags(write=False)
        return values

    def _spans(self, name: str, numbers: Sequence[int]) -> list[tuple[int, int]]:
        return [(0, self._num_bytes)]  # HDF5 itself reads the file

    def _read_rows(self, name: str, start: int, stop: int, out: np.ndarray) -> None:
        with self._errors():
            dataset = self._stored[name]
            dataset.read(*_selection(dataset, start, out), out)

    def _offsets_of(self, name: str) -> np.ndarray:
        """Return where in the file each record begins and the last one ends."""
        if name not in self._offsets:
            values = self._read_array(name + OFFSETS)
            size = self._stored[name].shape[0]
            if values.dtype != np.int64 or values.ndim != 1 or not values.size:
                raise self._damage(f"the offsets of '{name}' are of {values.dtype} {values.shape}")
            if values[0] != 0 or values[-1] != size or (values[1:] < values[:-1]).any():
                raise self._damage(f"the offsets of '{name}' do not ascend from 0 to {size}")
            most = self._claims and self._claims.max_record_bytes
            if name == "frames" and most and (np.diff(values) > most).any():
                raise self._damage(f"got a record above {most} bytes, which is more than its picture")
            self._offsets[name] = values + self._starts[name]
        return self._offsets[name]

    def _iter_records(self, name: str, numbers: Sequence[int]) -> Iterator[Any]:
        offsets, wanted = self._offsets_of(name), np.asarray(numbers, np.int64)
        return self._iter_pieces(offsets[wanted], offsets[wanted + 1] - offsets[wanted])


def _open_file(path: Path) -> Any:
    """Open a file with the locks of a plain ``h5py.File(path)``, or without locks if the locks fail."""
    try:
        return h5py.File(path, "r")  # HDF5 refuses two settings for one file in a process
    except OSError:  # the disk has no locks, or another process holds one. A published file needs none
        return h5py.File(path, "r", locking=False)


def _selection(dataset: Any, start: int, values: np.ndarray) -> tuple[Any, Any]:
    """Return the spaces, in memory and in a dataset, of values that are or shall be rows from ``start`` on."""
    space = dataset.get_space()
    space.select_hyperslab((start, *[0] * (values.ndim - 1)), values.shape)
    return h5py.h5s.create_simple(values.shape), space
