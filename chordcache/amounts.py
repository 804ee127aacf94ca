"""Amounts as people read them: bytes and times with a unit, and lists that end early."""

from __future__ import annotations

from collections.abc import Sequence

_UNITS = ("kB", "MB", "GB", "TB", "PB")


def human_bytes(num_bytes: float) -> str:
    """Return a number of bytes with three digits and a decimal unit.

    Examples
    --------
    >>> [human_bytes(value) for value in (0, 999, 1000, 15_237_120, 999_999, 2.5e15)]
    ['0 B', '999 B', '1 kB', '15.2 MB', '1 MB', '2.5 PB']
    """
    if num_bytes < 1000:
        return f"{num_bytes:.0f} B"
    number, value = 0, num_bytes / 1000
    while value >= 999.5 and number < len(_UNITS) - 1:
        number, value = number + 1, value / 1000
    return f"{value:.3g} {_UNITS[number]}" if value < 999.5 else f"{value:.0f} {_UNITS[number]}"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun.

    Examples
    --------
    >>> counted(1, "video"), counted(1204, "cached video"), counted(0, "batch")
    ('1 video', '1,204 cached videos', '0 batches')
    """
    plural = "es" if noun.endswith("ch") else "s"
    return f"{number:,} {noun}{plural * (number != 1)}"


def unit_of(seconds: float) -> tuple[float, str]:
    """Return the unit in which a time reads well [seconds], and its name."""
    if seconds < 60:
        return 1.0, "s"
    return (60.0, "min") if seconds < 3600 else (3600.0, "h")


def duration(seconds: float) -> str:
    """Return a time for people, such as "41 min"."""
    unit, name = unit_of(seconds)
    return f"{seconds / unit:,.1f} {name}" if name == "h" else f"{seconds / unit:.0f} {name}"


def exact_duration(seconds: float) -> str:
    """Return a time with three digits and a unit, such as "1.53 s"."""
    unit, name = unit_of(seconds)
    return f"{seconds / unit:.3g} {name}" if seconds < 1000 * unit else f"{seconds / unit:.0f} {name}"


def first_few(texts: Sequence[str], count: int) -> list[str]:
    """Return at most ``count`` texts. If there are more, a last one says how many.

    Examples
    --------
    >>> first_few(["a", "b", "c", "d"], 2)
    ['a', 'b', '... and 2 more']
    """
    rest = len(texts) - count
    return [*texts[:count], f"... and {rest:,} more"] if rest > 0 else list(texts)


def shortened(text: str, length: int) -> str:
    """Return a text of at most ``length`` characters. A longer one ends with its length.

    Examples
    --------
    >>> shortened("a caption of many words", 20)
    'a ca... (23 letters)'
    """
    if len(text) <= length:
        return text
    end = f"... ({len(text):,} letters)"
    return text[: max(0, length - len(end))] + end
