"""The file with the ranges of an artefact, as the processes see it that read them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from chordcache.errors import UsageError
from chordcache.storage import opener
from chordcache.storage.feature_info import FeatureInfo
from chordcache.storage.remote import ranges
from chordcache.storage.remote.fetching import BucketFiles, files_of
from chordcache.storage.remote.messages import Piece, Span

_HEAD_BYTES = 12 << 10
_TAIL_BYTES, _TAIL_BYTES_OF_ROW = 20 << 10, 32
"""Sizes of the parts of an artefact that are read when it is opened [bytes]. The arrays of digests, times and frame
numbers, and the list of all arrays, are at its end. The first three pages of LMDB, and the header of the first array of
NPZ, are at its beginning"""

_TRIES = 5
"""Number of times that a file may be removed while it is read"""


class RangedFile:
    """The file with the ranges of an artefact. Another process may remove it at any time.

    ``num_frames`` is the number of frames of its video. Threads and forked processes may share an object.
    """

    def __init__(self, folder: Path, info: FeatureInfo, num_frames: int) -> None:
        self._piece = Piece.of(info)
        self._folder, self._name = folder, ranges.file_of(self._piece.file)
        self.path = folder / self._name
        tail = _TAIL_BYTES + _TAIL_BYTES_OF_ROW * max([num_frames, *info.num_rows.values()])
        self._index = (0, min(_HEAD_BYTES, info.num_bytes)), (max(0, info.num_bytes - tail), info.num_bytes)
        self._fds: list[int] = []
        """Descriptors of the file. The last one is in use, and threads may still read from those before it"""

    def ensure(self) -> None:
        """Fetch what is read when the artefact is opened, if the file does not exist. Raises as ``fetch``."""
        self._files.ensure(self.path, self._piece, self._index)

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
            wanted = spans if fd is None else ranges.missing(fd, self._piece.num_bytes, spans)
            if fd is not None and not wanted:
                return fd
            self._files.fetch(self._piece, wanted)
            if fd is not None and ranges.missing(fd, self._piece.num_bytes, wanted):  # it was removed, and made again
                self._reopened()
        raise UsageError(
            f"limit: got one at which '{self._piece.file}' is removed while it is read, expected more. Raise the limit."
        )

    @property
    def _files(self) -> BucketFiles:
        files = files_of(self._folder)  # of this process, which may have been forked since the file was opened
        assert files is not None
        return files

    def _reopened(self) -> int | None:
        """Open the file that has the name now. Return None if there is none, or it does not have its size yet."""
        try:
            fd = opener.open_file(self._folder, self._name)
        except FileNotFoundError:
            return None
        if os.fstat(fd).st_size != ranges.size_of(self._piece.num_bytes):
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
