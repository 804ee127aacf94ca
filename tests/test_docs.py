"""The documents agree with the code."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import mmap
import multiprocessing.spawn
import os
import pkgutil
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from helpers.commands import COMMANDS
from helpers.inline import HERE

import chordcache as cc
from chordcache import errors
from chordcache.building.fix_commands import REMEDIES
from chordcache.config.config import config_from_json
from chordcache.storage import atomic

REPOSITORY = Path(__file__).resolve().parent.parent
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
COMMAND_LINE = (REPOSITORY / "docs" / "command_line.md").read_text(encoding="utf-8")
TROUBLESHOOTING = (REPOSITORY / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
PAGES_THAT_RUN = (
    *("index", "training", "sampling", "annotations", "splits", "passport", "loaders", "ranks", "mixing"),
    *("sources", "report", "coming-from", "which-videos", "waiting"),
    "command_line",  # builds and repairs the cache of the others
)
"""Pages whose python blocks run, one after the other, in a folder with the cache of four clips"""
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
    assert f"## chordcache {command}\n" in COMMAND_LINE


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 120


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


def blocks_of(page, language):
    text = (REPOSITORY / "docs" / f"{page}.md").read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, re.S)


@pytest.fixture(scope="module")
def folder(clips, tmp_path_factory):
    """A folder with four clips as ``videos``, their index, their cache and two lists, as the pages take for granted."""
    path = tmp_path_factory.mktemp("docs")
    (path / "videos").symlink_to(clips)
    cc.build(cc.scan([path / "videos"], output=path / "index.json", labels="dir"), path / "cache", jobs=HERE)
    (path / "train.csv").write_text("path,label\nbikes.mp4,street\ncarphone_pristine.mp4,people\n")
    (path / "validate.csv").write_text("path,label\nbigbuckbunny.mp4,animation\n")
    return path


@pytest.mark.parametrize("page", PAGES_THAT_RUN)
def test_the_python_of_the_docs_runs(page, folder, monkeypatch):
    monkeypatch.chdir(folder)
    blocks = blocks_of(page, "python")
    assert blocks
    names = {"cc": cc}
    for block in blocks:
        exec(block, names)
    if page == "command_line":
        assert names["report"].damage == []


def test_the_training_config_of_the_docs_makes_a_loader(folder, monkeypatch):
    monkeypatch.chdir(folder)
    (block,) = blocks_of("training-config", "yaml")
    for batch in cc.from_config(yaml.safe_load(block))[1]:
        assert batch["frames"].shape == (2, 16, 3, 112, 112)


def test_the_format_suffices_to_read_a_cache(clips, tmp_path, monkeypatch):
    config = config_from_json({"features": {"flow": {"method": "dis", "preset": "ultrafast"}}})
    cc.build(cc.scan([clips / "animation"]), tmp_path / "cache", tiers=["lmdb", "npz"], config=config)
    monkeypatch.chdir(tmp_path)
    (block,) = blocks_of("format", "python")
    names = {}
    exec(block, names)
    with cc.open_cache("cache") as cache:
        (video,) = cache
        assert names["sidecar"]["key"] == video.key
        assert names["features"].keys() == {"frames", "flow", "motion", "mel"}
        assert len(names["features"]["frames"]) == video.num_frames
        assert np.array_equal(names["features"]["flow"], cache.read(video, "flow", 0, video.num_frames - 1))


def test_every_exit_code_has_its_classes():
    classes = {}
    for name, value in vars(errors).items():
        if isinstance(value, type):
            classes.setdefault(str(value.exit_code), set()).add(name)
    rows = re.findall(r"^\| ([\d, ]+) \|.*\| (.*)\|$", COMMAND_LINE, re.M)
    named = {codes: set(re.findall(r"`(\w+)`", names)) for codes, names in rows if names}
    stated = {"4": "StoppedError", "12": "StorageError", "13": "ChordcacheError", "129, 130, 143": "StoppedError"}
    assert named == classes | {code: {name} for code, name in stated.items()}


def test_troubleshooting_has_each_cause_of_quarantine():
    causes = re.findall(r"^\| `([\w-]+)` \|", TROUBLESHOOTING.partition("## Causes of quarantine")[2], re.M)
    assert sorted(causes) == sorted(REMEDIES)


def is_text_of_torch(message):
    """Return whether a library of torch has a text. They are hundreds of megabytes, so they are not read whole."""
    for path in Path(torch.__file__).parent.glob("lib/libtorch_*.so"):
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            if content.find(message.encode()) >= 0:
                return True
    return False


def test_messages_of_troubleshooting_are_those_of_the_code():
    """Messages are of this package, of the system, of Python's multiprocessing, or of torch."""
    texts = {os.strerror(number) for number in range(1, 134)} | {inspect.getsource(multiprocessing.spawn)}
    texts |= {f"{os.strerror(number).lower()} at" for number in atomic.NO_SPACE}  # as ``no_space_as_error`` says it
    for path in (REPOSITORY / "chordcache").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.add(node.value)
            elif isinstance(node, ast.JoinedStr):
                texts.add("".join(part.value if isinstance(part, ast.Constant) else "..." for part in node.values))
    whole = "\n".join(texts)
    for row in re.findall(r"^\| (.*) \|$", TROUBLESHOOTING, re.M):
        cells = row.split(" | ")
        for message in re.findall(r"`([^`]+)`", cells[1 if len(cells) == 4 else 0]):
            text = message.removeprefix("... ").removesuffix(" ...")
            assert text in whole or is_text_of_torch(text), message
