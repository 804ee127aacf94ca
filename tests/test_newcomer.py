"""The first hour of a new user, who types only what the README says, or the first page of the site."""

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


COMMANDS = {
    "README.md": ["scan", "build", "verify", "info", "show", "build", "build"],
    "docs/first-hour.md": ["scan", "build", "verify", "info", "ls", "show", "build", "build", "verify"],
}
"""Page to the commands that it types"""


def typed_blocks(page: str) -> list[tuple[str, str]]:
    """Return the blocks of a page: their language and text."""
    text = (REPOSITORY / page).read_text(encoding="utf-8")
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
@pytest.mark.parametrize("page", COMMANDS)
def test_a_page_leads_from_a_folder_to_training(page: str, clips: Path, tmp_path: Path) -> None:
    """Folder, list, look, split, train, validate, add flow, add sound, verify."""
    shutil.copytree(clips, tmp_path / "videos")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    commands: list[str] = []
    with subprocess.Popen(
        [sys.executable, "-c", SESSION],
        cwd=tmp_path, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as session:  # fmt: skip
        assert session.stdin is not None
        assert session.stdout is not None
        for language, text in typed_blocks(page):
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
    assert names == COMMANDS[page]
    info = subprocess.run(
        ["chordcache", "info", "--json"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert json.loads(info.stdout)["features"] == {"lmdb": ["frames"], "npz": ["mel", "flow"]}


def test_the_notebook_of_the_first_hour_runs(clips: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run its cells one after the other, as in the folder of the notebook. No output is stored in it."""
    notebook = REPOSITORY / "examples" / "first_hour.ipynb"
    (tmp_path / "examples").mkdir()
    (tmp_path / "scripts").symlink_to(REPOSITORY / "scripts")
    (tmp_path / ".clips").symlink_to(clips)
    monkeypatch.chdir(tmp_path / "examples")
    names: dict[str, object] = {}
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)
            exec("".join(cell["source"]), names)
    assert names["report"].damage == []
    assert (len(names["train"]), len(names["val"])) == (12, 1)
    assert list((tmp_path / "examples").iterdir()) == []


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
