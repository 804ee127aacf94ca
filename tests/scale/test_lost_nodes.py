"""Nodes that end in the middle of a build: no video is lost, and the content is that of one machine."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers import clusters, processes
from helpers.cluster_builds import Material, num_built, num_starts, run, sidecars, started, write_config
from helpers.faulty_extractor import ENVIRONMENT, STARTS

import chordcache as cc
from chordcache.building import cluster_build
from chordcache.engine.choice import Engine
from chordcache.errors import StoppedError

pytestmark = [pytest.mark.timeout(400), pytest.mark.slow]

Start = Callable[..., clusters.Cluster]

MAX_STARTS = 46
"""Number of times that 40 good videos may be begun: each once, and again those that ran on the lost node"""


@pytest.mark.trials(10)
@pytest.mark.parametrize("engine", ["dask", "ray"])
def test_a_node_that_is_killed_costs_no_file(
    engine: str, trial: int, material: Material, start: Start, tmp_path: Path
) -> None:
    cluster = start(engine, [{}, {}, {}], **{STARTS: str(tmp_path / "starts")})
    cache = tmp_path / "cache"
    with started(material.command(cache, cluster, "--json")) as build:
        assert processes.wait_until(lambda: num_built(cache) >= 8, 120)
        assert num_built(cache) < material.num_good / 2
        cluster.kill_node(trial % 3)
        stdout, stderr = build.communicate(timeout=300)
    assert build.returncode == 3, stderr
    assert processes.fine(stderr)
    assert json.loads(stdout)["num_done"] == material.num_good
    material.check_built(cache)
    assert not cache.with_name("cache.parts").exists()
    of_good, of_all = num_starts(tmp_path / "starts")
    print(f"{engine}: {of_good} starts of {material.num_good} good videos, {of_all} of all {material.num_good + 4}")
    assert material.num_good <= of_good <= MAX_STARTS


def part_processes(cluster: clusters.Cluster) -> list[int]:
    """Return the processes that build parts on the nodes."""
    pids = processes.alive_with(cluster.mark)
    return [pid for pid in pids if "chordcache.building.part_process" in processes.command_of(pid)]


@pytest.mark.trials(10)
@pytest.mark.parametrize("engine", ["dask", "ray"])
@pytest.mark.parametrize("victim", ["part", "its parent"])
def test_a_process_on_a_node_that_is_killed_costs_no_file(
    engine: str, victim: str, trial: int, small_material: Material, start: Start, tmp_path: Path
) -> None:
    """The parent is a worker of Dask or Ray, which starts another one."""
    cluster, cache = start(engine, [{}, {}]), tmp_path / "cache"
    with started(small_material.command(cache, cluster, "--parts", "2")) as build:
        assert processes.wait_until(lambda: num_built(cache) >= 2 + trial % 3, 120)
        pid = part_processes(cluster)[0]
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(pid if victim == "part" else parent, signal.SIGKILL)
        _, stderr = build.communicate(timeout=300)
    assert build.returncode == 3, stderr
    assert processes.fine(stderr)
    small_material.check_built(cache)


WITH_LITTLE_PATIENCE = """
import sys
from chordcache.building import cluster_build as cluster
cluster._NODES_SECONDS = 3.0
from chordcache.__main__ import main
sys.exit(main())
"""


@pytest.mark.parametrize("engine", ["dask", pytest.param("ray", marks=pytest.mark.thorough)])
def test_a_cluster_that_loses_all_nodes_ends_the_run_and_the_same_command_resumes(
    engine: str, material: Material, start: Start, tmp_path: Path
) -> None:
    cluster = start(engine, [{}, {}])
    cache = tmp_path / "cache"
    arguments = material.command(cache, cluster, "--json")[3:]
    with started([sys.executable, "-c", WITH_LITTLE_PATIENCE, *arguments]) as build:
        assert processes.wait_until(lambda: num_built(cache) >= 8, 120)
        cluster.kill_node(0)
        cluster.kill_node(1)
        _, stderr = build.communicate(timeout=120)
    assert build.returncode == 14, stderr
    assert processes.fine(stderr)
    assert not cache.exists()
    assert 8 <= num_built(cache) < material.num_good
    before = {path.stat().st_ino for path in cache.with_name("cache.parts").glob("*/lmdb/*/*.lmdb")}
    cluster.add_nodes({"variables": ENVIRONMENT})
    done = run(material.command(cache, cluster, "--json"))
    assert done.returncode == 3, done.stderr
    assert len(before & {path.stat().st_ino for path in cache.glob("lmdb/*/*.lmdb")}) >= 8
    material.check_built(cache)


WITHOUT_PATIENCE = {
    "dask": WITH_LITTLE_PATIENCE,
    "ray": WITH_LITTLE_PATIENCE.replace("cluster._NODES", "cluster._HEAD").replace(
        "chordcache.building import cluster_build", "chordcache.engine import ray_cluster"
    ),
}


@pytest.mark.parametrize("engine", ["dask", "ray"])
def test_a_cluster_that_loses_its_scheduler_ends_the_run(
    engine: str, small_material: Material, start: Start, tmp_path: Path
) -> None:
    """One video waits."""
    cluster, cache, gate = start(engine, [{}, {}]), tmp_path / "cache", tmp_path / "gate"
    write_config(tmp_path / "gate.yaml", fault_of_width={"96": "gate"}, gate=str(gate))
    command = small_material.command(cache, cluster, stall_seconds=100, config=tmp_path / "gate.yaml")
    with started([sys.executable, "-c", WITHOUT_PATIENCE[engine], *command[3:]]) as build:
        assert processes.wait_until(Path(f"{gate}.reached").exists, 120)
        clusters.kill_tree(cluster.head)
        _, stderr = build.communicate(timeout=120)
    assert build.returncode == StoppedError.exit_code, stderr
    assert processes.fine(stderr)
    assert not cache.exists()
    assert processes.wait_until(lambda: not part_processes(cluster), 60)
    gate.touch()
    again = start(engine, [{}])
    done = run(small_material.command(cache, again, stall_seconds=100, config=tmp_path / "gate.yaml"))
    assert done.returncode == 0, done.stderr
    assert len(sidecars(cache)) == small_material.num_good + 2


def test_a_cluster_without_nodes_ends_the_run(
    small_material: Material, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_build, "_NODES_SECONDS", 2.0)
    cluster = start("dask", [])
    with pytest.raises(StoppedError, match="the cluster has no nodes"):
        cc.build(small_material.index, tmp_path / "cache", jobs=Engine("dask", cluster.address))
