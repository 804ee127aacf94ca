"""The picture of a video: frames, flow and mel in one WebP, on one time axis."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from chordcache.errors import AbsentFeatureError, DamageError, NotFoundError
from chordcache.look.pictures import flow_colors, flow_scale, mel_colors, mel_rows, thinned, visible_landmarks, webp
from chordcache.look.report.curves import motion_of_frames
from chordcache.media.opencv import cv2
from chordcache.read.cache import Cache
from chordcache.read.video import Video
from chordcache.verifying.findings import Leak

_ASPECTS = (9 / 16, 16 / 9)
"""Narrowest and widest cell. Other pictures have bars at two sides"""

_NUM_CELLS, _CELL_PX, _MEL_PX = 6, 120 * 68, 60
"""Frames of a picture, area of each and height of mel, [pixels]"""

_PAIR_PX = 90
"""[pixels] Height of the frames of a pair"""

_QUALITY = 48
"""Quality of WebP, 1 to 100. A picture has about 11 kB"""

_MAX_KEYFRAMES = 120


def picture_of(cache: Cache, video: Video) -> tuple[dict[str, Any], float]:
    """Return the picture of a video for its page, and the mean length of its motion vectors, or NaN [source pixels].

    Facts that it does not have are left out:

    - ``picture``: the WebP in base64
    - ``layout``: width and height of a cell, number of cells, rows of frames (0, 1) and of flow, height of mel [pixels]
    - ``times`` of the cells, and ``keyframes`` [seconds from the first frame]
    - ``flow``: length of its full color [pixels]
    - ``curves``: the curve of the codec's motion vectors
    - ``pose``: for each cell x and y of the 33 landmarks, in thousandths of the picture, -1 if they are not visible
    - ``problems``: messages about damaged artefacts
    """
    if not video.num_frames:
        return {}, math.nan
    problems: dict[str, None] = {}

    def attempt(read: Callable[..., Any], *arguments: Any) -> Any:
        """Return what a function reads, or None if the video does not have it or its file is damaged."""
        try:
            return read(*arguments)
        except AbsentFeatureError:
            return None
        except (DamageError, OSError) as error:
            problems[str(error)] = None
            return None

    size = _cell_size(video)
    times = attempt(lambda: video.pts_seconds - video.start_seconds)
    if times is None:  # the other artefacts may be sound
        times = np.arange(video.num_frames) * (video.duration_seconds / video.num_frames)
    numbers = _numbers_in_slots(times, video.duration_seconds, _NUM_CELLS)
    keyframes = attempt(lambda: times[video.keyframes[:_MAX_KEYFRAMES]].round(2).tolist())
    frames = attempt(lambda: np.hstack([_fitted(cache.read(video, "frames", indices=[n])[0], size) for n in numbers]))
    flow, flow_px = attempt(_flow_row, cache, video, numbers, size) or (None, None)
    width = size[0] * len(numbers)
    rows = attempt(mel_rows, cache, video, 0, video.num_frames, width)
    mel = mel_colors(rows, width, _MEL_PX) if rows is not None and len(rows) else None
    motion, mean_motion_px = attempt(motion_of_frames, cache, video, times) or (None, math.nan)
    facts: dict[str, Any] = {
        "times": times[numbers].round(3).tolist(),
        "flow": flow_px,
        "pose": attempt(_pose, cache, video, numbers),
        "curves": [motion] if motion else None,
        "keyframes": keyframes,
        "problems": list(problems),
    }
    if shown := [row for row in (frames, flow, mel) if row is not None]:
        facts["picture"] = base64.b64encode(webp(np.vstack(shown), _QUALITY)).decode()
        num_rows = int(frames is not None), int(flow is not None)
        facts["layout"] = [*size, len(numbers), *num_rows, 0 if mel is None else len(mel)]
    return {name: fact for name, fact in facts.items() if fact}, mean_motion_px


def picture_of_pair(cache: Cache, leak: Leak) -> str:
    """Return frames of the same seconds of two videos, one above the other, as a WebP in base64.

    A video that is not in the cache, or whose frames cannot be read, is left out.
    """
    rows = []
    for key, (begin, end) in ((leak.train, leak.train_seconds), (leak.val, leak.val_seconds)):
        try:
            video = cache[key]
            middles = begin + (np.arange(_NUM_CELLS) + 0.5) / _NUM_CELLS * (end - begin)
            times = np.maximum.accumulate(video.pts_seconds - video.start_seconds)
            numbers = np.clip(np.searchsorted(times, middles, side="right") - 1, 0, len(times) - 1)
            frames = cache.read(video, "frames", indices=numbers)
            rows.append(np.hstack([_fitted(frame, (_PAIR_PX * 16 // 9, _PAIR_PX)) for frame in frames]))
        except (NotFoundError, DamageError, OSError):
            continue
    return base64.b64encode(webp(np.vstack(rows), _QUALITY)).decode() if rows else ""


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
    cache: Cache, video: Video, numbers: np.ndarray, size: tuple[int, int]
) -> tuple[np.ndarray, float] | None:
    """Return the flow of the cells as colors, and the length of the full color [pixels]."""
    num_rows = video.num_rows(video.feature("flow"), "flow")
    if not num_rows:
        return None
    rows = (cache.read(video, "flow", indices=[number])[0] for number in np.minimum(numbers, num_rows - 1))
    small = [_fitted(thinned(row), size) for row in rows]
    flow_px = round(flow_scale(np.stack(small)), 2)
    return np.hstack([flow_colors(field, flow_px) for field in small]), flow_px


def _pose(cache: Cache, video: Video, numbers: np.ndarray) -> list[list[int] | None]:
    """Return the landmarks of the cells, see ``picture_of``, or nothing if none is visible."""
    places = [visible_landmarks(rows, video.width, video.height) for rows in cache.read(video, "pose", indices=numbers)]
    shown = [
        None if np.isnan(xy).all() else np.nan_to_num(xy * 1000, nan=-1).round().astype(int).ravel().tolist()
        for xy in places
    ]
    return shown if any(shown) else []
