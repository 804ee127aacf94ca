"""The catalog: all sidecars and columns of them in one file, which readers open in O(1). It can be rebuilt."""

from __future__ import annotations

import json
import os
import stat
from bisect import bisect_left
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import numpy as np

from chordcache.digests import sealed_body
from chordcache.errors import NotFoundError, printable
from chordcache.json_records import Record, Side, from_json, parse_json
from chordcache.storage.annotation_names import AnnotationNames
from chordcache.storage.cache_header import read_header
from chordcache.storage.catalog_columns import INT32, INT64, SECTIONS, UINT64, Columns, hash_of
from chordcache.storage.catalog_file import HEAD_BYTES, CatalogFile, matching
from chordcache.storage.layout import is_key, sidecar_file
from chordcache.storage.opener import MAX_BYTES
from chordcache.storage.sidecar import Sidecar

T = TypeVar("T")


class _KeyAndPath(Record, frozen=True, forbid_unknown_fields=False):
    """The part of a sidecar that states which file a video is of."""

    key: str
    path: str


class _Picture(Record, frozen=True, forbid_unknown_fields=False):
    """The part of a sidecar that states the size of its frames."""

    height: Side
    width: Side
    display_crop: object = None


class Catalog:
    """The read side of the catalog. Threads and forked processes may share it."""

    def __init__(self, cache: Path) -> None:
        self.cache = cache
        """Folder of the cache"""
        read_header(cache)
        try:
            self._file = CatalogFile(cache)
        except FileNotFoundError:
            raise NotFoundError(
                f"cache '{printable(cache)}' has no catalog: its first build is running, or was killed; "
                "run the same 'chordcache build', or 'chordcache verify --repair'"
            ) from None
        self.damage = self._file.damage

    @property
    def digest(self) -> str:
        """Hash of all sidecars and columns."""
        return self._file.digest

    def _array(self, name: str, dtype: np.dtype) -> np.ndarray:
        """Return a section as numbers. Their count was compared with that of the videos, but for the states."""
        return np.frombuffer(self._file.section(name), dtype)

    def _numbers(self, name: str, dtype: np.dtype, start: int, stop: int) -> np.ndarray:
        """Return the numbers of a section, one for each video, which are in [start, stop)."""
        numbers = self._array(name, dtype)
        if len(numbers) and not start <= numbers.min() <= numbers.max() < stop:
            raise self.damage(f"its section '{name}' has numbers that no video has")
        return numbers

    @cached_property
    def _offsets(self) -> np.ndarray:
        offsets = self._array("offsets", INT64)
        if (offsets[1:] <= offsets[:-1]).any():  # else each row could be the largest one
            raise self.damage("its section 'offsets' has rows over each other")
        return offsets

    @cached_property
    def _hashes(self) -> np.ndarray:
        return self._array("hashes", UINT64)

    @cached_property
    def _order(self) -> np.ndarray:
        return self._numbers("order", INT64, 0, len(self))

    @cached_property
    def _mtimes(self) -> np.ndarray:
        return self._array("mtimes", INT64)

    @cached_property
    def num_frames(self) -> np.ndarray:
        """Number of frames of every video [shape=(num_videos,), dtype=int32], read-only."""
        return self._numbers("num_frames", INT32, 1, 1 << 31)

    @cached_property
    def contents(self) -> np.ndarray:
        """Beginning of the ``content_id`` of every video [shape=(num_videos,), dtype=uint64], 0 if it has none."""
        return self._array("contents", UINT64)

    @cached_property
    def label_ids(self) -> np.ndarray:
        """Position of every video's label in ``labels`` [shape=(num_videos,), dtype=int32], -1 without a label."""
        return self._numbers("label_ids", INT32, -1, len(self.labels))

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """Distinct labels, sorted."""
        labels = self._json("labels", tuple[str, ...])
        if len(labels) > len(self):
            raise self.damage("its section 'labels' has more labels than videos")
        return labels

    @cached_property
    def fingerprints(self) -> dict[str, tuple[str, ...]]:
        """Distinct fingerprints of each feature."""
        return self._json("features", dict[str, tuple[str, ...]])

    def annotation_names(self) -> AnnotationNames:
        """Return the names in the annotations of all videos."""
        return self._json("annotations", AnnotationNames)

    def _json(self, name: str, kind: type[T]) -> T:
        try:
            return from_json(json.loads(self._file.section(name)), kind)
        except (ValueError, RecursionError):
            raise self.damage(f"its section '{name}' is not one of names") from None

    def feature_states(self, feature: str) -> np.ndarray:
        """Return the ``FeatureState`` of a feature in every video [shape=(num_videos,), dtype=uint8]."""
        states = self._array("states", np.dtype(np.uint8))
        if len(states) != (num_bytes := len(self.fingerprints) * len(self)):
            raise self.damage(f"its section 'states' has {len(states)} bytes, expected {num_bytes}")
        if feature not in self.fingerprints:
            return np.zeros(len(self), np.uint8)
        start = [*self.fingerprints].index(feature) * len(self)
        return states[start : start + len(self)]

    def __len__(self) -> int:
        return self._file.num_videos

    def keys(self) -> list[str]:
        """Return all keys, sorted."""
        return self._file.keys()

    def paths(self) -> Iterator[tuple[str, str]]:
        """Yield key and path of every video, in order. The digests of the rows are not compared."""
        return ((row.key, row.path) for row in self._partly(_KeyAndPath))

    @cached_property
    def pictures(self) -> np.ndarray:
        """Height and width of every video's frames, and 1 if it was cut to a bucket [shape=(num_videos, 3)], read-only.

        The rows are read once. Their digests are not compared.
        """
        pictures = np.empty((len(self), 3), np.int64)
        for position, row in enumerate(self._partly(_Picture)):
            pictures[position] = row.height, row.width, row.display_crop is not None
        pictures.flags.writeable = False
        return pictures

    def _partly(self, kind: type[T]) -> Iterator[T | Sidecar]:
        """Yield the part of each row that a type has, or the whole row if only the slower way reads it."""
        for position in range(len(self)):
            try:
                row: T | Sidecar = parse_json(self._line(position), kind)
            except ValueError:  # damage, or a file name that is not Unicode
                row = self.at(position)
            yield row

    def _line(self, position: int) -> bytes:
        start, stop = self._offsets.item(position), self._offsets.item(position + 1)
        if not HEAD_BYTES <= start < stop <= min(self._file.num_bytes, start + MAX_BYTES):
            raise self.damage(f"row {position} is not inside the file")
        return self._file.read(start, stop - start)

    def at(self, position: int) -> Sidecar:
        """Return the sidecar at a position in [0, len). Raises ``IndexError``."""
        if not 0 <= position < len(self):
            raise IndexError(f"position {position} is out of range for a cache of {len(self)} videos")
        return self._row(position)[0]

    def _row(self, position: int) -> tuple[Sidecar, bytes]:
        line = self._line(position)
        sidecar = Sidecar.from_line(line, str(self._file.path))
        if hash_of(sidecar.key) != self._hashes.item(position):
            raise self.damage(f"row {position} is of another video")
        return sidecar, line

    def find(self, key: str) -> Sidecar | None:
        """Return the sidecar of a video, or None if the catalog does not name the video."""
        row = self.find_row(key)
        return row and row[0]

    def find_row(self, key: str) -> tuple[Sidecar, bytes] | None:
        """Return the sidecar of a video and its line, or None if the video is not named."""
        rows = map(self._row, self._positions_of(key))
        return next((row for row in rows if row[0].key == key), None)

    def _positions_of(self, key: str) -> Iterator[int]:
        """Yield the positions of the videos with the hash of a key: one, unless two keys share their hash."""
        if not is_key(key):
            return
        number = np.uint64(hash_of(key))
        rank = int(np.searchsorted(self._hashes, number, sorter=self._order))
        while rank < len(self) and self._hashes[self._order[rank]] == number:
            yield int(self._order[rank])
            rank += 1

    def keys_from(self, beginning: str, limit: int) -> list[str]:
        """Return the first keys that begin with a text, sorted. Case matters."""
        return matching(self.keys(), beginning)[:limit]

    def keys_around(self, text: str, limit: int) -> list[str]:
        """Return up to ``limit`` keys before and after the place of a text in the order of keys, sorted."""
        keys = self.keys()
        place = bisect_left(keys, text)
        return keys[max(0, place - limit) : place + limit]

    def row(self, position: int) -> tuple[Sidecar, bytes, int]:
        """Return a sidecar, its line, and the mtime of its file when this catalog was written [nanoseconds]."""
        return *self._row(position), self._mtimes.item(position)

    def is_unchanged(self, position: int, key: str) -> bool:
        """Return whether the file of a sidecar is the one that a row was written from."""
        try:
            status = os.lstat(f"{self.cache}/{sidecar_file(key)}")
        except OSError:  # the one who reads it raises
            return False
        num_bytes = self._offsets.item(position + 1) - self._offsets.item(position)
        is_same = status.st_mtime_ns == self._mtimes.item(position) and status.st_size == num_bytes
        return is_same and stat.S_ISREG(status.st_mode)

    def check_digests(self) -> None:
        """Compare the digest of every row and section. Raises ``DamageError``."""
        for position in range(len(self)):
            if sealed_body(self._line(position)) is None:
                raise self.damage(f"the digest of row {position} does not match")
        for name in SECTIONS:
            self._file.section(name)

    def check(self) -> Iterator[tuple[str, Sidecar]]:
        """Check the file and yield key and sidecar of every row, in order. Raises ``DamageError``."""
        columns, last_key = Columns(), ""
        for position in range(len(self)):
            sidecar, line = self._row(position)
            if sidecar.key <= last_key:
                raise self.damage(f"its rows are not sorted at '{printable(sidecar.key)}'")
            last_key = sidecar.key
            columns.add(sidecar, len(line), int(self._mtimes[position]))
            yield sidecar.key, sidecar
        for name, content in columns.sections().items():
            if content != self._file.section(name):
                raise self.damage(f"its section '{name}' is of other videos than its rows")
