"""The catalog: all sidecars in one SQLite file, for readers that open a cache in O(1). Derived, rebuildable."""

from __future__ import annotations

import json
import os
import sqlite3
import urllib.parse
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from chordcache.errors import DamageError, NotFound
from chordcache.header import read_header
from chordcache.manifest import (
    Sidecar,
    iter_keys,
    no_space_as_error,
    partial_folder,
    printable,
    publish,
    read_sidecar,
)

_SCHEMA = """
CREATE TABLE videos (position INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, label TEXT, sidecar TEXT NOT NULL);
"""

_FILE = "catalog.sqlite"


def write_catalog(cache: Path) -> None:
    """Rebuild the catalog from the sidecars and replace it atomically. A damaged sidecar is left to ``verify``."""

    def rows() -> Iterator[tuple[int, str, str | None, str]]:
        position = 0
        for key in sorted(iter_keys(cache)):
            try:
                sidecar = read_sidecar(cache, key)
            except DamageError:
                continue
            label = None if sidecar.label is None else json.dumps(sidecar.label)  # SQLite takes no undecodable bytes
            yield position, key, label, sidecar.to_line()
            position += 1

    with partial_folder(cache) as folder:
        path = folder / _FILE
        try:
            with closing(sqlite3.connect(path)) as database, database:
                database.execute("PRAGMA journal_mode = OFF")
                database.executescript(_SCHEMA)
                database.executemany("INSERT INTO videos VALUES (?, ?, ?, ?)", rows())
        except sqlite3.OperationalError as error:
            with no_space_as_error(path):  # SQLite's own words for a full disk are several
                if "full" in str(error) or "I/O" in str(error):
                    raise OSError(28, str(error)) from None
            raise
        try:
            if (cache / _FILE).is_dir():
                (cache / _FILE).rmdir()
        except OSError:
            raise DamageError(f"'{printable(cache / _FILE)}' is a folder; move it away") from None
        publish(path, cache / _FILE)


class Catalog:
    """Read side of the catalog. Holds a connection: one per process, see ``Cache``."""

    def __init__(self, cache: Path) -> None:
        read_header(cache)
        self._path = cache / _FILE
        if not self._path.exists():
            raise NotFound(
                f"cache '{printable(cache)}' has no catalog: its build was killed; "
                "run the same 'chordcache build', or 'chordcache verify --repair'"
            )
        uri = f"file:{urllib.parse.quote(os.fsencode(self._path.absolute()))}?mode=ro&immutable=1"
        try:
            self._database = sqlite3.connect(uri, uri=True, check_same_thread=False)
        except sqlite3.DatabaseError as error:
            raise self._damage(str(error)) from None

    def close(self) -> None:
        """Close the connection."""
        self._database.close()

    def _query(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        try:
            return self._database.execute(sql, values).fetchall()
        except sqlite3.DatabaseError as error:
            raise self._damage(str(error)) from None

    def _damage(self, what: str) -> DamageError:
        return DamageError(f"'{printable(self._path)}' is damaged: {what}; run 'chordcache verify --repair CACHE'")

    def _sidecar(self, line: object) -> Sidecar:
        if not isinstance(line, str):
            raise self._damage("a row holds no sidecar")
        return Sidecar.from_line(line, str(self._path))

    def __len__(self) -> int:
        return int(self._query("SELECT count(*) FROM videos")[0][0])

    def keys(self) -> list[str]:
        """All keys, sorted."""
        return [key for (key,) in self._query("SELECT key FROM videos ORDER BY position")]

    def labels(self) -> list[str]:
        """Distinct labels, sorted."""
        sql = "SELECT DISTINCT label FROM videos WHERE label IS NOT NULL"
        return sorted(self._label(label) for (label,) in self._query(sql))

    def _label(self, cell: str) -> str:
        try:
            return str(json.loads(cell))
        except (TypeError, ValueError):
            raise self._damage("a row holds no label") from None

    def at(self, position: int) -> Sidecar:
        """The sidecar at a position in [0, len). Raises ``IndexError``."""
        rows = self._query("SELECT sidecar FROM videos WHERE position = ?", position)
        if not rows:
            if 0 <= position < len(self):
                raise self._damage(f"row {position} is missing")
            raise IndexError(f"position {position} is out of range for a cache of {len(self)} videos")
        return self._sidecar(rows[0][0])

    def find(self, key: str) -> Sidecar | None:
        """The sidecar of a video, None if the catalog does not name it."""
        rows = self._query("SELECT sidecar FROM videos WHERE key = ?", key)
        return self._sidecar(rows[0][0]) if rows else None

    def check(self) -> Iterator[tuple[int, str, str | None, Sidecar]]:
        """Check the file and yield position, key, label and sidecar of every row, in order. Raises ``DamageError``."""
        try:
            ((verdict,), *_) = self._query("PRAGMA integrity_check(1)")
            if verdict != "ok":
                raise self._damage(verdict)
            for position, key, label, line in self._database.execute("SELECT * FROM videos ORDER BY position"):
                yield position, key, None if label is None else self._label(label), self._sidecar(line)
        except sqlite3.DatabaseError as error:
            raise self._damage(str(error)) from None
