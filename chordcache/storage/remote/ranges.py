"""Files of a folder that fills itself from a bucket, of which only the ranges that were read are there.

Such a file has the size of the artefact and no content at first. Behind its end stands a byte for each block of the
artefact: 1 when the content of the block is there, else 0. The content is on the disk before its byte is written, so a
byte of 1 is true also after a loss of power. The file has a folder of its own, ``ranges``, since it is not complete.
Its readers compare each record, row and array with its digest.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from chordcache.errors import UsageError
from chordcache.storage import opener
from chordcache.storage.feature_info import StoredFile
from chordcache.storage.remote.fetching import BucketFiles, files_of
from chordcache.storage.remote.messages import Span

FOLDER = "ranges"

LEAST_BYTES = 1 << 20
"""Size of the smallest artefact of which ranges are fetched [bytes]. A smaller one takes less time as a whole"""

_BLOCK_BYTES = 1 << 10

_GAP_BLOCKS = 8
"""Largest number of blocks between two ranges that are fetched as one. A request takes the time of many more"""

_HEAD_BYTES = 12 << 10
_TAIL_BYTES, _TAIL_BYTES_OF_ROW = 20 << 10, 32
"""Sizes of the parts of an artefact that are read when it is opened [bytes]. The arrays of digests, times and frame
numbers, and the table of all arrays, are at its end. The first three pages of LMDB are at its beginning"""

_TRIES = 10
"""Number of times that a file may be removed while it is read"""


def has_ranges(file: StoredFile) -> bool:
    """Return whether a file is fetched by ranges."""
    return LEAST_BYTES <= file.num_bytes < 1 << 62


def file_of(file: str) -> str:
    """Return the name of the file with the ranges of an artefact, both relative to the cache."""
    return f"{FOLDER}/{file.partition('/')[2]}"


def size_of(num_bytes: int) -> int:
    """Return the size of the file with the ranges of an artefact of ``num_bytes`` [bytes]."""
    return num_bytes + -(-num_bytes // _BLOCK_BYTES)


def missing(fd: int, num_bytes: int, spans: Iterable[Span]) -> list[Span]:
    """Return the ranges that have to be fetched so that these are there. They begin and end with a block."""
    runs = [(start // _BLOCK_BYTES, -(-stop // _BLOCK_BYTES)) for start, stop in spans if start < stop]
    states = [os.pread(fd, stop - first, num_bytes + first) for first, stop in runs]
    if all(state.count(1) == stop - first for state, (first, stop) in zip(states, runs, strict=True)):
        return []
    blocks = (
        first + np.flatnonzero(np.frombuffer(s, np.uint8) != 1) for s, (first, _) in zip(states, runs, strict=True)
    )
    wanted = np.unique(np.concatenate(list(blocks)))
    ends = np.flatnonzero(np.diff(wanted) > 1 + _GAP_BLOCKS)
    firsts, lasts = wanted[[0, *(ends + 1)]], wanted[[*ends, -1]]
    return [
        (first * _BLOCK_BYTES, min((last + 1) * _BLOCK_BYTES, num_bytes))
        for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True)
    ]


def note_arrival(fd: int, num_bytes: int, span: Span) -> None:
    """Note that the content of a range that ``missing`` returned is in the file, and on its disk."""
    first, stop = span[0] // _BLOCK_BYTES, -(-span[1] // _BLOCK_BYTES)
    os.pwrite(fd, b"\1" * (stop - first), num_bytes + first)


class RangedFile:
    """The file with the ranges of an artefact. Another process may remove it at any time.

    ``num_rows`` is the largest number of rows of an array. Threads and forked processes may share an object.
    """

    def __init__(self, folder: Path, file: StoredFile, num_rows: int) -> None:
        self._file = file
        self._folder, self._name = folder, file_of(file.name)
        self.path = folder / self._name
        tail = _TAIL_BYTES + _TAIL_BYTES_OF_ROW * num_rows
        self._index = (0, min(_HEAD_BYTES, file.num_bytes)), (max(0, file.num_bytes - tail), file.num_bytes)
        self._fds: list[int] = []
        """Descriptors of the file. The last one is in use, and threads may still read from those before it"""

    def ensure(self) -> None:
        """Fetch what is read when the artefact is opened, if the file does not exist. Raises as ``fetch``."""
        self._files.ensure(self.path, self._file, self._index)

    def open(self) -> int:
        """Open the file, fetch what is read then, and return its descriptor. Raises as ``fetch``."""
        return self.fetch(self._index)

    def fetch(self, spans: Iterable[Span]) -> int:
        """Fetch those of some ranges that are not there, and return the descriptor of the file that has them.

        Raises as ``BucketFiles.fetch``, and ``UsageError`` if the file is removed again and again.
        """
        spans = list(spans)
        for _ in range(_TRIES):
            fd = self._fds[-1] if self._fds else self._reopened()
            wanted = spans if fd is None else missing(fd, self._file.num_bytes, spans)
            if fd is not None and not wanted:
                return fd
            self._files.fetch(self._file, wanted)
            if fd is not None and missing(fd, self._file.num_bytes, wanted):  # it was removed, and made again
                self._reopened()
        raise UsageError(
            f"limit: got one at which '{self._file.name}' is removed while it is read, expected more. Raise the limit."
        )

    @property
    def _files(self) -> BucketFiles:
        files = files_of(self._folder)  # of this process, which may have been forked since the file was opened
        assert files is not None
        return files

    def _reopened(self) -> int | None:
        """Open the file that has the name now. Return None if there is none, or it does not have its size yet."""
        try:
            fd = opener.open_file(self._folder, self._name, may_be_sparse=True)
        except FileNotFoundError:
            return None
        if os.fstat(fd).st_size != size_of(self._file.num_bytes):
            os.close(fd)
            return None
        self._fds.append(fd)
        return fd

    def remove(self) -> None:
        """Remove the file, in which something is not what was written. It is fetched again when it is read."""
        opener.remove(self._folder, self._name)

    def close(self) -> None:
        """Close the file."""
        for fd in self._fds:
            os.close(fd)
