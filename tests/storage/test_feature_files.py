"""Looks at the files of features: whether they are there, with their sizes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from chordcache.errors import StorageError
from chordcache.storage.feature_files import FeatureFiles
from chordcache.storage.feature_info import StoredFile


def stored(name: str) -> StoredFile:
    return StoredFile(name, 5, "0" * 32)


def test_looks_at_many_files_in_a_folder(tmp_path: Path) -> None:
    cache, outside = tmp_path / "cache", tmp_path / "outside"
    for folder in (cache / "npz/aa", outside):
        folder.mkdir(parents=True)
        (folder / "whole").write_bytes(b"bytes")
        (folder / "short").write_bytes(b"byte")
        (folder / "link").symlink_to(folder / "whole")
        (folder / "folder").mkdir()
    (cache / "npz/bb").symlink_to(outside)
    files = FeatureFiles(cache)
    for _ in range(2):
        assert files.has(stored("npz/aa/whole"))
        assert not any(files.has(stored(f"npz/{name}")) for name in ("aa/short", "aa/none", "bb/whole", "cc/whole"))
        with pytest.raises(StorageError, match="folder"):
            files.has(stored("npz/aa/folder"))
        assert not files.has(stored("npz/aa/link"))
    os.replace(cache / "npz/aa/short", cache / "npz/aa/whole")
    assert not files.has(stored("npz/aa/whole"))
    os.remove(cache / "npz/aa/whole")
    assert not files.has(stored("npz/aa/whole"))
