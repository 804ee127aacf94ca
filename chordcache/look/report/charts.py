"""The charts of a page: histograms of the measures of all videos, and bars of counts."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import astuple, fields
from typing import Any

import numpy as np

from chordcache.look.report.rows import Measures

NAMES = tuple(measure.name for measure in fields(Measures))

TITLES = {
    "seconds": ("Duration", "s"),
    "height": ("Height", "px"),
    "fps": ("Frame rate", "frames/s"),
    "frames": ("Frames", ""),
    "motion": ("Codec motion", "px"),
    "luma": ("Change of luma", "gray levels"),
    "sound": ("Sound level", "dB"),
    "bytes": ("Size", "B"),
}
"""Title and unit of each histogram"""

_NUM_BINS = 24

_MIN_RATIO_OF_LOG = 200
"""Largest value over the median from which on the bins are logarithmic"""


class MeasureTable:
    """The measures of all videos: 64 bytes for each."""

    def __init__(self) -> None:
        self._values = array("d")
        self.known: set[str] = set()
        """Measures that at least one video has"""

    def add(self, measures: Measures) -> None:
        """Append the measures of a video."""
        values = astuple(measures)
        self._values.extend(values)
        self.known.update(name for name, value in zip(NAMES, values, strict=True) if value == value)

    def histograms(self) -> list[dict[str, Any]]:
        """Return a histogram of each measure that has at least two values."""
        histograms = []
        table = np.array(self._values).reshape(-1, len(NAMES))
        for name, column in zip(NAMES, table.T, strict=True):
            values = column[np.isfinite(column)]
            edges = _edges(name, values)
            if edges is None:
                continue
            counts, _ = np.histogram(values, edges)
            title, unit = TITLES[name]
            shown = [float(f"{edge:.6g}") for edge in edges]
            histograms.append({"field": name, "title": title, "unit": unit, "edges": shown, "counts": counts.tolist()})
        return histograms


def _edges(name: str, values: np.ndarray) -> np.ndarray | None:
    """Return the edges of the bins, or None if all values are nearly equal."""
    if not len(values):
        return None
    low, high = float(values.min()), float(values.max())
    if not high - low > 1e-5 * max(abs(low), abs(high)):  # the page shows six digits of an edge
        return None
    if name != "sound" and low > 0 and high / float(np.median(values)) > _MIN_RATIO_OF_LOG:
        return np.geomspace(low, high, _NUM_BINS + 1)
    return np.linspace(low, high, _NUM_BINS + 1)


def bars(counts: Mapping[str, int], text_of: Callable[[int], str] = "{:,}".format) -> list[tuple[str, str, float]]:
    """Return the most common names, with the text of each count and the length of its bar, 0 to 100."""
    largest = max(counts.values(), default=0) or 1
    return [(name, text_of(count), round(100 * count / largest, 2)) for name, count in Counter(counts).most_common(20)]
