"""The common part of the writers of artefacts."""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, TypeAlias

import numpy as np

from chordcache.digests import digest64
from chordcache.errors import StorageError, UsageError, cannot_write, printable
from chordcache.storage.artefacts.open_files import check_artefact
from chordcache.storage.artefacts.tiers import DIGESTS, KINDS, OFFSETS, tier_of
from chordcache.storage.atomic import NO_SPACE, no_space

Block: TypeAlias = "np.ndarray | Sequence[bytes]"
"""Rows [shape=(n, ...)], or n records."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,199}")
"""Pattern of a legal name of a zip member, an HDF5 link and an LMDB key that sorts behind the frame numbers."""

_MIN_FREE_BYTES = 32 << 20
"""Free space under which a disk counts as full if a library fails without a reason [bytes]."""


@dataclass
class StreamedArray:
    """A streamed array during writing."""

    row_shape: tuple[int, ...]
    dtype: np.dtype[Any] | None
    """Dtype of the rows, or None if the rows are records"""
    digests: array[int] = field(default_factory=lambda: array("Q"))


class ArtefactWriter(ABC):
    """A writer of one artefact. It is a context manager. Leaving it without ``finish`` abandons the file.

    The file must be in a folder of its own, because a writer may put more files beside it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._streams: dict[str, StreamedArray] = {}

    def __enter__(self) -> ArtefactWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self._close()

    def append(self, name: str, rows: Block) -> None:
        """Add rows to a streamed array. The first rows fix its row shape and dtype, even if there are zero of them.

        Raises ``UsageError`` if the dtype is not a number, boolean or bytes, or the rows differ from the first ones in
        shape or dtype, and ``StorageError`` if the disk cannot take the rows.
        """
        block = _as_rows(name, rows)
        shape, dtype = (block.shape[1:], block.dtype) if isinstance(block, np.ndarray) else ((), None)
        stream = self._streams.get(name)
        if stream is None:
            _check_name(name)
            stream = StreamedArray(shape, dtype)
            self._begin(name, stream)
            self._streams[name] = stream
        elif (stream.dtype is None, stream.dtype, stream.row_shape) != (dtype is None, dtype, shape):
            given, first = f"{dtype or 'records'} {shape}", f"{stream.dtype or 'records'} {stream.row_shape}"
            raise UsageError(f"rows of '{name}' are {given}, but the first ones were {first}")
        self._write(name, block)
        rows_as_buffers = block if isinstance(block, list) else (block[i : i + 1] for i in range(len(block)))
        stream.digests.extend(map(digest64, rows_as_buffers))

    def finish(self, arrays: Mapping[str, np.ndarray], attributes: Mapping[str, Mapping[str, Any]]) -> None:
        """Add the whole arrays, write everything to the disk, close, read back and compare.

        ``attributes`` (array name, or "" for the file, to plain data) are stored if the format has a place for them.
        Raises as ``append`` does, ``UsageError`` also if an array has no axis, or its name is taken, and
        ``DamageError`` if what is read back is not what was written.
        """
        for name in arrays:
            _check_name(name)
            if name in self._streams:
                raise UsageError(f"'{name}' is written row by row; give its whole array another name")
        self._finish({name: _as_whole(name, values) for name, values in arrays.items()}, attributes)
        num_rows = {name: len(stream.digests) for name, stream in self._streams.items()}
        check_artefact(self.path, self.path.stat().st_size, num_rows, whole=arrays)

    def _digests(self) -> dict[str, np.ndarray]:
        return {name + DIGESTS: np.asarray(stream.digests, "<u8") for name, stream in self._streams.items()}

    @abstractmethod
    def _begin(self, name: str, stream: StreamedArray) -> None:
        """Make room for a streamed array. Raise ``UsageError`` if the format cannot store it."""

    @abstractmethod
    def _write(self, name: str, block: np.ndarray | list[bytes]) -> None:
        """Write rows of the shape and dtype given to ``_begin``. The caller may reuse their memory afterwards."""

    @abstractmethod
    def _finish(self, arrays: Mapping[str, np.ndarray], attributes: Mapping[str, Mapping[str, Any]]) -> None:
        """Write the whole arrays and the digests, and close the file."""

    @abstractmethod
    def _close(self) -> None:
        """Release the files, finished or not."""


def create_artefact(path: Path, **options: Any) -> ArtefactWriter:
    """Begin an artefact in the tier that the suffix names, ``.lmdb``, ``.npz`` or ``.h5``, in a folder of its own.

    The options are keyword arguments of the tier's writer. Raises ``UsageError`` if no such tier or option exists, and
    ``StorageError`` if the disk cannot take the file.
    """
    writer: ArtefactWriter = resolve_name(tier_of(path).writer)(path, **options)
    return writer


def write_error(path: Path, error: Exception) -> StorageError:
    """Return the error to raise if a library cannot write. Not every library says that the disk is full."""
    status = os.statvfs(path.parent)
    if status.f_bavail * status.f_frsize < _MIN_FREE_BYTES:
        return no_space("no space left writing", path.parent)
    if isinstance(error, OSError) and error.errno in NO_SPACE:
        return no_space(f"{os.strerror(error.errno).lower()} writing", path.parent)
    what = getattr(error, "strerror", None) or error
    return cannot_write(f"cannot write '{printable(path)}': {what}; run the same command")


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name) or name.endswith((DIGESTS, OFFSETS)):
        what = f"use letters, digits, '_', '-' and '.', and neither '{DIGESTS}' nor '{OFFSETS}' at the end"
        raise UsageError(f"'{name}' is not a name for an array: {what}")


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
    if values.dtype.kind not in KINDS or not values.dtype.itemsize:
        what = "numbers, booleans, bytes of one length and records can be stored"
        raise UsageError(f"array '{name}' has dtype {values.dtype}; {what}")
    if not values.ndim:
        raise UsageError(f"array '{name}' has no axis; give it one of length 1")
    return np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
