"""Pictures for people: features as colors, text, curves and axes of time, and the files of pictures."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from chordcache.errors import printable
from chordcache.media.opencv import cv2
from chordcache.read.cache import Cache
from chordcache.read.video import Video

Color: TypeAlias = tuple[int, int, int]
"""(red, green, blue), 0 to 255"""

INK: Color = (28, 32, 40)
FAINT: Color = (110, 116, 128)
GRID: Color = (226, 229, 234)
CURVE: Color = (37, 99, 235)
MARK: Color = (202, 120, 0)
ALARM: Color = (200, 30, 30)

SMALL, NORMAL, LARGE = 0.42, 0.48, 0.62
"""Scales of the font"""

_FONT = cv2.FONT_HERSHEY_SIMPLEX
_MAX_LINES = 3

MIN_FLOW_PX = 0.5
"""Least length of a vector that gets the full color. It keeps the noise of still videos pale, [pixels]"""

_FULL_FLOW_PERCENT = 99
"""Percentile of the vectors' lengths that gets the full color. A few wrong vectors do not make all others pale"""

_FLOW_PX = 256
"""Short side of flow that is drawn, at least, if vectors are left out [pixels]"""

_MEL_RANGE_DECIBELS = 80.0
"""Range of the colors of mel below its loudest band, [dB]"""

_MEL_SECONDS = 60.0
"""Length of the parts in which mel of a long video is read. It bounds the memory, [seconds]"""

_MIN_VISIBILITY = 0.5
"""Least visibility of a landmark that is drawn"""

_MAX_ASPECT = 16 / 9
"""Widest picture of a row. A wider one is squeezed, so that a row has a bounded width"""


def flow_scale(flow: np.ndarray) -> float:
    """Return the length that gets the full color in ``flow_colors`` [pixels], at least ``MIN_FLOW_PX``.

    ``flow`` [shape=(..., 2), dtype=float, pixels, (dx, dy)] has the vectors of all pictures that are compared.
    """
    lengths = np.hypot(flow[..., 0], flow[..., 1], dtype=np.float32)
    return max(MIN_FLOW_PX, float(np.percentile(lengths, _FULL_FLOW_PERCENT))) if lengths.size else MIN_FLOW_PX


