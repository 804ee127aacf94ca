"""The catalog: all sidecars in one SQLite file, which readers open in O(1). It is derived and can be rebuilt."""

from __future__ import annotations

import enum
import errno
import json
import os
import sqlite3
import urllib.parse
import weakref
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from chordcache.errors import ChordcacheError, DamageError, NotFoundError, printable
from chordcache.records import FeatureInfo, Record, from_json, parse_json, to_json
from chordcache.storage.annotation_names import AnnotationCounter, AnnotationNames
from chordcache.storage.atomic import no_space_as_error, partial_folder, publish
from chordcache.storage.cache_header import read_header
from chordcache.storage.layout import iter_keys
from chordcache.storage.opener import check_file
from chordcache.storage.part_folders import in_parts
from chordcache.storage.readable import unreadable
from chordcache.storage.sidecar import Sidecar, read_sidecar

_SCHEMA = """
CREATE TABLE videos (position INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, sidecar TEXT NOT NULL);
CREATE TABLE columns (name TEXT PRIMARY KEY, data BLOB NOT NULL);
"""
"""SQL of the tables. ``columns`` has one value for each video, by position: ``num_frames`` and ``label_ids``, int32 in
little endian. ``labels`` is the sorted JSON list that the ids point into (-1: no label). ``annotations`` is the JSON of
``AnnotationNames``. ``feature.<name>`` has the ``FeatureState`` of one feature in every video, uint8."""

_FILE = "catalog.sqlite"
_INT32 = np.dtype("<i4")
_FEATURE = "feature."
"""Prefix of the columns of features"""

_SQLITE_ERRORS = (sqlite3.DatabaseError, UnicodeDecodeError)
"""Exceptions of a damaged file. SQLite raises the second if its message quotes damaged bytes."""


_UNREADABLE = (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM)
"""Error codes of a file that cannot be read, whatever its content"""


class FeatureState(enum.IntEnum):
    """The state of one feature of a video, in the first tier that has it."""

    NOT_BUILT = 0
    CACHED = 1
    ABSENT = 2
    """Recorded as one that the video does not have"""


class _StateOf(Record, frozen=True, forbid_unknown_fields=False):
    """The part of a ``FeatureInfo`` that states whether a video has the feature."""

    feature: str
    absent: str | None = None


class _Place(Record, frozen=True, forbid_unknown_fields=False):
    """The part of a sidecar that states which file a video is of, and its features."""

    key: str
    path: str
    features: tuple[_StateOf, ...]


class _FeatureStates:
    """A collector of the states of features, video by video."""

    def __init__(self) -> None:
        self._columns: dict[str, bytearray] = {}
        self._num_videos = 0

    def add(self, sidecar: Sidecar | _Place) -> None:
        infos: Sequence[FeatureInfo | _StateOf] = sidecar.features
        for info in reversed(infos):  # of several tiers the first counts, as in ``Sidecar.feature``
            column = self._columns.setdefault(info.feature, bytearray())
            column.extend(bytes(self._num_videos + 1 - len(column)))
            column[self._num_videos] = FeatureState.CACHED if info.absent is None else FeatureState.ABSENT
        self._num_videos += 1

    def columns(self) -> dict[str, bytes]:
        """Return the name of each column, and the states of all videos."""
        columns = sorted(self._columns.items())
        return {_FEATURE + name: bytes(states.ljust(self._num_videos, b"\0")) for name, states in columns}


def write_catalog(cache: Path) -> None:
    """Rebuild the catalog from the sidecars and replace it atomically. It skips damaged sidecars, see ``verify``."""
    publish_catalog(cache, _sound_sidecars(cache))


def _sound_sidecars(cache: Path) -> Iterator[Sidecar]:
    for key in sorted(iter_keys(cache)):
        with suppress(DamageError):
            yield read_sidecar(cache, key)


def publish_catalog(cache: Path, sidecars: Iterable[Sidecar]) -> None:
    """Replace the catalog with one of these sidecars, in the order of their keys."""
    num_frames, labels, annotations, features = array("i"), [], AnnotationCounter(), _FeatureStates()

    def rows() -> Iterator[tuple[int, str, str]]:
        for sidecar in sidecars:
            yield len(num_frames), sidecar.key, sidecar.to_line()
            num_frames.append(sidecar.num_frames)
            labels.append(sidecar.label)
            annotations.add(sidecar)
            features.add(sidecar)

    with partial_folder(cache) as folder:
        path = folder / _FILE
        try:
            with closing(sqlite3.connect(path)) as database, database:
                database.execute("PRAGMA journal_mode = OFF")
                database.executescript(_SCHEMA)
                database.executemany("INSERT INTO videos VALUES (?, ?, ?)", rows())
                columns = _columns(num_frames, labels, annotations.names()) | features.columns()
                database.executemany("INSERT INTO columns VALUES (?, ?)", columns.items())
        except sqlite3.OperationalError as error:
            if "unable to open" in str(error):
                raise FileNotFoundError(errno.ENOENT, str(error), str(path)) from None
            with no_space_as_error(path):  # SQLite has several messages for a full disk
                if "full" in str(error) or "I/O" in str(error):
                    raise OSError(28, str(error)) from None
            raise
        try:
            if (cache / _FILE).is_dir():
                (cache / _FILE).rmdir()
        except OSError:
            raise DamageError(f"'{printable(cache / _FILE)}' is a folder; move it away") from None
        publish(path, cache / _FILE)


