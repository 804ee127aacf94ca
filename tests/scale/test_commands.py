"""Several builds on one cluster do not disturb each other."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers import clusters, processes
from helpers.cluster_builds import Material, num_starts, run, sidecars, started, write_config
from helpers.faulty_extractor import STARTS

pytestmark = [pytest.mark.timeout(400), pytest.mark.slow]

Start = Callable[..., clusters.Cluster]


def command(cluster: clusters.Cluster, *arguments: object) -> list[str]:
    where = ["--engine", f"{cluster.engine}={cluster.address}"]
    return [sys.executable, "-m", "chordcache", *map(str, arguments), *where]


@pytest.mark.parametrize("engine", ["dask", "ray"])
def test_two_builds_at_once_on_one_cluster(engine: str, small_material: Material, start: Start, tmp_path: Path) -> None:
    """A video of the first build waits while the second one uses the same nodes."""
    cluster = start(engine, [{"slots": 3}], **{STARTS: str(tmp_path / "starts")})
    gate, config = tmp_path / "gate", tmp_path / "gate.yaml"
    write_config(config, fault_of_width={"96": "gate"}, gate=str(gate))
    first = small_material.command(tmp_path / "first", cluster, stall_seconds=100, config=config)
    with started(first) as build:
        assert processes.wait_until(Path(f"{gate}.reached").exists, 120)
        second = command(cluster, "build", small_material.index, "-o", tmp_path / "second", "--features", "frames")
        done = run(second)
        assert done.returncode == 0, done.stderr
        gate.touch()
        _, stderr = build.communicate(timeout=120)
    assert build.returncode == 0, stderr
    assert len(sidecars(tmp_path / "first")) == len(sidecars(tmp_path / "second")) == small_material.num_good + 2
    assert num_starts(tmp_path / "starts") == (small_material.num_good, small_material.num_good + 2)
