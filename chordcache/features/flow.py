"""The feature "flow": dense optical flow from each kept frame to the next."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, ClassVar, TypeAlias

import numpy as np

from chordcache.config.picture import PictureConfig
from chordcache.errors import UsageError
from chordcache.features.base import NO_ROWS, Extractor, Rows
from chordcache.features.read_side import ADJACENT_FLOW, Arrays, Clip, ReadSide, in_memory
from chordcache.media.cropping import CropBox, cut, load_opencv, resized
from chordcache.media.frame import Frame
from chordcache.media.geometry import scaled_size
from chordcache.storage.artefacts.artefact import Artefact
from chordcache.storage.feature_info import FeatureInfo
from chordcache.storage.flow_int8 import dequantize, quantize

Estimator: TypeAlias = "Callable[[np.ndarray, np.ndarray], np.ndarray]"
"""Function of two luma planes [shape=(H, W), dtype=uint8] that returns the flow from the first to the second
[shape=(H, W, 2), dtype=float32, pixels, (dx, dy)]."""

MAX_FLOAT16 = float(np.finfo(np.float16).max)

_NO_GUESS: Any = None
"""Value for the initial flow. OpenCV's stubs do not know that it is optional."""

_DIS_MIN_SIDES_PX = (8, 12)
"""Shorter and longer side of the smallest picture that OpenCV's DIS accepts: one patch, and room to move it."""


class FlowExtractor(Extractor):
    """Dense optical flow: row i moves kept frame i onto kept frame i + 1.

    Arrays
    ------
    ``name`` [shape=(T - 1, H, W, 2), pixels of the H x W picture per kept-frame step, (dx, dy)]
        float32 is OpenCV's result. float16 is that result, rounded and clipped to the range of float16. int8 is made
        by ``flow_int8.quantize``.
    ``name.scale`` [shape=(T - 1,), dtype=float32, pixels per code]
        Step of each pair, for int8 only. See ``flow_int8.dequantize``.

    For int8, ``facts["clipped_share"]`` is the share of all vectors that were clipped, 0 to 1.

    The parameters are the settings of ``FlowConfig``. A ``short_side`` of None keeps the size of the picture.

    Notes
    -----
    The flow is estimated on the luma plane, with the number of threads set by ``cv2.setNumThreads``. Farneback takes 2
    (preset medium) to 16 times the CPU time of DIS, dense inverse search. Pictures under 8x12 pixels are too small for
    DIS. The feature is then absent.

    Source: Farneback 2003, ``cv2.calcOpticalFlowFarneback(a, b, None, 0.5, 3, 15, 3, 5, 1.2, 0)``; Kroeger et al.
    2016, ``cv2.DISOpticalFlow.create(preset).calc(a, b, None)``.
    """

    version: ClassVar[int] = 2
    is_local: ClassVar[bool] = True
    units: ClassVar[Mapping[str, str]] = {"": "pixels per kept-frame step, (dx, dy)", "scale": "pixels per code"}

    def __init__(
        self,
        name: str,
        *,
        method: str = "dis",
        preset: str = "medium",
        short_side: int | None = None,
        dtype: str = "int8",
    ) -> None:
        super().__init__(name)
        self._method = method
        self._estimate = _dis(preset) if method == "dis" else _farneback()
        self._short_side = short_side
        self._dtype = np.dtype(dtype)
        self._last: np.ndarray | None = None
        self._absent: str | None = None
        self._num_pairs = 0
        self._num_clipped = 0

    @classmethod
    def missing_requirement(cls, arguments: Mapping[str, Any]) -> str | None:
        """Return the command that installs OpenCV. It is an extra because its wheels overwrite each other."""
        return None if importlib.util.find_spec("cv2") else "needs OpenCV; run: pip install 'chordcache[build]'"

    @classmethod
    def arguments(cls, section: Any, picture: PictureConfig) -> dict[str, Any]:
        """Return the section of the config. Its short side is by default that of frames, or of the bucket."""
        preset = {"preset": section.preset} if section.method == "dis" else {}
        short_side = section.short_side or (None if picture.buckets else picture.short_side)
        return {"method": section.method, **preset, "short_side": short_side, "dtype": section.dtype}

    @classmethod
    def picture_used(cls, picture: PictureConfig) -> PictureConfig:
        """Return all settings but the short side, which is an argument of the extractor."""
        return replace(picture, short_side=type(picture).short_side)

    @property
    def absent(self) -> str | None:
        """Reason why the feature is absent: the pictures are too small for the method."""
        return self._absent

    def num_rows(self, num_frames: int) -> int:
        """Return the number of pairs of consecutive frames."""
        return max(0, num_frames - 1)

    def add_frame(self, frame: Frame) -> Rows:
        """Return the flow from the previous frame to this one, or no rows at the first frame."""
        if self._absent is not None:
            return NO_ROWS
        luma = frame.luma(self._short_side)
        last, self._last = self._last, luma
        if last is None:
            self._absent = self._refusal(luma)
            return NO_ROWS
        self._num_pairs += 1
        return self._rows(self._estimate(last, luma))

    def finish(self) -> Rows:
        """Return an empty block of the right shape for a video of one frame."""
        if self._last is None or self._absent is not None:
            return NO_ROWS
        if self._dtype == np.int8:
            num_vectors = self._num_pairs * self._last.size
            self.facts["clipped_share"] = self._num_clipped / max(num_vectors, 1)
        if self._num_pairs:
            return NO_ROWS
        return {name: rows[:0] for name, rows in self._rows(np.zeros((*self._last.shape, 2), np.float32)).items()}

    def _refusal(self, luma: np.ndarray) -> str | None:
        height, width = luma.shape
        if self._method == "dis" and any(np.less(sorted(luma.shape), _DIS_MIN_SIDES_PX)):
            shorter, longer = _DIS_MIN_SIDES_PX
            return f"a picture of {width}x{height} pixels is too small for DIS, which needs {shorter}x{longer}"
        return None

    def _rows(self, flow: np.ndarray) -> dict[str, np.ndarray]:
        if self._dtype == np.int8:
            codes, scale, num_clipped = quantize(flow)
            self._num_clipped += num_clipped
            return {self.name: codes[None], f"{self.name}.scale": np.array([scale])}
        if self._dtype == np.float16:
            flow = np.clip(flow, -MAX_FLOAT16, MAX_FLOAT16)
        return {self.name: flow[None].astype(self._dtype)}


