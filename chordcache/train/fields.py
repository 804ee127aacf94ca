"""Fields of a sample: labels and other annotations of the index, as values that collate."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from chordcache.amounts import counted
from chordcache.arguments import checked_names
from chordcache.errors import UsageError, printable
from chordcache.features.built_in import read_sides
from chordcache.features.item_fields import all_captions
from chordcache.index.class_labels import NumberCheck, is_class_id
from chordcache.index.column_types import extra_problem
from chordcache.media.cropping import CropBox
from chordcache.read.cached_videos import VideoSet
from chordcache.read.video import Video
from chordcache.storage.annotation_names import AnnotationNames
from chordcache.train.boxes import BOX_TYPES, clip_boxes
from chordcache.train.samplers.clip_request import ClipRequest, RandomStream

_BUILT_IN: Mapping[str, str] = {"label": "int", "labels": "multi_hot", "caption": "str", "captions": "list[str]"}
"""Field that is not an extra column to its type"""

_OTHERS = ("pts_seconds", "video", "sample_id", "present", "lengths", "caption_ids", "caption_mask")
"""Names in a sample or a batch that do not belong to a field"""

_INT64 = range(-(2**63), 2**63)

_CONVERTERS: Mapping[str, Callable[[Any], Any]] = {
    "int": lambda value: np.array(value, np.int64),
    "bool": lambda value: np.array(value, np.bool_),
    "float": lambda value: np.array(math.nan if value is None else value, np.float64).astype(np.float32),
    "str": lambda value: "" if value is None else value,
    "list[int]": lambda value: np.array(value or [], np.int64),
    "list[float]": lambda value: np.array(value or [], np.float64).astype(np.float32),
    "list[str]": lambda value: list(value or []),
}
"""Type of a column to the function that makes the value of a sample"""

_VALUES: Mapping[str, Collection[str]] = {"int": ["int"], "float": ["int", "float"], "bool": ["bool"], "str": ["str"]}
"""Type of a column to the types of its values. All others are lists"""

_WITHOUT_MISSING = ("int", "bool")
"""Types that do not have a value for "missing" """

_NUM_NUMBERED = 1 << 20
"""Largest number of classes that are numbered by their labels. Larger numbers are more likely names, such as dates."""


def class_names(labels: Collection[str]) -> list[str]:
    """Return the name of each class, so that the position of a label is its id.

    Labels that are all whole numbers below 2 ** 20, such as "0", "2" and "10", are ids already and keep their value.
    The numbers between them are classes without a video. Names and larger numbers are sorted. Raises ``UsageError`` if
    all labels are numbers, and one is not an id, such as "-1", "007" or "0.5".

    Examples
    --------
    >>> class_names({"run", "jump"})
    ['jump', 'run']
    >>> class_names({"0", "3"})
    ['0', '1', '2', '3']
    """
    if problem := NumberCheck(sorted(labels)).problem:
        raise UsageError(f"label: {problem}")
    if labels and all(map(is_class_id, labels)):
        last = max(map(int, labels))
        if last < _NUM_NUMBERED:
            return [str(number) for number in range(last + 1)]
    return sorted(labels)


class Classes:
    """The classes of a dataset, by their distinct names. The position of each name is its id."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = list(names)
        self.ids = {name: number for number, name in enumerate(self.names)}

    def id_of(self, label: str | None, of: str) -> int:
        """Return the id of a label, -1 for None. ``of`` names the item in the error for an unknown label."""
        if label is None:
            return -1
        number = self.ids.get(label)
        if number is None:
            raise self.unknown(label, f"the label of {of}")
        return number

    def multi_hot(self, labels: Iterable[str], of: str) -> np.ndarray:
        """Return 1 at the ids of some labels and 0 elsewhere [shape=(number of names,), dtype=float32]."""
        hot = np.zeros(len(self.names), np.float32)
        hot[[self.id_of(label, of) for label in labels]] = 1
        return hot

    def unknown(self, label: str, what: str) -> UsageError:
        """Return the error for a label that is not one of the names."""
        return UsageError(f"classes: got {self.names}, expected also '{label}', {what}")


