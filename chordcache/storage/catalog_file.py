"""``catalog.bin``: a sealed head, the sidecars, then sections with a digest each.

This module imports neither numpy nor msgspec, since a shell that completes a key waits for it.
"""

from __future__ import annotations

import json
import os
import re
import weakref
from bisect import bisect_left
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from chordcache.digests import hex128, sealed, sealed_body
from chordcache.errors import ChordcacheError, DamageError, UsageError, printable
from chordcache.storage.opener import open_file, readable, unreadable

CATALOG = "catalog.bin"
"""Name of the file, in the folder of its cache"""

HEAD_BYTES = 4096
"""Size of the head: one sealed line, filled up with blanks [bytes]"""

_KIND = "chordcache-catalog"
"""Format that a head states"""

_VERSION = 2
_MAX_SECTIONS_BYTES = 512 << 20
"""Largest size of all sections: those of five million videos [bytes]. A file of zeros takes no space on a disk, and
may claim any size"""

_MAX_NAMES_BYTES = 64 << 20
"""Largest size of a section of JSON [bytes]. Read, it takes several times its size"""

_NAMES = ("features", "labels", "annotations")

_MIN_VIDEO_BYTES = 340
"""Size of the numbers of a video in the sections, and of the smallest sidecar [bytes]"""

_WIDTHS = {"offsets": 8, "hashes": 8, "order": 8, "mtimes": 8, "num_frames": 4, "contents": 8, "label_ids": 4}
"""Size of the number of a video in a section [bytes]. Of "offsets", there is one more"""

_AFTER_LETTERS = "\x7f"
"""A character above all those of a key"""

_KEYS = re.compile(rb"(?:[A-Za-z0-9_-]+-[0-9a-f]{16}\n)*")


def write_catalog_file(file: BinaryIO, num_videos: int, sections: Mapping[str, bytes]) -> None:
    """Write the sections of a catalog, by name, then its head. The sidecars are written before.

    The open file has the head and ``num_videos`` sidecars. Raises ``UsageError`` if the sections are larger than
    a reader accepts.
    """
    if problem := _size_problem({name: len(content) for name, content in sections.items()}):
        raise UsageError(f"catalog of {num_videos} videos: {problem}. Build several caches.")
    table = {}
    for name, content in sections.items():
        table[name] = [file.tell(), len(content), hex128(content)]
        file.write(content)
    head = {
        "format": _KIND,
        "catalog_version": _VERSION,
        "num_videos": num_videos,
        "num_bytes": file.tell(),
        "sections": table,
    }
    file.seek(0)
    file.write(sealed(json.dumps(head)).encode("ascii").ljust(HEAD_BYTES - 1) + b"\n")


def _size_problem(sizes: Mapping[str, int]) -> str | None:
    """Return the reason why sections of these sizes [bytes] are not read, or None."""
    limits = {"sections": (sum(sizes.values()), _MAX_SECTIONS_BYTES)}
    limits |= {f"'{name}'": (sizes.get(name, 0), _MAX_NAMES_BYTES) for name in _NAMES}
    for what, (num_bytes, most) in limits.items():
        if num_bytes > most:
            return f"got {num_bytes} bytes of {what}, expected at most {most}"
    return None


