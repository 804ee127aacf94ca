"""Readers of rows from an open artefact: frames are decoded, flow is in pixels, mel is on the frames' clock."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from chordcache.media import jpeg
from chordcache.records import FeatureInfo
from chordcache.storage.artefacts.base import Artefact, checked_out
from chordcache.storage.flow_int8 import dequantize

_CLOCK_SLACK_ROWS = 1e-6
"""Tolerance in rows. A row that lies before the first frame only because of rounding belongs to the clip."""

_BLOCK_BYTES = 1 << 20
"""Size of a block of frames that are decoded, then scaled. It fits into the cache of a core."""


def read_frames(artefact: Artefact, info: FeatureInfo, numbers: Sequence[int], out: np.ndarray | None) -> np.ndarray:
    """Decode frames [shape=(T, H, W, 3), dtype=uint8, RGB], into ``out`` if it is given."""
    out = checked_out("frames", (len(numbers), *info.shape[1:]), np.dtype(np.uint8), out)
    if info.params["codec"] == "raw":
        return artefact.rows("frames", numbers, out)
    for i, record in enumerate(artefact.records("frames", numbers)):
        if i and numbers[i] == numbers[i - 1]:  # the repeated last frame of a short video
            out[i] = out[i - 1]
        else:
            jpeg.decode_into(record, out[i])
    return out


def iter_frames(artefact: Artefact, info: FeatureInfo, numbers: Sequence[int]) -> Iterator[np.ndarray]:
    """Yield frames a few at a time [shape=(t, H, W, 3), dtype=uint8, RGB], each time in the same memory."""
    num_frames = max(1, _BLOCK_BYTES // max(1, math.prod(info.shape[1:])))
    block = np.empty((min(num_frames, len(numbers)), *info.shape[1:]), np.uint8)
    for start in range(0, len(numbers), num_frames):
        few = numbers[start : start + num_frames]
        yield read_frames(artefact, info, few, block[: len(few)])


def read_rows(
    artefact: Artefact, info: FeatureInfo, name: str, numbers: Sequence[int], out: np.ndarray | None
) -> np.ndarray:
    """Read rows of a feature that has one row for each frame, or between frames. Convert int8 flow to pixels."""
    if name == "flow" and info.dtype == "int8":
        pixels = dequantize(artefact.rows(name, numbers), artefact.rows("flow.scale", numbers))
        return pixels if out is None else _filled(name, out, pixels)
    return artefact.rows(name, numbers, out)


def read_seconds(
    artefact: Artefact, info: FeatureInfo, name: str, span: tuple[float, float], out: np.ndarray | None
) -> np.ndarray:
    """Read rows of a feature that has its own clock. The first is centered at or after ``span``'s start [seconds].

    The number of rows is ``num_rows_in(span, row_seconds)``. Before and after the sound, rows are filled with the
    feature's value of silence. Mel has time last, as in librosa: [shape=(n_mels, t)] or [shape=(C, n_mels, t)].
    """
    step = info.facts["row_seconds"]
    first = math.ceil((span[0] - info.facts["start_seconds"]) / step - _CLOCK_SLACK_ROWS)
    last = first + num_rows_in(span, step)
    num_rows = info.num_rows[name]
    begin, end = min(max(first, 0), num_rows), min(max(last, 0), num_rows)
    there = artefact.rows(name, range(begin, max(begin, end)))
    rows = np.full((last - first, *there.shape[1:]), info.facts["silence"], there.dtype)
    rows[max(0, -first) :][: len(there)] = there
    rows = np.moveaxis(rows, 0, -1) if name == "mel" else rows
    return rows if out is None else _filled(name, out, rows)


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


def _filled(name: str, out: np.ndarray, values: np.ndarray) -> np.ndarray:
    checked_out(name, values.shape, values.dtype, out)[...] = values
    return out
