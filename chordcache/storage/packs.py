"""Packs: the sidecars and files of many videos in one file, so that a cache of a million videos has few files.

A pack is written once. It has the form of a catalog, with the files of its videos between the head and the sidecars::

    head                 as in ``catalog_file``, with the number of the pack
    files                as they are, each from a multiple of 4096 on, with zeros between them
    sidecars             sealed lines in the order of keys. Each states the place of its files
    sections             as in ``catalog_columns``, without mtimes

The files of HDF5 stay beside it, since HDF5 opens files by name. For a video, a sidecar of its own comes before packs,
and the pack with the largest number before other packs. A video that left the cache is named in ``removed.jsonl``, with
the largest number of a pack at that time.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from chordcache.digests import hex128
from chordcache.errors import ChordcacheError, DamageError, NotFoundError, UnreadableError, printable
from chordcache.json_records import Record, to_json
from chordcache.storage import feature_files
from chordcache.storage.artefacts.tiers import TIERS
from chordcache.storage.atomic import append_lines, no_space_as_error, partial_file, publish_all
from chordcache.storage.catalog import Catalog
from chordcache.storage.catalog_columns import Columns
from chordcache.storage.catalog_file import HEAD_BYTES, CatalogFile, write_catalog_file
from chordcache.storage.feature_info import Packed, StoredFile
from chordcache.storage.layout import PACKS, pack_file, place_of
from chordcache.storage.opener import list_folder, readable
from chordcache.storage.sealed_json import iter_sealed, seal
from chordcache.storage.sidecar import Sidecar, files_of

REMOVED_FILE = f"{PACKS}/removed.jsonl"
"""Name of the list of removed videos, relative to the cache"""

_ALIGNMENT = 4096
_NAME = re.compile(r"([0-9a-f]{32})\.pack")
_MAX_OPEN = 16
"""Number of packs that are kept open"""


class _Removal(Record, frozen=True):
    key: str
    number: int
    """Largest number of a pack when the video was removed"""


class Pack(Catalog):
    """A pack opened for reading. Its rows are the sidecars of its videos. Raises as ``CatalogFile`` does.

    ``file`` is the name of its file in the cache, if it is not published yet.
    """

    def __init__(self, cache: Path, name: str, file: str | None = None) -> None:
        super().__init__(cache, CatalogFile(cache, file or pack_file(name)))
        self.name = name
        self.number = self._file.number
        """Number of the pack. Later packs have larger ones"""

    def _first_place(self) -> int:
        return int(self._offsets[0])

    def check(self) -> Iterator[tuple[str, Sidecar]]:
        """Check the pack, without the content of its files, and yield key and sidecar of every video."""
        end = HEAD_BYTES
        for key, sidecar in super().check():
            for stored in packable(sidecar):
                if stored.packed != Packed(self.name, aligned(end)):
                    raise self.damage(f"the files of '{printable(key)}' are not where they were written")
                self._check_gap(end, aligned(end))
                end = aligned(end) + stored.num_bytes
            yield key, sidecar
        if aligned(end) != self._first_place():
            raise self.damage("it has bytes that belong to no video")
        self._check_gap(end, self._first_place())

    def _check_gap(self, start: int, stop: int) -> None:
        if any(self._file.read(start, stop - start)):
            raise self.damage(f"the bytes from {start} to {stop} are not what was written")


def aligned(position: int) -> int:
    """Return the first place of a file at or behind a position [bytes]."""
    return -(-position // _ALIGNMENT) * _ALIGNMENT


def packable(sidecar: Sidecar) -> list[StoredFile]:
    """Return the files of a video that go into a pack, in order."""
    return files_of(info for info in sidecar.features if TIERS[info.tier].is_flat)


class Packs:
    """The packs of a cache, and the one that counts for each of their videos.

    Raises ``UnreadableError`` if a pack or the list of removed videos cannot be read, and ``DamageError`` if one is
    damaged. With a dict ``problems``, the error goes there instead, under the name of the file.
    """

    def __init__(self, cache: Path, problems: dict[str, ChordcacheError] | None = None) -> None:
        self.numbers: dict[str, int] = {}
        """Number of each sound pack by its name"""
        self._cache = cache
        self._owners: dict[str, str] = {}
        self._open = lru_cache(_MAX_OPEN)(lambda name: Pack(cache, name))
        keys: dict[str, list[str]] = {}
        for name in names_of_packs(cache):
            try:
                pack = self._open(name)
                keys[name], self.numbers[name] = pack.keys(), pack.number
            except (DamageError, UnreadableError) as error:
                if problems is None:
                    raise
                problems[pack_file(name)] = error
        self._removed: dict[str, int] = {}
        try:
            for removal in iter_sealed(cache, REMOVED_FILE, _Removal, "a removed video"):
                self._removed[removal.key] = removal.number
        except (DamageError, UnreadableError) as error:
            if problems is not None:
                problems[REMOVED_FILE] = error
            elif isinstance(error, UnreadableError):
                raise
            else:
                raise DamageError(f"{error}; run 'chordcache verify --repair {printable(cache)}'") from None
        for name in sorted(self.numbers, key=lambda name: (self.numbers[name], name)):
            for key in keys[name]:
                if self.numbers[name] > self._removed.get(key, 0):
                    self._owners[key] = name

    @property
    def last_number(self) -> int:
        """Largest number of a pack so far, or 0."""
        return max((*self.numbers.values(), *self._removed.values()), default=0)

    def has_left(self, key: str, mark: int = -1) -> bool:
        """Return whether a video was in a pack, and left the cache.

        ``mark`` is the ``mtime_ns`` of its row in a catalog, which is negative of a video in a pack. A video that was
        removed, and built again as files of its own, has not left.
        """
        return mark < 0 and key in self._removed and key not in self._owners

    def keys(self) -> list[str]:
        """Return the keys of all videos in packs that have not left the cache."""
        return list(self._owners)

    def owner(self, key: str) -> str | None:
        """Return the name of the pack that counts for a video, or None."""
        return self._owners.get(key)

    def row(self, key: str) -> tuple[Sidecar, bytes, int] | None:
        """Return the sidecar of a video, its line, and the mark of its pack, or None."""
        name = self._owners.get(key)
        if name is None:
            return None
        row = self._open(name).find_row(key)
        if row is None:
            raise DamageError(f"'{printable(self._cache / pack_file(name))}' is damaged: video '{key}' is missing")
        return *row, mark_of(name)

    def remove(self, keys: Iterable[str]) -> None:
        """Take videos out of all packs. A later pack may have them again."""
        packed = [key for key in keys if self._owners.pop(key, None) is not None]
        self._removed |= dict.fromkeys(packed, self.last_number)
        if packed:
            lines = [seal(to_json(_Removal(key, self._removed[key]))) for key in packed]
            append_lines(self._cache, REMOVED_FILE, lines, is_flushed=True)


def mark_of(name: str) -> int:
    """Return the negative number by which a catalog names a pack in the place of an mtime."""
    return -1 - int(name[:15], 16)


def is_pack_file(file: str) -> bool:
    """Return whether a file of the folder of packs is one that is written here."""
    folder, _, name = file.rpartition("/")
    return file == REMOVED_FILE or (folder == PACKS and _NAME.fullmatch(name) is not None)


def read_packed(cache: Path, name: str, key: str) -> Sidecar:
    """Read the sidecar of a video in a pack. Raises ``DamageError``, ``UnreadableError`` and ``NotFoundError``."""
    try:
        with readable(cache / pack_file(name)):
            status = os.stat(cache / pack_file(name))
        sidecar = _opened(cache, name, (status.st_ino, status.st_mtime_ns)).find(key)
    except FileNotFoundError:
        sidecar = None
    if sidecar is None:
        raise NotFoundError(f"video '{key}' is not in '{printable(cache / pack_file(name))}'")
    return sidecar


@lru_cache(_MAX_OPEN)
def _opened(cache: Path, name: str, _version: tuple[int, int]) -> Pack:
    return Pack(cache, name)


def names_of_packs(cache: Path) -> list[str]:
    """Return the names of all packs of a cache, sorted."""
    try:
        names = list_folder(cache, PACKS)
    except FileNotFoundError:
        return []
    return [match[1] for match in map(_NAME.fullmatch, names) if match]


def write_pack(cache: Path, sidecars: Sequence[Sidecar], number: int) -> str:
    """Write a pack of videos, in the order of keys, and publish it. Return its name.

    ``number`` is larger than the numbers of the packs that there are. Raises ``DamageError`` if a file of a video is
    not what was written, and ``NoSpaceError``.
    """
    lines = [str(number), *(sidecar.unpacked().to_line() for sidecar in sidecars)]
    name = hex128("\n".join(lines).encode())
    placed, end = _placed(sidecars, name)
    columns = Columns(end)
    with partial_file(cache) as partial:
        with no_space_as_error(partial), open(partial, "xb") as file:
            for before, after in zip(sidecars, placed, strict=True):
                for stored, there in zip(packable(before), packable(after), strict=True):
                    file.write(bytes(place_of(there)[1] - file.tell()))
                    feature_files.append_to(file, cache, stored)
            file.write(bytes(end - file.tell()))
            for sidecar in placed:
                line = f"{sidecar.to_line()}\n".encode("ascii")
                file.write(line)
                columns.add(sidecar, len(line), 0)
            write_catalog_file(file, len(placed), columns.end, columns.sections(), pack_number=number)
        check_pack(cache, name, os.path.relpath(partial, cache))
        publish_all(cache, {partial: pack_file(name)})
    return name


def _placed(sidecars: Sequence[Sidecar], name: str) -> tuple[list[Sidecar], int]:
    """Return the sidecars with the places of their files in a pack, and the position behind the files."""
    placed, end = [], HEAD_BYTES
    for sidecar in sidecars:
        places: dict[str, Packed | None] = {}
        for stored in packable(sidecar):
            places[stored.name] = Packed(name, aligned(end))
            end = aligned(end) + stored.num_bytes
        placed.append(sidecar.unpacked().with_places(places))
    return placed, aligned(end)


def check_pack(cache: Path, name: str, file: str | None = None) -> None:
    """Raise ``DamageError`` if a pack is not what was written. ``file`` is the name of a partial one."""
    pack = Pack(cache, name, file)
    for _, sidecar in pack.check():
        for stored in packable(sidecar):
            if feature_files.digest_of(cache, stored, pack=file) != stored.digest:
                raise pack.damage(f"'{stored.name}' is not what was written")
