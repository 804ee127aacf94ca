"""LMDB tier: one sealed environment per video, a record per frame.

Layout of an environment (a single file)::

    key                                 value
    4-byte big-endian frame number      one record: JPEG bytes, or raw RGB24, HWC
    b"pts_seconds"                      8-byte xxh3-64 of the rest, then float64 [T]
    b"source_frames"                    the same, int64 [T]: frame numbers of the source
    b"xxh3_64"                          the same, uint64 [T]: digest of each record

Sealed means: published, never written again. Readers open it without locks, also on a read-only or full disk.
"""

from __future__ import annotations

import os
import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lmdb
import numpy as np

from chordcache.errors import CacheWriteError, DamageError, NoSpaceError
from chordcache.manifest import digest64, printable

ARRAYS = {"pts_seconds": "<f8", "source_frames": "<i8", "xxh3_64": "<u8"}
"""The arrays beside the records, and their dtypes."""

_FIRST_MAP_BYTES = 1 << 28
"""Address space, not disk; doubled when a batch does not fit."""

_BATCH_BYTES = 4 << 20
"""Records gathered before they are written in one transaction. More is no faster, and stays in the heap."""

_MIN_FREE_BYTES = 32 << 20
"""A disk with less room than this is full when LMDB fails."""

_CHECK_SPAN = 1000
"""Records checked before their pages are given back."""

_MAX_OPEN = 64
"""Environments that a process keeps open."""

_FORK_PATIENCE_SECONDS = 5
"""How long a fork waits for readers in other threads; a clip takes milliseconds."""

_DIGEST_BYTES = 8


def _key(number: int) -> bytes:
    return number.to_bytes(4, "big")


class LmdbWriter:
    """Writes one environment. Use as a context manager; ``finish`` makes it whole."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._batch: list[tuple[bytes, bytes]] = []
        self._batch_bytes = 0
        self._digests = array("Q")
        self._map_bytes = _FIRST_MAP_BYTES
        self._environment = self._open()

    def __enter__(self) -> LmdbWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._environment.close()

    def append(self, record: bytes) -> None:
        """Add the record of the next frame."""
        self._put(_key(len(self._digests)), record)
        self._digests.append(digest64(record))

    def finish(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Add the arrays, write everything to the disk, read it back and compare.

        Raises
        ------
        NoSpaceError
            If the disk is full.
        DamageError
            If what is read back is not what was written.
        """
        for name, values in {**arrays, "xxh3_64": np.asarray(self._digests)}.items():
            data = np.ascontiguousarray(values, ARRAYS[name]).tobytes()
            self._put(name.encode(), digest64(data).to_bytes(_DIGEST_BYTES, "little") + data)
        self._flush()
        with self._errors():
            self._environment.sync(True)
        self._environment.close()
        check_records(self._path, os.path.getsize(self._path), len(self._digests))

    def _open(self) -> Any:
        with self._errors():
            return lmdb.open(
                str(self._path), subdir=False, lock=False, sync=False, meminit=False, map_size=self._map_bytes
            )

    def _put(self, key: bytes, value: bytes) -> None:
        self._batch.append((key, value))
        self._batch_bytes += len(value)
        if self._batch_bytes >= _BATCH_BYTES:
            self._flush()

    def _flush(self) -> None:
        while True:
            try:
                with self._errors(), self._environment.begin(write=True) as transaction:
                    for key, value in self._batch:
                        transaction.put(key, value, append=True)
                break
            except lmdb.MapFullError:
                self._map_bytes *= 2
                self._environment.set_mapsize(self._map_bytes)
        self._batch.clear()
        self._batch_bytes = 0
        self._environment.close()  # gives back what it mapped: memory stays flat, however long the video
        self._environment = self._open()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except lmdb.MapFullError:
            raise
        except lmdb.Error as error:
            # LMDB says "Input/output error" where the disk is full: ask the file system
            status = os.statvfs(self._path.parent)
            if status.f_bavail * status.f_frsize < _MIN_FREE_BYTES:
                folder = printable(self._path.parent)
                raise NoSpaceError(f"no space left writing '{folder}'; free some and run the same command") from None
            raise CacheWriteError(f"cannot write '{printable(self._path)}': {error}; run the same command") from None


