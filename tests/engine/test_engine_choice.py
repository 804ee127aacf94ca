"""The choice of an engine, and the one that runs in the process itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import chordcache as cc
from chordcache.engine.choice import Engine
from chordcache.errors import UsageError


@pytest.mark.parametrize("arguments", [("none",), ("dask",), ("local", "host:1"), ("dask", "host:1", 2)])
def test_wrong_engines(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(UsageError, match=r"^(engine|address|jobs): got .*, expected"):
        Engine(*arguments)


def test_the_process_itself_builds(make_video: Callable[..., Path], tmp_path: Path) -> None:
    for number in range(4):
        make_video(tmp_path / f"videos/{number}.mp4", num_frames=12 + number)
    cc.scan([tmp_path / "videos"], output=tmp_path / "index.json", jobs=Engine("inline"))
    summary = cc.build(tmp_path / "index.json", tmp_path / "cache", jobs=Engine("inline"))
    assert summary.num_done == 4
    assert not cc.verify(tmp_path / "cache", level="deep", jobs=Engine("inline")).damage
