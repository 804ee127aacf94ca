"""``pull`` on a disk that is full: it says so before it copies, and names the file. The object store is a folder."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import chordcache as cc
from chordcache.errors import NotFoundError
from chordcache.object_stores import lists, local_folder
from chordcache.object_stores import pull as pulling
from chordcache.object_stores.client import StoredObject
from chordcache.storage import atomic


class FolderStore:
    """A cache in a folder, read as an object store. ``opened`` has the names of the objects that were read."""

    def __init__(self, url: str) -> None:
        self.url, self.opened = url, []

    def entry(self, name: str) -> StoredObject:
        try:
            return StoredObject(os.path.getsize(Path(self.url) / name), None)
        except FileNotFoundError:
            raise NotFoundError(name) from None

    def entries(self, folder: str) -> dict[str, StoredObject]:
        return {}

    def read(self, name: str) -> bytes | None:
        return (Path(self.url) / name).read_bytes()

    def whole(self, name: str, entry: StoredObject) -> Iterator[bytes]:
        self.opened.append(name)
        yield (Path(self.url) / name).read_bytes()

    def blocks(self, name: str, start: int, num_bytes: int, etag: str | None = None) -> Iterator[bytes]:
        self.opened.append(name)
        yield (Path(self.url) / name).read_bytes()[start : start + num_bytes]


@pytest.fixture
def store(tmp_path: Path, make_video: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> FolderStore:
    make_video(tmp_path / "videos" / "a.mp4", num_frames=4)
    cc.build(tmp_path / "videos", tmp_path / "cache", jobs=1)
    store = FolderStore(str(tmp_path / "cache"))
    monkeypatch.setattr(pulling, "ObjectStore", lambda url: store)
    return store


def test_the_space_is_compared_before_the_lists(
    store: FolderStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = list(os.statvfs(tmp_path))
    status[3] = status[4] = 0  # no free block
    monkeypatch.setattr(atomic, "_disk_of", lambda path: os.statvfs_result(status))
    with pytest.raises(cc.StorageError, match=r"no space left for .* MiB in cache '.*pulled'"):
        pulling.pull("s3://x/y", tmp_path / "pulled")
    assert not store.opened


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT], ids=errno.errorcode.get)
@pytest.mark.parametrize("what", ["catalog.bin", "lmdb/"])
def test_the_file_that_does_not_fit_is_named(
    store: FolderStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, number: int
) -> None:
    def fail(path: Path, mode: str) -> Any:
        if store.opened and (what == "lmdb/" or path.name == what):
            raise OSError(number, os.strerror(number))
        return open(path, mode)

    if what == "lmdb/":  # the lists do fit
        download = local_folder.download

        def failing(*arguments: Any) -> None:
            monkeypatch.setattr(local_folder, "open", fail, raising=False)
            download(*arguments)

        monkeypatch.setattr(pulling, "download", failing)
    else:
        monkeypatch.setattr(lists, "open", fail, raising=False)
    with pytest.raises(cc.StorageError, match=os.strerror(number)[1:]) as error:
        pulling.pull("s3://x/y", tmp_path / "pulled")
    assert ".partial" not in str(error.value)
    folder = re.escape(str(tmp_path / "pulled"))
    assert re.search(rf"'{folder}(/{what}.*)?'", str(error.value))
    if what == "lmdb/":
        assert "/pulled/lmdb/" in str(error.value)
    monkeypatch.undo()
    monkeypatch.setattr(pulling, "ObjectStore", lambda url: store)
    assert pulling.pull("s3://x/y", tmp_path / "pulled").num_videos == 1
