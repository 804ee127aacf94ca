"""The items that a published list names, before their files are looked up."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from chordcache.amounts import shortened
from chordcache.errors import UsageError, printable
from chordcache.index.class_labels import label_of
from chordcache.index.json_values import decode_json
from chordcache.index.lists.tables import Table, as_text, row_error
from chordcache.index.lists.templates import whole_number
from chordcache.records import Segment

_NOTHING: Mapping[str, Any] = MappingProxyType({})


class Item(NamedTuple):
    """One item of a list, as the list states it."""

    path: str
    """Path of the file: absolute, or relative to the folder of the videos. ".*" at its end stands for any suffix"""
    segment: Segment | None = None
    labels: tuple[str, ...] = ()
    captions: tuple[str, ...] = ()
    extra: Mapping[str, Any] = _NOTHING
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
    may_repeat: bool = False
    """True if rows that add nothing to an earlier row of their item are not an error"""
    taken: str = ""
    """Sentence about the meanings of the columns"""
    notes: Callable[[], Iterable[str]] = tuple
    """Function that returns sentences for the summary, after ``items``"""
    stated: Sequence[str] = ()
    """As in ``IndexHeader``"""

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
    """Meaning of ``MEANINGS`` to the column that has it. Times are [seconds or hh:mm:ss from the file's first frame]"""
    ignore: Sequence[str] = ()
    """Columns that have no meaning and are not kept"""
    header: Sequence[str] = ()
    """Columns of a CSV file without a header row"""


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


def described(labels: tuple[str, ...], captions: tuple[str, ...]) -> dict[str, Any]:
    """Return the fields of ``Description`` for labels and captions: "label" for one, "labels" for several."""
    given = {"label": labels, "caption": captions}
    return {
        name if len(texts) == 1 else f"{name}s": texts[0] if len(texts) == 1 else texts
        for name, texts in given.items()
        if texts
    }


_TIME = re.compile(r"(?:(\d+):)?(\d+):([0-5]?\d(?:\.\d+)?)")


def _seconds(value: Any) -> float:
    """Return the seconds of a number, or of a text such as 12.5, 1:23:45.6 or 23:45.6. Raises ValueError."""
    if isinstance(value, str) and (time := _TIME.fullmatch(value.strip())):
        return 3600 * int(time[1] or 0) + 60 * int(time[2]) + float(time[3])
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("not a time")
    return float(value)


def segment_between(**values: Any) -> Segment | None:
    """Return the segment that values of a list state, or None if all are None or blank.

    The parameters are the fields of ``Segment``, and ``duration_seconds`` in place of the end. Times are numbers of
    seconds, or texts such as "12.5", "1:02:03" or "2:03". Raises ``UsageError``.
    """
    bounds: dict[str, Any] = {}
    for name, value in values.items():
        if value is None or (isinstance(value, str) and not value.strip()):
            continue
        is_frame = name.endswith("frame")
        try:
            bounds[name] = whole_number(value) if is_frame else _seconds(value)
        except (ValueError, TypeError, OverflowError):
            expected = "a whole number" if is_frame else "seconds or hh:mm:ss"
            raise UsageError(f"{name}: got '{printable(as_text(value))}', expected {expected}") from None
    if (duration := bounds.pop("duration_seconds", None)) is not None:
        bounds["end_seconds"] = bounds.get("start_seconds", 0) + duration
    return Segment(**bounds) if bounds else None


def segments_in(value: Any) -> list[tuple[Segment | None, tuple[str, ...]]]:
    """Return each segment that a value of a list states, and its labels. Raises ``UsageError``.

    Examples
    --------
    >>> segments_in("c092 11.9 21.2") == segments_in([{"segment": [11.9, 21.2], "label": "c092"}])
    True
    """
    entries = [entry.split() for entry in value.split(";") if entry.strip()] if isinstance(value, str) else value
    try:
        if not isinstance(entries[0], list | dict):
            entries = [entries]
        segments = []
        for entry in entries:
            *names, start, end = entry if isinstance(entry, list) else (entry.get("label"), *entry["segment"])
            labels = tuple(label for name in names for label in labels_in(name))
            segments.append((segment_between(start_seconds=start, end_seconds=end), labels))
        return segments
    except UsageError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError):
        expected = "expected [start, end], a list of them, 'LABEL START END; ...' or {\"segment\": [start, end]}"
        raise UsageError(f"segment: got '{printable(shortened(as_text(value), 100))}', {expected}") from None