def _farneback() -> Estimator:
    cv2 = load_opencv()
    return lambda first, second: np.asarray(
        cv2.calcOpticalFlowFarneback(first, second, _NO_GUESS, 0.5, 3, 15, 3, 5, 1.2, 0)
    )


def _dis(preset: str) -> Estimator:
    cv2 = load_opencv()
    search = cv2.DISOpticalFlow.create(getattr(cv2, f"DISOPTICAL_FLOW_PRESET_{preset.upper()}"))
    return lambda first, second: np.asarray(search.calc(first, second, _NO_GUESS))


class FlowReadSide(ReadSide):
    """The read side of flow: from each frame of a clip to the next, in pixels of the crop.

    The crop is the one of the frames. It scales the vectors too. Mirroring changes the sign of dx.
    """

    padding: ClassVar[Mapping[str, float]] = {"flows": 0}
    is_spatial: ClassVar[bool] = True

    def rows(
        self, artefact: Artefact, info: FeatureInfo, array: str, numbers: Sequence[int], out: np.ndarray | None
    ) -> np.ndarray:
        """Read rows, int8 converted to pixels. See ``ReadSide``."""
        if array == self.name and info.dtype == "int8":
            scale = artefact.rows(f"{self.name}.scale", numbers)
            return in_memory(array, dequantize(artefact.rows(array, numbers), scale), out)
        return artefact.rows(array, numbers, out)

    def read_clip(self, clip: Clip) -> Arrays:
        """Return ``flows`` [shape=(T - 1, 2, h, w), dtype=float32], zero where flow does not exist."""
        height, width = clip.crop.size if clip.crop else clip.video.feature(self.name).shape[1:3]
        flows = np.zeros((max(0, len(clip.numbers) - 1), 2, height, width), np.float32)
        for flow, (start, stop) in zip(flows, pairwise(clip.numbers.tolist()), strict=True):
            field = self._field(clip, start, stop)
            if field is not None:
                flow[:] = field.transpose(2, 0, 1)
        return {"flows": flows}

    def _field(self, clip: Clip, start: int, stop: int) -> np.ndarray | None:
        """Return the flow from one frame to the next [shape=(h, w, 2), dtype=float32]. None if it is zero."""
        is_adjacent = ADJACENT_FLOW in clip.variants
        if stop < start and not is_adjacent:
            raise UsageError(
                f"features: got 'flow' for frame {stop} of video '{clip.video.key}' after frame {start}, expected "
                f"frames in ascending order. Take '{ADJACENT_FLOW}' or another sampler."
            )
        if start == stop:
            return None
        steps = clip.rows(self.name, slice(start, start + 1 if is_adjacent else stop))
        if not len(steps):  # the video's last frame does not have flow
            return None
        field = compose_flow(steps, one_thread=clip.one_thread)
        if clip.crop is None:
            return field
        return cut_flow(field, clip.crop, picture=clip.picture, one_thread=clip.one_thread)

    def zeros(self, clip: Clip, info: FeatureInfo) -> Arrays:
        """Return zeros. Flow is only absent for pictures of a few pixels, so that their size is the source's."""
        width, height = scaled_size(clip.video.width, clip.video.height, info.params["short_side"])
        size = clip.crop.size if clip.crop else (height, width)
        return {"flows": np.zeros((max(0, len(clip.numbers) - 1), 2, *size), np.float32)}


