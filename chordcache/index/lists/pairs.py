"""Folders of videos, or of folders of frames, with a file of the same name beside each: ``a.txt`` or ``a.json``."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from itertools import groupby
from pathlib import Path
from typing import NamedTuple, TypeVar

from chordcache.errors import NotFoundError, UsageError, printable
from chordcache.index.column_types import add_kinds, settled
from chordcache.index.encoding import small_text
from chordcache.index.file_names import VIDEO_SUFFIXES
from chordcache.index.lists.items import Item, ItemList, ListOptions, labels_in, texts
from chordcache.index.lists.tables import Row, as_text, check_width, json_object
from chordcache.index.walk import iter_files
from chordcache.media.picture_folders import is_picture

T = TypeVar("T")

_LABELS, _CAPTIONS = ("label", "labels"), ("caption", "captions", "text")
"""Members of a JSON file that are labels or captions. All others are extra columns"""


def read_pairs(path: Path, _options: ListOptions) -> ItemList:
    """Read a folder: the text of ``a.txt`` is the caption of ``a.mp4``, and ``a.json`` has its labels and captions.

    The text may also lie in a folder ``labels`` beside the folder ``videos``. A video without a caption is an item
    all the same, and the summary names it.

    Sources: https://github.com/zai-org/CogVideo/tree/main/sat, https://github.com/webdataset/webdataset. Raises as
    ``read_table`` does.
    """
    if not path.is_dir():
        raise NotFoundError(f"no such folder '{printable(path)}'")
    return paired_list(path, partial(_videos, path))


def read_frame_folders(path: Path, _options: ListOptions) -> ItemList:
    """Read a folder whose folders have frames, such as ``a/img_00001.jpg``, with ``a.txt`` and ``a.json`` beside them.

    Source: https://github.com/open-mmlab/denseflow. Raises as ``read_pairs`` does.
    """
    if not path.is_dir():
        raise NotFoundError(f"no such folder '{printable(path)}'")
    return paired_list(path, partial(_frame_folders, path))


class Pair(NamedTuple):
    """A video, and functions that return what lies beside it."""

    path: str
    caption: Callable[[], str]
    """Function that returns the text, or "" """
    members: Callable[[], Row]
    """Function that returns the members of the JSON object"""


def paired_list(path: Path, pairs: Callable[[], Iterator[Pair]]) -> ItemList:
    """Return the list of the videos that a function yields with what lies beside them."""
    kinds: dict[str, str] = {}
    for pair in pairs():
        row = pair.members()
        add_kinds(kinds, {name: value for name, value in row.items() if name not in (*_LABELS, *_CAPTIONS)})
        check_width(path, kinds)
    types = settled(kinds)
    columns = {name: kind for name, kind in types.items() if kind != "str"}
    return ItemList(path, "video", columns, partial(_items, pairs, types), iter, has_captions=True)


def _items(pairs: Callable[[], Iterator[Pair]], types: dict[str, str]) -> Iterator[tuple[int, list[Item]]]:
    for number, pair in enumerate(pairs(), 1):
        caption, row = texts(pair.caption()), pair.members()
        labels = tuple(label for key in _LABELS for label in labels_in(row.get(key)))
        captions = tuple(text for key in _CAPTIONS for text in texts(row.get(key)))
        extra = {key: as_text(row[key]) if kind == "str" else row[key] for key, kind in types.items() if key in row}
        yield number, [Item(pair.path, None, labels, tuple(dict.fromkeys((*caption, *captions))), extra)]


def _videos(folder: Path) -> Iterator[Pair]:
    for file in iter_files(os.fspath(folder)):
        stem, _, suffix = file.path.rpartition(".")
        if file.is_video and suffix.lower() in VIDEO_SUFFIXES:
            yield Pair(file.path, partial(_text_beside, folder, stem), partial(_members_beside, folder, stem))


def _frame_folders(path: Path) -> Iterator[Pair]:
    seen: set[str] = set()  # the folders in a folder may lie between its files
    for folder, files in groupby(iter_files(os.fspath(path)), lambda file: os.path.dirname(file.path)):
        if folder and folder not in seen and any(is_picture(os.path.basename(file.path)) for file in files):
            seen.add(folder)
            yield Pair(folder, partial(_text_beside, path, folder), partial(_members_beside, path, folder))


def _text_beside(folder: Path, stem: str) -> str:
    """Return the text beside a video, by its path without the suffix, or ""."""
    for name in (stem, *([f"labels/{stem.removeprefix('videos/')}"] if stem.startswith("videos/") else ())):
        text = _beside(small_text, folder / f"{name}.txt")
        if text is not None:
            return text.strip()
    return ""


def _members_beside(folder: Path, stem: str) -> Row:
    """Return the members of the JSON file beside a video."""
    return _beside(json_object, folder / f"{stem}.json") or {}


def _beside(read: Callable[[Path], T], path: Path) -> T | None:
    """Return the content of a file, whatever the case of its suffix, or None if it does not exist."""
    try:
        name = _texts_in(path.parent, path.parent.stat().st_mtime_ns).get(path.name)
        return None if name is None else read(path.with_name(name))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"'{printable(path)}': got a file that cannot be read ({error.strerror})") from None


@lru_cache(maxsize=2)  # the folder of a video, and the folder of labels
def _texts_in(folder: Path, _mtime_ns: int) -> dict[str, str]:
    """Return the names of the texts in a folder, by their names with the suffix in small letters."""
    names: dict[str, str] = {}
    for name in os.listdir(folder):
        stem, suffix = os.path.splitext(name)
        if suffix.lower() in (".txt", ".json") and names.setdefault(stem + suffix.lower(), name) != name:
            raise UsageError(f"'{printable(folder / name)}': got another file of this name in letters of other cases")
    return names