_LIST = re.compile(r"\[\s*(['\"\[].*|[-+\d.,eE\s]*)\]", re.DOTALL)
"""Text that is a list. The caption [Music] is not"""
_QUOTED = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""", re.DOTALL)


def is_list(text: str) -> bool:
    """Return whether a text is a list, as JSON, Python and numpy write it."""
    return _LIST.fullmatch(text) is not None


def listed(column: str, value: Any) -> Any:
    """Return the value of a cell, or the list that its text states in JSON or as Python writes it.

    Raises ``UsageError``.

    Examples
    --------
    >>> [listed("text", cell) for cell in ('["a"]', "['a', 2]", "['it''s']", "[Music]")]
    [['a'], ['a', 2], ["it's"], '[Music]']
    """
    if not isinstance(value, str) or not is_list(value):
        return value
    doubled = re.sub(r"(?<=[^\s\[,\\(])''(?=[^\s\],)])", r"\\'", value)
    for text, decode in ((value, decode_json), (value, ast.literal_eval), (doubled, ast.literal_eval)):
        # Python would join texts without a comma between them, which numpy writes
        if "TT" not in re.sub(r"\s", "", _QUOTED.sub("T", text)):
            with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
                return decode(text)
    got = f"column '{printable(column)}': got '{printable(shortened(value, 100))}'"
    raise UsageError(f"{got}, expected a list in JSON or of Python, with commas between its texts")


# Columns

USUAL: Mapping[str, tuple[str, ...]] = {
    "path": ("path", "file_name", "video", "video_path", "filename"),
    "label": ("label", "labels"),
    "caption": ("caption", "captions", "text"),
}
"""Meaning to the usual names of its column, in any case and with "_" for space. The first that the list has counts."""

BOUNDS: Mapping[str, str] = {
    "start": "start_seconds",
    "end": "end_seconds",
    "duration": "duration_seconds",
    "start_frame": "start_frame",
    "end_frame": "end_frame",
}
"""Meaning to the parameter of ``segment_between``"""

MEANINGS = (*USUAL, *BOUNDS, "segment")
"""Meanings that a caller may name. A column "segment" has both bounds, or those of several segments"""

_FORMS = ("{}_seconds", "{}_frame", "{}", "{}_time", "{}_timestamp", "{}_second", "{}_sec", "{}_s", "time_{}")
"""Usual names of bounds. Rows may have the times or the frames of the first two. The first pair of the others counts"""
_FRAMES = {"start_frame", "end_frame"}
_TIMES = (set[str](), {"start", "end"}, {"start", "duration"}, {"segment"})
"""Meanings of columns that are whole segments together"""


def columns_of(table: Table, options: ListOptions, used: Collection[str] = ()) -> dict[str, str]:
    """Return the column of each meaning: those that ``options`` name, and others by their usual names.

    Columns that are ``used`` in the names of files are not bounds. Raises ``UsageError`` for a start without an end.
    """
    columns = dict(options.columns)
    free = [name for name in table.types if name not in {*options.ignore, *columns.values()}]
    plain = {re.sub(r"[\s-]+", "_", name.lower()): name for name in reversed(free)} | {name: name for name in free}
    for meaning, usual in USUAL.items():
        if meaning not in columns and (name := next((plain[name] for name in usual if name in plain), None)):
            columns[meaning] = name
    bounds = {meaning: columns[meaning] for meaning in (*BOUNDS, "segment") if meaning in columns}
    bounds = bounds or _usual_bounds(plain, set(used))
    if bounds.keys() - _FRAMES not in _TIMES or len(bounds.keys() & _FRAMES) == 1:
        names = ", ".join(f"'{printable(name)}'" for name in bounds.values())
        raise UsageError(
            f"'{printable(table.path)}': got the columns {table.column_names}, expected a start and an end of segments "
            f"instead of {names} alone. Name both with columns (chordcache index --column start=NAME --column "
            "end=NAME), or leave the column out with ignore (--ignore NAME)."
        )
    return columns | bounds


def _usual_bounds(plain: Mapping[str, str], used: Set[str]) -> dict[str, str]:
    """Return the columns of bounds by their usual names. A start or an end may lack its pair."""
    exact: dict[str, str] = {}
    near: list[dict[str, str]] = [{}]
    for form in _FORMS:
        names = [[form.format(word) for word in words] for words in (("start", "begin"), ("end", "stop"))]
        start, end = (next((plain[name] for name in side if name in plain), None) for side in names)
        named = {"start_frame": start, "end_frame": end} if "frame" in form else {"start": start, "end": end}
        if start and not end and "frame" not in form:
            named["duration"] = plain.get("duration_seconds") or plain.get("duration")
        bounds = {meaning: name for meaning, name in named.items() if name}
        if not used.isdisjoint(bounds.values()):
            continue
        if form in _FORMS[:2]:
            exact |= bounds
        near.append(bounds)
    return exact or max(near, key=len)


def taken(columns: Mapping[str, str], extra: Collection[str]) -> str:
    """Return the sentence about the columns of a list: "path=path, label=label, segment=start..end; extra: fps".

    A list that has nothing but a column "path" needs none.
    """
    if columns == {"path": "path"} and not extra:
        return ""
    parts = [f"{meaning}={columns[meaning]}" for meaning in USUAL if meaning in columns]
    bounds = [columns[meaning] for meaning in ("segment", *BOUNDS) if meaning in columns]
    parts += [f"segment={('+' if 'duration' in columns else '..').join(bounds)}"] if bounds else []
    return shortened("; ".join([", ".join(parts), *([f"extra: {', '.join(extra)}"] if extra else [])]), 1000)


def cell_value(meaning: str, column: str, value: Any) -> Any:
    """Return the value of a cell, or the list in its text. Commas are between the labels of a column like "labels"."""
    value = listed(column, value)
    is_plural = meaning == "label" and column.lower().endswith("labels")
    return [text.strip() for text in value.split(",")] if is_plural and isinstance(value, str) else value
