"""Lists with named columns, over real clips: the records are those that the lists state."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

import pytest
from helpers.lists import indexed, place, write

from chordcache.errors import UsageError
from chordcache.index.index_files import read_index
from chordcache.records import Segment, VideoRecord


def test_columns_of_a_table_become_fields(tmp_path: Path, clips: Path) -> None:
    videos = place(clips, tmp_path, "a.mp4", "b.mp4")
    source = write(
        tmp_path / "list.csv",
        "path,label,caption,start_seconds,end_seconds,score:float,note\n"
        'a.mp4,run,"A man, running",0,0:00:01.5,0.5,first\n'
        "a.mp4,,,1.5,,,\n"
        "b.mp4,10,,,,2,\n",
    )
    records, columns, summary = indexed(source, "csv", videos=[videos])
    assert records == [
        VideoRecord(
            "videos",
            "a.mp4",
            segment=Segment(0.0, 1.5),
            label="run",
            caption="A man, running",
            extra={"score": 0.5, "note": "first"},
        ),
        VideoRecord("videos", "a.mp4", segment=Segment(1.5)),
        VideoRecord("videos", "b.mp4", label="10", extra={"score": 2}),
    ]
    assert columns == {"score": "float"}
    assert (summary.num_items, summary.num_files, summary.num_missing_items) == (3, 2, 0)


ROWS = [
    {"video": "a.mp4", "text": ["one", "two"], "labels": [3, 0], "n": 7, "x": 1, "ok": True, "tags": ["s"]},
    {"video": "b.mp4", "text": "alone", "labels": 2, "n": -1, "x": 0.5, "tags": [], "raw": {"k": [1, None]}},
]
ROW_RECORDS = [
    VideoRecord(
        "videos",
        "a.mp4",
        labels=("3", "0"),
        captions=("one", "two"),
        extra={"n": 7, "x": 1, "ok": True, "tags": ["s"]},
    ),
    VideoRecord(
        "videos",
        "b.mp4",
        label="2",
        caption="alone",
        extra={"n": -1, "x": 0.5, "tags": [], "raw": '{"k": [1, null]}'},
    ),
]
ROW_COLUMNS = {"n": "int", "x": "float", "ok": "bool", "tags": "list[str]"}


@pytest.mark.parametrize("suffix", ["json", "jsonl"])
def test_json_lists_keep_the_types_of_their_values(tmp_path: Path, clips: Path, suffix: str) -> None:
    text = json.dumps(ROWS, indent=1) if suffix == "json" else "\r\n\r\n".join(json.dumps(row) for row in ROWS)
    source = write(tmp_path / f"list.{suffix}", "\ufeff" + text)
    records, columns, _ = indexed(source, "csv", videos=[place(clips, tmp_path, "a.mp4", "b.mp4")])
    assert records == ROW_RECORDS
    assert columns == ROW_COLUMNS


def test_parquet_lists_keep_the_types_of_their_columns(tmp_path: Path, clips: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    rows = [
        {
            "file_name": "a.mp4",
            "labels": [3, 0],
            "n": 7,
            "x": float("nan"),
            "ok": True,
            "tags": ["s"],
            "at": 0.5,
            "s": 9,
        },
        {"file_name": "b.mp4", "labels": [2], "n": -1, "x": 0.5, "ok": None, "tags": [], "at": None},
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "list.parquet")
    options = {"columns": {"start": "at", "duration": "s"}}
    records, columns, _ = indexed(
        tmp_path / "list.parquet", "csv", videos=[place(clips, tmp_path, "a.mp4", "b.mp4")], options=options
    )
    assert records == [
        VideoRecord(
            "videos",
            "a.mp4",
            segment=Segment(0.5, 9.5),
            labels=("3", "0"),
            extra={"n": 7, "x": None, "ok": True, "tags": ["s"]},
        ),
        VideoRecord("videos", "b.mp4", label="2", extra={"n": -1, "x": 0.5, "tags": []}),
    ]
    assert columns == ROW_COLUMNS


def test_empty_cells_and_times_of_parquet(tmp_path: Path, clips: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    day = datetime.date(2024, 2, 29)
    rows = [{"path": "a.mp4", "label": 3.0, "day": day}, {"path": "b.mp4", "label": float("nan"), "day": None}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "list.parquet")
    videos = place(clips, tmp_path, "a.mp4", "b.mp4")
    records, columns, _ = indexed(tmp_path / "list.parquet", "csv", videos=[videos])
    assert records == [
        VideoRecord("videos", "a.mp4", label="3", extra={"day": "2024-02-29"}),
        VideoRecord("videos", "b.mp4"),
    ]
    assert columns == {}


def test_named_columns_and_frame_numbers(tmp_path: Path, clips: Path) -> None:
    source = write(tmp_path / "list.tsv", 'clip\tclass\tsays\tstart_frame\tend_frame\nx/a.mp4\tc\tit\'s "a"\t5\t12\n')
    options = {"columns": {"path": "clip", "label": "class", "caption": "says"}}
    records, _, _ = indexed(source, "csv", videos=[place(clips, tmp_path, "x/a.mp4")], options=options)
    segment = Segment(start_frame=5, end_frame=12)
    assert records == [VideoRecord("videos", "x/a.mp4", segment=segment, label="c", caption='it\'s "a"')]


def test_the_command_takes_columns_and_values(tmp_path: Path, clips: Path, run_cli) -> None:
    write(tmp_path / "list.csv", "clip,split\na.mp4,train\nb.mp4,val\n")
    place(clips, tmp_path, "a.mp4", "b.mp4")
    arguments = ("index", "list.csv", "--videos", "videos")
    result = run_cli(*arguments, "--column", "path=clip", "--where", "split=val", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert [record.path for record in read_index(tmp_path / "index.json")] == ["b.mp4"]
    for options, message in (
        (("--column", "path"), "--column: got 'path', expected MEANING=NAME"),
        (("--column", "path=x"), "--column: got path='x', expected one of 'clip', 'split'"),
        (("--where", "=val"), "--where: got '=val', expected COLUMN=VALUE"),
        (("--where", "split=val", "--where", "split=train"), "--where: got 'split' twice, expected one value for it"),
    ):
        result = run_cli(*arguments, *options, cwd=tmp_path)
        assert result.returncode == 2
        assert message in result.stderr


def test_where_keeps_rows_with_a_value(tmp_path: Path, clips: Path) -> None:
    source = write(tmp_path / "list.csv", "path,split,fold:int\na.mp4,train,1\nb.mp4,train,2\nc.mp4,test,1\n")
    videos = place(clips, tmp_path, "a.mp4", "b.mp4", "c.mp4")
    records, _, summary = indexed(source, "csv", videos=[videos], where={"split": "train", "fold": "1"})
    assert [record.path for record in records] == ["a.mp4"]
    assert summary.num_not_chosen == 2
    with pytest.raises(UsageError, match=r"^where: got split=val, expected one of test, train$"):
        indexed(source, "csv", videos=[videos], where={"split": "val"})
    with pytest.raises(UsageError, match=r"^where: got subset=val, expected an extra column that the items have$"):
        indexed(source, "csv", videos=[videos], where={"subset": "val"})
