"""Commands on one cluster: each does the same as on one machine, and several at once do not disturb each other."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers import clusters, processes
from helpers.cluster_builds import Material, num_starts, run, sidecars, started, write_config
from helpers.faulty_extractor import ENVIRONMENT, STARTS

import chordcache as cc

pytestmark = [pytest.mark.timeout(400), pytest.mark.slow]

Start = Callable[..., clusters.Cluster]


def command(cluster: clusters.Cluster, *arguments: object) -> list[str]:
    where = ["--engine", cluster.engine, "--address", cluster.address]
    return [sys.executable, "-m", "chordcache", *map(str, arguments), *where]


def test_scan_verify_and_repair(small_material: Material, cluster: clusters.Cluster, tmp_path: Path) -> None:
    index, cache = tmp_path / "index.json", tmp_path / "cache"
    done = run(command(cluster, "scan", small_material.folder / "videos", "-o", index))
    assert done.returncode == 0, done.stderr
    assert list(cc.read_index(index)) == list(cc.read_index(small_material.index))
    shutil.copytree(small_material.reference, cache)
    done = run(command(cluster, "verify", cache, "--deep", "--source"))
    assert done.returncode == 0, done.stdout + done.stderr
    damaged = processes.sidecars(cache)["03.mp4"]["_artefact"]
    processes.flip(damaged, damaged.stat().st_size // 2)
    done = run(command(cluster, "verify", cache))
    assert done.returncode == 5, done.stderr
    assert str(damaged.relative_to(cache)) in done.stdout
    assert "1 finding" in done.stdout
    done = run(command(cluster, "verify", cache, "--repair"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert sidecars(cache) == sidecars(small_material.reference)


def test_verify_asks_a_second_node(small_material: Material, start: Start, tmp_path: Path) -> None:
    """One of three nodes loses the disk of the cache after its check."""
    (tmp_path / "later").mkdir()
    (tmp_path / "later/sitecustomize.py").write_text(
        "import sys\n"
        "def hide(event, arguments):\n"
        "    if event == 'open' and '/cache/videos/' in str(arguments[0]):\n"
        "        raise OSError(5, 'Input/output error', arguments[0])\n"
        "if 'chordcache.engine.worker' in ' '.join(sys.orig_argv):\n"
        "    sys.addaudithook(hide)\n"
    )
    cache = Path(shutil.copytree(small_material.reference, tmp_path / "cache"))
    path = f"{tmp_path / 'later'}{os.pathsep}{ENVIRONMENT['PYTHONPATH']}"
    done = run(command(start("dask", [{"variables": {"PYTHONPATH": path}}, {}, {}]), "verify", cache))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("engine", ["dask", "ray"])
def test_two_builds_at_once_on_one_cluster(engine: str, small_material: Material, start: Start, tmp_path: Path) -> None:
    """A video of the first build waits while the second one uses the same nodes."""
    cluster = start(engine, [{"slots": 3}], **{STARTS: str(tmp_path / "starts")})
    gate, config = tmp_path / "gate", tmp_path / "gate.yaml"
    write_config(config, fault_of_width={"96": "gate"}, gate=str(gate))
    first = small_material.command(tmp_path / "first", cluster, "--stall-timeout", "100", config=config)
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
