"""The problems of a cache or an index: files that failed, damaged videos, and what to do."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from chordcache.building.remedies import remedy
from chordcache.errors import NotFoundError
from chordcache.index.index_files import read_index
from chordcache.read.cache import Cache
from chordcache.read.video import Video
from chordcache.records import VideoRecord
from chordcache.storage.cache_header import read_header
from chordcache.storage.layout import key_of
from chordcache.storage.quarantine import Quarantine


@dataclass(frozen=True)
class Problem:
    """One video that is not complete in a cache, or cannot be read."""

    kind: str
    """"quarantined", "broken" (in an index) or "damaged" (the cache lacks frames of its source)"""
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
    path = Path(path)
    if os.path.isfile(path):
        yield from filter(None, map(problem_of_record, read_index(path)))
        return
    read_header(path)
    yield from quarantined(path)
    try:
        cache = Cache(path)
    except NotFoundError:  # it is not built yet
        return
    with cache:
        yield from filter(None, map(problem_of_video, cache))


def quarantined(cache: Path) -> Iterator[Problem]:
    """Yield the failures in the quarantine of a cache. Raises ``DamageError`` and ``FormatVersionError``."""
    for failure in Quarantine(cache, {}):
        yield Problem(
            "quarantined", failure.key, failure.root, failure.path, failure.stage, failure.cause, failure.message,
            remedy(failure.cause),
        )  # fmt: skip


def problem_of_video(video: Video) -> Problem | None:
    """Return the damage of a cached video, or None."""
    damage = video.damage
    if damage is None:
        return None
    return Problem(
        "damaged", video.key, video.root, video.path, "decode", damage.cause, str(damage), remedy(damage.cause)
    )


def problem_of_record(record: VideoRecord) -> Problem | None:
    """Return the error of a record of an index, or None."""
    if record.error is None:
        return None
    cause = record.error_cause or "decode"
    return Problem(
        "broken", key_of(record), record.root, record.path, record.error_stage or "open", cause, record.error,
        remedy(cause),
    )  # fmt: skip