def thinned(flow: np.ndarray) -> np.ndarray:
    """Return few vectors of a large picture of flow, which is smooth. ``show`` and a report hold those of many."""
    step = max(1, min(flow.shape[:2]) // _FLOW_PX)
    return flow[::step, ::step].astype(np.float32)


def flow_colors(flow: np.ndarray, scale_px: float) -> np.ndarray:
    """Return flow as colors [shape=(H, W, 3), dtype=uint8, RGB]: the hue is the direction, the saturation the length.

    ``flow`` is one picture of vectors [shape=(H, W, 2), dtype=float, pixels, (dx, dy)]. Those of at least ``scale_px``
    have the full color.
    """
    x, y = (np.ascontiguousarray(flow[..., axis], np.float32) for axis in (0, 1))
    length, angle = cv2.cartToPolar(x, y)
    hue = (angle * (90 / np.pi)).astype(np.uint8)
    saturation = np.clip(length * (255 / scale_px), 0, 255).astype(np.uint8)
    return cv2.cvtColor(np.dstack([hue, saturation, np.full_like(hue, 255)]), cv2.COLOR_HSV2RGB)


def color_wheel(size_px: int) -> np.ndarray:
    """Return the colors of all directions and lengths, as a disc on white [shape=(S, S, 3), dtype=uint8, RGB]."""
    y, x = np.mgrid[-1 : 1 : size_px * 1j, -1 : 1 : size_px * 1j]
    colors = flow_colors(np.stack([x, y], -1), 1.0)
    colors[np.hypot(x, y) > 1] = 255
    return colors


def mel_colors(mel: np.ndarray, width: int, height: int) -> np.ndarray:
    """Return a mel spectrogram as colors [shape=(height, width, 3), dtype=uint8, RGB], the lowest band at the bottom.

    ``mel`` has rows in time [shape=(n, n_mels) or (n, C, n_mels), dtype=float, dB]. Channels are averaged. The
    brightest color is the loudest band. Black is 80 dB below it, or less.
    """
    bands = np.asarray(mel, np.float32)
    if bands.ndim == 3:
        bands = bands.mean(1)
    gray = (bands.T[::-1] - bands.max()) * (255 / _MEL_RANGE_DECIBELS) + 255
    small = cv2.resize(np.clip(gray, 0, 255).astype(np.uint8), (width, height), interpolation=cv2.INTER_AREA)
    colors: np.ndarray = cv2.cvtColor(cv2.applyColorMap(small, cv2.COLORMAP_MAGMA), cv2.COLOR_BGR2RGB)
    return colors


def mel_rows(cache: Cache, video: Video, first: int, stop: int, min_rows: int) -> np.ndarray:
    """Return mel of the frames ``first`` to ``stop`` with few rows [shape=(n, n_mels), dtype=float, dB].

    It is read in parts of a minute, so that memory is bounded. If it has at least twice ``min_rows``, neighbors are
    averaged, so that at least ``min_rows`` are left. Rows have equal lengths, except for the last. Channels are
    averaged. Raises as ``Cache.read`` does.
    """
    seconds = video.duration_seconds * (stop - first) / max(1, video.num_frames)
    num_parts = min(max(1, int(seconds / _MEL_SECONDS)), max(1, stop - first))
    bounds = np.linspace(first, stop, num_parts + 1).astype(int).tolist()
    blocks: list[np.ndarray] = []
    rest, step = None, 1
    for number, (begin, end) in enumerate(itertools.pairwise(bounds)):
        mel = cache.read(video, "mel", begin, end)
        bands = (mel.mean(0) if mel.ndim == 3 else mel).T
        if not number:
            num_rows = len(bands) * (stop - first) / max(1, end - begin)
            step = max(1, int(num_rows / min_rows))
        bands = bands if rest is None else np.concatenate([rest, bands])
        num_whole = len(bands) // step * step
        blocks.append(bands[:num_whole].reshape(-1, step, bands.shape[1]).mean(1))
        rest = bands[num_whole:]
    if rest is not None and len(rest):
        blocks.append(rest.mean(0, keepdims=True))
    return np.concatenate(blocks)


def motion_lengths(cache: Cache, video: Video, numbers: np.ndarray) -> np.ndarray:
    """Return the mean length of the codec's vectors in some frames [shape=(T,), dtype=float, source pixels].

    It is NaN for a frame without vectors. Raises as ``Cache.read`` does.
    """
    vectors = cache.read(video, "motion", indices=numbers).astype(np.float32)
    covered = cache.read(video, "motion.covered", indices=numbers)
    num_covered = covered.sum((1, 2))
    total = (np.hypot(vectors[..., 0], vectors[..., 1]) * covered).sum((1, 2))
    return np.where(num_covered > 0, total / np.maximum(num_covered, 1), np.nan)


def visible_landmarks(landmarks: np.ndarray, width: int, height: int) -> np.ndarray:
    """Return the places of landmarks as shares of the picture [shape=(n, 2), dtype=float, 0 to 1, (x, y)].

    ``landmarks`` are those of a frame [shape=(n, 4), dtype=float, pixels, (x, y, z, visibility)]. A landmark that is
    hidden or outside of the picture is NaN.
    """
    places = landmarks[:, :2] / (width, height)
    shown = (landmarks[:, 3] >= _MIN_VISIBILITY) & ((places >= 0) & (places <= 1)).all(1)  # False for NaN: no person
    return np.where(shown[:, None], places, np.nan)


def scaled_to_height(picture: np.ndarray, height: int) -> np.ndarray:
    """Scale a picture to a height [shape=(height, W, 3), dtype=uint8]. W is at least 8 and at most 16 / 9 of it."""
    width = min(max(8, round(picture.shape[1] * height / picture.shape[0])), int(height * _MAX_ASPECT))
    return cv2.resize(picture, (width, height), interpolation=cv2.INTER_AREA)


def webp(picture: np.ndarray, quality: int) -> bytes:
    """Compress a picture [shape=(H, W, 3), dtype=uint8, RGB] as WebP; ``quality`` is 1 to 100."""
    return _encoded(".webp", picture, [cv2.IMWRITE_WEBP_QUALITY, quality])


def png(picture: np.ndarray) -> bytes:
    """Compress a picture [shape=(H, W, 3), dtype=uint8, RGB] as PNG, without loss."""
    return _encoded(".png", picture, [])


def _encoded(suffix: str, picture: np.ndarray, options: Sequence[int]) -> bytes:
    is_written, data = cv2.imencode(suffix, cv2.cvtColor(picture, cv2.COLOR_RGB2BGR), list(options))
    if not is_written:
        raise ValueError(f"OpenCV cannot write a picture of shape {picture.shape} as {suffix}")
    return data.tobytes()


# Text, curves and axes of time


def plain(text: str) -> str:
    """Return a text in ASCII, since the fonts have no other letters. Others are escaped.

    Examples
    --------
    >>> plain("caf\\u00e9\\n")
    'caf\\\\xe9\\\\n'
    """
    return printable(text).encode("ascii", "backslashreplace").decode()


def text_width(text: str, scale: float = NORMAL) -> int:
    """Return the width of a line of text, [pixels]."""
    (width, _), _ = cv2.getTextSize(plain(text), _FONT, scale, 1)
    return int(width)


def put_text(
    picture: np.ndarray,
    text: str,
    x: int,
    baseline: int,
    *,
    scale: float = NORMAL,
    color: Color = INK,
    align: Literal["left", "center", "right"] = "left",
) -> None:
    """Draw a line of text. ``x`` is its left end, its middle or its right end."""
    shift = {"left": 0.0, "center": 0.5, "right": 1.0}[align] * text_width(text, scale)
    cv2.putText(picture, plain(text), (round(x - shift), baseline), _FONT, scale, color, 1, cv2.LINE_AA)


def wrapped(text: str, width: int) -> list[str]:
    """Break a text into lines of at most ``width`` pixels. A text that needs more than ``_MAX_LINES`` is cut."""
    text = plain(text)[: _MAX_LINES * width]
    lines: list[str] = []
    while text and len(lines) < _MAX_LINES:
        length = len(text)
        while text_width(text[:length]) > width:
            length = min(length - 1, round(length * width / text_width(text[:length])) + 1)
        space = text.rfind(" ", 0, length + 1)
        cut = length if length == len(text) or space <= 0 else space
        lines.append(text[:cut])
        text = text[cut:].lstrip(" ")
    if text:
        lines[-1] = lines[-1][:-3] + "..."
    return lines


@dataclass(frozen=True)
class TimeAxis:
    """A part of a picture whose columns are times."""

    start_seconds: float
    stop_seconds: float
    left: int
    """[pixels] Column of ``start_seconds``"""
    width: int
    """[pixels] from ``start_seconds`` to ``stop_seconds``"""

    def x_of(self, seconds: float) -> int:
        """Return the column of a time, [pixels]."""
        share = (seconds - self.start_seconds) / (self.stop_seconds - self.start_seconds)
        return self.left + round(share * self.width)

    def ticks(self) -> list[float]:
        """Return round times that are far enough apart for their labels, [seconds]."""
        step = round_step((self.stop_seconds - self.start_seconds) * 90 / self.width)
        first = math.ceil(self.start_seconds / step - 1e-9)
        last = math.floor(self.stop_seconds / step + 1e-9)
        return [number * step for number in range(first, last + 1)]


_STEPS_OF_MINUTES = (60, 120, 300, 600, 900, 1800, 3600)


def round_step(least: float) -> float:
    """Return a round number of seconds that is not below ``least``: 1, 2 or 5 times a power of 10, or minutes.

    Examples
    --------
    >>> [round_step(value) for value in (0.03, 0.4, 1, 17, 31, 700, 5000)]
    [0.05, 0.5, 1.0, 20.0, 60, 900, 7200]
    """
    if least > 20:
        return next((step for step in _STEPS_OF_MINUTES if step >= least), math.ceil(least / 3600) * 3600)
    power = 10.0 ** math.floor(math.log10(least) + 1e-9)
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))


