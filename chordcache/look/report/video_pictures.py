"""The picture of a video: frames, flow and mel in one WebP, on one time axis."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from chordcache.errors import DamageError, FeatureAbsentError
from chordcache.look.pictures import flow_colors, flow_scale, mel_colors, mel_rows, visible_landmarks, webp
from chordcache.look.report.curves import motion_of_frames
from chordcache.media.opencv import cv2
from chordcache.read.cache import Cache
from chordcache.read.video import Video

_ASPECTS = (9 / 16, 16 / 9)
"""Narrowest and widest cell. Other pictures have bars at two sides"""

_NUM_CELLS, _CELL_PX, _MEL_PX = 6, 120 * 68, 60
"""Frames of a picture, area of each and height of mel, [pixels]"""

_QUALITY = 48
"""Quality of WebP, 1 to 100. A picture has about 11 kB"""

_MAX_KEYFRAMES = 120


@dataclass
class Picture:
    """The picture of one video and what is measured with it."""

    webp: bytes = b""
    """The file, or empty if there is nothing to show"""
    layout: list[int] = field(default_factory=list)
    """Width and height of a cell, number of cells, rows of frames (0, 1) and of flow, height of mel, [pixels]"""
    seconds: list[float] = field(default_factory=list)
    """Times of the cells, from the first frame"""
    keyframes: list[float] = field(default_factory=list)
    """Times of the first keyframes, from the first frame"""
    flow_px: float | None = None
    """Length of the full color of flow, [pixels]"""
    motion: list[Any] = field(default_factory=list)
    """Curve of the codec's motion vectors"""
    mean_motion_px: float | None = None
    pose: list[list[int] | None] = field(default_factory=list)
    """For each cell x and y of the 33 landmarks, in thousandths of the picture, -1 if they are not visible"""
    problems: list[str] = field(default_factory=list)
    """Messages about damaged artefacts"""


def picture_of(cache: Cache, video: Video) -> Picture:
    """Return the picture of a video. Damaged artefacts are named in ``problems``."""
    picture = Picture()
    if not video.num_frames:
        return picture
    size = _cell_size(video)
    times = _attempt(picture, lambda: video.pts_seconds - video.start_seconds)
    if times is None:  # the other artefacts may be sound
        times = np.arange(video.num_frames) * (video.duration_seconds / video.num_frames)
    numbers = _numbers_in_slots(times, video.duration_seconds, _NUM_CELLS)
    picture.seconds = [round(float(times[number]), 3) for number in numbers]
    keyframes = _attempt(picture, lambda: times[video.keyframes])
    picture.keyframes = [] if keyframes is None else [round(float(time), 2) for time in keyframes[:_MAX_KEYFRAMES]]
    rows = [
        _attempt(picture, lambda: _frames_row(cache, video, numbers, size)),
        _attempt(picture, lambda: _flow_row(cache, video, numbers, size, picture)),
        _attempt(picture, lambda: _mel_row(cache, video, size[0] * len(numbers))),
    ]
    motion = _attempt(picture, lambda: motion_of_frames(cache, video, times))
    picture.motion, picture.mean_motion_px = motion or ([], None)
    picture.pose = _attempt(picture, lambda: _pose(cache, video, numbers)) or []
    shown = [row for row in rows if row is not None]
    if shown:
        picture.webp = webp(np.vstack(shown), _QUALITY)
        has_frames, has_flow = (int(row is not None) for row in rows[:2])
        picture.layout = [*size, len(numbers), has_frames, has_flow, 0 if rows[2] is None else len(rows[2])]
    return picture


def _attempt(picture: Picture, read: Callable[[], Any]) -> Any:
    """Return what a function reads, or None if the video does not have it or its file is damaged."""
    try:
        return read()
    except FeatureAbsentError:
        return None
    except (DamageError, OSError) as error:
        if str(error) not in picture.problems:
            picture.problems.append(str(error))
        return None


def _cell_size(video: Video) -> tuple[int, int]:
    """Return width and height of the cells: of the aspect of the video, and of the same area for all videos."""
    aspect = min(max(video.width / max(1, video.height), _ASPECTS[0]), _ASPECTS[1])
    height = math.sqrt(_CELL_PX / aspect)
    return round(height * aspect), round(height)


def _numbers_in_slots(times: np.ndarray, duration: float, count: int) -> np.ndarray:
    """Return the frames that are shown in the middle of each slot, so that a cell lies at its time on the axis.

    ``times`` are those of all frames [shape=(T,), dtype=float64, seconds from the first frame].
    """
    middles = (np.arange(count) + 0.5) / count * duration
    return np.clip(np.searchsorted(np.maximum.accumulate(times), middles, side="right") - 1, 0, len(times) - 1)


def _frames_row(cache: Cache, video: Video, numbers: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    frames = cache.read(video, "frames", indices=numbers)
    return np.hstack([_fitted(frame, size) for frame in frames])


def _fitted(picture: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Scale a picture into a cell [shape=(H, W, C)], on zeros if its aspect is another."""
    width, height = size
    scale = min(width / picture.shape[1], height / picture.shape[0])
    inner = max(1, round(picture.shape[1] * scale)), max(1, round(picture.shape[0] * scale))
    if abs(inner[0] - width) <= 1 and abs(inner[1] - height) <= 1:
        inner = size
    kind = cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR
    small: np.ndarray = cv2.resize(picture, inner, interpolation=kind)
    if inner == size:
        return small
    cell = np.zeros((height, width, picture.shape[2]), picture.dtype)
    left, top = (width - inner[0]) // 2, (height - inner[1]) // 2
    cell[top : top + inner[1], left : left + inner[0]] = small
    return cell


def _flow_row(
    cache: Cache, video: Video, numbers: np.ndarray, size: tuple[int, int], picture: Picture
) -> np.ndarray | None:
    num_rows = video.num_rows(video.feature("flow"), "flow")
    if not num_rows:
        return None
    flow = cache.read(video, "flow", indices=np.minimum(numbers, num_rows - 1))
    step = max(1, int(min(flow.shape[1] / size[1], flow.shape[2] / size[0]) / 1.5))  # flow is smooth
    small = [_fitted(field[::step, ::step].astype(np.float32), size) for field in flow]
    picture.flow_px = round(flow_scale(np.stack(small)), 2)
    return np.hstack([flow_colors(field, picture.flow_px) for field in small])


def _mel_row(cache: Cache, video: Video, width: int) -> np.ndarray | None:
    rows = mel_rows(cache, video, 0, video.num_frames, width)
    return mel_colors(rows, width, _MEL_PX) if len(rows) else None


def _pose(cache: Cache, video: Video, numbers: np.ndarray) -> list[list[int] | None]:
    shown: list[list[int] | None] = []
    for landmarks in cache.read(video, "pose", indices=numbers):
        places = visible_landmarks(landmarks, video.width, video.height)
        if np.isnan(places).all():
            shown.append(None)
            continue
        shown.append(np.nan_to_num(places * 1000, nan=-1).round().astype(int).ravel().tolist())
    return shown if any(shown) else []
