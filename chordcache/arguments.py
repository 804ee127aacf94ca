"""Checks of arguments that folders share. Each error names the value and the expected values."""

from __future__ import annotations

import math
import numbers
import os
import re
from collections.abc import Collection, Iterable, Sequence
from typing import TypeVar

from chordcache.errors import UsageError

Item = TypeVar("Item", bound=str | os.PathLike[str])


def check_at_least(least: int, **values: object) -> None:
    """Raise ``UsageError`` for the first value that is not an integer, or is too small."""
    for name, value in values.items():
        if type(value) is int and value >= least:  # at once: a look at other classes of integers takes longer
            continue
        if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
            raise UsageError(f"{name}: got {value!r}, expected an integer of at least {least}")


def check_positive(**values: object) -> None:
    """Raise ``UsageError`` for the first value that is not a number above 0."""
    for name, value in values.items():
        if not isinstance(value, (int, float)) or not 0 < value < math.inf:
            raise UsageError(f"{name}: got {value!r}, expected a number above 0")


def check_choice(valid: Collection[str], **values: object) -> None:
    """Raise ``UsageError`` for the first value that is not one of those that are valid."""
    for name, value in values.items():
        if value not in valid:
            raise UsageError(f"{name}: got {value!r}, expected one of {', '.join(valid)}")


def check_share(**values: object) -> None:
    """Raise ``UsageError`` for the first value that is not a number in [0, 1]."""
    for name, value in values.items():
        if not isinstance(value, (int, float)) or not 0 <= value <= 1:
            raise UsageError(f"{name}: got {value!r}, expected a number in [0, 1]")


def check_range(name: str, values: tuple[float, float], *, most: float | None = None) -> None:
    """Raise ``UsageError`` if two numbers are not (least, most), above 0 and at most ``most``."""
    is_pair = isinstance(values, (tuple, list)) and len(values) == 2
    is_pair = is_pair and all(isinstance(value, numbers.Real) for value in values)
    if not (is_pair and 0 < values[0] <= values[1] < math.inf and (most is None or values[1] <= most)):
        limit = "" if most is None else f", at most {most}"
        raise UsageError(f"{name}: got {values!r}, expected (least, most), above 0{limit}")


_FACTORS = {None: 1, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}


def parsed_bytes(text: str, name: str) -> float:
    """Return the number of bytes that a text with a unit states. Raises ``UsageError``, which begins with ``name``.

    Examples
    --------
    >>> parsed_bytes("400GB", "limit"), parsed_bytes("1.5 KiB", "limit")
    (400000000000.0, 1536.0)
    """
    match = re.fullmatch(r"(\d+(?:\.\d*)?)\s*(?:([KMGT]I?)B?|B)", text.strip().upper())
    if not match:
        raise UsageError(f"{name}: got '{text}', expected a size with a unit, such as 400GB or 1.5TiB")
    return float(match[1]) * _FACTORS[match[2]]


def checked_size(size: object, *, otherwise: str = "") -> tuple[int, int]:
    """Return a size as a tuple, or raise ``UsageError``. ``otherwise`` names other values for the message."""
    if isinstance(size, (tuple, list)) and len(size) == 2 and all(isinstance(n, int) and n > 0 for n in size):
        return size[0], size[1]
    raise UsageError(f"size: got {size!r}, expected (height, width) in pixels{otherwise}")


def checked_names(argument: str, names: str | Iterable[str], what: str) -> tuple[str, ...]:
    """Return names as a tuple. Raise ``UsageError`` if they are not distinct strings. One string is one name."""
    given = tuple(as_items(names))
    if not all(isinstance(name, str) for name in given) or len(set(given)) < len(given):
        raise UsageError(f"{argument}: got {names!r}, expected a sequence of distinct {what}")
    return given


def as_items(value: Item | Iterable[Item]) -> Sequence[Item]:
    """Return the strings or paths of an argument that takes several. One string or path is one item.

    Examples
    --------
    >>> as_items("lmdb"), as_items(("lmdb", "npz"))
    (('lmdb',), ('lmdb', 'npz'))
    """
    return (value,) if isinstance(value, (str, os.PathLike)) else tuple(value)


def did_you_mean(got: object, valid: Iterable[object]) -> str:
    """Return the end of an error message about a name that does not exist, "" if no valid name is like the wrong one.

    Examples
    --------
    >>> did_you_mean("lmbd", ("lmdb", "npz", "hdf5"))
    ". Did you mean 'lmdb'?"
    >>> did_you_mean("tape", ("lmdb", "npz", "hdf5"))
    ''
    """
    import difflib  # not before: a correct command does not need it

    names = {str(name).lower(): str(name) for name in valid}
    close = difflib.get_close_matches(str(got).lower(), names, n=1)
    return f". Did you mean '{names[close[0]]}'?" if close else ""
