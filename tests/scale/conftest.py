"""Fixtures of the tests on real clusters, and the repetition of tests of random events.

Environment
-----------
TRIALS
    Number of times that each test marked ``trials`` is run, at most the number of the mark; 1 by default. Tests that
    are marked ``thorough`` are left out if it is 1.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from helpers import clusters
from helpers.cluster_builds import Material, make_material
from helpers.faulty_extractor import ENVIRONMENT

Start = Callable[..., clusters.Cluster]


TRIALS = int(os.environ.get("TRIALS", "1"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that take long, and whose event another test has too."""
    left_out = [item for item in items if item.get_closest_marker("thorough") and TRIALS == 1]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Repeat the tests that are marked ``trials``."""
    mark = metafunc.definition.get_closest_marker("trials")
    if mark is not None:
        metafunc.parametrize("trial", range(min(TRIALS, *mark.args)))


@pytest.fixture(scope="session")
def material(tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path]) -> Material:
    """40 good videos and 4 that fail."""
    return make_material(tmp_path_factory.mktemp("material"), make_video, 40)


@pytest.fixture(scope="session")
def small_material(tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path]) -> Material:
    """12 good videos and 2 that fail at once."""
    return make_material(tmp_path_factory.mktemp("small"), make_video, 12, ("SIGSEGV", "exit 3"))


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Function that starts a cluster of an engine with nodes."""
    with ExitStack() as stack:

        def started(engine: str, nodes: list[dict[str, Any]], **variables: str) -> clusters.Cluster:
            given = [{**node, "variables": {**ENVIRONMENT, **variables, **node.get("variables", {})}} for node in nodes]
            return stack.enter_context(clusters.CLUSTERS[engine](tmp_path / "cluster", given))

        yield started


WAIT = """
import os, sys, time

def wait(event, arguments):
    gate = os.environ["GATE_OF_VIDEOS"]
    if event == "open" and str(arguments[0]).endswith(".mp4") and os.path.exists(gate):
        open(gate + ".reached", "w").close()
        while os.path.exists(gate):
            time.sleep(0.01)

if "chordcache.engine.worker" in " ".join(sys.orig_argv):
    sys.addaudithook(wait)
"""
"""Module that lets each worker wait before it opens a video, as long as there is a file"""


@pytest.fixture(scope="module")
def gate_of_videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """File for which the workers on the nodes of ``cluster`` wait, before they open a video, until it is removed.

    The first one that waits makes the file of that name and ".reached".
    """
    folder = tmp_path_factory.mktemp("gate")
    (folder / "sitecustomize.py").write_text(WAIT)
    return folder / "gate"


@pytest.fixture(scope="module", params=["dask", "ray"])
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, gate_of_videos: Path
) -> Iterator[clusters.Cluster]:
    """A cluster of two nodes that all tests of a file share."""
    path = f"{gate_of_videos.parent}{os.pathsep}{ENVIRONMENT['PYTHONPATH']}"
    nodes = [{"variables": {"PYTHONPATH": path, "GATE_OF_VIDEOS": str(gate_of_videos)}}] * 2
    with clusters.CLUSTERS[request.param](tmp_path_factory.mktemp("cluster"), nodes) as started:
        yield started
