"""The commands that findings of ``verify`` name."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from chordcache.storage.part_folders import in_parts


def repair_command(cache: Path) -> str:
    """Return the command that builds damaged and missing data of a cache again."""
    return f"chordcache verify --repair {_shell(cache)}"


def problems_command(cache: Path) -> str:
    """Return the command that lists the failures of a cache."""
    return f"chordcache info {_shell(cache)} --problems"


def gc_command(cache: Path) -> str:
    """Return the command that removes the files of a cache that no sidecar names."""
    return f"chordcache gc {_shell(cache)}"


def build_command(cache: Path, tiers: Iterable[str], features: Iterable[str] = ()) -> str:
    """Return the command that builds what a cache lacks, in some tiers and, if any are given, of some features."""
    options = "".join(f" --tier {tier}" for tier in tiers)
    if names := ",".join(features):
        options += f" --features {names}"
    return f"chordcache build {_shell(cache / 'index.jsonl')} -o {_shell(cache)}{options}"


def completing_command(cache: Path, tiers: Iterable[str]) -> str:
    """Return the command that completes a cache: a build, or of a cache in parts, the one that names missing parts."""
    return f"chordcache finish {_shell(cache)}" if in_parts(cache) else build_command(cache, tiers)


def _shell(path: Path) -> str:
    return _quoted(path, os.getcwd())


@cache
def _quoted(path: Path, start: str) -> str:
    relative = os.path.relpath(path, start)
    return shlex.quote(str(path) if relative.startswith("..") else relative)
