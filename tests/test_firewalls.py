"""Modules that must not be loaded: the decoders by --help, the builder by a reader of caches."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.commands import COMMANDS

HEAVY = {"av", "cv2", "librosa", "h5py", "lmdb", "msgspec", "torch"}
"""Not for ``chordcache --help``."""

BUILDING = {"av", "cv2", "librosa", "joblib", "click", "lmdb", "h5py"}
"""Not for reading a cached clip."""


def packages_loaded_by(code: str, *args: object) -> set[str]:
    """Top-level packages in sys.modules after some code ran in an interpreter of its own."""
    code += "\nimport json, sys\nprint(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))"
    command = [sys.executable, "-c", code, *map(str, args)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    return set(json.loads(result.stdout.splitlines()[-1]))


@pytest.mark.parametrize("command", ["import chordcache", "import chordcache; dir(chordcache)"])
def test_import_loads_nothing_heavy(command: str) -> None:
    assert not packages_loaded_by(command) & (HEAVY | {"numpy", "click", "yaml"})


def test_help_loads_nothing_heavy() -> None:
    code = """
import sys
from chordcache.cli import main
for words in ["--help", "--version", *(f"{name} --help" for name in sys.argv[1:])]:
    sys.argv = ["chordcache", *words.split()]
    try:
        main()
    except SystemExit as end:
        assert not end.code, (words, end.code)
"""
    assert not packages_loaded_by(code, *COMMANDS) & HEAVY


def test_a_single_worker_loads_no_joblib() -> None:
    code = "from chordcache.engine import pool\nassert len(list(pool.run(abs, [-1, 2], jobs={}))) == 2"
    assert "joblib" not in packages_loaded_by(code.format(1))
    assert "joblib" in packages_loaded_by(code.format(2))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory, make_video, run_cli) -> Path:
    folder = tmp_path_factory.mktemp("firewall")
    make_video(folder / "videos" / "a.mp4", num_frames=20)
    (folder / "c.yaml").write_text("hdf5: {features: [frames, motion]}")
    tiers = [word for tier in ("lmdb", "npz", "hdf5") for word in ("--tier", tier)]
    for arguments in (["scan", "videos"], ["build", "-c", "c.yaml", *tiers, "--features", "frames,motion"]):
        result = run_cli(*arguments, cwd=folder)
        assert result.returncode == 0, result.stderr
    return folder / "cache"


READ = """
import sys, chordcache
with chordcache.open_cache(sys.argv[1]) as cache:
    (video,) = cache
    assert cache.read(video, "frames", 0, 16).shape == (16, 48, 64, 3)
    assert len(cache.read(video, "motion", 0, 16)) == 16
    assert cache.read(video.key, "frames", indices=[19, 3]).shape == (2, 48, 64, 3)
    assert len(video.pts_seconds) == 20
    for name in ("frames", "motion"):
        assert len(cache.read(video, name, 0, 16, tier="hdf5")) == 16
"""


def test_reading_a_clip_loads_nothing_that_builds(cache: Path) -> None:
    assert not packages_loaded_by(READ, cache) & (BUILDING | {"torch"})


def test_a_cache_is_read_and_verified_without_the_packages_that_write_it(cache: Path) -> None:
    code = f"""
import sys
sys.modules |= dict.fromkeys(("h5py", "lmdb"))  # an import of them raises ImportError
{READ}
assert chordcache.verify(sys.argv[1], level="deep", jobs=1).damage == []
assert sys.modules["h5py"] is sys.modules["lmdb"] is None
"""
    packages_loaded_by(code, cache)
