"""JSON that a person or another program wrote: no key twice, no number that is not finite, a bounded depth."""

from __future__ import annotations

import json
import os
from collections import Counter
from typing import Any, BinaryIO

from chordcache.amounts import shortened
from chordcache.config.bounds import MAX_DEPTH
from chordcache.errors import UsageError, printable
from chordcache.json_records import FINITE_JSON

_MAX_BYTES = 1 << 31
"""Largest document that is read as a whole. Its values take some ten times as much memory"""

_TOO_DEEP = f"got values nested more than {MAX_DEPTH} deep, expected fewer levels"


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the members of an object. Raises ValueError if one is there twice, which JSON would drop."""
    members = dict(pairs)
    if len(members) < len(pairs):
        [(repeated, _)] = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"got the key '{shortened(repeated, 80)}' twice, expected it once")
    return members


_JSON = json.JSONDecoder(
    object_pairs_hook=_once, parse_float=FINITE_JSON.parse_float, parse_constant=FINITE_JSON.parse_constant
)


def decode_json(text: str) -> Any:
    """Return the value of a text. Raises ``ValueError`` if it is not JSON, or JSON that a list must not have."""
    try:
        value = _JSON.decode(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    if text.count("[") + text.count("{") > MAX_DEPTH:
        _check_depth(value, MAX_DEPTH)
    return value


def _check_depth(value: Any, num_levels: int) -> None:
    if isinstance(value, list | dict):
        if num_levels == 0:
            raise ValueError(_TOO_DEEP)
        for part in value.values() if isinstance(value, dict) else value:
            _check_depth(part, num_levels - 1)


def read_json(file: BinaryIO, path: str | os.PathLike[str]) -> str:
    """Return the text of a whole JSON document. Bytes that are not UTF-8 are kept as ``\\udcXX``.

    Raises ``UsageError`` if it is too large to be read as a whole.
    """
    num_bytes = os.fstat(file.fileno()).st_size
    if num_bytes > _MAX_BYTES:
        raise UsageError(
            f"'{printable(path)}': got {num_bytes:,} bytes of JSON, expected at most {_MAX_BYTES:,}. Write it as JSON "
            "Lines."
        )
    return file.read().decode("utf-8-sig", "surrogateescape")
