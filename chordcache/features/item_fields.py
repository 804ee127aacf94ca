"""The fields of an item that a feature may be made of, such as its caption."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from chordcache.digests import hex64
from chordcache.json_records import to_json
from chordcache.records import SERIES, Description
from chordcache.storage.feature_info import FeatureInfo

ITEM_FIELDS = ("root", "path", *Description.__struct_fields__, SERIES)
"""Fields of an item that an extractor may use. The last one is a column"""


def value_of(name: str, item: Any) -> Any:
    """Return the value of a field of a ``VideoRecord`` or a video."""
    return item.extra.get(SERIES) if name == SERIES else getattr(item, name)


def all_captions(caption: str | None, captions: Sequence[str]) -> tuple[str, ...]:
    """Return the distinct captions of an item, its ``caption`` first."""
    return tuple(dict.fromkeys((*([caption] if caption else []), *captions)))


def hash_of_fields(names: Sequence[str], item: Any) -> str:
    """Return a hash of some fields of a ``VideoRecord`` or a video, 16 hex digits, or "" for no fields."""
    values = [to_json(value_of(name, item)) for name in names]
    return hex64(json.dumps(values, sort_keys=True).encode()) if names else ""


def fits(info: FeatureInfo, item: Any) -> bool:
    """Return whether a feature was made of the values that a ``VideoRecord`` or a video has now."""
    return not info.used or info.used == hash_of_fields(info.uses, item)
