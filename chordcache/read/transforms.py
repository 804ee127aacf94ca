"""Functions that apply one crop to the frames, flow, motion and pose of a clip. All take and return arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from chordcache.errors import UsageError
from chordcache.read.crops import CropBox

MOTION_BLOCK_PX = 16
"""Side of a cell of motion, in pixels of its picture. The last cells of a picture may be narrower."""

MIRRORED_LANDMARKS = (0, 4, 5, 6, 1, 2, 3, 8, 7, 10, 9, *(n + 1 if n % 2 else n - 1 for n in range(11, 33)))
"""Opposite landmark of each of MediaPipe's 33. 1 to 3 and 4 to 6 are the eyes. From 7 on left and right alternate."""


def cut_frames(
    frames: np.ndarray, crop: CropBox, *, out: np.ndarray | None = None, one_thread: bool = False
) -> np.ndarray:
    """Cut a crop out of frames, scale it, and mirror it.

    The cut comes first, so that only the remaining pixels are scaled. Scaling is by area when the crop shrinks, and
    linear when it grows.

    Parameters
    ----------
    frames : np.ndarray [shape=(T, H, W, 3), dtype=uint8, 0 to 255]
        Any channel order.
    crop : CropBox
        The crop. The result is black where the crop lies outside of the frames.
    out : np.ndarray, optional [shape=(T, h, w, 3), dtype=uint8]
        C-contiguous memory for the result.
    one_thread : bool
        Switch OpenCV's own threads off, for the whole process and from now on, if anything has to be scaled.

    Returns
    -------
    np.ndarray [shape=(T, h, w, 3), dtype=uint8, 0 to 255]
        ``out`` if it was given. Otherwise C-contiguous, unless mirrored. The result may share the memory of ``frames``
        if they already have this size.

    Raises
    ------
    UsageError
        If ``frames`` has another shape or dtype, or has no pixels.

    Examples
    --------
    >>> cut_frames(np.zeros((16, 256, 456, 3), np.uint8), CropBox(0, 100, 256, 256, size=(224, 224))).shape
    (16, 224, 224, 3)
    """
    if frames.ndim != 4 or frames.shape[3] != 3 or not all(frames.shape[1:3]) or frames.dtype != np.uint8:
        raise UsageError(f"frames: got {frames.dtype} of shape {frames.shape}, expected uint8 of shape (T, H, W, 3)")
    part = _inside(frames, crop)
    if part.shape[1:3] != crop.size:
        scaled = np.empty((len(frames), *crop.size, 3), np.uint8) if out is None else out
        _resize(part, scaled, one_thread)
        part = scaled
    if crop.flip:
        part = part[:, :, ::-1]
    if out is None:
        return part if crop.flip else np.ascontiguousarray(part)
    if part is not out:
        out[...] = part
    return out


