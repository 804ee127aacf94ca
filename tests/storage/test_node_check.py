"""The check that a node of a cluster runs before its first task."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from chordcache.storage.node_check import check_for, versions
from chordcache.storage.owner import owned


@pytest.mark.parametrize("name", ["chordcache", "av", "numpy", "OpenCV", "simplejpeg"])
def test_another_version(name: str) -> None:
    check = check_for([])
    assert check() is None
    other = replace(check, versions={**check.versions, name: "1.0"})
    assert other() == f"{name} is {versions()[name]} there, and 1.0 where the run began"


def test_each_of_three_sources_is_looked_at(tmp_path: Path) -> None:
    files = [tmp_path / f"{number}.mp4" for number in range(5)]
    for file in files[1:]:
        file.write_bytes(b"video")
    check = check_for(files)  # the first one is missing here too
    for file in files[1:4]:
        file.rename(tmp_path / "moved")
        assert check() == f"'{file}' is not there (No such file or directory)"
        (tmp_path / "moved").rename(file)
        file.write_bytes(b"another")
        assert check() == f"'{file}' has 7 bytes there, and 5 where the run began"
        file.write_bytes(b"video")
    files[4].unlink()
    assert check() is None


def test_the_folder_of_the_cache_is_that_of_the_run(tmp_path: Path) -> None:
    with owned(tmp_path):
        check = check_for([], tmp_path)
        assert check() is None
    missing = f"cache '{tmp_path}' is not there, or is another folder"
    assert check() == missing
    with owned(tmp_path):
        assert check() == missing
