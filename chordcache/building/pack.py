"""``pack`` and ``unpack``: copy a cache into a read-only one of few files, and back, without decoding."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from chordcache.amounts import counted
from chordcache.building.existing_cache import TOP_LEVEL
from chordcache.engine import terminal
from chordcache.engine.signals import stop_signals
from chordcache.errors import DamageError, NotFoundError, UsageError, printable
from chordcache.storage import atomic, feature_files, layout, opener
from chordcache.storage.artefacts.tiers import TIERS
from chordcache.storage.cache_header import Header, read_header, write_header
from chordcache.storage.catalog_columns import publish_catalog
from chordcache.storage.catalog_file import CATALOG
from chordcache.storage.feature_files import FeatureFiles
from chordcache.storage.feature_info import StoredFile
from chordcache.storage.find_sidecars import Sidecars, write_catalog
from chordcache.storage.lock import locked, locked_for_reading
from chordcache.storage.packs import num_bytes_in_pack, placed, write_pack
from chordcache.storage.sidecar import Sidecar

PACK_BYTES = 1 << 30
"""Default size of a pack [bytes]"""

_LISTS = ("index.jsonl", "quarantine.jsonl", "runs.jsonl")
"""Files that both forms of a cache have"""


@dataclass(frozen=True)
class PackSummary:
    """The result of ``pack`` or ``unpack``."""

    num_videos: int
    """Number of videos"""
    num_packs: int
    """Number of packs of the packed cache"""
    num_bytes: int
    """Size of the files of these videos [bytes]"""


def pack(
    cache: str | Path, output: str | Path, *, size: int = PACK_BYTES, move: bool = False, progress: bool = False
) -> PackSummary:
    """Copy a cache into a packed one: a few large files, which are read, verified, pushed and unpacked.

    A packed cache is read-only: commands that change a cache refuse it.

    Parameters
    ----------
    cache : str or Path
        A cache that no process builds.
    output : str or Path
        Folder of the packed cache, new or of the same call that was killed.
    size : int
        Size of a pack [bytes], at least 1 MiB. A larger video has a pack of its own.
    move : bool
        True to remove ``cache`` when the packed one is complete.
    progress : bool
        True to show a progress bar on standard error, if that is a terminal.

    Returns
    -------
    PackSummary
        Counts.

    Raises
    ------
    UsageError
        If the size is too small, ``cache`` is packed, or ``output`` holds something else.
    NotFoundError
        If the folder is not a cache of this format.
    DamageError
        If a sidecar or a file is not what was written. Repair the cache, then call again.
    LockedError
        If another process writes to one of the folders.
    StorageError, StoppedError
        As their names say. The same call resumes.
    """
    if size < 1 << 20:
        raise UsageError(f"size: got {size} bytes, expected at least 1 MiB")
    source, target = layout.cache_folder(cache), layout.cache_folder(output)
    header = read_header(source).writable(source)
    with _copying(source, target, header.replace(is_packed=True), move) as is_complete:
        sidecars = Sidecars(source)
        keys = sidecars.sorted_keys()
        if not is_complete:
            atomic.check_space(target, sum(num_bytes_in_pack(sidecars.read(key)) for key in keys))
            with terminal.progress_bar(len(keys), "video", shown=progress) as bar:
                for group in placed((sidecars.stored_row(key)[0] for key in keys), size):
                    write_pack(source, target, group)
                    bar.update(len(group))
            groups = placed((sidecars.stored_row(key)[0] for key in keys), size)
            rows = (sidecar for group in groups for sidecar in group)
            publish_catalog(target, ((sidecar, f"{sidecar.to_line()}\n".encode("ascii"), 0) for sidecar in rows))
            _complete(source, target, header.replace(is_packed=True))
        summary = _summary(Sidecars(target))
        if move:
            _remove(source, sidecars, Sidecars(target))
    return summary


def unpack(cache: str | Path, output: str | Path, *, move: bool = False, progress: bool = False) -> PackSummary:
    """Copy a packed cache into one that can be built on.

    Parameters
    ----------
    cache : str or Path
        A packed cache.
    output : str or Path
        Folder of the cache, new or of the same call that was killed.
    move : bool
        True to remove ``cache`` when the other one is complete.
    progress : bool
        As in ``pack``.

    Returns
    -------
    PackSummary
        Counts.

    Raises as ``pack`` does.
    """
    source, target = layout.cache_folder(cache), layout.cache_folder(output)
    header = read_header(source)
    if not header.is_packed:
        raise UsageError(f"cache: got '{printable(source)}', which is not packed, expected a packed cache")
    with _copying(source, target, header.replace(is_packed=False), move) as is_complete:
        sidecars = Sidecars(source)
        summary, problems = _summary(sidecars), list[DamageError]()
        if not is_complete:
            written, files, keys = Sidecars(target), FeatureFiles(target), sidecars.sorted_keys()
            atomic.check_space(target, summary.num_bytes)
            with terminal.progress_bar(len(keys), "video", shown=progress) as bar:
                for key in keys:
                    sidecar, there = sidecars.read(key), written.read_or_none(key)
                    if there != sidecar.unpacked() or not all(map(files.has, there.files)):
                        try:
                            copy_video(source, target, sidecar)
                        except DamageError as error:
                            problems.append(error)
                            for file in sidecar.files:
                                with suppress(DamageError):
                                    _copy_files(source, target, [file])
                            atomic.publish_text(target, layout.sidecar_file(key), sidecar.unpacked().to_line() + "\n")
                    bar.update()
            write_catalog(target)
            _complete(source, target, header.replace(is_packed=False))
        if problems:
            what = f"{counted(len(problems), 'video')} of '{printable(source)}' came without their damaged files"
            command = f"chordcache verify --repair {printable(target)}"
            raise DamageError(f"{what}, such as: {str(problems[0]).partition('; run')[0]}; run '{command}'")
        if move:
            _remove(source, sidecars, Sidecars(target))
    return summary


@contextmanager
def _copying(source: Path, target: Path, header: Header, move: bool) -> Iterator[bool]:
    """Lock both folders, and yield whether the target is complete, so that only the source is left to remove.

    ``header`` is that of the complete target. Raises ``UsageError`` if the target holds something else.
    """
    if source == target:
        raise UsageError(f"output: got '{printable(target)}', which is the cache itself, expected another folder")
    is_complete = False
    with stop_signals(resumes=True), (locked if move else locked_for_reading)(source), locked(target):
        try:
            is_complete = read_header(target) == header
            others = {"chordcache.json"} if not (move and is_complete) else set()
        except NotFoundError:
            others = set(opener.list_folder(target)) - TOP_LEVEL
        if others:
            what = f"which holds '{printable(min(others))}', expected a new folder"
            raise UsageError(f"output: got '{printable(target)}', {what}. Name another one.")
        with atomic.writing_to(target):
            atomic.remove_partials(target)
            yield is_complete


def _complete(source: Path, target: Path, header: Header) -> None:
    """Copy the lists, then write the header, without which the target is not a cache."""
    for name in filter(lambda name: opener.exists(source, name), _LISTS):
        with atomic.partial_file(target) as partial:
            atomic.link_or_copy(source, name, partial)
            atomic.publish_all(target, {partial: name})
    write_header(target, header)


def _summary(sidecars: Sidecars) -> PackSummary:
    """Return the counts of a packed cache."""
    num_videos, num_bytes, packs = 0, 0, set[str]()
    for sidecar in map(sidecars.read, sidecars.sorted_keys()):
        num_videos, num_bytes = num_videos + 1, num_bytes + sidecar.num_bytes()
        packs |= sidecar.packs
    return PackSummary(num_videos, len(packs), num_bytes)


def _remove(source: Path, sidecars: Sidecars, copies: Sidecars) -> None:
    """Remove a cache whose videos another one has. It stays a cache as long as it can, so a kill loses nothing."""
    for sidecar in map(sidecars.read, sidecars.sorted_keys()):
        copy = copies.read_or_none(sidecar.key)
        if copy is None or copy.unpacked() != sidecar.unpacked():
            what = f"another '{printable(sidecar.key)}' than the copy in '{printable(copies.cache)}'"
            raise UsageError(f"cache: got {what}, expected the same. Name another output.")
    if sidecars.is_packed:  # its sidecars are in the catalog
        names = [layout.PACKS, *TIERS, *_LISTS, "chordcache.json", CATALOG]
    else:
        names = [CATALOG, *TIERS, "videos", *_LISTS, "chordcache.json"]
    for name in [".partial", *names, ".lock"]:
        path = source / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    with suppress(OSError):  # a file of the user is in it
        source.rmdir()


def _copy_files(source: Path, target: Path, files: Sequence[StoredFile], *, trusts_links: bool = False) -> None:
    with atomic.partial_folder(target) as folder:
        copies = {folder / str(number): file for number, file in enumerate(files)}
        for partial, file in copies.items():
            feature_files.copy_checked(source, file, partial, trusts_links=trusts_links)
        atomic.publish_all(target, {partial: file.name for partial, file in copies.items()}, are_synced=True)


def copy_video(source: Path, target: Path, sidecar: Sidecar, *, trusts_links: bool = False) -> None:
    """Link or copy the files of a video into another cache, then publish its sidecar. Raises as ``copy_checked``."""
    _copy_files(source, target, sidecar.files, trusts_links=trusts_links)
    atomic.publish_text(target, layout.sidecar_file(sidecar.key), sidecar.unpacked().to_line() + "\n")
