"""Memories of the package: each is listed here with its key, and two users of one do not mix."""

from __future__ import annotations

import ast
import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import chordcache
from chordcache.features.networks.pretrained import hash_of_files
from chordcache.media.tar_members import read_table

PACKAGE = Path(chordcache.__file__).parent

PURE = """features.built_in.read_side features.mel.window_and_filters media.cropping._taps
media.jpeg.part_decoder media.tonemap._encoder_table media.tonemap._light_table media.tonemap._matrix_to_bt709
read.crops.fixed_crop storage.atomic.machine storage.feature_rules._dtype
train.gpu_decode._weights"""
"""Functions of their arguments alone, of this machine and of the installed libraries"""

KEYED = {
    "features.base.NO_ROWS": "nothing: no function writes to it",
    "features.networks.pretrained._digest": "path, size, time and inode",
    "features.registry._installed": "nothing: a package that is installed later needs another process",
    "features.registry._models": "extractor, arguments with a hash of model files, device and batch size",
    "index.lists.pairs._texts_in": "folder and its mtime",
    "index.lists.locate.self.find": "path, for one reader of a list",
    "object_stores.sources._stores": "URL, which has all settings",
    "object_stores.local_folder._folders": "folder, replaced when its URL or limit changes",
    "object_stores.local_folder._lock_fds": "empty but while a lock is held",
    "media.tar_members._tables": "device, inode, size and times",
    "storage.artefacts.open_files._kept": "path, whose name has a digest of the content, pack and inode",
    "storage.find_sidecars._catalog": "cache, inode and mtime of its catalog",
    "tools.bench.measurement._opened": "all settings of a way",
    "verifying.leaks.pictures": "position in a split, for one search",
    "train.captions.self._ids": "caption, for one tokenizer",
}
"""Memory to all that decides its content. ``KeptFrames``, ``Cache`` and ``Catalog`` belong to one object"""


def memories() -> Iterator[str]:
    """Yield each function whose results are remembered, and each dict of a module that grows."""
    for path in PACKAGE.rglob("*.py"):
        module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                marks = [ast.unparse(mark).split("(")[0] for mark in node.decorator_list]
                if {"cache", "lru_cache"} & set(marks):
                    yield f"{module}.{node.name}"
            if isinstance(node, ast.Assign) and "lru_cache(" in ast.unparse(node.value):
                yield f"{module}.{ast.unparse(node.targets[0])}"
        for node in tree.body:
            if isinstance(node, ast.AnnAssign) and ast.unparse(node.value or node) in ("{}", "OrderedDict()"):
                yield f"{module}.{ast.unparse(node.target)}"


def test_each_memory_is_listed_with_its_key() -> None:
    listed = {*PURE.split(), *KEYED}
    assert {*memories()} <= listed, "a new memory: state what decides its content, and test two of them side by side"


def tar_of(path: Path, **members: bytes) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return path


def test_two_tar_files_side_by_side_and_one_that_changes_in_its_place(tmp_path: Path) -> None:
    paths = [tar_of(tmp_path / "one.tar", a=b"1" * 600, b=b"2"), tar_of(tmp_path / "other.tar", b=b"2", a=b"1" * 600)]
    assert len({path.stat().st_size for path in paths}) == 1
    with paths[0].open("rb") as one, paths[1].open("rb") as other:
        for _ in range(2):
            assert read_table(one.fileno()).members["b"].offset > read_table(other.fileno()).members["b"].offset
        content = paths[1].read_bytes()
        before = read_table(one.fileno()).members["b"]
        with paths[0].open("r+b") as file:
            file.write(content)
        assert read_table(one.fileno()).members["b"].offset < before.offset


def test_two_models_of_one_relative_name_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashes: list[set[str]] = [set(), set()]
    for number in range(2):
        (folder := tmp_path / str(number) / "net").mkdir(parents=True)
        (folder / "weights.bin").write_bytes(bytes([number]) * 50)
        os.utime(folder / "weights.bin", ns=(0, 0))
    for number in (0, 1, 0, 1):
        monkeypatch.chdir(tmp_path / str(number))
        hashes[number].add(hash_of_files("./net"))
    assert [len(of_one) for of_one in hashes] == [1, 1]
    assert not hashes[0] & hashes[1]
