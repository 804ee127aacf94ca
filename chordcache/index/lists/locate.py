"""The files that a list names: their roots, and those that do not exist."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from chordcache.errors import UsageError, printable
from chordcache.index.file_names import ListRoots
from chordcache.index.walk import parse_roots
from chordcache.media.source_file import FolderLooks
from chordcache.storage.layout import path_problem

NUM_EXAMPLES = 5
"""Number of missing files, and of videos without a caption, that a summary names"""

_ANY_SUFFIX = ".*"
_SUFFIXES = (".mp4", ".mkv", ".webm", ".avi", ".mov")
"""Suffixes that ".*" stands for, in the order in which they are tried"""


class FoundFile(NamedTuple):
    """The place of a file that a list names."""

    root: str
    """Label of the root"""
    path: str
    """Path relative to the root"""
    real: str
    """Real name of the file"""


class Locator:
    """A function from the paths of a list to files below named roots. It looks at each file once.

    ``videos`` are folders, or NAME=PATH, by default ``folder``. Relative paths are relative to the first. Raises as
    ``parse_roots`` does, and ``UsageError`` if one is a file.
    """

    def __init__(self, videos: Sequence[str], folder: Path) -> None:
        corpora = parse_roots(list(videos) or [os.fspath(folder)])
        for corpus in corpora:
            if corpus.names:
                raise UsageError(f"videos: got the file '{printable(corpus.names[0])}', expected a folder")
        self.places = ListRoots(corpora[0].folder, {corpus.label: corpus.folder for corpus in corpora})
        self._looks = FolderLooks()
        self._suffixes: dict[int, str | None] = {}
        """Hash of root and path to the suffix that replaces ".*", or None if the file does not exist"""
        self.missing: list[str] = []
        """Relative paths of the first files that do not exist"""
        self.find = lru_cache(16)(self._find)  # most lists name the segments of a file in a row
        """Function of a path that returns the place of its file, or None if it does not exist. Raises ``UsageError`` if
        the path is not a file name or lies outside of all roots"""

    def _find(self, path: str) -> FoundFile | None:
        place = self.places.place(path)
        problem = "it contains NUL" if "\0" in path else path_problem(place[1]) if place is not None else None
        if problem:
            raise UsageError(f"the path '{printable(path)}' cannot be used: {problem}")
        if place is None:
            raise UsageError(
                f"got the path '{printable(path)}', expected one in '{printable(self.places.base)}'. "
                "Give the folder that has it too: videos (--videos NAME=PATH)."
            )
        root, inner = place
        stem = inner.removesuffix(_ANY_SUFFIX)
        if hash(place) not in self._suffixes:
            suffixes = ("",) if stem == inner else _SUFFIXES
            start = os.path.join(self.places.roots[root], stem)
            suffix = next((suffix for suffix in suffixes if self._looks.has_source(start + suffix)), None)
            self._suffixes[hash(place)] = suffix
            if suffix is None and len(self.missing) < NUM_EXAMPLES:
                self.missing.append(inner)
        suffix = self._suffixes[hash(place)]
        if suffix is None:
            return None
        return FoundFile(root, stem + suffix, self.places.real(os.path.join(self.places.roots[root], stem + suffix)))

    @property
    def num_missing(self) -> int:
        """Number of files so far that do not exist."""
        return sum(suffix is None for suffix in self._suffixes.values())

    @property
    def num_files(self) -> int:
        """Number of files so far that exist."""
        return len(self._suffixes) - self.num_missing
