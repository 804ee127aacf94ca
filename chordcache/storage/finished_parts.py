"""The parts of a cache that are complete, according to their run logs."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from pathlib import Path

from chordcache.errors import DamageError, UnreadableError, UsageError
from chordcache.storage.catalog_file import CATALOG
from chordcache.storage.opener import exists
from chordcache.storage.part import Part
from chordcache.storage.part_folders import folders_of
from chordcache.storage.run_log import read_runs


def attempts_of(plan: Path, part: Part) -> list[Path]:
    """Return the folders of one part, one for each machine that began it, those that are complete first."""
    return sorted(folders_of(plan, part.name), key=lambda folder: not is_done(folder))


def is_done(folder: Path) -> bool:
    """Return whether all videos of a part are cached or in quarantine: its last build came to its end."""
    with suppress(DamageError, UnreadableError, UsageError):
        last = deque((run for run in read_runs(folder) if run.command == "build"), maxlen=1)
        return bool(last) and last[0].outcome == "done" and exists(folder, CATALOG)
    return False
