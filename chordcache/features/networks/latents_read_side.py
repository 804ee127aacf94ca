"""The read side of latents. It loads neither PyTorch nor diffusers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, TypeAlias

import numpy as np

from chordcache.errors import UsageError
from chordcache.features.read_side import Arrays, Clip, ReadSide
from chordcache.media.cropping import CropBox
from chordcache.records import FeatureInfo
from chordcache.storage.row_clock import FrameGroups

Shape: TypeAlias = tuple[int, int, int, int]


class LatentsReadSide(ReadSide):
    """The read side of latents: the rows that cover the frames of a clip, cut in units of latents."""

    padding: ClassVar[Mapping[str, float]] = {"latents": 0}
    is_spatial: ClassVar[bool] = True

    def read_clip(self, clip: Clip) -> Arrays:
        """Read the rows, and cut them. Raise ``UsageError`` for a crop that scales or mirrors, or cuts a latent."""
        rows = clip.read(self.name, indices=clip.numbers)
        if clip.crop is None or clip.crop == _whole(clip.picture):
            return {self.name: rows}
        info = clip.video.feature(self.name)
        top, left, height, width = _in_latents(clip.crop, clip.picture, info)
        return {self.name: rows[..., top : top + height, left : left + width].copy()}


def shape_of_clip(info: FeatureInfo, numbers: np.ndarray, crop: CropBox | None, picture: tuple[int, int]) -> Shape:
    """Return the shape (t, C, h, w) of the latents of a clip of these frame numbers [shape=(T,), dtype=int64].

    ``info`` is the record of the latents, and ``picture`` the (height, width) of the cached frames of the video,
    [pixels]. Raise ``UsageError`` as ``LatentsReadSide.read_clip``.
    """
    groups = FrameGroups.of(info.facts)
    num_rows = len(numbers) if groups is None else len(np.unique(groups.row_of(numbers)))
    _, channels, height, width = info.shape
    if crop is not None and crop != _whole(picture):
        *_, height, width = _in_latents(crop, picture, info)
    return num_rows, channels, height, width


def _whole(picture: tuple[int, int]) -> CropBox:
    return CropBox(0, 0, *picture, size=picture)


def _in_latents(crop: CropBox, picture: tuple[int, int], info: FeatureInfo) -> tuple[int, int, int, int]:
    """Return top, left, height and width of a crop in latents. Raise ``UsageError`` if these are not whole numbers."""
    _, pixels = info.params["compression"]
    if info.shape[-2:] != tuple(-(-side // pixels) for side in picture):  # frames may be kept from an earlier config
        raise UsageError(
            f"size: got latents of {info.shape[-2]}x{info.shape[-1]} for frames of {picture[0]}x{picture[1]} pixels, "
            "expected latents of these frames. Take size=None, or build both with one config."
        )
    box = (crop.top, crop.left, crop.height, crop.width)
    is_inside = min(box) >= 0 and crop.top + crop.height <= picture[0] and crop.left + crop.width <= picture[1]
    if crop.flip or crop.size != (crop.height, crop.width) or not is_inside or any(edge % pixels for edge in box):
        raise UsageError(
            f"size: got {crop} of a picture of {picture}, expected a crop that latents can have: at multiples of "
            f"{pixels} pixels, inside of the picture, neither scaled nor mirrored. Take size=None, or such a crop."
        )
    top, left, height, width = (edge // pixels for edge in box)
    return top, left, height, width
