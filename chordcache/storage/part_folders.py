"""The parts of a cache, which several processes build side by side, such as the tasks of a SLURM array.

Each part is a cache of its own, with one writer on one machine::

    parts/<plan>/plan.json               what all parts of a run share
    parts/<plan>/index.jsonl             the index, as it was given
    parts/<plan>/<I>-of-<N>.<machine>/   part I: its header, index, sidecars, artefacts, quarantine and run log
    parts/<plan>/<I>-of-<N>.<machine>.log   its progress, if a driver started it

``<plan>`` is a hash of ``plan.json``, so parts of another index or with other settings lie elsewhere. A part that goes
on on another machine has another folder there: ``flock`` is certain only on one machine.
"""

from __future__ import annotations

import errno
import fnmatch
import json
import re
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from chordcache.digests import hex64
from chordcache.errors import DamageError, UnreadableError, UsageError, printable
from chordcache.json_records import Record
from chordcache.storage.catalog_file import CATALOG
from chordcache.storage.layout import PARTS
from chordcache.storage.opener import exists, list_folder
from chordcache.storage.part import Part
from chordcache.storage.run_log import read_runs
from chordcache.storage.sealed_json import read_sealed

PLAN_FILE = "plan.json"


class PartsPlan(Record, frozen=True):
    """The facts that all parts of a run share."""

    num_parts: int
    facts: Mapping[str, str]
    """Name to value of all that decides about the content: the index, the settings, the versions of the programs"""

    @property
    def name(self) -> str:
        """Name of its folder."""
        return hex64(json.dumps([self.num_parts, dict(self.facts)], sort_keys=True).encode())

    def parts(self) -> Iterator[Part]:
        """Yield all parts."""
        return (Part(number, self.num_parts) for number in range(1, self.num_parts + 1))


def read_plan(folder: Path) -> PartsPlan:
    """Return the plan of a folder of parts. Raises as ``read_sealed`` does."""
    try:
        return read_sealed(folder, PLAN_FILE, PartsPlan, "a plan of parts")
    except DamageError as error:
        raise DamageError(f"{error}; {how_to_give_up(folder.parent.parent)}") from None


def is_plan_name(name: str) -> bool:
    """Return whether the folder of a plan has such a name."""
    return re.fullmatch(r"[0-9a-f]{16}", name) is not None


def plan_folders(cache: Path) -> list[Path]:
    """Return the folders of the plans whose parts are not joined yet."""
    try:
        names = list_folder(cache, PARTS)
    except FileNotFoundError:
        return []
    except UnreadableError as error:
        if error.errno == errno.ENOTDIR:
            return []
        raise
    plans = (f"{PARTS}/{name}" for name in names if is_plan_name(name))
    return [cache / plan for plan in plans if exists(cache, f"{plan}/{PLAN_FILE}")]


def holds_plans(cache: Path) -> bool:
    """Return whether a folder of parts has folders of plans only, some of which may not be complete."""
    try:
        return all(map(is_plan_name, list_folder(cache, PARTS)))
    except UnreadableError:  # a file of that name, for example
        return False


def in_parts(cache: Path) -> bool:
    """Return whether a cache is being built in parts, which ``finish`` has not joined."""
    return bool(plan_folders(cache))


def folders_of(plan: Path, parts: str = "*-of-*") -> list[Path]:
    """Return the folders of parts of a plan, by a pattern of names. Raises ``UnreadableError`` if one is a link."""
    names = fnmatch.filter(list_folder(plan), f"{parts}.????????")
    for name in names:
        list_folder(plan, name)
    return [plan / name for name in names]


def attempts_of(plan: Path, part: Part) -> list[Path]:
    """Return the folders of one part, one for each machine that began it, those that are complete first."""
    return sorted(folders_of(plan, part.name), key=lambda folder: not is_done(folder))


def is_done(folder: Path) -> bool:
    """Return whether all videos of a part are cached or in quarantine: its last build came to its end."""
    with suppress(DamageError, UnreadableError, UsageError):
        last = deque((run for run in read_runs(folder) if run.command == "build"), maxlen=1)
        return bool(last) and last[0].outcome == "done" and exists(folder, CATALOG)
    return False


def how_to_give_up(cache: Path) -> str:
    """Return the action that gives the parts of a cache up, for a message."""
    return f"remove '{printable(cache / PARTS)}' to give these parts up"
