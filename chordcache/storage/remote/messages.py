"""The messages between a process that reads and the one that fetches for it: JSON, one message on a line."""

from __future__ import annotations

import json
from typing import TypeAlias

from chordcache.json_records import Record, to_json
from chordcache.storage.feature_info import StoredFile

FETCH_AGAIN = "Run the same command again. If the object is damaged in the bucket, remove it and push the cache again."

Span: TypeAlias = tuple[int, int]
"""First byte of a range of a file, and the byte behind it"""


class Request(Record, frozen=True):
    """A file to fetch, or ranges of it, or the lists."""

    number: int
    file: StoredFile | None = None
    spans: tuple[Span, ...] | None = None
    """Ranges of the file, or None for all of it"""


class Answer(Record, frozen=True):
    """The end of a request."""

    number: int
    error: str = ""
    """Name of a class of errors, or "" if the file is there"""
    message: str = ""


def to_line(message: Request | Answer) -> bytes:
    """Return a message as JSON, which has no line end."""
    return json.dumps(to_json(message)).encode("ascii")
