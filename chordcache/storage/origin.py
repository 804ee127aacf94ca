"""``origin.json``: the object store of a folder that fetches its files from there, and holds only some of a cache."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from chordcache.errors import NotFoundError, UsageError, printable
from chordcache.json_records import Limit, Record
from chordcache.storage.atomic import publish_text
from chordcache.storage.sealed_json import read_sealed, seal

_FILE = "origin.json"


class Origin(Record, frozen=True):
    """The object store of a folder, and the size to which the folder may grow."""

    url: str
    limit: Annotated[int, Limit(ge=1)]
    """[bytes]"""


def read_origin(folder: Path) -> Origin | None:
    """Return the origin of a folder, or None for a cache of its own. Raises ``DamageError`` and ``StorageError``."""
    if not os.path.lexists(folder / _FILE):  # one call: each cache is asked when it is opened
        return None
    try:
        return read_sealed(folder, _FILE, Origin, "the origin of a folder")
    except NotFoundError:
        return None


def write_origin(folder: Path, origin: Origin) -> None:
    """Write the origin of a folder."""
    publish_text(folder, _FILE, seal(origin) + "\n")


def check_holds_all(cache: Path) -> None:
    """Raise ``UsageError`` if a folder holds some files of an object store. Commands that look at all files call it."""
    origin = read_origin(cache)
    if origin is not None:
        url = printable(origin.url)
        raise UsageError(
            f"cache: got '{printable(cache)}', which holds some files of '{url}', expected a cache. Read it with "
            f"open_cache('{url}', local=...), or copy the whole cache with 'chordcache pull {url} FOLDER'."
        )
