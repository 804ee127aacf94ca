"""The base of the sections of a config, and checks of their values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from chordcache.arguments import did_you_mean
from chordcache.errors import UsageError


class Section:
    """The settings of a feature."""

    ends: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Key to the settings that are given up when a file that is merged onto the config of a cache changes it"""

    @classmethod
    def lasting(cls, before: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings that last when ``changes`` are merged onto them."""
        changed = (key for key in cls.ends if changes.get(key, before.get(key)) != before.get(key))
        ended = {name for key in changed for name in cls.ends[key]}
        return {name: value for name, value in before.items() if name not in ended}


def check_short_side(name: str, value: int | None) -> None:
    """Raise ``UsageError`` if a value is neither None nor an even number of pixels."""
    if value is not None:
        check_number(name, value, int, 2, 16384)
        if value % 2:
            raise UsageError(f"{name}: got {value}, expected an even number")


def check_keys(prefix: str, data: Mapping[str, Any], valid: Sequence[str]) -> None:
    """Raise ``UsageError`` for the first key that is unknown. ``prefix`` is the place of the keys."""
    for key in data:
        if key not in valid:
            names = f"{', '.join(valid)}{did_you_mean(key, valid)}"
            raise UsageError(f"{prefix}{key}: got an unknown key, expected one of {names}")


def check_choice(name: str, value: Any, allowed: tuple[Any, ...]) -> None:
    """Raise ``UsageError`` if a value is not allowed."""
    if value not in allowed or type(value) is not type(allowed[0]):
        names = f"{', '.join(map(str, allowed))}{did_you_mean(value, allowed)}"
        raise UsageError(f"{name}: got {value!r}, expected one of {names}")


def check_number(name: str, value: Any, kinds: Any, low: float, high: float) -> None:
    """Raise ``UsageError`` if a value is not a number of such a kind from ``low`` to ``high``."""
    if isinstance(value, bool) or not isinstance(value, kinds) or not low <= value <= high:
        raise UsageError(f"{name}: got {value!r}, expected a number from {low} to {high}")


def check_model(name: str, value: Any) -> None:
    """Raise ``UsageError`` if a value is not text, such as the folder or the name of a model."""
    if not isinstance(value, str):
        raise UsageError(f"{name}: got {value!r}, expected a folder or a name")


def mel(hertz: float) -> float:
    """Return the place of a frequency on Slaney's mel scale, as in librosa."""
    return 3 * hertz / 200 if hertz < 1000 else 15 + 27 * math.log(hertz / 1000) / math.log(6.4)
