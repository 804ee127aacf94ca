"""The findings of ``verify``, which ``repair`` accepts, and those of ``leaks``."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from chordcache.errors import DamageError, StorageError, printable


@dataclass(frozen=True)
class Damage:
    """One finding of ``verify``."""

    kind: str
    """"damaged" or "missing" (exit code 5), "unreadable" (15: a person must let this process read the file), or
    "stale", "incomplete", "orphan", "leak" of two splits or "another" than a passport says (6: data is intact)"""
    file: str
    """Path relative to the cache, or the source's path"""
    message: str
    """Text that states the expected and the found values"""
    fix_command: str
    """Command that repairs the damage, or "" if a person must repair it"""
    key: str | None = None
    """Key of the video, if the finding is about one"""
    record: str | None = None
    """Record inside the file, if one is concerned"""
    count: int = 1
    """Number of videos. All that are not built yet for one reason are one finding"""

    def __str__(self) -> str:
        """Return the finding as people read it, without its kind."""
        record = f", record {printable(self.record)}" if self.record else ""
        what = f"'{printable(self.file)}'{record}: {printable(self.message)}"
        return f"{what}; run '{printable(self.fix_command)}'" if self.fix_command else what


@dataclass(frozen=True)
class VerifyReport:
    """The result of ``verify``."""

    damage: list[Damage]
    """All findings, empty if the cache is sound"""
    num_videos: int = 0
    """Number of videos that were checked"""
    part: str | None = None
    """The part I/N that was checked, or None for the whole cache"""
    notes: tuple[str, ...] = ()
    """Remarks for people about what could not be checked. They are not damage"""

    def counts(self) -> dict[str, int]:
        """Return the counts of the findings of each kind, such as ``num_damaged``."""
        counts: Counter[str] = Counter()
        for finding in self.damage:
            counts[f"num_{finding.kind}"] += finding.count
        return dict(sorted(counts.items()))

    @property
    def exit_code(self) -> int:
        """0 if the cache is sound; else the first of: 5, data is damaged or missing; 15, a file cannot be read; 6."""
        kinds = {finding.kind for finding in self.damage}
        if kinds & {"damaged", "missing"}:
            return DamageError.exit_code
        return StorageError.exit_code if "unreadable" in kinds else 6 if kinds else 0


@dataclass(frozen=True)
class Leak:
    """Two videos that show the same seconds."""

    train: str
    """Key of the video in the first split"""
    val: str
    """Key of the video in the second split"""
    train_path: str
    """Path of that video, relative to its root"""
    val_path: str
    train_seconds: tuple[float, float]
    """[seconds from the first frame] Begin and end of the stretch, to about half a second"""
    val_seconds: tuple[float, float]
    """The same stretch in the other video"""
    is_mirrored: bool = False
    """True if one of the two shows the mirrored pictures"""
    similarity: float | None = 1.0
    """Correlation of the changes of the pictures [0.6 to 1], or None if a video has no cached frames to compare"""

    def __str__(self) -> str:
        """Return it as people read it."""
        spans = [f"{start:.1f} to {end:.1f} s" for start, end in (self.train_seconds, self.val_seconds)]
        how = f"similarity {self.similarity:.2f}" if self.similarity is not None else "by hashes alone"
        return f"{spans[0]} is {spans[1]} of '{self.val_path}'{', mirrored' if self.is_mirrored else ''} ({how})"
