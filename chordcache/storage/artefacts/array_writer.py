"""The writer of the NPZ tier, and what it shares with that of HDF5: files that end with a table, see ``array_file``.

A ``.npz`` is a zip file that ``np.load`` opens. An array is a member ``<name>.npy``, uncompressed, with its values in
one piece. The table is the comment of the zip.
"""

from __future__ import annotations

import os
import zipfile
from abc import abstractmethod
from array import array
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from chordcache.digests import digest64
from chordcache.errors import UsageError, printable
from chordcache.storage.artefacts import npy
from chordcache.storage.artefacts.array_file import MAX_TABLE_BYTES, ArrayTable, StoredArray
from chordcache.storage.artefacts.tiers import OFFSETS
from chordcache.storage.artefacts.writer import ArtefactWriter, StreamedArray, write_error
from chordcache.storage.sealed_json import seal

_COPY_BYTES = 1 << 20
"""Size of the pieces in which a spool is copied [bytes]."""


class Spool:
    """A file beside an artefact, for rows whose number is not known yet.

    It is not buffered: a failed write raises at once, not at the close.
    """

    def __init__(self, path: Path) -> None:
        self._file = open(path, "w+b", buffering=0)  # noqa: SIM115 -- closed by close

    def append(self, data: bytes | memoryview) -> None:
        """Write bytes at the end. Raises ``OSError``."""
        rest = memoryview(data)
        while rest:
            rest = rest[self._file.write(rest) :]

    def blocks(self) -> Iterator[bytes]:
        """Yield all bytes, a few at a time, and remove the file. Raises ``OSError``."""
        self._file.seek(0)
        while block := self._file.read(_COPY_BYTES):
            yield block
        self.close()

    def close(self) -> None:
        """Remove the file, unless this was done before."""
        if not self._file.closed:
            self._file.close()
            os.unlink(self._file.name)


class Values(NamedTuple):
    """An array to write."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    blocks: Iterable[Any]
    """All its bytes, in order"""
    digest: int | None = None


class ArrayFileWriter(ArtefactWriter):
    """A writer of a file of arrays. The rows of each array go to a file beside it until their number is known."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._spools: dict[str, Spool] = {}
        self._ends: dict[str, array[int]] = {}
        """Start of each record of an array of records, and the end of the last one"""

    def _begin(self, name: str, stream: StreamedArray) -> None:
        with self._errors():
            self._spools[name] = Spool(self.path.with_name(f"{self.path.name}.{len(self._spools)}.spool"))
        if stream.dtype is None:
            self._ends[name] = array("q", [0])

    def _write(self, name: str, block: np.ndarray | list[bytes]) -> None:
        with self._errors():
            if isinstance(block, np.ndarray):
                self._spools[name].append(block.reshape(-1).view(np.uint8).data)
                return
            for record in block:
                self._spools[name].append(record)
                self._ends[name].append(self._ends[name][-1] + len(record))

    def _finish(self, arrays: Mapping[str, np.ndarray], attributes: Mapping[str, Mapping[str, Any]]) -> None:
        offsets = {name + OFFSETS: np.asarray(ends, "<i8") for name, ends in self._ends.items()}
        values = {name: self._streamed(name, stream) for name, stream in self._streams.items()}
        for name, whole in {**arrays, **offsets, **self._digests()}.items():
            values[name] = Values(whole.shape, whole.dtype, [whole.tobytes()], digest64(whole))
        with self._errors():
            self._write_file(values, attributes)

    def _streamed(self, name: str, stream: StreamedArray) -> Values:
        blocks = self._spools[name].blocks()
        if stream.dtype is None:
            return Values((self._ends[name][-1],), np.dtype(np.uint8), blocks)
        return Values((len(stream.digests), *stream.row_shape), stream.dtype, blocks)

    @abstractmethod
    def _write_file(self, arrays: Mapping[str, Values], attributes: Mapping[str, Mapping[str, Any]]) -> None:
        """Write all arrays in this order, and ``_table`` behind them. Raises ``OSError``."""

    def _table(self, arrays: Mapping[str, Values], offsets: Mapping[str, int]) -> bytes:
        """Return the table of arrays whose values begin at ``offsets``, as the last bytes of the file."""
        stored = {
            name: StoredArray(offsets[name], values.shape, values.dtype.str, values.digest)
            for name, values in arrays.items()
        }
        table = f"\n{seal(ArrayTable(stored))}\n".encode("ascii")
        if len(table) > MAX_TABLE_BYTES:
            what = f"got {len(arrays)} arrays, whose table has more than {MAX_TABLE_BYTES} bytes, expected fewer"
            raise UsageError(f"'{printable(self.path)}': {what}. Write fewer arrays, or shorter names.")
        return table

    def _close(self) -> None:
        for spool in self._spools.values():
            spool.close()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise write_error(self.path, error) from None


class NpzArtefactWriter(ArrayFileWriter):
    """A writer of one ``.npz``."""

    def _begin(self, name: str, stream: StreamedArray) -> None:
        if stream.dtype is None:
            raise UsageError(f"NPZ holds arrays, but '{name}' is of records: put it into lmdb or hdf5")
        super()._begin(name, stream)

    def _write_file(self, arrays: Mapping[str, Values], attributes: Mapping[str, Mapping[str, Any]]) -> None:
        offsets = {}
        with open(self.path, "wb") as file, zipfile.ZipFile(file, "w") as archive:
            for name, values in arrays.items():
                info = zipfile.ZipInfo(f"{name}.npy")  # no date: equal arrays make equal files
                with archive.open(info, "w", force_zip64=True) as member:
                    member.write(npy.header_of(values.shape, values.dtype))
                    offsets[name] = file.tell()
                    for block in values.blocks:
                        member.write(block)
            archive.comment = self._table(arrays, offsets)
