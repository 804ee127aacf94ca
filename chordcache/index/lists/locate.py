"""The files that a list names: their roots, and those that do not exist."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from chordcache.errors import UsageError, printable
from chordcache.index.file_names import ListRoots
from chordcache.index.walk import parse_roots
from chordcache.storage.layout import path_problem

_ANY_SUFFIX = ".*"
_SUFFIXES = (".mp4", ".mkv", ".webm", ".avi", ".mov")
"""Suffixes that ".*" stands for, in the order in which they are tried"""


class Place(NamedTuple):
    """The place of a file that a list names."""

    root: str
    """Label of the root"""
    path: str
    """Path relative to the root"""
    exists: bool
    is_first: bool
    """True if no earlier row named the file"""


class OutsideError(UsageError):
    """A path that lies outside of all roots."""


class Locator(ListRoots):
    """A function from the paths of a list to files below named roots. It looks at each file once.

    ``videos`` are folders, or NAME=PATH, by default ``folder``. Relative paths are relative to the first. Raises as
    ``parse_roots`` does, and ``UsageError`` if one is a file.
    """

    def __init__(self, videos: Sequence[str], folder: Path) -> None:
        corpora = parse_roots(list(videos) or [os.fspath(folder)])
        for corpus in corpora:
            if corpus.names:
                raise UsageError(f"videos: got the file '{printable(corpus.names[0])}', expected a folder")
        super().__init__(corpora[0].folder, {corpus.label: corpus.folder for corpus in corpora})
        self._last: tuple[str, Place] | None = None
        self._suffixes: dict[int, str | None] = {}
        """Hash of root and path to the suffix that replaces ".*", or None if the file does not exist"""

    def find(self, path: str) -> Place:
        """Return the place of a file.

        Raises ``UsageError`` if the path is not a file name or lies outside of all roots.
        """
        if self._last is not None and self._last[0] == path:  # most lists name the segments of a file in a row
            return self._last[1]
        file = self._look_up(*self._checked_place(path))
        self._last = (path, file._replace(is_first=False))
        return file

    def _look_up(self, root: str, inner: str) -> Place:
        stem = inner.removesuffix(_ANY_SUFFIX)
        key = hash((root, inner))
        is_first = key not in self._suffixes
        if is_first:
            suffixes = ("",) if stem == inner else _SUFFIXES
            start = os.path.join(self.roots[root], stem)
            self._suffixes[key] = next((suffix for suffix in suffixes if _is_file(start + suffix)), None)
        suffix = self._suffixes[key]
        return Place(root, inner if suffix is None else stem + suffix, suffix is not None, is_first)

    def real_of(self, place: Place) -> str:
        """Return the real name of a file that was found."""
        return self.real(os.path.join(self.roots[place.root], place.path))

    def _checked_place(self, path: str) -> tuple[str, str]:
        """Return the label of the root of a path, and the path relative to the root."""
        place = self.place(path)
        problem = path_problem(place[1]) if place is not None else None
        if problem or "\0" in path:
            raise UsageError(f"the path '{printable(path)}' cannot be used: {problem or 'it contains NUL'}")
        if place is None:
            raise OutsideError(
                f"got the path '{printable(path)}', expected one in '{printable(self._base)}'. "
                "Give the folder that has it too: videos (--videos NAME=PATH)."
            )
        return place


def _is_file(path: str) -> bool:
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except OSError:
        return False
