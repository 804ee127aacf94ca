"""The feature "flow": dense optical flow from each kept frame to the next."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeAlias

import numpy as np

from chordcache.errors import UsageError
from chordcache.features.base import NO_ROWS, Extractor, Rows
from chordcache.media.opencv import cv2
from chordcache.media.scaling import Frame
from chordcache.storage.flow_int8 import quantize

Estimator: TypeAlias = "Callable[[np.ndarray, np.ndarray], np.ndarray]"
"""Function of two luma planes [shape=(H, W), dtype=uint8] that returns the flow from the first to the second
[shape=(H, W, 2), dtype=float32, pixels, (dx, dy)]."""

METHODS = ("farneback", "dis")
PRESETS = {
    "ultrafast": cv2.DISOPTICAL_FLOW_PRESET_ULTRAFAST,
    "fast": cv2.DISOPTICAL_FLOW_PRESET_FAST,
    "medium": cv2.DISOPTICAL_FLOW_PRESET_MEDIUM,
}
DTYPES = ("float16", "float32", "int8")

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

    Parameters
    ----------
    name : str
        Name of the feature.
    method : {"farneback", "dis"}
        Polynomial expansion, or dense inverse search, which is 2 to 16 times as fast.
    preset : {"ultrafast", "fast", "medium"}
        OpenCV's preset of DIS. Farneback has none.
    short_side : int or None
        [pixels] Short side of the picture that the flow is estimated on. None keeps the size.
    dtype : {"float16", "float32", "int8"}
        Dtype of the rows.

    Raises
    ------
    UsageError
        If there is no such method, preset or dtype.

    Notes
    -----
    The flow is estimated on the luma plane, with the number of threads set by ``cv2.setNumThreads``. Pictures under
    8x12 pixels are too small for DIS. The feature is then absent.

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
        method: str = "farneback",
        preset: str = "fast",
        short_side: int | None = None,
        dtype: str = "float16",
    ) -> None:
        super().__init__(name)
        _check("method", method, METHODS)
        _check("preset", preset, tuple(PRESETS))
        _check("dtype", dtype, DTYPES)
        self._method = method
        self._estimate = _dis(preset) if method == "dis" else _farneback
        self._short_side = short_side
        self._dtype = np.dtype(dtype)
        self._last: np.ndarray | None = None
        self._absent: str | None = None
        self._num_pairs = 0
        self._num_clipped = 0

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


def _check(what: str, value: str, valid: tuple[str, ...]) -> None:
    if value not in valid:
        raise UsageError(f"{what} of optical flow: got '{value}', expected one of {', '.join(valid)}")


def _farneback(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return np.asarray(cv2.calcOpticalFlowFarneback(first, second, _NO_GUESS, 0.5, 3, 15, 3, 5, 1.2, 0))


def _dis(preset: str) -> Estimator:
    search = cv2.DISOpticalFlow.create(PRESETS[preset])
    return lambda first, second: np.asarray(search.calc(first, second, _NO_GUESS))
