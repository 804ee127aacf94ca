"""The items that a published list names, before their files are looked up."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from chordcache.errors import UsageError, printable
from chordcache.index.class_labels import label_of
from chordcache.index.lists.tables import as_text, row_error
from chordcache.index.lists.templates import whole_number
from chordcache.records import SEGMENT_COLUMNS, Segment

_NOTHING: Mapping[str, Any] = MappingProxyType({})


class Item(NamedTuple):
    """One item of a list, as the list states it."""

    path: str
    """Path of the file: absolute, or relative to the folder of the videos. ".*" at its end stands for any suffix"""
    segment: Segment | None = None
    labels: tuple[str, ...] = ()
    captions: tuple[str, ...] = ()
    extra: Mapping[str, Any] = _NOTHING
    claims: Mapping[str, Any] = _NOTHING
    """Further statements about the file, by the names of columns of ``claims_of``. An index does not have them"""
    row: int = 0
    """Number of its line or record, counted from 1, which ``ItemList`` sets"""


@dataclass(frozen=True)
class ItemList:
    """A list of items, read as a stream each time that ``items`` is called."""

    path: Path
    unit: str
    """Word for a row, for messages: "line" or "record" """
    columns: Mapping[str, str]
    """Extra column to its type, if it is not text"""
    rows: Callable[[], Iterable[tuple[int, Any]]]
    """Function that yields number and content of each row"""
    parse: Callable[[Any], Iterable[Item]]
    """Function that returns the items of a row. ``UsageError`` need not name the row"""
    has_captions: bool = False
    """True if each item should have a caption, so that those without one are named"""
    stated: Sequence[str] = ()
    """As in ``IndexHeader``"""
    notes: Callable[[], Iterable[str]] = tuple
    """Function that returns sentences for the summary, after ``items``"""

    @property
    def folder(self) -> Path:
        """Folder of the videos if the caller names none."""
        return self.path if self.path.is_dir() else self.path.parent

    def items(self) -> Iterator[Item]:
        """Yield all items. Raises ``UsageError`` with the place of a mistake."""
        for number, row in self.rows():
            try:
                yield from (item._replace(row=number) for item in self.parse(row))
            except UsageError as error:
                raise self.error(number, str(error)) from None

    def error(self, row: int, message: str) -> UsageError:
        """Return the error of a row."""
        return row_error(self.path, self.unit, row, message)


@dataclass(frozen=True)
class ListOptions:
    """The options of some formats of lists, see ``LIST_READERS``."""

    video_template: str | None = None
    """Path of a row's file, such as "{youtube_id}_{time_start:06d}.mp4", with the names of the list's columns"""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Meaning to the column that has it: "path", "label", "caption", and "start" and "end" of a segment [seconds or
    hh:mm:ss from the file's first frame]"""


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


_TIME = re.compile(r"(?:(\d+):)?(\d+):([0-5]?\d(?:\.\d+)?)")


def _seconds(value: Any) -> float:
    """Return the seconds of a number, or of a text such as 12.5, 1:23:45.6 or 23:45.6. Raises ValueError."""
    if isinstance(value, str) and (time := _TIME.fullmatch(value.strip())):
        return 3600 * int(time[1] or 0) + 60 * int(time[2]) + float(time[3])
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("not a time")
    return float(value)


def segment_between(
    start_seconds: Any = None, end_seconds: Any = None, start_frame: Any = None, end_frame: Any = None
) -> Segment | None:
    """Return the segment that values of a list state, or None if all are None or blank.

    Times are numbers of seconds, or texts such as "12.5", "1:02:03" or "2:03". Raises ``UsageError``.
    """
    bounds: dict[str, Any] = {}
    for name, value in zip(SEGMENT_COLUMNS, (start_seconds, end_seconds, start_frame, end_frame), strict=True):
        if value is None or (isinstance(value, str) and not value.strip()):
            continue
        is_frame = name.endswith("frame")
        try:
            bounds[name] = whole_number(value) if is_frame else _seconds(value)
        except (ValueError, TypeError, OverflowError):
            expected = "a whole number" if is_frame else "seconds or hh:mm:ss"
            raise UsageError(f"{name}: got '{printable(as_text(value))}', expected {expected}") from None
    return Segment(**bounds) if bounds else None
