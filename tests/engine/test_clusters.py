"""Builds on real clusters of Dask and Ray: the content is that of one machine, and a lost node costs no file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers import clusters, processes
from helpers.faulty_extractor import ENVIRONMENT, PLUG_IN

import chordcache as cc
from chordcache.engine import cluster as cluster_module
from chordcache.engine import pool
from chordcache.engine.choice import Engine
from chordcache.errors import UsageError, WorkersDiedError

pytestmark = [pytest.mark.timeout(400), pytest.mark.slow]

NUM_GOOD = 24

FAULTS = {"SIGSEGV": "signal", "exit 3": "signal", "sleep": "timeout", "many arrays": "oom"}
"""Fault of the extractor, and its cause in quarantine"""

LIMITS = ("--stall-timeout", "3", "--file-memory", "768")

Start = Callable[..., clusters.Cluster]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path]) -> Path:
    """Good videos, one for each fault, their index, and the cache that one machine builds of them."""
    folder = tmp_path_factory.mktemp("corpus")
    for number in range(NUM_GOOD):
        make_video(folder / f"videos/{number:02}.mp4", num_frames=12 + number)
    widths = {str(96 + 2 * number): fault for number, fault in enumerate(FAULTS)}
    for width, fault in widths.items():
        make_video(folder / f"videos/{fault}.mp4", size=(int(width), 48), num_frames=6)
    mine = {"extractor": PLUG_IN, "fault_of_width": widths}
    (folder / "mine.yaml").write_text(yaml.dump({"features": {"mine": mine}}))
    cc.scan([folder / "videos"], output=folder / "index.json", jobs=2)
    return folder


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Function that starts a cluster of an engine with nodes."""
    with ExitStack() as stack:

        def started(engine: str, nodes: list[dict[str, Any]]) -> clusters.Cluster:
            given = [{**node, "variables": {**ENVIRONMENT, **node.get("variables", {})}} for node in nodes]
            return stack.enter_context(clusters.CLUSTERS[engine](tmp_path / "cluster", given))

        yield started


def build_command(corpus: Path, cache: Path, cluster: clusters.Cluster | None, *options: str) -> list[str]:
    command = [sys.executable, "-m", "chordcache", "build", corpus / "index.json", "-o", cache, *LIMITS, *options]
    command += ["--tier", "lmdb", "--tier", "npz", "--features", "frames,mine", "-c", corpus / "mine.yaml"]
    return [*map(str, command), *(["--engine", cluster.engine, "--address", cluster.address] if cluster else [])]


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **ENVIRONMENT, **clusters.ENVIRONMENT}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)


def sidecars(cache: Path) -> dict[str, Any]:
    """Return the statements of the sidecars, without the paths of this test."""
    return {path: {**data, "_artefact": None, "_sidecar": None} for path, data in processes.sidecars(cache).items()}


@pytest.fixture(scope="module")
def reference(corpus: Path) -> Path:
    """The cache that one machine builds."""
    done = run(build_command(corpus, corpus / "reference", None))
    assert done.returncode == 3, done.stderr
    return corpus / "reference"


def check_built(cache: Path, reference: Path) -> None:
    """Check that a cache has all good videos with the content of one machine, and each fault with its cause."""
    assert sidecars(cache) == sidecars(reference)
    assert len(sidecars(cache)) == NUM_GOOD
    failures = processes.quarantine(cache)
    assert {path: failure["cause"] for path, failure in failures.items()} == {
        f"{fault}.mp4": cause for fault, cause in FAULTS.items()
    }
    assert all("faulty_extractor.py:" in failures[f"{fault}.mp4"]["message"] for fault in ("SIGSEGV", "sleep"))
    assert not cc.verify(cache, level="deep", jobs=1).damage


def started(command: list[str]) -> subprocess.Popen[str]:
    environment = {**os.environ, **ENVIRONMENT, **clusters.ENVIRONMENT}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def num_built(cache: Path) -> int:
    return len(list(cache.glob("videos/*/*.json")))


@pytest.mark.parametrize("engine", ["dask", "ray"])
def test_a_node_that_is_killed_costs_no_file(
    engine: str, corpus: Path, reference: Path, start: Start, tmp_path: Path
) -> None:
    cluster = start(engine, [{}, {}, {}])
    cache = tmp_path / "cache"
    with started(build_command(corpus, cache, cluster, "--json")) as build:
        assert processes.wait_until(lambda: num_built(cache) >= 8, 120)
        cluster.kill_node(1)
        stdout, stderr = build.communicate(timeout=300)
    assert build.returncode == 3, stderr
    assert json.loads(stdout)["num_done"] == NUM_GOOD
    check_built(cache, reference)


@pytest.mark.parametrize("engine", ["dask", "ray"])
def test_a_node_without_the_disk_is_named_once_and_gets_no_work(
    engine: str, corpus: Path, reference: Path, start: Start, tmp_path: Path
) -> None:
    hide = ["unshare", "-m", "sh", "-c", f'mount -t tmpfs none "{corpus}/videos" && exec "$@"', "sh"]
    cluster = start(engine, [{"prefix": hide}, {}])
    done = run(build_command(corpus, tmp_path / "cache", cluster))
    assert done.returncode == 3, done.stderr
    assert done.stderr.count("gets no work: ") == 1
    assert "is not there (No such file or directory)" in done.stderr
    check_built(tmp_path / "cache", reference)


