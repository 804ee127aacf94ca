"""One name for each file, however a list spells its path, roots for the files that a list names, and suffixes."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import pairwise

from chordcache.object_stores.client import object_path
from chordcache.records import Segment, VideoRecord

VIDEO_SUFFIXES = frozenset(
    "mp4 m4v mov qt mkv webm avi flv f4v wmv asf mpg mpeg mpe m1v m2v mp2v vob ts mts m2ts m2t 3gp 3g2 ogv ogm mxf gif "
    "ivf h264 264 avc h265 265 hevc av1 obu y4m dv rm rmvb nut mjpeg mjpg apng".split()
)
"""Suffixes of files that are probed. A broken file becomes a visible failure."""

_MAX_FOLDERS = 1 << 16
"""Number of folders whose real names are kept"""


class FileNames:
    """The real names of files: absolute, without ".", ".." and links of folders.

    A link to a file is a file of its own, as in a scan. Hard links are, too.
    """

    def __init__(self) -> None:
        self._folders: dict[str, str] = {}

    def real(self, path: str) -> str:
        """Return the real name of the file at an absolute path."""
        folder, _, name = path.rpartition("/")  # os.path takes three times as long
        if name in ("", ".", ".."):
            return self.folder(path)
        return f"{self.folder(folder or '/').rstrip('/')}/{name}"

    def folder(self, path: str) -> str:
        """Return the real name of the folder at an absolute path."""
        real = self._folders.get(path)
        if real is None:
            if len(self._folders) >= _MAX_FOLDERS:
                self._folders.clear()
            real = os.path.normpath(path) if "\0" in path else os.path.realpath(path)
            self._folders[path] = real
        return real

    def place(self, path: str, roots: Mapping[str, str]) -> tuple[str, str] | None:
        """Return label and relative path of the file at an absolute path, in the first root that has it, or None.

        A path through a link that leads out of all roots stays as it is. Builds decide about such links.
        """
        real = self.real(path)
        for label, folder in roots.items():
            if (inner := below(real, self.folder(folder))) is not None:
                return label, inner
        if ".." in path.split("/"):
            return None
        text = os.path.normpath(path)
        inners = ((label, below(text, folder)) for label, folder in roots.items())
        return next(((label, inner) for label, inner in inners if inner is not None), None)


def below(path: str, folder: str) -> str | None:
    """Return a path relative to a folder, "" for the folder itself, or None if it is not below it."""
    if not path.startswith(folder):
        return None
    inner = path[len(folder) :]
    return inner.lstrip("/") if not inner or inner[0] == "/" or folder == "/" else None


class ListRoots:
    """The roots of the files that a list names: ``roots``, label to absolute folder.

    Relative paths begin in ``base``.
    """

    def __init__(self, base: str, roots: Mapping[str, str]) -> None:
        self.base, self.roots = base, dict(roots)
        self._names = FileNames()

    def real(self, path: str) -> str:
        """Return the real name of the file at a path, which two spellings have in common."""
        return self._names.real(self._absolute(path))

    def place(self, path: str) -> tuple[str, str] | None:
        """Return root label and relative path of the file at a path, or None if it lies outside of all roots."""
        return self._names.place(self._absolute(path), self.roots)

    def _absolute(self, path: str) -> str:
        return path if path[:1] == "/" else object_path(path) or f"{self.base}/{path}"  # os.path.join is slow

    def add_outer_roots(self, paths: Iterable[str]) -> dict[str, str]:
        """Add roots for the paths outside of all others: the innermost folder of those below each top-level folder.

        Return label to folder. A label that another folder has becomes the whole path with dashes.
        """
        common_of: dict[str, str] = {}
        for path in paths:
            if self.place(path) is None:
                folder = os.path.dirname(self.real(path))
                top = folder.split("/")[1]
                common_of[top] = os.path.commonpath([common_of.get(top, folder), folder])
        folders = [folder for _, folder in sorted(common_of.items())]
        names = Counter([*self.roots, *map(os.path.basename, folders)])
        added = {
            (name if name and names[name] == 1 else folder.strip("/").replace("/", "-") or "root"): folder
            for folder in folders
            for name in (os.path.basename(folder),)
        }
        self.roots |= added
        return added


def roots_note(roots: Mapping[str, str]) -> str:
    """Return the sentence about roots that were made for the paths of a list."""
    named = ", ".join(f"'{label}' is {folder}" for label, folder in roots.items())
    return f"the list has paths outside of its folder, which are in roots of their own: {named}"


class SameFiles:
    """Names of files that are equal for records of one file in two roots, which map a label to an absolute folder.

    ``can_be`` is True if one root is inside another. Otherwise records of two roots never have the same file.
    """

    def __init__(self, roots: Mapping[str, str]) -> None:
        self._roots, self._names = roots, FileNames()
        folders = sorted(os.path.join(self._names.folder(folder), "") for folder in roots.values())
        self.can_be = any(inner.startswith(outer) for outer, inner in pairwise(folders))

    def key(self, record: VideoRecord) -> tuple[str, Segment | None]:
        """Return the real name of a record's file, and its segment."""
        return self._names.real(os.path.join(self._roots[record.root], record.path)), record.segment