class CatalogFile:
    """The sections of a catalog. Each is compared with its digest when it is first read.

    Several threads and forked processes may share an object: it reads at positions, and keeps no state but copies.
    Raises ``FileNotFoundError`` if the cache has no such file, and ``DamageError`` or ``StorageError`` if the file
    is not a catalog, or cannot be read.
    """

    def __init__(self, cache: Path) -> None:
        self.path = cache / CATALOG
        self._cache = cache
        with readable(self.path):
            self._fd = open_file(cache, CATALOG, may_be_sparse=True)  # the head bounds what is read
        weakref.finalize(self, os.close, self._fd)  # instead of a ``close`` that another thread could read after
        self.num_bytes = os.fstat(self._fd).st_size
        self._sections: dict[str, bytes] = {}
        self._table = self._read_head()

    def _read_head(self) -> Mapping[str, tuple[int, int, str]]:
        line = self.read(0, HEAD_BYTES).rstrip(b" \n")
        self.digest = hex128(line)
        body = sealed_body(line)
        if body is None:
            raise self.damage("the digest of its head does not match")
        try:
            head: dict[str, Any] = json.loads(body)
            is_known = (head.get("format"), head.get("catalog_version")) == (_KIND, _VERSION)
            num_videos, num_bytes = int(head["num_videos"]), int(head["num_bytes"])
            sections: dict[str, list[Any]] = head["sections"]
            table = {name: (int(start), int(size), str(digest)) for name, (start, size, digest) in sections.items()}
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError):
            raise self.damage("its head is not one of a catalog") from None
        if not is_known:
            raise self.damage("another version of chordcache wrote it")
        if num_bytes != self.num_bytes:
            raise self.damage(f"got {self.num_bytes} bytes, expected {num_bytes}")
        if problem := _size_problem({name: size for name, (_, size, _) in table.items()}):
            raise self.damage(problem)
        if not 0 <= num_videos * _MIN_VIDEO_BYTES <= num_bytes:
            raise self.damage(f"got {num_videos} videos in {num_bytes} bytes")
        for name, (start, size, _) in table.items():
            if not (0 <= size <= num_bytes and 0 <= start <= num_bytes - size):
                raise self.damage(f"its section '{printable(name)}' is not inside the file")
            if name in _WIDTHS and size != _WIDTHS[name] * (num_videos + (name == "offsets")):
                raise self.damage(f"its section '{name}' has {size} bytes, expected those of {num_videos} videos")
        self.num_videos = num_videos
        return table

    def read(self, start: int, num_bytes: int) -> bytes:
        """Return bytes at a position. Raises ``DamageError`` if the file ends before them."""
        try:
            data = os.pread(self._fd, num_bytes, start)
        except OSError as error:  # not by ``readable``, which takes a microsecond for each sidecar
            raise unreadable(self.path, error) from None
        if len(data) != num_bytes:
            raise self.damage("it is cut off")
        return data

    def section(self, name: str) -> bytes:
        """Return the content of a section. Raises ``DamageError``."""
        content = self._sections.get(name)
        if content is None:
            if name not in self._table:
                raise self.damage(f"its section '{name}' is missing")
            start, num_bytes, digest = self._table[name]
            content = self.read(start, num_bytes)
            if hex128(content) != digest:
                raise self.damage(f"the digest of its section '{name}' does not match")
            self._sections[name] = content
        return content

    def keys(self) -> list[str]:
        """Return all keys, sorted. Raises ``DamageError``."""
        content = self.section("keys")
        if content.count(b"\n") != self.num_videos or not _KEYS.fullmatch(content):
            raise self.damage("its section 'keys' has other keys than those of its videos")
        return content.decode("ascii").split("\n")[:-1]

    def damage(self, what: str) -> DamageError:
        """Return the error of a damaged catalog."""
        path, cache = printable(self.path), printable(self._cache)
        return DamageError(f"'{path}' is damaged: {what}; run 'chordcache verify --repair {cache}'")


def keys_beginning_with(cache: str | os.PathLike[str], start: str) -> list[str]:
    """Return all keys of a cache that begin with ``start``, sorted; an empty list if they cannot be read."""
    try:
        return matching(CatalogFile(Path(cache)).keys(), start)
    except (ChordcacheError, OSError, ValueError):
        return []


def matching(keys: list[str], start: str) -> list[str]:
    """Return those of sorted keys that begin with a text. Case matters."""
    return keys[bisect_left(keys, start) : bisect_left(keys, start + _AFTER_LETTERS)]


def names_videos(cache: str | os.PathLike[str]) -> bool:
    """Return whether a cache has a catalog that names a video, or that cannot be read."""
    try:
        return CatalogFile(Path(cache)).num_videos > 0
    except FileNotFoundError:
        return False
    except (ChordcacheError, OSError, ValueError):
        return True