def test_a_node_with_another_version_is_named_once_and_gets_no_work(
    corpus: Path, reference: Path, start: Start, tmp_path: Path
) -> None:
    distribution = tmp_path / "other/av-1.0.dist-info"
    distribution.mkdir(parents=True)
    (distribution / "METADATA").write_text("Metadata-Version: 2.1\nName: av\nVersion: 1.0\n")
    other = {"PYTHONPATH": f"{tmp_path / 'other'}{os.pathsep}{ENVIRONMENT['PYTHONPATH']}"}
    cluster = start("dask", [{"variables": other}, {}])
    done = run(build_command(corpus, tmp_path / "cache", cluster))
    assert done.returncode == 3, done.stderr
    assert done.stderr.count("gets no work: av is 1.0 there") == 1
    check_built(tmp_path / "cache", reference)


def test_a_node_whose_workers_die_at_once_is_named_once_and_gets_no_work(
    corpus: Path, reference: Path, start: Start, tmp_path: Path
) -> None:
    (tmp_path / "dies").mkdir()
    (tmp_path / "dies/sitecustomize.py").write_text(
        "import os, sys\nif 'chordcache.engine.worker' in ' '.join(sys.orig_argv): os._exit(7)\n"
    )
    other = {"PYTHONPATH": f"{tmp_path / 'dies'}{os.pathsep}{ENVIRONMENT['PYTHONPATH']}"}
    cluster = start("dask", [{"variables": other}, {}])
    done = run(build_command(corpus, tmp_path / "cache", cluster))
    assert done.returncode == 3, done.stderr
    assert done.stderr.count("gets no work: the worker died: EXIT(7)") == 1
    check_built(tmp_path / "cache", reference)


def workers() -> list[int]:
    """Return the worker processes of chordcache on this machine that Dask and Ray have started."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and "chordcache.engine.worker" in processes.command_of(int(entry.name)):
            parent = processes.command_of(int((entry / "stat").read_text().rpartition(") ")[2].split()[1]))
            if "dask" in parent or "ray" in parent:
                found.append(int(entry.name))
    return found


@pytest.mark.parametrize("engine", ["dask", "ray"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_workers_on_all_nodes(
    engine: str, number: signal.Signals, corpus: Path, start: Start, tmp_path: Path
) -> None:
    cluster = start(engine, [{}, {}])
    cache = tmp_path / "cache"
    with started(build_command(corpus, cache, cluster, "--stall-timeout", "100")) as build:
        assert processes.wait_until(lambda: num_built(cache) >= 4, 120)
        build.send_signal(number)
        _, stderr = build.communicate(timeout=60)
    assert build.returncode == 128 + number, stderr
    assert processes.fine(stderr)
    assert processes.wait_until(lambda: not workers(), 5)


def test_a_task_that_outlives_its_run_publishes_nothing(corpus: Path, start: Start, tmp_path: Path) -> None:
    cluster = start("dask", [{}])
    cache = tmp_path / "cache"
    with started(build_command(corpus, cache, cluster, "--stall-timeout", "100")) as build:
        assert processes.wait_until(lambda: num_built(cache) >= 2, 120)
        build.kill()
    (tmp_path / "other.yaml").write_text("frames: {quality: 50}")
    command = [sys.executable, "-m", "chordcache", "build", corpus / "index.json", "-o", cache, "-j1"]
    done = run([*map(str, command), "--features", "frames", "-c", str(tmp_path / "other.yaml")])
    assert done.returncode == 0, done.stderr
    time.sleep(2)  # for the task on the node, which is a video of less than a second
    found = [info for data in processes.sidecars(cache).values() for info in data["features"]]
    assert {info["fingerprint"] for info in found if info["feature"] == "frames"} == {found[0]["fingerprint"]}


def test_an_address_that_does_not_answer(corpus: Path, tmp_path: Path) -> None:
    for engine in ("dask", "ray"):
        cluster = clusters.Cluster(engine, f"127.0.0.1:{clusters.free_port()}", [])
        done = run(build_command(corpus, tmp_path / "cache", cluster))
        assert done.returncode == 2
        assert "chordcache build: error: --address: got '127.0.0.1:" in done.stderr


@pytest.mark.parametrize("arguments", [("none",), ("dask",), ("local", "host:1"), ("dask", "host:1", 2)])
def test_wrong_engines(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(UsageError, match=r"^(engine|address|jobs): got .*, expected"):
        Engine(*arguments)


def test_the_process_itself_builds(corpus: Path, tmp_path: Path) -> None:
    good = [path for path in sorted((corpus / "videos").iterdir()) if path.stem.isdigit()]
    cc.scan(good, output=tmp_path / "index.json", jobs=Engine("inline"))
    summary = cc.build(tmp_path / "index.json", tmp_path / "cache", jobs=Engine("inline"))
    assert summary.num_done == NUM_GOOD
    assert not cc.verify(tmp_path / "cache", level="deep", jobs=Engine("inline")).damage


def test_a_cluster_without_nodes_ends_the_run(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_module, "_NODES_SECONDS", 2.0)
    cluster = start("dask", [])
    with pytest.raises(WorkersDiedError, match="no node that can work"):
        list(pool.run(abs, [1, 2], jobs=Engine("dask", cluster.address)))
