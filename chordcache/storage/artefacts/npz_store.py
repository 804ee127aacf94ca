"""NPZ tier: a file that ``np.load`` opens, and whose single rows can be read at memory speed.

An array is a member ``<name>.npy``. Streamed arrays, their digests and whole arrays lie side by side, uncompressed. A
slice of rows is one read into the caller's array: for 0.8 MB of a file that was just opened, that takes 45 us of CPU,
while mapping the file takes 116 us. Bytes that no row's digest covers have the zip's CRC-32.

Start of a member::

    local header offset + 30 + length of the name + length of the local header's extra field (not the central one's)
    npy header: 10 bytes, then as many as its bytes 8 and 9 say
    values, at the address that follows: they may be unaligned, hence they are copied
"""

from __future__ import annotations

import errno
import io
import os
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Any

import numpy as np

from chordcache.errors import UsageError
from chordcache.storage.artefacts import npy, open_files
from chordcache.storage.artefacts.artefact import Artefact, runs
from chordcache.storage.artefacts.claims import Layout
from chordcache.storage.artefacts.writer import ArtefactWriter, StreamedArray, write_error

_SUFFIX = ".npy"
_LOCAL_HEADER = struct.Struct("<4s22xHH")
"""Signature, length of the name, length of the extra field."""

_MAX_DIRECTORY_BYTES = 1 << 20

_ENCRYPTED = 1
"""Flag of an encrypted member."""


class NpzArtefactWriter(ArtefactWriter):
    """A writer of one ``.npz``. The rows of each array go to a file beside it until their number is known."""

    def _begin(self, name: str, stream: StreamedArray) -> None:
        if stream.dtype is None:
            raise UsageError(f"NPZ holds arrays, but '{name}' is of records: put it into lmdb or hdf5")
        with self._errors():
            self._add_spool(name)

    def _write(self, name: str, block: np.ndarray | list[bytes]) -> None:
        assert isinstance(block, np.ndarray)
        with self._errors():
            self._spools[name].append(block.reshape(-1).view(np.uint8).data)

    def _finish(self, arrays: Mapping[str, np.ndarray], attributes: Mapping[str, Mapping[str, Any]]) -> None:
        with self._errors(), zipfile.ZipFile(self.path, "w") as archive:
            for name, stream in self._streams.items():
                assert stream.dtype is not None
                with self._open_member(archive, name) as member:
                    member.write(npy.header_of((len(stream.digests), *stream.row_shape), stream.dtype))
                    for block in self._spools[name].blocks():
                        member.write(block)
                self._spools[name].close()
            for name, array in {**arrays, **self._digests()}.items():
                with self._open_member(archive, name) as member:
                    member.write(npy.dumps(array))
        open_files.check_artefact(self.path, os.path.getsize(self.path), self._lengths(), whole=arrays)

    def _open_member(self, archive: zipfile.ZipFile, name: str) -> IO[bytes]:
        info = zipfile.ZipInfo(name + _SUFFIX)  # no date: equal arrays make equal files
        return archive.open(info, "w", force_zip64=True)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise write_error(self.path, error) from None


class _Directory(io.RawIOBase):
    """The artefact as zipfile reads it: the list of members, which is short. A forged one may claim a sparse file."""

    def __init__(self, read: Callable[[int, int], bytes], num_bytes: int) -> None:
        self._read_at = read
        self._num_bytes = num_bytes
        self._position = 0

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._num_bytes}[whence]
        if start + offset < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        self._position = start + offset
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        rest = self._num_bytes - self._position
        num_bytes = max(0, rest if size is None or size < 0 else min(size, rest))
        if num_bytes > _MAX_DIRECTORY_BYTES:
            raise zipfile.BadZipFile(f"its list of members has more than {_MAX_DIRECTORY_BYTES} bytes")
        data = self._read_at(self._position, num_bytes)
        self._position += len(data)
        return data


class NpzArtefact(Artefact):
    """An open ``.npz``."""

    # zipfile raises a RuntimeError for what it does not support, and a ValueError for text that cannot be decoded
    _ERRORS = (zipfile.BadZipFile, struct.error, OSError, EOFError, ValueError, KeyError, RuntimeError)

    def _read_contents(self) -> None:
        self._places: dict[str, int] = {}
        """Place of the first value of each array of rows in the file"""
        with self._errors(), zipfile.ZipFile(_Directory(self._read_some, self._num_bytes)) as archive:
            self._infos = self._read_directory(archive)

    def _read_directory(self, archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
        infos = {}
        for info in archive.infolist():
            name = info.filename.removesuffix(_SUFFIX)
            if name == info.filename or name in infos:
                raise self._damage(f"its member '{info.filename}' is not an array, or occurs twice")
            if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & _ENCRYPTED:
                raise self._damage(f"its member '{info.filename}' is compressed or encrypted")
            infos[name] = info
        return infos

    def _names(self) -> frozenset[str]:
        return frozenset(self._infos)

    def _layout(self, name: str) -> Layout:
        info = self._infos[name]
        with self._errors():
            start = self._start_of(info)
            head = self._read_some(start, min(npy.MAX_HEADER_BYTES, info.file_size))
            shape, dtype, offset = npy.parse_header(head, info.file_size)
        if not shape:
            raise self._damage(f"its array '{name}' has no axis")
        self._places[name] = start + offset
        return Layout(shape[0], shape[1:], dtype)

    def _start_of(self, info: zipfile.ZipInfo) -> int:
        """Return the offset of a member's content. Raise ``DamageError`` if the content ends outside the file."""
        signature, name_length, extra_length = _LOCAL_HEADER.unpack(
            self._read_some(info.header_offset, _LOCAL_HEADER.size)
        )
        start: int = info.header_offset + _LOCAL_HEADER.size + name_length + extra_length
        is_whole = info.file_size == info.compress_size and start + info.file_size <= self._num_bytes
        if signature != b"PK\x03\x04" or not is_whole:
            raise self._damage(f"its member '{info.filename}' does not lie within it")
        return start

    def _read_some(self, offset: int, num_bytes: int) -> bytes:
        """Return bytes of the artefact, fewer at its end. Raises ``OSError``."""
        num_bytes = min(num_bytes, self._num_bytes - offset)
        if num_bytes <= 0:  # a forged offset may be more than the system call takes
            return b""
        return os.pread(self._file_with(offset, num_bytes), num_bytes, self._start + offset)

    def _read_array(self, name: str) -> np.ndarray:
        info = self._infos[name]
        self._check_size(name, info.file_size)
        with self._errors():
            data = self._read_some(self._start_of(info), info.file_size)
            if len(data) != info.file_size or zlib.crc32(data) != info.CRC:
                raise self._damage(f"its member '{info.filename}' is not what was written")
            values = npy.loads(data)
        if not values.ndim:
            raise self._damage(f"its array '{name}' has no axis")
        return values

    def _spans(self, name: str, numbers: Sequence[int]) -> list[tuple[int, int]]:
        layout = self.layout(name)
        size, first = layout.row_bytes, self._places[name]
        return [(first + run.start * size, first + run.stop * size) for run in runs(numbers)]

    def _read_rows(self, name: str, start: int, stop: int, out: np.ndarray) -> None:
        layout = self.layout(name)
        offset = self._places[name] + start * layout.row_bytes
        self._read_into(offset, out.reshape(-1).view(np.uint8).data)

    def _iter_records(self, name: str, numbers: Sequence[int]) -> Iterator[Any]:
        raise self._damage(f"'{name}' does not hold records")  # never reached: no layout of NPZ has records
