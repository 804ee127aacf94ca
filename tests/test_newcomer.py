"""The first hour of a new user, who types only what the README says."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent


def typed_blocks() -> list[tuple[str, str]]:
    """Return the blocks of the README up to the section about sizes and speed: their language and text."""
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8").partition("\n## How large")[0]
    return re.findall(r"```(console|python)\n(.*?)```", text, re.S)


SESSION = """
import json, sys, warnings
warnings.simplefilter("error")
names = {"__name__": "__main__"}
for block in sys.stdin:
    exec(json.loads(block), names)
    print("\\nthe block has run", flush=True)
"""
"""A Python prompt: later blocks use earlier names"""


@pytest.mark.timeout(900)
def test_the_readme_leads_from_a_folder_to_training(clips: Path, tmp_path: Path) -> None:
    """Folder, list, look, split, train, validate, add flow, add sound, gc, verify."""
    shutil.copytree(clips, tmp_path / "videos")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    commands: list[str] = []
    with subprocess.Popen(
        [sys.executable, "-c", SESSION],
        cwd=tmp_path, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as session:  # fmt: skip
        assert session.stdin is not None
        assert session.stdout is not None
        for language, text in typed_blocks():
            if language == "python":
                session.stdin.write(json.dumps(text) + "\n")
                session.stdin.flush()
                assert "the block has run\n" in iter(session.stdout.readline, ""), text
                continue
            for command in re.findall(r"^\$ (.*)$", text, re.M):
                commands.append(command)
                _type(command, text, tmp_path, environment)
        session.stdin.close()
        assert session.wait(60) == 0
    names = [command.split()[1] for command in commands if command.startswith("chordcache ")]
    assert names == ["scan", "build", "verify", "info", "ls", "show", "build", "build", "gc", "verify"]
    info = subprocess.run(
        ["chordcache", "info", "--json"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert json.loads(info.stdout)["features"] == {"lmdb": ["frames"], "npz": ["mel", "flow"]}


def _type(command: str, text: str, folder: Path, environment: dict[str, str]) -> None:
    """Run a command of a block, and compare its first line with the one that the block shows."""
    result = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=250,
    )  # fmt: skip
    assert result.returncode == 0, (command, result.stderr)
    expected = text.partition(f"$ {command}\n")[2].partition("\n")[0]
    if expected and not expected.startswith(("$", "...")):
        assert _without_measures(result.stdout.splitlines()[0]) == _without_measures(expected), command


def _without_measures(line: str) -> str:
    """Return a line without times, sizes and spaces, which differ between machines."""
    return re.sub(r"\d+\.\d+ ?(s|[kMG]?B)|\s+", "", line)
