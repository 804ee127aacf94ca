"""Pictures of features for people: flow and mel as colors, small frames, and their files."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from chordcache.media.frame_numbers import evenly_spread as evenly_spread  # where OpenCV may be missing
from chordcache.media.opencv import cv2
from chordcache.read.cache import Cache
from chordcache.read.video import Video

MIN_FLOW_PX = 0.5
"""Least length of a vector that gets the full color. It keeps the noise of still videos pale, [pixels]"""

_FULL_FLOW_PERCENT = 99
"""Percentile of the vectors' lengths that gets the full color. A few wrong vectors do not make all others pale"""

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
