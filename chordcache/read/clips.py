"""Reader of the features of one clip. All features have the same crop and the same frames."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, cast

import numpy as np

from chordcache.arguments import check_choice
from chordcache.errors import AbsentFeatureError, UsageError
from chordcache.features.built_in import read_side, read_sides
from chordcache.features.read_side import (
    FIRST_FRAME_LATENTS,
    VARIANTS,
    Arrays,
    Clip,
    EncodedFrames,
    ReadSide,
    RowReader,
)
from chordcache.media.cropping import CropBox
from chordcache.media.frame_numbers import check_frame_numbers
from chordcache.read.crops import FIXED, CenterCrop, SpatialTransform, fixed_crop
from chordcache.read.video import Video, out_of_memory
from chordcache.storage.feature_info import FeatureInfo

MISSING = ("error", "zeros", "skip")

HOW_TO_ADD = "Add it with 'chordcache build --features NAME'."

_OTHER_VALUES = ("pts_seconds", "label", "caption", "video", "sample_id", "present")
"""Names of the values in a sample that do not belong to a feature"""


class ClipView(NamedTuple):
    """The frames and the settings of one sample."""

    numbers: np.ndarray
    """[shape=(T,), dtype=int64, frame numbers] in any order, repeats allowed"""
    crop: CropBox | None
    """The crop that the method ``crop`` chose"""
    frames_out: np.ndarray | EncodedFrames | None = None
    """Contiguous memory for the frames [shape=``frames_shape``, dtype=uint8], or the place of the frames as they are
    stored. The arrays then do not include the frames"""
    caption: int = 0
    """Position of the caption of the sample in all captions of the item"""
    noise: np.random.Generator | None = None
    """Random numbers of the sample, for latents that are drawn from their posterior. None takes its mean"""


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
    delta_timestamps: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """As in ``Clip``"""

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
        check_choice(MISSING, missing=self.missing)
        for column, seconds in self.delta_timestamps.items():
            if "series" not in self.features or not len(seconds) or not np.isfinite(seconds).all():
                raise UsageError(
                    f"delta_timestamps: got {list(seconds)!r:.80} for '{column}' with the features "
                    f"{', '.join(self.features)}, expected seconds from a frame, and the feature 'series'"
                )

    def check_zeros(self, name: str, reader: RowReader, video: Video) -> None:
        """Raise ``NotFoundError`` if a feature that is absent from a video does not have a known shape."""
        crop, info = self.crop(video, partial(np.random.default_rng, 0)), video.sidecar.feature(name)
        assert info is not None
        (clip,) = self._clips(reader, video, [ClipView(np.zeros(1, np.int64), crop)], one_thread=False)
        _zeros(read_side(name), clip, info)

    def crop(self, video: Video, random: Callable[[], np.random.Generator]) -> CropBox | None:
        """Choose the crop of a sample. None leaves the pictures as they are stored."""
        crop = self.spatial_transform
        if type(crop) in FIXED:
            return fixed_crop(cast(CenterCrop, crop), video.height, video.width)
        return None if crop is None else crop.choose(video.height, video.width, random())

    def frames_shape(self, video: Video, numbers: np.ndarray, crop: CropBox | None) -> tuple[int, ...]:
        """Return the shape (T, h, w, 3) of the frames that ``read`` decodes, or would decode if requested."""
        return (*numbers.shape, *(crop.size if crop else (video.height, video.width)), 3)

    def read(self, cache: RowReader, video: Video, views: Sequence[ClipView], *, one_thread: bool) -> list[Arrays]:
        """Return the arrays of samples of one video, see ``ChordVideoDataset``.

        With ``missing="zeros"`` each sample also has ``present`` [shape=(len(features),), dtype=bool]. ``one_thread``
        switches OpenCV's own threads off, for the whole process and from now on, if OpenCV is used.

        Raises as ``Cache.read`` does for any of the samples, and ``UsageError`` if frames go backwards and the flow
        between them is requested.
        """
        clips = self._clips(cache, video, views, one_thread=one_thread)
        arrays: list[Arrays] = [{} for _ in clips]
        present = []
        for name in self.features:
            side, info = read_side(name), video.sidecar.feature(name)
            if self.missing == "zeros" and info is not None and info.absent is not None:
                of_feature = [_zeros(side, clip, info) for clip in clips]
                present.append(False)
            else:
                try:
                    of_feature = [side.read_clip(clip) for clip in clips]
                except MemoryError as error:
                    if info is None:
                        raise
                    raise out_of_memory(video, info, error) from None
                present.append(True)
            for own, more in zip(arrays, of_feature, strict=True):
                own |= more
        if self.missing == "zeros":
            for own in arrays:
                own["present"] = np.array(present)
        return arrays

    def _clips(self, reader: RowReader, video: Video, views: Sequence[ClipView], *, one_thread: bool) -> list[Clip]:
        """Return the clips of samples."""
        clips, picture = [], (video.height, video.width)
        for numbers, crop, out, caption, noise in views:
            check_frame_numbers("clip_sampler", numbers.tolist(), video.num_frames, f"video '{video.key}'")
            of_sample = self.variants, one_thread, out, caption, noise, self.delta_timestamps
            clips.append(Clip(reader, video, picture, numbers, crop, *of_sample))
        return clips


def cached_features(names: tuple[str, ...]) -> tuple[tuple[str, ...], frozenset[str]]:
    """Return the cached features that these names mean, and those of the names that are in ``VARIANTS``.

    Raises ``UsageError`` if two names mean one feature, which has one name in a sample. "latents.first_frame" has
    another one.

    Examples
    --------
    >>> cached_features(("frames", "flow.adjacent"))
    (('frames', 'flow'), frozenset({'flow.adjacent'}))
    """
    for feature in VARIANTS.values():
        forms = sorted(name for name in names if VARIANTS.get(name, name) == feature and name != FIRST_FRAME_LATENTS)
        if len(forms) > 1:
            raise UsageError(f"features: got '{forms[0]}' and '{forms[1]}', expected one of them")
    features = tuple(dict.fromkeys(VARIANTS.get(name, name) for name in names))
    return features, frozenset(VARIANTS.keys() & set(names))


def _zeros(side: ReadSide, clip: Clip, info: FeatureInfo) -> Arrays:
    """Return the neutral value of an absent feature, or raise ``NotFoundError`` if its shape is unknown."""
    arrays = side.zeros(clip, info)
    if arrays is None:
        raise AbsentFeatureError(
            f"missing: got 'zeros' for '{side.name}' of video '{clip.video.key}', which is absent ({info.absent}), "
            "expected a feature of known shape. Take missing='skip', which leaves such videos out."
        )
    return arrays
