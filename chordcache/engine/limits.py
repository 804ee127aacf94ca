"""Limits of a task's time and memory."""

from __future__ import annotations

import math
from dataclasses import dataclass

from chordcache.arguments import names_arguments
from chordcache.errors import UsageError

MIN_MEMORY_BYTES = 256 << 20
"""Smallest memory limit. A worker takes 90 MiB before it opens a file, and 1 GiB at pictures of 8192 x 4320 pixels."""

_MIN_SECONDS = 0.1
_MAX_SECONDS = 1e8
_MAX_MEMORY_BYTES = 1 << 60
"""Largest limits: three years and one exbibyte. They are as good as no limit, and no system call fails with them."""


BASE_SECONDS = 300.0
_SECONDS_PER_BYTE = 60e-6
_SECONDS_PER_SECOND = 20.0
_SECONDS_PER_MEGAPIXEL_SECOND = 20.0
"""Terms of the default limit of a file: for itself, for each byte that is read, and for each second that is decoded,
and of each megapixel of its pictures. They are at least 30 times what all features without a network took"""

_BYTES_PER_SECOND = 128
_BYTES_PER_MEGAPIXEL_SECOND = 256
"""Bytes that a file must have for each second, and megapixel of a second, that its header claims. A still picture in
H.264 has twice as many"""


def seconds_for(num_bytes: int | None, seconds: float, num_pixels: int) -> float:
    """Return the time that a read may take by default. See ``progress.expect`` for the parameters."""
    seconds = max(0.0, seconds)
    megapixel_seconds = seconds * num_pixels / 1e6
    if num_bytes is not None:
        seconds = min(seconds, num_bytes / _BYTES_PER_SECOND)
        megapixel_seconds = min(megapixel_seconds, num_bytes / _BYTES_PER_MEGAPIXEL_SECOND)
    by_picture = seconds * _SECONDS_PER_SECOND + megapixel_seconds * _SECONDS_PER_MEGAPIXEL_SECOND
    return (num_bytes or 0) * _SECONDS_PER_BYTE + by_picture


def _check(name: str, value: float | None, low: float, high: float, unit: str = "") -> None:
    if value is not None and not low <= value <= high:
        got, least, most = (f"{number:,.15g}{unit}" for number in (value, low, high))
        raise UsageError(f"{name}: got {got}, expected {least} to {most}")


@names_arguments
@dataclass(frozen=True)
class Limits:
    """Limits of one input, after which it is given up.

    Raises
    ------
    UsageError
        If a limit is out of bounds.
    """

    stall_seconds: float | None = 60.0
    """[seconds] Longest time without a new packet or frame, None for no limit"""
    file_seconds: float | None = None
    """[seconds] Longest time in all, without the time to publish its results; 0 for no limit, None for 300 s and a time
    that grows with the file, see ``docs/command_line.md``"""
    memory_bytes: int | None = 2 << 30
    """[bytes] Largest size of a worker's own memory, without mapped files; None for no limit"""

    def __post_init__(self) -> None:
        _check("stall_seconds", self.stall_seconds, _MIN_SECONDS, _MAX_SECONDS)
        _check("file_seconds", self.file_seconds or None, _MIN_SECONDS, _MAX_SECONDS)
        memory_mib = None if self.memory_bytes is None else self.memory_bytes / 2**20
        _check("memory_bytes", memory_mib, MIN_MEMORY_BYTES >> 20, _MAX_MEMORY_BYTES >> 20, " MiB")

    def seconds_of_file(self, allowed_seconds: float) -> float:
        """Return the longest time of a task [seconds]. ``allowed_seconds`` is the default."""
        return allowed_seconds if self.file_seconds is None else self.file_seconds or math.inf

    def overrun(self, limit: str, place: str, allowed_seconds: float = BASE_SECONDS) -> str:
        """Return the message for a task that reached the limit "stall" or "file", the latter by default as given."""
        if limit == "stall":
            return f"no progress for {self.stall_seconds:g} s{place}{_more('--stall-timeout')}"
        seconds = self.seconds_of_file(allowed_seconds)
        kind = ", the limit of a file of its size and length" if self.file_seconds is None else ""
        return f"not done after {seconds:.4g} s{kind}{place}{_more('--file-timeout')}"

    def out_of_memory(self, message: str) -> str:
        """Return the message for a task that had too little memory."""
        return message if self.memory_bytes is None else message + _more("--file-memory")


def _more(option: str) -> str:
    return f"; allow more with {option}, and build with --retry-quarantined"


NO_LIMITS = Limits(stall_seconds=None, file_seconds=0, memory_bytes=None)
