"""The arguments of a page, checked before any work."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

from chordcache.errors import UsageError, printable
from chordcache.storage.layout import check_local

MAX_TILES = 20_000
"""Videos of a page that has not been asked for more. Figures are always of all videos"""

_MIN_MEGABYTES = 0.5
"""Least size of a page. Its scripts, styles and lists need a part of it, [MB]"""


@dataclass(frozen=True)
class Options:
    """The checked arguments of ``report``."""

    path: Path
    output: Path
    max_bytes: int
    num_videos: int | None
    """Number of videos that have a tile, None for all"""
    folder: Path | None
    """Folder for the pictures, None if they are inside of the page"""
    progress: bool

    @property
    def is_cache(self) -> bool:
        """True if the page is of a cache, False if it is of an index."""
        return not self.path.is_file()


def check_options(
    path: Path,
    output: Path,
    max_mb: float,
    num_videos: int | None,
    *,
    verify: Path | None,
    has_folder: bool,
    progress: bool,
) -> Options:
    """Return the arguments of a page. See ``report``.

    Raises
    ------
    UsageError
        If one is wrong.
    """
    check_local("output", output)
    if not (math.isfinite(max_mb) and max_mb >= _MIN_MEGABYTES):
        raise UsageError(f"max_mb: got {max_mb}, expected at least {_MIN_MEGABYTES}")
    if num_videos is not None and num_videos < 1:
        raise UsageError(f"num_videos: got {num_videos}, expected at least 1")
    try:
        _check_output(output, path, verify)
    except (OSError, ValueError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"output: cannot write '{printable(output)}': {error}") from None
    folder = output.with_name(f"{output.stem}_files") if has_folder else None
    return Options(path, output, int(max_mb * 1e6), num_videos, folder, progress)


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
    if any((each / "chordcache.json").exists() for each in (folder, *folder.parents)):
        raise UsageError(f"output: got '{name}', a file in the cache, expected one outside of it")
