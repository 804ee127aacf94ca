"""The parts of a cache that several runs build side by side, such as the tasks of a SLURM array.

The first part that starts divides the index. Each part has a folder of its own, so that parts share no file::

    parts/plan.json               the number of parts, and what they build
    parts/quarantine.jsonl        earlier failures of the videos of all parts
    parts/3-of-8/index.jsonl      the records of one part
    parts/3-of-8/quarantine.jsonl its failures
    parts/3-of-8/runs.jsonl       its runs
    parts/3-of-8/summary.json     the counts of its last run, once that is complete
    parts/3-of-8/.owner, .partial as in the folder of the cache

Sidecars and artefacts lie where a whole build puts them. ``finish`` joins the lists and removes ``parts``.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from pathlib import Path

from chordcache.errors import DamageError, NotFoundError, UnreadableError, printable
from chordcache.records import Count, Record, RunSummary
from chordcache.storage.atomic import publish_text
from chordcache.storage.part import MAX_PARTS, Part
from chordcache.storage.readable import exists, list_folder
from chordcache.storage.sealed_json import read_sealed, seal_versioned

PARTS = "parts"
"""Name of the folder in a cache"""

_PLAN = "plan.json"
_SUMMARY = "summary.json"


class PartsPlan(Record, frozen=True):
    """The facts that all parts of a cache share."""

    num_parts: Count
    index: str
    """xxh3-128 of the index file, 32 hex digits"""
    settings: str
    """Hash of the settings that decide about the content of the cache"""
    versions: Mapping[str, str]
    """Versions of the programs that decide about the content"""

    def parts(self) -> Iterator[Part]:
        """Yield all parts."""
        return (Part(number, self.num_parts) for number in range(1, self.num_parts + 1))


class PartSummary(Record, frozen=True):
    """The end of a part: its videos are cached or in quarantine."""

    counts: Mapping[str, int]
    """Counts of its last run, by their names in ``RunSummary``"""


def part_folder(cache: Path, part: Part) -> Path:
    """Return the folder of a part."""
    return cache / PARTS / part.name


def in_parts(cache: Path) -> bool:
    """Return whether a cache is being built in parts, which ``finish`` has not joined."""
    try:
        return exists(cache / PARTS / _PLAN)
    except UnreadableError as error:
        if error.errno == errno.ENOTDIR:
            return False
        raise


def is_foreign(cache: Path) -> bool:
    """Return whether a cache has a folder or file ``parts`` that chordcache did not make.

    A process that divides an index makes ``.lock`` there before any other file.
    """
    try:
        names = list_folder(cache / PARTS)
    except FileNotFoundError:
        return False
    except UnreadableError as error:
        if error.errno == errno.ENOTDIR:
            return True
        raise
    return bool(names) and not {".lock", _PLAN}.intersection(names)


def how_to_give_up(cache: Path) -> str:
    """Return the action that gives the parts of a cache up, for a message."""
    return f"remove '{printable(cache / PARTS)}' to give these parts up"


def read_plan(cache: Path) -> PartsPlan:
    """Return the plan of the parts of a cache. Raises as ``read_sealed`` does."""
    path = cache / PARTS / _PLAN
    try:
        plan = read_sealed(path, PartsPlan, "a plan of parts")
    except DamageError as error:
        raise DamageError(f"{error}; {how_to_give_up(cache)}") from None
    if not 1 <= plan.num_parts <= MAX_PARTS:
        what = f"it is not a plan of parts (num_parts is {plan.num_parts})"
        raise DamageError(f"'{printable(path)}' is damaged: {what}; {how_to_give_up(cache)}")
    return plan


def write_plan(cache: Path, plan: PartsPlan) -> None:
    """Write the plan. From now on the cache is built in parts."""
    publish_text(cache, cache / PARTS / _PLAN, seal_versioned(plan) + "\n")


def write_summary(folder: Path, counts: Mapping[str, int]) -> None:
    """Record that the run of a part is complete."""
    publish_text(folder, folder / _SUMMARY, seal_versioned(PartSummary(counts)) + "\n")


def forget_summary(folder: Path) -> None:
    """Remove the record of a complete run, since the part runs again."""
    (folder / _SUMMARY).unlink(missing_ok=True)


def read_summary(folder: Path) -> RunSummary | None:
    """Return the counts of a part, or None if the part is not complete."""
    try:
        counts = read_sealed(folder / _SUMMARY, PartSummary, "the summary of a part").counts
        return RunSummary(**{"num_inputs": 0, "num_done": 0, "num_up_to_date": 0, "num_failed": 0, **counts})
    except (NotFoundError, DamageError, TypeError):  # the part runs again
        return None
