"""``quarantine.jsonl``: one line per input that could not be cached, with the reason. The last line of a key counts."""

from __future__ import annotations

import socket
from collections.abc import Container, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

from chordcache.json_records import Record
from chordcache.records import Identity
from chordcache.storage.atomic import append_lines, publish_text
from chordcache.storage.sealed_json import iter_sealed, seal

_FILE = "quarantine.jsonl"


class Failure(Record, frozen=True):
    """The reason why one input could not be cached."""

    key: str
    root: str
    path: str
    stage: str
    cause: str
    message: str
    source: Identity | None = None
    """Identity of the source, or None if the file could not be read"""
    num_frames_ok: int = 0
    attempts: int = 1
    """Attempts in this run, or in all runs once the failure is in quarantine"""
    versions: Mapping[str, str] | None = None
    """Versions of the tools that failed on the input"""
    fingerprints: tuple[str, ...] = ()
    """Fingerprints of the features that may have caused the failure, or empty if the file cannot be decoded at all"""
    when: str = ""
    """Time of the failure, UTC"""
    host: str = ""


def read_quarantined(cache: Path) -> dict[str, Failure]:
    """Return the inputs in quarantine by key. Raises ``DamageError`` if a line that is not the last is damaged."""
    return {failure.key: failure for failure in iter_sealed(cache, _FILE, Failure, "a failure")}


class Quarantine:
    """The failures of a cache, by key, and what this build decides about them by its tools.

    Raises ``DamageError`` if a line that is not the last is damaged.
    """

    def __init__(self, cache: Path, versions: Mapping[str, str]) -> None:
        self._cache = cache
        self._versions = dict(versions)
        self._failures: dict[str, Failure] = {}
        self._num_lines = 0
        for failure in iter_sealed(cache, _FILE, Failure, "a failure"):
            self._failures[failure.key] = failure
            self._num_lines += 1

    def __iter__(self) -> Iterator[Failure]:
        return iter(self._failures.values())

    def __len__(self) -> int:
        return len(self._failures)

    def get(self, key: str) -> Failure | None:
        """Return the failure of a video, or None if the video is not in quarantine."""
        return self._failures.get(key)

    def still_holds(self, key: str, source: Identity | None, fingerprints: Iterable[str] = ()) -> bool:
        """Return whether another attempt would fail again.

        This holds if the file and the tools are unchanged, all features that may have caused the failure are
        requested, and the choice for damaged files was not stricter. A file that changed while it was read is always
        tried again, since its mtime may not show the change.
        """
        failure = self._failures.get(key)
        return (
            failure is not None
            and failure.cause != "changed"
            and failure.source == source
            and failure.versions == self._versions
            and set(failure.fingerprints) <= set(fingerprints)
        )

    def add(self, failure: Failure) -> None:
        """Write a failure to the file at once."""
        earlier = self._failures.get(failure.key)
        failure = failure.replace(
            attempts=failure.attempts + (earlier.attempts if earlier else 0),
            versions=self._versions,
            when=datetime.now(UTC).isoformat(timespec="seconds"),
            host=socket.gethostname(),
        )
        append_lines(self._cache, _FILE, [seal(failure)])
        self._failures[failure.key] = failure
        self._num_lines += 1

    def discard(self, key: str, fingerprints: Iterable[str] = ()) -> None:
        """Remove a video if all features that failed can be made now. ``compact`` writes the removal to the file.

        A video that filled no bucket was not built at all. If it is built now, the buckets have changed.
        """
        failure = self._failures.get(key)
        if failure is not None and (failure.cause == "bucket" or set(failure.fingerprints) <= set(fingerprints)):
            del self._failures[key]

    def keep_only(self, keys: Container[str]) -> None:
        """Remove all other videos. ``compact`` writes the removal to the file."""
        self._failures = {key: failure for key, failure in self._failures.items() if key in keys}

    def compact(self) -> None:
        """Rewrite the file with one line per failure, if it has more lines."""
        if self._num_lines != len(self._failures):
            write_failures(self._cache, self)
            self._num_lines = len(self._failures)


def write_failures(cache: Path, failures: Iterable[Failure]) -> None:
    """Replace ``quarantine.jsonl`` with one line for each failure."""
    publish_text(cache, _FILE, "".join(seal(failure) + "\n" for failure in failures))
