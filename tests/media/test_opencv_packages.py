"""OpenCV comes in four packages that overwrite each other. chordcache works with each, and requires none."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

import chordcache as cc

REPOSITORY = Path(cc.__file__).parent.parent

PACKAGE = "opencv-python"
"""The one that most users have. The environment of the tests has another one"""

WORK = """
import sys
import chordcache as cc
if __name__ == "__main__":
    cc.build(cc.scan(["videos"], jobs=1), "cache", tiers=["lmdb", "npz"], features=["frames", "flow"], jobs=1)
    print(*cc.ChordVideoDataset("cache", features=["frames", "flow"], size=(32, 32))[0]["flows"].shape)
    print(sys.modules["cv2"].__file__)
"""


def test_none_is_required() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert len(project["dependencies"]) > 5
    assert not any("opencv" in requirement for requirement in project["dependencies"])
    extras = project["optional-dependencies"]
    assert [name for name in extras if any("opencv" in requirement for requirement in extras[name])] == ["build"]


@pytest.mark.slow
def test_another_one_works(tmp_path: Path, make_video: Callable[..., Path]) -> None:
    install = ["-m", "pip", "install", "-q", "--no-deps", "--only-binary=:all:", "--target", tmp_path / "site", PACKAGE]
    subprocess.run([sys.executable, *install], check=True, timeout=280)
    make_video(tmp_path / "videos/a.mp4", num_frames=20, size=(64, 48))
    (tmp_path / "work.py").write_text(WORK)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path / "site"), str(REPOSITORY)])}
    done = subprocess.run([sys.executable, "work.py"], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["15 2 32 32", str(tmp_path / "site/cv2/__init__.py")]


def test_without_any(tmp_path: Path, make_video: Callable[..., Path]) -> None:
    make_video(tmp_path / "videos/a.mp4", num_frames=20, size=(64, 48))
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text("import sys; sys.modules['cv2'] = None\n")  # as if not installed
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path / "site"), str(REPOSITORY)])}

    def run(code: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True)

    command = "import sys; sys.argv[1:] = {}; from chordcache.cli import main; main()"
    assert run(command.format(["scan", "videos"])).returncode == 0
    assert run(command.format(["build"])).returncode == 0
    done = run(command.format(["build", "--tier", "npz", "--features", "flow"]))
    assert done.returncode == 2
    assert done.stderr == (
        "chordcache build: error: feature 'flow': needs OpenCV; run: pip install 'chordcache[build]'\n"
    )
    (tmp_path / "raw.yaml").write_text("frames: {codec: raw}\n")
    done = run(command.format(["build", "-o", "other", "-c", "raw.yaml"]))
    assert done.returncode == 2
    assert done.stderr == (
        "chordcache build: error: feature 'frames': codec raw needs OpenCV; run: pip install 'chordcache[build]'\n"
    )
    assert run("import chordcache as cc; cc.ChordVideoDataset('cache', size=None)[0]").returncode == 0
    done = run("import chordcache as cc; cc.ChordVideoDataset('cache')[0]")
    assert done.stderr.splitlines()[-1] == (
        "ImportError: no OpenCV (cv2) is installed; run: pip install 'chordcache[build]'"
    )