def time_label(seconds: float, step: float) -> str:
    """Return a time for an axis with ticks every ``step`` seconds.

    Examples
    --------
    >>> time_label(0.25, 0.05), time_label(3, 1), time_label(60, 30), time_label(3725, 60)
    ('0.25 s', '3 s', '1:00', '1:02:05')
    """
    if step < 20:
        digits = max(0, -math.floor(math.log10(step) + 1e-9))
        return f"{seconds:.{digits}f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def draw_axis(picture: np.ndarray, axis: TimeAxis) -> None:
    """Draw a line with ticks and their times, 24 pixels high, 2 pixels below the top."""
    top = 2
    cv2.line(picture, (axis.left, top), (axis.left + axis.width, top), FAINT, 1)
    ticks = axis.ticks()
    step = ticks[1] - ticks[0] if len(ticks) > 1 else 1e-3
    for seconds in ticks:
        x = axis.x_of(seconds)
        cv2.line(picture, (x, top), (x, top + 5), FAINT, 1)
        put_text(picture, time_label(seconds, step), x, top + 20, scale=SMALL, align="center")


def draw_grid(picture: np.ndarray, axis: TimeAxis, height: int) -> None:
    """Draw a faint line at each tick of the axis, and a frame, from the top of a picture down to a height."""
    for seconds in axis.ticks():
        x = axis.x_of(seconds)
        cv2.line(picture, (x, 0), (x, height - 1), GRID, 1)
    cv2.rectangle(picture, (axis.left, 0), (axis.left + axis.width, height - 1), GRID, 1)


