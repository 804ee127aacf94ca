"""The check that a node of a cluster runs before its first task: the same programs, the same disks."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from chordcache import __version__
from chordcache.errors import NoSpaceError, printable
from chordcache.storage.owner import run_of
from chordcache.storage.scratch import scratch_problem

_OPENCV = tuple(f"opencv-{each}" for each in ("python-headless", "python", "contrib-python-headless", "contrib-python"))

_NUM_FILES = 3


def versions() -> dict[str, str]:
    """Return the versions of what decides about the content of a cache."""
    found = {"chordcache": __version__}
    for name in ("av", "numpy", "simplejpeg"):
        found[name] = importlib.metadata.version(name)
    for name in _OPENCV:
        with suppress(importlib.metadata.PackageNotFoundError):
            found["OpenCV"] = importlib.metadata.version(name)
            break
    return found


@dataclass(frozen=True)
class NodeCheck:
    """A callable that returns the reason why the process that runs it cannot work for a run, or None."""

    versions: Mapping[str, str]
    cache: Path | None
    """Cache that the run writes to, or None"""
    run_folder: Path | None
    """Folder with the record of the run: that of the cache, or of a part of it"""
    run: str | None
    """Name of the run in that record"""
    sizes: Mapping[str, int]
    """Files that must be there, and their sizes, [bytes]"""
    scratch: Path | None = None
    """Folder of the node's own disk that workers write in, or None"""

    def __call__(self) -> str | None:
        """Compare this process with the one where the run began."""
        here = versions()
        for name, version in self.versions.items():
            if here.get(name) != version:
                return f"{name} is {here.get(name, 'not installed')} there, and {version} where the run began"
        if self.cache is not None and self.run_folder is not None and run_of(self.run_folder) != self.run:
            return f"cache '{printable(self.cache)}' is not there, or is another folder"
        if self.cache is not None and not os.access(self.cache, os.W_OK):
            return f"cache '{printable(self.cache)}' cannot be written to"
        if self.cache is not None and self.scratch is not None:
            try:
                problem = scratch_problem(self.scratch, self.cache)
            except NoSpaceError as error:
                return str(error)
            if problem is not None:
                return f"scratch '{printable(self.scratch)}' there {problem}"
        for path, size in self.sizes.items():
            try:
                found = os.stat(path).st_size
            except OSError as error:
                return f"'{printable(path)}' is not there ({error.strerror})"
            if found != size:
                return f"'{printable(path)}' has {found} bytes there, and {size} where the run began"
        return None


def check_for(
    paths: Iterable[str | Path],
    cache: Path | None = None,
    run_folder: Path | None = None,
    scratch: Path | None = None,
) -> NodeCheck:
    """Return the check for a run that reads files, and writes to a cache that this process owns.

    Parameters
    ----------
    paths : iterable of str or Path
        Files that the run reads. The first three that exist here must exist on each node.
    cache : Path, optional
        The cache that the run writes to.
    run_folder : Path, optional
        Folder with the record of the run, by default the cache.
    scratch : Path, optional
        Folder of each node's own disk that workers write in.
    """
    sizes: dict[str, int] = {}
    for path in paths:
        with suppress(OSError):
            sizes[os.fspath(path)] = os.stat(path).st_size
        if len(sizes) == _NUM_FILES:
            break
    run_folder = run_folder or cache
    run = run_of(run_folder) if run_folder else None
    return NodeCheck(versions(), cache, run_folder, run, sizes, scratch)