def _columns(num_frames: Sequence[int], labels: Sequence[str | None], annotations: AnnotationNames) -> dict[str, bytes]:
    names = sorted({label for label in labels if label is not None})
    ids: dict[str | None, int] = {None: -1, **{name: number for number, name in enumerate(names)}}
    return {
        "num_frames": np.array(num_frames, _INT32).tobytes(),
        "label_ids": np.array([ids[label] for label in labels], _INT32).tobytes(),
        "labels": json.dumps(names).encode("ascii"),  # undecodable bytes are escaped, because SQLite refuses them
        "annotations": json.dumps(to_json(annotations)).encode("ascii"),
    }


class Catalog:
    """The read side of the catalog. It holds a connection, so each process needs its own, see ``Cache``.

    It has no ``close``. SQLite would end the process if another thread still reads. Drop the reference instead.
    """

    def __init__(self, cache: Path) -> None:
        read_header(cache)
        self.cache = cache
        """Folder of the cache"""
        self._path = cache / _FILE
        try:
            check_file(cache, _FILE)
        except FileNotFoundError:
            name = printable(cache)
            raise NotFoundError(
                f"cache '{name}' has no catalog: it is built in parts, which 'chordcache finish {name}' joins"
                if in_parts(cache)
                else f"cache '{name}' has no catalog: its first build is running, or was killed; "
                "run the same 'chordcache build', or 'chordcache verify --repair'"
            ) from None
        uri = f"file:{urllib.parse.quote(os.fsencode(self._path.absolute()))}?mode=ro&immutable=1"
        try:
            self._database = sqlite3.connect(uri, uri=True, check_same_thread=False)
        except _SQLITE_ERRORS as error:
            raise self._error(error) from None
        weakref.finalize(self, self._database.close)
        self.num_frames = self._int32("num_frames")
        """Number of frames of every video [shape=(num_videos,), dtype=int32], read-only"""
        self.label_ids = self._int32("label_ids")
        """Position of every video's label in ``labels`` [shape=(num_videos,), dtype=int32], -1 without a label"""
        self.labels = self._read_labels()
        """Distinct labels, sorted"""

    def _query(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        try:
            return self._database.execute(sql, values).fetchall()
        except _SQLITE_ERRORS as error:
            raise self._error(error) from None

    def _error(self, error: Exception) -> ChordcacheError:
        """Return the error for one of SQLite: of a disk that fails, or of a damaged file."""
        code = getattr(error, "sqlite_errorcode", 0)
        if code & 0xFF in _UNREADABLE and code != sqlite3.SQLITE_IOERR_SHORT_READ:
            return unreadable(self._path, OSError(errno.EIO, str(error)))
        return self._damage(str(error))

    def _damage(self, what: str) -> DamageError:
        path, cache = printable(self._path), printable(self._path.parent)
        return DamageError(f"'{path}' is damaged: {what}; run 'chordcache verify --repair {cache}'")

    def _sidecar(self, line: object) -> Sidecar:
        if not isinstance(line, str):
            raise self._damage("a row holds no sidecar")
        return Sidecar.from_line(line, str(self._path))

    def _column(self, name: str) -> bytes:
        rows = self._query("SELECT data FROM columns WHERE name = ?", name)
        if len(rows) != 1 or not isinstance(rows[0][0], bytes):
            raise self._damage(f"column '{name}' is missing")
        return rows[0][0]

    def _int32(self, name: str) -> np.ndarray:
        try:
            return np.frombuffer(self._column(name), _INT32)
        except ValueError:
            raise self._damage(f"its column '{name}' is cut off") from None

    def _read_labels(self) -> tuple[str, ...]:
        try:
            labels = json.loads(self._column("labels"))
        except ValueError:
            raise self._damage("its column 'labels' is not JSON") from None
        if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
            raise self._damage("its column 'labels' is not a list of labels")
        return tuple(labels)

    def annotation_names(self) -> AnnotationNames:
        """Return the names in the annotations of all videos. A catalog of an earlier build is read as a whole."""
        stated = self._stated_annotations()
        if stated is not None:
            return stated
        counter = AnnotationCounter()
        for _, sidecar in self.check():
            counter.add(sidecar)
        return counter.names()

    def _stated_annotations(self) -> AnnotationNames | None:
        """Return the annotation names that the file states, None if an earlier build wrote it without them."""
        if not self._query("SELECT 1 FROM columns WHERE name = 'annotations'"):
            return None
        try:
            return from_json(json.loads(self._column("annotations")), AnnotationNames)
        except (ValueError, RecursionError):
            raise self._damage("its column 'annotations' is not one of names") from None

    def feature_states(self, feature: str) -> np.ndarray:
        """Return the ``FeatureState`` of a feature in every video [shape=(num_videos,), dtype=uint8]."""
        return np.frombuffer(self._features.get(_FEATURE + feature, bytes(len(self))), np.uint8)

    @cached_property
    def _features(self) -> dict[str, bytes]:
        """The columns of features. A catalog of an earlier build is read as a whole."""
        stated = self._stated_features()
        if stated is not None:
            return stated
        states = _FeatureStates()
        for place in self._places():
            states.add(place)
        return states.columns()

    def _stated_features(self) -> dict[str, bytes] | None:
        """Return the columns of features, or None if an earlier build wrote the file without them."""
        query = "SELECT name, data FROM columns WHERE name GLOB ?"
        columns = dict(self._query(query, f"{_FEATURE}*"))
        if any(not isinstance(data, bytes) or len(data) != len(self) for data in columns.values()):
            raise self._damage("the states of its features are of other videos than its rows")
        return columns or None

    def __len__(self) -> int:
        return len(self.num_frames)

    def keys(self) -> list[str]:
        """Return all keys, sorted."""
        return self._keys("SELECT key FROM videos ORDER BY position")

    def _keys(self, query: str, *values: object) -> list[str]:
        keys = [key for (key,) in self._query(query, *values)]
        if not all(isinstance(key, str) for key in keys):
            raise self._damage("a row has no key")
        return keys

    def paths(self) -> Iterator[tuple[str, str]]:
        """Yield key and path of every video, in order. The digests of the rows are not compared."""
        for place in self._places():
            yield place.key, place.path

    def _places(self) -> Iterator[Sidecar | _Place]:
        """Yield every row, parsed in part, which takes a tenth of the time."""
        try:
            for (line,) in self._database.execute("SELECT sidecar FROM videos ORDER BY position"):
                try:
                    yield parse_json(line, _Place) if isinstance(line, str) else self._sidecar(line)
                except ValueError:  # damage, or a file name that only the slower way reads
                    yield self._sidecar(line)
        except _SQLITE_ERRORS as error:
            raise self._damage(str(error)) from None

    def at(self, position: int) -> Sidecar:
        """Return the sidecar at a position in [0, len). Raises ``IndexError``."""
        rows = self._query("SELECT sidecar FROM videos WHERE position = ?", position)
        if not rows:
            if 0 <= position < len(self):
                raise self._damage(f"row {position} is missing")
            raise IndexError(f"position {position} is out of range for a cache of {len(self)} videos")
        return self._sidecar(rows[0][0])

    def find(self, key: str) -> Sidecar | None:
        """Return the sidecar of a video, or None if the catalog does not name the video."""
        rows = self._query("SELECT sidecar FROM videos WHERE key = ?", key)
        return self._sidecar(rows[0][0]) if rows else None

    def keys_from(self, beginning: str, limit: int) -> list[str]:
        """Return the first keys that begin with a text, sorted. Case matters."""
        end = beginning + "\x7f"  # above all characters of a key
        query = "SELECT key FROM videos WHERE key >= ? AND key < ? ORDER BY key LIMIT ?"
        return self._keys(query, beginning, end, limit)

    def keys_around(self, text: str, limit: int) -> list[str]:
        """Return up to ``limit`` keys before and after the place of a text in the order of keys, sorted."""
        before = self._keys("SELECT key FROM videos WHERE key < ? ORDER BY key DESC LIMIT ?", text, limit)
        after = self._keys("SELECT key FROM videos WHERE key >= ? ORDER BY key LIMIT ?", text, limit)
        return [*reversed(before), *after]

    def check(self) -> Iterator[tuple[str, Sidecar]]:
        """Check the file and yield key and sidecar of every row, in order. Raises ``DamageError``."""
        try:
            ((verdict,), *_) = self._query("PRAGMA integrity_check(1)")
            if verdict != "ok":
                raise self._damage(verdict)
            num_rows, annotations, features = 0, AnnotationCounter(), _FeatureStates()
            for position, key, line in self._database.execute("SELECT * FROM videos ORDER BY position"):
                sidecar = self._sidecar(line)
                if (position, key) != (num_rows, sidecar.key) or not self._columns_agree(position, sidecar):
                    raise self._damage(f"the row of '{printable(str(key))}' contradicts itself")
                yield key, sidecar
                num_rows += 1
                annotations.add(sidecar)
                features.add(sidecar)
            num_labels = len(np.unique(self.label_ids[self.label_ids >= 0]))
            if not num_rows == len(self.num_frames) == len(self.label_ids) or num_labels != len(self.labels):
                raise self._damage("its columns are of other videos than its rows")
            if self._stated_annotations() not in (None, annotations.names()):
                raise self._damage("its annotation names are of other videos than its rows")
            if self._stated_features() not in (None, features.columns()):
                raise self._damage("the states of its features are of other videos than its rows")
        except _SQLITE_ERRORS as error:
            raise self._error(error) from None

    def _columns_agree(self, position: int, sidecar: Sidecar) -> bool:
        if position >= min(len(self.num_frames), len(self.label_ids)):
            return False
        label_id = int(self.label_ids[position])
        label = self.labels[label_id] if 0 <= label_id < len(self.labels) else None
        return (int(self.num_frames[position]), label) == (sidecar.num_frames, sidecar.label)
