"""The choice of an engine, and the one that runs in the process itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import chordcache as cc
from chordcache.engine import pool
from chordcache.engine.choice import Engine
from chordcache.errors import UsageError
from chordcache.tools.doctor import diagnose


@pytest.mark.parametrize("arguments", [("none",), ("dask",), ("local", "host:1"), ("dask", "host:1", 2)])
def test_wrong_engines(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(UsageError, match=r"^(engine|jobs): got .*, expected"):
        Engine(*arguments)


STOPPED = """
import os, signal
import numpy as np
from chordcache.features.base import Extractor

class Stopped(Extractor):
    def add_frame(self, frame):
        if frame.number == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return {self.name: np.zeros((1, 1))}
"""


def test_a_signal_in_an_extractor_stops_the_process_itself(
    make_video: Callable[..., Path], run_process: Callable[..., Any], tmp_path: Path
) -> None:
    """It is not taken for a fault of the extractor, which puts the video into quarantine."""
    make_video(tmp_path / "videos" / "a.mp4", num_frames=8)
    (tmp_path / "stopped.py").write_text(STOPPED)
    (tmp_path / "config.yaml").write_text("features: {mine: {extractor: 'stopped:Stopped'}}\n")
    cc.scan([tmp_path / "videos"], output=tmp_path / "index.json", jobs=Engine("inline"))
    args = ("build", "index.json", "-o", "cache", "-c", "config.yaml", "--features", "mine", "--engine", "inline")
    done = run_process(*args, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 143, done.stderr
    assert not (tmp_path / "cache" / "quarantine.jsonl").exists()


@pytest.mark.parametrize(("jobs", "expected"), [(None, 8), (1, 1), (20, 20), (-1, 8), (-2, 7), (-8, 1), (-100, 1)])
def test_negative_numbers_of_jobs_are_those_of_joblib(
    monkeypatch: pytest.MonkeyPatch, jobs: int | None, expected: int
) -> None:
    monkeypatch.setattr("joblib.cpu_count", lambda: 8)
    assert pool.default_jobs(jobs) == expected


def test_all_processors_do_the_work_of_minus_one(make_video: Callable[..., Path], tmp_path: Path) -> None:
    """A scan replaced a good index by an empty one, and a verification found nothing in a damaged cache."""
    assert pool.default_jobs(-1) == pool.default_jobs() == pool.prepared(Engine(jobs=-1)).jobs
    make_video(tmp_path / "videos/a.mp4", num_frames=4)
    assert len(cc.scan([tmp_path / "videos"], output=tmp_path / "index.json", jobs=-1)) == 1
    assert cc.build(tmp_path / "index.json", tmp_path / "cache", features=["frames"], jobs=-2).num_done == 1
    (artefact,) = (tmp_path / "cache/lmdb").glob("*/*.lmdb")
    artefact.unlink()
    report = cc.verify(tmp_path / "cache", jobs=-100)
    assert [finding.kind for finding in report.damage] == ["missing"]
    assert cc.repair(tmp_path / "cache", report.damage, jobs=-1).num_done == 1


@pytest.mark.parametrize("jobs", [0, 1.5, True, False, "2"])
def test_what_is_not_a_number_of_jobs(make_video: Callable[..., Path], tmp_path: Path, jobs: Any) -> None:
    make_video(tmp_path / "videos/a.mp4", num_frames=4)
    index = cc.scan([tmp_path / "videos"], output=tmp_path / "index.json", jobs=1)
    before = (tmp_path / "index.json").read_bytes()
    cc.build(index, tmp_path / "cache", features=["frames"], jobs=1)
    calls: list[Callable[[], object]] = [
        lambda: cc.scan([tmp_path / "videos"], output=tmp_path / "index.json", jobs=jobs),
        lambda: cc.build(index, tmp_path / "cache", jobs=jobs),
        lambda: cc.verify(tmp_path / "cache", jobs=jobs),
        lambda: cc.verify(tmp_path / "cache", level="quick", jobs=jobs),
        lambda: cc.repair(tmp_path / "cache", [], jobs=jobs),
        lambda: cc.dry_run(index, tmp_path / "new", jobs=jobs),
        lambda: diagnose(tmp_path, jobs=jobs),
    ]
    for call in calls:
        with pytest.raises(
            UsageError, match=r"^jobs: got .*, expected an integer of at least 1, or -1 for one for each"
        ):
            call()
    assert (tmp_path / "index.json").read_bytes() == before
