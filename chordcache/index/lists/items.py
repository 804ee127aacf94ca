"""The items that a published list names, before their files are looked up."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from chordcache.errors import UsageError, printable
from chordcache.index.class_labels import label_of
from chordcache.index.csv_index import parse_seconds
from chordcache.records import Segment

_NOTHING: Mapping[str, Any] = MappingProxyType({})


class Item(NamedTuple):
    """One item of a list, as the list states it."""

    row: int
    """Number of its line or record, counted from 1"""
    path: str
    """Path of the file: absolute, or relative to the folder of the videos. ".*" at its end stands for any suffix"""
    segment: Segment | None = None
    labels: tuple[str, ...] = ()
    captions: tuple[str, ...] = ()
    extra: Mapping[str, Any] = _NOTHING


@dataclass(frozen=True)
class ItemList:
    """A list of items, read as a stream each time that ``items`` is called."""

    path: Path
    folder: Path
    """Folder of the videos if the caller names none"""
    unit: str
    """Word for a row, for messages: "line" or "record" """
    columns: Mapping[str, str]
    """Extra column to its type, if it is not text"""
    items: Callable[[], Iterator[Item]]
    has_captions: bool = False
    """True if each item should have a caption, so that those without one are named"""

    def error(self, row: int, message: str) -> UsageError:
        """Return the error of a row."""
        return row_error(self.path, self.unit, row, message)


@dataclass(frozen=True)
class ListOptions:
    """The options of some formats of lists. ``chordcache.index.lists.formats`` states the options of each format.

    Raises
    ------
    UsageError
        If ``seconds`` is not a finite number above 0.
    """

    video_template: str | None = None
    """Path of a row's file, such as "{youtube_id}_{time_start:06d}.mp4", with the names of the list's columns"""
    path_column: str | None = None
    """Column of the paths"""
    label_column: str | None = None
    """Column of the label, or of a list of labels"""
    caption_column: str | None = None
    """Column of the caption, or of a list of captions"""
    start_column: str | None = None
    """Column of the start of a segment [seconds or hh:mm:ss from the file's first frame]"""
    end_column: str | None = None
    """Column of the end of a segment [seconds or hh:mm:ss from the file's first frame]"""
    classes: str | None = None
    """File with the names of the classes"""
    seconds: float | None = None
    """[seconds] Length of the segment around a key time, 3 by default"""

    def __post_init__(self) -> None:
        if self.seconds is not None and not 0 < self.seconds < math.inf:
            raise UsageError(f"seconds: got {self.seconds}, expected a finite number above 0")


def row_error(path: Path, unit: str, row: int, message: str) -> UsageError:
    """Return the error of a row of a list."""
    return UsageError(f"'{printable(path)}', {unit} {row}: {message}")


def texts(value: Any) -> tuple[str, ...]:
    """Return the texts that a value states: a text, a number, or a list of them. Empty ones are left out.

    Examples
    --------
    >>> texts(["run", 7, 2.0, "", None, float("nan")])
    ('run', '7', '2')
    """
    values = value if isinstance(value, list | tuple) else (value,)
    return tuple(text for value in values if (text := as_text(value)))


def labels_in(value: Any) -> tuple[str, ...]:
    """Return the labels that a value states, as ``texts`` takes it.

    Examples
    --------
    >>> labels_in(["run", 7, 2.0, "2.0", "007"])
    ('run', '7', '2', '2', '007')
    """
    return tuple(map(label_of, texts(value)))


def as_text(value: Any) -> str:
    """Return a value as text. A whole number is decimal, None and NaN are empty, and lists and objects are JSON."""
    if value is None or value != value:
        return ""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    is_json = isinstance(value, bool | int | float | list | dict)
    return json.dumps(value, ensure_ascii=False, default=str) if is_json else str(value)


def seconds_of(value: Any) -> float | None:
    """Return a time in seconds: of a number, or of a text such as "12.5" or "1:02:03". None and "" are None.

    Raises
    ------
    ValueError
        If the value is not a time.
    """
    if value is None or value == "":
        return None
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("not a time")
    return parse_seconds(value.strip()) if isinstance(value, str) else float(value)


def segment_between(start: Any, end: Any) -> Segment | None:
    """Return the segment between two times as ``seconds_of`` takes them, or None if both are empty.

    Raises
    ------
    UsageError
        If a time is not one, or is negative or not finite.
    """
    bounds: list[float | None] = []
    for name, value in (("start_seconds", start), ("end_seconds", end)):
        try:
            bounds.append(seconds_of(value))
        except ValueError:
            raise UsageError(f"{name}: got '{printable(as_text(value))}', expected seconds or hh:mm:ss") from None
    first, last = bounds
    return None if first is None and last is None else Segment(start_seconds=first, end_seconds=last)
