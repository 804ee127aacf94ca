"""The records of an earlier scan, which the next scan can use."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

from chordcache.choices import SCAN_LEVELS
from chordcache.errors import OTHER_FORMAT, ChordcacheError, DamageError, UsageError, printable
from chordcache.index.index_files import read_index
from chordcache.index.lists.tables import open_for_reading
from chordcache.records import Identity, VideoRecord


class ReusableRecords(AbstractContextManager["ReusableRecords"]):
    """The records of an earlier scan. The next scan need not read a file again that has not changed.

    It holds hashes and offsets, not records. It keeps the file open, because the file may be replaced meanwhile. Call
    ``close``, or use it as a context manager.

    It has no records if the index at ``path`` is missing, damaged or of an older format version. One in CSV has no
    facts, but labels, captions and extra columns. Raises ``UsageError`` if the file is not the index of a scan, which
    would overwrite it, and ``ChordcacheError`` for a newer version.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.problem: str | None = None
        """Reason why an existing index is not used, for people"""
        self.columns: dict[str, str] = {}
        """Type of each extra column that is not text"""
        self._offsets: dict[int, int] = {}
        self._has_no_facts = False
        self._stack = ExitStack()
        if not os.path.lexists(path):
            return
        try:
            self._index = read_index(path)
        except DamageError as error:
            self.problem = f"the earlier index is not used: {error}"
            return
        except ChordcacheError as error:
            if error.exit_code == OTHER_FORMAT:
                raise
            what = str(error).rstrip(".")
            raise UsageError(f"output: {what}. The file would be overwritten. Name another file.") from None
        if self._index.is_hand_written:
            raise UsageError(
                f"output: got '{printable(str(path))}', a hand-written list, expected another file. "
                "The list would be overwritten."
            )
        self.columns = self._index.columns
        self._has_no_facts = self._index.level is None
        if self._has_no_facts:
            self.problem = (
                "every file was read again, because no facts were read from the earlier index. "
                "A scan to a .json or .jsonl file reads only files that changed the next time."
            )
        try:
            self._file = self._stack.enter_context(open_for_reading(Path(path)))
            for offset, record in self._index.located(self._file):
                if record.segment is not None:
                    raise UsageError(
                        f"output: got '{printable(str(path))}', a list of segments, expected another file. "
                        "The list would be overwritten."
                    )
                self._offsets[hash((record.root, record.path))] = offset
        except UsageError:
            self.close()
            raise
        except (ChordcacheError, OSError) as error:
            self.close()
            self.problem = f"the earlier index is not used: {error}"

    def __len__(self) -> int:
        return len(self._offsets)

    def get(self, root: str, path: str, identity: Identity, level: str) -> VideoRecord | None:
        """Return the record of a file that is unchanged and was scanned at ``level`` or deeper.

        It may have an error.
        """
        offset = self._offsets.get(hash((root, path)))
        if offset is None:
            return None
        record = self._index.at(self._file, offset)
        if (record.root, record.path, record.identity) != (root, path, identity) or record.level is None:
            return None
        return record if SCAN_LEVELS.index(record.level) >= SCAN_LEVELS.index(level) else None

    def described(self, record: VideoRecord) -> VideoRecord:
        """Return a new record with the labels, captions and extra columns of an earlier index without facts."""
        offset = self._offsets.get(hash((record.root, record.path))) if self._has_no_facts else None
        if offset is None:
            return record
        earlier = self._index.at(self._file, offset)
        is_same = (earlier.root, earlier.path) == (record.root, record.path)
        return record.described(earlier.description()) if is_same else record

    def close(self) -> None:
        """Forget all records and close the file."""
        self._offsets.clear()
        self._stack.close()

    def __exit__(self, *_: object) -> None:
        self.close()
