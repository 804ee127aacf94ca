"""Mistakes in published lists, missing files, paths and roots, and long lists."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import pytest
from helpers.lists import indexed, place, write, write_json
from hypothesis import given, settings
from hypothesis import strategies as st

import chordcache as cc
from chordcache.choices import LIST_FORMATS
from chordcache.errors import NotFoundError, UsageError
from chordcache.index.index_files import read_index
from chordcache.index.lists.tables import open_table
from chordcache.index.lists.write import index_list
from chordcache.records import Segment, VideoRecord

KINETICS = "label,youtube_id,time_start,time_end,split\n"


@pytest.mark.parametrize(
    ("format", "name", "text", "message"),
    [
        ("csv", "l.csv", "a,b\n1,2\n", "got the columns 'a', 'b', expected one of path, file_name, video, "),
        ("csv", "l.csv", "", "got the columns none, expected one of path"),
        ("csv", "l.csv", "path\n", "got a list without items, expected at least one"),
        ("csv", "l.csv", "path,path\na,b\n", "got the column 'path' twice"),
        ("csv", "l.csv", "path\n\n,\n", "line 3: 2 cells, but the header row has 1"),
        ("csv", "l.csv", "path,x\n,1\n", "line 2: column 'path': got '', expected a path"),
        ("csv", "l.csv", 'path\n"a\n', "line 2: not CSV: "),
        (
            "csv",
            "l.csv",
            "path,start_seconds,end_seconds\na.mp4,nan\n",
            "line 2: start_seconds: got nan, expected a finite number",
        ),
        ("csv", "l.csv", "path,start_s,end_s\na.mp4,\na.mp4,-1\n", "line 3: start_seconds: got -1.0, expected a fin"),
        (
            "csv",
            "l.csv",
            "path,begin,end\na.mp4,,1:2\n\na.mp4,,soon\n",
            "line 4: end_seconds: got 'soon', expected sec",
        ),
        (
            "csv",
            "l.csv",
            "path,start_frame,stop_frame\na.mp4,1.5\n",
            "line 2: start_frame: got '1.5', expected a whole number",
        ),
        (
            "csv",
            "l.csv",
            "path,end_seconds,end_frame,start_seconds,start_frame\na.mp4,1,2\n",
            "line 2: segment: got times and frame numbers",
        ),
        ("csv", "l.csv", "path,x:float\na.mp4,much\n", "line 2: column 'x': got \"much\", expected float"),
        ("csv", "l.csv", "path\na.mp4\nb.mp4\n./a.mp4\n", "line 4: got './a.mp4' twice, expected it once; line 2 has"),
        ("csv", "l.csv", "path,x\na.mp4,1\na.mp4,2\n", "line 3: got 'a.mp4' twice, expected it once; line 2 has it"),
        ("csv", "l.csv", "path,caption\na.mp4,x\na.mp4,x\n", "line 3: got 'a.mp4' twice, expected it once; line 2"),
        ("csv", "l.csv", "path\n/etc/passwd\n", "line 2: got the path '/etc/passwd', expected one in '"),
        ("csv", "l.csv", "path\n../a.mp4\n", "line 2: got the path '../a.mp4', expected one in '"),
        ("csv", "l.csv", "path\na\0.mp4\n", "cannot be used: it contains NUL"),
        ("csv", "l.csv", "root,root_path,path\nv,/v,a.mp4\n", "got an index of chordcache, expected a list"),
        ("csv", "l.json", "{}", "got the columns none, expected one of path"),
        ("csv", "l.json", "3", "record 1: not JSON of a list: expected an array or an object"),
        ("csv", "l.json", '{"a": {"path": "a.mp4"}, "b": 3}', "record 1: not JSON of a list: got int, expected an"),
        ("csv", "l.json", '{"info": {}, "rows": [3]}', "record 1: not JSON of a list: got int, expected an object"),
        ("csv", "l.json", '[{"path": "a.mp4"}, 3]', "record 2: not JSON of a list: got int, expected an object"),
        ("csv", "l.json", '[{"path": "a.mp4"}, {"path": ', "record 1: not JSON of a list: "),
        ("csv", "l.jsonl", '{"path": "a.mp4"}\n{"x": NaN}\n', "line 2: not JSON: NaN is not a finite number"),
        ("csv", "l.jsonl", '{"path": 3}\n', "line 1: column 'path': got '3', expected a path"),
        (
            "csv",
            "l.jsonl",
            '{"path": "a.mp4", "start": true, "end": 2}\n',
            "line 1: start_seconds: got 'true', expected",
        ),
        ("csv", "l.txt", "a.mp4\n", "expected a .csv, .tsv, .json, .jsonl or .parquet file"),
        (
            "kinetics",
            "l.csv",
            "label,youtube_id\na,b\n",
            "got the columns 'label', 'youtube_id', expected youtube_id, ",
        ),
        (
            "kinetics",
            "l.csv",
            KINETICS + "a,b,nan,2,train\n",
            "line 2: column 'time_start': got \"nan\", expected float",
        ),
        (
            "kinetics",
            "l.csv",
            KINETICS + "a,b,,2,train\n",
            "line 2: column 'time_start': got an empty cell, expected a",
        ),
        (
            "kinetics",
            "l.csv",
            KINETICS + "a,b,1.5,2,train\n",
            "line 2: column 'time_start': got '1.5', expected a value",
        ),
        ("webvid", "l.csv", "videoid,name\n1,a\n", "expected videoid, name, page_dir; 'page_dir' is missing"),
        ("ucf101", "l.txt", "v_YoYo_g25_c05.avi 1\n", "line 1: got 'v_YoYo_g25_c05.avi 1', expected CLASS/FILE"),
        ("mmaction", "l.txt", "\n\nclip 3\n", "line 3: got 'clip 3', expected a video and numbers"),
        ("ssv2", "l.json", '[{"video": 1}]', "record 1: got the members 'video', expected 'id'"),
        ("activitynet", "l.json", "{}", "got a list without items, expected at least one"),
        (
            "activitynet",
            "l.json",
            '{"database": {"a": {"annotations": [{}]}}}',
            "record 1: segment: got '[{}]', expected ",
        ),
        (
            "activitynet",
            "l.json",
            '{"database": {"a": {"annotations": [{"segment": [-1, 2], "label": "x"}]}}}',
            "record 1: start_seconds: got -1.0, expected a finite number of at least 0",
        ),
        (
            "ava",
            "l.csv",
            "video_id,time\n",
            "line 1: got 'video_id,time', expected video_id,time,x1,y1,x2,y2,action_id",
        ),
        ("ava", "l.csv", "a,1,.1,.1,.2,2,80,1\n", "line 1: got 'a,1,.1,.1,.2,2,80,1', expected video_id,time"),
        ("ava", "l.csv", "a,nan,.1,.1,.2,.2,80,1\n", "line 1: got 'a,nan,.1,.1,.2,.2,80,1', expected video_id,time"),
    ],
)
def test_a_mistake_in_a_list_is_named(
    tmp_path: Path,
    clips: Path,
    format: str,
    name: str,
    text: str,
    message: str,
) -> None:
    videos = place(clips, tmp_path, "a.mp4", "b.mp4")
    source = write(tmp_path / name, text)
    with pytest.raises(UsageError) as caught:
        indexed(source, format, videos=[videos])
    assert str(caught.value).startswith(f"'{source}'")
    assert message in str(caught.value)
    assert not (tmp_path / "index.json").exists()


@pytest.mark.parametrize(
    ("format", "options", "message"),
    [
        ("avi", {}, "format: got 'avi', expected one of csv, kinetics, "),
        ("ava", {"columns": {"label": "x"}}, "columns: got '{'label': 'x'}' for a list of the format 'ava', expected "),
        ("pairs", {"video_template": "{a}"}, "video_template: got '{a}' for a list of the format 'pairs', expected"),
        ("csv", {"video_template": "{nam}.mp4"}, "video_template: got the field 'nam', expected one of path, id"),
        ("csv", {"video_template": "{id.x}"}, "video_template: got the field 'id.x', expected one of path, id"),
        ("csv", {"video_template": "{id"}, "video_template: got '{id', expected fields in braces"),
        ("csv", {"video_template": "{id:{path}}"}, "video_template: got '{id:{path}}', expected plain fields"),
        ("csv", {"columns": {"label": "x"}}, "columns: got label='x', expected one of 'path', 'id'"),
        ("csv", {"columns": {"name": "x"}}, "columns: got 'name', expected one of path, label, caption, start, end"),
        (
            "csv",
            {"columns": {"path": "id"}, "video_template": "{id}"},
            "columns: got path='id' and a template, expected",
        ),
    ],
)
def test_a_wrong_option_is_named(tmp_path: Path, format: str, options: dict[str, object], message: str) -> None:
    source = write(tmp_path / "list.csv", "path,id\na.mp4,1\n")
    with pytest.raises(UsageError) as caught:
        indexed(source, format, options=options)
    assert str(caught.value).startswith(message)


def test_lists_that_do_not_exist(tmp_path: Path) -> None:
    for format in LIST_FORMATS:
        with pytest.raises(NotFoundError):
            indexed(tmp_path / "nothing.csv", format)
    source = write(tmp_path / "list.csv", "path\na.mp4\n")
    with pytest.raises(NotFoundError, match="no such folder or file"):
        indexed(source, "csv", videos=[tmp_path / "nowhere"])
    with pytest.raises(UsageError, match=r"^videos: got the file 'list.csv', expected a folder$"):
        indexed(source, "csv", videos=[source])
    with pytest.raises(UsageError, match=r"^output: got '.*', which is the list itself, expected another file$"):
        index_list(source, source)
    assert source.read_text() == "path\na.mp4\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_leaves_the_earlier_index(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "a.mp4").touch()
    write(
        tmp_path / "list.csv", "path,start_frame,end_frame\n" + "".join(f"a.mp4,{frame}\n" for frame in range(200_000))
    )
    write(tmp_path / "index.json", "earlier")
    command = [sys.executable, "-m", "chordcache", "index", "list.csv"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's job in the background ignores it
    )  # fmt: skip
    while not list(tmp_path.glob(".chordcache-index-*")):
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(number)
    _, message = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert message.startswith(b"chordcache index: error: stopped by signal")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.mp4", "index.json", "list.csv"]
    assert (tmp_path / "index.json").read_text() == "earlier"


def test_reversed_times_stay_for_the_build(tmp_path: Path, clips: Path) -> None:
    source = write(tmp_path / "list.csv", "path,start_seconds,end_seconds\na.mp4,2,1\n")
    records, _, _ = indexed(source, "csv", videos=[place(clips, tmp_path, "a.mp4")])
    assert records == [VideoRecord("videos", "a.mp4", segment=Segment(2.0, 1.0))]


def test_a_type_in_a_json_name_is_declared(tmp_path: Path, clips: Path) -> None:
    box = {"time_seconds": 0, "x1": 0.1, "y1": 0.1, "x2": 0.2, "y2": 0.2}
    videos = place(clips, tmp_path, "a.mp4")
    source = write_json(tmp_path / "list.json", [{"path": "a.mp4", "boxes:relative_boxes": [box]}])
    records, columns, _ = indexed(source, "csv", videos=[videos])
    assert records[0].extra == {"boxes": [box]}
    assert columns == {"boxes": "relative_boxes"}
    write_json(source, [{"path": "a.mp4", "boxes:relative_boxes": [{"x1": 1}]}])
    with pytest.raises(UsageError, match=r"record 1: column 'boxes': got .*, expected relative_boxes"):
        indexed(source, "csv", videos=[videos])


def test_missing_files_are_counted_and_named(tmp_path: Path, clips: Path, run_cli) -> None:
    place(clips, tmp_path, *(f"{number}.mp4" for number in range(0, 40, 2)))
    rows = [f"{number}.mp4,{segment}\n" for number in range(40) for segment in range(3)]
    write(tmp_path / "list.csv", "path,start_seconds,end_seconds\n" + "".join(rows))
    arguments = ("index", "list.csv", "--videos", "videos", "--json")
    result = run_cli(*arguments, cwd=tmp_path)
    assert result.returncode == 3
    first = ["1.mp4", "3.mp4", "5.mp4", "7.mp4", "9.mp4"]
    assert result.stderr == (
        "chordcache index: path=path, segment=start_seconds..end_seconds\n"
        f"chordcache index: warning: 20 files are missing: {', '.join(first)}, ...\n"
    )
    summary = json.loads(result.stdout)
    assert summary.pop("elapsed_seconds") >= 0
    assert summary == {
        "command": "index",
        "version": cc.__version__,
        "num_items": 60,
        "num_files": 20,
        "num_missing_items": 60,
        "num_missing_files": 20,
        "missing_files": first,
        "num_merged": 0,
        "num_not_chosen": 0,
    }
    assert len(read_index(tmp_path / "index.json")) == 60


def test_no_file_at_all_is_an_error(tmp_path: Path, run_cli) -> None:
    write(tmp_path / "list.csv", "path\na.mp4\nb.mp4\n")
    result = run_cli("index", "list.csv", cwd=tmp_path)
    assert result.returncode == 10
    assert "--videos: got folders with none of the 2 files of 'list.csv', such as 'a.mp4', expected" in result.stderr
    assert not (tmp_path / "index.json").exists()


def test_absolute_paths_and_several_roots(tmp_path: Path, clips: Path) -> None:
    videos = place(clips, tmp_path, "x/a.mp4")
    other = tmp_path / "other" / "deep"
    other.mkdir(parents=True)
    (other / "b.mp4").write_bytes((videos / "x" / "a.mp4").read_bytes())
    source = write(tmp_path / "lists" / "list.csv", f"path\nx/a.mp4\n{other}/b.mp4\n../videos/../other/deep/c.mp4\n")
    records, _, summary = indexed(source, "csv", videos=[videos, f"more={tmp_path / 'other'}"])
    assert records == [VideoRecord("videos", "x/a.mp4"), VideoRecord("more", "deep/b.mp4")]
    assert summary.missing_files == ("deep/c.mp4",)
    with pytest.raises(UsageError, match=r"line 3: got the path .*Give the folder that has it too: videos"):
        indexed(source, "csv", videos=[videos])


def test_without_pyarrow_the_message_names_the_extra(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    source = tmp_path / "list.parquet"
    source.write_bytes(b"PAR1")
    with pytest.raises(UsageError, match=r"a Parquet list needs pyarrow: pip install 'chordcache\[build\]'"):
        open_table(source)


def test_a_file_that_is_not_parquet(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    source = write(tmp_path / "list.parquet", "path\n")
    with pytest.raises(UsageError, match=r"list.parquet': not Parquet: "):
        open_table(source)


def test_a_damaged_parquet_file(tmp_path: Path, clips: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    place(clips, tmp_path, "a.mp4")
    source = tmp_path / "list.parquet"
    pq.write_table(pa.table({"path": [f"{number}.mp4" for number in range(1000)]}), source)
    data = bytearray(source.read_bytes())
    data[4:600] = bytes(596)
    source.write_bytes(data)
    with pytest.raises(UsageError, match=r"list.parquet': damaged Parquet: "):
        indexed(source, "csv")


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(st.text(max_size=20), st.floats(0, 1e6), st.integers(), st.lists(st.text(max_size=5), max_size=3)),
        min_size=1,
        max_size=8,
    )
)
def test_any_text_and_number_survives(tmp_path_factory, rows) -> None:
    folder = tmp_path_factory.mktemp("any")
    (folder / "a.mp4").touch()
    rows = [(text.replace("\0", "").strip(), start, number, tags) for text, start, number, tags in rows]
    expected = [
        VideoRecord(
            folder.name,
            "a.mp4",
            segment=Segment(start_frame=position, end_frame=9),
            caption=text or None,
            extra={"x": start, "n": number, "tags": tags},
        )
        for position, (text, start, number, tags) in enumerate(rows)
    ]
    names = ["path", "start_frame", "end_frame", "caption", "x", "n", "tags"]
    values = [["a.mp4", position, 9, *row] for position, row in enumerate(rows)]
    (folder / "l.jsonl").write_text("\n".join(json.dumps(dict(zip(names, row, strict=True))) for row in values))
    (folder / "l.json").write_text(json.dumps([dict(zip(names, row, strict=True)) for row in values]))
    for delimiter, suffix in ((",", "csv"), ("\t", "tsv")):
        with open(folder / f"l.{suffix}", "w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, delimiter=delimiter)
            writer.writerow([*names[:4], "x:float", "n:int", "tags:list[str]"])
            writer.writerows([*row[:6], json.dumps(row[6])] for row in values)
    for suffix in ("json", "jsonl", "csv", "tsv"):
        index_list(folder / f"l.{suffix}", folder / "index.json")
        assert list(read_index(folder / "index.json")) == expected


def test_a_long_list_is_a_stream(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").touch()

    def peak(num_rows: int) -> int:
        with open(tmp_path / "list.csv", "w") as file:
            file.write("path,start_frame,caption,end_frame\n")
            file.writelines(f"a.mp4,{number},{'x' * 1000},\n" for number in range(num_rows))
        tracemalloc.start()
        index_list(tmp_path / "list.csv", tmp_path / "index.jsonl")
        size = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return size

    peak(10)
    assert peak(4000) - peak(400) < 200 * 3600
