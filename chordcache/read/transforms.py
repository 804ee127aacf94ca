"""Frames to frames: array in, array out."""

from __future__ import annotations

import numpy as np

from chordcache.errors import UsageError


def center_window(height: int, width: int, size: tuple[int, int]) -> tuple[int, int, int, int]:
    """The largest centred window of a picture that has the proportions of ``size``.

    Parameters
    ----------
    height, width : int
        [pixels] of the picture.
    size : tuple of int
        (height, width); only their ratio counts.

    Returns
    -------
    tuple of int
        (top, left, height, width) of the window, [pixels]; one side is the picture's own.

    Examples
    --------
    >>> center_window(256, 456, (224, 224))
    (0, 100, 256, 256)
    >>> center_window(256, 456, (112, 224))
    (14, 0, 228, 456)
    """
    if size[0] * width >= size[1] * height:
        window = height, min(width, max(1, round(size[1] * height / size[0])))
    else:
        window = min(height, max(1, round(size[0] * width / size[1]))), width
    return (height - window[0]) // 2, (width - window[1]) // 2, *window


def resize_center_crop(frames: np.ndarray, *, size: tuple[int, int], one_thread: bool = False) -> np.ndarray:
    """Scale frames until they just cover ``size``, aspect kept, and cut out the middle.

    Cuts first, so that only pixels that stay are scaled: by area when it shrinks, linearly when it enlarges.

    Parameters
    ----------
    frames : np.ndarray [shape=(T, H, W, 3), dtype=uint8, 0 to 255]
        Any channel order.
    size : tuple of int
        (height, width) of the result, [pixels].
    one_thread : bool
        Switch OpenCV's own threads off, for the whole process and from now on, if anything has to be scaled.

    Returns
    -------
    np.ndarray [shape=(T, h, w, 3), dtype=uint8, 0 to 255]
        C-contiguous. It shares the memory of ``frames`` if that has this size already.

    Raises
    ------
    UsageError
        If ``frames`` has another shape or dtype, or has no pixels.

    Examples
    --------
    >>> resize_center_crop(np.zeros((16, 256, 456, 3), np.uint8), size=(224, 224)).shape
    (16, 224, 224, 3)
    """
    if frames.ndim != 4 or frames.shape[3] != 3 or not all(frames.shape[1:3]) or frames.dtype != np.uint8:
        raise UsageError(f"frames must be uint8 of shape (T, H, W, 3), got {frames.dtype} of shape {frames.shape}")
    top, left, height, width = center_window(frames.shape[1], frames.shape[2], size)
    window = frames[:, top : top + height, left : left + width]
    if (height, width) == size:
        return np.ascontiguousarray(window)
    out = np.empty((len(frames), *size, 3), np.uint8)
    _resize(window, out, one_thread)
    return out


def _resize(frames: np.ndarray, out: np.ndarray, one_thread: bool) -> None:
    import cv2  # not at the top: a cache that already has this size does without

    if one_thread and cv2.getNumThreads() > 1:
        # Not 1: that joins the pool's threads, which a forked child does not have, and hangs or crashes (OpenCV 5.0)
        cv2.setNumThreads(0)
    shrinks = frames.shape[1] > out.shape[1] or frames.shape[2] > out.shape[2]
    interpolation = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
    for frame, target in zip(frames, out, strict=True):
        cv2.resize(frame, (out.shape[2], out.shape[1]), dst=target, interpolation=interpolation)
