"""Folders of frames, such as denseflow and MMAction write them: each folder of numbered pictures is a video."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from itertools import groupby
from pathlib import Path

from chordcache.errors import NotFoundError, printable
from chordcache.index.lists.items import ItemList, ListOptions
from chordcache.index.lists.pairs import Pair, members_beside, paired_list, text_beside
from chordcache.index.walk import iter_files
from chordcache.media.picture_folders import is_picture


def read_frame_folders(path: Path, _options: ListOptions) -> ItemList:
    """Read a folder whose folders have frames, such as ``a/img_00001.jpg``, with ``a.txt`` and ``a.json`` beside them.

    Source: https://github.com/open-mmlab/denseflow. Raises as ``read_pairs`` does.
    """
    if not path.is_dir():
        raise NotFoundError(f"no such folder '{printable(path)}'")
    return paired_list(path, partial(_pairs, path))


def _pairs(path: Path) -> Iterator[Pair]:
    seen: set[str] = set()  # the folders in a folder may lie between its files
    for folder, files in groupby(iter_files(os.fspath(path)), lambda file: os.path.dirname(file.path)):
        if folder and folder not in seen and any(is_picture(os.path.basename(file.path)) for file in files):
            seen.add(folder)
            yield Pair(folder, partial(text_beside, path, folder), partial(members_beside, path, folder))
