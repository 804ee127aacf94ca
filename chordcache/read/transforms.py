"""Array in, array out: frames, flow, motion and pose of one clip, seen through the same crop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from chordcache.errors import UsageError
from chordcache.read.crops import CropBox

MOTION_BLOCK_PX = 16
"""Side of a cell of motion, in pixels of its picture. The last ones of a picture may be narrower."""

MIRRORED_LANDMARKS = (0, 4, 5, 6, 1, 2, 3, 8, 7, 10, 9, *(n + 1 if n % 2 else n - 1 for n in range(11, 33)))
"""Of MediaPipe's 33 the one on the other side: 1 to 3 and 4 to 6 are the eyes, from 7 on left and right alternate."""


def cut_frames(
    frames: np.ndarray, crop: CropBox, *, out: np.ndarray | None = None, one_thread: bool = False
) -> np.ndarray:
    """Cut a crop out of frames, scale it, mirror it.

    Cuts first, so that only pixels that stay are scaled: by area when it shrinks, linearly when it enlarges.

    Parameters
    ----------
    frames : np.ndarray [shape=(T, H, W, 3), dtype=uint8, 0 to 255]
        Any channel order.
    crop : CropBox
        Black where it lies outside of the frames.
    out : np.ndarray, optional [shape=(T, h, w, 3), dtype=uint8]
        C-contiguous memory for the result.
    one_thread : bool
        Switch OpenCV's own threads off, for the whole process and from now on, if anything has to be scaled.

    Returns
    -------
    np.ndarray [shape=(T, h, w, 3), dtype=uint8, 0 to 255]
        ``out`` if it was given. Else C-contiguous, unless it is mirrored; it may share the memory of ``frames`` if it
        has this size already.

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
        raise UsageError(f"frames must be uint8 of shape (T, H, W, 3), got {frames.dtype} of shape {frames.shape}")
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
    """Follow each pixel through consecutive flow fields: from the first frame to the last at once.

    ``F(x) = f1(x) + f2(x + f1(x)) + ...``, each field read bilinearly, and beyond the border as on the border.

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


def cut_flow(flow: np.ndarray, crop: CropBox, *, picture: tuple[int, int], one_thread: bool = False) -> np.ndarray:
    """Do to a flow field what ``cut_frames`` does to the picture that it belongs to: mirrored, dx changes its sign.

    Parameters
    ----------
    flow : np.ndarray [shape=(H, W, 2), dtype=float32, pixels of H x W, (dx, dy)]
        It may have another size than the picture.
    crop : CropBox
        Zero where it lies outside of the picture.
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
    # First to the picture's own size: the crop then lies on whole pixels, wherever it lies in the flow
    whole = _resized(flow, picture, one_thread)
    part = _resized(_inside(whole[None], crop)[0], crop.size, one_thread)
    per_row, per_column = picture[0] / flow.shape[0], picture[1] / flow.shape[1]
    across, down = per_column * crop.size[1] / crop.width, per_row * crop.size[0] / crop.height
    scaled: np.ndarray = part * np.array([-across if crop.flip else across, down], np.float32)
    return scaled[:, ::-1] if crop.flip else scaled


def motion_grid(height: int, width: int) -> tuple[int, int]:
    """(rows, columns) of the motion of a picture.

    Examples
    --------
    >>> motion_grid(1080, 1920)
    (68, 120)
    """
    return -(-height // MOTION_BLOCK_PX), -(-width // MOTION_BLOCK_PX)


def cut_motion(
    motion: np.ndarray, covered: np.ndarray, crop: CropBox, *, source: tuple[int, int], picture: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """Do to motion what ``cut_frames`` does to the picture that it belongs to: mirrored, dx changes its sign.

    A cell of the result has what the cell that holds its centre has. Cells are counted from the left top: in a turned
    picture whose first row or column is a partial one, see ``MotionExtractor``, they may be off by one.

    Parameters
    ----------
    motion : np.ndarray [shape=(T, rows, columns, 2), float, pixels of the source, (dx, dy)]
        One vector for each block of the source.
    covered : np.ndarray [shape=(T, rows, columns), dtype=bool]
        Whether there is such a vector.
    crop : CropBox
        Zero, and not covered, where it lies outside of the picture.
    source : tuple of int
        (height, width) of the source, upright, [its own pixels].
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
    """Rows or columns of motion, from the source to what is handed out.

    720 rows, cached as 256, of which 256 from 0 on are handed out as 224: 14 cells, whose centres 8, 24 .. 216 lie at
    25.7, 77.1 .. 694.3 in the source, in cells 1, 4 .. 43; an output pixel is 3.2 source pixels.
    """

    source: int
    picture: int
    start: int
    length: int
    out: int
    flip: bool = False

    def scale(self) -> float:
        """Output pixels per source pixel, negative if they run the other way."""
        scale = (self.picture / self.source) * (self.out / self.length)
        return -scale if self.flip else scale

    def cells(self) -> np.ndarray:
        """The cell of the source for each cell of the result [dtype=intp], -1 outside of the picture."""
        edges = np.minimum(np.arange(0, self.out + MOTION_BLOCK_PX, MOTION_BLOCK_PX), self.out)
        centres = (edges[:-1] + edges[1:]) / 2
        if self.flip:
            centres = self.out - centres
        places = centres / abs(self.scale()) + self.start * self.source / self.picture
        inside = (places >= 0) & (places < self.source)
        return np.where(inside, places // MOTION_BLOCK_PX, -1).astype(np.intp)


def cut_pose(pose: np.ndarray, crop: CropBox) -> np.ndarray:
    """Move landmarks to where ``cut_frames`` moves what they stand on. NaN stays, some may lie outside.

    Parameters
    ----------
    pose : np.ndarray [shape=(T, 33, 4), dtype=float32, x, y, z in pixels of the cached picture, visibility]
        The upper left corner of the picture is (0, 0). z is in the unit of x.
    crop : CropBox
        Mirrored, the landmarks of left and right change places: somebody's left hand is then the right one.

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
    """The part of pictures [shape=(n, H, W, ...)] in a crop, zero beyond their border; a view where it can be."""
    top, left = max(0, crop.top), max(0, crop.left)
    part = pictures[:, top : max(0, crop.top + crop.height), left : max(0, crop.left + crop.width)]
    if part.shape[1:3] == (crop.height, crop.width):
        return part
    padded = np.zeros((len(pictures), crop.height, crop.width, *pictures.shape[3:]), pictures.dtype)
    padded[:, top - crop.top :, left - crop.left :][:, : part.shape[1], : part.shape[2]] = part
    return padded


def _opencv(one_thread: bool) -> Any:
    from chordcache.media.opencv import cv2  # not at the top: a cache that already has this size does without

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
    """Shrink by area, enlarge linearly; where one side shrinks and the other grows, one after the other.

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
