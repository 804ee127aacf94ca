"""The feature "series": numbers on a clock of their own, such as the states and actions of a robot, from a table."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO, ClassVar

import numpy as np

from chordcache.config.picture import PictureConfig
from chordcache.errors import MediaError, UsageError, printable
from chordcache.features.base import NO_ROWS, Extractor, Rows, VideoInfo, missing_package
from chordcache.features.read_side import LINEAR_SERIES, PREVIOUS_SERIES, Arrays, Clip, ReadSide
from chordcache.media.frame import Frame
from chordcache.records import SERIES
from chordcache.storage.artefacts.artefact import Artefact
from chordcache.storage.feature_info import FeatureInfo

_MAX_GAP = 1.5
"""Largest distance of a frame from the nearest row if the config states none, in usual distances of rows"""

_SLACK = 0.1
"""A row that begins so much later counts as there, in usual distances of rows. Containers round times to 1 ms."""


_MARGIN_ROWS = 4
"""Number of rows that are read around those of a clock without jitter. If they do not suffice, more are read"""


class SeriesExtractor(Extractor):
    """Columns of the table that the item names in the column ``series`` of the index: a Parquet or CSV file.

    The path is relative to the folder of the videos. ``PATH#COLUMN=NUMBER`` takes the rows with this number in a
    column of the table, such as those of an episode.

    Arrays
    ------
    ``name`` [shape=(n,), dtype=float64, seconds], the times of the rows on the clock of the video, and
    ``name.COLUMN`` [shape=(n, ...)], the values of a column, with the dtype and the shape that the table has.

    Facts: ``start_seconds`` and ``end_seconds`` are the first and the last time, and ``row_seconds`` is the median
    distance of rows. ``columns`` has dtype and shape of a row of each column. ``table`` has size and modification time
    of the file, by which a build notices that it changed. ``silence`` is 0, and is not used.

    The parameters are the settings of ``SeriesConfig``. A video whose table is missing or wrong fails with the cause
    ``series``.
    """

    uses: ClassVar[tuple[str, ...]] = (SERIES,)
    units: ClassVar[Mapping[str, str]] = {"": "seconds"}

    def __init__(
        self, name: str, *, columns: Sequence[str], time: str = "timestamp", max_gap_seconds: float | None = None
    ) -> None:
        super().__init__(name)
        self._columns, self._time, self._max_gap_seconds = columns, time, max_gap_seconds
        self._frame_seconds: list[float] = []

    @classmethod
    def picture_used(cls, picture: PictureConfig) -> PictureConfig:
        """Return the frame rate and the buckets. They determine the frame times that are stored."""
        return type(picture)(fps=picture.fps, buckets=picture.buckets)

    @classmethod
    def missing_requirement(cls, arguments: Mapping[str, Any]) -> str | None:
        """Return the command that installs pyarrow."""
        return missing_package("build", "pyarrow")

    def begin(self, video: VideoInfo) -> str | None:
        """Read the table. Return the reason why the feature is absent: the item has none."""
        self._place = str(video.fields[SERIES] or "")
        if not self._place:
            return f"the index names no table of it in a column '{SERIES}'"
        self._values = self._read(*video.folder)
        seconds = self._values[self._time].astype(np.float64)
        if seconds.ndim > 1:
            raise self._wrong(self._time, None, "lists", "a number of seconds in each row")
        if len(back := np.flatnonzero(np.diff(seconds) <= 0)):
            before, after = seconds[back[0] : back[0] + 2]
            raise self._wrong(self._time, back[0] + 1, f"{after:g} s after {before:g} s", "a later time in each row")
        self._seconds = seconds
        return None

    def add_frame(self, frame: Frame) -> Rows:
        """Keep the time of the frame."""
        self._frame_seconds.append(frame.pts_seconds)
        return NO_ROWS

    def finish(self) -> Rows:
        """Return all rows if one is near each frame, and set the facts."""
        usual = float(np.median(np.diff(self._seconds)))
        self._check_near(self._max_gap_seconds or _MAX_GAP * usual)
        seconds = self._seconds + self._frame_seconds[0]
        self.facts |= {"start_seconds": seconds[0], "end_seconds": seconds[-1], "row_seconds": usual, "silence": 0}
        rows = {name: self._values[name] for name in self._columns}
        self.facts["columns"] = {name: [str(values.dtype), values.shape[1:]] for name, values in rows.items()}
        return {self.name: seconds, **{f"{self.name}.{name}": values for name, values in rows.items()}}

    def num_rows(self, num_frames: int) -> int | None:
        """Return None, because rows have times of their own."""
        return None

    def _check_near(self, max_gap_seconds: float) -> None:
        """Raise ``MediaError`` if a frame has no row near it."""
        frames = np.array(self._frame_seconds) - self._frame_seconds[0]
        before, after, share = _neighbors(self._seconds, frames)
        near = np.where(share > 0.5, after, before)
        gaps = np.abs(self._seconds[near] - frames)
        frame = int(np.argmax(gaps))
        if gaps[frame] > max_gap_seconds:
            got = f"{self._seconds[near[frame]]:.3f} s as the nearest to frame {frame} at {frames[frame]:.3f} s"
            expected = (
                f"one at most {max_gap_seconds:.3f} s from each frame. Times count from the item's first frame. "
                "Correct them, or set features.series.max_gap_seconds"
            )
            raise self._wrong(self._time, near[frame], got, expected)

    def _read(self, folder: str, inside: str | None) -> dict[str, np.ndarray]:
        """Return the columns. Raise ``MediaError`` if the table cannot be read, or has other values than numbers."""
        import pyarrow as pa  # a build without the feature does not need it

        from chordcache.media.source_file import open_source

        path = self._place.partition("#")[0]
        try:
            if os.path.isabs(path) or ".." in path.split("/"):
                raise ValueError("its path leads out of the folder of the videos")
            with open_source(os.path.join(folder, path), inside) as source, open(source.place, "rb") as file:
                identity = source.state.identity
                table = self._selected(file, path.lower().endswith(".csv"))
            if len(table) < 2:
                raise ValueError(f"it has {len(table)} rows, expected at least 2")
        except (MediaError, pa.ArrowException, OSError, ValueError, LookupError) as error:
            if isinstance(error, MemoryError):
                raise
            what = f"'{printable(self._place)}' is not a table that can be read: {printable(str(error))}"
            raise MediaError(self.name, "series", what) from None
        self.facts["table"] = [identity.size, identity.mtime_ns]
        return {name: self._numbers(name, table[name].combine_chunks()) for name in (self._time, *self._columns)}

    def _wrong(self, column: str, row: int | None, got: str, expected: str) -> MediaError:
        """Return the error about a column, or about a row of it. Rows are those of the item, from 0."""
        place = f"'{printable(self._place)}', column '{printable(column)}'{'' if row is None else f', row {row + 1}'}"
        return MediaError(self.name, "series", f"{place}: got {got}, expected {expected}")

    def _selected(self, file: BinaryIO, is_csv: bool) -> Any:
        """Return the rows of the item as a table of Arrow."""
        from pyarrow import compute, csv
        from pyarrow import parquet as pq

        key, _, number = self._place.partition("#")[2].partition("=")
        rows = compute.field(key) == int(number) if key else None
        names = list(dict.fromkeys((self._time, *self._columns)))
        whole = csv.read_csv(file, csv.ReadOptions(use_threads=False)) if is_csv else None
        present = pq.read_schema(file).names if whole is None else whole.column_names
        for name in (*names, *([key] if key else [])):
            if present.count(name) != 1:
                got = f"it has {present.count(name)} columns '{name}'"
                raise ValueError(f"{got}, expected 1, such as one of {', '.join(present)[:1000]}")
        if whole is None:
            return pq.read_table(file, columns=names, filters=rows, use_threads=False)
        return whole if rows is None else whole.filter(rows)

    def _numbers(self, name: str, values: Any) -> np.ndarray:
        """Return the values of a column of Arrow. Lists in it become axes."""
        from pyarrow import compute, types

        shape = [len(values)]
        while types.is_list(values.type) or types.is_large_list(values.type) or types.is_fixed_size_list(values.type):
            lengths = compute.list_value_length(values).fill_null(0).to_numpy(zero_copy_only=False)
            length = max(int(lengths[0]), 1)
            if len(others := np.flatnonzero(lengths != length)):
                got, expected = f"{lengths[others[0]]} values", f"{length} as in the first row"
                raise self._wrong(name, others[0] // math.prod(shape[1:]), got, expected)
            shape.append(length)
            values = values.flatten()
        numbers: np.ndarray = values.to_numpy(zero_copy_only=False)
        if types.is_nested(values.type) or np.dtype(values.type.to_pandas_dtype()).kind not in "biuf":
            raise self._wrong(name, None, f"values of {values.type}", "numbers, or lists of them")
        is_missing = values.is_null(nan_is_null=True).to_numpy(zero_copy_only=False)
        if is_missing.any() or not np.isfinite(numbers).all():
            bad = int(np.argmax(is_missing if is_missing.any() else ~np.isfinite(numbers)))
            raise self._wrong(name, bad // math.prod(shape[1:]), f"{values[bad]}", "a number")
        return numbers.reshape(shape)


def _neighbors(rows: np.ndarray, times: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the rows before and after some times, and the position of each time between the two, 0 to 1.

    ``rows`` are the times of the rows [shape=(n,), dtype=float64, seconds], n > 0. A time before the first row is at
    it, and a time after the last row is at that one.
    """
    after = np.minimum(np.searchsorted(rows, times), len(rows) - 1)
    before = np.maximum(after - 1, 0)
    gaps = rows[after] - rows[before]
    share = np.divide(times - rows[before], gaps, out=np.zeros(times.shape), where=gaps > 0)
    return before, after, share.clip(0, 1)


