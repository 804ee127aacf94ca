"""Lists that tests write, and the indexes of them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chordcache.index.index_files import read_index
from chordcache.index.lists.items import ListOptions
from chordcache.index.lists.write import ListSummary, index_list
from chordcache.records import VideoRecord


def place(clips: Path, folder: Path, *names: str) -> Path:
    """Copy a real clip to some names in ``folder / "videos"``. Return that folder."""
    for name in names:
        path = folder / "videos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(clips / "people" / "carphone_distorted.mp4", path)
    return folder / "videos"


def indexed(
    source: Path, format: str, *, options: Mapping[str, Any] | None = None, **arguments: Any
) -> tuple[list[VideoRecord], dict[str, str], ListSummary]:
    """Return the records, the types of the columns, and the summary."""
    output = source.parent / "index.json"
    summary = index_list(source, output, format=format, options=ListOptions(**(options or {})), **arguments)
    index = read_index(output)
    assert index.level is None
    assert len(index) == summary.num_items
    return list(index), index.columns, summary


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="")
    return path


def write_json(path: Path, data: Any) -> Path:
    return write(path, json.dumps(data))