@dataclass(frozen=True)
class FieldReader:
    """A reader of the fields of a sample."""

    types: Mapping[str, str]
    """Field to its type: of ``COLUMN_TYPES``, or "multi_hot" """

    def caption(self, video: Video, request: ClipRequest) -> tuple[int, str]:
        """Return the caption of a sample, "" without one, after its position in all captions of the item.

        It is drawn if the field was requested.
        """
        captions = all_captions(video.caption, video.captions) if "caption" in self.types else ()
        if len(captions) > 1:
            number = int(request.generator(RandomStream.CAPTION).integers(len(captions)))
            return number, captions[number]
        return 0, captions[0] if captions else video.caption or ""

    def read(self, video: Video, numbers: np.ndarray, crop: CropBox | None, classes: Classes) -> dict[str, Any]:
        """Return the fields of a sample other than ``label`` and ``caption``, with arrays instead of tensors.

        Raises ``UsageError`` if an item does not have a value in a column of integers or bools, or has a label that is
        not in ``classes``, and as in ``clip_boxes``.
        """
        values: dict[str, Any] = {}
        for name, kind in self.types.items():
            if kind in BOX_TYPES:
                values[name] = clip_boxes(name, kind, video, numbers, crop)
            elif name == "labels":
                values[name] = classes.multi_hot(all_labels(video), f"video '{video.key}'")
            elif name == "captions":
                values[name] = list(all_captions(video.caption, video.captions))
            elif name not in _BUILT_IN:
                values[name] = _converted(name, kind, video)
        return values


def all_labels(video: Video) -> tuple[str, ...]:
    """Return the distinct labels of an item, its ``label`` first."""
    return tuple(dict.fromkeys((*([] if video.label is None else [video.label]), *video.labels)))


def _converted(name: str, kind: str, video: Video) -> Any:
    """Return the value of an extra column, as a sample has it."""
    value = video.extra.get(name)
    numbers = value if isinstance(value, list | tuple) else [value]
    if value is None and kind in _WITHOUT_MISSING:
        raise UsageError(
            f"fields: got '{name}' ({kind}), which video '{video.key}' does not have, expected a value in every item. "
            f"{_how_to_select(name)}"
        )
    is_large = kind in ("int", "list[int]") and any(type(number) is int and number not in _INT64 for number in numbers)
    if is_large or extra_problem({name: value}, {name: kind}):
        expected = "integers of 64 bits" if is_large else kind
        raise UsageError(f"fields: got '{name}' of video '{video.key}', {value!r:.80}, expected {expected}")
    with np.errstate(over="ignore"):  # beyond float32 is infinity
        return _CONVERTERS[kind](value)


def _how_to_select(name: str) -> str:
    return f"Select items by videos=lambda video: video.extra.get({name!r}) is not None."


def field_reader(fields: Iterable[str], videos: VideoSet, features: Collection[str]) -> FieldReader:
    """Check the names of fields, and make their reader.

    Raises ``UsageError`` if a name is unknown, or a sample has something else of this name, if an item of the dataset
    lacks a value in a column of integers or bools, and if boxes are requested of one eye of stereo pictures.
    """
    requested = checked_names("fields", fields, "names of annotations")
    if not requested:
        return FieldReader({})
    column_names = videos.annotation_names()
    known = {**dict.fromkeys(column_names.extra, "str"), **videos.columns, **_BUILT_IN}
    taken = {*_OTHERS, *features, *(array for side in read_sides().values() for array in side.padding)}
    for name in requested:
        if name not in known:
            have = ", ".join(map(printable, (*_BUILT_IN, *sorted(known.keys() - _BUILT_IN.keys()))))
            raise UsageError(f"fields: got '{printable(name)}', expected one of {have}")
        if name in taken:
            raise UsageError(
                f"fields: got '{name}', expected a name that a sample does not have yet. Name the column differently."
            )
        if name not in _BUILT_IN:
            _check_column(name, known[name], column_names, videos)
    with_boxes = [name for name in requested if known[name] in BOX_TYPES]
    if with_boxes and videos.stereo != "as_is":
        raise UsageError(
            f"fields: got '{with_boxes[0]}', boxes of the whole picture, for a cache of the {videos.stereo} eye, "
            "expected a cache with frames.stereo: as_is. Leave the field out."
        )
    return FieldReader({name: known[name] for name in requested})


def _check_column(name: str, kind: str, names: AnnotationNames, videos: VideoSet) -> None:
    others = [other for other in names.types.get(name, ()) if other not in _VALUES.get(kind, ["list"])]
    if others:
        raise UsageError(
            f"fields: got '{printable(name)}' with values of {' and '.join(others)} in {videos!r}, expected {kind} in "
            "every item. A build that changes the column was interrupted. Run it again to its end."
        )
    num_missing = 0 if videos.num_named is None else videos.num_named - names.extra.get(name, 0)
    if num_missing and kind in _WITHOUT_MISSING:
        raise UsageError(
            f"fields: got '{name}' ({kind}), which is missing in {num_missing} of "
            f"{counted(len(videos), 'item')}, expected a value in every item. {_how_to_select(name)}"
        )
