"""The header of an index, and the check of a record against it. All formats of the index share them."""

from __future__ import annotations

import os
from collections.abc import Mapping

from chordcache.choices import SCAN_LEVELS
from chordcache.errors import UsageError, printable
from chordcache.index.column_types import COLUMN_TYPES, extra_problem
from chordcache.json_records import Record
from chordcache.records import VideoRecord
from chordcache.storage.layout import path_problem

FORMAT = "chordcache-index"
"""Value of "format" in the header of an index"""


class IndexHeader(Record, frozen=True, forbid_unknown_fields=False):
    """The facts about all records of an index."""

    format: str
    roots: Mapping[str, str]
    """Label of a root to its absolute folder"""
    level: str | None = None
    follow_symlinks: bool = False
    whole_roots: tuple[str, ...] = ()
    """Labels of the roots of which the index has every video, since the scan read the whole folder"""
    columns: Mapping[str, str] = {}
    """Extra column to its type, of ``COLUMN_TYPES``. Columns that are not named here are text"""
    stated: tuple[str, ...] = ()
    """"label", "caption" and extra columns that a build erases where they are empty. Other empty ones say nothing"""

    def __post_init__(self) -> None:
        if self.format != FORMAT:
            raise UsageError(f"format: got '{printable(self.format)}', expected '{FORMAT}'")
        if self.level not in (None, *SCAN_LEVELS):
            raise UsageError(f"level: got '{printable(self.level)}', expected one of {', '.join(SCAN_LEVELS)}")
        if not all(path.startswith("/") for path in self.roots.values()):
            raise UsageError("roots: got a relative path, expected absolute ones")
        for name, kind in self.columns.items():
            if kind not in COLUMN_TYPES:
                got = f"columns, '{printable(name)}': got the type '{printable(kind)}'"
                raise UsageError(f"{got}, expected one of {', '.join(COLUMN_TYPES)}")


def another_kind_of_file(path: str | os.PathLike[str]) -> UsageError:
    """Return the error for a file that is not an index."""
    return UsageError(
        f"'{printable(path)}': got another kind of file, expected a chordcache index. 'chordcache scan' makes one, and "
        "a hand-written list is a CSV file with a column 'path'."
    )


def spelling_problem(path: str) -> str | None:
    """Return the reason why a relative path is not the plain name of its file, or None if it is."""
    plain = os.path.normpath(path)
    return None if plain == path else f"the path '{printable(path)}' is another spelling of '{printable(plain)}'"


def record_problem(record: VideoRecord, header: IndexHeader) -> str | None:
    """Return the reason why a record of an index cannot be used, or None if it can."""
    path, whole = record.path, f"/{record.path}/"
    is_plain = path.isascii() and "\0" not in path and "//" not in whole and "/." not in whole
    # Nothing is wrong with a plain path. This look takes a fifth of the time of the others
    problem = None if is_plain else path_problem(path) or spelling_problem(path)
    if problem is None and record.root not in header.roots:
        problem = f"the header has no root '{printable(record.root)}'"
    if problem is None and record.extra:
        problem = extra_problem(record.extra, header.columns)
    return problem and f"a record that cannot be used: {problem}"
