"""The read side of latents: the rows that cover the frames of a clip, cut in units of latents, and normalized."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from chordcache.errors import DamageError, UsageError, printable
from chordcache.features.read_side import FIRST_FRAME_LATENTS, NORMALIZED_LATENTS, Arrays, Clip, ReadSide
from chordcache.media.cropping import CropBox
from chordcache.storage.feature_info import FeatureInfo
from chordcache.storage.row_clock import FrameGroups


class LatentsReadSide(ReadSide):
    """The read side of latents: the rows that cover the frames of a clip, cut in units of latents."""

    padding: ClassVar[Mapping[str, float]] = {"latents": 0, "latents_first_frame": 0}
    is_spatial: ClassVar[bool] = True

    def read_clip(self, clip: Clip) -> Arrays:
        """Read the rows, and cut them. Raise ``UsageError`` for a crop that scales or mirrors, or cuts a latent.

        If the variance is stored too, the result is drawn from the posterior [dtype=float32]. With
        ``latents.first_frame`` also ``latents_first_frame`` of the same shape. Raise ``UsageError`` if the frames do
        not begin with the first frame of a clip as it was encoded, or end in another one.
        """
        info = clip.video.feature(self.name)
        latents = self._part(clip, info, self.name)
        if info.params.get("moments") and clip.noise is not None:
            logvar = self._part(clip, info, f"{self.name}.logvar")
            if logvar.shape != latents.shape:
                raise DamageError(
                    f"'{self.name}' of video '{printable(clip.video.key)}': got a variance of shape {logvar.shape}, "
                    f"expected {latents.shape}. Build it again."
                )
            latents = latents + np.exp(0.5 * logvar.astype(np.float32)) * clip.noise.standard_normal(
                latents.shape, np.float32
            )
        arrays = {self.name: _normalized(latents, info) if NORMALIZED_LATENTS in clip.variants else latents}
        if FIRST_FRAME_LATENTS in clip.variants:
            arrays["latents_first_frame"] = self._condition(clip, info)
        return arrays

    def _condition(self, clip: Clip, info: FeatureInfo) -> np.ndarray:
        rows = self._part(clip, info, FIRST_FRAME_LATENTS)
        length = info.facts.get("frames_per_clip") or clip.video.num_frames + clip.video.first_row
        start, stop = (number + clip.video.first_row for number in clip.span)
        if start % length or stop - start > length:
            raise UsageError(
                f"clip_sampler: got frames {clip.span[0]} to {clip.span[1] - 1} of video '{printable(clip.video.key)}' "
                f"for '{FIRST_FRAME_LATENTS}', expected frames of one clip of {length}, from its first on. Take "
                "LatentClipSampler."
            )
        if NORMALIZED_LATENTS not in clip.variants:
            return rows
        inverts = (info.params.get("normalization") or {}).get("invert_scale_latents", False)
        normalized = _normalized(rows, info, inverts_scale=inverts)
        if info.params["first_frame"] == "alone":  # the rows after it are zero after normalization, as in the pipelines
            normalized.swapaxes(0, info.params.get("axes", "tchw").index("t"))[1:] = 0
        return normalized

    def _part(self, clip: Clip, info: FeatureInfo, array: str) -> np.ndarray:
        rows = clip.rows(array)
        if clip.crop is None or clip.crop == _whole(clip.picture):
            return rows
        top, left, height, width = _in_latents(clip.crop, clip.picture, info)
        return rows[..., top : top + height, left : left + width].copy()


def _normalized(latents: np.ndarray, info: FeatureInfo, *, inverts_scale: bool = False) -> np.ndarray:
    """Return latents [shape=(t, C, h, w)] as training scripts take them [dtype=float32], see ``VaeClass.axes``.

    ``(latents - latents_mean) * scaling_factor / latents_std``, or with ``shift_factor`` in place of the mean.
    ``inverts_scale`` divides by the scaling factor, as CogVideoX 1.5 does for the first frame.
    """
    values = {**(info.params.get("normalization") or {}), **(info.facts.get("normalization") or {})}
    shift = values.get("latents_mean", values.get("shift_factor", 0.0))
    offset, std = (np.asarray(value, np.float32).reshape(-1, 1, 1) for value in (shift, values.get("latents_std", 1.0)))
    scale = np.float32(values.get("scaling_factor", 1.0))
    normalized = (latents.astype(np.float32) - offset) * ((1 / scale if inverts_scale else scale) / std)
    # Caches without axes are of the classes that there were before, of which Wan's alone has a mean
    axes = info.params.get("axes", "cthw" if "latents_mean" in values else "tchw")
    return np.ascontiguousarray(normalized.transpose(["tchw".index(axis) for axis in axes]))


def shape_of_clip(
    info: FeatureInfo, numbers: np.ndarray, crop: CropBox | None, picture: tuple[int, int]
) -> tuple[int, int, int, int]:
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
