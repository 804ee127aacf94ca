"""The writer of the HDF5 tier: frames and features of one video in one file that any HDF5 reader opens.

Every array is a contiguous dataset of the root group. HDF5 only makes the structure, and states where the values are.
These are written there after it has closed the file, and the table of ``array_file`` behind its end.

``pts_seconds`` is the scale of axis 0 of the streamed arrays of rows that have the same length.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import h5py

from chordcache.storage.artefacts.array_writer import ArrayFileWriter, Values

TIMES = "pts_seconds"
"""Name of the whole array that is a dimension scale."""

_LIBVER = ("v110", "v110")
"""Versions of the format to write. Before 1.10, an attribute has at most 64 KiB"""

_ERRORS = (OSError, KeyError, RuntimeError, ValueError, TypeError, OverflowError)
"""Exceptions that h5py raises for errors of HDF5."""


class _Sink(io.FileIO):
    """The file that HDF5 writes through.

    HDF5 must not see that the disk is full. If a write fails, HDF5 prints messages that nothing reads, and crashes when
    the file is closed. So every write reports success to HDF5, and the writer looks at ``error`` afterwards.
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


class Hdf5ArtefactWriter(ArrayFileWriter):
    """A writer of one ``.h5``."""

    def _write_file(self, arrays: Mapping[str, Values], attributes: Mapping[str, Mapping[str, Any]]) -> None:
        with _Sink(self.path, "w+") as sink:
            try:
                with h5py.File(sink, "w", libver=_LIBVER) as file:
                    offsets = {name: _create(file, name, values) for name, values in arrays.items()}
                    self._describe(file, arrays, attributes)
            except _ERRORS as error:
                raise sink.error or OSError(str(error)) from None
            if sink.error is not None:
                raise sink.error
        with open(self.path, "r+b") as target:
            for name, values in arrays.items():
                target.seek(offsets[name])
                for block in values.blocks:
                    target.write(block)
            target.seek(0, io.SEEK_END)
            target.write(self._table(arrays, offsets))

    def _describe(
        self, file: h5py.File, arrays: Mapping[str, Values], attributes: Mapping[str, Mapping[str, Any]]
    ) -> None:
        """Write what only other programs read."""
        if TIMES in arrays and TIMES not in self._streams:
            times = file[TIMES]
            times.make_scale(TIMES)
            for name, stream in self._streams.items():
                if stream.dtype is not None and len(stream.digests) == len(times):
                    file[name].dims[0].attach_scale(times)
        for name, items in attributes.items():
            for key, value in items.items():
                file[name or "/"].attrs[key] = _attribute(value)


def _create(file: h5py.File, name: str, values: Values) -> int:
    """Make a dataset without its values. Return the place of the first one in the file."""
    plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plan.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    plan.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    dataset = file.create_dataset(name, values.shape, values.dtype, dcpl=plan)
    return dataset.id.get_offset() or 0  # none: it has no values


def _attribute(value: Any) -> Any:
    """Return plain data as HDF5 stores it: numbers and text as they are, everything else as JSON."""
    if isinstance(value, bool | int | float) or (isinstance(value, str) and value.isprintable()):
        return value
    return json.dumps(value)
