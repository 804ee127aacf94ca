"""The options of a build: when it stops, what it tries again, what it trusts, what it may spend."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Literal

from chordcache.arguments import as_items, names_arguments
from chordcache.engine.limits import Limits
from chordcache.errors import UsageError
from chordcache.storage.part import Part


@names_arguments
@dataclass(frozen=True)
class BuildOptions:
    """The options of a build: when it stops, what it tries again, what it trusts, what it may spend.

    Raises
    ------
    UsageError
        If ``max_failures`` or ``prune`` is neither a count nor a share, or ``part`` is not a part.
    """

    max_failures: int | str | None = None
    """Largest number of failures in one run that does not stop the build: a count, or a share of the index such as
    "1%". 0 stops the build at the first failure"""
    retry_quarantined: bool = False
    """True to retry inputs that failed before, even if neither they nor the tools have changed"""
    rebuild: Collection[str] = frozenset()
    """Artefacts, relative to the cache, that are built again even if they look up to date"""
    wait: bool = False
    """True to wait while another process writes to the cache, instead of raising ``LockedError``"""
    follow_symlinks: bool = False
    """True to read sources behind links that lead out of their root. An index of ``scan(follow_symlinks=True)`` allows
    it too. The cache remembers it"""
    prune: int | str | None = None
    """Largest number of cached videos that the index does not name and that leave the cache after the build: a count,
    or a share of the cache such as "10%". If there are more, nothing is built: a wrong index often names few videos.
    By default all stay"""
    drop: str | tuple[str, ...] = ()
    """Features that leave the cache"""
    part: str | None = None
    """"I/N" builds the part I of N, in a cache of its own. ``merge(move=True)`` joins all parts"""
    limits: Limits = field(default_factory=Limits)
    """Limits for one input"""

    def __post_init__(self) -> None:
        object.__setattr__(self, "drop", tuple(as_items(self.drop)))
        if self.part is not None:
            Part.parse(self.part)  # raises if it names none
            if self.drop or self.prune is not None:
                name = "drop" if self.drop else "prune"
                raise UsageError(f"{name}: got it with a part, expected neither. Use it in a build of the whole cache.")
        self.limit("max_failures", 0)  # raises if the value is wrong
        self.limit("prune", 0)

    def limit(self, name: Literal["max_failures", "prune"], num_all: int) -> float:
        """Return the largest number that an option allows: of failures, or of videos that leave the cache.

        A share is one of ``num_all``, the number of videos in the index or in the cache.
        """
        value = getattr(self, name)
        if value is None:
            return float("inf")
        text = str(value).strip()
        try:
            limit = num_all * float(text[:-1]) / 100 if text.endswith("%") else int(text)
        except ValueError:
            raise UsageError(f"{name}: got '{text}', expected a count such as 10 or a share such as 1%") from None
        if not limit >= 0:
            raise UsageError(f"{name}: got '{text}', expected at least 0")
        return limit
