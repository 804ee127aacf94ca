"""``pack`` and ``unpack``: move the sidecars and files of videos into packs, and out of them, without decoding."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from chordcache.engine import terminal
from chordcache.engine.signals import stop_signals
from chordcache.errors import UsageError
from chordcache.storage import atomic, feature_files, layout, opener
from chordcache.storage.cache_header import read_header, write_header
from chordcache.storage.feature_info import StoredFile
from chordcache.storage.find_sidecars import Sidecars, write_catalog
from chordcache.storage.lock import locked
from chordcache.storage.packs import aligned, packable, write_pack
from chordcache.storage.run_log import recorded
from chordcache.storage.sidecar import Sidecar

PACK_BYTES = 1 << 30
"""Default size of a pack [bytes]"""


_MAX_VIDEOS = 100_000
"""Largest number of videos in a pack: their sidecars are in memory while it is written"""


@dataclass(frozen=True)
class PackSummary:
    """The result of ``pack`` or ``unpack``."""

    num_videos: int
    """Number of videos that were moved"""
    num_packs: int
    """Number of packs that were written"""
    num_bytes: int
    """Size of the files of these videos [bytes]"""


def pack(cache: str | Path, *, size: int = PACK_BYTES, progress: bool = False) -> PackSummary:
    """Move the sidecars and files of a cache into packs, so that it has few files. The cache reads as before.

    Files of HDF5 stay where they are. The former files stay until ``collect_garbage`` removes them, and until then the
    cache takes twice its space. Packs that have less than half of ``size`` in use are packed again.

    Parameters
    ----------
    cache : str or Path
        A cache that no process builds.
    size : int
        Size of a pack [bytes], at least 1 MiB. A larger video has a pack of its own.
    progress : bool
        True to show a progress bar on standard error, if that is a terminal.

    Returns
    -------
    PackSummary
        Counts. They are 0 if there is nothing to pack.

    Raises
    ------
    UsageError
        If the size is too small.
    NotFoundError, FormatVersionError
        If the folder is not a cache of this format.
    DamageError
        If a sidecar or a file is not what was written. Repair the cache, then call again.
    LockedError
        If another process writes to the cache.
    NoSpaceError, StoppedError
        As their names say. The same call resumes.
    """
    if size < 1 << 20:
        raise UsageError(f"size: got {size} bytes, expected at least 1 MiB")
    folder = layout.cache_folder(cache)
    header = read_header(folder)  # raises before a lock is made in a folder that is not a cache
    with stop_signals(resumes=True), locked(folder), recorded(folder, "pack") as notes, atomic.writing_to(folder):
        atomic.remove_partials(folder)
        sidecars = Sidecars(folder)
        keys = _keys_to_pack(sidecars, size)
        if keys:
            write_header(folder, header)  # a cache of format version 3 has no packs
        atomic.check_space(folder, sum(_num_bytes(sidecars.read(key)) for key in keys))
        num_videos = num_packs = num_bytes = 0
        with terminal.progress_bar(len(keys), "video", shown=progress) as bar:
            for group in _groups(map(sidecars.read_stored, keys), size):
                write_pack(folder, group, sidecars.packs.last_number + num_packs + 1)
                for sidecar in group:
                    opener.remove(folder, layout.sidecar_file(sidecar.key))
                    bar.update()
                num_videos, num_packs = num_videos + len(group), num_packs + 1
                num_bytes += sum(map(_num_bytes, group))
        if num_packs:
            atomic.sync_sidecars(folder)  # before files of these videos are removed
            write_catalog(folder)
        notes.counts = {"num_done": num_videos, "num_packs": num_packs}
        notes.num_bytes = num_bytes
    return PackSummary(num_videos, num_packs, num_bytes)


def _num_bytes(sidecar: Sidecar) -> int:
    """Return the space of the files of a video in a pack [bytes]."""
    return sum(aligned(file.num_bytes) for file in packable(sidecar))


def _keys_to_pack(sidecars: Sidecars, size: int) -> list[str]:
    """Return the videos that are not in packs, and those in packs that have less than half of ``size`` in use."""
    alone: list[str] = []
    num_used: dict[str, int] = dict.fromkeys(sidecars.packs.numbers, 0)
    packed: dict[str, list[str]] = {name: [] for name in num_used}
    for key in sidecars.sorted_keys():
        owner = sidecars.packs.owner(key)
        if owner is None or opener.exists(sidecars.cache, layout.sidecar_file(key)):
            alone.append(key)
        else:
            packed[owner].append(key)
            sidecar, line, _ = sidecars.row(key)
            num_used[owner] += _num_bytes(sidecar) + len(line)
    sparse = [name for name, num_bytes in num_used.items() if num_bytes < size / 2 and packed[name]]
    shares = (num_used[name] / opener.size_of(sidecars.cache, layout.pack_file(name)) for name in sparse)
    if not alone and len(sparse) < 2 and all(share > 0.5 for share in shares):
        return []
    return sorted([*alone, *(key for name in sparse for key in packed[name])])


def _groups(sidecars: Iterable[Sidecar], size: int) -> Iterator[list[Sidecar]]:
    """Yield videos whose files together have at most ``size`` bytes, or a single one. Their number is bounded too."""
    group: list[Sidecar] = []
    num_bytes = 0
    for sidecar in sidecars:
        if group and (num_bytes + _num_bytes(sidecar) > size or len(group) == _MAX_VIDEOS):
            yield group
            group, num_bytes = [], 0
        group.append(sidecar)
        num_bytes += _num_bytes(sidecar)
    if group:
        yield group


def unpack(cache: str | Path, *, progress: bool = False) -> PackSummary:
    """Give all videos in packs files of their own again. ``collect_garbage`` removes the packs.

    Parameters
    ----------
    cache, progress
        As in ``pack``.

    Returns
    -------
    PackSummary
        Counts of what was moved. ``num_packs`` is the number of packs that are not used any more.

    Raises as ``pack`` does.
    """
    folder = layout.cache_folder(cache)
    read_header(folder)
    with stop_signals(resumes=True), locked(folder), recorded(folder, "unpack") as notes, atomic.writing_to(folder):
        atomic.remove_partials(folder)
        sidecars = Sidecars(folder)
        keys = [key for key in sidecars.sorted_keys() if _is_packed(sidecars, key)]
        num_bytes = sum(_num_bytes(sidecars.read(key)) for key in keys)
        atomic.check_space(folder, num_bytes)
        with terminal.progress_bar(len(keys), "video", shown=progress) as bar:
            for key in keys:
                copy_video(folder, folder, sidecars.read_stored(key))
                bar.update()
        if keys:
            write_catalog(folder)
        notes.counts = {"num_done": len(keys)}
        notes.num_bytes = num_bytes
    return PackSummary(len(keys), len(sidecars.packs.numbers), num_bytes)


def _is_packed(sidecars: Sidecars, key: str) -> bool:
    """Return whether the sidecar of a video or one of its files is only in a pack."""
    return not opener.exists(sidecars.cache, layout.sidecar_file(key)) or bool(sidecars.read_stored(key).packs)


def copy_video(
    source: Path,
    target: Path,
    sidecar: Sidecar,
    copy: Callable[[Path, StoredFile, Path], None] = feature_files.copy,
) -> None:
    """Link or copy the files of a video into another cache, or out of packs, then publish its sidecar as a file.

    ``copy`` makes a durable copy of a file of a cache. Raises as it does.
    """
    files = [file for file in sidecar.files if source != target or file.packed is not None]
    with atomic.partial_folder(target) as folder:
        copies = {folder / str(number): file for number, file in enumerate(files)}
        for partial, file in copies.items():
            copy(source, file, partial)
        atomic.publish_all(target, {partial: file.name for partial, file in copies.items()}, are_synced=True)
    atomic.publish_text(target, layout.sidecar_file(sidecar.key), sidecar.unpacked().to_line() + "\n")
