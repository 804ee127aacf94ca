"""Reader of the features of one clip. All features have the same crop and the same frames."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol, TypeAlias

import numpy as np

from chordcache.errors import FeatureAbsentError, UsageError
from chordcache.media.geometry import scaled_size
from chordcache.read.arguments import check_frame_numbers
from chordcache.read.cache import Video
from chordcache.read.crops import CropBox, SpatialTransform
from chordcache.read.decode_rows import num_rows_in
from chordcache.read.transforms import (
    compose_flow,
    cut_flow,
    cut_frames,
    cut_motion,
    cut_pose,
    motion_grid_size,
)
from chordcache.records import FeatureInfo

Arrays: TypeAlias = dict[str, np.ndarray]
"""Arrays by their name in the sample."""

FLOW_MODES = ("between", "adjacent")
MISSING = ("error", "zeros")

NUM_LANDMARKS = 33
"""Number of landmarks of MediaPipe's pose"""

_TAKEN_NAMES = ("flows", "audio", "motion_covered", "pts_seconds", "label", "caption", "video", "present")
"""Names of other values in a sample. A plug-in's feature of such a name would hide the value."""


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

    def iter_frames(self, video: Video, indices: np.ndarray) -> Iterator[np.ndarray]:
        """Read frames a few at a time, as ``Cache.iter_frames`` does."""
        ...


@dataclass(frozen=True)
class ClipReader:
    """A reader of several features of the same frames.

    Raises
    ------
    UsageError
        If a setting is wrong.
    """

    features: tuple[str, ...]
    spatial_transform: SpatialTransform | None
    """Crop of the pictures. None leaves every feature as it is stored"""
    flow_mode: str
    """One of ``FLOW_MODES``"""
    missing: str
    """One of ``MISSING``"""

    def __post_init__(self) -> None:
        if not self.features:
            raise UsageError("features: got none, expected at least one")
        taken = [name for name in self.features if name in _TAKEN_NAMES]
        if taken:
            raise UsageError(
                f"features: got '{taken[0]}', expected a feature. A sample has something else of this name."
            )
        for what, value, valid in (("flow_mode", self.flow_mode, FLOW_MODES), ("missing", self.missing, MISSING)):
            if value not in valid:
                raise UsageError(f"{what}: got {value!r}, expected one of {', '.join(valid)}")

    def check(self, video: Video) -> None:
        """Raise ``FeatureAbsentError`` if a feature was never cached for a video."""
        have = tuple(dict.fromkeys(info.feature for info in video.sidecar.features))
        for name in self.features:
            if name not in have:
                raise FeatureAbsentError(
                    f"features: '{name}' of video '{video.key}' is not cached; cached: {', '.join(have)}; "
                    "'chordcache build' with a --tier or a config that has it adds it"
                )

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
        frames_out: np.ndarray | None = None,
    ) -> Arrays:
        """Read a clip, or several of one video.

        Parameters
        ----------
        cache : FeatureReader
            The cache.
        video : Video
            A video of the cache.
        numbers : np.ndarray [shape=(T,) or (N, T), dtype=int64, frame numbers]
            Frames in any order, repeats allowed. With several clips, each array has one more leading dimension.
        crop : CropBox or None
            The crop that the method ``crop`` chose.
        one_thread : bool
            Switch OpenCV's own threads off, for the whole process and from now on, if OpenCV is used.
        frames_out : np.ndarray, optional [shape=``frames_shape``, dtype=uint8]
            Contiguous memory for the frames. The returned arrays then do not include the frames.

        Returns
        -------
        dict of str to np.ndarray
            The arrays of each feature, see ``ChordVideoDataset``. With ``missing="zeros"`` also ``present``
            [shape=(len(features),), dtype=bool].

        Raises
        ------
        IndexError
            If a frame number is out of range.
        FeatureAbsentError, DamageError
            As in ``Cache.read``.
        UsageError
            If frames go backwards and the flow between them is requested, or if several clips differ in a shape.
        """
        if numbers.ndim > 1:
            outs = [None] * len(numbers) if frames_out is None else frames_out
            clips = [
                self.read(cache, video, each, crop, one_thread=one_thread, frames_out=out)
                for each, out in zip(numbers, outs, strict=True)
            ]
            return {name: _stacked(name, video, [clip[name] for clip in clips]) for name in clips[0]}
        clip = Clip(cache, video, numbers, crop, self.flow_mode, one_thread, frames_out)
        arrays: Arrays = {}
        present = []
        for name in self.features:
            info = video.sidecar.feature(name)
            if self.missing == "zeros" and info is not None and info.absent is not None:
                arrays |= _zeros(clip, name, info)
                present.append(False)
            else:
                arrays |= _read(clip, name)
                present.append(True)
        return arrays if self.missing == "error" else {**arrays, "present": np.array(present)}


