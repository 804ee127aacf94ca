"""Facts that a scan takes from an earlier index, for files that have not changed."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_index_files import RECORDS, write_index

from chordcache.errors import UsageError
from chordcache.index.previous import ReusableRecords
from chordcache.records import Identity, VideoRecord


@pytest.mark.parametrize("suffix", [".json", ".jsonl"])
def test_unchanged_files_are_found_again(tmp_path: Path, suffix: str) -> None:
    path = write_index(tmp_path / f"index{suffix}")
    with ReusableRecords(path) as earlier:
        write_index(path, [])  # the new index takes the place of the one that is being read
        assert (earlier.problem, len(earlier)) == (None, 3)
        for record in reversed(RECORDS):
            assert record.identity is not None
            assert record.level is not None
            assert earlier.get("v", record.path, record.identity, record.level) == record
            assert earlier.get("v", record.path, record.identity, "headers") == record
            assert earlier.get("w", record.path, record.identity, "headers") is None
            for field in ("size", "mtime_ns"):
                changed = record.identity.replace(**{field: 77})
                assert earlier.get("v", record.path, changed, "headers") is None
        assert earlier.get("v", "a.mp4", Identity(1, 2), "content") is None
        assert earlier.get("v", "none.mp4", Identity(1, 2), "headers") is None


def test_no_facts_are_taken_from_csv(tmp_path: Path) -> None:
    path = write_index(tmp_path / "index.csv")
    with ReusableRecords(path) as earlier:
        write_index(path, [])
        assert "every file was read again" in str(earlier.problem)
        for record in RECORDS:
            assert record.identity is not None
            assert earlier.get("v", record.path, record.identity, "headers") is None
            bare = record.replace(label=None, caption=None, extra={})
            assert earlier.described(bare) == record
        assert earlier.described(VideoRecord("w", "a.mp4")) == VideoRecord("w", "a.mp4")
    with ReusableRecords(write_index(tmp_path / "index.json")) as earlier:
        assert earlier.described(VideoRecord("v", "a.mp4")) == VideoRecord("v", "a.mp4")


def test_no_earlier_index(tmp_path: Path) -> None:
    with ReusableRecords(tmp_path / "index.json") as earlier:
        assert (earlier.problem, len(earlier)) == (None, 0)
        assert earlier.get("v", "a.mp4", Identity(1, 2), "headers") is None


@pytest.mark.parametrize("suffix", [".json", ".jsonl"])
def test_a_damaged_earlier_index_is_not_used_and_a_warning_says_so(tmp_path: Path, suffix: str) -> None:
    path = write_index(tmp_path / f"index{suffix}")
    path.write_bytes(path.read_bytes().replace(b"c.mp4", b"../../c.mp4"))
    with ReusableRecords(path) as earlier:
        assert len(earlier) == 0
        assert earlier.get("v", "a.mp4", Identity(1, 2), "headers") is None
        assert earlier.problem is not None
        assert "the earlier index is not used: '" in earlier.problem


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("v.csv", "path\na.mp4\n"),
        ("v.csv", "root,root_path,path\nv,/v,../a.mp4\n"),
        ("v.json", '{"my": "annotations"}'),
    ],
)
def test_a_file_that_is_not_an_index_is_not_overwritten(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(UsageError, match="^output: .* would be overwritten"):
        ReusableRecords(path)
