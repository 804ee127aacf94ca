"""The folder that a build writes to, which may hold a cache already."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from chordcache import __version__
from chordcache.errors import DamageError, NotFoundError, UsageError, printable
from chordcache.index.files import read_index
from chordcache.storage import layout
from chordcache.storage.cache_header import Header, read_header
from chordcache.storage.owner import OWNER_FILE
from chordcache.storage.parts import PARTS
from chordcache.storage.run_log import RUNS_FILE


def tool_versions() -> dict[str, str]:
    """Return the versions of the tools that decide whether and how an input is decoded."""
    tools = {name: importlib.metadata.version(name) for name in ("av", "simplejpeg")}
    return {"chordcache": __version__, **tools}


def earlier_header(folder: Path) -> Header | None:
    """Return the header of an existing cache, or None if the cache does not exist or its header is damaged or lost.

    Raises
    ------
    UsageError
        If the folder holds something other than a cache.
    """
    try:
        return read_header(folder)
    except (NotFoundError, DamageError):
        pass
    except (OSError, ValueError) as error:
        raise UsageError(f"'{printable(folder)}' cannot be a cache: {error}; name another folder with -o") from None
    if folder.is_file():
        raise UsageError(f"'{printable(folder)}' is a file; name a folder for the cache with -o")
    names = set(os.listdir(folder)) - {".lock", OWNER_FILE, ".partial", PARTS, RUNS_FILE} if folder.is_dir() else set()
    if not names or "chordcache.json" in names or next(layout.iter_keys(folder), None) is not None:
        return None
    if names == {"index.jsonl"}:  # a build was killed after it wrote the index
        read_index(folder / "index.jsonl")
        return None
    raise UsageError(
        f"'{printable(folder)}' is not a cache and not empty (it holds '{printable(min(names))}'); "
        "name another folder with -o"
    )


@contextmanager
def repairable(cache: Path) -> Iterator[None]:
    """Add the command that repairs a damaged list of the cache to its error."""
    try:
        yield
    except DamageError as error:
        raise DamageError(f"{error}; run 'chordcache verify --repair {printable(cache)}'") from None
