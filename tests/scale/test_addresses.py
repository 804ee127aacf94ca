"""Clusters that cannot be used: the command says so at once."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest
from helpers import processes
from helpers.cluster_builds import Material, environment

pytestmark = [pytest.mark.timeout(400), pytest.mark.slow]

HIDE = """
import importlib.machinery
real = importlib.machinery.PathFinder.find_spec

def find_spec(cls, name, path=None, target=None):
    return None if name.partition(".")[0] in ("distributed", "dask", "ray") else real(name, path, target)

importlib.machinery.PathFinder.find_spec = classmethod(find_spec)
"""
"""Modules of the optional packages cannot be found"""


def refused(command: list[str], variables: dict[str, str]) -> str:
    """Return the standard error of a command that ends with exit code 2, and print its time."""
    begin = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, env={**environment(), **variables}, timeout=60)
    assert done.returncode == 2, done.stderr
    print(f"{time.monotonic() - begin:.1f} s: {done.stderr}")
    assert processes.fine(done.stderr)
    return done.stderr


@pytest.mark.parametrize("engine", ["dask", "ray"])
@pytest.mark.parametrize("greeting", [None, b"", b"SSH-2.0-OpenSSH_9.2\r\n", b"ab"])
def test_an_address_of_another_program(
    engine: str, greeting: bytes | None, small_material: Material, tmp_path: Path
) -> None:
    """One that never answers, or that sends what another program sends."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(greeting or b"")

        if greeting is not None:
            threading.Thread(target=greet, daemon=True).start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        command = small_material.plain_command(tmp_path / "cache", "--engine", f"{engine}={address}")
        stderr = refused(command, {})
    assert f"chordcache build: error: --engine: got '{engine}' at '{address}'" in stderr
    if greeting is not None:
        assert f"which does not answer (it is not {engine.capitalize()}). Start the cluster." in stderr
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("engine", ["dask", "ray"])
def test_a_package_that_is_not_installed(engine: str, small_material: Material, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(HIDE)
    command = small_material.plain_command(tmp_path / "cache", "--engine", f"{engine}=127.0.0.1:1")
    path = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{environment()['PYTHONPATH']}"}
    stderr = refused(command, path)
    assert f"got '{engine}', which is not installed. Run: pip install 'chordcache[{engine}]'" in stderr
