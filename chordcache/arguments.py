"""Checks of arguments that folders share. Each error names the value and the expected values."""

from __future__ import annotations

import math
import numbers
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, cast

from chordcache.errors import UsageError

Item = TypeVar("Item", bound=str | os.PathLike[str])
Call = TypeVar("Call", bound=Callable[..., Any])

_CLIP = "'clip_sampler', such as RandomClipSampler(num_frames=16, stride=4)"
_SET = "'cache', such as chordcache.videos.indexed(index, cache)"
_MEANT: Mapping[str, tuple[str, ...]] = {
    "batch_sampler": ("'sampler'",),
    "clip_length": (_CLIP,),
    "collate_fn": ("'collate'",),
    "fps": ("'config', with frames.fps", _CLIP),
    "generator": ("'sampler'",),
    "index": (_SET,),
    "multiprocessing_context": ("'start_method'",),
    "num_frames": (_CLIP,),
    "num_threads": ("'num_workers'", "'jobs'"),
    "num_workers": ("'num_threads'", "'jobs'"),
    "on_miss": (_SET,),
    "prefetch_factor": ("'prefetch'",),
    "resolution": ("'size'", "'config', with frames.short_side"),
    "short_side": ("'config', with frames.short_side", "'crop', such as Resize(short_side=224)"),
    "split": ("'videos'",),
    "stride": (_CLIP,),
    "workers": ("'num_threads'", "'num_workers'", "'jobs'"),
}
"""Argument that a public call does not have, to those that take its place, each with how to give it"""


def names_arguments(call: Call) -> Call:
    """Let a public function or class raise ``UsageError`` for an unknown argument, with the one that was meant."""
    function: Any = vars(call).get("__init__", call)
    code = function.__code__
    valid = [name for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount] if name != "self"]

    @wraps(function)
    def checked(*args: Any, **arguments: Any) -> Any:
        for name in arguments.keys() - valid:
            hints = [f". Did you mean {hint}?" for hint in _MEANT.get(name, ()) if hint.split("'")[1] in valid]
            raise UsageError(
                f"{name}: got an argument that {call.__name__} does not have, expected one of {', '.join(valid)}"
                f"{hints[0] if hints else did_you_mean(name, valid)}"
            )
        return function(*args, **arguments)

    if function is call:
        return cast(Call, checked)
    call.__init__ = checked  # type: ignore[method-assign]
    return call


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


def absolute(path: str | os.PathLike[str]) -> Path:
    """Return the absolute path of a file or folder that a person wrote, in the same spelling each time.

    A link stays, since it may lead elsewhere on another machine. "link/.." is the folder above the link's target.
    """
    whole = Path(os.path.expanduser(path)).absolute()
    return Path(os.path.realpath(whole)) if {"..", "//"}.intersection(whole.parts) else whole


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
