"""The problems of a cache or an index: files that failed, damaged videos, and what to do."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from chordcache.building.fix_commands import remedy
from chordcache.index.index_files import read_index
from chordcache.records import VideoRecord
from chordcache.storage.cache_header import read_header
from chordcache.storage.layout import cache_folder, key_of
from chordcache.storage.quarantine import Failure, Quarantine


@dataclass(frozen=True)
class Problem:
    """One video that is not complete in a cache, or cannot be read."""

    kind: str
    """"quarantined" or "broken" (in an index)"""
    key: str
    root: str
    path: str
    """Path relative to the root"""
    stage: str
    """Step that failed"""
    cause: str
    """One word, as in ``MediaError``"""
    message: str
    """One line for people"""
    remedy: str
    """Next step"""


def iter_problems(path: str | Path) -> Iterator[Problem]:
    """Yield the problems of a cache (a folder) or an index (a file). Raises as ``summarize`` does.

    The failures in quarantine come first. A cache that is built for the first time has only these.
    """
    path = cache_folder(path, "path")
    if os.path.isfile(path):
        yield from filter(None, map(problem_of_record, read_index(path)))
        return
    read_header(path)
    yield from quarantined(path)


def quarantined(cache: Path) -> Iterator[Problem]:
    """Yield the failures in the quarantine of a cache. Raises ``DamageError``."""
    for failure in Quarantine(cache, {}):
        yield _problem("quarantined", failure.key, failure, failure.stage, failure.cause, failure.message)


def problem_of_record(record: VideoRecord) -> Problem | None:
    """Return the error of a record of an index, or None."""
    if record.error is None:
        return None
    stage, cause = record.error_stage or "open", record.error_cause or "decode"
    return _problem("broken", key_of(record), record, stage, cause, record.error)


def _problem(kind: str, key: str, item: Failure | VideoRecord, stage: str, cause: str, message: str) -> Problem:
    return Problem(kind, key, item.root, item.path, stage, cause, message, remedy(cause, stage))
