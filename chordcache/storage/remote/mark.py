"""``bucket.json``: the mark of a folder that fills itself from a bucket, and holds only some files of a cache."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from chordcache.errors import NotFoundError, UsageError, printable
from chordcache.json_records import Limit, Record
from chordcache.storage.atomic import publish_text
from chordcache.storage.sealed_json import read_sealed, seal

_FILE = "bucket.json"


class Mark(Record, frozen=True):
    """The bucket of a folder, and the size to which the folder may grow."""

    url: str
    limit: Annotated[int, Limit(ge=1)]
    """[bytes]"""


def read_mark(folder: Path) -> Mark | None:
    """Return the mark of a folder, or None for a cache of its own. Raises ``DamageError`` and ``UnreadableError``."""
    if not os.path.lexists(folder / _FILE):  # one call: each cache is asked when it is opened
        return None
    try:
        return read_sealed(folder, _FILE, Mark, "the mark of a bucket")
    except NotFoundError:
        return None


def write_mark(folder: Path, mark: Mark) -> None:
    """Mark a folder."""
    publish_text(folder, _FILE, seal(mark) + "\n")


def check_holds_all(cache: Path) -> None:
    """Raise ``UsageError`` if a folder fills itself from a bucket. Commands that look at all files call it."""
    mark = read_mark(cache)
    if mark is not None:
        url = printable(mark.url)
        raise UsageError(
            f"cache: got '{printable(cache)}', which holds some files of '{url}', expected a cache. Read it with "
            f"open_cache('{url}', local=...), or copy the whole cache with 'chordcache pull {url} FOLDER'."
        )
