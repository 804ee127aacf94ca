"""The findings of ``verify``, which ``repair`` accepts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True)
class Damage:
    """One finding of ``verify``."""

    kind: str
    """"damaged" or "missing" (exit code 5), or "stale", "incomplete" or "orphan" (exit code 6: data is intact)"""
    file: str
    """Path relative to the cache, or the source's path"""
    message: str
    """Text that states the expected and the found values"""
    fix_command: str
    """Command that repairs the damage, or "" if a person must repair it"""
    key: str | None = None
    """Key of the video, if one is concerned"""
    record: str | None = None
    """Record inside the file, if one is concerned"""


@dataclass(frozen=True)
class VerifyReport:
    """The result of ``verify``."""

    damage: list[Damage]
    """All findings, empty if the cache is sound"""
    num_videos: int = 0
    """Number of videos that were checked"""

    def counts(self) -> dict[str, int]:
        """Return the number of findings of each kind, such as ``num_damaged``."""
        return {f"num_{kind}": count for kind, count in sorted(Counter(each.kind for each in self.damage).items())}

    @property
    def exit_code(self) -> int:
        """0 if the cache is sound, 5 if data is damaged or missing, 6 for findings that leave all data intact."""
        kinds = {each.kind for each in self.damage}
        return 5 if kinds & {"damaged", "missing"} else 6 if kinds else 0
