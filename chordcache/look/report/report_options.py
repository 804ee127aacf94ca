"""The arguments of a page, checked before any work."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from chordcache.errors import UsageError, printable
from chordcache.storage.layout import check_local

MAX_TILES = 10_000
"""Largest number of videos that a page shows. A tile has about 12 kB"""


@dataclass(frozen=True)
class Options:
    """The checked arguments of ``report``."""

    path: Path
    output: Path
    num_videos: int
    """Largest number of videos that have a tile"""
    progress: bool

    @property
    def is_cache(self) -> bool:
        """True if the page is of a cache, False if it is of an index."""
        return not self.path.is_file()


def check_options(path: Path, output: Path, num_videos: int, *, verify: Path | None, progress: bool) -> Options:
    """Return the arguments of a page. See ``report``.

    Raises
    ------
    UsageError
        If one is wrong.
    """
    check_local("output", output)
    if not 1 <= num_videos <= MAX_TILES:
        raise UsageError(f"num_videos: got {num_videos}, expected 1 to {MAX_TILES}")
    try:
        _check_output(output, path, verify)
    except (OSError, ValueError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"output: cannot write '{printable(output)}': {error}") from None
    return Options(path, output, num_videos, progress)


def _check_output(output: Path, path: Path, verify: Path | None) -> None:
    """Refuse an output that cannot be a new file, or that would replace what the page is made from."""
    name = printable(output)
    if output.is_dir():
        raise UsageError(f"output: got the folder '{name}', expected a file")
    if not output.parent.is_dir():
        raise UsageError(f"output: got '{name}', expected a file in a folder that exists")
    if output.exists():
        if not output.is_file():
            raise UsageError(f"output: got '{name}', which is not a regular file, expected a file")
        for parameter, source in (("path", path), ("verify", verify)):
            if source is not None and source.exists() and os.path.samefile(output, source):
                raise UsageError(f"output: got '{name}', which is also '{parameter}', expected another file")
    folder = Path(os.path.realpath(output.parent))
    if any((parent / "chordcache.json").exists() for parent in (folder, *folder.parents)):
        raise UsageError(f"output: got '{name}', a file in the cache, expected one outside of it")
