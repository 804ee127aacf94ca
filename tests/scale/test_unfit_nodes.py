"""Nodes that cannot do the work: they are named once and get none, and no good video fails."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers import clusters
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


def build(material: Material, cluster: clusters.Cluster, cache: Path, *options: str, has_names: bool = True) -> str:
    """Build on a cluster, check the cache, and return the standard error."""
    done = run(material.command(cache, cluster, *options))
    assert done.returncode == 3, done.stderr
    material.check_built(cache, has_names=has_names)
    return done.stderr


@pytest.mark.parametrize("engine", ["dask", "ray"])
def test_a_node_without_the_disk_is_named_once_and_gets_no_work(
    engine: str, small_material: Material, start: Start, tmp_path: Path
) -> None:
    hide = mounted(f'mount -t tmpfs none "{small_material.folder}/videos"')
    stderr = build(small_material, start(engine, [{"prefix": hide}, {}, {}]), tmp_path / "cache")
    assert stderr.count("gets no work: ") == 1
    assert " gets no work: what failed there was built on " in stderr


HIDE = """
import importlib.machinery
real = importlib.machinery.PathFinder.find_spec

def find_spec(cls, name, path=None, target=None):
    return None if name.partition(".")[0] == "chordcache" else real(name, path, target)

importlib.machinery.PathFinder.find_spec = classmethod(find_spec)
"""
"""Module with which a node cannot find chordcache"""


@pytest.mark.parametrize("engine", ["dask", "ray"])
def test_a_node_without_chordcache_is_named_once_and_stays_in_the_cluster(
    engine: str, small_material: Material, start: Start, tmp_path: Path
) -> None:
    (tmp_path / "hides").mkdir()
    (tmp_path / "hides/sitecustomize.py").write_text(HIDE)
    cluster = start(engine, [with_modules(tmp_path / "hides"), {}, {}])
    stderr = build(small_material, cluster, tmp_path / "cache")
    assert stderr.count("gets no work: ") == 1
    assert "No module named 'chordcache'" in stderr
    assert cluster.nodes[0].poll() is None


@pytest.mark.parametrize("engine", ["dask", pytest.param("ray", marks=pytest.mark.thorough)])
def test_a_node_with_another_version_is_named_once_and_gets_no_work(
    engine: str, small_material: Material, start: Start, tmp_path: Path
) -> None:
    distribution = tmp_path / "other/av-1.0.dist-info"
    distribution.mkdir(parents=True)
    (distribution / "METADATA").write_text("Metadata-Version: 2.1\nName: av\nVersion: 1.0\n")
    stderr = build(small_material, start(engine, [with_modules(tmp_path / "other"), {}, {}]), tmp_path / "cache")
    assert stderr.count("gets no work: ") == stderr.count("gets no work: av: got 1.0, expected ") == 1


@pytest.mark.parametrize("engine", ["dask", pytest.param("ray", marks=pytest.mark.thorough)])
def test_a_node_whose_workers_die_at_once_is_named_once_and_gets_no_work(
    engine: str, small_material: Material, start: Start, tmp_path: Path
) -> None:
    (tmp_path / "dies").mkdir()
    (tmp_path / "dies/sitecustomize.py").write_text(
        "import os, sys\nif 'chordcache.engine.worker' in ' '.join(sys.orig_argv): os._exit(7)\n"
    )
    cluster = start(engine, [with_modules(tmp_path / "dies"), {}, {}])
    stderr = build(small_material, cluster, tmp_path / "cache", "--parts", "9")
    assert stderr.count("gets no work: ") == 1


def test_a_node_that_loses_the_disk_during_the_run_costs_no_file(
    small_material: Material, start: Start, tmp_path: Path
) -> None:
    """Each of its videos fails, and is then built by another node."""
    (tmp_path / "later").mkdir()
    (tmp_path / "later/sitecustomize.py").write_text(
        "import sys\n"
        "def hide(event, arguments):\n"
        "    if event == 'open' and str(arguments[0]).endswith('.mp4'):\n"
        "        raise FileNotFoundError(2, 'No such file or directory', arguments[0])\n"
        "if 'chordcache.engine.worker' in ' '.join(sys.orig_argv):\n"
        "    sys.addaudithook(hide)\n"
    )
    cluster = start("dask", [with_modules(tmp_path / "later"), {}, {}])
    build(small_material, cluster, tmp_path / "cache")


@pytest.mark.parametrize("engine", ["dask", pytest.param("ray", marks=pytest.mark.thorough)])
def test_nodes_with_copies_of_the_videos_work(
    engine: str, small_material: Material, start: Start, tmp_path: Path
) -> None:
    """The same bytes and times of modification; other inodes and times of change."""
    videos, copies = small_material.folder / "videos", tmp_path / "copies"
    own_disk = mounted(f'cp -a "{videos}" "{copies}" && mount --bind "{copies}" "{videos}"')
    cluster = start(engine, [{"prefix": own_disk}, {}, {}])
    stderr = build(small_material, cluster, tmp_path / "cache", has_names=False)
    assert sidecars(tmp_path / "cache") != sidecars(small_material.reference), "no video was built from a copy"
    assert "gets no work" not in stderr
    assert not {path.stat().st_ino for path in videos.iterdir()} & {path.stat().st_ino for path in copies.iterdir()}
    again = run(small_material.command(tmp_path / "cache", None, "--json"))
    assert f'"num_up_to_date": {small_material.num_good}' in again.stdout, again.stdout


def test_nodes_with_other_clocks_work(small_material: Material, start: Start, tmp_path: Path) -> None:
    nodes = [{"prefix": ["faketime", "-f", offset]} for offset in ("+2d", "-2d")]
    stderr = build(small_material, start("dask", [*nodes, {}]), tmp_path / "cache")
    assert "gets no work" not in stderr
