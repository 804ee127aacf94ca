"""``quarantine.jsonl``: one line per input that could not be cached, and why. The last line of a key counts."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from chordcache.errors import DamageError
from chordcache.records import Identity, to_json
from chordcache.storage.layout import append_line, iter_sealed, printable, publish_text, seal


@dataclass(frozen=True)
class Failure:
    """Why one input could not be cached."""

    key: str
    root: str
    path: str
    stage: str
    cause: str
    message: str
    source: Identity | None = None
    """None if the file could not be looked at"""
    num_frames_ok: int = 0
    attempts: int = 1
    """Those of this run; of all runs once it is in quarantine"""
    versions: Mapping[str, str] | None = None
    """Of the tools that failed on it"""
    fingerprints: tuple[str, ...] = ()
    """Of the features that it may be due to; empty if no feature matters, as the file cannot be decoded"""
    when: str = ""
    """UTC"""
    host: str = ""


def _failure(data: Mapping[str, Any], path: Path) -> Failure:
    """What a line says. Raises ``DamageError``."""
    try:
        source = Identity(**data["source"]) if data.get("source") else None
        failure = Failure(**{**data, "source": source, "fingerprints": tuple(data.get("fingerprints", ()))})
        if not all(isinstance(text, str) for text in (failure.key, *failure.fingerprints)):
            raise TypeError("its key or a fingerprint is no text")
        return failure
    except TypeError as error:
        raise DamageError(f"'{printable(path)}' is damaged: it has a line that is no failure ({error})") from None


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
        """The failure of a video, None if it is not in quarantine."""
        return self._failures.get(key)

    def still_holds(self, key: str, source: Identity | None, fingerprints: Iterable[str] = ()) -> bool:
        """Whether trying again would be in vain: same file, same tools, and all that it may be due to is asked for."""
        failure = self._failures.get(key)
        return (
            failure is not None
            and failure.source == source
            and failure.versions == self._versions
            and set(failure.fingerprints) <= set(fingerprints)
        )

    def add(self, failure: Failure) -> None:
        """Write a failure down at once."""
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
        """Take a video out if what it failed at could be made after all; ``compact`` writes it down."""
        failure = self._failures.get(key)
        if failure is not None and set(failure.fingerprints) <= set(fingerprints):
            del self._failures[key]

    def compact(self) -> None:
        """Rewrite the file with one line per failure, if it has others."""
        if self._num_lines != len(self._failures):
            publish_text(
                self._path.parent, self._path, "".join(seal(to_json(f)) + "\n" for f in self._failures.values())
            )
            self._num_lines = len(self._failures)
