"""Limits of a task's time and memory."""

from __future__ import annotations

from dataclasses import dataclass

from chordcache.errors import UsageError

MIN_MEMORY_BYTES = 256 << 20
"""Smallest memory limit. A worker takes 90 MiB before it opens a file, and 1 GiB at pictures of 8192 x 4320 pixels."""

_MIN_SECONDS = 0.1
_MAX_SECONDS = 1e8
_MAX_MEMORY_BYTES = 1 << 60
_MAX_RETRIES = 1000
"""Largest limits: three years, one exbibyte and a thousand retries. They are as good as no limit, and no system call
fails with them."""


def _check(name: str, value: float | None, low: float, high: float, unit: str = "") -> None:
    if value is not None and not low <= value <= high:
        raise UsageError(f"{name}: got {value:g}{unit}, expected {low:g} to {high:g}{unit}")


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
    """[seconds] Longest time in all, without the time to publish its results; None for no limit"""
    memory_bytes: int | None = 2 << 30
    """[bytes] Largest size of a worker's own memory, without mapped files; None for no limit"""
    retries: int = 1
    """Number of attempts after the first one, if memory, time or the disk of the sources was the problem"""

    def __post_init__(self) -> None:
        _check("stall_seconds", self.stall_seconds, _MIN_SECONDS, _MAX_SECONDS)
        _check("file_seconds", self.file_seconds, _MIN_SECONDS, _MAX_SECONDS)
        memory_mib = None if self.memory_bytes is None else self.memory_bytes / 2**20
        _check("memory_bytes", memory_mib, MIN_MEMORY_BYTES >> 20, _MAX_MEMORY_BYTES >> 20, " MiB")
        _check("retries", self.retries, 0, _MAX_RETRIES)

    def overrun(self, limit: str, place: str) -> str:
        """Return the message for a task that reached the limit "stall" or "file"."""
        if limit == "stall":
            return f"no progress for {self.stall_seconds:g} s{place}{_more('--stall-timeout')}"
        return f"not done after {self.file_seconds:g} s{place}{_more('--file-timeout')}"

    def out_of_memory(self, message: str) -> str:
        """Return the message for a task that had too little memory."""
        return message if self.memory_bytes is None else message + _more("--file-memory")


def _more(option: str) -> str:
    return f"; allow more with {option}, and build with --retry-quarantined"


NO_LIMITS = Limits(stall_seconds=None, memory_bytes=None, retries=0)
