"""Latents that the nodes of a cluster compute, in a pass of each part."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml
from helpers import clusters, processes
from helpers.cluster_builds import Material, run
from helpers.networks import make_vae

import chordcache as cc

pytestmark = [pytest.mark.timeout(400), pytest.mark.slow]

Start = Callable[..., clusters.Cluster]


@pytest.mark.parametrize("engine", ["dask", pytest.param("ray", marks=pytest.mark.thorough)])
def test_latents_of_a_cluster_are_those_of_one_machine(
    engine: str, small_material: Material, start: Start, tmp_path: Path
) -> None:
    latents = {"model": str(make_vae("AutoencoderKLWan", tmp_path / "vae")), "clip_frames": 9, "dtype": "float32"}
    (tmp_path / "latents.yaml").write_text(yaml.dump({"features": {"latents": latents}}))
    options = ["-c", str(tmp_path / "latents.yaml"), "--tier", "npz", "--features", "latents"]
    local = run(small_material.plain_command(tmp_path / "local", *options))
    assert local.returncode == 0, local.stderr
    cluster = start(engine, [{}, {}])
    where = ["--engine", f"{cluster.engine}={cluster.address}"]
    done = run(small_material.plain_command(tmp_path / "cache", *options, *where))
    assert done.returncode == 0, done.stderr
    assert processes.fine(done.stderr)
    assert not cc.verify(tmp_path / "cache", level="deep", jobs=1).damage
    with cc.open_cache(tmp_path / "local") as one, cc.open_cache(tmp_path / "cache") as other:
        assert one.keys() == other.keys()
        for key in one.keys():  # noqa: SIM118
            # Dask lets the processes of a node use one thread, and PyTorch adds in another order with several
            assert np.abs(one.read(key, "latents") - other.read(key, "latents")).max() <= 1e-5


def test_a_node_without_the_device_is_named(small_material: Material, start: Start, tmp_path: Path) -> None:
    """All nodes lack a GPU, so the run ends, and says why."""
    latents = {"model": str(make_vae("AutoencoderKLWan", tmp_path / "vae")), "device": "cuda"}
    (tmp_path / "latents.yaml").write_text(yaml.dump({"features": {"latents": latents}}))
    cluster = start("dask", [{}, {}])
    done = run(
        small_material.plain_command(
            tmp_path / "cache", "-c", str(tmp_path / "latents.yaml"), "--tier", "npz", "--features", "latents",
            "--engine", f"dask={cluster.address}",
        )
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert ": features.latents.device: got cuda, expected one of: auto, cpu." in done.stderr
    assert not (tmp_path / "cache").exists()
