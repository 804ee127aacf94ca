"""Lists of actions inside long videos: ActivityNet and AVA."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from chordcache.errors import UsageError, printable
from chordcache.index.class_labels import label_of
from chordcache.index.json_stream import JsonStream
from chordcache.index.lists.items import Item, ItemList, ListOptions, labels_in, segment_between
from chordcache.index.lists.tables import open_for_reading, row_error, text_lines
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
    template = Template(options.video_template or "v_{video_id}.*", ("video_id", "subset"))
    return ItemList(
        path, "video", {"duration": "float"}, partial(_database, path), partial(_activitynet_items, template)
    )


def _activitynet_items(template: Template, entry: tuple[str, dict[str, Any]]) -> Iterator[Item]:
    name, video = entry
    extra = {key: video[key] for key in ("subset", "duration") if video.get(key) is not None}
    labels: dict[Segment | None, tuple[str, ...]] = {}
    try:
        file = template.path({"video_id": name, "subset": extra.get("subset")})
        for annotation in video.get("annotations") or []:
            start, end = annotation["segment"]
            segment = segment_between(start, end)
            labels[segment] = (*labels.get(segment, ()), *labels_in(annotation.get("label")))
    except UsageError as error:
        raise UsageError(f"'{printable(name)}': {error}") from None
    except (KeyError, TypeError, ValueError, AttributeError):
        expected = 'expected annotations such as {"segment": [0, 1.5], "label": "Run"}'
        raise UsageError(f"'{printable(name)}': {expected}") from None
    for segment, names in (labels or {None: ()}).items():
        yield Item(file, segment, tuple(dict.fromkeys(names)), extra=extra)


def _database(path: Path) -> Iterator[tuple[int, tuple[str, dict[str, Any]]]]:
    """Yield number, id and value of each video of the member "database"."""
    number, is_found = 0, False
    with open_for_reading(path) as file:
        stream = JsonStream(file)
        try:
            for name in stream.member_names():
                if name != "database":
                    stream.value()
                    continue
                is_found = True
                for key in stream.member_names():
                    number += 1
                    video = stream.value()
                    if not isinstance(video, dict):
                        raise ValueError(f"'{key}': expected an object")
                    yield number, (key, video)
        except UsageError:
            raise
        except ValueError as error:
            raise row_error(path, "video", max(number, 1), f"not JSON of a list: {printable(str(error))}") from None
    if not is_found:
        raise UsageError(f"'{printable(path)}': got a file without a member 'database', expected one of ActivityNet")


# AVA

_SECONDS = 3.0
"""[seconds] Length of a segment. AVA's annotators saw 3 seconds around each key frame"""
_AVA_CELLS = (2, 7, 8)
"""Numbers of cells of a line: without boxes, without and with the number of the person"""


class _Action(NamedTuple):
    row: int
    video: str
    time: float
    """[seconds from the file's first frame]"""
    box: tuple[float, ...]
    """x1, y1, x2, y2 as fractions of the picture, or empty"""
    action: str
    person: int | None


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
    return ItemList(path, "line", columns, partial(_key_times, path), partial(_ava_item, template))


def _key_times(path: Path) -> Iterator[tuple[int, list[_Action]]]:
    """Yield the number of the first line of each key time, and its actions."""
    actions = (_ava_action(path, number, line) for number, line in text_lines(path))
    for _, group in groupby(actions, lambda action: (action.video, action.time)):
        at_once = list(group)
        yield at_once[0].row, at_once


def _ava_item(template: Template, actions: list[_Action]) -> Iterator[Item]:
    time = actions[0].time
    start = max(0.0, time - _SECONDS / 2)
    labels = [label_of(action.action) for action in actions]
    boxes = [_box(action, label, time - start) for action, label in zip(actions, labels, strict=True) if action.box]
    yield Item(
        template.path({"video_id": actions[0].video}),
        Segment(start_seconds=start, end_seconds=time + _SECONDS / 2),
        tuple(dict.fromkeys(filter(None, labels))),
        extra={"key_seconds": time, **({"boxes": boxes} if boxes else {})},
    )


def _box(action: _Action, label: str, time_seconds: float) -> dict[str, Any]:
    box: dict[str, Any] = {"time_seconds": time_seconds}
    box |= zip(("x1", "y1", "x2", "y2"), action.box, strict=True)
    if action.person is not None:
        box["track_id"] = action.person
    return box | {"label": label}


def _ava_action(path: Path, row: int, line: str) -> _Action:
    cells = [cell.strip(' "') for cell in line.split(",")]
    try:
        if len(cells) not in _AVA_CELLS or not cells[0]:
            raise ValueError
        time = float(cells[1])
        box = tuple(map(float, filter(None, cells[2:6])))
        action, person = (*cells[6:], "", "")[:2]
        if not 0 <= time < math.inf or len(box) not in (0, 4) or not all(0 <= edge <= 1 for edge in box):
            raise ValueError
        return _Action(row, cells[0], time, box, action, int(person) if person else None)
    except ValueError:
        raise row_error(
            path,
            "line",
            row,
            f"got '{printable(','.join(cells))}', expected video_id,time,x1,y1,x2,y2,action_id,person_id with a time "
            "of at least 0 and a box in fractions of the picture",
        ) from None
