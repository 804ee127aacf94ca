"""Partial files that another process removes: two machines whose disk has no common lock."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

from chordcache.errors import StorageError
from chordcache.index.index_files import IndexWriter
from chordcache.storage import atomic


def test_a_folder_that_vanishes_before_a_file_is_written(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="another process removed it"), atomic.partial_folder(tmp_path) as folder:
        shutil.rmtree(tmp_path / ".partial")
        (folder / "index.jsonl").write_text("")


def test_a_file_that_vanishes_before_it_is_published(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="another process removed it"), atomic.partial_folder(tmp_path) as folder:
        (folder / "index.jsonl").write_text("")
        shutil.rmtree(tmp_path / ".partial")
        atomic.publish_all(tmp_path, {folder / "index.jsonl": "index.jsonl"}, are_synced=True)


def test_a_folder_that_vanishes_before_a_writer_with_its_own_error(tmp_path: Path) -> None:
    with (
        pytest.raises(StorageError, match="another process removed it"),
        atomic.partial_folder(tmp_path) as folder,
        IndexWriter(folder / "index.jsonl", roots={}, level="packets"),
    ):
        shutil.rmtree(tmp_path / ".partial")


def test_a_missing_file_elsewhere_keeps_its_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="source"), atomic.partial_folder(tmp_path) as folder:
        atomic.link_or_copy(tmp_path, "source", folder / "copy")


def test_a_disk_that_is_mounted_to_read_is_not_said_to_be_full(tmp_path: Path) -> None:
    for number, action in ((errno.EROFS, "mount it for writing"), (errno.ENOSPC, "make room")):
        with (
            pytest.raises(StorageError, match=f"; {action} and run the same command"),
            atomic.no_space_as_error(tmp_path),
        ):
            raise OSError(number, "")
