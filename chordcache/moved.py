"""Errors that name the new place of a module that moved, for plug-ins, configs and pickles of an earlier version."""

from __future__ import annotations

import sys
from collections.abc import Sequence

_MOVED = {
    "engine.networks": "engine.inference",
    "feature_info": "storage.feature_info",
    "features.read_sides": "features.built_in",
    "pipeline": "building or chordcache.verifying",
    "read.classes": "train.fields",
    "read.named": "train.instantiate",
    "read.on_demand": "train.misses",
    "read.sampling": "train.samplers",
    "read.sources": "sources",
    "read.text": "train.captions",
    "read.video_sets": "train.videos",
    "storage.sidecars": "storage.find_sidecars",
    "tools.report": "look.report.make",
    "train.class_names": "train.fields",
}
"""Old name to new name, without that of the package. Other modules of ``read`` kept their last name"""


class _MovedModules:
    """The last finder, which is asked for modules that no other finder has."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: object = None) -> None:
        """Raise an error for a module that moved."""
        package, _, name = fullname.partition(".")
        if package != __package__:
            return
        place = _MOVED.get(name)
        if place is None and name.startswith("read."):
            from pathlib import Path  # not for each start of the command

            folder = Path(__file__).parent
            files = folder.rglob(f"{name.removeprefix('read.')}.py")
            place = next((".".join(file.relative_to(folder).with_suffix("").parts) for file in files), None)
        if place is None:
            return
        raise ModuleNotFoundError(
            f"module: got '{fullname}', which moved, expected {package}.{place}. Import it from there.", name=fullname
        )


def name_moved_modules() -> None:
    """Raise ``ModuleNotFoundError`` with the new place of a module where an import names the old one."""
    sys.meta_path.append(_MovedModules())
