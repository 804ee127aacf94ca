"""The check of a sidecar: shapes, dtypes, rows, parameters and facts of each feature, before any of them is used.

A sidecar may come from anyone, and its seal proves nothing. Readers pass its numbers to NumPy and to decoders, so they
are compared here with what the feature's extractor writes. The features of plug-ins are only bounded.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache
from typing import Any

import numpy as np

from chordcache.json_records import MAX_ROWS, fields_type, from_json
from chordcache.records import Description
from chordcache.storage.artefacts.tiers import KINDS, TIERS
from chordcache.storage.feature_info import FeatureInfo
from chordcache.storage.feature_rules import MAX_ROW_BYTES, RULES
from chordcache.storage.row_clock import CLOCK_FACTS, clock_problem, has_times

_DIGEST_BYTES = 8
_FEATURE_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
_DTYPE = re.compile(r"[|<]?[A-Za-z]+\d{0,8}")
_TIMES = 16
"""Size of the time and the number of a frame, which each file has [bytes]"""

_ITEM_FIELDS = frozenset(("root", "path", *Description.__struct_fields__))
"""Fields of an item that a feature may be made of"""

_USED = fields_type(uses=list[str])


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
    if dtype is None or dtype.itemsize * math.prod(info.shape[1:]) > MAX_ROW_BYTES:
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
    arrays = {info.feature, *(info.feature + suffix for suffix in rules.arrays(info))}
    if info.num_rows.keys() != arrays or len(set(info.num_rows.values())) != 1:
        return f"rows of {', '.join(info.num_rows)[:80]}"
    if "".join(CLOCK_FACTS.intersection(info.facts)) not in rules.clocks:
        return f"facts {', '.join(info.facts)[:80]}"
    if info.dtype not in rules.dtypes or min(info.shape[1:], default=1) < 1 or not rules.shape(info, sidecar):
        return f"{info.dtype} of shape {info.shape}"
    return None