class SeriesReadSide(ReadSide):
    """The read side of series: a clip has the values of each column at its frames, or at times relative to them."""

    def rows_in(
        self, artefact: Artefact, info: FeatureInfo, array: str, span: tuple[float, float], out: np.ndarray | None
    ) -> np.ndarray:
        """Read the rows of a span, with the last one at or before its start and the first one at or after its end."""
        num_rows, facts, margin = info.num_rows[array], info.facts, _MARGIN_ROWS
        begin, end = (int((edge - facts["start_seconds"]) / facts["row_seconds"]) for edge in span)
        while True:
            first = min(max(begin - margin, 0), num_rows - 1)
            stop = max(min(end + margin, num_rows), first + 1)
            seconds = artefact.rows(self.name, range(first, stop))
            if (first == 0 or seconds[0] <= span[0]) and (stop == num_rows or seconds[-1] >= span[1]):
                break
            margin *= 8
        after_start = int(np.searchsorted(seconds, span[0], side="right"))
        after_end = int(np.searchsorted(seconds, span[1])) + 1
        return artefact.rows(array, range(first + max(after_start - 1, 0), min(first + after_end, stop)), out)

    def read_clip(self, clip: Clip) -> Arrays:
        """Return ``series.COLUMN`` [shape=(T, ...)] of each column, at the times of the frames.

        A column of ``clip.delta_timestamps`` is (T, K, ...), at K times relative to each frame. The first or the last
        row stands for times outside of the series, where ``series.COLUMN_is_pad`` [shape=(T, K), dtype=bool] is True.
        """
        facts, frames = clip.video.feature(self.name).facts, clip.video.pts_seconds[clip.numbers]
        if unknown := clip.delta_timestamps.keys() - facts["columns"].keys():
            expected = f"some of {', '.join(facts['columns'])}, the columns of video '{clip.video.key}'"
            raise UsageError(f"delta_timestamps: got '{printable(min(unknown))}', expected {expected}")
        arrays: Arrays = {}
        for name in facts["columns"]:
            array, deltas = f"{self.name}.{name}", clip.delta_timestamps.get(name)
            times = frames if deltas is None else frames[:, None] + np.asarray(deltas, np.float64)
            arrays[array] = self._at(clip, array, times, facts["row_seconds"])
            if deltas is not None:
                outside = np.maximum(facts["start_seconds"] - times, times - facts["end_seconds"])
                arrays[f"{array}_is_pad"] = outside > facts["row_seconds"] / 2
        return arrays

    def _at(self, clip: Clip, array: str, times: np.ndarray, row_seconds: float) -> np.ndarray:
        """Return the values of a column at some times, as the variant of the feature says."""
        span = slice(float(times.min()), float(times.max())) if times.size else slice(0.0, 0.0)
        seconds, values = clip.rows(self.name, span), clip.rows(array, span)
        before, after, share = _neighbors(seconds, times)
        if LINEAR_SERIES not in clip.variants:
            has_begun = times + _SLACK * row_seconds >= seconds[after]
            is_after = has_begun if PREVIOUS_SERIES in clip.variants else share > 0.5
            return np.asarray(values[np.where(is_after, after, before)])
        if values.dtype.kind != "f":
            raise UsageError(
                f"features: got '{LINEAR_SERIES}' with '{array}' of {values.dtype}, expected columns of floats. Take "
                f"'{SERIES}' or '{PREVIOUS_SERIES}', or build without this column."
            )
        share = share.reshape(times.shape + (1,) * (values.ndim - 1))
        return np.asarray(values[before] * (1 - share) + values[after] * share, values.dtype)