@dataclass(frozen=True)
class Clip:
    """Some frames of a video, and the settings for reading them."""

    cache: FeatureReader
    video: Video
    numbers: np.ndarray
    """[shape=(T,), dtype=int64, frame numbers]"""
    crop: CropBox | None
    flow_mode: str
    one_thread: bool
    frames_out: np.ndarray | None = None
    """Memory for the frames [shape=(T, h, w, 3), dtype=uint8]"""

    def __post_init__(self) -> None:
        check_frame_numbers("numbers", self.numbers.tolist(), self.video.num_frames, f"video '{self.video.key}'")

    @property
    def picture(self) -> tuple[int, int]:
        """(height, width) of the cached frames of the video, [pixels]."""
        return self.video.height, self.video.width

    @property
    def span(self) -> tuple[int, int]:
        """Range from the earliest frame to the latest, half open."""
        return (int(self.numbers.min()), int(self.numbers.max()) + 1) if len(self.numbers) else (0, 0)


def _stacked(name: str, video: Video, arrays: list[np.ndarray]) -> np.ndarray:
    shapes = {array.shape for array in arrays}
    if len(shapes) > 1:
        raise UsageError(
            f"'{name}' of {len(arrays)} clips of video '{video.key}' has shapes {', '.join(map(str, sorted(shapes)))}; "
            "they cannot be stacked to one array: take one clip a sample, with clips_per_video"
        )
    return np.stack(arrays)


def _read(clip: Clip, name: str) -> Arrays:
    if name in _READERS:
        return _READERS[name](clip)
    if "row_seconds" in clip.video.feature(name).facts:
        return {name: clip.cache.read(clip.video, name, *clip.span)}
    return {name: clip.cache.read(clip.video, name, indices=clip.numbers)}


def _frames(clip: Clip) -> Arrays:
    if clip.crop is None or clip.crop == CropBox(0, 0, *clip.picture, clip.picture):
        pictures = clip.cache.read(clip.video, indices=clip.numbers, out=clip.frames_out)
    else:
        pictures = _cut(clip, clip.crop)
    if clip.frames_out is not None:
        return {}
    # Contiguous: stacking permuted views without a worker takes several times as long as this copy
    return {"frames": pictures.transpose(0, 3, 1, 2).copy()}


def _cut(clip: Clip, crop: CropBox) -> np.ndarray:
    """Decode and crop the frames, a few at a time, while their pixels are still in the CPU's cache."""
    out = clip.frames_out
    if out is None:
        out = np.empty((len(clip.numbers), *crop.size, 3), np.uint8)
    done = 0
    for frames in clip.cache.iter_frames(clip.video, clip.numbers):
        cut_frames(frames, crop, out=out[done : done + len(frames)], one_thread=clip.one_thread)
        done += len(frames)
    return out


