"""The files of a packed cache: those of many videos in one, so that a cache of a million videos has few files.

A pack has files as they are, each from a multiple of 4096 on, with zeros between and behind them. Its name is a hash of
their digests. The sidecars, which are in the catalog, state the pack and the place of each file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from chordcache.digests import file_digest, hex128
from chordcache.errors import DamageError, printable
from chordcache.storage import feature_files, opener
from chordcache.storage.atomic import no_space_as_error, partial_file, publish_all
from chordcache.storage.feature_info import Packed, StoredFile
from chordcache.storage.layout import place_of
from chordcache.storage.sidecar import Sidecar

_ALIGNMENT = 4096

_MAX_VIDEOS = 100_000
"""Largest number of videos in a pack: their sidecars are in memory while it is written"""


def aligned(position: int) -> int:
    """Return the first place of a file at or behind a position [bytes]."""
    return -(-position // _ALIGNMENT) * _ALIGNMENT


def num_bytes_in_pack(sidecar: Sidecar) -> int:
    """Return the space of the files of a video in a pack [bytes]."""
    return sum(aligned(file.num_bytes) for file in sidecar.files)


def placed(sidecars: Iterable[Sidecar], size: int) -> Iterator[list[Sidecar]]:
    """Yield the videos of one pack after the other, with the places of their files in it.

    A pack has at most ``size`` bytes, or a single video.
    """
    group: list[Sidecar] = []
    num_bytes = 0
    for sidecar in sidecars:
        if group and (num_bytes + num_bytes_in_pack(sidecar) > size or len(group) == _MAX_VIDEOS):
            yield _placed(group)
            group, num_bytes = [], 0
        group.append(sidecar)
        num_bytes += num_bytes_in_pack(sidecar)
    if group:
        yield _placed(group)


def _placed(sidecars: list[Sidecar]) -> list[Sidecar]:
    name = hex128("".join(file.digest for sidecar in sidecars for file in sidecar.files).encode())
    with_places, end = [], 0
    for sidecar in sidecars:
        places = {}
        for file in sidecar.files:
            places[file.name] = Packed(name, end)
            end = aligned(end + file.num_bytes)
        with_places.append(sidecar.with_places(places))
    return with_places


def write_pack(source: Path, target: Path, sidecars: list[Sidecar]) -> None:
    """Copy the files of one group of ``placed`` into a pack of another cache, unless it is there.

    Raises ``DamageError`` if a file is not what was written, and ``StorageError``.
    """
    files = [file for sidecar in sidecars for file in sidecar.files]
    if not files:
        return
    name, last = place_of(files[-1])
    num_bytes = aligned(last + files[-1].num_bytes)
    if opener.exists(target, name) and opener.size_of(target, name) == num_bytes:
        return
    with partial_file(target) as partial:
        with no_space_as_error(partial), open(partial, "xb") as pack:
            for file in files:
                pack.write(bytes(place_of(file)[1] - pack.tell()))
                pack.writelines(feature_files.checked_blocks(source, file.replace(packed=None)))
            pack.write(bytes(num_bytes - pack.tell()))
        publish_all(target, {partial: name})


class Pack(NamedTuple):
    """A pack, as the sidecars of a packed cache state it."""

    name: str
    """Path relative to the cache"""
    files: list[StoredFile]
    """Its files, in order"""

    @property
    def num_bytes(self) -> int:
        """Size of the pack [bytes]."""
        return aligned(max(place_of(file)[1] + file.num_bytes for file in self.files))


def packs_of(sidecars: Iterable[Sidecar]) -> list[Pack]:
    """Return the packs that videos have files in, by name."""
    packs: dict[str, Pack] = {}
    for file in (file for sidecar in sidecars for file in sidecar.files):
        name = place_of(file)[0]
        if file.packed is not None:
            packs.setdefault(name, Pack(name, [])).files.append(file)
    for pack in packs.values():
        pack.files.sort(key=place_of)
    return sorted(packs.values())


def check_pack(cache: Path, pack: Pack, name: str | None = None, *, with_files: bool = True) -> None:
    """Raise ``DamageError`` if a pack is not what was written, or ``StorageError`` if it cannot be read.

    ``name`` is that of its partial file. Without ``with_files``, only the size and the gaps between files are checked.
    """
    path, end = cache / pack.name, 0
    try:
        with opener.open_binary(cache, name or pack.name) as file, opener.readable(path):
            size = os.fstat(file.fileno()).st_size
            if size != pack.num_bytes:
                raise _damaged(path, f"got {size} bytes, expected {pack.num_bytes}")
            for stored in pack.files:
                start = place_of(stored)[1]
                if start != aligned(end) or any(file.read(start - end)):
                    raise _damaged(path, f"the bytes from {end} to {start} are not what was written")
                end = start + stored.num_bytes
                if with_files:
                    digest = file_digest()
                    for block in opener.blocks_of(file, path, stored.num_bytes):
                        digest.update(block)
                    if digest.hexdigest() != stored.digest:
                        raise _damaged(path, f"'{printable(stored.name)}' in it is not what was written")
                file.seek(end)
            if any(file.read()):
                raise _damaged(path, f"the bytes from {end} on are not what was written")
    except FileNotFoundError:
        raise _damaged(path, "the file is missing") from None


def _damaged(path: Path, what: str) -> DamageError:
    return DamageError(f"'{printable(path)}' is damaged: {what}")
