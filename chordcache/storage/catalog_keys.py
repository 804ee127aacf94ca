"""The keys in a catalog, without the packages that reading sidecars needs: a shell that completes a key waits."""

from __future__ import annotations

import os
import re
import sqlite3
import urllib.parse
from contextlib import closing
from pathlib import Path

_KEY = re.compile(r"[A-Za-z0-9_-]+")
"""Letters of a key, as ``video_key`` makes it. A damaged catalog may have others, which a shell would interpret"""


def keys_beginning_with(cache: str | os.PathLike[str], start: str) -> list[str]:
    """Return all keys of a cache that begin with ``start``, sorted; an empty list if they cannot be read."""
    try:
        rows = _query(cache, "SELECT key FROM videos WHERE key >= ? AND key < ? ORDER BY key", start, f"{start}\x7f")
    except (sqlite3.Error, ValueError):
        return []
    return [key for (key,) in rows if isinstance(key, str) and _KEY.fullmatch(key)]


def names_videos(cache: str | os.PathLike[str]) -> bool:
    """Return whether a cache has a catalog that names a video, or that cannot be read."""
    if not os.path.lexists(os.path.join(cache, "catalog.sqlite")):
        return False
    try:
        return bool(_query(cache, "SELECT 1 FROM videos LIMIT 1"))
    except (sqlite3.Error, ValueError):
        return True


def _query(cache: str | os.PathLike[str], sql: str, *values: str) -> list[tuple[object, ...]]:
    path = Path(cache, "catalog.sqlite").absolute()
    uri = f"file:{urllib.parse.quote(os.fsencode(path))}?mode=ro&immutable=1"
    with closing(sqlite3.connect(uri, uri=True)) as database:
        return database.execute(sql, values).fetchall()
