"""Text, curves and time axes on pictures, drawn with OpenCV."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from chordcache.errors import printable
from chordcache.media.opencv import cv2

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


def draw_axis(picture: np.ndarray, axis: TimeAxis, top: int) -> None:
    """Draw a line with ticks and their times, 24 pixels high."""
    cv2.line(picture, (axis.left, top), (axis.left + axis.width, top), FAINT, 1)
    ticks = axis.ticks()
    step = ticks[1] - ticks[0] if len(ticks) > 1 else 1e-3
    for seconds in ticks:
        x = axis.x_of(seconds)
        cv2.line(picture, (x, top), (x, top + 5), FAINT, 1)
        put_text(picture, time_label(seconds, step), x, top + 20, scale=SMALL, align="center")


def draw_grid(picture: np.ndarray, axis: TimeAxis, top: int, height: int) -> None:
    """Draw a faint line at each tick of the axis, and a frame."""
    for seconds in axis.ticks():
        x = axis.x_of(seconds)
        cv2.line(picture, (x, top), (x, top + height - 1), GRID, 1)
    cv2.rectangle(picture, (axis.left, top), (axis.left + axis.width, top + height - 1), GRID, 1)


def draw_curve(picture: np.ndarray, xs: np.ndarray, values: np.ndarray, top: int, height: int, full: float) -> None:
    """Draw values [shape=(n,), 0 to ``full``] as a line. It is interrupted where a value is NaN."""
    ys = top + height - 3 - np.clip(values / full, 0, 1) * (height - 6)
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
    scaled: np.ndarray = cv2.resize(picture, (width, height), interpolation=cv2.INTER_AREA)
    return scaled
