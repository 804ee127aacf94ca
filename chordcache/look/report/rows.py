"""The row and the details of one video, as the page's script reads them."""

from __future__ import annotations

import json
import math
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from chordcache.amounts import counted
from chordcache.errors import printable
from chordcache.look.problems import problem_of_record
from chordcache.look.report.curves import curves_of_content, level_dbfs
from chordcache.look.report.inputs import Entry
from chordcache.look.summary import features_by_file
from chordcache.records import HeaderFacts, VideoRecord
from chordcache.storage.feature_info import FeatureInfo

FIELDS = (
    "key", "path", "labels", "caption", "traits", "frames", "seconds", "start", "width", "height",
    "fps", "motion", "luma", "sound", "bytes",
)  # fmt: skip
"""Names of the values of a row, in their order. ``labels`` and ``traits`` are numbers of texts"""

_MEASURES = {
    "seconds": ("Duration", "s", "Shortest", "Longest"),
    "height": ("Height", "px", "Lowest picture", "Highest picture"),
    "fps": ("Frame rate", "frames/s", "Lowest frame rate", "Highest frame rate"),
    "frames": ("Frames", "", "Fewest frames", "Most frames"),
    "motion": ("Codec motion", "px", "Stillest, by codec motion", "Most codec motion"),
    "luma": ("Change of luma", "gray levels", "Stillest, by change of luma", "Most change of luma"),
    "sound": ("Sound level", "dB", "Quietest", "Loudest"),
    "bytes": ("Size", "B", "Fewest bytes", "Most bytes"),
}
"""Each number of a video that can be compared with those of others: title and unit of its histogram, and the names of
the orders up and down. The height is that which a player shows, motion the mean length of the codec's vectors in source
pixels, luma the mean difference from frame to frame. Bytes are of all artefacts, or of the file if it is not cached"""

_SORTED = ("seconds", "motion", "luma", "sound", "height", "fps", "frames", "bytes")

ORDERS = (
    ("path", "Name"),
    *((sign + name, _MEASURES[name][2 + (sign == "-")]) for name in _SORTED for sign in ("", "-")),
    ("labels", "Label"),
)
"""Fields to sort by with their names. A minus is for descending"""

_DIGITS = {"frames": None, "seconds": 3, "fps": 2, "motion": 3, "luma": 3, "sound": 1, "bytes": None}
"""Digits of each measure behind the point"""

NUM_BINS = 24
"""Bins of the axis of a histogram"""

_MIN_RATIO_OF_LOG = 200
"""End of the axis over the median from which on the bins are logarithmic"""

_MAX_RATIO_OF_AXIS = 3
"""Largest value on the axis over the 90th percentile. Larger values have one bin behind the others"""

_CAPTION_IN_ROW = 160
"""Characters of a caption that the grid shows and the search finds"""

_CAPTION = 2000
"""Characters of a caption on the page of its video"""

_MAX_COLUMNS, _MAX_CAPTIONS, _MAX_KEYFRAMES, _MAX_MARKS = 40, 10, 120, 100

_JOINERS = "\u200c\u200d"
"""Invisible characters that several scripts and emojis need"""

_HDR = ("smpte2084", "arib-std-b67")


def readable(text: str, length: int = 1000) -> str:
    """Return a text for people, cut to a length. Control characters and undecodable bytes are escaped.

    Marks that change the direction of what follows are control characters. Letters of any direction stay.

    Examples
    --------
    >>> readable("two\\nlines \\x07", 40)
    'two lines \\\\x07'
    >>> readable("abcdef", 3)
    'abc…'
    """
    kept = text if len(text) <= length else text[:length] + "…"
    if kept.isprintable():
        return kept
    return "".join(c if c in _JOINERS else " " if c.isspace() else printable(c) for c in kept)


