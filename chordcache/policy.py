"""When a build gives up, and what it does again."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from chordcache.errors import UsageError


@dataclass(frozen=True)
class BuildPolicy:
    """When a build gives up, and what it does again."""

    max_failures: int | str | None = None
    """Stop after more failures than this in one run: a count, or a share of the index such as "1%"; 0 is the first"""
    retry_quarantined: bool = False
    """Try inputs again that failed before, though neither they nor the tools have changed"""
    rebuild: Container[str] = frozenset()
    """Artefacts, relative to the cache, that are built again though they look up to date"""

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