class LmdbRecords:
    """An open environment. Made by ``open_records``."""

    def __init__(self, path: Path, num_bytes: int) -> None:
        found = _size_of(path)
        if found != num_bytes:  # a map of a shorter file is a SIGBUS
            raise DamageError(f"'{printable(path)}' is damaged: it has {found} bytes, expected {num_bytes}")
        self.path = path
        self.inode = _inode(path)
        self.num_users = 0
        try:
            self._environment = lmdb.open(
                str(path), subdir=False, readonly=True, lock=False, map_size=num_bytes, max_spare_txns=4
            )
        except lmdb.Error as error:
            raise DamageError(f"'{printable(path)}' is damaged: {error}") from None
        self._arrays: dict[str, np.ndarray] = {}
        try:
            self._checked = np.zeros(len(self.array("xxh3_64")), bool)
        except DamageError:
            self.close()
            raise

    def close(self) -> None:
        """Release the map."""
        self._environment.close()

    def __len__(self) -> int:
        return len(self._checked)

    def array(self, name: str) -> np.ndarray:
        """One of ``ARRAYS`` [shape=(T,)], read-only, checked against its digest."""
        if name not in self._arrays:
            with self.transaction() as get:
                value = get(name.encode())
                if value is None or digest64(value[_DIGEST_BYTES:]).to_bytes(_DIGEST_BYTES, "little") != bytes(
                    value[:_DIGEST_BYTES]
                ):
                    raise DamageError(
                        f"'{printable(self.path)}' is damaged: its array '{name}' is not what was written"
                    )
                self._arrays[name] = np.frombuffer(bytes(value[_DIGEST_BYTES:]), ARRAYS[name])
        return self._arrays[name]

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """Yield ``get(key) -> memoryview or None``; the views are valid inside only."""
        try:
            with self._environment.begin(buffers=True) as transaction:
                yield transaction.get
        except lmdb.Error as error:
            raise DamageError(f"'{printable(self.path)}' is damaged: {error}") from None

    def iter_records(self, numbers: Any, *, recheck: bool = True) -> Iterator[memoryview]:
        """Yield the records of ``numbers`` in that order, each checked against its digest.

        Parameters
        ----------
        numbers : sequence of int
            Frame numbers in [0, T).
        recheck : bool
            False: a record that was checked since the environment was opened is not checked again.

        Raises
        ------
        DamageError
            If a record is missing or is not what was written.
        """
        digests = self.array("xxh3_64")
        with self.transaction() as get:
            for number in numbers:
                record = get(_key(number))
                if record is None:
                    raise DamageError(f"'{printable(self.path)}' is damaged: record {number} is missing")
                if recheck or not self._checked[number]:
                    if digest64(record) != digests[number]:
                        raise DamageError(
                            f"'{printable(self.path)}' is damaged: record {number} is not what was written"
                        )
                    self._checked[number] = True
                yield record

    def check_counts(self, num_records: int) -> None:
        """Check every array, and that there are as many records as there should be. Raises ``DamageError``."""
        with self.transaction():
            found = self._environment.stat()["entries"]
        if found != num_records + len(ARRAYS):
            raise DamageError(
                f"'{printable(self.path)}' is damaged: it holds {found} entries, expected {num_records + len(ARRAYS)}"
            )
        for name in ARRAYS:
            if len(self.array(name)) != num_records:
                raise DamageError(
                    f"'{printable(self.path)}' is damaged: '{name}' has {len(self.array(name))} values, "
                    f"expected {num_records}"
                )


def _size_of(path: Path) -> int:
    try:
        return os.path.getsize(path)
    except OSError as error:
        raise DamageError(f"cannot read '{printable(path)}': {error.strerror}") from None


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


class _Registry:
    """The open environments of this process, least recently used first.

    LMDB refuses a second open of one file in a process, and in a child that inherited it: so there is one registry,
    and it is emptied before a fork.
    """

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._open: OrderedDict[Path, LmdbRecords] = OrderedDict()
        self._changed = threading.Condition()
        self._is_forking = False

    def acquire(self, path: Path, num_bytes: int) -> LmdbRecords:
        with self._changed:
            self._changed.wait_for(lambda: not self._is_forking)
            records = self._open.get(path)
            if records is not None and records.inode != _inode(path) and not records.num_users:
                self._open.pop(path).close()  # another file of this name was published since
                records = None
            if records is None:
                records = self._open[path] = LmdbRecords(path, num_bytes)
            self._open.move_to_end(path)
            records.num_users += 1
            if len(self._open) > _MAX_OPEN:
                self._close_idle(len(self._open) - _MAX_OPEN)
            return records

    def release(self, records: LmdbRecords) -> None:
        with self._changed:
            records.num_users -= 1
            self._changed.notify_all()

    def forget(self, path: Path) -> None:
        with self._changed:
            records = self._open.get(path)
            if records is not None and not records.num_users:
                self._open.pop(path).close()

    def _close_idle(self, at_most: int) -> None:
        for path, records in list(self._open.items()):
            if at_most and not records.num_users:
                self._open.pop(path).close()
                at_most -= 1

    def before_fork(self) -> None:
        """Let no new reader in, wait for the others, close everything."""
        with self._changed:
            self._is_forking = True
            self._changed.wait_for(
                lambda: not any(records.num_users for records in self._open.values()), timeout=_FORK_PATIENCE_SECONDS
            )
            self._close_idle(len(self._open))

    def after_fork_in_parent(self) -> None:
        with self._changed:
            self._is_forking = False
            self._changed.notify_all()

    def after_fork_in_child(self) -> None:
        self._leaked = self._open  # of threads that the child does not have; closing them is not the child's affair
        self._reset()


_registry = _Registry()
os.register_at_fork(
    before=_registry.before_fork,
    after_in_parent=_registry.after_fork_in_parent,
    after_in_child=_registry.after_fork_in_child,
)


@contextmanager
def open_records(path: Path, num_bytes: int) -> Iterator[LmdbRecords]:
    """Open an environment, or take it from the ones that this process has open.

    Parameters
    ----------
    path : Path
        A sealed environment.
    num_bytes : int
        Its size as the sidecar states it.

    Raises
    ------
    DamageError
        If the file is missing, has another size or is no such environment.
    """
    records = _registry.acquire(path, num_bytes)
    try:
        yield records
    finally:
        _registry.release(records)


def check_records(
    path: Path, num_bytes: int, num_records: int, *, look: Callable[[int, memoryview], None] | None = None
) -> None:
    """Check every record and array of an environment, and their number.

    The map is given back on the way: a process's memory does not grow with the length of the video.

    Parameters
    ----------
    path, num_bytes
        As ``open_records`` has them.
    num_records : int
        How many there should be.
    look : callable, optional
        Called with the number and the bytes of each record that is what was written.

    Raises
    ------
    DamageError
        At the first that is not.
    """
    for start in range(0, num_records, _CHECK_SPAN):
        with open_records(path, num_bytes) as records:
            if start == 0:
                records.check_counts(num_records)
            numbers = range(start, min(start + _CHECK_SPAN, num_records))
            for number, record in zip(numbers, records.iter_records(numbers), strict=True):
                if look is not None:
                    look(number, record)
        _registry.forget(path)
