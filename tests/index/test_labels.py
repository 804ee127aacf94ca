"""Labels by folder and by file, joined to records."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from chordcache.errors import NotFoundError, StorageError, UsageError
from chordcache.index.index_files import IndexWriter
from chordcache.index.labels import Labels
from chordcache.records import VideoRecord


def labels_file(tmp_path: Path, content: str) -> Labels:
    path = tmp_path / "labels.csv"
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    return Labels(str(path))


@pytest.mark.parametrize(
    ("path", "label"),
    [
        ("a.mp4", None),
        ("cat/a.mp4", "cat"),
        ("pets/cat/a.mp4", "cat"),
        ("\udcff/a.mp4", "\udcff"),
        ("x.mp4/y", "x.mp4"),
    ],
)
def test_folder_labels(path: str, label: str | None) -> None:
    labels = Labels("dir")
    record = VideoRecord("v", path, label="old", caption="a caption", extra={"a": "b"})
    assert labels.apply(record) == VideoRecord("v", path, label=label, caption="a caption", extra={"a": "b"})
    assert (labels.num_unmatched, labels.unmatched_example) == (0, None)


def test_file_labels(tmp_path: Path) -> None:
    rows = [
        "lang,path,label,caption",
        'en,./a.mp4,cat,"a cat, asleep"',
        ",b/b.mp4,dog,",
        ",v/c.mp4,,only c",
        "fr,none.mp4",
    ]
    labels = labels_file(tmp_path, "\ufeff" + "\n".join(rows))
    assert labels.apply(VideoRecord("v", "a.mp4")) == VideoRecord(
        "v", "a.mp4", label="cat", caption="a cat, asleep", extra={"lang": "en"}
    )
    assert labels.num_unmatched == 3
    assert labels.apply(VideoRecord("v", "b/b.mp4")) == VideoRecord(
        "v", "b/b.mp4", label="dog", erased=("caption", "lang")
    )
    assert labels.apply(VideoRecord("v", "c.mp4")) == VideoRecord(
        "v", "c.mp4", caption="only c", erased=("label", "lang")
    )
    assert labels.apply(VideoRecord("w", "c.mp4")) == VideoRecord("w", "c.mp4")
    assert labels.apply(VideoRecord("v", "A.MP4")) == VideoRecord("v", "A.MP4")
    assert (labels.num_unmatched, labels.unmatched_example) == (1, "none.mp4")


def test_root_label_and_path_comes_before_the_bare_path(tmp_path: Path) -> None:
    labels = labels_file(tmp_path, "path,label\na.mp4,bare\nv/a.mp4,of v\n")
    assert labels.apply(VideoRecord("v", "a.mp4")).label == "of v"
    assert labels.apply(VideoRecord("w", "a.mp4")).label == "bare"
    assert labels.num_unmatched == 0


def test_a_label_file_sets_only_its_own_columns(tmp_path: Path) -> None:
    old = VideoRecord("v", "a.mp4", label="old label", caption="old caption", extra={"lang": "en", "other": "kept"})
    captions = labels_file(tmp_path, "path,caption,lang\na.mp4,new,\n")
    assert captions.apply(old) == VideoRecord(
        "v", "a.mp4", label="old label", caption="new", extra={"other": "kept"}, erased=("lang",)
    )
    nothing = labels_file(tmp_path, "path,label\nb.mp4,new\n")
    assert nothing.apply(old).label is None
    assert nothing.apply(old).caption == "old caption"


def test_undecodable_names_and_names_as_our_own_csv_writes_them(tmp_path: Path) -> None:
    labels = labels_file(tmp_path, 'path,label\n\udcff.mp4,raw\n"""a\\nb.mp4""",quoted\n\'=x.mp4,formula\n')
    for path, label in [("\udcff.mp4", "raw"), ("a\nb.mp4", "quoted"), ("=x.mp4", "formula")]:
        assert labels.apply(VideoRecord("v", path)).label == label


def test_index_of_ours_serves_as_a_labels_file(tmp_path: Path) -> None:
    record = VideoRecord("v", "a.mp4", label="=cat", caption="'tis", level="headers", extra={"size": "big"})
    with IndexWriter(tmp_path / "own.csv", roots={"v": "/v"}, level="headers") as writer:
        writer.write(record)
    joined = Labels(os.fspath(tmp_path / "own.csv")).apply(VideoRecord("v", "a.mp4", level="headers"))
    assert joined == record


def test_missing_labels_file(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no such file '.*none.csv'"):
        Labels(str(tmp_path / "none.csv"))
    with pytest.raises(StorageError, match="got Is a directory, expected a readable file"):
        Labels(str(tmp_path))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("clip,label\n", "got the columns 'clip', 'label', expected a column 'path'"),
        ("path,label\na.mp4,x\n./a.mp4,y\n", "line 3: got 'a.mp4' twice, expected it once"),
        ("path,label\n,x\n", "line 2: got an empty path, expected a file name"),
    ],
)
def test_labels_file_with_a_mistake(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        labels_file(tmp_path, content)


@pytest.mark.parametrize("spelling", ["link/a.mp4", "v/link/a.mp4", "{}/real/a.mp4", "{}//link/../real/./a.mp4"])
def test_rows_name_a_file_in_any_spelling(tmp_path: Path, spelling: str) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "labels.csv").write_text(f"path,label\n{spelling.format(tmp_path)},cat\n")
    labels = Labels(str(tmp_path / "labels.csv"), {"v": str(tmp_path)})
    assert labels.apply(VideoRecord("v", "real/a.mp4")).label == "cat"
    assert labels.num_unmatched == 0
    (tmp_path / "labels.csv").write_text(f"path,label\nreal/a.mp4,dog\n{spelling.format(tmp_path)},cat\n")
    with pytest.raises(UsageError, match="line 3: got '.*real/a.mp4' twice, expected it once; line 2 has it too"):
        Labels(str(tmp_path / "labels.csv"), {"v": str(tmp_path)})


def test_rows_with_and_without_the_label_of_the_only_root(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text("path,label\na.mp4,dog\nv/a.mp4,cat\n")
    with pytest.raises(UsageError, match="line 3: got 'v/a.mp4' twice, expected it once; line 2 has it too"):
        Labels(str(tmp_path / "labels.csv"), {"v": str(tmp_path)})
    (tmp_path / "v").mkdir()
    (tmp_path / "v" / "a.mp4").touch()
    Labels(str(tmp_path / "labels.csv"), {"v": str(tmp_path)})
