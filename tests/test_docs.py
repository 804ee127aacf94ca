"""The documents agree with the code."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import numpy as np
import pytest
from helpers.commands import COMMANDS

import chordcache as cc
from chordcache import errors
from chordcache.config.config import config_from_json

REPOSITORY = Path(__file__).resolve().parent.parent
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
COMMAND_LINE = (REPOSITORY / "docs" / "command_line.md").read_text(encoding="utf-8")
LOADING = (REPOSITORY / "docs" / "loading.md").read_text(encoding="utf-8")
PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
MODULES = [
    module.name for module in pkgutil.walk_packages(cc.__path__, "chordcache.") if module.name != "chordcache.__main__"
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_run(name):
    module = importlib.import_module(name)
    assert doctest.testmod(module, optionflags=doctest.ELLIPSIS).failed == 0


def test_every_exit_code_is_documented_once():
    listed = [int(code) for cell in re.findall(r"^\| ([\d, ]+) \|", COMMAND_LINE, re.M) for code in cell.split(",")]
    raised = {cls.exit_code for cls in vars(errors).values() if isinstance(cls, type) and "exit_code" in vars(cls)}
    assert len(listed) == len(set(listed))
    assert set(listed) >= raised | {0, 6, 129, 130, 143}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_documented(command):
    assert f"`chordcache {command}`" in README
    assert f"## chordcache {command}\n" in COMMAND_LINE


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 200


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)#\s]+)?(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
        assert not target or target.startswith("http") or (path.parent / target).exists(), target


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_sections_that_links_name_exist(path):
    for target, section in re.findall(r"\]\(([^)#\s]*)#([^)]*)\)", path.read_text(encoding="utf-8")):
        page = (path.parent / target if target else path).read_text(encoding="utf-8")
        headings = re.findall(r"^#+ (.*)$", page, re.M)
        assert section in [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings], section


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_names_in_the_docs_can_be_imported(path):
    text = path.read_text(encoding="utf-8")
    assert {*re.findall(r"\bcc\.(\w+)", text)} <= {*cc.__all__}
    for name in {*re.findall(r"`(chordcache(?:\.\w+)+)`", text)} - {"chordcache.json"}:  # which is a file
        pkgutil.resolve_name(name)


def test_the_python_of_the_docs_runs(clips, tmp_path, monkeypatch):
    (tmp_path / "videos").symlink_to(clips)
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", COMMAND_LINE + LOADING, re.S)
    assert len(blocks) >= 6
    names = {"cc": cc}
    for block in blocks:
        exec(block, names)
    assert names["report"].damage == []


def test_the_format_suffices_to_read_a_cache(clips, tmp_path, monkeypatch):
    config = config_from_json({"features": {"flow": {"method": "dis", "preset": "ultrafast"}}})
    cc.build(cc.scan([clips / "animation"]), tmp_path / "cache", tiers=["lmdb", "npz"], config=config)
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```python\n(.*?)```", (REPOSITORY / "docs" / "format.md").read_text(encoding="utf-8"), re.S)
    names = {}
    exec(block, names)
    with cc.open_cache("cache") as cache:
        (video,) = cache
        assert names["sidecar"]["key"] == video.key
        assert names["features"].keys() == {"frames", "flow", "motion", "mel"}
        assert len(names["features"]["frames"]) == video.num_frames
        assert np.array_equal(names["features"]["flow"], cache.read(video, "flow", 0, video.num_frames - 1))
