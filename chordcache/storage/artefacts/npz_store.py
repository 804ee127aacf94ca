"""NPZ tier: a file that ``np.load`` opens, and whose single rows can be read at memory speed.

An array is a member ``<name>.npy``. Streamed arrays, their digests and whole arrays lie side by side. An uncompressed
member is mapped, and a slice of its rows takes one copy. A deflated member is decompressed from front to back. Rows
that follow the last read are decompressed alone. Other rows are decompressed with all rows before them. No
decompressed row is kept. Bytes that no row's digest covers have the zip's CRC-32.

Start of a member::

    local header offset + 30 + length of the name + length of the local header's extra field (not the central one's)
    npy header: 10 bytes, then as many as its bytes 8 and 9 say
    values, at the address that follows: they may be unaligned, hence they are copied
"""

from __future__ import annotations

import mmap
import os
import shutil
import struct
import threading
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from chordcache.errors import CacheWriteError, UsageError
from chordcache.storage.artefacts import npy, open_files
from chordcache.storage.artefacts.base import Artefact, Layout, row_bytes
from chordcache.storage.artefacts.writer import ArtefactWriter, StreamedArray, check_choice, write_error

COMPRESSION = {"none": zipfile.ZIP_STORED, "deflate": zipfile.ZIP_DEFLATED}
"""Name of the option to its number in the zip format."""

_SUFFIX = ".npy"
_COPY_BYTES = 1 << 20
_LOCAL_HEADER = struct.Struct("<4s22xHH")
"""Signature, length of the name, length of the extra field."""

_ENCRYPTED = 1
"""Flag of an encrypted member."""

_UNREADABLE = (zipfile.BadZipFile, zlib.error, struct.error, OSError, EOFError, ValueError, KeyError, RuntimeError)
"""Exceptions that a damaged zip raises. zipfile raises a RuntimeError for what it does not support. Text
that cannot be decoded raises a ValueError."""


class NpzArtefactWriter(ArtefactWriter):
    """A writer of one ``.npz``. The rows of each array go to a file beside it until their number is known.

    Parameters
    ----------
    path : Path
        As in ``ArtefactWriter``.
    compression : {"none", "deflate"}
        Rows of a deflated array are slow to read in any order but ascending, see ``NpzArtefact``.
    """

    def __init__(self, path: Path, *, compression: str = "none") -> None:
        super().__init__(path)
        check_choice("compression of NPZ", compression, list(COMPRESSION))
        self._compression = COMPRESSION[compression]
        self._spools: dict[str, IO[bytes]] = {}

    def _begin(self, name: str, stream: StreamedArray) -> None:
        if stream.dtype is None:
            raise UsageError(f"NPZ holds arrays, but '{name}' is of records: put it into lmdb or hdf5")
        with self._errors():  # unbuffered: a failed write raises here, not at the close
            spool = self.path.with_name(f"{self.path.name}.{len(self._spools)}.spool")
            self._spools[name] = open(spool, "w+b", buffering=0)  # noqa: SIM115 -- closed by _drop

    def _write(self, name: str, block: np.ndarray | list[bytes]) -> None:
        assert isinstance(block, np.ndarray)
        with self._errors():
            rest = block.reshape(-1).view(np.uint8).data
            while rest:
                rest = rest[self._spools[name].write(rest) :]

    def _finish(self, arrays: Mapping[str, np.ndarray], attributes: Mapping[str, Mapping[str, Any]]) -> None:
        with self._errors(), zipfile.ZipFile(self.path, "w") as archive:
            for name, stream in self._streams.items():
                assert stream.dtype is not None
                with self._open_member(archive, name) as member:
                    member.write(npy.header_of((len(stream.digests), *stream.row_shape), stream.dtype))
                    self._spools[name].seek(0)
                    shutil.copyfileobj(self._spools[name], member, _COPY_BYTES)
                self._drop(name)
            for name, values in {**arrays, **self._digests()}.items():
                with self._open_member(archive, name) as member:
                    member.write(npy.dumps(values))
        open_files.check_artefact(self.path, os.path.getsize(self.path), self._lengths(), whole=arrays)

    def _open_member(self, archive: zipfile.ZipFile, name: str) -> IO[bytes]:
        info = zipfile.ZipInfo(name + _SUFFIX)  # no date: equal arrays make equal files
        info.compress_type = self._compression
        return archive.open(info, "w", force_zip64=True)

    def _close(self) -> None:
        for name in list(self._spools):
            self._drop(name)

    def _drop(self, name: str) -> None:
        spool = self._spools.pop(name)
        spool.close()
        os.unlink(spool.name)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except CacheWriteError:
            raise
        except OSError as error:
            raise write_error(self.path, error) from None


