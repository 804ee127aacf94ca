"""What the tiers have in common: an artefact is a file of named arrays, whose first axis is called rows.

An array is *streamed* (appended to row by row, each row with its xxh3-64 digest) or *whole* (written at once, small,
such as ``pts_seconds``, checked as a whole). A row is an array of one shape and dtype, or a record: bytes of any length.
The digests of a streamed array are the whole array ``<name>.xxh3_64`` [shape=(num_rows,), dtype=uint64].
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np

Block: TypeAlias = "np.ndarray | Sequence[bytes]"
"""Some rows: [shape=(n, ...)], or n records."""


class ArtefactWriter(Protocol):
    """Writes one artefact. A context manager; leaving it without ``finish`` abandons the file."""

    def __enter__(self) -> ArtefactWriter: ...

    def __exit__(self, *error: object) -> None: ...

    def append(self, name: str, rows: Block) -> None:
        """Add rows to a streamed array; the first ones settle its row shape and dtype, also if there are none.

        Raises
        ------
        UsageError
            If the dtype is no number, boolean or bytes, or the rows differ from the first ones in shape or dtype.
        NoSpaceError, CacheWriteError
            If the disk takes no more.
        """

    def finish(self, arrays: Mapping[str, np.ndarray], attributes: Mapping[str, Mapping[str, Any]]) -> None:
        """Add the whole arrays, write everything to the disk, close, read back and compare.

        ``attributes`` (array name, or "" for the file, to plain data) are stored where the format has a place for them.

        Raises
        ------
        NoSpaceError, CacheWriteError
            As ``append``.
        DamageError
            If what is read back is not what was written.
        """


class Artefact(Protocol):
    """An artefact opened for reading. Made by ``stores.registry.open_artefact``."""

    path: Path

    def close(self) -> None:
        """Release the file."""

    def num_rows(self, name: str) -> int:
        """Rows of a streamed array."""

    def array(self, name: str) -> np.ndarray:
        """A whole array, read-only, checked. Raises ``DamageError``."""

    def rows(self, name: str, numbers: Sequence[int], out: np.ndarray | None = None) -> np.ndarray:
        """Rows of a streamed array that is no array of records, copied, in the order of ``numbers``.

        Each row is checked against its digest the first time it is read since the artefact was opened.

        Parameters
        ----------
        numbers : sequence of int
            Row numbers in [0, num_rows); a ``range`` of step 1 is the fast case.
        out : np.ndarray [shape=(len(numbers), ...)], optional
            C-contiguous, of the array's dtype; filled.

        Raises
        ------
        DamageError
            If a row is missing or is not what was written.
        """

    def records(self, name: str, numbers: Sequence[int]) -> Iterator[Any]:
        """Records (bytes-like, valid until the next one is drawn), each checked against its digest every time.

        Raises
        ------
        DamageError
            As ``rows``.
        """
