"""The name of this machine: the range in which ``flock`` is certain."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from chordcache.digests import hex64

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@cache
def machine() -> str:
    """Return 8 hex digits that stand for the running kernel. Its containers share them, and a reboot changes them."""
    return hex64(_BOOT_ID.read_bytes())[:8]
