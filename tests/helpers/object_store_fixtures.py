"""Fixtures of a server of object stores, of the environment that leads to it, and of caches for it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import chordcache as cc
from helpers import object_stores


@pytest.fixture(scope="module")
def proxy() -> Iterator[object_stores.Proxy]:
    with object_stores.moto() as port:
        proxy = object_stores.Proxy(port)
        yield proxy
        proxy.close()


@pytest.fixture
def environment(proxy: object_stores.Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    for name, value in {**object_stores.VARIABLES, "AWS_ENDPOINT_URL": proxy.url, "NO_PROXY": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    proxy.reset()


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path]) -> Path:
    """A folder with caches of the same videos, loose and packed."""
    work = tmp_path_factory.mktemp("stores")
    for number in range(object_stores.NUM_VIDEOS):
        make_video(work / "videos" / f"{number}.mp4", num_frames=20 + number, audio=True)
    (work / "config.yaml").write_text(object_stores.CONFIG)
    cc.scan([work / "videos"], output=work / "index.json", labels="dir", jobs=1)
    cc.build(work / "index.json", work / "loose", config=work / "config.yaml", tiers=("lmdb", "npz", "hdf5"), jobs=1)
    return work


@pytest.fixture
def loose(work: Path, tmp_path: Path) -> Path:
    return shutil.copytree(work / "loose", tmp_path / "loose")


@pytest.fixture
def packed(loose: Path, run_cli: Callable[..., subprocess.CompletedProcess[str]]) -> Path:
    folder = loose.with_name("packed")
    assert run_cli("pack", str(loose), "-o", str(folder)).returncode == 0
    return folder


@pytest.fixture(params=["loose", "packed"])
def cache(request: pytest.FixtureRequest) -> Path:
    folder: Path = request.getfixturevalue(request.param)
    return folder


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    return f"s3://data/{request.node.name.translate(str.maketrans('[]', '__'))}/cache"
