"""The mistakes of tests/mistakes.txt print the errors that the file states.

The file has a line that is typed, then the line that is printed.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from helpers.inline import HERE

pytest.importorskip("torch")

import chordcache as cc
from chordcache.cli import cli

TABLE = Path(__file__).resolve().with_name("mistakes.txt")
FOLDER = "/data"
"""Stands for the folder in which the mistakes are made"""

FILES = {
    "typo.yaml": "frame:\n  quality: 90\n",
    "bad.yaml": "frames:\n  quality: 900\n",
    "broken.yaml": "frames: [\n",
    "starts.csv": "path,start_seconds\nvideos/street/bikes.mp4,1\n",
    "other/notes.txt": "notes\n",
}


def mistakes(prompt: str) -> list[tuple[str, str]]:
    """Return what is typed after a prompt, and the line that is printed."""
    return re.findall(rf"^{re.escape(prompt)} (.*)\n(.*)$", TABLE.read_text(encoding="utf-8"), re.M)


COMMANDS, CALLS = mistakes("$"), mistakes(">>>")


@pytest.fixture(scope="module")
def folder(clips: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with videos, their index and their cache, an empty folder, and some files."""
    path = tmp_path_factory.mktemp("mistakes")
    (path / "videos").symlink_to(clips)
    cc.build(cc.scan([path / "videos"], output=path / "index.json", labels="dir", jobs=HERE), path / "cache", jobs=HERE)
    (path / "empty").mkdir()
    for name, text in FILES.items():
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_text(text)
    return path


@pytest.fixture
def as_printed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Work in the folder. The function replaces its path by that of the file."""
    monkeypatch.chdir(folder)
    return lambda text: text.replace(str(folder), FOLDER)


@pytest.mark.parametrize(("command", "printed"), COMMANDS, ids=[command for command, _ in COMMANDS])
def test_a_wrong_command(command: str, printed: str, as_printed: Callable[[str], str]) -> None:
    result = CliRunner().invoke(cli, command.split()[1:], prog_name="chordcache")
    assert result.exit_code in (2, 10), result.output
    line = as_printed(result.stderr.splitlines()[-1])
    assert line.partition(" error: ")[2] == printed


@pytest.mark.parametrize(("call", "printed"), CALLS, ids=[call for call, _ in CALLS])
def test_a_wrong_call(call: str, printed: str, as_printed: Callable[[str], str]) -> None:
    names: dict[str, Any] = {"cc": cc, "cache": cc.open_cache("cache"), "dataset": cc.ChordVideoDataset("cache")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises((cc.ChordcacheError, IndexError)) as raised:
            eval(call, names)
    assert f"{type(raised.value).__name__}: {as_printed(str(raised.value))}" == printed


def test_the_file_has_the_mistakes_of_the_first_hour() -> None:
    assert (len(COMMANDS), len(CALLS)) == (35, 37)
