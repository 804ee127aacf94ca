"""Frozen records that are written as JSON: their base class, the bounds of their numbers, and how they are parsed."""

from __future__ import annotations

import json
import math
import os
import threading
from collections.abc import Callable, Sequence
from functools import cache
from typing import Annotated, Any, NotRequired, Self, TypeVar, get_args, get_origin

import msgspec

T = TypeVar("T")

Limit = msgspec.Meta
"""The bounds of a number, as an annotation of its type"""

MAX_SIDE = 16384
"""[pixels] Largest side of a picture"""

MAX_PIXELS = 1 << 27
"""Largest picture, 134 megapixels (16384 x 8192). A larger size in a header is refused before memory is allocated"""

Count = Annotated[int, Limit(ge=0, lt=1 << 31)]
"""A number that a file states, small enough for the arrays and the files that it counts"""

MAX_FRAMES = 1 << 24
"""Largest number of frames of a cached video: 155 hours at 30 frames per second. Readers have arrays of them"""

MAX_ROWS = 1 << 26
"""Largest number of rows of an array: 186 hours of sound in rows of 10 ms. Readers have an array of their digests"""

Side = Annotated[int, Limit(ge=1, le=MAX_SIDE)]
"""[pixels] Side of a cached picture"""

Moment = Annotated[float, Limit(ge=-1e12, le=1e12)]
"""[seconds] Time that a file states"""

Length = Annotated[float, Limit(ge=0, le=1e12)]
"""[seconds] Duration that a file states"""


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of all that is written to a file as JSON."""

    def replace(self, **changes: Any) -> Self:
        """Return a copy with other values in some fields."""
        return msgspec.structs.replace(self, **changes)


def fields_type(**types: Any) -> Any:
    """Return the type of mappings with these keys, each with its type. Other keys are not looked at."""
    fields = (
        (name, *get_args(kind), None) if get_origin(kind) is NotRequired else (name, kind)
        for name, kind in types.items()
    )
    return msgspec.defstruct("Fields", fields, frozen=True, kw_only=True)


def to_json(value: Any) -> Any:
    """Turn a record into plain JSON data. Fields that hold their defaults are left out."""
    return msgspec.to_builtins(value)


def from_json(data: Any, kind: type[T]) -> T:
    """Turn plain JSON data into a value of a type. Integers count as floats, and nothing else is converted.

    Raises ``ValueError`` if the data, or a part of it, is not of its type, or a key is missing or unknown, and
    ``RecursionError`` if it is nested too deeply.
    """
    _decoder(kind)  # builds the type, see there
    return msgspec.convert(data, kind)


def parse_json(text: str | bytes, kind: type[T]) -> T:
    """Parse JSON as a value of a type. It refuses undecodable file names, which are escaped as lone surrogates.

    Raises as ``from_json`` does, also for text that is not JSON.
    """
    decoder: msgspec.json.Decoder[T] = _decoder(kind)
    return decoder.decode(text)


def have_keys_once(text: str, records: Sequence[Record]) -> bool:
    """Return whether no key stands twice in the JSON of a record. Of two, ``parse_json`` takes the last in silence.

    It may also return False if the text states a default, or escapes a quotation mark by its number.
    """
    return text.count('"') == msgspec.json.encode(records).count(b'"') and "\\u0022" not in text


# Held around a fork, so that a child never inherits it from a thread that it does not have
_building = threading.Lock()
os.register_at_fork(before=_building.acquire, after_in_parent=_building.release, after_in_child=_building.release)


def _new_decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """Make the decoder of a type, one at a time.

    While msgspec 0.22 builds the fields of a type, another thread that uses the type gets a part of them, and the
    process ends by SIGSEGV.
    """
    with _building:
        return msgspec.json.Decoder(kind)


_decoder: Callable[[Any], msgspec.json.Decoder[Any]] = cache(_new_decoder)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is not a finite number")
    return value


FINITE_JSON = json.JSONDecoder(parse_float=_finite, parse_constant=_finite)
"""Decoder that refuses numbers that are not finite"""
