"""Boxes of tracks, in the pixels and the frames of a sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from chordcache.errors import UsageError
from chordcache.media.cropping import CropBox
from chordcache.read.video import Video

Boxes: TypeAlias = dict[str, Any]
"""The boxes of a sample, as arrays, or as tensors in a sample of a dataset. N boxes, in the order of the frames
that show them.

====================  ==============================================================================
``boxes``             [shape=(N, 4), dtype=float32, pixels of h x w, x1, y1, x2, y2] The upper left corner of the
                      picture is (0, 0), the lower right one (w, h)
``frame``             [shape=(N,), dtype=int64, in [0, T)] Position in the sample of the frame that shows the box.
``track_id``          [shape=(N,), dtype=int64] -1 without one
``label``             list of N str, "" without a label
====================  ==============================================================================
"""

BOX_TYPES = ("boxes", "relative_boxes")
"""Types of columns of boxes"""

_KEYS = ("boxes", "frame", "track_id", "label")
_CORNERS = ("x1", "y1", "x2", "y2")

_TIME_SLACK_SECONDS = 1e-3
"""Tolerance of the times of boxes. Lists of annotations often round to milliseconds"""

_TIE_SLACK_SECONDS = 1e-6
"""Difference below which two frames are equally near. Rounding of presentation times is far smaller"""


def clip_boxes(name: str, kind: str, video: Video, numbers: np.ndarray, crop: CropBox | None) -> Boxes:
    """Return the boxes of a track that the frames of a sample show.

    A box belongs to the cached frame nearest to its time, to the earlier one of two that are equally near. A box before
    the first frame or after the end of the last one, by more than 1 ms, belongs to none. A sample has the boxes of its
    frames: a frame that it repeats has its boxes each time, and boxes of frames between those of the sample are left
    out.

    Boxes follow the bucket of the video and the crop of the pictures: cut, then scaled, then mirrored. They are cut at
    the border of the cached picture and of the sample, and left out if no area remains. Without a crop, they are in
    pixels of the cached frame.

    ``name`` and ``kind`` are the column of the track, and its type, of ``BOX_TYPES``: pixels of the displayed source,
    or fractions of its width and height. ``numbers`` [shape=(T,), dtype=int64] are the frames of the sample. Raises
    ``UsageError`` if the boxes are in pixels, and the sidecar does not have the size of the displayed source.
    """
    track: Sequence[Mapping[str, Any]] = video.extra.get(name) or ()
    times = np.array([box["time_seconds"] for box in track], np.float64)
    of_frame = _nearest_frames(times, video)
    by_frame = np.argsort(of_frame, kind="stable")
    starts, stops = (np.searchsorted(of_frame[by_frame], numbers, side) for side in ("left", "right"))
    chosen = [int(i) for start, stop in zip(starts, stops, strict=True) for i in by_frame[start:stop]]
    frames = np.repeat(np.arange(len(numbers)), stops - starts)
    boxes = [track[i] for i in chosen]
    corners = np.array([[box[side] for side in _CORNERS] for box in boxes], np.float64).reshape(-1, 2, 2)
    corners = _cropped(_in_cached_pixels(corners, name, kind, video), (video.width, video.height), crop)
    remains = np.all(corners[:, 1] > corners[:, 0], axis=1)
    places = np.flatnonzero(remains).tolist()
    return {
        "boxes": corners[remains].reshape(-1, 4).astype(np.float32),
        "frame": frames[remains],
        "track_id": np.array([boxes[i].get("track_id", -1) for i in places], np.int64),
        "label": [boxes[i].get("label", "") for i in places],
    }


def _nearest_frames(times: np.ndarray, video: Video) -> np.ndarray:
    """Return the number of the frame nearest to each time [seconds from the first frame], -1 outside of the video."""
    pts_seconds = video.pts_seconds - video.pts_seconds[0]
    order = np.argsort(pts_seconds, kind="stable")
    ascending = pts_seconds[order]
    later = np.clip(np.searchsorted(ascending, times), 0, len(ascending) - 1)
    earlier = np.maximum(later - 1, 0)
    is_earlier = times - ascending[earlier] <= ascending[later] - times + _TIE_SLACK_SECONDS
    nearest = order[np.searchsorted(ascending, ascending[np.where(is_earlier, earlier, later)])]
    is_inside = (times >= ascending[0] - _TIME_SLACK_SECONDS) & (
        times <= ascending[0] + video.duration_seconds + _TIME_SLACK_SECONDS
    )
    return np.where(is_inside, nearest, -1)


def _in_cached_pixels(corners: np.ndarray, name: str, kind: str, video: Video) -> np.ndarray:
    """Return corners [shape=(N, 2, 2), (x, y)] in the units of a column as pixels of the cached frame."""
    cached = np.array([video.width, video.height], np.float64)
    displayed = video.sidecar.display_size
    crop = video.sidecar.display_crop
    if crop is not None:  # a bucket shows a part of the picture
        units = np.array(displayed, np.float64) if kind == "relative_boxes" else 1.0
        return np.asarray((corners * units - crop[:2]) * cached / crop[2:])
    if kind == "relative_boxes":
        return corners * cached
    if displayed is None:
        raise UsageError(
            f"fields: got '{name}', boxes in pixels, for video '{video.key}', whose sidecar does not have the size of "
            "the displayed source, expected a cache that has it. Build a new cache, or make the boxes relative_boxes."
        )
    return corners * cached / np.array(displayed, np.float64)


def _cropped(corners: np.ndarray, picture: tuple[int, int], crop: CropBox | None) -> np.ndarray:
    """Apply a crop to corners [shape=(N, 2, 2), pixels of the cached frame], and cut them at the borders."""
    corners = corners.clip(0, picture)
    if crop is None:
        return corners
    size = np.array(crop.size[::-1], np.float64)
    corners = (corners - (crop.left, crop.top)) * size / (crop.width, crop.height)
    corners = corners.clip(0, size)
    if crop.flip:
        corners[..., 0] = size[0] - corners[:, ::-1, 0]
    return corners


def is_boxes(value: object) -> bool:
    """Return whether a value of a sample or a batch is ``Boxes``."""
    return isinstance(value, Mapping) and value.keys() >= set(_KEYS)
