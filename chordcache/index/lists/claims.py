"""The statements of a list about the files of its items, which ``audit`` compares with the files."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from chordcache.index.lists.items import Item

_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "num_frames": ("num_frames", "frames", "frame_count", "n_frames", "nb_frames", "total_frames"),
    "fps": ("fps", "frame_rate", "framerate"),
    "duration_seconds": ("duration_seconds", "duration"),
    "has_sound": ("has_audio", "has_sound"),
}
"""Statement to the columns that make it, in lowercase. The first that the item has counts."""

_TRUTHS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


class Claims(NamedTuple):
    """The statements about one item. None is a statement that the list does not make."""

    num_frames: float | None
    fps: float | None
    duration_seconds: float | None
    has_sound: bool | None


def claims_of(item: Item) -> Claims:
    """Return the statements of an item. A value that is not a number above 0, or not a truth value, is none.

    Examples
    --------
    >>> claims_of(Item("a.mp4", extra={"FPS": "25", "duration": "PT10S", "frames": -1, "has_audio": "yes"}))
    Claims(num_frames=None, fps=25.0, duration_seconds=None, has_sound=True)
    """
    stated = {name.lower(): value for name, value in {**item.extra, **item.claims}.items() if value is not None}
    values = {
        claim: next((stated[name] for name in names if name in stated), None) for claim, names in _COLUMNS.items()
    }
    has_sound = _TRUTHS.get(str(values.pop("has_sound")).lower())
    return Claims(**{claim: _number(value) for claim, value in values.items()}, has_sound=has_sound)


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if 0 < number < math.inf else None
