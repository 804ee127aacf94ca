"""The problems of a cache or an index: files that failed, damaged videos, absent features, and what to do."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from chordcache.building.remedies import remedy
from chordcache.errors import DamageError, NotFoundError
from chordcache.index.index_files import read_index
from chordcache.look.video_facts import has_label
from chordcache.read.cache import Cache
from chordcache.read.video import Video
from chordcache.records import VideoRecord
from chordcache.storage.cache_header import read_header
from chordcache.storage.catalog import Catalog
from chordcache.storage.layout import key_of
from chordcache.storage.quarantine import Quarantine

_FETCH_AGAIN = "Fetch the file again, then run the build again. The other frames are cached."


@dataclass(frozen=True)
class Problem:
    """One video that is not complete in a cache, or cannot be read."""

    kind: str
    """"quarantined", "broken" (in an index), "damaged" (the cache lacks frames of its source) or "absent" (it lacks a
    feature)"""
    key: str
    root: str
    path: str
    """Path relative to the root"""
    stage: str
    """Step that failed, or the absent feature"""
    cause: str
    """One word, as in ``MediaError``, or "absent\""""
    message: str
    """One line for people"""
    remedy: str
    """Next step. Empty for an absent feature"""


def iter_problems(path: str | Path, *, label: str | None = None, with_absent: bool = True) -> Iterator[Problem]:
    """Yield the problems of a cache (a folder) or an index (a file).

    The failures in quarantine come first. A cache that is built for the first time has only these.

    Parameters
    ----------
    path : str or Path
        A cache or an index.
    label : str, optional
        Only videos with this label. Quarantined files have none.
    with_absent : bool
        Also yield the absent features of sound videos.

    Raises
    ------
    NotFoundError
        If ``path`` is not a cache and not an index.
    DamageError, FormatVersionError, UsageError
        If the cache or the index cannot be read.
    """
    path = Path(path)
    if os.path.isfile(path):
        yield from _of_index(path, label)
        return
    read_header(path)
    if label is None:
        yield from quarantined(path)
    if not _is_built(path):
        return
    with Cache(path) as cache:
        for video in cache:
            if has_label(video, label):
                yield from problems_of_video(video, with_absent=with_absent)


def quarantined(cache: Path) -> Iterator[Problem]:
    """Yield the failures in the quarantine of a cache.

    Raises
    ------
    DamageError, FormatVersionError
        If the quarantine cannot be read.
    """
    for failure in Quarantine(cache, {}):
        yield Problem(
            "quarantined", failure.key, failure.root, failure.path, failure.stage, failure.cause, failure.message,
            remedy(failure.cause),
        )  # fmt: skip


def _is_built(path: Path) -> bool:
    try:
        Catalog(path)
    except NotFoundError:
        return False
    except DamageError:
        pass  # reading the cache raises it again
    return True


def problems_of_video(video: Video, *, with_absent: bool) -> Iterator[Problem]:
    """Yield the damage of a video, and its absent features if they are asked for."""
    damage = video.damage
    if damage is not None:
        yield Problem(
            "damaged", video.key, video.root, video.path, "decode", damage.cause, str(damage), remedy(damage.cause)
        )
    if with_absent:
        reasons = {info.feature: info.absent for info in video.sidecar.features if info.absent is not None}
        for feature, reason in reasons.items():
            yield Problem("absent", video.key, video.root, video.path, feature, "absent", reason, "")


def _of_index(path: Path, label: str | None) -> Iterator[Problem]:
    for record in read_index(path):
        if label in (None, record.label) and (problem := problem_of_record(record)) is not None:
            yield problem


def problem_of_record(record: VideoRecord) -> Problem | None:
    """Return the error of a record of an index, or None."""
    if record.error is None:
        return None
    cause = record.error_cause or "decode"
    return Problem(
        "broken", key_of(record), record.root, record.path, record.error_stage or "open", cause, record.error,
        remedy(cause),
    )  # fmt: skip
