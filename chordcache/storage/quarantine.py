"""``quarantine.jsonl``: one line per input that could not be cached, with the reason. The last line of a key counts."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from chordcache.errors import DamageError, printable
from chordcache.records import Identity, to_json
from chordcache.storage.atomic import publish_text
from chordcache.storage.sealed_json import append_line, iter_sealed, seal


@dataclass(frozen=True)
class Failure:
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


def _failure(data: Mapping[str, Any], path: Path) -> Failure:
    """Read the failure that a line states. Raises ``DamageError``."""
    try:
        source = Identity(**data["source"]) if data.get("source") else None
        failure = Failure(**{**data, "source": source, "fingerprints": tuple(data.get("fingerprints", ()))})
        if not all(isinstance(text, str) for text in (failure.key, *failure.fingerprints)):
            raise TypeError("its key or a fingerprint is not text")
        return failure
    except TypeError as error:
        raise DamageError(f"'{printable(path)}' is damaged: it has a line that is not a failure ({error})") from None


class Quarantine:
    """The failures of a cache, by key.

    Raises
    ------
    DamageError
        If a line that is not the last is damaged.
    """

    def __init__(self, cache: Path, versions: Mapping[str, str]) -> None:
        self._path = cache / "quarantine.jsonl"
        self._versions = dict(versions)
        self._failures: dict[str, Failure] = {}
        self._num_lines = 0
        for data in iter_sealed(self._path):
            failure = _failure(data, self._path)
            self._failures[failure.key] = failure
            self._num_lines += 1

    def __len__(self) -> int:
        return len(self._failures)

    def get(self, key: str) -> Failure | None:
        """Return the failure of a video, or None if the video is not in quarantine."""
        return self._failures.get(key)

    def still_holds(self, key: str, source: Identity | None, fingerprints: Iterable[str] = ()) -> bool:
        """Return whether another attempt would fail again.

        This holds if the file and the tools are unchanged, and all features that may have caused the failure are
        requested.
        """
        failure = self._failures.get(key)
        return (
            failure is not None
            and failure.source == source
            and failure.versions == self._versions
            and set(failure.fingerprints) <= set(fingerprints)
        )

    def add(self, failure: Failure) -> None:
        """Write a failure to the file at once."""
        earlier = self._failures.get(failure.key)
        failure = replace(
            failure,
            attempts=failure.attempts + (earlier.attempts if earlier else 0),
            versions=self._versions,
            when=datetime.now(UTC).isoformat(timespec="seconds"),
            host=socket.gethostname(),
        )
        append_line(self._path, seal(to_json(failure)))
        self._failures[failure.key] = failure
        self._num_lines += 1

    def discard(self, key: str, fingerprints: Iterable[str] = ()) -> None:
        """Remove a video if all features that failed can be made now. ``compact`` writes the removal to the file."""
        failure = self._failures.get(key)
        if failure is not None and set(failure.fingerprints) <= set(fingerprints):
            del self._failures[key]

    def compact(self) -> None:
        """Rewrite the file with one line per failure, if it has more lines."""
        if self._num_lines != len(self._failures):
            publish_text(
                self._path.parent, self._path, "".join(seal(to_json(f)) + "\n" for f in self._failures.values())
            )
            self._num_lines = len(self._failures)
