"""Two drivers of one cache at once: one builds at a time, and no work of the other one is lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from helpers import clusters, processes
from helpers.cluster_builds import Material, num_built, num_starts, run, sidecars, started
from helpers.faulty_extractor import STARTS

import chordcache as cc

pytestmark = [pytest.mark.timeout(400), pytest.mark.slow]

Start = Callable[..., clusters.Cluster]


@pytest.mark.trials(10)
def test_two_drivers_with_the_same_settings(trial: int, small_material: Material, start: Start, tmp_path: Path) -> None:
    """The second one waits, and finds all videos up to date. Without --wait, it ends."""
    cluster = start("dask", [{}, {}], **{STARTS: str(tmp_path / "starts")})
    cache = tmp_path / "cache"
    command = small_material.command(cache, cluster, "--parts", "3")
    with started([*command, "--wait"]) as first, started([*command, "--wait"]) as second:
        assert processes.wait_until(lambda: num_built(cache) >= 1, 120)
        refused = run(command)
        outputs = [driver.communicate(timeout=300) for driver in (first, second)]
    assert (refused.returncode, "is being written by process" in refused.stderr) == (11, True), refused.stderr
    assert [first.returncode, second.returncode] == [3, 3], outputs
    assert all(processes.fine(stderr) for _, stderr in outputs)
    assert sum(f"done {small_material.num_good}, up to date 0" in stdout for stdout, _ in outputs) == 1, outputs
    assert num_starts(tmp_path / "starts")[0] == small_material.num_good
    small_material.check_built(cache)


@pytest.mark.trials(10)
def test_two_drivers_with_other_settings(trial: int, small_material: Material, start: Start, tmp_path: Path) -> None:
    """The second one waits until the first one has finished the cache, and then adds to it."""
    cluster = start("dask", [{}, {}], **{STARTS: str(tmp_path / "starts")})
    cache = tmp_path / "cache"
    where = ["--engine", cluster.engine, "--address", cluster.address, "--wait"]
    with started(small_material.command(cache, cluster)) as first:
        assert processes.wait_until(lambda: num_built(cache) >= 1, 120)
        more = small_material.plain_command(cache, "--tier", "npz", "--features", "motion", *where)
        with started(more) as second:
            outputs = [driver.communicate(timeout=300) for driver in (first, second)]
    assert (first.returncode, second.returncode) == (3, 3), outputs
    assert num_starts(tmp_path / "starts")[0] == small_material.num_good
    features = {path: {info["feature"] for info in data["features"]} for path, data in sidecars(cache).items()}
    assert len(features) == small_material.num_good + 2  # the videos whose other features fail have motion
    assert sum({"frames", "mine", "motion"} <= names for names in features.values()) == small_material.num_good
    assert not cc.verify(cache, level="deep", jobs=1).damage
