"""The plan of a build: made once, printed by --dry-run, and the files of a video that it names."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers import processes
from helpers.processes import files_of, sidecars

import chordcache as cc
from chordcache.building import build_plan as plans
from chordcache.building.planning import make_plan
from chordcache.config.config import config_from_json
from chordcache.errors import UsageError
from chordcache.storage.lock import locked

pytestmark = pytest.mark.usefixtures("inline")

Cli = Callable[..., Any]

SMALL = {"frames": {"short_side": 48}, "features": {"flow": {"method": "dis", "preset": "ultrafast"}}}


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path]) -> Path:
    folder = tmp_path_factory.mktemp("plan")
    make_video(folder / "videos" / "sound.mp4", num_frames=12, size=(64, 48), audio=True)
    make_video(folder / "videos" / "silent.mp4", num_frames=9, size=(64, 48))
    cc.scan([folder / "videos"], output=folder / "index.json")
    return folder / "index.json"


def plan_of(index: Path, cache: Path, *tiers: str, **config: Any) -> plans.BuildPlan:
    options = cc.BuildOptions()
    return make_plan(cache, index, config_from_json({**SMALL, **config}), tiers, None, roots=None, options=options)


def test_a_plan_names_every_file_of_a_video(index: Path, tmp_path: Path) -> None:
    plan = plan_of(index, tmp_path / "cache", "lmdb", "npz", "hdf5", hdf5={"features": ["frames", "mel"]})
    assert [(artefact.tier, artefact.names) for artefact in plan.artefacts] == [
        ("lmdb", ("frames",)), ("npz", ("motion",)), ("npz", ("mel",)), ("npz", ("flow",)), ("hdf5", ("frames", "mel")),
    ]  # fmt: skip
    assert not (tmp_path / "cache").exists()
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.config = None  # type: ignore[misc,assignment]


def test_a_dropped_feature_needs_no_source(tmp_path: Path, make_video: Callable[..., Path]) -> None:
    source = make_video(tmp_path / "videos" / "a.mp4", num_frames=8, size=(64, 48), audio=True)
    cache = tmp_path / "cache"
    index = cc.scan([tmp_path / "videos"])
    cc.build(index, cache, tiers=["npz"], config=config_from_json(SMALL))
    source.unlink()
    drop = cc.BuildOptions(drop="mel")
    assert cc.build(index, cache, options=drop).num_up_to_date == 1
    assert [feature["feature"] for feature in sidecars(cache)["a.mp4"]["features"]] == ["flow", "motion"]


# The dry run


def test_dry_run_states_what_the_build_does(index: Path, tmp_path: Path, run_cli: Cli) -> None:
    (tmp_path / "small.yaml").write_text(yaml.dump(SMALL))
    cache = tmp_path / "cache"
    command = ("build", index, "-o", cache, "-c", tmp_path / "small.yaml", "--tier", "lmdb", "--tier", "npz")
    first = run_cli(*command, "--dry-run")
    assert (first.returncode, first.stderr) == (0, "")
    assert first.stdout.startswith(f"would build 2 of 2 videos into {cache} (up to date 0, failed before 0)\n")
    assert [line.split("  ")[0] for line in first.stdout.splitlines()[1:6]] == [
        "2 videos", "frames in lmdb", "motion in npz", "mel in npz", "flow in npz",
    ]  # fmt: skip
    assert '"preset": "ultrafast"' in first.stdout
    assert not cache.exists()
    assert run_cli(*command).returncode == 0
    before = files_of(cache)
    again = json.loads(run_cli(*command, "--dry-run", "--json").stdout)
    assert (again["num_missing"], again["num_up_to_date"], again["num_failed"]) == (0, 2, 0)
    assert again["features"]["lmdb"]["frames"]["picture"]["short_side"] == 48
    assert again["features"]["npz"]["flow"]["method"] == "dis"
    assert files_of(cache) == before


def test_dry_run_refuses_a_root_of_another_folder(index: Path, tmp_path: Path, make_video: Callable[..., Path]) -> None:
    cache = tmp_path / "cache"
    cc.build(index, cache, features=["frames"], jobs=1)
    folder = tmp_path / "others" / Path(next(iter(cc.read_index(index).roots.values()))).name
    make_video(folder / "z.mp4", num_frames=3)
    other = cc.scan([folder], output=tmp_path / "other.json").path
    for function in (cc.dry_run, cc.build):
        with pytest.raises(UsageError, match="^root '.*' of this cache is"):
            function(other, cache)


def test_a_build_that_waited_plans_again(index: Path, tmp_path: Path, make_video: Callable[..., Path]) -> None:
    make_video(tmp_path / "more/z.mp4", num_frames=3)
    cc.scan([tmp_path / "more"], output=tmp_path / "index.json")
    with contextlib.ExitStack() as stack:
        with locked(tmp_path / "cache"):
            run = stack.enter_context(processes.running(tmp_path, "build", "index.json", "--wait"))
            assert processes.wait_until(lambda: "waiting until it ends" in run.stderr, 60)
            make_video(tmp_path / "more/y.mp4", num_frames=3)
            cc.scan([tmp_path / "more"], output=tmp_path / "index.json")
        assert run.wait(60) == 0, run.stderr
    assert len(cc.open_cache(tmp_path / "cache")) == 2


def test_dry_run_counts_failures(tmp_path: Path, make_video: Callable[..., Path], run_cli: Cli) -> None:
    make_video(tmp_path / "videos" / "a.mp4", num_frames=3, size=(64, 48))
    (tmp_path / "videos" / "bad.mp4").write_bytes(b"\0" * 5000)
    cc.scan([tmp_path / "videos"], output=tmp_path / "index.json")
    command = ("build", tmp_path / "index.json", "-o", tmp_path / "cache", "--dry-run", "--json")
    counts = json.loads(run_cli(*command).stdout)
    assert (counts["num_inputs"], counts["num_missing"], counts["num_failed"]) == (2, 1, 1)
    counts = json.loads(run_cli(*command, "--retry-quarantined").stdout)
    assert (counts["num_missing"], counts["num_failed"]) == (2, 0)
