"""The read side of a feature: how its rows are decoded, and how they become the arrays of a sample.

Each feature's module owns the read side of the feature, and ``registry.read_side`` returns it. Such a module imports a
decoder or OpenCV only where it needs them, because reading a cache loads none of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeAlias

import numpy as np

from chordcache.media.cropping import CropBox, Rectangle
from chordcache.storage.artefacts.artefact import Artefact, checked_out
from chordcache.storage.feature_info import FeatureInfo
from chordcache.storage.row_clock import has_times

Arrays: TypeAlias = dict[str, np.ndarray]
"""Arrays by their name in the sample."""

Numbers: TypeAlias = Sequence[int] | np.ndarray
"""Frame numbers in any order, repeats allowed"""

ADJACENT_FLOW = "flow.adjacent"
"""Name in ``features`` of the flow from each frame to the cached frame after it, which is cached as "flow\""""

NORMALIZED_LATENTS = "latents.normalized"
"""Name in ``features`` of latents as training scripts take them, which are cached as "latents\""""

MOTION_AS_FLOW = "motion.as_flow"
"""Name in ``features``, and of an array, of flow that is made of motion vectors, which are cached as "motion\""""

FIRST_FRAME_LATENTS = "latents.first_frame"
"""Name in ``features``, and of an array, of the latents of the first frame, which samples have beside "latents\""""

LINEAR_SERIES, PREVIOUS_SERIES = "series.linear", "series.previous"
"""Names in ``features`` of series that is interpolated, or has the last row at or before each time, not the nearest"""

VARIANTS: Mapping[str, str] = {
    ADJACENT_FLOW: "flow",
    NORMALIZED_LATENTS: "latents",
    FIRST_FRAME_LATENTS: "latents",
    MOTION_AS_FLOW: "motion",
    LINEAR_SERIES: "series",
    PREVIOUS_SERIES: "series",
}
"""Name in ``features`` to the cached feature, where samples have it in another form or with another array"""

_CLOCK_SLACK_ROWS = 1e-6
"""Tolerance in rows. A row that lies before the first frame only because of rounding belongs to the clip."""


class ClipVideo(Protocol):
    """The facts that a feature may need about the video of a clip. ``read.cache.Video`` has them."""

    key: str
    num_frames: int
    width: int
    """Width of the cached frames, [pixels]"""
    height: int
    """Height of the cached frames, [pixels]"""
    first_row: int
    """Row of the first frame in the artefacts, above 0 in a segment of a file that is cached whole"""

    @property
    def pts_seconds(self) -> np.ndarray:
        """Times of the frames [shape=(num_frames,), dtype=float64, seconds], on the source's clock."""
        ...

    def feature(self, name: str) -> FeatureInfo:
        """Return the record of a feature. Raises ``NotFoundError``."""
        ...

    def seconds_of(self, start: int, stop: int) -> tuple[float, float]:
        """Return the time of frame ``start`` and of the end of frame ``stop - 1``, half open, on the source's clock."""
        ...


@dataclass
class EncodedFrames:
    """The frames of a clip as they are stored, in place of memory for decoded ones. A GPU decodes them later."""

    shape: tuple[int, ...]
    """(T, h, w, 3) of the frames after the crop"""
    picture: tuple[int, int] = (0, 0)
    """(height, width) of the frames before the crop [pixels]"""
    stored: list[bytes] | np.ndarray = field(default_factory=list)
    """JPEGs or planes, as ``Cache.read_encoded`` returns them"""
    crop: CropBox | None = None


class RowReader(Protocol):
    """An object that clips are read from: a ``Cache``, or a replacement for one."""

    def rows(self, video: Any, feature: str, numbers: Numbers | slice, out: np.ndarray | None = None) -> np.ndarray:
        """Read the rows of a feature for some frames of a video, as ``Cache.rows`` does."""
        ...

    def iter_frames(self, video: Any, indices: Numbers, *, part: Rectangle | None = None) -> Iterator[np.ndarray]:
        """Read frames a few at a time, as ``Cache.iter_frames`` does."""
        ...

    def read_encoded(self, video: Any, indices: Numbers) -> list[bytes] | np.ndarray:
        """Read frames without a decode, as ``Cache.read_encoded`` does."""
        ...


