"""HDF5 tier: frames and features of one video in one file that any HDF5 reader opens.

Every array is a dataset of the root group. A streamed array is chunked. Records are variable-length uint8. Each dataset
of a whole array carries the attribute ``xxh3_64``, the digest of its values. The objects themselves use a version of
the format that has checksums. ``pts_seconds`` is the scale of axis 0 of the streamed arrays that have the same length.

Everything that can point outside the file (external storage, external and soft links, virtual datasets) is never
written. A reader refuses it before it reads anything, and also refuses a dataset that claims more than the file can
hold.
"""

from __future__ import annotations

import io
import json
import math
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from chordcache.digests import digest64
from chordcache.storage.artefacts import open_files
from chordcache.storage.artefacts.base import KINDS, Artefact, Layout, row_bytes
from chordcache.storage.artefacts.writer import ArtefactWriter, StreamedArray, check_choice, write_error

open_files.guard_forks()

COMPRESSION = ("none", "lzf", "gzip")
"""Filters that can compress chunks."""

DIGEST = "xxh3_64"
"""Name of the attribute that holds the digest of a whole array."""

TIMES = "pts_seconds"
"""Name of the whole array that is a dimension scale."""

_LIBVER = ("v110", "v110")
"""The first version of the format whose objects and chunk indices carry checksums."""

_SMALL_ROW_BYTES = 4 << 10
_SMALL_CHUNK_BYTES = 64 << 10
_RECORDS_PER_CHUNK = 256
_RECORD = h5py.vlen_dtype(np.uint8)

_REFERENCE = struct.Struct("<IQI")
"""Reference to a record: length, address of its heap, number in that heap."""

_HEAP = struct.Struct("<8sQ")
"""Header of a heap: mark and version, then the size of the heap with all that follows."""

_HEAP_MARK = b"GCOL\1\0\0\0"

_HEAP_OBJECT = struct.Struct("<H6xQ")
"""Header of an object in a heap: number and size. The object after it is padded to a multiple of 8 bytes."""

