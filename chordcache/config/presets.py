"""The presets: configs that ship with the package and have a name, such as ``flow``."""

from __future__ import annotations

import os
from pathlib import Path

_FOLDERS = (Path(__file__).parent.parent / "configs", Path(__file__).parent.parent.parent / "configs")
"""Folder in a wheel, and folder in a clone of the repository"""


def _folder() -> Path:
    return next((folder for folder in _FOLDERS if folder.is_dir()), _FOLDERS[0])


def preset_names() -> tuple[str, ...]:
    """Return the names of all presets, sorted."""
    return tuple(sorted(path.stem for path in _folder().glob("*.yaml")))


def preset_path(name: str) -> Path:
    """Return the YAML file of a preset."""
    return _folder() / f"{name}.yaml"


def preset_summary(name: str) -> str:
    """Return the first line of a preset's file, which is a comment that says what it is for."""
    with preset_path(name).open(encoding="utf-8") as file:
        return file.readline().removeprefix("#").strip()


def is_preset_like(path: str | os.PathLike[str]) -> bool:
    """Return whether a path that does not exist could be the name of a preset: a word without folder and suffix."""
    text = os.fspath(path)
    return "/" not in text and not os.path.splitext(text)[1] and text not in ("", ".", "..")
