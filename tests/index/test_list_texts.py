"""Labels that are class ids, and text that is not UTF-8, in every format of lists."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from helpers.lists import indexed, place, write, write_json

import chordcache as cc
from chordcache.errors import DamageError, UsageError
from chordcache.index.index_files import read_index
from chordcache.train.fields import class_names

pytestmark = pytest.mark.usefixtures("inline")

Rows = Sequence[Mapping[str, Any]]


def write_csv(path: Path, rows: Rows) -> None:
    lines = [",".join("" if value is None else str(value) for value in row.values()) for row in rows]
    write(path, "\n".join([",".join(rows[0]), *lines]) + "\n")


def write_tsv(path: Path, rows: Rows) -> None:
    write_csv(path, rows)
    path.write_text(path.read_text().replace(",", "\t"))


def write_lines(path: Path, rows: Rows) -> None:
    write(path, "".join(json.dumps(row) + "\n" for row in rows))


def write_parquet(path: Path, rows: Rows) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.Table.from_pylist(list(rows)), path)


WRITERS: dict[str, Callable[[Path, Rows], Any]] = {
    "csv": write_csv,
    "tsv": write_tsv,
    "json": lambda path, rows: write_json(path, list(rows)),
    "jsonl": write_lines,
    "parquet": write_parquet,
}


# Labels


@pytest.mark.parametrize("as_text", [False, True], ids=["numbers", "texts"])
@pytest.mark.parametrize("suffix", WRITERS)
def test_whole_numbers_are_the_same_ids_in_every_format(
    tmp_path: Path, clips: Path, suffix: str, as_text: bool
) -> None:
    videos = place(clips, tmp_path, "a.mp4", "b.mp4", "c.mp4", "d.mp4")
    labels = [0.0, 2.0, 10.0, None]
    rows = [
        {"path": f"{name}.mp4", "label": str(label) if as_text and label is not None else label}
        for name, label in zip("abcd", labels, strict=True)
    ]
    WRITERS[suffix](tmp_path / f"l.{suffix}", rows)
    records, _, summary = indexed(tmp_path / f"l.{suffix}", "csv", videos=videos)
    assert [record.label for record in records] == ["0", "2", "10", None]
    assert summary.notes == ()


def test_whole_numbers_are_the_same_ids_in_csv_lists_and_labels_files(tmp_path: Path, clips: Path) -> None:
    videos = place(clips, tmp_path, "a.mp4", "b.mp4", "c.mp4", "d.mp4")
    write(videos / "l.csv", "path,label\na.mp4,0.0\nb.mp4,2.0\nc.mp4,10.0\nd.mp4,\n")
    assert [record.label for record in read_index(videos / "l.csv")] == ["0", "2", "10", None]
    scanned = cc.scan(videos, labels=str(videos / "l.csv"), level="headers", output=tmp_path / "own.csv")
    assert [record.label for record in scanned] == ["0", "2", "10", None]
    own = tmp_path / "own.csv"
    own.write_text(own.read_text().replace(",10,", ",10.0,"))  # as pandas does if it writes the file again
    assert [record.label for record in read_index(own)] == ["0", "2", "10", None]


@pytest.mark.parametrize("labels", [{"-1", "0"}, {"007", "12"}, {"0.5", "1"}, {"1e3", "2"}, {"+1", "2"}])
def test_numbers_that_are_not_ids_are_errors(tmp_path: Path, clips: Path, labels: set[str]) -> None:
    wrong = next(label for label in labels if not label.isdecimal() or label[0] == "0" != label)
    match = f"label: got '{wrong}' among labels that are all numbers, expected class ids".replace("+", r"\+")
    with pytest.raises(UsageError, match=match):
        class_names(labels)
    assert class_names({*labels, "run"}) == sorted({*labels, "run"})
    videos = place(clips, tmp_path, "0.mp4", "1.mp4")
    write_json(tmp_path / "l.json", [{"path": f"{n}.mp4", "label": label} for n, label in enumerate(labels)])
    _, _, summary = indexed(tmp_path / "l.json", "csv", videos=videos)
    assert [note[: len(f"label: got '{wrong}'")] for note in summary.notes] == [f"label: got '{wrong}'"]
    write(videos / "l.csv", "".join(["path,label\n", *(f"{n}.mp4,{label}\n" for n, label in enumerate(labels))]))
    assert len(read_index(videos / "l.csv").notes) == 1
    assert len(cc.scan(videos, labels=str(videos / "l.csv"), level="headers").warnings) == 1


def test_labels_of_other_formats(tmp_path: Path, clips: Path) -> None:
    videos = place(clips, tmp_path, "a.mp4")
    write(tmp_path / "ava.csv", "a,1,.1,.1,.2,.2,12.0,1\n")
    assert indexed(tmp_path / "ava.csv", "ava", videos=videos)[0][0].label == "12"
    write_json(videos / "a.json", {"labels": [3.0, "4.0", "x4.0"]})
    assert indexed(videos, "pairs")[0][0].labels == ("3", "4", "x4.0")
    database = {"database": {"a": {"annotations": [{"segment": [0, 1], "label": 5.0}]}}}
    write_json(tmp_path / "net.json", database)
    options = {"video_template": "{video_id}.*"}
    assert indexed(tmp_path / "net.json", "activitynet", videos=videos, options=options)[0][0].label == "5"


# Encodings

LATIN_1 = "un café".encode("latin-1")
FAULT = "got the byte 0xe9 at byte 6 of its text, expected UTF-8"


@pytest.mark.parametrize(
    ("name", "format", "data", "place_of_fault"),
    [
        ("l.csv", "csv", b"path,caption\nb.mp4,x\na.mp4,%s\n", "line 3: caption"),
        ("l.csv", "csv", b"path,label\na.mp4,%s\n", "line 2: label"),
        ("l.csv", "csv", b"path,x\na.mp4,%s\n", "line 2: column 'x'"),
        ("l.csv", "csv", b"path,%s\na.mp4,1\n", "line 1: the name of a column"),
        ("l.tsv", "csv", b"path\tcaption\na.mp4\t%s\n", "line 2: caption"),
        ("l.json", "csv", b'[{"path": "a.mp4", "caption": "%s"}]', "record 1: caption"),
        ("l.json", "csv", b'[{"path": "a.mp4", "tags": ["%s"]}]', "record 1: column 'tags'"),
        ("l.jsonl", "csv", b'{"path": "a.mp4", "label": "%s"}\n', "line 1: label"),
        ("l.csv", "kinetics", b"label,youtube_id,time_start,time_end,split\n%s,a,0,1,x\n", "line 2: label"),
        ("l.csv", "webvid", b"videoid,page_dir,name\na,.,%s\n", "line 2: caption"),
        ("l.txt", "ucf101", b"%s/a.mp4 1\n", "line 1: label"),
        ("l.json", "ssv2", b'[{"id": "a", "label": "%s"}]', "record 1: caption"),
    ],
)
def test_text_that_is_not_utf_8_is_refused(
    tmp_path: Path, clips: Path, name: str, format: str, data: bytes, place_of_fault: str
) -> None:
    class_folder = os.fsdecode(LATIN_1)
    videos = place(clips, tmp_path, "a.mp4", "a.webm", "b.mp4", "a_000000_000001.mp4", f"{class_folder}/a.mp4")
    (tmp_path / name).write_bytes(data % LATIN_1)
    with pytest.raises(UsageError, match=f"{name}'?, {place_of_fault}: {FAULT}"):
        indexed(tmp_path / name, format, videos=videos)


def test_parquet_text_that_is_not_utf_8_is_refused(tmp_path: Path, clips: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    videos = place(clips, tmp_path, "a.mp4", "b.mp4")
    for kind in (pa.binary(), pa.string()):
        column = pa.array([b"caf\xc3\xa9", LATIN_1], pa.binary())
        captions = pa.Array.from_buffers(kind, 2, column.buffers())
        pq.write_table(pa.table({"path": ["a.mp4", "b.mp4"], "caption": captions}), tmp_path / "l.parquet")
        with pytest.raises(UsageError, match=f"record 2: (column 'caption'|caption): {FAULT}"):
            indexed(tmp_path / "l.parquet", "csv", videos=videos)
    captions = pa.array([b"caf\xc3\xa9", b"x"], pa.binary())
    pq.write_table(pa.table({"path": ["a.mp4", "b.mp4"], "caption": captions}), tmp_path / "l.parquet")
    records, _, _ = indexed(tmp_path / "l.parquet", "csv", videos=videos)
    assert [record.caption for record in records] == ["caf\u00e9", "x"]


def test_half_of_a_surrogate_pair_in_json_is_refused(tmp_path: Path, clips: Path) -> None:
    videos = place(clips, tmp_path, "a.mp4")
    write(tmp_path / "l.jsonl", '{"path": "a.mp4", "caption": "x\\ud83d"}\n')
    with pytest.raises(UsageError, match=r"line 1: caption: got U\+D83D, half of a surrogate pair, at byte 1"):
        indexed(tmp_path / "l.jsonl", "csv", videos=videos)


def test_lists_of_a_scan_and_a_build_that_are_not_utf_8_are_refused(tmp_path: Path, clips: Path) -> None:
    videos = place(clips, tmp_path, "a.mp4")
    (videos / "l.csv").write_bytes(b"path,caption\na.mp4,%s\n" % LATIN_1)
    for use in (
        lambda: list(read_index(videos / "l.csv")),
        lambda: cc.scan(videos, labels=str(videos / "l.csv")),
    ):
        with pytest.raises(UsageError, match=f"l.csv', line 2: column 'caption': {FAULT}"):
            use()
    index = tmp_path / "i.json"
    cc.scan(videos, output=index, level="headers")
    index.write_bytes(index.read_bytes().replace(b'"path": "a.mp4"', b'"path": "a.mp4", "caption": "%s"' % LATIN_1))
    with pytest.raises(DamageError, match=f"i.json, record 1' is damaged: .*caption: {FAULT}"):
        list(read_index(index))


def test_files_beside_videos_and_of_classes_that_are_not_utf_8_are_refused(tmp_path: Path, clips: Path) -> None:
    videos = place(clips, tmp_path, "a.mp4")
    (videos / "a.txt").write_bytes(b"one\n" + LATIN_1)
    with pytest.raises(UsageError, match=r"a.txt', line 2: got the byte 0xe9 at byte 6, expected UTF-8"):
        indexed(videos, "pairs")
    write(tmp_path / "l.txt", "c/a.mp4 1\n")
    (tmp_path / "classInd.txt").write_bytes(b"1 x\n" + LATIN_1 + b"\n")
    with pytest.raises(UsageError, match=f"classInd.txt', line 2: the name of a class: {FAULT}"):
        indexed(tmp_path / "l.txt", "ucf101", videos=videos)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le"])
@pytest.mark.parametrize("name", ["l.csv", "l.json", "l.jsonl", "a.txt"])
def test_utf_16_is_named(tmp_path: Path, clips: Path, name: str, encoding: str) -> None:
    videos = place(clips, tmp_path, "a.mp4")
    text = {"l.csv": "path\na.mp4\n", "a.txt": "A cat\n"}.get(name, '{"path": "a.mp4"}\n')
    (videos / name).write_bytes(text.encode(encoding))
    source, format = (videos, "pairs") if name == "a.txt" else (videos / name, "csv")
    with pytest.raises(UsageError, match=f"{name}': got UTF-{encoding[4:6]} text, expected UTF-8. Save the file"):
        indexed(source, format, videos=videos)
    if name == "l.csv":
        with pytest.raises(UsageError, match="got UTF-"):
            read_index(videos / name)


# Captions of pairs


def test_videos_without_a_caption_are_named(tmp_path: Path, clips: Path) -> None:
    videos = place(clips, tmp_path, "a.mp4", "b.mp4", "c.mp4")
    write(videos / "a.txt", "A cat\n")
    write(videos / "c.txt", " \n")
    records, _, summary = indexed(videos, "pairs")
    assert [record.caption for record in records] == ["A cat", None, None]
    assert summary.notes == ("2 videos without a caption: b.mp4, c.mp4",)


def test_a_folder_of_labels_alone_needs_no_captions(tmp_path: Path, clips: Path) -> None:
    videos = place(clips, tmp_path, "a.mp4")
    write_json(videos / "a.json", {"label": "cat"})
    assert indexed(videos, "pairs")[2].notes == ()
