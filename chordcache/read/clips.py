"""Reader of the features of one clip. All features have the same crop and the same frames."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np

from chordcache.errors import FeatureAbsentError, UsageError
from chordcache.features.read_side import FIRST_FRAME_LATENTS, VARIANTS, Arrays, Clip, EncodedFrames, ReadSide
from chordcache.features.read_sides import read_side, read_sides
from chordcache.media.cropping import CropBox, Rectangle
from chordcache.read.crops import SpatialTransform
from chordcache.read.video import Video
from chordcache.records import FeatureInfo

MISSING = ("error", "zeros", "skip")

HOW_TO_ADD = "Add it by 'chordcache build' with a --tier or a config that has it."

_OTHER_VALUES = ("pts_seconds", "label", "caption", "video", "sample_id", "present")
"""Names of the values in a sample that do not belong to a feature"""


class FeatureReader(Protocol):
    """An object that clips are read from: a ``Cache``, or a replacement for one."""

    def read(
        self,
        video: Video,
        feature: str = "frames",
        start: int | None = None,
        stop: int | None = None,
        *,
        indices: Sequence[int] | np.ndarray | None = None,
        out: np.ndarray | None = None,
    ) -> np.ndarray:
        """Read a feature of one video, as ``Cache.read`` does."""
        ...

    def iter_frames(self, video: Video, indices: np.ndarray, *, part: Rectangle | None = None) -> Iterator[np.ndarray]:
        """Read frames a few at a time, as ``Cache.iter_frames`` does."""
        ...

    def read_encoded(self, video: Video, indices: np.ndarray) -> list[bytes] | np.ndarray:
        """Read frames without a decode, as ``Cache.read_encoded`` does."""
        ...


@dataclass(frozen=True)
class ClipReader:
    """A reader of several features of the same frames."""

    features: tuple[str, ...]
    spatial_transform: SpatialTransform | None
    """Crop of the pictures. None leaves every feature as it is stored"""
    missing: str
    """One of ``MISSING``"""
    variants: frozenset[str] = frozenset()
    """Names of ``VARIANTS`` that samples have"""

    def __post_init__(self) -> None:
        if not self.features:
            raise UsageError("features: got none, expected at least one")
        # The arrays of a plug-in's feature with such a name would hide the other value
        of_features = {array for side in read_sides().values() for array in side.padding} - read_sides().keys()
        taken = [name for name in self.features if name in of_features or name in _OTHER_VALUES]
        if taken:
            owners = [name for name, side in read_sides().items() if taken[0] in side.padding]
            hint = f"Did you mean '{owners[0]}'?" if owners else "A sample has something else of this name."
            raise UsageError(f"features: got '{taken[0]}', expected a feature. {hint}")
        if self.missing not in MISSING:
            raise UsageError(f"missing: got {self.missing!r}, expected one of {', '.join(MISSING)}")

    def check_zeros(self, name: str, reader: FeatureReader, video: Video) -> None:
        """Raise ``FeatureAbsentError`` if a feature that is absent from a video does not have a known shape."""
        crop, info = self.crop(video, np.random.default_rng(0)), video.sidecar.feature(name)
        assert info is not None
        _zeros(read_side(name), self._clip(reader, video, np.zeros(1, np.int64), crop, one_thread=False), info)

    def crop(self, video: Video, random: np.random.Generator) -> CropBox | None:
        """Choose the crop of a sample. None leaves the pictures as they are stored."""
        return (
            None if self.spatial_transform is None else self.spatial_transform.choose(video.height, video.width, random)
        )

    def frames_shape(self, video: Video, numbers: np.ndarray, crop: CropBox | None) -> tuple[int, ...]:
        """Return the shape (T, h, w, 3) of the frames that ``read`` decodes, or would decode if requested."""
        return (*numbers.shape, *(crop.size if crop else (video.height, video.width)), 3)

    def read(
        self,
        cache: FeatureReader,
        video: Video,
        numbers: np.ndarray,
        crop: CropBox | None,
        *,
        one_thread: bool,
        frames_out: np.ndarray | EncodedFrames | None = None,
        caption: int = 0,
        noise: np.random.Generator | None = None,
    ) -> Arrays:
        """Read a clip, or several of one video.

        Parameters
        ----------
        cache, video
            The reader of features, and a video that it has.
        numbers : np.ndarray [shape=(T,) or (N, T), dtype=int64, frame numbers]
            Frames in any order, repeats allowed. With several clips, each array has one more leading dimension.
        crop : CropBox or None
            The crop that the method ``crop`` chose.
        one_thread : bool
            Switch OpenCV's own threads off, for the whole process and from now on, if OpenCV is used.
        frames_out : np.ndarray, optional [shape=``frames_shape``, dtype=uint8], or EncodedFrames
            Contiguous memory for the frames, or the place of the frames as they are stored. The returned arrays then
            do not include the frames.
        caption : int
            Position of the caption of the sample in all captions of the item.
        noise : np.random.Generator, optional
            Random numbers of the sample, for latents that are drawn from their posterior. By default, take its mean.

        Returns
        -------
        dict of str to np.ndarray
            The arrays of each feature, see ``ChordVideoDataset``. With ``missing="zeros"`` also ``present``
            [shape=(len(features),), dtype=bool].

        Raises
        ------
        IndexError, FeatureAbsentError, DamageError
            As in ``Cache.read``.
        UsageError
            If frames go backwards and the flow between them is requested, or if several clips differ in a shape.
        """
        if numbers.ndim > 1:
            outs = [frames_out] * len(numbers) if not isinstance(frames_out, np.ndarray) else frames_out
            clips = [
                self.read(cache, video, rows, crop, one_thread=one_thread, frames_out=out, caption=caption, noise=noise)
                for rows, out in zip(numbers, outs, strict=True)
            ]
            return {name: _stacked(name, video, [clip[name] for clip in clips]) for name in clips[0]}
        clip = self._clip(
            cache, video, numbers, crop, one_thread=one_thread, frames_out=frames_out, caption=caption, noise=noise
        )
        arrays: Arrays = {}
        present = []
        for name in self.features:
            side, info = read_side(name), video.sidecar.feature(name)
            if self.missing == "zeros" and info is not None and info.absent is not None:
                arrays |= _zeros(side, clip, info)
                present.append(False)
            else:
                arrays |= side.read_clip(clip)
                present.append(True)
        return {**arrays, "present": np.array(present)} if self.missing == "zeros" else arrays

    def _clip(
        self,
        reader: FeatureReader,
        video: Video,
        numbers: np.ndarray,
        crop: CropBox | None,
        *,
        one_thread: bool,
        frames_out: np.ndarray | EncodedFrames | None = None,
        caption: int = 0,
        noise: np.random.Generator | None = None,
    ) -> Clip:
        return Clip(
            partial(reader.read, video),
            partial(reader.iter_frames, video),
            partial(reader.read_encoded, video),
            video,
            numbers,
            crop,
            self.variants,
            one_thread,
            frames_out,
            caption,
            noise,
        )


def cached_features(names: tuple[str, ...]) -> tuple[tuple[str, ...], frozenset[str]]:
    """Return the cached features that these names mean, and those of the names that are in ``VARIANTS``.

    Raises
    ------
    UsageError
        If two names mean one feature, which has one name in a sample. "latents.first_frame" has another one.

    Examples
    --------
    >>> cached_features(("frames", "flow.adjacent"))
    (('frames', 'flow'), frozenset({'flow.adjacent'}))
    """
    for name, feature in VARIANTS.items():
        if name in names and feature in names and name != FIRST_FRAME_LATENTS:
            raise UsageError(f"features: got '{feature}' and '{name}', expected one of them")
    features = tuple(dict.fromkeys(VARIANTS.get(name, name) for name in names))
    return features, frozenset(VARIANTS.keys() & set(names))


def _stacked(name: str, video: Video, arrays: list[np.ndarray]) -> np.ndarray:
    shapes = {array.shape for array in arrays}
    if len(shapes) > 1:
        raise UsageError(
            f"clip_sampler: got clips of video '{video.key}' with '{name}' of shapes "
            f"{', '.join(map(str, sorted(shapes)))}, expected one shape. Take one clip a sample, with clips_per_video."
        )
    return np.stack(arrays)


def _zeros(side: ReadSide, clip: Clip, info: FeatureInfo) -> Arrays:
    """Return the neutral value of an absent feature, or raise ``FeatureAbsentError`` if its shape is unknown."""
    arrays = side.zeros(clip, info)
    if arrays is None:
        raise FeatureAbsentError(
            f"missing: got 'zeros' for '{side.name}' of video '{clip.video.key}', which is absent ({info.absent}), "
            "expected a feature of known shape. Take missing='skip', which leaves such videos out."
        )
    return arrays