def for_script(value: Any) -> str:
    """Return JSON in ASCII without ``<``, ``>`` and ``&``, so that it cannot end the element that it is in."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


class Texts:
    """Distinct texts, which many videos share, in the order of their numbers."""

    def __init__(self) -> None:
        self.counts: Counter[Any] = Counter()
        """Text to the number of its uses"""
        self._numbers: dict[Any, int] = {}

    def number(self, text: Any) -> int:
        """Count a use of a text or a tuple of texts, and return its number."""
        self.counts[text] += 1
        return self._numbers.setdefault(text, len(self._numbers))


@dataclass
class Shared:
    """Texts that many videos of a page share."""

    labels: Texts = field(default_factory=Texts)
    traits: Texts = field(default_factory=Texts)
    facts: Texts = field(default_factory=Texts)


class MeasureTable:
    """The measures of all videos: 64 bytes for each."""

    def __init__(self) -> None:
        self._values = array("d")
        self.known: set[str] = set()
        """Measures that at least one video has"""

    def add(self, measures: Mapping[str, float]) -> None:
        """Append the measures of a video."""
        self._values.extend(measures.get(name, math.nan) for name in _MEASURES)
        self.known.update(measures)

    def histograms(self) -> list[dict[str, Any]]:
        """Return a histogram of each measure that has at least two values."""
        histograms = []
        table = np.array(self._values).reshape(-1, len(_MEASURES))
        for name, column in zip(_MEASURES, table.T, strict=True):
            values = column[np.isfinite(column)]
            edges = _edges(name, values)
            if edges is None:
                continue
            counts, _ = np.histogram(values, edges)
            title, unit, *_ = _MEASURES[name]
            shown = [float(f"{edge:.6g}") for edge in edges]
            histograms.append({"field": name, "title": title, "unit": unit, "edges": shown, "counts": counts.tolist()})
        return histograms


def _edges(name: str, values: np.ndarray) -> np.ndarray | None:
    """Return the edges of the bins, or None if all values are nearly equal.

    There is one bin more than ``NUM_BINS`` if some values are far larger than the others.
    """
    if not len(values):
        return None
    low, high = float(values.min()), float(values.max())
    if not high - low > 1e-5 * max(abs(low), abs(high)):  # the page shows six digits of an edge
        return None
    end = _end_of_axis(values)
    if name != "sound" and low > 0 and end / float(np.median(values)) > _MIN_RATIO_OF_LOG:
        edges = np.geomspace(low, end, NUM_BINS + 1)
    else:
        edges = np.linspace(low, end, NUM_BINS + 1)
    return edges if end == high else np.append(edges, high)


def _end_of_axis(values: np.ndarray) -> float:
    """Return the largest value, or a value just above all but the few that are far larger than the others."""
    high = float(values.max())
    limit = _MAX_RATIO_OF_AXIS * float(np.percentile(values, 90, method="lower"))
    if not 0 < limit < high:
        return high
    return min(high, 1.01 * float(values[values <= limit].max()))


def measures_of(entry: Entry) -> dict[str, float]:
    """Return the numbers that a sidecar and a record state, by the names of ``_MEASURES``, as far as they are known."""
    video, record, content = *entry[1:], entry.content
    measures: dict[str, float | None] = {}
    header, packets = (record.header, record.packets) if record else (None, None)
    if video is not None:
        measures |= {"seconds": video.duration_seconds, "frames": video.num_frames, "bytes": video.sidecar.num_bytes()}
        if video.duration_seconds > 0:
            measures["fps"] = video.num_frames / video.duration_seconds
    elif packets is not None:
        measures |= {"seconds": packets.duration_seconds, "frames": packets.num_frames}
    measures["height"] = _display_size(entry)[1]
    if header is not None:
        measures["fps"] = header.average_fps or measures.get("fps")
    if video is None and record is not None and record.identity is not None:
        measures["bytes"] = record.identity.size
    if content is not None and content.motion_per_second:
        name = "luma"
        measures[name] = float(np.mean(content.motion_per_second))
    if content is not None and content.audio_energy_per_second:
        power = np.mean(np.square(content.audio_energy_per_second))
        measures["sound"] = float(level_dbfs(np.sqrt(power)))
    return {name: value for name, value in measures.items() if value is not None}


def row_of(entry: Entry, measures: Mapping[str, float], problems: Sequence[str], shared: Shared) -> list[Any]:
    """Return the values of ``FIELDS``: what the grid shows, and what it searches, sorts and filters by.

    ``problems`` are the messages about its damaged artefacts.
    """
    labels = [readable(label, 120) for label in (entry.described.label, *entry.described.labels) if label]
    traits = [*_traits(entry), *(["damaged artefact"] if problems else [])]
    captions = _captions(entry)
    width, height = _display_size(entry)
    row = {
        **{name: _rounded(measures.get(name, math.nan), digits) for name, digits in _DIGITS.items()},
        "key": entry.key,
        "path": readable(entry.described.path, 400),
        "labels": [shared.labels.number(label) for label in dict.fromkeys(labels)],
        "caption": readable(captions[0], _CAPTION_IN_ROW) if captions else "",
        "traits": [shared.traits.number(trait) for trait in dict.fromkeys(readable(trait, 120) for trait in traits)],
        "start": _rounded(entry.video.start_seconds, 3) if entry.video else 0,
        "width": width,
        "height": height,
    }
    return [row[name] for name in FIELDS]


def details_of(entry: Entry, shared: Shared) -> dict[str, Any]:
    """Return the facts, curves and marks of the page of one video, without its picture."""
    details: dict[str, Any] = {}
    details["facts"] = [shared.facts.number((name, readable(text, 300))) for name, text in _facts(entry)]
    captions = _captions(entry)
    if len(captions) > 1 or (captions and len(captions[0]) > _CAPTION_IN_ROW):
        details["captions"] = [readable(caption, _CAPTION) for caption in captions[:_MAX_CAPTIONS]]
    if columns := list(entry.described.extra.items())[:_MAX_COLUMNS]:
        details["columns"] = [[readable(name, 80), _column_text(value)] for name, value in columns]
        details["marks"] = [mark for name, value in columns for mark in _marks(name, value)][:_MAX_MARKS]
    if (content := entry.content) is not None:
        details["curves"] = curves_of_content(content)
        details["peaks"] = [round(seconds, 2) for seconds in content.audio_peaks_seconds[:_MAX_MARKS]]
    if keyframes := _keyframe_seconds(entry):
        details["keyframes"] = keyframes
    if entry.video is not None:
        details["files"] = [
            [shared.facts.number(("", _file_text(infos))), file.num_bytes]
            for file, infos in features_by_file(entry.video).items()
        ]
    return details


def _captions(entry: Entry) -> list[str]:
    return [caption for caption in (entry.described.caption, *entry.described.captions) if caption]


def _rounded(value: float, digits: int | None = None) -> float | None:
    return round(value, digits) if math.isfinite(value) else None


def _display_size(entry: Entry) -> tuple[int | None, int | None]:
    if entry.record is not None and entry.record.header is not None:
        return entry.record.header.display_width, entry.record.header.display_height
    if entry.video is None:
        return None, None
    sidecar = entry.video.sidecar
    return sidecar.display_size or (sidecar.width, sidecar.height)


def _traits(entry: Entry) -> Iterator[str]:
    """Yield the properties of a video."""
    video, record = entry.video, entry.record
    if record is not None and (problem := problem_of_record(record)) is not None:
        yield f"broken: {problem.cause}"
    if record is not None and record.header is not None:
        header = record.header
        yield f"codec {header.codec}"
        if header.rotation:
            yield "rotated"
        if header.bit_depth and header.bit_depth > 8:
            yield f"{header.bit_depth} bit"
        if header.color_transfer in _HDR:
            yield "HDR"
        if header.sample_aspect_ratio not in ("1:1", ""):
            yield "non-square pixels"
        yield "with sound" if record.audio else "without sound"
    if record is not None and record.packets is not None and record.packets.variable_frame_rate:
        yield "variable frame rate"
    if video is not None:
        if video.segment is not None:
            yield "segment"
        for info in video.sidecar.features:
            if info.file is None:
                yield f"without {info.feature}"


def _facts(entry: Entry) -> Iterator[tuple[str, str]]:
    """Yield name and text of the facts that are not in the row."""
    video, record = entry.video, entry.record
    yield "root", entry.described.root
    if entry.described.segment is not None:
        yield "segment", str(entry.described.segment)
    if record is not None and record.error:
        yield "error", record.error
    if record is not None and record.header is not None:
        yield from _header_facts(record.header)
        audio = record.audio
        rate = f"{audio.sample_rate_hz / 1000:g} kHz, {audio.num_channels} channels" if audio else ""
        yield "sound", f"{audio.codec}, {rate}" if audio else "none"
    if record is not None and record.packets is not None:
        yield "frame rate", "variable" if record.packets.variable_frame_rate else "constant"
    if video is not None:
        sidecar = video.sidecar
        yield "times from", sidecar.timestamp_source
        yield "cached size", f"{video.width}x{video.height}"
        for note in sidecar.notes:
            yield "note", note
        if sidecar.num_frames_skipped:
            yield "skipped", f"{counted(sidecar.num_frames_skipped, 'frame')} before the first keyframe"
        for info in sidecar.features:
            if info.file is None:
                yield "absent", f"{info.feature} in {info.tier}: {info.absent}"


def _header_facts(header: HeaderFacts) -> Iterator[tuple[str, str]]:
    yield "container", header.container
    yield "codec", " ".join(filter(None, (header.codec, header.profile)))
    yield (
        "pixels",
        ", ".join(filter(None, (header.pixel_format, f"{header.bit_depth} bit" if header.bit_depth else None))),
    )
    colors = (header.color_space, header.color_primaries, header.color_transfer, header.color_range)
    yield "colors", ", ".join(dict.fromkeys(filter(None, colors))) or "not stated"
    if header.rotation or header.mirrored:
        yield "turned", f"{header.rotation}° clockwise{', mirrored' if header.mirrored else ''}"
    if header.sample_aspect_ratio != "1:1":
        yield "pixel aspect", header.sample_aspect_ratio
        yield "stored size", f"{header.coded_width}x{header.coded_height}"


def _file_text(infos: Sequence[FeatureInfo]) -> str:
    codec = next((f", {info.params['codec']}" for info in infos if "codec" in info.params), "")
    return f"{', '.join(info.feature for info in infos)} in {infos[0].tier}{codec}"


def _column_text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return readable(text, 400)


def _marks(name: str, value: Any) -> Iterator[list[Any]]:
    """Yield time and text of the annotations in a column of boxes."""
    if not isinstance(value, list | tuple):
        return
    texts: dict[float, Counter[str]] = {}
    for box in value:
        if not isinstance(box, Mapping) or not isinstance(box.get("time_seconds"), int | float):
            return
        try:
            seconds = float(box["time_seconds"])
        except OverflowError:  # JSON has integers of any size
            continue
        if math.isfinite(seconds):
            texts.setdefault(seconds, Counter())[str(box.get("label", name))] += 1
    for seconds, labels in texts.items():
        words = (f"{count} {label}" if count > 1 else label for label, count in labels.items())
        yield [round(seconds, 2), readable(", ".join(words), 120)]


def _keyframe_seconds(entry: Entry) -> list[float]:
    """Return the times of the keyframes that lie in the video, from its first frame."""
    record: VideoRecord | None = entry.record
    if record is None or record.packets is None:
        return []
    start = entry.video.start_seconds if entry.video else record.packets.start_seconds
    stop = entry.video.duration_seconds if entry.video else record.packets.duration_seconds
    times = [
        round(seconds - start, 2) for seconds in record.packets.keyframe_pts_seconds if 0 <= seconds - start <= stop
    ]
    return times[:: -(-len(times) // _MAX_KEYFRAMES)] if times else []
