"""How a build goes about its work: when it gives up, what it does again, what it trusts, what it spends."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field

from chordcache.engine.limits import Limits
from chordcache.errors import UsageError


@dataclass(frozen=True)
class BuildOptions:
    """How a build goes about its work: when it gives up, what it does again, what it trusts.

    Raises
    ------
    UsageError
        If ``max_failures`` is neither a count nor a share.
    """

    max_failures: int | str | None = None
    """Stop after more failures than this in one run: a count, or a share of the index such as "1%"; 0 is the first"""
    retry_quarantined: bool = False
    """Try inputs again that failed before, though neither they nor the tools have changed"""
    rebuild: Container[str] = frozenset()
    """Artefacts, relative to the cache, that are built again though they look up to date"""
    wait: bool = False
    """Wait while another process writes to the cache, instead of raising ``LockedError``"""
    follow_symlinks: bool = False
    """Read sources behind links that lead out of their root, as an index of ``scan(follow_symlinks=True)`` allows by
    itself; the cache remembers it"""
    source_hash: bool = False
    """Keep a hash of each source's bytes, for ``verify(source=True)``; sources that are cached already are hashed as
    they are now. The cache remembers it"""
    limits: Limits = field(default_factory=Limits)
    """What one input may cost"""

    def __post_init__(self) -> None:
        self.limit(0)  # says what is wrong with it

    def limit(self, num_inputs: int) -> float:
        """The number of failures that is still borne."""
        text = str(self.max_failures).strip()
        try:
            if self.max_failures is None:
                return float("inf")
            limit = num_inputs * float(text[:-1]) / 100 if text.endswith("%") else int(text)
        except ValueError:
            raise UsageError(f"max_failures: got '{text}', must be a count such as 10 or a share such as 1%") from None
        if not limit >= 0:
            raise UsageError(f"max_failures: got '{text}', must not be negative")
        return limit
