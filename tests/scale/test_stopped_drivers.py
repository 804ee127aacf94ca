"""Drivers that end before their build: their parts end with them, or when another driver begins."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
from distributed import Client
from helpers import clusters, processes
from helpers.cluster_builds import Material, node_workers, num_built, sidecars, started, write_config

import chordcache as cc

pytestmark = [pytest.mark.timeout(400), pytest.mark.slow]


def waiting_build(material: Material, cluster: clusters.Cluster, folder: Path) -> tuple[list[str], Path, Path]:
    """Return the command of a build whose videos wait in the middle, its cache, and the file that they wait for.

    One has begun to wait as soon as there is a file of that name and ".reached".
    """
    cache, gate, config = folder / "cache", folder / "gate", folder / "old.yaml"
    write_config(config, fault="gate", gate=str(gate))
    return material.command(cache, cluster, stall_seconds=100, config=config), cache, gate


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_workers_on_all_nodes(
    number: signal.Signals, small_material: Material, cluster: clusters.Cluster, tmp_path: Path
) -> None:
    command, cache, gate = waiting_build(small_material, cluster, tmp_path)
    with started(command) as build:
        assert processes.wait_until(Path(f"{gate}.reached").exists, 120)
        assert node_workers(cluster)
        begin = time.monotonic()
        build.send_signal(number)
        _, stderr = build.communicate(timeout=60)
        ended = time.monotonic()
    assert build.returncode == 128 + number, stderr
    assert processes.fine(stderr)
    assert processes.wait_until(lambda: not node_workers(cluster), 60)
    print(f"{cluster.engine}, {number.name}: driver {ended - begin:.1f} s, workers {time.monotonic() - ended:.1f} s")
    assert num_built(cache) == 0
    assert not cache.exists()


def num_running(cluster: clusters.Cluster) -> int:
    """Return the number of tasks that run on the nodes, also those whose driver has ended."""
    if cluster.engine == "ray":  # ends the tasks of a driver that ends
        return len(node_workers(cluster))
    with Client(cluster.address, set_as_default=False) as client:
        return sum(client.run(lambda dask_worker: len(dask_worker.state.all_running_tasks)).values())


@pytest.mark.trials(20)
def test_parts_that_outlive_their_driver_end_when_another_one_begins(
    trial: int, small_material: Material, cluster: clusters.Cluster, gate_of_videos: Path, tmp_path: Path
) -> None:
    """The workers wait before they open their videos, or (odd trials) when they have half of the frames.

    Ray ends the tasks of a driver that ends. Those of Dask go on until the next driver begins.
    """
    command, cache, gate = waiting_build(small_material, cluster, tmp_path)
    reached, open_gate = Path(f"{gate}.reached"), gate.touch
    if trial % 2 == 0:
        gate.touch()  # the extractor does not wait
        reached, open_gate = Path(f"{gate_of_videos}.reached"), lambda: gate_of_videos.unlink(missing_ok=True)
        reached.unlink(missing_ok=True)
        gate_of_videos.touch()
    try:
        with started(command) as build:
            assert processes.wait_until(reached.exists, 120)
            build.kill()
        check_waiting(cluster)
        assert num_built(cache) == 0
        with started(command) as second:
            time.sleep(3 if trial % 4 < 2 else 0)
            open_gate()
            _, stderr = second.communicate(timeout=120)
        assert second.returncode == 0, stderr
    finally:
        open_gate()
    assert processes.wait_until(lambda: num_running(cluster) == 0, 60, step=0.2)
    assert len(sidecars(cache)) == small_material.num_good + 2
    assert not cc.verify(cache, level="deep", jobs=1).damage


def check_waiting(cluster: clusters.Cluster) -> None:
    """Check that a task of the killed driver still runs, where it is known to."""
    if cluster.engine == "dask":
        assert num_running(cluster) >= 1
