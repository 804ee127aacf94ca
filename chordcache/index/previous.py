"""What an earlier scan left in its index, for the next one to use."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

from chordcache.errors import ChordcacheError, DamageError, UsageError
from chordcache.index.csv_table import open_for_reading
from chordcache.index.files import read_index
from chordcache.records import SCAN_LEVELS, Identity, VideoRecord
from chordcache.storage.layout import printable


class ReusableRecords:
    """What an earlier scan knows, so that the next one need not look again at a file that has not changed.

    Holds hashes and offsets, not records. Keeps the file open, for it may be replaced meanwhile; ``close`` it, or use
    it as a context manager.

    Parameters
    ----------
    path : str | PathLike
        The index of an earlier scan. If there is none, or it is damaged, nothing is found.

    Attributes
    ----------
    problem : str | None
        Why an index that is there is not used, for people.

    Raises
    ------
    UsageError
        If what is there is no index of a scan, so that writing one would destroy it.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.problem: str | None = None
        self._offsets: dict[int, int] = {}
        self._stack = ExitStack()
        if not os.path.lexists(path):
            return
        try:
            self._index = read_index(path)
        except DamageError as error:
            self.problem = f"the earlier index is not used: {error}"
            return
        except ChordcacheError as error:
            raise UsageError(f"{error}; it would be overwritten: name another file with -o") from None
        if self._index.is_hand_written:
            raise UsageError(
                f"'{printable(str(path))}' is a hand-written list and would be overwritten: name another file with -o"
            )
        try:
            self._file = self._stack.enter_context(open_for_reading(Path(path)))
            for offset, record in self._index.located(self._file):
                self._offsets[hash((record.root, record.path))] = offset
        except (ChordcacheError, OSError) as error:
            self.close()
            self.problem = f"the earlier index is not used: {error}"

    def __len__(self) -> int:
        return len(self._offsets)

    def get(self, root: str, path: str, identity: Identity, level: str) -> VideoRecord | None:
        """Return the record of a file, also of one that failed, if it is unchanged and was looked at as deeply.

        Parameters
        ----------
        root, path : str
            As in ``VideoRecord``.
        identity : Identity
            Of the file now.
        level : str
            What is asked for, of ``SCAN_LEVELS``; a record of a deeper level will do.
        """
        offset = self._offsets.get(hash((root, path)))
        if offset is None:
            return None
        record = self._index.at(self._file, offset)
        if (record.root, record.path, record.identity) != (root, path, identity) or record.level is None:
            return None
        return record if SCAN_LEVELS.index(record.level) >= SCAN_LEVELS.index(level) else None

    def close(self) -> None:
        """Forget all and close the file."""
        self._offsets.clear()
        self._stack.close()

    def __enter__(self) -> ReusableRecords:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