@dataclass(frozen=True)
class Clip:
    """Some frames of a video, and the settings for reading them."""

    reader: RowReader
    video: ClipVideo
    picture: tuple[int, int]
    """(height, width) of the cached frames of the video, [pixels]"""
    numbers: np.ndarray
    """[shape=(T,), dtype=int64, frame numbers in [0, video.num_frames)]"""
    crop: CropBox | None
    """The crop of the pictures. None leaves every feature as it is stored"""
    variants: frozenset[str]
    """Names of ``VARIANTS`` that the sample has"""
    one_thread: bool
    """True to switch OpenCV's own threads off, for the whole process and from now on, if OpenCV is used"""
    frames_out: np.ndarray | EncodedFrames | None = None
    """Memory for the frames [shape=(T, h, w, 3), dtype=uint8], or the place of their JPEGs"""
    caption: int = 0
    """Position of the caption of the sample in ``item_fields.all_captions``"""
    noise: np.random.Generator | None = None
    """Random numbers for features that are drawn from a distribution. None takes the mean"""
    delta_timestamps: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Column of series to the times at which samples have it, [seconds from each frame]"""

    def rows(self, feature: str, span: slice | None = None) -> np.ndarray:
        """Read the rows of a feature for the frames of the clip, or for a slice as ``Cache.rows`` takes it."""
        return self.reader.rows(self.video, feature, self.numbers if span is None else span)

    @property
    def span(self) -> tuple[int, int]:
        """Range from the earliest frame to the latest, half open."""
        return (int(self.numbers.min()), int(self.numbers.max()) + 1) if len(self.numbers) else (0, 0)


class ReadSide:
    """The read side of one feature. This base class returns rows as they are cached, and never cuts them.

    It serves every feature of a plug-in, because the plug-in's module is not imported where a cache is read. A subclass
    overrides what differs for its feature. It keeps no state.
    """

    padding: ClassVar[Mapping[str, float]] = {}
    """Names of the arrays of this feature in a sample. Each has the value that fills it up where samples of a batch
    differ in shape. Arrays of features that are not listed here are padded with zero"""
    is_spatial: ClassVar[bool] = False
    """True if the arrays hold places or vectors of the picture. An augmentation that moves the pixels of the frames
    alone then refuses the batch"""

    def __init__(self, name: str) -> None:
        self.name = name

    def num_rows(self, info: FeatureInfo) -> Mapping[str, int]:
        """Return the arrays that ``rows`` reads, with the number of rows of each."""
        return info.num_rows

    def rows(
        self, artefact: Artefact, info: FeatureInfo, array: str, numbers: Sequence[int], out: np.ndarray | None
    ) -> np.ndarray:
        """Read rows of a feature that has one row for each frame, or between frames. Decode them for ``Cache.read``.

        Parameters
        ----------
        artefact : Artefact
            An artefact that has the feature.
        info : FeatureInfo
            The record of the feature.
        array : str
            The feature, or an array that belongs to it, such as "motion.covered".
        numbers : sequence of int
            Row numbers in any order, repeats allowed.
        out : np.ndarray or None
            C-contiguous memory for the result.
        """
        return artefact.rows(array, numbers, out)

    def rows_in(
        self, artefact: Artefact, info: FeatureInfo, array: str, span: tuple[float, float], out: np.ndarray | None
    ) -> np.ndarray:
        """Read rows of a feature that has its own clock.

        The first row is centered at or after ``span``'s start [seconds]. The number of rows is
        ``num_rows_in(span, row_seconds)``. Before and after the sound, rows are filled with the feature's value of
        silence. The other parameters are as in ``rows``.
        """
        wanted = rows_from(span, info.facts["start_seconds"], info.facts["row_seconds"])
        num_rows = info.num_rows[array]
        begin, end = min(max(wanted.start, 0), num_rows), min(max(wanted.stop, 0), num_rows)
        there = artefact.rows(array, range(begin, max(begin, end)))
        rows = artefact.memory_for(array, (len(wanted), *there.shape[1:]), there.dtype, None)
        rows[...] = info.facts["silence"]
        rows[max(0, -wanted.start) :][: len(there)] = there
        return in_memory(array, rows, out)

    def read_clip(self, clip: Clip) -> Arrays:
        """Read the arrays of a clip, with the clip's crop applied: cut, then scaled, then mirrored."""
        is_of_span = has_times(clip.video.feature(self.name).facts)
        return {self.name: clip.rows(self.name, slice(*clip.span) if is_of_span else None)}

    def zeros(self, clip: Clip, info: FeatureInfo) -> Arrays | None:
        """Return what ``read_clip`` would return if the feature were cached, and nothing were seen or heard.

        The values are those of ``padding``. Return None if the shape of the arrays is unknown. ``info`` is the record
        of the absent feature.
        """
        return None


class TimeLastReadSide(ReadSide):
    """The read side of a feature of sound whose arrays have time as their last axis."""

    def rows_in(
        self, artefact: Artefact, info: FeatureInfo, array: str, span: tuple[float, float], out: np.ndarray | None
    ) -> np.ndarray:
        """Read rows [shape=(..., t)]. See ``ReadSide``."""
        rows = super().rows_in(artefact, info, array, span, None)
        return in_memory(array, np.ascontiguousarray(np.moveaxis(rows, 0, -1)), out)


def num_rows_in(span: tuple[float, float], row_seconds: float) -> int:
    """Return the number of rows of ``row_seconds`` in a span [start, stop). It only depends on the span's length.

    The number is rounded, halves up. 61 frames at 30000/1001 fps are 203.54 rows of 10 ms, so 204 in any clip. Counting
    the centers in [start, stop) would give 203 or 204. Three frames at 24 fps are 12.5 rows, plus or minus the clock's
    rounding error.

    Examples
    --------
    >>> num_rows_in((0.0, 61 * 1001 / 30000), 0.01)
    204
    >>> [num_rows_in((n / 24, (n + 3) / 24), 0.01) for n in range(5)]
    [13, 13, 13, 13, 13]
    """
    return max(0, math.floor((span[1] - span[0]) / row_seconds + 0.5 + _CLOCK_SLACK_ROWS))


def rows_from(span: tuple[float, float], start_seconds: float, row_seconds: float) -> range:
    """Return the numbers of the rows of a span [start, stop), of a clock on which row 0 is at ``start_seconds``.

    The first one is the first at or after the start. The number of rows is ``num_rows_in``. Numbers below 0, and after
    the last row of the feature, are silence.

    Examples
    --------
    >>> rows_from((0.25, 0.5), 0.0, 0.1), rows_from((0.0, 0.5), 0.25, 0.1)
    (range(3, 6), range(-2, 3))
    """
    first = math.ceil((span[0] - start_seconds) / row_seconds - _CLOCK_SLACK_ROWS)
    return range(first, first + num_rows_in(span, row_seconds))


def in_memory(array: str, values: np.ndarray, out: np.ndarray | None) -> np.ndarray:
    """Return values, copied into ``out`` if it is given. Raises ``UsageError`` if ``out`` does not fit."""
    if out is None:
        return values
    checked_out(array, values.shape, values.dtype, out)[...] = values
    return out
