"""Spellings of the path of a cache, as a person types them."""

from __future__ import annotations

from pathlib import Path

import pytest

SPELLINGS = ("../cache", ".././/cache/", "{}/here/../cache", "/{}/cache", "~/cache", "link", "away/../cache")
"""Each is of the folder ``cache`` beside the working folder. "{}" is the folder that has both"""


def work_beside(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a working folder with links, and enter it. ``away/..`` is the folder above the target of a link."""
    work = folder / "here"
    for path in (work, folder / "target"):
        path.mkdir(exist_ok=True)
    for name, target in (("link", "cache"), ("away", "target")):
        if not (work / name).is_symlink():
            (work / name).symlink_to(folder / target)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.chdir(work)
    return work
