"""Clips of Cosmos-Curate and NeMo Curator: a JSON file with spans, captions and scores for each."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from chordcache.amounts import counted
from chordcache.errors import NotFoundError, UsageError, printable
from chordcache.index.lists.items import Item, ItemList, ListOptions, segment_between, texts
from chordcache.index.lists.locate import NUM_EXAMPLES
from chordcache.index.lists.tables import Row, json_lines, json_object
from chordcache.index.lists.templates import whole_number

_COLUMNS = {
    **dict.fromkeys(("span_start", "span_end", "aesthetic_score"), "float"),
    **dict.fromkeys(("motion_global_mean", "motion_per_patch_min_256"), "float"),
}
_VERSION = re.compile(r"v(\d{1,9})")


def read_cosmos(path: Path, _options: ListOptions) -> ItemList:
    """Read the output folder of a split pipeline: ``metas/v0/UUID.json``, or ``metas_jsonl/v0/*.jsonl``, of ``clips``.

    Each captioned window of a clip is an item, with the captions of all models, or the clip if it has no windows. The
    newest version of the metadata counts. ``source_video``, the span in it [seconds] and the scores are extra columns.
    Clips that a filter rejected are left out. So are files in ``clips`` without metadata, which the summary names.

    Source: ``_write_clip_metadata`` in https://github.com/nvidia-cosmos/cosmos-curate,
    cosmos_curate/pipelines/video/read_write/metadata_writer_stage.py, and in
    https://github.com/NVIDIA-NeMo/Curator, nemo_curator/stages/video/io/clip_writer.py. Raises as ``read_table`` does.
    """
    folders = [folder for name in ("metas", "metas_jsonl") if (folder := _newest(path / name)) is not None]
    if not folders:
        raise NotFoundError(f"no folder 'metas/v0' or 'metas_jsonl/v0' in '{printable(path)}'")
    names: set[str] = set()
    rows, notes = partial(_rows, folders[0]), partial(_without_metadata, path / "clips", names)
    return ItemList(path, "clip", _COLUMNS, rows, partial(_items, names), has_captions=True, notes=notes)


def _newest(folder: Path) -> Path | None:
    versions = {int(match[1]): child for child in folder.glob("v*") if (match := _VERSION.fullmatch(child.name))}
    return versions[max(versions)] if versions else None


def _without_metadata(clips: Path, names: Collection[str]) -> Iterator[str]:
    """Yield a sentence about the clips that have none of the names."""
    bare = sorted(f"clips/{clip.name}" for clip in clips.glob("*.mp4") if clip.stem not in names)
    if bare:
        more = ", ..." if len(bare) > NUM_EXAMPLES else ""
        yield f"{counted(len(bare), 'clip')} without metadata: {', '.join(map(printable, bare[:NUM_EXAMPLES]))}{more}"


def _rows(folder: Path) -> Iterator[tuple[int, tuple[str, Row]]]:
    rows = (row for path in sorted(folder.glob("*.json*")) for row in _rows_of(path))
    return enumerate(rows, 1)


def _rows_of(path: Path) -> Iterator[tuple[str, Row]]:
    """Yield the place of each row, for messages, and the row."""
    if path.suffix == ".jsonl":
        yield from ((f"{path.name}, line {number}", row) for number, row in json_lines(path))
    else:
        yield path.name, json_object(path)


def _items(names: set[str], placed_row: tuple[str, Row]) -> list[Item]:
    """Return the items of a clip: its windows, or the whole of it. Add its name to ``names``."""
    place, row = placed_row
    name = row.get("span_uuid")
    if not isinstance(name, str) or "/" in name:
        raise UsageError(f"{printable(place)}: expected the member 'span_uuid', the name of the clip")
    names.add(name)
    # Not any part of the path: the output folder of the pipeline may have this name, too
    if PurePosixPath(str(row.get("clip_location"))).parent.name == "filtered_clips":
        return []
    path, extra = f"clips/{name}.mp4", _extra(row)
    windows = row.get("windows") or [{}]
    if not isinstance(windows, list) or not all(isinstance(window, dict) for window in windows):
        raise UsageError(f"{printable(name)}: windows: got another value, expected a list of objects")
    return [_item(path, window, extra, row) for window in windows]


def _item(path: str, window: Mapping[str, Any], extra: Mapping[str, Any], row: Row) -> Item:
    first, last = window.get("start_frame"), window.get("end_frame")
    captions = (text for name, value in window.items() if name.endswith("_caption") for text in texts(value))
    try:
        stop = None if last is None else whole_number(last) + 1  # the last frame is in the window
        first = None if first is None else whole_number(first)
    except (ValueError, TypeError, OverflowError):
        raise UsageError(f"{printable(path)}: got a window without whole numbers of frames") from None
    is_whole = not first and stop in (None, row.get("num_frames"))
    segment = None if is_whole else segment_between(start_frame=first, end_frame=stop)
    return Item(path, segment, captions=tuple(dict.fromkeys(captions)), extra=extra)


def _extra(row: Row) -> dict[str, Any]:
    span, motion = row.get("duration_span"), row.get("motion_score")
    values = {"source_video": row.get("source_video")}
    if isinstance(span, list):
        values |= zip(("span_start", "span_end"), span, strict=False)
    values["aesthetic_score"] = row.get("aesthetic_score")
    if isinstance(motion, dict):
        values |= {f"motion_{name}": motion.get(name) for name in ("global_mean", "per_patch_min_256")}
    return {name: value for name, value in values.items() if value is not None}
