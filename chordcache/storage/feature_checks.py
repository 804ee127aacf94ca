"""The check of a sidecar: shapes, dtypes, rows, parameters and facts of each feature, before any of them is used.

A sidecar may come from anyone, and its seal proves nothing. Readers pass its numbers to NumPy and to decoders, so they
are compared here with what the feature's extractor writes. The features of plug-ins are only bounded.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np

from chordcache.json_records import MAX_PIXELS, MAX_ROWS, MAX_SIDE, Limit, Record, Side, from_json
from chordcache.records import Description
from chordcache.storage.artefacts.tiers import KINDS, TIERS
from chordcache.storage.feature_info import FeatureInfo
from chordcache.storage.row_clock import CLOCK_FACTS, clock_problem, has_times

_MAX_ROW_BYTES = 1 << 29
"""Largest size of a row [bytes]. The largest picture has 384 MiB"""

_MAX_SOUND_VALUES = 64 << 16
"""Most values in a row of sound: 65536 samples, bands or coefficients of 64 channels, the most that FFmpeg resamples"""

_MAX_FFT = 1 << 16

_DIGEST_BYTES = 8
_FEATURE_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
_DTYPE = re.compile(r"[|<]?[A-Za-z]+\d{0,8}")
_TIMES = 16
"""Size of the time and the number of a frame, which each file has [bytes]"""

_ITEM_FIELDS = frozenset(("root", "path", *Description.__struct_fields__))
"""Fields of an item that a feature may be made of"""

_FLOATS = ("float16", "float32")

_Compression = Annotated[int, Limit(ge=1, le=64)]
_Positive = Annotated[float, Limit(gt=0)]
_Rate = Annotated[int, Limit(ge=1, le=1 << 20)]


class _Params(Record, frozen=True, forbid_unknown_fields=False):
    """Parameters or facts, as far as readers use them."""


class _Used(_Params, frozen=True, forbid_unknown_fields=False):
    uses: list[str]


class _Codec(_Params, frozen=True, forbid_unknown_fields=False):
    codec: Literal["jpeg", "yuv420", "raw", "h264", "mpeg4"]


class _PacketParams(_Params, frozen=True, forbid_unknown_fields=False):
    gop: Annotated[int, Limit(ge=1, le=64)]
    stride: Annotated[int, Limit(ge=1, le=16)]
    crf: Annotated[int, Limit(ge=0, le=40)] = 0


class _Flow(_Params, frozen=True, forbid_unknown_fields=False):
    short_side: Side | None


class _GridFacts(_Params, frozen=True, forbid_unknown_fields=False):
    width: Annotated[int, Limit(ge=1, le=1 << 16)]
    height: Annotated[int, Limit(ge=1, le=1 << 16)]


class _Librosa(_Params, frozen=True, forbid_unknown_fields=False):
    sample_rate: _Rate
    hop_length: Annotated[int, Limit(ge=1, le=1 << 16)]


class _Mel(_Librosa, frozen=True, forbid_unknown_fields=False):
    n_mels: Annotated[int, Limit(ge=1)]
    mono: bool
    n_fft: Annotated[int, Limit(ge=1, le=_MAX_FFT)] = _MAX_FFT
    fmin: Annotated[float, Limit(ge=0, le=1 << 20)] = 0
    fmax: Annotated[float, Limit(ge=0, le=1 << 20)] | None = None


class _Waveform(_Params, frozen=True, forbid_unknown_fields=False):
    sample_rate: _Rate | None
    dtype: Literal["float32", "int16"]
    channels: Literal["mono", "all"]


class _Samples(_Params, frozen=True, forbid_unknown_fields=False):
    sample_rate: _Rate
    num_samples: Annotated[int, Limit(ge=0)]


class _Text(_Params, frozen=True, forbid_unknown_fields=False):
    padding: Literal["none", "zeros", "max_length"] = "none"
    max_tokens: Annotated[int, Limit(ge=1, le=1 << 20)] | None = None
    pooled_model: str | None = None


class _TextFacts(_Params, frozen=True, forbid_unknown_fields=False):
    num_tokens: list[Annotated[int, Limit(ge=0, le=1 << 20)]] | None = None


class _Normalization(_Params, frozen=True, forbid_unknown_fields=False):
    scaling_factor: float | None = None
    shift_factor: float | None = None
    latents_mean: list[float] | float | None = None
    latents_std: list[_Positive] | _Positive | None = None
    invert_scale_latents: bool = False


class _Latents(_Params, frozen=True, forbid_unknown_fields=False):
    compression: tuple[_Compression, _Compression]
    normalization: _Normalization | None = None
    axes: Literal["tchw", "cthw"] = "tchw"
    moments: bool = False
    first_frame: Literal["alone", "before_gray"] | None = None


class _LatentsFacts(_Params, frozen=True, forbid_unknown_fields=False):
    normalization: _Normalization | None = None


_OPTIONAL: Mapping[str, Mapping[str, str]] = {
    "latents": {".logvar": "moments", ".first_frame": "first_frame"},
    "text": {".pooled": "pooled_model"},
}
"""Feature to the suffixes of arrays that it has if a parameter is set, and these parameters"""


class _Feature(NamedTuple):
    """The rules of a built-in feature."""

    dtypes: tuple[str, ...]
    shape: Callable[[FeatureInfo, Any], bool]
    """Function of the record and the sidecar that returns whether the shape is one of the feature"""
    params: type[_Params] | None = None
    facts: type[_Params] | None = None
    clock: str = ""
    """The one of ``CLOCK_FACTS`` that the facts have, or "" if there is a row for each frame"""
    arrays: tuple[str, ...] = ()
    """Suffixes of the other arrays"""


def feature_problem(info: FeatureInfo, sidecar: Any) -> str | None:
    """Return the reason why the record of a feature of a sidecar cannot be what a build wrote, or None."""
    problem = _record_problem(info) or _params_problem(info)
    if problem is None and info.file is not None:
        num_frames = sidecar.num_frames
        problem = _rows_problem(info, info.file.num_bytes, num_frames) or _clock_problem(info, num_frames)
        if problem is None and info.feature in _FEATURES:
            problem = _built_in_problem(info, sidecar)
    return problem and f"{info.feature[:40]}: {problem}"


def _record_problem(info: FeatureInfo) -> str | None:
    if (info.feature not in _FEATURES and not _FEATURE_NAME.fullmatch(info.feature)) or info.tier not in TIERS:
        return "a feature or a tier that does not exist"
    if (info.absent is None) != (info.file is not None):
        return "a file of an absent feature, or none of a cached one"
    if info.file is not None and info.file.packed is not None and not TIERS[info.tier].is_flat:
        return "a place in a pack that no file of it has"
    if info.absent is not None and (info.shape or info.num_rows):
        return "rows of an absent feature"
    return None


def _params_problem(info: FeatureInfo) -> str | None:
    rules = _FEATURES.get(info.feature)
    try:
        if info.used and not _ITEM_FIELDS.issuperset(names := from_json(info.params, _Used).uses):
            return f"made of {', '.join(names)[:80]}"
        if rules is None:
            return None
        if rules.params is not None:
            from_json(info.params, rules.params)
        if info.params.get("codec") in ("h264", "mpeg4"):
            from_json(info.params, _PacketParams)
        if info.file is not None and rules.facts is not None:
            from_json(info.facts, rules.facts)
    except ValueError as error:
        return f"parameters or facts that it cannot have: {error}"
    return None


def _rows_problem(info: FeatureInfo, num_bytes: int, num_frames: int) -> str | None:
    """Check the rows and their size against the file."""
    names, num_rows = info.num_rows, info.num_rows.get(info.feature)
    if num_rows is None or any(name != info.feature and not name.startswith(f"{info.feature}.") for name in names):
        return f"rows of {', '.join(names)[:80] or 'nothing'}"
    if not 0 <= min(names.values()) <= max(names.values()) <= MAX_ROWS:
        return f"rows of which there are {min(names.values())} to {max(names.values())}"
    if max(*names.values(), num_frames) * _DIGEST_BYTES > num_bytes or num_frames * _TIMES > num_bytes:
        return f"{max(names.values())} rows for {num_frames} frames in {num_bytes} bytes"
    if not info.dtype and not info.shape:  # records of a plug-in
        return None
    if not info.shape or info.shape[0] != num_rows or min(info.shape) < 0 or len(info.shape) > 32:
        return f"the shape {info.shape} of {num_rows} rows"
    dtype = _dtype(info.dtype)
    if dtype is None or dtype.itemsize * math.prod(info.shape[1:]) > _MAX_ROW_BYTES:
        return f"rows of {info.dtype[:20]} and shape {info.shape[1:]}"
    return None


def _clock_problem(info: FeatureInfo, num_frames: int) -> str | None:
    if CLOCK_FACTS.isdisjoint(info.facts):
        return None
    problem = clock_problem(info.facts, info.num_rows, num_frames)
    if problem is None and has_times(info.facts):
        try:
            with np.errstate(all="ignore"):
                np.full((), info.facts["silence"], info.dtype)
        except (TypeError, ValueError, OverflowError):
            return f"silence {info.facts['silence']} of {info.dtype}"
    return problem


@lru_cache(maxsize=100)
def _dtype(text: str) -> np.dtype[Any] | None:
    try:
        dtype = np.dtype(text) if _DTYPE.fullmatch(text) else None
    except (TypeError, ValueError, OverflowError):
        return None
    return dtype if dtype is not None and dtype.kind in KINDS else None


def _built_in_problem(info: FeatureInfo, sidecar: Any) -> str | None:
    rules = _FEATURES[info.feature]
    others = rules.arrays
    if info.feature == "flow" and info.dtype == "int8":
        others = (".scale",)
    elif info.feature in _OPTIONAL:
        others = tuple(suffix for suffix, name in _OPTIONAL[info.feature].items() if info.params.get(name))
    arrays = {info.feature, *(info.feature + suffix for suffix in others)}
    if info.num_rows.keys() != arrays or len(set(info.num_rows.values())) != 1:
        return f"rows of {', '.join(info.num_rows)[:80]}"
    clock = rules.clock
    if info.feature == "latents":
        clock = "frames_per_row" if info.params["compression"][0] > 1 else ""
    if CLOCK_FACTS.intersection(info.facts) != ({clock} if clock else set()):
        return f"facts {', '.join(info.facts)[:80]}"
    if info.dtype not in rules.dtypes or min(info.shape[1:], default=1) < 1 or not rules.shape(info, sidecar):
        return f"{info.dtype} of shape {info.shape}"
    return None


def _frames(info: FeatureInfo, sidecar: Any) -> bool:
    is_rgb = len(info.shape) == 4 and info.shape[3] == 3 and _is_picture(info)
    if is_rgb and info.params["codec"] == "yuv420" and (info.shape[1] % 2 or info.shape[2] % 2):
        return False
    return is_rgb and info.shape[0] == sidecar.num_frames


def _is_picture(info: FeatureInfo) -> bool:
    return max(info.shape[1:3]) <= MAX_SIDE and math.prod(info.shape[1:3]) <= MAX_PIXELS


def _flow(info: FeatureInfo, sidecar: Any) -> bool:
    is_field = len(info.shape) == 4 and info.shape[3] == 2 and _is_picture(info)
    # ``flow.short_side`` may be above that of frames, and no picture is larger than the source
    sides = sidecar.width, sidecar.height, *(sidecar.display_size or ())
    return is_field and info.shape[0] == sidecar.num_frames - 1 and max(info.shape[1:3]) <= max(sides)


def _motion(info: FeatureInfo, sidecar: Any) -> bool:
    grid = -(-info.facts["height"] // 16), -(-info.facts["width"] // 16)
    return info.shape == (sidecar.num_frames, *grid, 2)


def _mel(info: FeatureInfo, sidecar: Any) -> bool:
    n_mels = info.params["n_mels"]
    has_shape = len(info.shape) == 3 - info.params["mono"] and info.shape[-1] == n_mels
    return has_shape and n_mels <= info.params.get("n_fft", _MAX_FFT) // 2 + 1 and _librosa(info, sidecar)


def _is_sound(info: FeatureInfo) -> bool:
    return math.prod(info.shape[1:]) <= _MAX_SOUND_VALUES


def _librosa(info: FeatureInfo, sidecar: Any) -> bool:
    return _is_sound(info) and math.isclose(
        info.facts["row_seconds"], info.params["hop_length"] / info.params["sample_rate"]
    )


def _waveform(info: FeatureInfo, sidecar: Any) -> bool:
    facts, block = info.facts, info.shape[-1]
    is_full = facts["num_samples"] <= info.shape[0] * block
    is_regular = math.isclose(facts["row_seconds"], block / facts["sample_rate"])
    return (
        _is_sound(info)
        and len(info.shape) == (2 if info.params["channels"] == "mono" else 3)
        and is_full
        and is_regular
    )


def _latents(info: FeatureInfo, sidecar: Any) -> bool:
    is_clocked = bool(info.params["compression"][0] > 1)
    values = {**(info.params.get("normalization") or {}), **(info.facts.get("normalization") or {})}.values()
    if len(info.shape) != 4 or any(isinstance(value, list) and len(value) != info.shape[1] for value in values):
        return False
    return is_clocked or info.shape[0] == sidecar.num_frames


def _text(info: FeatureInfo, sidecar: Any) -> bool:
    num_tokens, padding = info.facts.get("num_tokens"), info.params.get("padding", "none")
    if num_tokens is None:
        return len(info.shape) == 2 and padding == "none"
    if len(info.shape) != 3 or not num_tokens or len(num_tokens) != info.shape[0] or max(num_tokens) > info.shape[1]:
        return False
    most: int = info.shape[1] if padding == "none" else info.params.get("max_tokens") or 0
    return info.shape[1] <= most and most * info.shape[2] * 4 <= _MAX_ROW_BYTES


_FEATURES: Mapping[str, _Feature] = {
    "frames": _Feature(("uint8",), _frames, _Codec),
    "flow": _Feature((*_FLOATS, "int8"), _flow, _Flow),
    "motion": _Feature(("float16",), _motion, facts=_GridFacts, arrays=(".covered", ".types")),
    "mel": _Feature(("float32",), _mel, _Mel, clock="row_seconds"),
    "waveform": _Feature(("float32", "int16"), _waveform, _Waveform, _Samples, clock="row_seconds"),
    "librosa": _Feature(("float32", "float64"), _librosa, _Librosa, clock="row_seconds"),
    "text": _Feature(_FLOATS, _text, _Text, _TextFacts, clock="is_of_video"),
    "latents": _Feature(_FLOATS, _latents, _Latents, _LatentsFacts),
    "embed": _Feature(_FLOATS, lambda info, sidecar: len(info.shape) in (2, 3) and info.shape[0] == sidecar.num_frames),
    "pose": _Feature(("float32",), lambda info, sidecar: info.shape == (sidecar.num_frames, 33, 4)),
}