def draw_curve(picture: np.ndarray, xs: np.ndarray, values: np.ndarray, height: int, full: float) -> None:
    """Draw values [shape=(n,), 0 to ``full``] as a line. It is interrupted where a value is NaN."""
    ys = height - 3 - np.clip(values / full, 0, 1) * (height - 6)
    is_known = np.isfinite(values)
    edges = np.flatnonzero(np.diff(np.concatenate([[False], is_known, [False]]).astype(np.int8)))
    for first, stop in zip(edges[::2], edges[1::2], strict=True):
        points = np.stack([xs[first:stop], ys[first:stop]], -1).round().astype(np.int32)
        if len(points) == 1:
            cv2.circle(picture, tuple(int(value) for value in points[0]), 2, CURVE, -1, cv2.LINE_AA)
        cv2.polylines(picture, [points], False, CURVE, 1, cv2.LINE_AA)


def draw_lines(picture: np.ndarray, points: np.ndarray, pairs: tuple[tuple[int, int], ...], color: Color) -> None:
    """Draw lines between pairs of points [shape=(n, 2), dtype=float, pixels, (x, y)]. A NaN has no line."""
    for first, second in pairs:
        ends = points[[first, second]]
        if np.isfinite(ends).all() and (np.abs(ends) < 1e4).all():
            (x0, y0), (x1, y1) = ends.round().astype(int).tolist()
            cv2.line(picture, (x0, y0), (x1, y1), color, 2, cv2.LINE_AA)


def resized_to(picture: np.ndarray, width: int, height: int) -> np.ndarray:
    """Scale a picture by area [shape=(height, width, 3), dtype=uint8]."""
    return np.asarray(cv2.resize(picture, (width, height), interpolation=cv2.INTER_AREA))