@dataclass(frozen=True)
class _Member:
    """The place of an array's values."""

    stream: IO[bytes] | None
    """Stream that decompresses a deflated member, or None if the member is mapped"""
    offset: int
    """Offset of the first value, in the stream or in the file"""
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class NpzArtefact(Artefact):
    """An open ``.npz``.

    A deflated array is decompressed during the read, from its start. Reading rows [a, b) also decompresses the rows
    before them, unless they follow the last read. Reading in order is fast. A random read decompresses half the array
    on average.
    """

    def __init__(self, path: Path, num_bytes: int) -> None:
        super().__init__(path, num_bytes)
        self._members: dict[str, _Member] = {}
        self._unpacking = threading.Lock()  # a stream has one position, whichever thread reads
        with self._errors(), ExitStack() as opened:
            file = opened.enter_context(open(path, "rb"))
            self._archive = opened.enter_context(zipfile.ZipFile(file))
            self._infos = self._read_directory()
            self._map = mmap.mmap(file.fileno(), num_bytes, access=mmap.ACCESS_READ)  # fails if the file is shorter
            opened.callback(self._map.close)
            self._opened = opened.pop_all()
        self.maps_file = all(info.compress_type == zipfile.ZIP_STORED for info in self._infos.values())

    def close(self) -> None:
        """Release the file, its map and its streams."""
        self._members.clear()
        self._opened.close()

    def _read_directory(self) -> dict[str, zipfile.ZipInfo]:
        infos = {}
        for info in self._archive.infolist():
            name = info.filename.removesuffix(_SUFFIX)
            if name == info.filename or name in infos:
                raise self._damage(f"its member '{info.filename}' is not an array, or occurs twice")
            if info.compress_type not in COMPRESSION.values() or info.flag_bits & _ENCRYPTED:
                raise self._damage(f"its member '{info.filename}' is neither stored nor deflated")
            infos[name] = info
        return infos

    def _names(self) -> frozenset[str]:
        return frozenset(self._infos)

    def _layout(self, name: str) -> Layout:
        member = self._member(name)
        return Layout(member.shape[0], member.shape[1:], member.dtype)

    def _member(self, name: str) -> _Member:
        if name not in self._members:
            info = self._infos[name]
            with self._errors():
                is_stored = info.compress_type == zipfile.ZIP_STORED
                member = self._find_mapped(info) if is_stored else self._open_deflated(info)
            if not member.shape:
                raise self._damage(f"its array '{name}' has no axis")
            self._members[name] = member
        return self._members[name]

    def _find_mapped(self, info: zipfile.ZipInfo) -> _Member:
        start = self._start_of(info)
        head = self._map[start : start + min(npy.MAX_HEADER_BYTES, info.file_size)]
        shape, dtype, offset = npy.parse_header(head, info.file_size)
        return _Member(None, start + offset, shape, dtype)

    def _open_deflated(self, info: zipfile.ZipInfo) -> _Member:
        with self._unpacking:
            stream = self._opened.enter_context(self._archive.open(info))
            shape, dtype, offset = npy.parse_header(stream.read(npy.MAX_HEADER_BYTES), info.file_size)
        return _Member(stream, offset, shape, dtype)

    def _start_of(self, info: zipfile.ZipInfo) -> int:
        """Return the offset of a member's content. Raise ``DamageError`` if the content ends outside the file."""
        at = info.header_offset
        if at < 0 or at + _LOCAL_HEADER.size > len(self._map):
            raise self._damage(f"its member '{info.filename}' begins beyond its end")
        signature, name_length, extra_length = _LOCAL_HEADER.unpack_from(self._map, at)
        start: int = at + _LOCAL_HEADER.size + name_length + extra_length
        is_whole = info.compress_type != zipfile.ZIP_STORED or info.file_size == info.compress_size
        if signature != b"PK\x03\x04" or not is_whole or start + info.compress_size > len(self._map):
            raise self._damage(f"its member '{info.filename}' does not lie within it")
        return start

    def _content(self, info: zipfile.ZipInfo) -> bytes:
        """Return the content of a member, decompressed and compared with its CRC."""
        start = self._start_of(info)
        data = self._map[start : start + info.compress_size]
        if info.compress_type == zipfile.ZIP_DEFLATED:
            data = zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, info.file_size + 1)
        if len(data) != info.file_size or zlib.crc32(data) != info.CRC:
            raise self._damage(f"its member '{info.filename}' is not what was written")
        return data

    def _read_array(self, name: str) -> np.ndarray:
        with self._errors():
            values = npy.loads(self._content(self._infos[name]))
        if not values.ndim:
            raise self._damage(f"its array '{name}' has no axis")
        return values

    def _read_rows(self, name: str, start: int, stop: int, out: np.ndarray) -> None:
        member = self._member(name)
        if not out.size:  # numpy takes no empty array at the end of a buffer
            return
        if member.stream is None:
            out[...] = np.ndarray(member.shape, member.dtype, self._map, member.offset)[start:stop]
        else:
            with self._unpacking, self._errors():
                offset = member.offset + start * row_bytes(member.shape[1:], member.dtype)
                self._unpack(member.stream, offset, out)

    def _unpack(self, stream: IO[bytes], offset: int, out: np.ndarray) -> None:
        """Fill an array from an offset on, piece by piece. zipfile copies decompressed data more than once."""
        if offset < stream.tell():
            stream.seek(0)
        while (num_ahead := offset - stream.tell()) and stream.read(min(num_ahead, _COPY_BYTES)):
            pass  # seek(offset) would unpack 16 MiB at a time
        rest = out.reshape(-1).view(np.uint8)
        while len(rest):
            data = stream.read(min(len(rest), _COPY_BYTES))
            if not data:
                raise self._damage("a deflated member ends too early")
            rest[: len(data)] = np.frombuffer(data, np.uint8)
            rest = rest[len(data) :]

    def _iter_records(self, name: str, numbers: Sequence[int]) -> Iterator[Any]:
        raise self._damage(f"'{name}' does not hold records")  # never reached: no layout of NPZ has records

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except _UNREADABLE as error:
            raise self._damage(error) from None
