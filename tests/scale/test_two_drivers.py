"""Two drivers of one cache: one builds at a time, and a cache that exists is refused."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers import clusters, processes
from helpers.cluster_builds import Material, num_built, num_starts, run, started
from helpers.faulty_extractor import STARTS

pytestmark = [pytest.mark.timeout(400), pytest.mark.slow]

Start = Callable[..., clusters.Cluster]


@pytest.mark.trials(10)
def test_two_drivers_of_one_cache(trial: int, small_material: Material, start: Start, tmp_path: Path) -> None:
    """Without --wait, the second one ends. With it, the second one finds a cache that exists, and changes nothing."""
    cluster = start("dask", [{}, {}], **{STARTS: str(tmp_path / "starts")})
    cache = tmp_path / "cache"
    command = small_material.command(cache, cluster, "--parts", "3")
    with started(command) as first:
        assert processes.wait_until(lambda: num_built(cache) >= 1, 120)
        first.send_signal(signal.SIGSTOP)  # on a busy machine, it would end before the third one begins
        with started([*command, "--wait"]) as second:
            refused = run(command)
            first.send_signal(signal.SIGCONT)
            outputs = [driver.communicate(timeout=300) for driver in (first, second)]
    assert (refused.returncode, "is being written by process" in refused.stderr) == (11, True), refused.stderr
    assert [first.returncode, second.returncode] == [3, 2], outputs
    assert all(processes.fine(stderr) for _, stderr in outputs)
    assert "which exists, expected a new folder. Bring it up to date without --engine" in outputs[1][1]
    assert num_starts(tmp_path / "starts")[0] == small_material.num_good
    small_material.check_built(cache)
    assert not cache.with_name("cache.parts").exists()
    before = processes.files_of(cache)
    assert run(command).returncode == 2
    assert processes.files_of(cache) == before


def test_parts_of_another_build_are_named(small_material: Material, start: Start, tmp_path: Path) -> None:
    cluster, cache = start("dask", [{}]), tmp_path / "cache"
    command = small_material.command(cache, cluster)
    with started(command) as first:
        assert processes.wait_until(lambda: num_built(cache) >= 1, 120)
        first.kill()
    where = ["--engine", f"dask={cluster.address}"]
    other = run(small_material.plain_command(cache, "--tier", "lmdb", "--features", "frames", *where))
    assert other.returncode == 2, other.stderr
    assert "features in tier npz: got none, expected mine, as cache " in other.stderr
    assert run(command).returncode == 3
    small_material.check_built(cache)