def compose_flow(steps: np.ndarray, *, one_thread: bool = False) -> np.ndarray:
    """Follow each pixel through consecutive flow fields, from the first frame to the last.

    ``F(x) = f1(x) + f2(x + f1(x)) + ...``. Each field is read bilinearly. Beyond the border, the value on the border is
    used. The fields [shape=(n, H, W, 2), float, pixels, (dx, dy)] follow each other, n >= 1. The result has
    [shape=(H, W, 2), dtype=float32, pixels, (dx, dy)]. ``one_thread`` switches OpenCV's own threads off, for the whole
    process and from now on, if n > 1.

    Notes
    -----
    OpenCV rounds the positions that it reads to 1/32 pixel. In fields as rough as real ones, the error is 0.004 px on
    average.
    """
    total: np.ndarray = steps[0].astype(np.float32)
    if len(steps) == 1:
        return total
    cv2 = load_opencv(one_thread)
    height, width = total.shape[:2]
    here = np.stack(np.meshgrid(np.arange(width), np.arange(height)), axis=-1).astype(np.float32)
    for step in steps[1:]:
        places = here + total
        total += cv2.remap(step.astype(np.float32), places, None, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    return total


def cut_flow(flow: np.ndarray, crop: CropBox, *, picture: tuple[int, int], one_thread: bool = False) -> np.ndarray:
    """Apply the crop of ``cut_frames`` to a flow field. Mirroring changes the sign of dx.

    The field [shape=(H, W, 2), dtype=float32, pixels of H x W, (dx, dy)] may have another size than the picture, whose
    (height, width) as it is cached is ``picture``, [pixels]. The result [shape=(h, w, 2), dtype=float32, pixels of h x
    w, (dx, dy)] is zero where the crop lies outside of the picture. ``one_thread`` is as in ``compose_flow``, if
    anything has to be scaled.

    Examples
    --------
    >>> flow = np.ones((256, 456, 2), np.float32)
    >>> cut_flow(flow, CropBox(0, 100, 256, 256, size=(128, 128), flip=True), picture=(256, 456))[0, 0].tolist()
    [-0.5, 0.5]
    """
    # First scale the flow to the picture's size: the crop then lies on whole pixels
    whole = resized(flow, picture, one_thread)
    part = resized(cut(whole[None], crop)[0], crop.size, one_thread)
    per_row, per_column = picture[0] / flow.shape[0], picture[1] / flow.shape[1]
    across, down = per_column * crop.size[1] / crop.width, per_row * crop.size[0] / crop.height
    scaled: np.ndarray = part * np.array([-across if crop.flip else across, down], np.float32)
    return scaled[:, ::-1] if crop.flip else scaled