_FILTERS = {h5py.h5z.FILTER_DEFLATE: 1032, h5py.h5z.FILTER_LZF: 88}
"""Filters that a reader accepts, and how many times larger than its input their output can be."""

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
    """A writer of one ``.h5``.

    Parameters
    ----------
    path : Path
        As in ``ArtefactWriter``.
    compression : {"none", "lzf", "gzip"}
        Compression of the chunks. It has no effect on records, which are compressed already.
    chunk_frames : int
        Rows of a chunk. Rows below 4 KiB are gathered into chunks of 64 KiB.
    """

    def __init__(self, path: Path, *, compression: str = "none", chunk_frames: int = 1) -> None:
        super().__init__(path)
        check_choice("compression of HDF5", compression, COMPRESSION)
        self._compression = None if compression == "none" else compression
        self._chunk_frames = chunk_frames
        self._held: dict[str, list[Any]] = {}
        try:
            self._sink = _Sink(path, "w+")
        except OSError as error:
            raise write_error(path, error) from None
        self._file = h5py.File(self._sink, "w", libver=_LIBVER)

    def _begin(self, name: str, stream: StreamedArray) -> None:
        num_rows = self._chunk_frames
        size = row_bytes(stream.row_shape, stream.dtype)
        if stream.dtype is None:
            num_rows = _RECORDS_PER_CHUNK
        elif size < _SMALL_ROW_BYTES:
            num_rows = max(num_rows, _SMALL_CHUNK_BYTES // size)
        self._held[name] = []
        with self._errors():
            self._file.create_dataset(
                name,
                shape=(0, *stream.row_shape),
                maxshape=(None, *stream.row_shape),
                chunks=(num_rows, *stream.row_shape),
                dtype=_RECORD if stream.dtype is None else stream.dtype,
                compression=None if stream.dtype is None else self._compression,
            )

    def _write(self, name: str, block: np.ndarray | list[bytes]) -> None:
        held = self._held[name]
        held.extend(row if isinstance(row, bytes) else row.copy() for row in block)
        chunk = self._file[name].chunks[0]
        whole_chunks = len(held) // chunk * chunk  # HDF5 would compress a chunk again for each part written to it
        self._flush(name, whole_chunks)

    def _flush(self, name: str, num_rows: int) -> None:
        """Write the first ``num_rows`` of the rows that are held."""
        if not num_rows:
            return
        rows, self._held[name] = self._held[name][:num_rows], self._held[name][num_rows:]
        dataset = self._file[name]
        start = len(dataset)
        if _is_record(dataset.dtype):
            values = np.empty(num_rows, _RECORD)
            for i, row in enumerate(rows):
                values[i] = np.frombuffer(row, np.uint8)
        else:
            values = np.stack(rows)
        with self._errors():
            dataset.resize(start + num_rows, axis=0)
            # Not dataset[start:] = values, which makes one matrix of records that happen to be equally long
            space = dataset.id.get_space()
            space.select_hyperslab((start, *[0] * (values.ndim - 1)), values.shape)
            dataset.id.write(h5py.h5s.create_simple(values.shape), space, values)

    def _finish(self, arrays: Mapping[str, np.ndarray], attributes: Mapping[str, Mapping[str, Any]]) -> None:
        for name, held in self._held.items():
            self._flush(name, len(held))
        with self._errors():
            for name, values in {**arrays, **self._digests()}.items():
                dataset = self._file.create_dataset(name, data=values)
                dataset.attrs[DIGEST] = np.uint64(digest64(values))
            self._attach_times()
            for name, items in attributes.items():
                for key, value in items.items():
                    self._file[name or "/"].attrs[key] = _attribute(value)
            self._file.close()
        self._sink.close()
        open_files.check_artefact(self.path, os.path.getsize(self.path), self._lengths(), whole=arrays)

    def _attach_times(self) -> None:
        if TIMES in self._file and TIMES not in self._streams:
            times = self._file[TIMES]
            times.make_scale(TIMES)
            for name, stream in self._streams.items():
                if len(stream.digests) == len(times):
                    self._file[name].dims[0].attach_scale(times)

    def _close(self) -> None:
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


def _is_record(dtype: np.dtype[Any]) -> bool:
    return bool(h5py.check_vlen_dtype(dtype) == np.uint8)


def _attribute(value: Any) -> Any:
    """Return plain data as HDF5 stores it: numbers and text as they are, everything else as JSON."""
    if isinstance(value, bool | int | float) or (isinstance(value, str) and value.isprintable()):
        return value
    return json.dumps(value)


class Hdf5Artefact(Artefact):
    """An open ``.h5``."""

    def __init__(self, path: Path, num_bytes: int) -> None:
        super().__init__(path, num_bytes)
        self._num_bytes = num_bytes
        self._references: dict[tuple[str, int], bytes] = {}
        """References of the records, by array name and number of the first row in the chunk"""
        with self._errors():
            self._file = _open_file(path)
        try:
            with self._errors():
                self._datasets = {name: self._open_dataset(name, num_bytes) for name in self._file}
        except BaseException:  # cleanup boundary
            self.close()
            raise

    def close(self) -> None:
        """Release the file."""
        self._file.close()

    def _open_dataset(self, name: str, num_bytes: int) -> Any:
        """Open a dataset without reading it. Raise ``DamageError`` if its description is not safe to read."""
        if not isinstance(self._file.get(name, getlink=True), h5py.HardLink):
            raise self._damage(f"'{name}' is a link to somewhere else")
        dataset = self._file[name]
        if not isinstance(dataset, h5py.Dataset):
            raise self._damage(f"'{name}' is not an array")
        plan = dataset.id.get_create_plist()
        if plan.get_layout() == h5py.h5d.VIRTUAL or plan.get_external_count():
            raise self._damage(f"the values of '{name}' are in another file")
        dtype = dataset.dtype
        if not _is_record(dtype) and (dtype.kind not in KINDS or dtype != dtype.newbyteorder("<")):
            raise self._damage(f"'{name}' is of {dtype}, which is not written here")
        filters = [plan.get_filter(i)[0] for i in range(plan.get_nfilters())]
        if not set(filters) <= set(_FILTERS):
            raise self._damage(f"'{name}' is packed by a filter that is not used here")
        if _is_record(dtype) and (dataset.ndim != 1 or not dataset.chunks or filters):
            raise self._damage(f"'{name}' holds records in a way that is not used here")
        if not dataset.shape or not _fits(dataset, math.prod(_FILTERS[each] for each in filters), num_bytes):
            raise self._damage(f"'{name}' claims a shape of {dataset.shape}, which the file cannot hold")
        return dataset

    def _names(self) -> frozenset[str]:
        return frozenset(self._datasets)

    def _layout(self, name: str) -> Layout:
        dataset = self._datasets[name]
        if _is_record(dataset.dtype):
            return Layout(len(dataset))
        return Layout(len(dataset), dataset.shape[1:], dataset.dtype)

    def _read_array(self, name: str) -> np.ndarray:
        dataset = self._datasets[name]
        if _is_record(dataset.dtype):
            raise self._damage(f"'{name}' holds records without digests")
        with self._errors():
            values: np.ndarray = dataset[...]
            digest = int(dataset.attrs[DIGEST])
        if digest64(values) != digest:
            raise self._damage(f"its array '{name}' is not what was written")
        values.setflags(write=False)
        return values

    def _read_rows(self, name: str, start: int, stop: int, out: np.ndarray) -> None:
        with self._errors():
            self._datasets[name].read_direct(out, np.s_[start:stop])

    def _iter_records(self, name: str, numbers: Sequence[int]) -> Iterator[Any]:
        dataset = self._datasets[name]
        for number in numbers:
            chunk = number // dataset.chunks[0] * dataset.chunks[0]
            if (name, chunk) not in self._references:
                with self._errors():
                    self._references[name, chunk] = dataset.id.read_direct_chunk((chunk,))[1]
            yield self._record(self._references[name, chunk], number - chunk)

    def _record(self, references: bytes, place: int) -> bytes:
        """Return a record from the heap, where HDF5 stores data of no fixed size.

        This code reads the heap itself. A heap has no checksum, and HDF5 never returns from a heap whose sizes are
        damaged. Reading it here is faster, too.
        """
        try:
            length, address, wanted = _REFERENCE.unpack_from(references, _REFERENCE.size * place)
            if not length:
                return b""
            mark, heap_bytes = _HEAP.unpack(self._bytes(address, _HEAP.size))
            at, end = address + _HEAP.size, address + heap_bytes
            index = 0
            while mark == _HEAP_MARK and at < end:
                index, size = _HEAP_OBJECT.unpack(self._bytes(at, _HEAP_OBJECT.size))
                if index in (0, wanted):  # 0 is the free space
                    break
                at += _HEAP_OBJECT.size + -(-size // 8) * 8
            if index != wanted or size != length:
                raise self._damage("its heap is not what was written")
            return self._bytes(at + _HEAP_OBJECT.size, length)
        except (struct.error, OverflowError, OSError) as error:
            raise self._damage(f"its heap cannot be read: {error}") from None

    def _bytes(self, start: int, length: int) -> bytes:
        """Return bytes of the file."""
        if start + length > self._num_bytes:
            raise self._damage(f"its heap ends beyond byte {self._num_bytes}")
        return os.pread(self._file.id.get_vfd_handle(), length, start)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except _ERRORS as error:
            raise self._damage(error) from None


def _open_file(path: Path) -> Any:
    """Open a file with the locks of a plain ``h5py.File(path)``, or without locks if the locks fail."""
    try:
        return h5py.File(path, "r")  # HDF5 refuses two settings for one file in a process
    except OSError:  # the disk has no locks, or another process holds one. A published file needs none
        return h5py.File(path, "r", locking=False)


def _fits(dataset: Any, ratio: int, num_bytes: int) -> bool:
    """Return whether the stored bytes of a dataset can hold the bytes that it claims, at the best compression ratio."""
    stored = dataset.id.get_storage_size()
    claimed = dataset.nbytes
    if dataset.chunks:
        num_chunks = math.prod(-(-n // chunk) for n, chunk in zip(dataset.shape, dataset.chunks, strict=True))
        claimed = num_chunks * math.prod(dataset.chunks) * dataset.dtype.itemsize
    return bool(stored <= num_bytes and claimed <= stored * ratio)
