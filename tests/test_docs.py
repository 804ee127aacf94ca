"""What the documents say is what the code does."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import chordcache as cc
from chordcache import errors

REPOSITORY = Path(__file__).resolve().parent.parent
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
MODULES = [
    module.name for module in pkgutil.walk_packages(cc.__path__, "chordcache.") if module.name != "chordcache.__main__"
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_run(name):
    module = importlib.import_module(name)
    assert doctest.testmod(module, optionflags=doctest.ELLIPSIS).failed == 0


def test_the_readme_names_every_exit_code_once():
    listed = [int(code) for cell in re.findall(r"^\| ([\d, ]+) \|", README, re.M) for code in cell.split(",")]
    raised = {cls.exit_code for cls in vars(errors).values() if isinstance(cls, type) and "exit_code" in vars(cls)}
    assert len(listed) == len(set(listed))
    assert set(listed) >= raised | {0, 6, 129, 130, 143}


@pytest.mark.parametrize("command", ["scan", "build", "verify", "gc", "info"])
def test_the_readme_names_every_command(command):
    assert f"chordcache {command}" in README


def test_the_python_of_the_readme_runs(clips, tmp_path, monkeypatch):
    cc.build(cc.scan([clips], labels="dir"), tmp_path / "cache")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", README, re.S)
    assert len(blocks) >= 2
    names = {"cc": cc}
    for block in blocks:
        exec(block, names)
    assert names["sample"]["frames"].shape == (16, 3, 224, 224)
    assert names["clip"].shape[0] == 16
