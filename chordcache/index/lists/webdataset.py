"""Tar files of samples as WebDataset has them: the members of one name are a video, its text, and its JSON."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from chordcache.config.bounds import MAX_ROW_BYTES
from chordcache.errors import MediaError, NotFoundError, UsageError, printable
from chordcache.index.encoding import decoded
from chordcache.index.file_names import VIDEO_SUFFIXES
from chordcache.index.lists.items import ItemList, ListOptions
from chordcache.index.lists.pairs import Pair, paired_list
from chordcache.index.lists.tables import Row, object_in
from chordcache.index.walk import iter_files
from chordcache.media.inner_source import read_member
from chordcache.media.picture_folders import is_picture
from chordcache.media.source_bytes import opened
from chordcache.media.tar_members import Member, TarTable, read_table
from chordcache.storage.layout import path_problem

_SUFFIXES = (".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst")
"""Suffixes of tar files. A compressed one is an error, unless the file in it lies beside it"""


@dataclass
class _Sample:
    """The members of one name: "a.mp4", "a.json" and so on. Videos and pictures are the items."""

    members: dict[str, Member] = field(default_factory=dict)
    """Rest of the name of a member in small letters, such as ".json", to the member"""
    sources: dict[str, None] = field(default_factory=dict)
    """Paths of the items in the tar file"""


def read_webdataset(path: Path, _options: ListOptions) -> ItemList:
    """Read a tar file, or a folder of them. Nothing is unpacked.

    A sample is a video, such as ``a.mp4``, or pictures, such as ``a.000.jpg`` or ``a/000.jpg``. ``a.txt`` is its
    caption, ``a.cls`` its label, and ``a.json`` has both and extra columns, as for ``read_pairs``.

    Source: https://github.com/webdataset/webdataset. Raises as ``read_table`` does, and ``UsageError`` for a tar file
    that is damaged, or has two members of one name, or a name that leaves it.
    """
    if path.is_dir():
        files = [file.path for file in iter_files(os.fspath(path)) if file.path.lower().endswith(_SUFFIXES)]
        files = [name for name in files if name.endswith(".tar") or name.rpartition(".")[0] not in files]
        folder = path
    elif path.is_file():
        files, folder = [path.name], path.parent
    else:
        raise NotFoundError(f"no such tar file or folder '{printable(path)}'")
    if not files:
        raise NotFoundError(f"no tar file in '{printable(path)}'")
    return paired_list(path, lambda: (pair for file in files for pair in _pairs(folder, file)))


def _pairs(folder: Path, name: str) -> Iterator[Pair]:
    path = folder / name
    try:
        with opened(os.fspath(path)) as file:
            table = read_table(file.fileno())
            _check(path, table)
            for key, sample in _samples(table.members).items():
                parts = partial(_text, path, file.fileno(), key, sample.members)
                for source in sample.sources:
                    yield Pair(f"{name}/{source}", partial(parts, ".txt"), partial(_row, path, key, parts))
    except MediaError as error:
        raise UsageError(f"'{printable(path)}': {error}") from None


def _check(path: Path, table: TarTable) -> None:
    problem: str | None = None
    for _, what in sorted(table.refused.items())[:1]:
        problem = f"got {what.partition(';')[0]}, expected one of each name, with its bytes. Write the file again"
    for name in table.members:
        if reason := path_problem(name):
            problem = f"got the member '{printable(name)}', expected a name in the file ({reason}). Write it again"
    if problem := table.problem or problem:
        raise UsageError(f"'{printable(path)}': {problem}.")


def _samples(members: Mapping[str, Member]) -> dict[str, _Sample]:
    """Return the samples in the order of the file, by their names: that of a member up to its first dot."""
    samples: dict[str, _Sample] = {}
    for name, member in members.items():
        folder, slash, base = name.rpartition("/")
        stem, _, suffix = base.partition(".")
        key = f"{folder}{slash}{stem}"
        sample = samples.setdefault(key, _Sample())
        if is_picture(suffix):
            sample.sources[key] = None
        elif suffix.rpartition(".")[2].lower() in VIDEO_SUFFIXES:
            sample.sources[name] = None
        else:
            suffix = name[len(key) :].lower()
            if suffix in sample.members:
                raise MediaError("open", "io", f"got '{printable(key + suffix)}' twice, in letters of other cases")
            sample.members[suffix] = member
    for key, sample in [*samples.items()]:
        # "a/000.jpg" is a frame of "a", unless it is a sample of its own, with a text
        folder, _, stem = key.rpartition("/")
        (suffix, *others) = sample.members or [""]
        if folder and not others and not sample.sources and is_picture(stem + suffix):
            samples.setdefault(folder, _Sample()).sources[folder] = None
    return samples


def _text(path: Path, fd: int, key: str, members: Mapping[str, Member], suffix: str) -> str:
    """Return the text of a member, or "" if the sample has none."""
    member = members.get(suffix)
    if member is None:
        return ""
    name = f"{path}/{key}{suffix}"
    if member.size > MAX_ROW_BYTES:
        raise UsageError(f"'{printable(name)}': got {member.size} bytes, expected at most {MAX_ROW_BYTES}")
    return decoded(name, b"".join(read_member(fd, member))).strip()


def _row(path: Path, key: str, text_of: partial[str]) -> Row:
    text, label = text_of(".json"), text_of(".cls")
    row = object_in(f"{path}/{key}.json", text) if text else {}
    return {"label": label, **row} if label else row
