"""The formats of published lists."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path

from chordcache.errors import UsageError, printable
from chordcache.index.lists.activities import read_activitynet, read_ava
from chordcache.index.lists.classes import read_mmaction, read_ssv2, read_ucf101
from chordcache.index.lists.columns import read_table
from chordcache.index.lists.cosmos import read_cosmos
from chordcache.index.lists.items import ItemList, ListOptions
from chordcache.index.lists.lerobot import read_lerobot
from chordcache.index.lists.pairs import read_frame_folders, read_pairs
from chordcache.index.lists.tables import open_for_reading
from chordcache.index.lists.webdataset import read_webdataset


@dataclass(frozen=True)
class ListFormat:
    """A format of lists."""

    read: Callable[[Path, ListOptions], ItemList]
    options: tuple[str, ...] = ()
    """Fields of ``ListOptions`` that it uses"""


# The names of the clips have both times. If the template has none, the files are whole videos, and they are the segment
_KINETICS = ListOptions("{youtube_id}_{time_start:06d}_{time_end:06d}.mp4")
_KINETICS_TYPES = {"youtube_id": "str", "time_start": "float", "time_end": "float"}
_WEBVID = ListOptions("{page_dir}/{videoid}.mp4", {"caption": "name"})
_WEBVID_TYPES = {"videoid": "str", "name": "str", "page_dir": "str"}

LIST_READERS: Mapping[str, ListFormat] = {
    "csv": ListFormat(read_table, ("video_template", "columns", "ignore", "header")),
    "kinetics": ListFormat(partial(read_table, usual=_KINETICS, declared=_KINETICS_TYPES), ("video_template",)),
    "ucf101": ListFormat(read_ucf101, ("video_template",)),
    "ssv2": ListFormat(read_ssv2, ("video_template",)),
    "activitynet": ListFormat(read_activitynet, ("video_template",)),
    "ava": ListFormat(read_ava, ("video_template",)),
    "mmaction": ListFormat(read_mmaction, ("video_template",)),
    "webvid": ListFormat(partial(read_table, usual=_WEBVID, declared=_WEBVID_TYPES), ("video_template",)),
    "lerobot": ListFormat(read_lerobot),
    "pairs": ListFormat(read_pairs),
    "cosmos": ListFormat(read_cosmos),
    "webdataset": ListFormat(read_webdataset),
    "frames": ListFormat(read_frame_folders),
}
"""Name of each format to its reader"""

_FOLDERS = ("lerobot", "pairs", "cosmos", "webdataset", "frames")
"""Formats of lists that are folders, or not text"""


def open_list(path: Path, name: str, options: ListOptions) -> ItemList:
    """Open a list.

    Raises ``UsageError`` for an unknown format or an option that it does not use, as readers do, and as
    ``open_for_reading`` does.
    """
    if name not in LIST_READERS:
        raise UsageError(f"format: got '{printable(name)}', expected one of {', '.join(LIST_READERS)}")
    for field in fields(options):
        value = getattr(options, field.name)
        if value and field.name not in LIST_READERS[name].options:
            users = [other for other, format_ in LIST_READERS.items() if field.name in format_.options]
            raise UsageError(
                f"{field.name}: got '{printable(str(value))}' for a list of the format '{name}', "
                f"expected it only for {', '.join(users)}"
            )
    is_tar = path.suffix.lower() == ".tar" and name != "webdataset"
    if is_tar or (name not in _FOLDERS and path.is_dir()):
        kind, expected = ("tar file", "webdataset") if is_tar else ("folder", ", ".join(_FOLDERS))
        raise UsageError(f"format: got '{name}' for the {kind} '{printable(path)}', expected {expected}")
    if name not in _FOLDERS:
        open_for_reading(path).close()
    return LIST_READERS[name].read(path, options)
