"""Figures over all videos of a page, counted as they pass."""

from __future__ import annotations

import contextlib
import math
import tempfile
from collections import Counter
from dataclasses import astuple, dataclass, fields
from typing import IO, Any

import numpy as np

from chordcache.read.video import Video
from chordcache.tools.report.inputs import Entry
from chordcache.tools.report.rows import Measures

NAMES = tuple(each.name for each in fields(Measures))

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
"""Largest value over the median of the positive ones from which on the bins are logarithmic"""

_ROWS_AT_ONCE = 1 << 16


class MeasureFile:
    """The measures of all videos in a temporary file, so that memory does not grow with their number."""

    def __init__(self) -> None:
        self._file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 # until `close`
        self.known: set[str] = set()
        """Measures that at least one video has"""

    def add(self, measures: Measures) -> None:
        """Append the measures of a video."""
        values = np.array(astuple(measures), np.float64)
        self._file.write(values.tobytes())
        self.known.update(name for name, value in zip(NAMES, values, strict=True) if value == value)

    def flush(self) -> None:
        """Write what is buffered, so that a full disk is noticed here."""
        self._file.flush()

    def close(self) -> None:
        """Remove the file."""
        with contextlib.suppress(OSError):  # a full disk: what is buffered is not needed
            self._file.close()

    def histograms(self) -> list[dict[str, Any]]:
        """Return a histogram of each measure that has at least two values."""
        found = []
        for place, name in enumerate(NAMES):
            edges = self._edges(place)
            if edges is None:
                continue
            counts = np.zeros(_NUM_BINS, np.int64)
            for values in self._values(place):
                counts += np.histogram(values, edges)[0]
            title, unit = TITLES[name]
            shown = [float(f"{edge:.6g}") for edge in edges]
            found.append({"field": name, "title": title, "unit": unit, "edges": shown, "counts": counts.tolist()})
        return found

    def _values(self, place: int) -> Any:
        """Yield the known values of a measure, some at a time."""
        self._file.seek(0)
        while data := self._file.read(_ROWS_AT_ONCE * len(NAMES) * 8):
            values = np.frombuffer(data, np.float64).reshape(-1, len(NAMES))[:, place]
            yield values[np.isfinite(values)]

    def _edges(self, place: int) -> np.ndarray | None:
        low, high, sample = math.inf, -math.inf, np.empty(0)
        for values in self._values(place):
            if len(values):
                low, high = min(low, float(values.min())), max(high, float(values.max()))
                sample = sample if len(sample) else values
        if not high - low > 1e-5 * max(abs(low), abs(high)):  # the page shows six digits of an edge
            return None
        if NAMES[place] != "sound" and low > 0 and high / float(np.median(sample)) > _MIN_RATIO_OF_LOG:
            return np.geomspace(low, high, _NUM_BINS + 1)
        return np.linspace(low, high, _NUM_BINS + 1)


@dataclass(frozen=True)
class Bar:
    """A line of a chart of bars."""

    name: str
    value: float
    share: float
    """Length of the bar, 0 to 100"""


class Totals:
    """Counts over all videos."""

    def __init__(self) -> None:
        self.num_videos = self.num_frames = 0
        self.seconds = 0.0
        self.num_damaged = self.num_missing_frames = 0
        self.absent: Counter[str] = Counter()
        self.labels: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()

    def add(self, entry: Entry, measures: Measures) -> None:
        """Count a video."""
        self.num_videos += 1
        self.num_frames += 0 if math.isnan(measures.frames) else int(measures.frames)
        self.seconds += 0 if math.isnan(measures.seconds) else measures.seconds
        described = entry.video.sidecar if entry.video else entry.record
        if described is not None:
            self.labels.update({*described.labels, *([described.label] if described.label else [])})
        if entry.video is not None:
            self._add_files(entry.video)
            if entry.video.damage is not None:
                self.num_damaged += 1
                self.num_missing_frames += entry.video.damage.num_missing
        elif entry.record is not None and entry.record.identity is not None:
            self._bytes["source files"] += entry.record.identity.size

    def _add_files(self, video: Video) -> None:
        by_file: dict[str, list[str]] = {}
        for info in video.sidecar.features:
            if info.file is None:
                self.absent[f"{info.feature} in {info.tier}: {info.absent}"] += 1
                continue
            by_file.setdefault(info.file, []).append(info.feature)
        infos = {info.file: info for info in video.sidecar.features if info.file}
        for file, names in by_file.items():
            self._bytes[f"{', '.join(names)} in {infos[file].tier}"] += infos[file].num_bytes

    @property
    def num_bytes(self) -> int:
        """Bytes of all artefacts."""
        return sum(self._bytes.values())

    def bytes_by_feature(self) -> list[Bar]:
        """Return the bytes of each feature in each tier, the most first."""
        return bars(self._bytes)


def bars(counter: Counter[str], most: int = 20) -> list[Bar]:
    """Return the most common names with the lengths of their bars."""
    top = max(counter.values(), default=0) or 1
    return [Bar(name, value, round(100 * value / top, 2)) for name, value in counter.most_common(most)]
