"""Lists of actions inside long videos: ActivityNet and AVA."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from chordcache.errors import UsageError, printable
from chordcache.index.class_labels import label_of
from chordcache.index.lists.columns import table_list
from chordcache.index.lists.items import Item, ItemList, ListOptions
from chordcache.index.lists.tables import CsvTable, Row, Table, json_records
from chordcache.index.lists.templates import Template
from chordcache.records import Segment

# ActivityNet


def read_activitynet(path: Path, options: ListOptions) -> ItemList:
    """Read a JSON file of ActivityNet: {"database": {id: {"subset", "duration", "annotations"}}}.

    Each annotation is an item: its segment and its label, or labels if several have the same segment. A video
    without annotations, as those of the test set, is one item for the whole file. ``subset`` and ``duration`` are extra
    columns. Files are ``v_{video_id}`` with any suffix.

    Source: http://activity-net.org/download.html. Raises as ``read_table`` does.
    """
    types = {"video_id": "str", "subset": "str", "duration": "float", "annotations": "str"}

    def rows() -> Iterator[tuple[int, Row]]:
        return ((number, {**row, "video_id": row["key"]}) for number, row in json_records(path, "database"))

    options = ListOptions(options.video_template or "v_{video_id}.*", {"segment": "annotations"}, ("video_id",))
    return table_list(Table(path, "record", types, rows), options)


# AVA

_SECONDS = 3.0
"""[seconds] Length of a segment. AVA's annotators saw 3 seconds around each key frame"""
_EDGES = ("x1", "y1", "x2", "y2")
_AVA = ("video_id", "time", *_EDGES, "action_id", "person_id")


def read_ava(path: Path, options: ListOptions) -> ItemList:
    """Read a CSV file of AVA: video_id, time, x1, y1, x2, y2, action_id, person_id, without a header row.

    Each key time of a video is an item. Its segment is 3 seconds long, with the key time in the middle. It begins at 0
    at the earliest. The actions of all its persons are its labels, by number. The
    extra column ``boxes`` has a box for each person and action, with the person as ``track_id`` and the action as
    ``label``. Its ``time_seconds`` counts from the start of the segment, which is less than one frame before the
    segment's first frame. ``key_seconds`` is the key time in the file. Files are ``{video_id}`` with any suffix.

    Source: https://research.google.com/ava/download.html. Raises as ``read_table`` does.
    """
    template = Template(options.video_template or "{video_id}.*", ("video_id",))
    columns = {"boxes": "relative_boxes", "key_seconds": "float"}
    rows = partial(_key_times, CsvTable(path, header=_AVA))
    return ItemList(path, "line", columns, rows, partial(_ava_item, template))


def _key_times(table: CsvTable) -> Iterator[tuple[int, list[Row]]]:
    """Yield the number of the first line of each key time, and its rows."""
    for _, group in groupby(table.rows(), lambda numbered: (numbered[1].get("video_id"), numbered[1].get("time"))):
        (number, row), *others = group
        yield number, [row, *(other for _, other in others)]


def _ava_item(template: Template, rows: list[Row]) -> Iterator[Item]:
    try:
        time = float(rows[0]["time"])
        if not 0 <= time < math.inf:
            raise ValueError
        start = max(0.0, time - _SECONDS / 2)
        labels = [label_of(row.get("action_id", "")) for row in rows]
        boxes = [_box(row, label, time - start) for row, label in zip(rows, labels, strict=True) if row.keys() & _EDGES]
    except (LookupError, ValueError):
        got = printable(",".join(rows[0].values()))
        expected = f"expected {','.join(_AVA)} with a time of at least 0 and a box in fractions of the picture"
        raise UsageError(f"got '{got}', {expected}") from None
    yield Item(
        template.path(rows[0]),
        Segment(start_seconds=start, end_seconds=time + _SECONDS / 2),
        tuple(dict.fromkeys(filter(None, labels))),
        extra={"key_seconds": time, **({"boxes": boxes} if boxes else {})},
    )


def _box(row: Row, label: str, time_seconds: float) -> dict[str, Any]:
    edges = {name: float(row[name]) for name in _EDGES}
    if not all(0 <= edge <= 1 for edge in edges.values()):
        raise ValueError
    person = {"track_id": int(row["person_id"])} if "person_id" in row else {}
    return {"time_seconds": time_seconds, **edges, **person, "label": label}
