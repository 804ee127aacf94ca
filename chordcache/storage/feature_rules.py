"""The check of a sidecar: shapes, dtypes, rows, parameters and facts of each feature, before any of them is used.

A sidecar may come from anyone, and its seal proves nothing. Readers pass its numbers to NumPy and to decoders, so they
are compared with what the feature's extractor writes. A built-in feature is one row of ``RULES``: this is the only
place of the storage that knows it. None of its modules are loaded, since a reader of one feature checks the records of
all. The features of plug-ins are only bounded.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypeAlias

import numpy as np

from chordcache.json_records import MAX_PIXELS, MAX_ROWS, MAX_SIDE, Limit, Side, fields_type, from_json
from chordcache.records import SERIES, Description
from chordcache.storage.artefacts.tiers import KINDS, TIERS
from chordcache.storage.feature_info import FeatureInfo
from chordcache.storage.row_clock import CLOCK_FACTS, clock_problem, has_times

_MAX_ROW_BYTES = 1 << 29
"""Largest size of a row [bytes]. The largest picture has 384 MiB"""

_MAX_SOUND_VALUES = 64 << 16
"""Most values in a row of sound: 65536 samples, bands or coefficients of 64 channels, the most that FFmpeg resamples"""

_MAX_FFT = 1 << 16

_MARGIN_PX = 64
_MARGIN_BYTES = 64 << 10
"""Margins of a coded picture: codecs fill the last blocks up, and have headers"""

_FLOATS = ("float16", "float32")

_DIGEST_BYTES = 8
_FEATURE_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
_DTYPE = re.compile(r"[|<]?[A-Za-z]+\d{0,8}")
_TIMES = 16
"""Size of the time and the number of a frame, which each file has [bytes]"""

_ITEM_FIELDS = frozenset(("root", "path", *Description.__struct_fields__, SERIES))
"""Fields of an item that a feature may be made of"""

_USED = fields_type(uses=list[str])

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
    rows: Callable[[FeatureInfo], Mapping[str, _Row | None]] = lambda info: {}
    """Function of the record that returns the other arrays: suffix to the row, or to None if only the array knows it.
    The suffix "" is of the feature itself, if its rows are not those of its shape"""
    records: Callable[[FeatureInfo], tuple[int, int]] | None = None
    """Function of the record that returns the largest size of a stored picture [bytes], and the number in a chain"""


def rows_of(info: FeatureInfo) -> dict[str, _Row | None]:
    """Return shape and dtype of a row of each array of a feature, None for an array whose rows are not stated."""
    rules = RULES.get(info.feature)
    others = rules.rows(info) if rules else {}
    return {
        info.feature: (info.shape[1:], info.dtype),
        **{info.feature + suffix: row for suffix, row in others.items()},
    }


def _is_picture(info: FeatureInfo, num_rows: int, num_channels: int) -> bool:
    if len(info.shape) != 4 or (info.shape[0], info.shape[3]) != (num_rows, num_channels):
        return False
    return max(info.shape[1:3]) <= MAX_SIDE and math.prod(info.shape[1:3]) <= MAX_PIXELS


def _frames(info: FeatureInfo, sidecar: Any) -> bool:
    if info.params["codec"] == "yuv420" and any(side % 2 for side in info.shape[1:3]):
        return False
    is_complete = info.params["codec"] not in ("h264", "mpeg4") or {"gop", "stride"} <= info.params.keys()
    return is_complete and _is_picture(info, sidecar.num_frames, 3)


def _planes(info: FeatureInfo) -> dict[str, _Row | None]:
    height, width = info.shape[1:3]
    return {"": ((height * 3 // 2, width), "uint8")} if info.params["codec"] == "yuv420" else {}


def _pictures(info: FeatureInfo) -> tuple[int, int]:
    height, width = info.shape[1:3]
    return 3 * (height + _MARGIN_PX) * (width + _MARGIN_PX) + _MARGIN_BYTES, info.params.get("gop", 1)


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
    return info.shape[1] <= most and most * info.shape[2] * 4 <= _MAX_ROW_BYTES


def _latents_rows(info: FeatureInfo) -> dict[str, _Row | None]:
    names = {".logvar": "moments", ".first_frame": "first_frame"}
    return {suffix: (info.shape[1:], info.dtype) for suffix, name in names.items() if info.params.get(name)}


def _series_rows(info: FeatureInfo) -> dict[str, _Row | None]:
    return {f".{name}": (tuple(shape), dtype) for name, (dtype, shape) in info.facts["columns"].items()}


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
        rows=_planes, records=_pictures,
    ),
    "flow": Rules(
        (*_FLOATS, "int8"), _flow, fields_type(short_side=Side | None),
        rows=lambda info: {".scale": ((), "float32")} if info.dtype == "int8" else {},
    ),
    "motion": Rules(
        ("float16",), _motion, facts=fields_type(width=_Length, height=_Length),
        rows=lambda info: {".covered": (info.shape[1:-1], "bool"), ".types": ((), "|S1")},
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
        rows=lambda info: {".pooled": None} if info.params.get("pooled_model") else {},
    ),
    "latents": Rules(
        _FLOATS, _latents,
        fields_type(
            compression=tuple[_Compression, _Compression], normalization=_NORMALIZATION, moments=NotRequired[bool],
            axes=NotRequired[Literal["tchw", "cthw"]], first_frame=NotRequired[Literal["alone", "before_gray"] | None],
        ),
        fields_type(normalization=_NORMALIZATION),
        clocks=("", "frames_per_row"), rows=_latents_rows,
    ),
    "embed": Rules(_FLOATS, lambda info, sidecar: len(info.shape) in (2, 3) and info.shape[0] == sidecar.num_frames),
    "series": Rules(
        ("float64",), lambda info, sidecar: len(info.shape) == 1,
        facts=fields_type(columns=dict[str, tuple[str, list[int]]], end_seconds=float, table=list[int]),
        clocks=("row_seconds",), rows=_series_rows,
    ),
    "pose": Rules(("float32",), lambda info, sidecar: info.shape == (sidecar.num_frames, 33, 4)),
}  # fmt: skip


def feature_problem(info: FeatureInfo, sidecar: Any) -> str | None:
    """Return the reason why the record of a feature of a sidecar cannot be what a build wrote, or None."""
    problem = _params_problem(info)
    if not _FEATURE_NAME.fullmatch(info.feature) or info.tier not in TIERS:
        problem = "a feature or a tier that does not exist"
    elif (info.absent is None) != (info.file is not None):
        problem = "a file of an absent feature, or none of a cached one"
    elif info.absent is not None and (info.shape or info.num_rows):
        problem = "rows of an absent feature"
    if problem is None and info.file is not None:
        num_frames = sidecar.num_frames
        problem = _rows_problem(info, info.file.num_bytes, num_frames)
        if problem is None and not CLOCK_FACTS.isdisjoint(info.facts):
            problem = _clock_problem(info, num_frames)
        if problem is None and info.feature in RULES:
            problem = _built_in_problem(info, sidecar)
    return problem and f"{info.feature[:40]}: {problem}"


def _params_problem(info: FeatureInfo) -> str | None:
    rules = RULES.get(info.feature)
    try:
        if info.used and not _ITEM_FIELDS.issuperset(names := from_json(info.params, _USED).uses):
            return f"made of {', '.join(names)[:80]}"
        if rules is not None:
            from_json(info.params, rules.params)
            if info.file is not None:
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
    problem = clock_problem(info.facts, info.num_rows, num_frames)
    if problem is None and has_times(info.facts):
        dtype, silence = _dtype(info.dtype), info.facts["silence"]
        if dtype is None or (dtype.kind in "iu" and not np.iinfo(dtype).min <= silence <= np.iinfo(dtype).max):
            return f"silence {silence} of {info.dtype[:20]}"
    return problem


@lru_cache(maxsize=100)
def _dtype(text: str) -> np.dtype[Any] | None:
    try:
        dtype = np.dtype(text) if _DTYPE.fullmatch(text) else None
    except (TypeError, ValueError, OverflowError):
        return None
    return dtype if dtype is not None and dtype.kind in KINDS else None


def _built_in_problem(info: FeatureInfo, sidecar: Any) -> str | None:
    rules = RULES[info.feature]
    if "".join(CLOCK_FACTS.intersection(info.facts)) not in rules.clocks:
        return f"facts {', '.join(info.facts)[:80]}"
    if info.dtype not in rules.dtypes or min(info.shape[1:], default=1) < 1 or not rules.shape(info, sidecar):
        return f"{info.dtype} of shape {info.shape}"
    # Last, since the rows of the arrays are made of the shape
    if info.num_rows.keys() != rows_of(info).keys() or len(set(info.num_rows.values())) != 1:
        return f"rows of {', '.join(info.num_rows)[:80]}"
    return None


@dataclass(frozen=True)
class Layout:
    """The shape and dtype of a streamed array in the file."""

    num_rows: int
    row_shape: tuple[int, ...] = ()
    dtype: np.dtype[Any] | None = None
    """Dtype of the rows, or None if the rows are records"""

    @property
    def row_bytes(self) -> int:
        """Size of a row [bytes], or 0 for records, whose sizes differ."""
        return 0 if self.dtype is None else self.dtype.itemsize * math.prod(self.row_shape)


class Claims(NamedTuple):
    """The statements of a sidecar about the files of its video. They bound what a file can make a reader allocate."""

    num_frames: int
    features: tuple[FeatureInfo, ...]

    def of_file(self, path: Path) -> Claims:
        """Return the claims about one file."""
        return Claims(
            self.num_frames, tuple(f for f in self.features if f.file and f.file.name.endswith(f"/{path.name}"))
        )

    @property
    def max_rows(self) -> int:
        """Largest number of rows or of values of an array."""
        return max(self.num_frames, *(count for info in self.features for count in info.num_rows.values()), 0)

    def records(self, name: str) -> tuple[int, int] | None:
        """Return the largest size of a stored picture [bytes], and the number in a chain, or None for other records."""
        rules = RULES.get(name)
        info = next((info for info in self.features if info.feature == name), None)
        return rules.records(info) if info and rules and rules.records else None

    def layout_problem(self, name: str, layout: Layout) -> str | None:
        """Return the reason why the rows of a file are not those that the sidecar states, or None."""
        for info in self.features:
            if name not in info.num_rows:
                continue
            if layout.num_rows != info.num_rows[name]:
                return f"got {layout.num_rows} rows of '{name}', expected {info.num_rows[name]}"
            if layout.dtype is not None and info.shape and (expected := rows_of(info).get(name)) is not None:
                got = layout.row_shape, str(layout.dtype.newbyteorder("="))
                if got != expected:
                    return f"got rows of '{name}' of {got}, expected {expected}"
        return None


def first_of_chain(number: int, gop: int, stride: int) -> int:
    """Return the first record of the chain that a record belongs to.

    A chain holds ``gop`` records at a distance of ``stride``.

    >>> [first_of_chain(number, gop=2, stride=3) for number in range(12)]
    [0, 1, 2, 0, 1, 2, 6, 7, 8, 6, 7, 8]
    """
    return number - number % (gop * stride) + number % stride