def compose_flow(steps: np.ndarray, *, one_thread: bool = False) -> np.ndarray:
    """Follow each pixel through consecutive flow fields, from the first frame to the last.

    ``F(x) = f1(x) + f2(x + f1(x)) + ...``. Each field is read bilinearly. Beyond the border, the value on the border is
    used.

    Parameters
    ----------
    steps : np.ndarray [shape=(n, H, W, 2), float, pixels, (dx, dy)]
        Fields that follow each other; n >= 1.
    one_thread : bool
        As in ``cut_frames``, if n > 1.

    Returns
    -------
    np.ndarray [shape=(H, W, 2), dtype=float32, pixels, (dx, dy)]

    Notes
    -----
    OpenCV rounds the positions that it reads to 1/32 pixel. In fields as rough as real ones, the error is 0.004 px on
    average.
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


def cut_flow(flow: np.ndarray, crop: CropBox, *, picture: tuple[int, int], one_thread: bool = False) -> np.ndarray:
    """Apply the crop of ``cut_frames`` to a flow field. Mirroring changes the sign of dx.

    Parameters
    ----------
    flow : np.ndarray [shape=(H, W, 2), dtype=float32, pixels of H x W, (dx, dy)]
        The field. Its size may differ from the picture's.
    crop : CropBox
        The crop. The result is zero where the crop lies outside of the picture.
    picture : tuple of int
        (height, width) of the picture as it is cached, [pixels].
    one_thread : bool
        As in ``cut_frames``.

    Returns
    -------
    np.ndarray [shape=(h, w, 2), dtype=float32, pixels of h x w, (dx, dy)]

    Examples
    --------
    >>> flow = np.ones((256, 456, 2), np.float32)
    >>> cut_flow(flow, CropBox(0, 100, 256, 256, size=(128, 128), flip=True), picture=(256, 456))[0, 0].tolist()
    [-0.5, 0.5]
    """
    # First scale the flow to the picture's size: the crop then lies on whole pixels
    whole = _resized(flow, picture, one_thread)
    part = _resized(_inside(whole[None], crop)[0], crop.size, one_thread)
    per_row, per_column = picture[0] / flow.shape[0], picture[1] / flow.shape[1]
    across, down = per_column * crop.size[1] / crop.width, per_row * crop.size[0] / crop.height
    scaled: np.ndarray = part * np.array([-across if crop.flip else across, down], np.float32)
    return scaled[:, ::-1] if crop.flip else scaled


def motion_grid_size(height: int, width: int) -> tuple[int, int]:
    """Return (rows, columns) of the motion of a picture.

    Examples
    --------
    >>> motion_grid_size(1080, 1920)
    (68, 120)
    """
    return -(-height // MOTION_BLOCK_PX), -(-width // MOTION_BLOCK_PX)


def cut_motion(
    motion: np.ndarray, covered: np.ndarray, crop: CropBox, *, source: tuple[int, int], picture: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """Apply the crop of ``cut_frames`` to motion. Mirroring changes the sign of dx.

    A cell of the result gets the value of the source cell that holds its center. Cells are counted from the top left.
    In a turned picture whose first row or column is partial, see ``MotionExtractor``, they may be off by one.

    Parameters
    ----------
    motion : np.ndarray [shape=(T, rows, columns, 2), float, pixels of the source, (dx, dy)]
        One vector for each block of the source.
    covered : np.ndarray [shape=(T, rows, columns), dtype=bool]
        True where there is such a vector.
    crop : CropBox
        The crop. The result is zero, and not covered, where the crop lies outside of the picture.
    source : tuple of int
        (height, width) of the upright source, [pixels of the source].
    picture : tuple of int
        (height, width) of the picture as it is cached, [pixels].

    Returns
    -------
    motion : np.ndarray [shape=(T, ceil(h / 16), ceil(w / 16), 2), dtype=float32, pixels of h x w, (dx, dy)]
    covered : np.ndarray [shape=(T, ceil(h / 16), ceil(w / 16)), dtype=bool]
    """
    down, across = (
        _Axis(source[0], picture[0], crop.top, crop.height, crop.size[0]),
        _Axis(source[1], picture[1], crop.left, crop.width, crop.size[1], crop.flip),
    )
    rows, columns = down.cells(), across.cells()
    there = (rows >= 0)[:, None] & (columns >= 0)
    vectors = motion[:, rows[:, None], columns].astype(np.float32)
    vectors *= np.array([across.scale(), down.scale()], np.float32)
    return np.where(there[..., None], vectors, np.float32(0)), covered[:, rows[:, None], columns] & there


@dataclass(frozen=True)
class _Axis:
    """Rows or columns of motion, mapped from the source to the result.

    Example: 720 rows are cached as 256, of which 256 from 0 on are returned as 224. These are 14 cells. Their centers
    8, 24 .. 216 lie at 25.7, 77.1 .. 694.3 in the source, in cells 1, 4 .. 43. An output pixel is 3.2 source pixels.
    """

    source: int
    picture: int
    start: int
    length: int
    out: int
    flip: bool = False

    def scale(self) -> float:
        """Return the output pixels per source pixel, negative if mirrored."""
        scale = (self.picture / self.source) * (self.out / self.length)
        return -scale if self.flip else scale

    def cells(self) -> np.ndarray:
        """Return the source cell of each cell of the result [dtype=intp], -1 outside of the picture."""
        edges = np.minimum(np.arange(0, self.out + MOTION_BLOCK_PX, MOTION_BLOCK_PX), self.out)
        centers = (edges[:-1] + edges[1:]) / 2
        if self.flip:
            centers = self.out - centers
        places = centers / abs(self.scale()) + self.start * self.source / self.picture
        inside = (places >= 0) & (places < self.source)
        return np.where(inside, places // MOTION_BLOCK_PX, -1).astype(np.intp)


def cut_pose(pose: np.ndarray, crop: CropBox) -> np.ndarray:
    """Apply the crop of ``cut_frames`` to landmarks. NaN stays NaN. Landmarks may lie outside of the result.

    Parameters
    ----------
    pose : np.ndarray [shape=(T, 33, 4), dtype=float32, x, y, z in pixels of the cached picture, visibility]
        The upper left corner of the picture is (0, 0). z is in the unit of x.
    crop : CropBox
        The crop. If mirrored, left and right landmarks change places: a person's left hand is then the right hand.

    Returns
    -------
    np.ndarray [shape=(T, 33, 4), dtype=float32, x, y, z in pixels of h x w, visibility]

    Examples
    --------
    >>> pose = np.full((1, 33, 4), [228, 128, 10, 0.5], np.float32)
    >>> cut_pose(pose, CropBox(0, 100, 256, 256, size=(128, 128)))[0, 0].tolist()
    [64.0, 64.0, 5.0, 0.5]
    """
    across, down = crop.size[1] / crop.width, crop.size[0] / crop.height
    corner = np.array([crop.left, crop.top, 0, 0], np.float32)
    moved: np.ndarray = (pose - corner) * np.array([across, down, across, 1], np.float32)
    if not crop.flip:
        return moved
    moved[..., 0] = crop.size[1] - moved[..., 0]
    return moved[:, MIRRORED_LANDMARKS]


def _inside(pictures: np.ndarray, crop: CropBox) -> np.ndarray:
    """Return the part of pictures [shape=(n, H, W, ...)] in a crop, zero beyond their border. A view if possible."""
    top, left = max(0, crop.top), max(0, crop.left)
    part = pictures[:, top : max(0, crop.top + crop.height), left : max(0, crop.left + crop.width)]
    if part.shape[1:3] == (crop.height, crop.width):
        return part
    padded = np.zeros((len(pictures), crop.height, crop.width, *pictures.shape[3:]), pictures.dtype)
    padded[:, top - crop.top :, left - crop.left :][:, : part.shape[1], : part.shape[2]] = part
    return padded


def _opencv(one_thread: bool) -> Any:
    from chordcache.media.opencv import cv2  # not at the top: a cache that already has this size does not need it

    if one_thread and cv2.getNumThreads() > 1:
        # Not 1: that joins the pool's threads. A forked child does not have them, and hangs or crashes (OpenCV 5.0)
        cv2.setNumThreads(0)
    return cv2


def _resized(picture: np.ndarray, size: tuple[int, int], one_thread: bool) -> np.ndarray:
    if picture.shape[:2] == size:
        return picture
    out = np.empty((*size, *picture.shape[2:]), picture.dtype)
    _resize(picture[None], out[None], one_thread)
    return out


def _resize(frames: np.ndarray, out: np.ndarray, one_thread: bool) -> None:
    """Shrink by area, enlarge linearly. If one side shrinks and the other grows, first shrink, then enlarge.

    OpenCV's INTER_AREA shifts contents by up to half a pixel along a side that grows.
    """
    cv2 = _opencv(one_thread)
    size = out.shape[1:3]
    shrunk = min(frames.shape[1], size[0]), min(frames.shape[2], size[1])
    for frame, target in zip(frames, out, strict=True):
        if shrunk == size:
            cv2.resize(frame, size[::-1], dst=target, interpolation=cv2.INTER_AREA)
            continue
        if shrunk != frame.shape[:2]:
            frame = cv2.resize(frame, shrunk[::-1], interpolation=cv2.INTER_AREA)
        cv2.resize(frame, size[::-1], dst=target, interpolation=cv2.INTER_LINEAR)
