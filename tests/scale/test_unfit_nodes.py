"""Nodes that cannot do the work: the run ends and names one with the reason. Others that only differ do it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers import clusters, processes
from helpers.cluster_builds import Material, run, sidecars
from helpers.faulty_extractor import ENVIRONMENT

pytestmark = [pytest.mark.timeout(400), pytest.mark.slow]

Start = Callable[..., clusters.Cluster]


def mounted(command: str) -> list[str]:
    """Return the prefix of a command that sees other disks: it runs after a mount."""
    return ["unshare", "-m", "sh", "-c", f'{command} && exec "$@"', "sh"]


def with_modules(folder: Path) -> dict[str, Any]:
    """Return the facts of a node that finds modules and packages in a folder first."""
    return {"variables": {"PYTHONPATH": f"{folder}{os.pathsep}{ENVIRONMENT['PYTHONPATH']}"}}


HIDE = """
import importlib.machinery
real = importlib.machinery.PathFinder.find_spec

def find_spec(cls, name, path=None, target=None):
    return None if name.partition(".")[0] == "chordcache" else real(name, path, target)

importlib.machinery.PathFinder.find_spec = classmethod(find_spec)
"""
"""Module with which a node cannot find chordcache"""


@pytest.mark.parametrize("engine", ["dask", "ray"])
def test_a_node_without_chordcache_is_named(
    engine: str, small_material: Material, start: Start, tmp_path: Path
) -> None:
    (tmp_path / "hides").mkdir()
    (tmp_path / "hides/sitecustomize.py").write_text(HIDE)
    cluster = start(engine, [with_modules(tmp_path / "hides"), {}])
    done = run(small_material.command(tmp_path / "cache", cluster))
    assert done.returncode == 14, done.stderr
    assert processes.fine(done.stderr)
    assert f" on {os.uname().nodename}: " in done.stderr
    assert "No module named 'chordcache'" in done.stderr
    assert cluster.nodes[0].poll() is None


@pytest.mark.parametrize("engine", ["dask", pytest.param("ray", marks=pytest.mark.thorough)])
def test_a_node_with_another_version_is_named_and_the_build_goes_on_without_it(
    engine: str, small_material: Material, start: Start, tmp_path: Path
) -> None:
    distribution = tmp_path / "other/av-1.0.dist-info"
    distribution.mkdir(parents=True)
    (distribution / "METADATA").write_text("Metadata-Version: 2.1\nName: av\nVersion: 1.0\n")
    cluster = start(engine, [with_modules(tmp_path / "other"), {}])
    done = run(small_material.command(tmp_path / "cache", cluster))
    assert done.returncode == 2, done.stderr
    assert f" on {os.uname().nodename}: av: got 1.0, expected " in done.stderr
    cluster.kill_node(0)
    assert run(small_material.command(tmp_path / "cache", cluster)).returncode == 3
    small_material.check_built(tmp_path / "cache")


@pytest.mark.parametrize("engine", ["dask", pytest.param("ray", marks=pytest.mark.thorough)])
def test_nodes_with_copies_of_the_videos_work(
    engine: str, small_material: Material, start: Start, tmp_path: Path
) -> None:
    """The same bytes and times of modification; other inodes and times of change."""
    videos, copies = small_material.folder / "videos", tmp_path / "copies"
    own_disk = mounted(f'cp -a "{videos}" "{copies}" && mount --bind "{copies}" "{videos}"')
    cluster = start(engine, [{"prefix": own_disk}, {}, {}])
    done = run(small_material.command(tmp_path / "cache", cluster, "--parts", "6"))
    assert done.returncode == 3, done.stderr
    small_material.check_built(tmp_path / "cache", has_names=False)
    assert sidecars(tmp_path / "cache") != sidecars(small_material.reference), "no video was built from a copy"
    again = run(small_material.command(tmp_path / "cache", None, "--json"))
    assert f'"num_up_to_date": {small_material.num_good}' in again.stdout, again.stdout


def test_nodes_with_other_clocks_work(small_material: Material, start: Start, tmp_path: Path) -> None:
    nodes = [{"prefix": ["faketime", "-f", offset]} for offset in ("+2d", "-2d")]
    done = run(small_material.command(tmp_path / "cache", start("dask", [*nodes, {}])))
    assert done.returncode == 3, done.stderr
    small_material.check_built(tmp_path / "cache")
