"""The rules of the built-in features: the shapes, dtypes, arrays, parameters and facts that their extractors write.

This is the only module of the storage that knows features. It loads none of their modules, since a reader of one
feature checks the records of all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, NotRequired, TypeAlias

from chordcache.json_records import MAX_PIXELS, MAX_SIDE, Limit, Side, fields_type

if TYPE_CHECKING:
    from chordcache.storage.feature_info import FeatureInfo

MAX_ROW_BYTES = 1 << 29
"""Largest size of a row [bytes]. The largest picture has 384 MiB"""

_MAX_SOUND_VALUES = 64 << 16
"""Most values in a row of sound: 65536 samples, bands or coefficients of 64 channels, the most that FFmpeg resamples"""

_MAX_FFT = 1 << 16

_FLOATS = ("float16", "float32")

_Positive = Annotated[float, Limit(gt=0)]
_Hertz = Annotated[float, Limit(ge=0, le=1 << 20)]
_Rate = Annotated[int, Limit(ge=1, le=1 << 20)]
_Length = Annotated[int, Limit(ge=1, le=_MAX_FFT)]
_MaxTokens = Annotated[int, Limit(ge=1, le=1 << 20)]
_Compression = Annotated[int, Limit(ge=1, le=64)]

_Row: TypeAlias = tuple[tuple[int, ...], str]
"""Shape and dtype of a row"""


class Rules(NamedTuple):
    """The rules of a built-in feature."""

    dtypes: tuple[str, ...]
    shape: Callable[[FeatureInfo, Any], bool]
    """Function of the record and the sidecar that returns whether the shape is one of the feature"""
    params: Any = fields_type()
    facts: Any = fields_type()
    """Types of the parameters and the facts, as far as readers use them"""
    clocks: tuple[str, ...] = ("",)
    """Clocks of ``CLOCK_FACTS`` that its facts may have, and "" if there may be a row for each frame"""
    arrays: Callable[[FeatureInfo], Mapping[str, _Row | None]] = lambda info: {}
    """Function of the record that returns the other arrays: suffix to the row, or to None if only the array knows it"""


def row_of(info: FeatureInfo, name: str) -> _Row | None:
    """Return shape and dtype of a row of an array of a feature, or None for an array whose rows are not stated."""
    if name == info.feature:
        shape = info.shape[1:]
        is_planes = name == "frames" and info.params["codec"] == "yuv420"
        return (shape[0] * 3 // 2, shape[1]) if is_planes else shape, info.dtype
    rules = RULES.get(info.feature)
    return rules and rules.arrays(info).get(name[len(info.feature) :])


def _is_picture(info: FeatureInfo, num_rows: int, num_channels: int) -> bool:
    if len(info.shape) != 4 or (info.shape[0], info.shape[3]) != (num_rows, num_channels):
        return False
    return max(info.shape[1:3]) <= MAX_SIDE and math.prod(info.shape[1:3]) <= MAX_PIXELS


def _frames(info: FeatureInfo, sidecar: Any) -> bool:
    if info.params["codec"] == "yuv420" and any(side % 2 for side in info.shape[1:3]):
        return False
    is_complete = info.params["codec"] not in ("h264", "mpeg4") or {"gop", "stride"} <= info.params.keys()
    return is_complete and _is_picture(info, sidecar.num_frames, 3)


def _flow(info: FeatureInfo, sidecar: Any) -> bool:
    # ``flow.short_side`` may be above that of frames, and no picture is larger than the source
    sides = sidecar.width, sidecar.height, *(sidecar.display_size or ())
    return _is_picture(info, sidecar.num_frames - 1, 2) and max(info.shape[1:3]) <= max(sides)


def _motion(info: FeatureInfo, sidecar: Any) -> bool:
    grid = -(-info.facts["height"] // 16), -(-info.facts["width"] // 16)
    return info.shape == (sidecar.num_frames, *grid, 2)


def _is_sound(info: FeatureInfo, row_seconds: float) -> bool:
    return math.prod(info.shape[1:]) <= _MAX_SOUND_VALUES and math.isclose(info.facts["row_seconds"], row_seconds)


def _librosa(info: FeatureInfo, sidecar: Any) -> bool:
    return _is_sound(info, info.params["hop_length"] / info.params["sample_rate"])


def _mel(info: FeatureInfo, sidecar: Any) -> bool:
    n_mels = info.params["n_mels"]
    has_shape = len(info.shape) == 3 - info.params["mono"] and info.shape[-1] == n_mels
    return has_shape and n_mels <= info.params.get("n_fft", _MAX_FFT) // 2 + 1 and _librosa(info, sidecar)


def _waveform(info: FeatureInfo, sidecar: Any) -> bool:
    facts, block = info.facts, info.shape[-1]
    has_shape = len(info.shape) == (2 if info.params["channels"] == "mono" else 3)
    return has_shape and facts["num_samples"] <= info.shape[0] * block and _is_sound(info, block / facts["sample_rate"])


def _latents(info: FeatureInfo, sidecar: Any) -> bool:
    values = {**(info.params.get("normalization") or {}), **(info.facts.get("normalization") or {})}.values()
    if len(info.shape) != 4 or any(isinstance(value, list) and len(value) != info.shape[1] for value in values):
        return False
    is_clocked = "frames_per_row" in info.facts
    return is_clocked == (info.params["compression"][0] > 1) and (is_clocked or info.shape[0] == sidecar.num_frames)


def _text(info: FeatureInfo, sidecar: Any) -> bool:
    num_tokens, padding = info.facts.get("num_tokens"), info.params.get("padding", "none")
    if num_tokens is None:
        return len(info.shape) == 2 and padding == "none"
    if len(info.shape) != 3 or not num_tokens or len(num_tokens) != info.shape[0] or max(num_tokens) > info.shape[1]:
        return False
    most: int = info.shape[1] if padding == "none" else info.params.get("max_tokens") or 0
    return info.shape[1] <= most and most * info.shape[2] * 4 <= MAX_ROW_BYTES


def _latents_arrays(info: FeatureInfo) -> dict[str, _Row | None]:
    names = {".logvar": "moments", ".first_frame": "first_frame"}
    return {suffix: (info.shape[1:], info.dtype) for suffix, name in names.items() if info.params.get(name)}


_NORMALIZATION = NotRequired[
    fields_type(
        scaling_factor=NotRequired[float | None], shift_factor=NotRequired[float | None],
        latents_mean=NotRequired[list[float] | float | None],
        latents_std=NotRequired[list[_Positive] | _Positive | None], invert_scale_latents=NotRequired[bool],
    ) | None
]  # fmt: skip

RULES: Mapping[str, Rules] = {
    "frames": Rules(
        ("uint8",), _frames,
        fields_type(
            codec=Literal["jpeg", "yuv420", "raw", "h264", "mpeg4"],
            gop=NotRequired[Annotated[int, Limit(ge=1, le=64)]],
            stride=NotRequired[Annotated[int, Limit(ge=1, le=16)]],
            crf=NotRequired[Annotated[int, Limit(ge=0, le=40)]],
        ),
    ),
    "flow": Rules(
        (*_FLOATS, "int8"), _flow, fields_type(short_side=Side | None),
        arrays=lambda info: {".scale": ((), "float32")} if info.dtype == "int8" else {},
    ),
    "motion": Rules(
        ("float16",), _motion, facts=fields_type(width=_Length, height=_Length),
        arrays=lambda info: {".covered": (info.shape[1:-1], "bool"), ".types": ((), "|S1")},
    ),
    "mel": Rules(
        ("float32",), _mel,
        fields_type(
            sample_rate=_Rate, hop_length=_Length, n_mels=Annotated[int, Limit(ge=1)], mono=bool,
            n_fft=NotRequired[_Length], fmin=NotRequired[_Hertz], fmax=NotRequired[_Hertz | None],
        ),
        clocks=("row_seconds",),
    ),
    "waveform": Rules(
        ("float32", "int16"), _waveform,
        fields_type(sample_rate=_Rate | None, dtype=Literal["float32", "int16"], channels=Literal["mono", "all"]),
        fields_type(sample_rate=_Rate, num_samples=Annotated[int, Limit(ge=0)]),
        clocks=("row_seconds",),
    ),
    "librosa": Rules(
        ("float32", "float64"), _librosa, fields_type(sample_rate=_Rate, hop_length=_Length), clocks=("row_seconds",)
    ),
    "text": Rules(
        _FLOATS, _text,
        fields_type(
            padding=NotRequired[Literal["none", "zeros", "max_length"]], max_tokens=NotRequired[_MaxTokens | None],
            pooled_model=NotRequired[str | None],
        ),
        fields_type(num_tokens=NotRequired[list[Annotated[int, Limit(ge=0, le=1 << 20)]] | None]),
        clocks=("is_of_video",),
        arrays=lambda info: {".pooled": None} if info.params.get("pooled_model") else {},
    ),
    "latents": Rules(
        _FLOATS, _latents,
        fields_type(
            compression=tuple[_Compression, _Compression], normalization=_NORMALIZATION, moments=NotRequired[bool],
            axes=NotRequired[Literal["tchw", "cthw"]], first_frame=NotRequired[Literal["alone", "before_gray"] | None],
        ),
        fields_type(normalization=_NORMALIZATION),
        clocks=("", "frames_per_row"), arrays=_latents_arrays,
    ),
    "embed": Rules(_FLOATS, lambda info, sidecar: len(info.shape) in (2, 3) and info.shape[0] == sidecar.num_frames),
    "pose": Rules(("float32",), lambda info, sidecar: info.shape == (sidecar.num_frames, 33, 4)),
}  # fmt: skip
