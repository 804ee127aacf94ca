"""Curves over the time of a video, as text of a few hundred bytes."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

from chordcache.media.frame_numbers import evenly_spread
from chordcache.read.cache import Cache
from chordcache.read.video import Video
from chordcache.records import ContentFacts

MOTION, LUMA, SOUND = "motion", "luma", "sound"
"""Names of the curves: codec motion [source pixels], difference of luma [gray levels], sound level [dBFS]"""

SILENCE_DBFS = -80.0
"""Lower end of the sound level. 0 is full scale, [dB]"""

_MAX_POINTS = 160
"""Points of a curve. The axis on the page is about 1,000 pixels wide"""

_MAX_FRAMES = 240
"""Frames whose motion is read. A longer video has its curve from frames that are evenly spread"""

_MISSING = 255
"""Byte of a point without a value"""


def level_dbfs(energy: np.ndarray) -> np.ndarray:
    """Return the level of root mean squares [0 to 1] in dB of full scale, at least ``SILENCE_DBFS``."""
    floor = 10 ** (SILENCE_DBFS / 20)
    return np.asarray(20 * np.log10(np.clip(energy, floor, 1)))


def curves_of_content(content: ContentFacts) -> list[Any]:
    """Return the curves of the facts that a scan or a build measured, second by second."""
    curves = []
    if content.motion_per_second:
        name = LUMA
        curves.append(_per_second(name, np.array(content.motion_per_second)))
    if content.audio_energy_per_second:
        levels = level_dbfs(np.array(content.audio_energy_per_second))
        curves.append(_per_second(SOUND, levels, SILENCE_DBFS, 0.0))
    return curves


def motion_of_frames(cache: Cache, video: Video, seconds: np.ndarray) -> tuple[list[Any], float] | None:
    """Return the curve of the codec's motion vectors and their mean length [source pixels], or None if it has none.

    ``seconds`` are the times of all frames [shape=(num_frames,), dtype=float64, seconds from the first frame]. Raises
    as ``Cache.read`` does.
    """
    from chordcache.look.pictures import motion_lengths  # it needs OpenCV

    rows = evenly_spread(video.num_rows(video.feature("motion"), "motion"), _MAX_FRAMES)
    lengths = motion_lengths(cache, video, rows)
    known = np.isfinite(lengths)
    if not known.any():
        return None
    num_points = min(len(rows), _MAX_POINTS)
    places = np.minimum((seconds[rows] / max(video.duration_seconds, 1e-9) * num_points).astype(int), num_points - 1)
    values = np.full(num_points, np.nan)
    np.fmax.at(values, places[known], lengths[known])
    return _encoded(MOTION, values, video.duration_seconds / num_points, None), float(lengths[known].mean())


def _per_second(name: str, values: np.ndarray, low: float = 0.0, high: float | None = None) -> list[Any]:
    """Return a curve with a point for each second, or for several."""
    seconds = -(-len(values) // _MAX_POINTS)
    padded = np.append(values, np.full(-len(values) % seconds, -np.inf)).reshape(-1, seconds)
    return _encoded(name, padded.max(1), float(seconds), high, low)


def _encoded(name: str, values: np.ndarray, step_seconds: float, high: float | None, low: float = 0.0) -> list[Any]:
    """Return name, bytes in base64, the values of bytes 0 and 254, and the seconds from one point to the next."""
    finite = values[np.isfinite(values)]
    top = float(finite.max(initial=0)) if high is None else high
    share = np.nan_to_num((values - low) / max(top - low, 1e-9), nan=-1.0, neginf=0.0, posinf=1.0)
    data = np.where(share < 0, _MISSING, np.clip(share, 0, 1) * 254).round().astype(np.uint8)
    return [name, base64.b64encode(data.tobytes()).decode(), low, round(top, 4), round(step_seconds, 4)]
