"""Array in, array out: frames, flow, motion and pose of one clip, seen through the same window."""

from __future__ import annotations

from typing import Any

import numpy as np

from chordcache.errors import UsageError

MOTION_BLOCK_PX = 16
"""Side of a cell of motion, in pixels of its picture. The last ones of a picture may be narrower."""


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


def resize_center_crop(
    frames: np.ndarray, *, size: tuple[int, int], out: np.ndarray | None = None, one_thread: bool = False
) -> np.ndarray:
    """Scale frames until they just cover ``size``, aspect kept, and cut out the middle.

    Cuts first, so that only pixels that stay are scaled: by area when it shrinks, linearly when it enlarges.

    Parameters
    ----------
    frames : np.ndarray [shape=(T, H, W, 3), dtype=uint8, 0 to 255]
        Any channel order.
    size : tuple of int
        (height, width) of the result, [pixels].
    out : np.ndarray, optional [shape=(T, h, w, 3), dtype=uint8]
        C-contiguous memory for the result.
    one_thread : bool
        Switch OpenCV's own threads off, for the whole process and from now on, if anything has to be scaled.

    Returns
    -------
    np.ndarray [shape=(T, h, w, 3), dtype=uint8, 0 to 255]
        C-contiguous. ``out`` if it was given; else it shares the memory of ``frames`` if that has this size already.

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
    if (height, width) == size and out is None:
        return np.ascontiguousarray(window)
    if out is None:
        out = np.empty((len(frames), *size, 3), np.uint8)
    if (height, width) == size:
        out[...] = window
        return out
    _resize(window, out, one_thread)
    return out


def compose_flow(steps: np.ndarray, *, one_thread: bool = False) -> np.ndarray:
    """Follow each pixel through consecutive flow fields: from the first frame to the last at once.

    ``F(x) = f1(x) + f2(x + f1(x)) + ...``, each field read bilinearly, and beyond the border as on the border.

    Parameters
    ----------
    steps : np.ndarray [shape=(n, H, W, 2), float, pixels, (dx, dy)]
        Fields that follow each other; n >= 1.
    one_thread : bool
        As in ``resize_center_crop``, if n > 1.

    Returns
    -------
    np.ndarray [shape=(H, W, 2), dtype=float32, pixels, (dx, dy)]

    Notes
    -----
    OpenCV rounds the places that it reads to 1/32 pixel: 0.004 px on average in fields as rough as real ones.
    """
    total: np.ndarray = steps[0].astype(np.float32)
    if len(steps) == 1:
        return total
    cv2 = _opencv(one_thread)
    height, width = total.shape[:2]
    here = np.stack(np.meshgrid(np.arange(width), np.arange(height)), axis=-1).astype(np.float32)
    for step in steps[1:]:
        places = here + total
        total += cv2.remap(step.astype(np.float32), places, None, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    return total


def resize_flow(
    flow: np.ndarray, *, picture: tuple[int, int], size: tuple[int, int], one_thread: bool = False
) -> np.ndarray:
    """Scale and cut a flow field as ``resize_center_crop`` does with the picture that it belongs to.

    Parameters
    ----------
    flow : np.ndarray [shape=(H, W, 2), dtype=float32, pixels of H x W, (dx, dy)]
        It may have another size than the picture.
    picture : tuple of int
        (height, width) of the picture as it is cached, [pixels].
    size : tuple of int
        (height, width) of the result, [pixels].
    one_thread : bool
        As in ``resize_center_crop``.

    Returns
    -------
    np.ndarray [shape=(h, w, 2), dtype=float32, pixels of h x w, (dx, dy)]

    Examples
    --------
    >>> flow = np.ones((256, 456, 2), np.float32)
    >>> resize_flow(flow, picture=(256, 456), size=(128, 128))[0, 0].tolist()
    [0.5, 0.5]
    """
    # First to the picture's own size: the window then lies on whole pixels, wherever it lies in the flow
    whole = _resized(flow, picture, one_thread)
    top, left, height, width = center_window(*picture, size)
    window = _resized(whole[top : top + height, left : left + width], size, one_thread)
    per_row, per_column = picture[0] / flow.shape[0], picture[1] / flow.shape[1]
    scale = np.array([per_column * size[1] / width, per_row * size[0] / height], np.float32)
    scaled: np.ndarray = window * scale
    return scaled


def motion_grid(height: int, width: int) -> tuple[int, int]:
    """(rows, columns) of the motion of a picture.

    Examples
    --------
    >>> motion_grid(1080, 1920)
    (68, 120)
    """
    return -(-height // MOTION_BLOCK_PX), -(-width // MOTION_BLOCK_PX)


def resize_motion(
    motion: np.ndarray,
    covered: np.ndarray,
    *,
    source: tuple[int, int],
    picture: tuple[int, int],
    size: tuple[int, int],
) -> tuple[np.ndarray, np.ndarray]:
    """Scale and cut motion as ``resize_center_crop`` does with the picture that it belongs to.

    A cell of the result has what the cell that holds its centre has. Cells are counted from the left top: in a turned
    picture whose first row or column is a partial one, see ``MotionExtractor``, they may be off by one.

    Parameters
    ----------
    motion : np.ndarray [shape=(T, rows, columns, 2), float, pixels of the source, (dx, dy)]
        One vector for each block of the source.
    covered : np.ndarray [shape=(T, rows, columns), dtype=bool]
        Whether there is such a vector.
    source : tuple of int
        (height, width) of the source, upright, [its own pixels].
    picture : tuple of int
        (height, width) of the picture as it is cached, [pixels].
    size : tuple of int
        (height, width) of the picture that is handed out, [pixels].

    Returns
    -------
    motion : np.ndarray [shape=(T, ceil(h / 16), ceil(w / 16), 2), dtype=float32, pixels of h x w, (dx, dy)]
    covered : np.ndarray [shape=(T, ceil(h / 16), ceil(w / 16)), dtype=bool]
    """
    top, left, height, width = center_window(*picture, size)
    rows, per_row = _cells(source[0], picture[0], top, height, size[0])
    columns, per_column = _cells(source[1], picture[1], left, width, size[1])
    scale = np.array([per_column, per_row], np.float32)
    cells = motion[:, rows[:, None], columns].astype(np.float32)
    return cells * scale, covered[:, rows[:, None], columns]


def _cells(source: int, picture: int, start: int, length: int, out: int) -> tuple[np.ndarray, float]:
    """Along one axis: the cell of the source for each cell of the result, and output pixels per source pixel.

    720 rows, cached as 256, of which 256 from 0 on are handed out as 224: 14 cells, whose centres 8, 24 .. 216 lie at
    25.7, 77.1 .. 694.3 in the source, in cells 1, 4 .. 43; an output pixel is 3.2 source pixels.
    """
    edges = np.minimum(np.arange(0, out + MOTION_BLOCK_PX, MOTION_BLOCK_PX), out)
    centres = (edges[:-1] + edges[1:]) / 2
    scale = (picture / source) * (out / length)
    places = centres / scale + start * source / picture
    return (places // MOTION_BLOCK_PX).astype(np.intp), scale


def crop_pose(pose: np.ndarray, *, picture: tuple[int, int], size: tuple[int, int]) -> np.ndarray:
    """Move landmarks to where ``resize_center_crop`` moves what they stand on. NaN stays, some may lie outside.

    Parameters
    ----------
    pose : np.ndarray [shape=(..., 4), dtype=float32, x, y, z in pixels of the cached picture, visibility]
        The upper left corner of the picture is (0, 0). z is in the unit of x.
    picture : tuple of int
        (height, width) of the picture as it is cached, [pixels].
    size : tuple of int
        (height, width) of the result, [pixels].

    Returns
    -------
    np.ndarray [shape=(..., 4), dtype=float32, x, y, z in pixels of h x w, visibility]

    Examples
    --------
    >>> crop_pose(np.array([228, 128, 10, 0.9], np.float32), picture=(256, 456), size=(128, 128)).tolist()
    [64.0, 64.0, 5.0, 0.8999999761581421]
    """
    top, left, height, width = center_window(*picture, size)
    across, down = size[1] / width, size[0] / height
    corner = np.array([left, top, 0, 0], np.float32)
    moved: np.ndarray = (pose - corner) * np.array([across, down, across, 1], np.float32)
    return moved


def _opencv(one_thread: bool) -> Any:
    import cv2  # not at the top: a cache that already has this size does without

    if one_thread and cv2.getNumThreads() > 1:
        # Not 1: that joins the pool's threads, which a forked child does not have, and hangs or crashes (OpenCV 5.0)
        cv2.setNumThreads(0)
    return cv2


def _resized(picture: np.ndarray, size: tuple[int, int], one_thread: bool) -> np.ndarray:
    if picture.shape[:2] == size:
        return picture
    out = np.empty((*size, *picture.shape[2:]), picture.dtype)
    _resize(picture[None], out[None], one_thread)
    return out


def _resize(frames: np.ndarray, out: np.ndarray, one_thread: bool) -> None:
    cv2 = _opencv(one_thread)
    shrinks = frames.shape[1] > out.shape[1] or frames.shape[2] > out.shape[2]
    interpolation = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
    for frame, target in zip(frames, out, strict=True):
        cv2.resize(frame, (out.shape[2], out.shape[1]), dst=target, interpolation=interpolation)