def _flows(clip: Clip) -> Arrays:
    height, width = clip.crop.size if clip.crop else clip.video.feature("flow").shape[1:3]
    flows = np.zeros((max(0, len(clip.numbers) - 1), 2, height, width), np.float32)
    for flow, (start, stop) in zip(flows, pairwise(clip.numbers.tolist()), strict=True):
        field = _flow(clip, start, stop)
        if field is not None:
            flow[:] = field.transpose(2, 0, 1)
    return {"flows": flows}


def _flow(clip: Clip, start: int, stop: int) -> np.ndarray | None:
    """Return the flow from one frame of a clip to the next [shape=(h, w, 2), dtype=float32]. None if it is zero."""
    if clip.flow_mode == "between" and stop < start:
        raise UsageError(
            f"flow_mode 'between' needs frames in ascending order, but frame {stop} of video '{clip.video.key}' comes "
            f"after frame {start}; choose flow_mode='adjacent' or another sampler"
        )
    if start == stop:
        return None
    steps = clip.cache.read(clip.video, "flow", start, stop if clip.flow_mode == "between" else start + 1)
    if not len(steps):  # the video's last frame does not have flow
        return None
    field = compose_flow(steps, one_thread=clip.one_thread)
    if clip.crop is None:
        return field
    return cut_flow(field, clip.crop, picture=clip.picture, one_thread=clip.one_thread)


def _audio(clip: Clip) -> Arrays:
    return {"audio": np.ascontiguousarray(clip.cache.read(clip.video, "mel", *clip.span))}


def _motion(clip: Clip) -> Arrays:
    motion = clip.cache.read(clip.video, "motion", indices=clip.numbers)
    covered = clip.cache.read(clip.video, "motion.covered", indices=clip.numbers)
    if clip.crop is not None:
        facts = clip.video.feature("motion").facts
        source = facts["height"], facts["width"]
        motion, covered = cut_motion(motion, covered, clip.crop, source=source, picture=clip.picture)
    channels_first = np.ascontiguousarray(motion.transpose(0, 3, 1, 2), np.float32)
    return {"motion": channels_first, "motion_covered": covered}


def _pose(clip: Clip) -> Arrays:
    pose = clip.cache.read(clip.video, "pose", indices=clip.numbers)
    return {"pose": pose if clip.crop is None else cut_pose(pose, clip.crop)}


_READERS: Mapping[str, Callable[[Clip], Arrays]] = {
    "frames": _frames,
    "flow": _flows,
    "mel": _audio,
    "motion": _motion,
    "pose": _pose,
}
"""Functions that read a feature, by its name. A plug-in's feature is read as it is stored."""


def _zeros(clip: Clip, name: str, info: FeatureInfo) -> Arrays:
    """Return what ``_read`` would return if the feature were cached and zero.

    Raises
    ------
    FeatureAbsentError
        If the shape of the feature is unknown.
    """
    num_frames = len(clip.numbers)
    match name:
        case "flow":
            # Flow is only absent for pictures of a few pixels, so that their size is the source's
            width, height = scaled_size(clip.video.width, clip.video.height, info.params["short_side"])
            size = clip.crop.size if clip.crop else (height, width)
            return {"flows": np.zeros((max(0, num_frames - 1), 2, *size), np.float32)}
        case "mel" if info.params["mono"]:
            row_seconds = info.params["hop_length"] / info.params["sample_rate"]
            num_rows = num_rows_in(clip.video.seconds_of(*clip.span), row_seconds)
            return {"audio": np.zeros((info.params["n_mels"], num_rows), np.float32)}
        case "motion" if clip.crop is not None:
            grid = motion_grid_size(*clip.crop.size)
            return {
                "motion": np.zeros((num_frames, 2, *grid), np.float32),
                "motion_covered": np.zeros((num_frames, *grid), np.bool_),
            }
        case "pose":
            return {"pose": np.zeros((num_frames, NUM_LANDMARKS, 4), np.float32)}
    raise FeatureAbsentError(
        f"'{name}' of video '{clip.video.key}' is absent: {info.absent}; zeros cannot take its place, since nothing "
        "says which shape it would have"
    )
