"""The registration of a build: the header and the index of a cache, written before any video is built."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from chordcache import __version__
from chordcache.config import Config, config_from_json
from chordcache.errors import DamageError, NotFoundError, UsageError, printable
from chordcache.index.files import Index, IndexWriter, read_index
from chordcache.pipeline.plan import Features
from chordcache.storage import atomic, layout
from chordcache.storage.cache_header import Header, read_header, write_header


def tool_versions() -> dict[str, str]:
    """Return the versions of the tools that decide whether and how an input is decoded."""
    tools = {name: importlib.metadata.version(name) for name in ("av", "simplejpeg")}
    return {"chordcache": __version__, **tools}


def earlier_config(folder: Path) -> Config | None:
    """Return the config of an existing cache, or None if there is no cache or its header is damaged or lost.

    Raises
    ------
    UsageError
        If the folder holds something other than a cache.
    """
    try:
        return config_from_json(read_header(folder).config)
    except (NotFoundError, DamageError):
        pass
    except (OSError, ValueError) as error:
        raise UsageError(f"'{printable(folder)}' cannot be a cache: {error}; name another folder with -o") from None
    if folder.is_file():
        raise UsageError(f"'{printable(folder)}' is a file; name a folder for the cache with -o")
    names = set(os.listdir(folder)) - {".lock", ".partial"} if folder.is_dir() else set()
    if not names or "chordcache.json" in names or next(layout.iter_keys(folder), None) is not None:
        return None
    if names == {"index.jsonl"}:  # a build was killed after it wrote the index
        read_index(folder / "index.jsonl")
        return None
    raise UsageError(
        f"'{printable(folder)}' is not a cache and not empty (it holds '{printable(min(names))}'); "
        "name another folder with -o"
    )


def wanted_before(cache: Path) -> Features:
    """Return what earlier builds of a cache were asked for."""
    try:
        return read_header(cache).wanted
    except (NotFoundError, DamageError):
        return {}


def keys_of(index: Index) -> set[str]:
    """Return the keys of all videos of an index.

    Raises
    ------
    UsageError
        If the index names a video twice.
    """
    keys: set[str] = set()
    for record in index:
        key = layout.video_key(record.root, record.path)
        if key in keys:
            raise UsageError(f"the index names '{printable(record.path)}' of root '{record.root}' twice")
        keys.add(key)
    return keys


def register(cache: Path, index: Index, keys: Container[str], header: Header, moved: Container[str]) -> Header:
    """Write the index and the header. The index gets the new records, and earlier ones that the new index lacks.

    Parameters
    ----------
    cache : Path
        The cache. The caller must hold its lock.
    index : Index
        The videos to build.
    keys : container of str
        Keys of these videos, see ``keys_of``.
    header : Header
        Header with the roots of this index. Other roots of the cache are kept.
    moved : container of str
        Labels of roots that the caller has moved on purpose.

    Returns
    -------
    Header
        The header as written: with all roots, and ``follow_symlinks`` or ``source_hash`` if any build so far set it.

    Raises
    ------
    UsageError
        If a root has the label of another folder of the cache.
    DamageError
        If the existing index is damaged.
    """
    atomic.remove_partials(cache)
    path = cache / "index.jsonl"
    with repairable(cache), atomic.partial_folder(cache) as folder:
        earlier = read_index(path) if path.exists() else None
        roots = _joined_roots(earlier.roots if earlier else {}, header.roots, moved)
        follow = header.follow_symlinks or index.follow_symlinks or (earlier is not None and earlier.follow_symlinks)
        with IndexWriter(folder / path.name, roots=roots, level=index.level, follow_symlinks=follow) as writer:
            for record in earlier or ():
                if layout.video_key(record.root, record.path) not in keys:
                    writer.write(record)
            for record in index:
                writer.write(record)
        atomic.publish(folder / path.name, path)
    header = replace(header, roots=roots, follow_symlinks=follow, source_hash=header.source_hash or _had_hash(cache))
    write_header(cache, header)
    return header


def _had_hash(cache: Path) -> bool:
    try:
        return read_header(cache).source_hash
    except (NotFoundError, DamageError):
        return False


def _joined_roots(earlier: Mapping[str, str], roots: Mapping[str, str], moved: Container[str]) -> dict[str, str]:
    """Return the roots of the cache and of this index. One label must not name two folders: it would mix up videos."""
    for label in earlier.keys() & roots.keys():
        old, new = printable(earlier[label]), printable(roots[label])
        if old != new and label not in moved:
            raise UsageError(
                f"root '{label}' of this cache is '{old}', the index says '{new}'; "
                f"say --root {label}={new} if it moved, or scan with another NAME=PATH"
            )
    return {**earlier, **roots}


@contextmanager
def repairable(cache: Path) -> Iterator[None]:
    """Add the command that repairs a damaged list of the cache to its error."""
    try:
        yield
    except DamageError as error:
        raise DamageError(f"{error}; run 'chordcache verify --repair {printable(cache)}'") from None
