"""Errors that name the new place of a module that moved, for plug-ins, configs and pickles of an earlier version."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path

_MOVED = {
    "pipeline": "building or chordcache.verifying",
    "read.classes": "train.class_names",
    "read.named": "train.instantiate",
    "read.on_demand": "train.misses",
    "read.sampling": "train.samplers",
    "read.sources": "sources",
    "read.text": "train.captions",
    "read.video_sets": "train.videos",
    "tools.report": "look.report",
}
"""Old name to new name, without that of the package. Other modules of ``read`` kept their last name"""


class _MovedModules(MetaPathFinder):
    """The last finder, which is asked for modules that no other finder has."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: object = None) -> ModuleSpec | None:
        package, _, name = fullname.partition(".")
        if package != __package__:
            return None
        place = _MOVED.get(name)
        if place is None and name.startswith("read."):
            folder = Path(__file__).parent
            files = folder.rglob(f"{name.removeprefix('read.')}.py")
            place = next((".".join(file.relative_to(folder).with_suffix("").parts) for file in files), None)
        if place is None:
            return None
        raise ModuleNotFoundError(
            f"module: got '{fullname}', which moved, expected {package}.{place}. Import it from there.", name=fullname
        )


def name_moved_modules() -> None:
    """Raise ``ModuleNotFoundError`` with the new place of a module where an import names the old one."""
    sys.meta_path.append(_MovedModules())
